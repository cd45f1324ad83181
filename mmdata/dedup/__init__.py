"""Placeholder for the dedup package."""
