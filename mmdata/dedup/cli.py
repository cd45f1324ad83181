"""The commands `mmdata dedup`, `mmdata decontaminate` and `mmdata sample`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import click

from mmdata.errors import UsageError
from mmdata.run.cli import emit, notice, output_options, run_options
from mmdata.run.sizes import parse_memory

PARSER = "mmdata.record_parser"
"""Key of the context's `meta`: a picklable function from a format's name to a record parser."""
OUTPUT = click.option("-o", "--output", required=True, metavar="OUT", help="Kept records: .jsonl, also .gz or .zst.")


def reading_options(command: Any) -> Any:
    """Adds how records are read."""
    for option in reversed(
        (
            click.option("--json-keys", default="text", show_default=True, help="Keys with text, separated by commas."),
            click.option(
                "--format", default="text", show_default=True, help="auto, text, alpaca, sharegpt or messages."
            ),
            click.option("--encoding", default="utf-8", show_default=True, help="utf-8, gb18030 or utf-16."),
            click.option("--txt-document", default="file", show_default=True, help="file, line or blank-line."),
        )
    ):
        command = option(command)
    return command


def similarity_options(command: Any) -> Any:
    """Adds what counts as a duplicate."""
    for option in reversed(
        (
            click.option("--threshold", type=float, default=0.8, show_default=True, help="Exact Jaccard that drops."),
            click.option("--ngram", type=int, default=5, show_default=True, help="Words (or characters) in a shingle."),
            click.option("--unit", default="word", show_default=True, help="word (one Han character is one) or char."),
            click.option(
                "--normalize", default="", metavar="LIST", help="Any of case,space,punctuation; numbers stay."
            ),
            click.option("--num-perm", type=int, default=128, show_default=True, help="Permutations of a signature."),
            click.option("--bands", type=int, default=0, help="Bands; default chosen from the threshold."),
            click.option("--rows", type=int, default=0, help="Rows of a band; given together with --bands."),
            click.option("--scheme", default="affine32", show_default=True, help="affine32, affine64 or legacy."),
            click.option(
                "--item-hash", default="rolling", show_default=True, help="rolling, or sha1 as in datasketch."
            ),
            click.option("--memory", default="256M", show_default=True, help="Memory for sorting."),
        )
    ):
        command = option(command)
    return command


def library_options(options: dict[str, Any], quiet: bool) -> dict[str, Any]:
    """Command-line values as the library takes them. Raises UsageError for what is not offered."""
    values = dict(options)
    if values.pop("shard", None) is not None or values.pop("ray_address", None) is not None:
        raise UsageError("--shard and --ray-address are not offered here; use --workers")
    values["json_keys"] = tuple(key.strip() for key in values["json_keys"].split(","))
    if "normalize" in values:
        values["normalize"] = tuple(step.strip() for step in values["normalize"].split(",") if step.strip())
    if "memory" in values:
        values["memory"] = parse_memory(values["memory"])
    return values | {"notice": notice(quiet)} | parsers_for(values)


def parsers_for(values: dict[str, Any]) -> dict[str, Any]:
    """Parsers of other than text records: the group of commands says in its context who makes them by format."""
    make = click.get_current_context().meta.get(PARSER)
    made: dict[str, Any] = {}
    formats = {name: values[name] for name in ("format", "against_format") if name in values}
    if formats.get("against_format", "") is None:
        is_text = make is None or values["against_keys"] != "text"  # keys that were named are those of text records
        made["against_format"] = formats["against_format"] = "text" if is_text else "auto"
    for name, format_name in formats.items():
        if format_name != "text":
            if make is None:
                raise UsageError(f"--{name.replace('_', '-')} {format_name}: only text records can be read here")
            made[name.replace("format", "parser")] = partial(make, format_name)
    return made


@click.command("dedup")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@OUTPUT
@click.option("--method", default="minhash", show_default=True, help="minhash, or exact (equal texts).")
@click.option("--level", default="document", show_default=True, help="document, or remove repeated line or paragraph.")
@click.option("--cluster", is_flag=True, help="Keep one of all that share bands, chained and unverified (classic).")
@click.option("--index", metavar="DIR", help="Compare with, and add to, what earlier runs kept.")
@click.option("--keep", default="first", show_default=True, help="first, longest, newest, field:NAME or score:NAME.")
@click.option("--dry-run", is_flag=True, help="Print the plan and the catch curve.")
@similarity_options
@reading_options
@run_options
@output_options
def dedup_command(
    inputs: tuple[str, ...], output: str, dry_run: bool, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Drop records that duplicate a kept one, by exact similarity.

    Example: mmdata dedup corpus/ -o out/unique.jsonl --threshold 0.8 --index out/index
    """
    from mmdata.dedup.corpus import dedup_at, plan_dedup

    values = library_options(options, quiet)
    if dry_run:
        plan = plan_dedup(inputs, output, **{name: v for name, v in values.items() if name != "level"})
        emit(plan, as_json, "\n".join(plan["lines"]))
        return
    report = dedup_at(inputs, output, **values)
    emit(asdict(report), as_json, report.lines())


@click.command("decontaminate")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("--against", "against", multiple=True, required=True, metavar="EVAL", help="Evaluation files; repeat it.")
@OUTPUT
@click.option("--ngram", type=int, default=13, show_default=True, help="Words in a row that count as overlap.")
@click.option("--shortest", type=int, default=8, show_default=True, help="Items of fewer words are not checked.")
@click.option("--min-grams", type=int, default=1, show_default=True, help="Distinct n-grams that make a record leave.")
@click.option("--report-only", is_flag=True, help="Write every record; only count and report.")
@click.option(
    "--against-format", show_default="auto; text with --against-keys", help="Format of the evaluation records."
)
@click.option("--against-keys", default="text", show_default=True, help="Keys with evaluation text.")
@reading_options
@run_options
@output_options
def decontaminate_command(inputs: tuple[str, ...], as_json: bool, quiet: bool, **options: Any) -> None:
    """Drop training records that contain evaluation text.

    Example: mmdata decontaminate train.jsonl --against eval.jsonl -o out/clean.jsonl
    """
    from mmdata.dedup.decontamination import decontaminate

    values = library_options(options, quiet)
    values["against_keys"] = tuple(key.strip() for key in values["against_keys"].split(","))
    report = decontaminate(inputs, list(values.pop("against")), values.pop("output"), **values)
    emit(asdict(report), as_json, report.lines())


@click.command("sample")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@OUTPUT
@click.option("--rest", required=True, metavar="FILE", help="The other records, without near-duplicates of the sample.")
@click.option("-n", "n", type=int, default=500, show_default=True, help="How many records to draw.")
@click.option("--by", metavar="FIELD", help="Draw in proportion from each value of this field.")
@click.option("--seed", type=int, default=1234, show_default=True, help="Seed of the draw.")
@similarity_options
@reading_options
@run_options
@output_options
def sample_command(inputs: tuple[str, ...], as_json: bool, quiet: bool, **options: Any) -> None:
    """Draw a stratified test set and keep its near-duplicates out of the rest.

    Example: mmdata sample corpus.jsonl -n 500 --by source -o test.jsonl --rest train.jsonl
    """
    from mmdata.dedup.sampling import sample

    values = library_options(options, quiet)
    report = sample(inputs, values.pop("output"), values.pop("rest"), **values)
    emit(asdict(report), as_json, report.lines())
