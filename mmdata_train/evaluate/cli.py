"""`mmdata-train evaluate`: options in, one call, scores out."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from mmdata_train.console import shown_logging
from mmdata_train.json_text import json_text

_SUITE = ("training", "overlap", "batch_rows", "seed", "output", "allow_contamination", "overwrite")
_MODEL = ("adapter", "tokenizer", "chat_template", "precision", "system")


@click.command("evaluate")
@click.argument("targets", nargs=-1, metavar="[SUITE.yaml | [NAME=]MODEL...]")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a value of the suite.")
@click.option("--perplexity", multiple=True, metavar="[NAME=]PATH", help="A shard, folder of shards, or texts.jsonl.")
@click.option("--questions", multiple=True, metavar="[NAME=]FILE", help="JSON lines to be answered and scored.")
@click.option("--choices", multiple=True, metavar="[NAME=]PATH", help="Multiple choice: CSV, JSON lines, or a folder.")
@click.option("--answers", multiple=True, metavar="[NAME=]FILE", help="Answers made elsewhere; no model is loaded.")
@click.option("--references", help="With --answers: the file with the references, matched by id.")
@click.option("--shots", type=int, help="Examples before each question.")
@click.option("--shots-from", help="Where they come from.")
@click.option("--seq-length", type=int, help="Longest context (2048).")
@click.option("--stride", type=int, help="Of windows over longer texts (half of it).")
@click.option("--bos", "begin", type=click.Choice(["auto", "always", "never"]), help="Begin token before texts.")
@click.option("--max-new-tokens", type=int, help="Of an answer (256).")
@click.option("--metrics", help="Any of bleu,rouge,exact,f1; the last one tells gains.")
@click.option("--language", type=click.Choice(["zh", "en"]), help="How texts are cut (default: by the references).")
@click.option("--limit", type=int, help="Only the first items of each set.")
@click.option("--prompt-key", help="Field of the question.")
@click.option("--reference-key", help="Field of the reference.")
@click.option("--answer-key", help="Field of the answer.")
@click.option("--adapter", help="A PEFT folder on top of the model.")
@click.option("--tokenizer", help="In place of the model's own.")
@click.option("--chat-template", help="auto, a built-in's name or a file.")
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]), help="bf16 on a GPU, else fp32.")
@click.option("--system", help="A system message.")
@click.option("--training", multiple=True, help="Shards or raw files the model was trained on.")
@click.option("--overlap", type=float, help="Share of its 13-grams that makes an item contaminated (0.2).")
@click.option("--allow-contamination", is_flag=True, help="Score contaminated items all the same, and say so.")
@click.option("--tensor", type=int, help="Ranks that split each layer.")
@click.option("--pipeline", type=int, help="Ranks that split the layers.")
@click.option("--data", type=int, help="Ranks that share the items.")
@click.option("--batch-rows", type=int, help="Rows of one pass over all ranks (8).")
@click.option("--seed", type=int, help="Of draws.")
@click.option("-o", "--output", help="Folder of results.json, page.html and the items (out/evaluation).")
@click.option("--overwrite", is_flag=True, help="Replace an earlier evaluation there.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON on stdout.")
def evaluate_command(as_json: bool, **options: Any) -> None:
    """Perplexity, answers and multiple choice of one or several models, or scores of answers made elsewhere.

    \b
    Example:
      mmdata-train evaluate suite.yaml
      mmdata-train evaluate before=models/base after=runs/law --perplexity shards/law_valid_text_document -o out/law
      mmdata-train evaluate runs/law --choices ceval/val --shots 5 --shots-from ceval/dev --tensor 2 --pipeline 2
      mmdata-train evaluate --answers mine.jsonl -o out/mine
    """
    from mmdata_train.evaluate import results, run
    from mmdata_train.evaluate.flags import ranks_wanted

    suite = flags_of(options).to_suite()
    click.get_current_context().with_resource(shown_logging())
    count = ranks_wanted(suite)
    if count > 1 and "RANK" not in os.environ:
        from mmdata_train.mesh import require_devices
        from mmdata_train.ranks import start_ranks

        require_devices(count)
        run.check_before_ranks(suite)
        return start_ranks(count, sys.argv[1:])
    found = run.evaluate(suite)
    if os.environ.get("RANK", "0") == "0":
        text = json_text(found.to_json()) if as_json else "\n".join(results.lines(found))
        click.echo(text if as_json else f"{text}\n{suite.output / 'page.html'}")


def flags_of(options: dict[str, Any]) -> Any:
    """The options sorted by what they belong to."""
    from mmdata_train.evaluate.flags import Flags

    # By identity: 0 equals False, and a seed or limit of 0 was given.
    values = {key: value for key, value in options.items() if value is not None and value is not False and value != ()}
    ranks = {key: values.pop(key) for key in ("tensor", "pipeline", "data") if key in values}
    suite = {key: values.pop(key) for key in _SUITE if key in values} | ({"parallel": ranks} if ranks else {})
    model = {key: values.pop(key) for key in _MODEL if key in values}
    if "metrics" in values:
        values["metrics"] = [name.strip() for name in values["metrics"].split(",")]
    names = ("targets", "overrides", "perplexity", "questions", "choices", "answers", "references")
    own = {key: values.pop(key) for key in names if key in values}
    return Flags(**own, model=model, entry=values, suite=suite)
