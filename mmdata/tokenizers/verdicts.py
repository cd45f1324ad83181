"""Self-checks that passed, remembered in the user's cache folder: the same check need not be made at each start.

A check is the same when everything that decides it is: the tokenizer's files, how it was asked for, the texts that
were compared (the hard ones and this run's own), both engines as installed, our code around them, and the machine. So
what is remembered is what the check would say again. It saves loading the reference: 0.5 s for Qwen3. Only passes are
kept; a folder that cannot be read or written means a check, never an error. `MMDATA_CACHE_DIR` moves the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import xxhash

from mmdata.tokenizers.adversarial import adversarial_texts
from mmdata.tokenizers.base import TokenizerOptions
from mmdata.tokenizers.engine_choice import Verdict, thin
from mmdata.tokenizers.locate import Source

FORMAT = 1
MOST_KEPT = 256
"""Files in the folder, 200 bytes each; the oldest make room."""
_ENGINES = ("fastokens", "tokenizers", "tiktoken", "sentencepiece")
_BINARIES = (".so", ".pyd", ".dylib")


class VerdictMemory:
    """What is remembered of one check; `key` is a hash of everything that decides it."""

    def __init__(self, key: str) -> None:
        from mmdata.indexed.remote import default_cache_dir

        self.path = Path(default_cache_dir()) / "self-checks" / f"{key}.json"

    def recall(self) -> Verdict | None:
        """The verdict, None where none is remembered or what is there makes no sense."""
        try:
            held = json.loads(self.path.read_text(encoding="utf-8"))
            return Verdict(True, held["passed"]) if isinstance(held["passed"], str) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, verdict: Verdict) -> None:
        """Remember a pass."""
        if not verdict.fast:
            return
        partial = self.path.with_suffix(f".{os.getpid()}.partial")
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps({"passed": verdict.description}), encoding="utf-8")
            os.replace(partial, self.path)
            self._make_room()

    def _make_room(self) -> None:
        kept = sorted(self.path.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in kept[:-MOST_KEPT]:
            path.unlink(missing_ok=True)


def memory_of(
    source: Source, options: TokenizerOptions, fingerprint: str, special: Sequence[str], sample: Sequence[str]
) -> VerdictMemory:
    """The memory of the check that these would be given."""
    state = xxhash.xxh3_128()
    facts = [
        FORMAT,
        source.kind,
        source.encoding,
        fingerprint,
        options.allow_special,
        platform.machine(),
        platform.node(),
    ]
    _add(state, [json.dumps(facts).encode()])
    _add(state, (path.read_bytes() for path in (*source.files, *_specials(options))))
    _add(state, (text.encode("utf-8", "surrogatepass") for text in [*adversarial_texts(special), *thin(sample)]))
    _add(state, (json.dumps(_installed(name)).encode() for name in _ENGINES))
    _add(state, (path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
    return VerdictMemory(str(state.hexdigest()))


def _specials(options: TokenizerOptions) -> list[Path]:
    return [] if options.special_tokens is None else [Path(options.special_tokens)]


def _add(state: xxhash.xxh3_128, parts: Iterable[bytes]) -> None:
    """Parts one by one with their lengths, so that no two lists hash alike."""
    for part in parts:
        state.update(f"{len(part)}\0".encode())
        state.update(part)
    state.update(b"end\0")


def _installed(name: str) -> list[object]:
    """Version of a package and its compiled files with size and time: a build of one's own keeps the version."""
    try:
        found: list[object] = [name, version(name)]
    except PackageNotFoundError:
        return [name]
    spec = find_spec(name)
    for folder in [] if spec is None else list(spec.submodule_search_locations or ()):
        for path in sorted(Path(folder).iterdir()):
            if path.suffix in _BINARIES:
                stat = path.stat()
                found.append([path.name, stat.st_size, stat.st_mtime_ns])
    return found
