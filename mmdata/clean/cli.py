"""`mmdata clean` and `mmdata recipe show|check`."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from mmdata.errors import UsageError
from mmdata.run.cli import emit, output_options, run_options

PARSER = "mmdata.record_parser"
"""Key of the context's `meta`: a picklable function from a format's name to a record parser."""
COUNT = click.IntRange(0)


@click.command("clean")
@click.argument("inputs", nargs=-1, required=True)
@click.option("-o", "--output", required=True, metavar="OUT.jsonl", help="Also .jsonl.gz or .jsonl.zst.")
@click.option("--recipe", default="auto", show_default=True, help="A built-in recipe or a .yaml file.")
@click.option("--pii", type=click.Choice(["off", "count", "replace", "hash"]), help="Instead of the recipe's own.")
@click.option("--pii-key", metavar="SECRET", envvar="MMDATA_PII_KEY", help="For --pii hash; or MMDATA_PII_KEY.")
@click.option("--json-keys", "keys", default="text", show_default=True, help="Fields to clean, parted by commas.")
@click.option("--format", default="text", show_default=True, help="auto, text, alpaca, sharegpt or messages.")
@click.option("--encoding", default="utf-8", show_default=True, help="utf-8, gb18030 or utf-16.")
@click.option("--on-error", type=click.Choice(["fail", "skip"]), default="skip", show_default=True)
@click.option("--show", type=COUNT, default=0, metavar="N", help="Show N documents before and after each reason.")
@click.option("--sample-drops", type=COUNT, default=0, metavar="N", help="Show N dropped documents of each reason.")
@click.option("--dry-run", is_flag=True, help="Report without writing.")
@run_options
@output_options
def clean_command(inputs: tuple[str, ...], output: str, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Repair bad text, drop meaningless text, mask personal data.

    Example: mmdata clean corpus/ -o out/clean.jsonl.gz --recipe zh --show 3
    """
    from mmdata.clean.files import clean
    from mmdata.jsonl import find_inputs, total_bytes
    from mmdata.run.progress import make_progress

    if settings.pop("ray_address") is not None:
        raise UsageError("--ray-address is not offered here; use --workers")
    source = click.get_current_context().get_parameter_source("pii_key")
    if source is ParameterSource.ENVIRONMENT and settings["pii"] != "hash" and not os.path.exists(settings["recipe"]):
        settings["pii_key"] = None  # set for other runs; no built-in recipe hashes
    if settings["format"] != "text":
        make = click.get_current_context().meta.get(PARSER)
        if make is None:
            raise UsageError(f"--format {settings['format']}: only text records can be read here")
        settings["parser"] = partial(make, settings["format"])
    settings["keys"] = tuple(key.strip() for key in settings["keys"].split(","))
    progress = make_progress(total_bytes(find_inputs(inputs)), sys.stderr, quiet=quiet)
    notice = None if quiet else partial(click.echo, err=True)
    report = clean(inputs, output, progress=progress, notice=notice, **settings)
    emit(report.as_json(), as_json, report.summary())


@click.group("recipe")
def recipe_group() -> None:
    """Show or check cleaning recipes.

    Example: mmdata recipe show auto
    """


@recipe_group.command("show")
@click.argument("source")
def show_command(source: str) -> None:
    """Print a recipe with every default written out.

    Example: mmdata recipe show zh > my.yaml
    """
    from mmdata.clean.recipe import show_recipe

    click.echo(show_recipe(source), nl=False)


@recipe_group.command("check")
@click.argument("source")
@output_options
def check_command(source: str, as_json: bool, quiet: bool) -> None:
    """Check a recipe: unknown steps, parameters and values are errors that name the nearest valid one.

    Example: mmdata recipe check my.yaml
    """
    from mmdata.clean.recipe import check_recipe

    found = check_recipe(source)
    emit(found, as_json, f"{source}: {found['steps']} steps, fingerprint {found['fingerprint']}")
