"""Placeholder for the report package."""
