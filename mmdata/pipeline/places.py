"""Checks on where a run reads and writes, before anything is touched.

Costs a few directory entries. Does not measure free disk: a full disk is met when it comes, without harm.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from typing import Any

import orjson

from mmdata.errors import OutputExistsError, UsageError
from mmdata.indexed.durable import disk_faults, remove
from mmdata.jsonl import InputFile
from mmdata.reading.outputs import check_folder

REPORT_ENDINGS = ("_report.json", "_report.html", "_rejects.jsonl", "_dropped.jsonl.gz")


def input_names(inputs: Sequence[InputFile]) -> list[str]:
    """Names that do not depend on where the run was started: paths relative to the folder all inputs share."""
    paths = [source.path for source in inputs]
    folders = [os.path.dirname(os.path.abspath(path)) for path in paths if path != "-"]
    try:
        base = os.path.commonpath(folders) if folders else ""
    except ValueError:  # different drives
        return [path.replace(os.sep, "/") for path in paths]
    relative = (path if path == "-" else os.path.relpath(os.path.abspath(path), base) for path in paths)
    return [path.replace(os.sep, "/") for path in relative]


def outputs_of(prefix: str, keys: Sequence[str], *, others: bool = False) -> list[str]:
    """Files an earlier run of this prefix left: shards of any split and roll, sidecars, manifests, reports.

    others: also what runs of longer prefixes left at names that a split or rolled run of this one would use, such as
    the shard of `PREFIX_train` made without a split.
    """
    key = "|".join(re.escape(key) for key in sorted({*keys, *_earlier_keys(prefix)}))
    name = re.escape(os.path.basename(prefix))
    pattern = re.compile(
        rf"{name}(_(?:train|valid|test))?(_\d{{5,}})?_(?:{key})_document(?:_origin|_loss_spans)?\.(?:bin|idx|json)"
    )
    found = [
        path for path in glob.glob(glob.escape(prefix) + "_*_document*")
        if (match := pattern.fullmatch(os.path.basename(path)))
        and (others or not _is_of_longer_prefix(prefix, match[1] or "", match[2] or ""))
    ]  # fmt: skip
    found += [prefix + ending for ending in REPORT_ENDINGS if os.path.exists(prefix + ending)]
    # Index files first: while they are gone there is no shard, so a reader never meets a half-replaced one.
    return sorted(found, key=lambda path: (not path.endswith(".idx"), path))


def _earlier_keys(prefix: str) -> set[str]:
    """JSON keys of the shards that the report of an earlier run of this prefix lists."""
    try:
        with open(f"{prefix}_report.json", "rb") as file:
            outputs = orjson.loads(file.read())["outputs"]
        return {str(output["key"]) for output in outputs}
    except (OSError, ValueError, KeyError, TypeError):  # none, or not one of ours: nothing is known of that run
        return set()


def _is_of_longer_prefix(prefix: str, split: str, roll: str) -> bool:
    """Whether a run of a longer prefix, one with a report of its own, wrote `PREFIX{split}{roll}_KEY_document`."""
    ends = {split, roll, split + roll} - {""}
    return any(os.path.exists(f"{prefix}{end}_report.json") for end in ends)


def check_places(
    inputs: Sequence[InputFile], prefix: str, keys: Sequence[str], *, overwrite: bool, numbered: bool
) -> None:
    """Raise UsageError, OutputExistsError or OutputError when the output would harm an input or an earlier output.

    numbered: shards get names with a split or a number in them. Makes nothing.
    """
    if not os.path.basename(prefix):
        raise UsageError(f"--output-prefix {prefix!r} names a folder; add a file name, such as {prefix}corpus")
    existing = outputs_of(prefix, keys, others=numbered)
    if existing and not overwrite:
        raise OutputExistsError(f"{existing[0]}: exists already; choose another prefix, or overwrite it (--overwrite)")
    taken = {os.path.realpath(path) for path in existing}
    taken |= {os.path.realpath(prefix + ending) for ending in (*REPORT_ENDINGS, "")}
    for source in inputs:
        real = os.path.realpath(source.path)
        if source.path != "-" and (real in taken or real.startswith(os.path.realpath(prefix + ".work") + os.sep)):
            raise UsageError(f"{source.path}: is an input and would be overwritten; choose another --output-prefix")
    check_folder(prefix)


def files_of(shards: Sequence[str], sidecars: bool, spans: bool) -> list[str]:
    """Every file of the shards of these prefixes, for telling them from an earlier run's."""
    endings = [".bin", ".idx", ".json"]
    if sidecars:
        endings += ["_origin.bin", "_origin.idx"]
    if sidecars and spans:
        endings += ["_loss_spans.bin", "_loss_spans.idx"]
    return [prefix + ending for prefix in shards for ending in endings]


def remove_stale(existing: Sequence[str], written: Sequence[str]) -> None:
    """Remove files of an earlier run that this one did not replace, such as shards it has fewer of."""
    kept = set(written)
    for path in existing:
        if path not in kept:
            with disk_faults(path):
                remove(path)


def changed_inputs(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Paths whose size or time differs between two `stat_inputs`."""
    return [path for path in before if before[path] != after.get(path)]
