"""The one-command pipeline: files of records in, verified Megatron shards and a full account out.

    report = mmdata.convert(["corpus/"], "out/corpus", "tokenizers/qwen3", recipe="auto", workers=8)

The stages are described in docs/architecture.md; `mmdata.pipeline.conversion` puts them in order. The work folder
`PREFIX.work` holds everything unfinished: after a kill, the same call goes on from there to the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from mmdata._callable import make_callable
from mmdata.collector import collector_paused, loaded_spared
from mmdata.errors import UsageError
from mmdata.pipeline.conversion import Conversion, RunOptions
from mmdata.pipeline.options import ConvertOptions
from mmdata.report.build import RunReport

_RUN_FIELDS = set(RunOptions.__dataclass_fields__)
_BYTE_FIELDS = set(ConvertOptions.__dataclass_fields__)

Paths = Sequence[str | os.PathLike[str]] | str | os.PathLike[str]


def convert(inputs: Paths, output_prefix: str | os.PathLike[str], tokenizer: Any, **options: Any) -> RunReport:
    """Turn files of records into Megatron shards at `output_prefix`.

    inputs: files, folders, patterns or `-`. tokenizer: what load_tokenizer takes. options: the fields of
    ConvertOptions (what is made) and RunOptions (how). Returns the report that is also written beside the shards.
    Raises UsageError, InputError, OutputError, TokenizerError, RunError and their kin; nothing is left at the final
    names then.
    """
    prepared = _prepare(inputs, output_prefix, tokenizer, options)
    with loaded_spared():
        return prepared.execute()


def plan(inputs: Paths, output_prefix: str | os.PathLike[str], tokenizer: Any, **options: Any) -> dict[str, Any]:
    """What `convert` would do with the same arguments, after all its checks: JSON values, `lines` for a person.

    Writes nothing. Raises as `convert` does before its first record.
    """
    return _prepare(inputs, output_prefix, tokenizer, options, dry=True).describe()


def _prepare(
    inputs: Paths, output_prefix: Any, tokenizer: Any, options: dict[str, Any], *, dry: bool = False
) -> Conversion:
    known = _RUN_FIELDS | _BYTE_FIELDS
    unknown = sorted(options.keys() - known)
    if unknown:
        near = get_close_matches(unknown[0], sorted(known), n=1, cutoff=0.0)[0]
        raise UsageError(f"convert has no option {unknown[0]!r}; did you mean {near!r}?")
    run = RunOptions(**{name: value for name, value in options.items() if name in _RUN_FIELDS})
    made = ConvertOptions(**{name: value for name, value in options.items() if name in _BYTE_FIELDS})
    arguments = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    with collector_paused():  # a vocabulary is some hundred thousand objects: looking for cycles takes half a second
        return Conversion(arguments, os.fspath(output_prefix), tokenizer, made, run, dry=dry)


make_callable(__name__)
