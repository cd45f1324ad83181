"""Checks on where a command over files writes, before anything is touched.

One rule for every command: a name that cannot be an output (empty, a folder, an input, of no known ending) is wrong
usage; a place that cannot be written is an OutputError. Costs a few directory entries. Does not look whether an output
exists already, since an unfinished run's own may, nor at free disk space.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from mmdata.document import Reject
from mmdata.errors import InputError, OutputError, UsageError
from mmdata.reading.inputs import InputFile

OUTPUT_ENDINGS = ".jsonl, .ndjson or .json, also with .gz or .zst behind it"
_STEM = re.compile(r"(.*[^/\\])\.(?:jsonl|ndjson|json)(?:\.gz|\.zst|\.zstd)?", re.DOTALL)


def output_stem(output: str) -> str:
    """`out/clean.jsonl.gz` gives `out/clean`. Raises UsageError for an ending that JSON lines do not have."""
    match = _STEM.fullmatch(output)
    if match is None:
        _refuse_folder(output)
        raise UsageError(f"the output {output!r} must end in {OUTPUT_ENDINGS}, such as out/kept.jsonl.gz")
    return match.group(1)


def check_outputs(inputs: Sequence[InputFile], outputs: Sequence[str]) -> None:
    """Raise where an output cannot be one. Makes nothing.

    UsageError: it is a folder, an input too, or the same file as another output. OutputError: a file stands where it
    needs a folder, or the folder that is there cannot be written.
    """
    taken = {os.path.realpath(source.path) for source in inputs if source.path != "-"}
    real = [os.path.realpath(path) for path in outputs]
    for path, place in zip(outputs, real, strict=True):
        _refuse_folder(path)
        if place in taken:
            raise UsageError(f"{path} is an input too: choose another output")
        if real.count(place) > 1:
            raise UsageError(f"{path} would be written twice: choose outputs of different names")
        check_folder(path)


def refuse_nothing(records: int, rejected: int, blank: int, first: Reject | None = None) -> None:
    """Raise InputError where no record could be read: empty outputs would hide a mistyped key or a wrong file.

    Records that were read and dropped are another matter: the drop file tells why. first: a reject, to show.
    """
    if records > rejected:
        return
    why = f"{rejected:,} rejected" if rejected else f"{blank:,} blank lines" if blank else "the inputs are empty"
    example = f"; the first is {first.path}:{first.line}: {first.reason}" if first is not None else ""
    raise InputError(f"no record could be read ({why}{example}); nothing was written")


def _refuse_folder(path: str) -> None:
    separators = (os.sep, os.altsep or os.sep)
    if not path or path.endswith(separators) or os.path.isdir(path):
        inside = os.path.join(path, "out.jsonl")
        raise UsageError(f"the output {path!r} is a folder, not a file: add a name, such as {inside}")


def check_folder(path: str) -> None:
    """Raise OutputError where the folder of `path` can be neither found nor made, or not written."""
    folder = os.path.abspath(os.path.dirname(path) or ".")
    while not os.path.lexists(folder):  # what is missing below the first folder there is can be made
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise OutputError(f"{folder} is no folder, but {path} needs one there; choose another output")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{folder} is not writable; choose another place for {path} or change its permissions")
