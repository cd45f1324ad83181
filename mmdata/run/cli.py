"""What the commands share at the terminal: `--json`, `--quiet`, progress and notices on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def output_options(command: Command) -> Command:
    """Adds `--json` and `--quiet`."""
    command = click.option("--quiet", is_flag=True, help="No progress and no notices.")(command)
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON result on standard output.")(command)


def run_options(command: Command) -> Command:
    """Adds what says how a run is carried out: workers, executor, shard, overwrite."""
    for option in reversed(
        (
            click.option("--workers", type=click.IntRange(1), default=None, help="Processes; default one a core."),
            click.option("--executor", default="local", show_default=True, help="local or ray."),
            click.option("--ray-address", default=None, help="Address of a Ray cluster."),
            click.option("--shard", default=None, metavar="I/N", help="Do only part I of N."),
            click.option("--overwrite", is_flag=True, help="Replace an existing output."),
        )
    ):
        command = option(command)
    return command


def emit(data: dict[str, Any], as_json: bool, lines: str) -> None:
    """The result on standard output: `data` as one line of JSON, or `lines` for a person."""
    click.echo(json.dumps(data, ensure_ascii=False, sort_keys=True) if as_json else lines)


def notice(quiet: bool) -> Callable[[str], None]:
    """A function that tells the user something on standard error, or nothing when quiet."""
    return (lambda text: None) if quiet else (lambda text: click.echo(text, file=sys.stderr))
