"""`mmdata-train compare`: a page for a blind test of two models, or the count of its ratings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mmdata.errors import UsageError
from mmdata_train.generation.cli import sampling_options
from mmdata_train.json_text import json_text


@click.command("compare")
@click.argument("sides", nargs=-1, metavar="A B")
@click.option("--prompts", type=click.Path(), help="JSON lines of questions.")
@click.option("-o", "--output", type=click.Path(), help="The page; its key is written beside it.")
@click.option("--names", help="Names of A and B in the key, as `base,tuned` (default: their paths).")
@click.option("--title", default="Which answer is better?", show_default=True, help="Heading of the page.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first questions.")
@click.option("--order-seed", default=1234, show_default=True, help="Of the order of items and sides.")
@click.option("--chat/--no-chat", default=None, help="Ask in the chat template (default: where the model has one).")
@click.option("--system", help="A system message for models that are asked.")
@click.option("--chat-template", help="auto, a built-in's name or a file.")
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]), help="bf16 on a GPU, else fp32.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier page and its key.")
@click.option("--score", "ratings", multiple=True, type=click.Path(), help="Count exported ratings; one file a rater.")
@click.option("--key", type=click.Path(), help="With --score: the key that was written beside the page.")
@sampling_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
def compare_command(sides: tuple[str, ...], ratings: tuple[str, ...], key: str | None, **options: Any) -> None:
    """Compare A and B blindly: models, runs, MODEL+ADAPTER, or JSON lines of answers made elsewhere.

    \b
    Example:
      mmdata-train compare models/base runs/law --prompts test.jsonl -o blind.html
      mmdata-train compare base_answers.jsonl models/base+out/peft --prompts test.jsonl -o blind.html
      mmdata-train compare --score ratings_ann.json --score ratings_bo.json --key blind.key.json
    """
    from mmdata_train.compare.command import build, score

    as_json = options.pop("as_json")
    if ratings:
        if sides or key is None:
            raise UsageError("--score takes ratings and their --key, and no models")
        result, lines = score(Path(key), ratings)
    else:
        if key is not None:
            raise UsageError("--key belongs to --score")
        result, lines = build(sides, **options)
    click.echo(json_text(result) if as_json else "\n".join(lines))
