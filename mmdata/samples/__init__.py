"""Placeholder for the samples package."""
