"""Placeholder for the clean package."""
