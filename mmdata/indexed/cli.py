"""Commands on shards: merge, split, inspect, verify, adopt."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from mmdata.run.cli import emit, output_options


@click.command()
@click.argument("prefixes", nargs=-1, required=True, metavar="PREFIX...")
@click.option("-o", "--output-prefix", required=True, metavar="P", help="Prefix of the merged shard.")
@click.option("--multimodal", is_flag=True, help="The shards have mode bytes.")
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@output_options
def merge(
    prefixes: tuple[str, ...], output_prefix: str, multimodal: bool, overwrite: bool, as_json: bool, quiet: bool
) -> None:
    """Join shards into one, in the order given, with their sidecars and manifests.

    Example: mmdata merge out/a_text_document out/b_text_document -o out/all_text_document
    """
    from mmdata.indexed.merge import merge_shards

    done = merge_shards(prefixes, output_prefix, overwrite=overwrite, multimodal=multimodal)
    data = {name: getattr(done, name) for name in ("prefix", "parts", "dtype", "sequences", "documents", "tokens")}
    emit(data, as_json, f"{done.parts:,} parts -> {done.prefix}: {done.documents:,} documents, {done.tokens:,} tokens")


@click.command()
@click.argument("prefix")
@click.option("-o", "--output-prefix", required=True, metavar="P", help="Parts are named P_train_KEY_document, ...")
@click.option("--ratio", help="Shares of train,valid,test, such as 969,30,1.")
@click.option("--max-tokens", type=click.IntRange(1), help="Cut into shards of at most so many tokens.")
@click.option("--split-by", type=click.Choice(["hash", "order"]), default="hash", show_default=True)
@click.option("--seed", type=int, default=1234, show_default=True, help="Seed of the hash.")
@click.option("--overwrite", is_flag=True, help="Replace existing outputs.")
@output_options
def split(prefix: str, output_prefix: str, as_json: bool, quiet: bool, split_by: str, **options: object) -> None:
    """Cut a shard by shares or by size; documents stay whole.

    Example: mmdata split out/all_text_document -o out/all --ratio 969,30,1
    """
    from mmdata.indexed.split import split_shard

    parts = split_shard(prefix, output_prefix, by=split_by, **options)  # type: ignore[arg-type]
    lines = [f"{part.prefix}: {part.documents:,} documents, {part.tokens:,} tokens" for part in parts]
    emit({"parts": [asdict(part) for part in parts]}, as_json, "\n".join(lines))


@click.command()
@click.argument("prefix")
@click.option("--doc", type=int, metavar="I", help="Show document I (negative: from the end).")
@click.option("--decode", is_flag=True, help="Show its text; tokens that do not count in the loss are dim.")
@click.option("--stats", is_flag=True, help="Counts and the length histogram (the default).")
@click.option("--source", metavar="FILE:LINE", help="Find the documents that came from this line.")
@click.option("--search", "text", metavar="TEXT", help="Find documents that contain TEXT.")
@click.option("--tokenizer", help="Needed for text where the run's report is not beside the shard.")
@output_options
def inspect(prefix: str, as_json: bool, quiet: bool, **options: object) -> None:
    """Look into a shard: counts and lengths, a document and its text, where it came from.

    Example: mmdata inspect out/all_text_document --doc 3 --decode
    """
    from mmdata.inspection_text import describe

    data, lines = describe(prefix, color=not as_json and sys.stdout.isatty(), **options)  # type: ignore[arg-type]
    emit(data, as_json, lines)


@click.command()
@click.argument("prefixes", nargs=-1, required=True, metavar="PREFIX...")
@click.option("--deep", is_flag=True, help="Read every token: vocabulary, EOD placement, hashes.")
@click.option("--repair", is_flag=True, help="Mend what is provably mendable.")
@click.option("--tokenizer", help="With --repair: restores a missing manifest.")
@click.option("--multimodal", is_flag=True, help="The shards have mode bytes.")
@output_options
def verify(prefixes: tuple[str, ...], as_json: bool, quiet: bool, **options: object) -> None:
    """Check shards and their sidecars; exit code 1 when anything is wrong.

    Example: mmdata verify --deep out/all_text_document
    """
    from mmdata.inspection_text import verify_all

    data, lines, sound = verify_all(prefixes, **options)  # type: ignore[arg-type]
    emit(data, as_json, lines)
    click.get_current_context().exit(0 if sound else 1)


@click.command()
@click.argument("prefix")
@click.option("--tokenizer", required=True, help="The tokenizer the shard was made with.")
@click.option("--multimodal", is_flag=True, help="The shard has mode bytes.")
@click.option("--overwrite", is_flag=True, help="Replace an existing manifest.")
@output_options
def adopt(prefix: str, tokenizer: str, multimodal: bool, overwrite: bool, as_json: bool, quiet: bool) -> None:
    """Verify a shard made elsewhere and write its manifest.

    Example: mmdata adopt megatron/corpus_text_document --tokenizer tokenizers/qwen3
    """
    from mmdata.inspection_text import adopt_with

    data, lines = adopt_with(prefix, tokenizer, multimodal=multimodal, overwrite=overwrite)
    emit(data, as_json, lines)
