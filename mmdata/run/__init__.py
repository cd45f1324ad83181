"""Placeholder for the run package."""
