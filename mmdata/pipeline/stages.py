"""From the options of a run to the stages it needs: record format, recipe, chat rendering, deduplication."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmdata.chat.render import ChatOptions, ChatRenderer
from mmdata.dedup.in_memory import find_duplicates
from mmdata.dedup.params import DedupParams
from mmdata.dedup.signer import SLOW_NOTE, compile_kernels
from mmdata.document import Document, Part
from mmdata.errors import UsageError
from mmdata.pipeline.dedup_run import DedupRunner
from mmdata.pipeline.options import ConvertOptions
from mmdata.records import RecordOptions
from mmdata.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mmdata.clean.recipe import Recipe


def record_options(options: ConvertOptions) -> RecordOptions:
    """How records are read. Several JSON keys can only be plain text. Raises UsageError."""
    mapping = []
    for entry in options.map:
        field, equals, role = entry.partition("=")
        if not equals or not field or not role:
            raise UsageError(f"--map needs field=role, such as question=user; got {entry!r}")
        mapping.append((field, role))
    several = len(options.json_keys) > 1
    if several and options.format not in ("auto", "text"):
        keys = ",".join(options.json_keys)
        raise UsageError(f"--format {options.format} makes one shard, but --json-keys {keys} names more")
    return RecordOptions(options.json_keys, "text" if several else options.format, tuple(mapping))


def recipe_of(options: ConvertOptions) -> Recipe | None:
    """The cleaning recipe with the personal-data action of the options; None when nothing is to be cleaned."""
    if options.recipe == "none" and options.pii in (None, "off"):
        _refuse_unused_key(options, None)
        return None
    from mmdata.clean.pipeline import with_pii
    from mmdata.clean.ready import check_ready
    from mmdata.clean.recipe import load_recipe

    recipe = load_recipe(options.recipe)
    check_ready(recipe)
    if options.pii is not None:
        recipe = with_pii(recipe, options.pii)
    _refuse_unused_key(options, recipe)
    if options.pii_key is not None:
        recipe = recipe.replace_parameter("pii", key=options.pii_key)
    return recipe


def _refuse_unused_key(options: ConvertOptions, recipe: Recipe | None) -> None:
    steps = () if recipe is None else recipe.steps
    hashes = any(step.name == "pii" and step.parameters.get("action") == "hash" for step in steps)
    if options.pii_key is not None and not hashes:
        raise UsageError("--pii-key is for hashed personal data and would do nothing here; add --pii hash, or leave it")


def without_secrets(recipe: Recipe) -> list[list[Any]]:
    """The recipe's steps for the manifest; the key of hashed personal data would undo the hashing."""
    shown = [
        [step.name, {name: value for name, value in step.parameters.items() if (step.name, name) != ("pii", "key")}]
        for step in recipe.steps
    ]
    return shown


def chat_options(
    options: ConvertOptions, records: RecordOptions, tokenizer: Tokenizer, say: Callable[[str], None]
) -> ChatOptions | None:
    """How conversations are rendered; None where every record is plain text.

    A template that was named is tried here, before any data is read; the tokenizer's own only where all records are
    conversations, since a plain corpus needs none. say: told what follows from the template. Raises ChatTemplateError.
    """
    if records.format == "text":
        return None
    made = ChatOptions(
        template=options.chat_template, train_on=options.train_on, max_length=options.max_length,
        too_long=options.too_long, thinking=options.thinking, date=options.chat_date,
        count_empty_thinking=options.count_empty_thinking,
        eod_id=tokenizer.eod_id if options.append_eod and tokenizer.eod is not None else None,
    )  # fmt: skip
    if options.chat_template != "auto" or records.format != "auto":
        for notice in ChatRenderer(tokenizer, made).notices:
            say(notice)
    return made


def dedup_runner(
    options: ConvertOptions, work_dir: Path, memory: int, names: list[str], batch: str
) -> DedupRunner | None:
    """The deduplication of the options, or None. batch: its name in an index. Raises DedupError and its kin."""
    if options.dedup == "none":
        if options.dedup_index is not None:
            raise UsageError("--dedup-index needs --dedup exact or minhash")
        return None
    return DedupRunner.of(options, work_dir, memory, tuple(names), batch)


def warm_up(recipe: Recipe | None, params: DedupParams | None, say: Callable[[str], None]) -> None:
    """Compile kernels, or load them where that has been done: in the parent first, then workers find them compiled.

    say: told where it takes long because kernels are compiled, and where there are none.
    """
    if find_spec("numba") is None:
        if params is not None:
            say(SLOW_NOTE)
        _load_cleaning(recipe)
        return

    def first_call() -> None:
        if params is not None:
            find_duplicates(["a b c d e f"] * 2, params, native=True)  # those of deciding too, which the parent does
        _load_cleaning(recipe)

    from mmdata.kernels import prepare

    prepare(first_call, "cleaning and deduplication", say)


def load_kernels(recipe: Recipe | None, params: DedupParams | None) -> None:
    """What a worker needs of `warm_up`, after the parent's."""
    if params is not None:
        compile_kernels(params)
    _load_cleaning(recipe)


def _load_cleaning(recipe: Recipe | None) -> None:
    if recipe is not None and recipe.steps:
        from mmdata.clean.pipeline import Cleaner

        document = Document("warm-up", 0, 1, None, {"text": "a"}, (Part("text", "text", "a 一"),))
        cleaner = Cleaner(recipe)
        cleaner.clean_documents([document])
        cleaner.load_tables()
