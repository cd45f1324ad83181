"""The `mmdata-train` command. The engine is not built yet: it says so and exits with 2."""

from __future__ import annotations

import click


@click.command()
def main() -> None:
    """Fine-tune language models on Megatron shards (not available yet)."""
    message = "the training engine is not part of this version; shards made by `mmdata` can be used with Megatron."
    click.echo(f"mmdata-train: {message}", err=True)
    raise SystemExit(2)
