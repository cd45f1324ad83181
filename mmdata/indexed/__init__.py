"""Placeholder for the indexed package."""
