"""The `mmdata` command: each body parses, calls one library function, and prints."""

from __future__ import annotations

import click


@click.group()
@click.version_option(package_name="mmdata")
def main() -> None:
    """Turn raw text into clean, deduplicated, tokenized Megatron shards."""
