"""The manifest beside a shard: which tokenizer, inputs, options and bytes it was made of (docs/shard-format.md).

Canonical JSON: equal shards have equal manifests, byte for byte. Reading costs about 80 microseconds and checks types
and the manifest's own hash, so that one altered by hand is refused; whether it fits the shard is verify.py's to say.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

import xxhash

from mmdata.errors import ManifestError
from mmdata.indexed.durable import FileDigest, write_durably
from mmdata.indexed.paths import SIDECARS, manifest_path

FORMAT_VERSION: Final = 1
Layout = Literal["plain", "pai"]
Loss = Literal["all", "spans"]
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(slots=True, frozen=True)
class InputFacts:
    """One input file: path as the user gave it, size in bytes, and hash (None where it was not hashed)."""

    path: str
    size: int | None = None
    xxh3_128: str | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class Manifest:
    """What is known of a shard; docs/shard-format.md says what each key means.

    files: digests by `bin`, `idx`, `origin.bin`, ... eod_appended: None means unknown or mixed. counts: counters of
    every stage, any JSON. options: everything that can change bytes, any JSON.
    """

    tokenizer_kind: str | None = None
    tokenizer_fingerprint: str | None = None
    vocab_size: int | None = None
    eod_id: int | None = None
    eod_appended: bool | None = None
    dtype: str = "int32"
    multimodal: bool = False
    sequences: int = 0
    documents: int = 0
    tokens: int = 0
    key: str | None = None
    layout: Layout = "plain"
    loss: Loss = "all"
    chat_template: str | None = None
    files: dict[str, FileDigest] = field(default_factory=dict)
    inputs: tuple[InputFacts, ...] = ()
    recipe: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)

    @property
    def options_hash(self) -> str:
        """xxh3-128 of the canonical JSON of recipe and options."""
        return _hash_of({"recipe": self.recipe, "options": self.options})

    def to_json(self) -> bytes:
        """The manifest's bytes: UTF-8, sorted keys, indent of two, one line feed at the end."""
        plain: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["format_version"] = FORMAT_VERSION
        plain["options_hash"] = self.options_hash
        plain["files"] = {name: {"size": d.size, "xxh3_128": d.xxh3_128} for name, d in self.files.items()}
        plain["inputs"] = [{"path": i.path, "size": i.size, "xxh3_128": i.xxh3_128} for i in self.inputs]
        plain[_SELF] = _hash_of(plain)
        return canonical_json(plain, indent=2) + b"\n"


def canonical_json(value: Any, indent: int | None = None) -> bytes:
    """UTF-8 JSON with sorted keys and no NaN; lone surrogates (undecodable file names) stay as escapes."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
    return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def _hash_of(value: Any) -> str:
    return str(xxhash.xxh3_128(canonical_json(value)).hexdigest())


_SELF: Final = "manifest_hash"
_HASH: Final = re.compile("[0-9a-f]{32}")
_FILES: Final = {"bin", "idx"} | {f"{name}.{end}" for name in SIDECARS for end in ("bin", "idx")}
_OPTIONAL_TEXT: Final = (str, type(None))
_OPTIONAL_INTEGER: Final = (int, type(None))
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "format_version": (int,),
    "options_hash": (str,),
    "tokenizer_kind": _OPTIONAL_TEXT,
    "tokenizer_fingerprint": _OPTIONAL_TEXT,
    "vocab_size": _OPTIONAL_INTEGER,
    "eod_id": _OPTIONAL_INTEGER,
    "eod_appended": (bool, type(None)),
    "dtype": (str,),
    "multimodal": (bool,),
    "sequences": (int,),
    "documents": (int,),
    "tokens": (int,),
    "key": _OPTIONAL_TEXT,
    "layout": (str,),
    "loss": (str,),
    "chat_template": _OPTIONAL_TEXT,
    "files": (dict,),
    "inputs": (list,),
    "recipe": (object,),
    "options": (dict,),
    "counts": (dict,),
}
assert set(_TYPES) == {f.name for f in fields(Manifest)} | {"format_version", "options_hash"}


def parse_manifest(content: bytes, path: str) -> Manifest:
    """The manifest in `content`; `path` is for messages. One without `manifest_hash` is taken as it is.

    Raises ManifestError.
    """
    try:
        plain = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except ValueError as error:
        raise _fault(path, f"is no UTF-8 JSON ({error})") from error
    except RecursionError as error:
        raise _fault(path, "is nested too deeply") from error
    if not isinstance(plain, dict):
        raise _fault(path, f"holds a {type(plain).__name__} instead of an object")
    version = plain.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise _fault(path, f"has format_version {version!r}; only {FORMAT_VERSION} is known")
    own_hash = plain.pop(_SELF, None)
    _check_keys(plain, path)
    files = {name: _digest(value, f"files.{name}", path) for name, value in plain["files"].items()}
    inputs = tuple(_input(value, f"inputs[{number}]", path) for number, value in enumerate(plain["inputs"]))
    rest = {f.name: plain[f.name] for f in fields(Manifest) if f.name not in ("files", "inputs")}
    manifest = Manifest(files=files, inputs=inputs, **rest)
    if manifest.options_hash != plain["options_hash"]:
        raise _fault(path, "has an options_hash that is not the hash of its recipe and options")
    if own_hash is not None and own_hash != _hash_of(plain):
        raise _fault(path, f"was altered after it was written: its {_SELF} is not the hash of what it says")
    return manifest


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _fault(path: str, what: str) -> ManifestError:
    return ManifestError(
        f"the manifest {what}", path=path, remedy="restore the file, or remove it and run `mmdata adopt`"
    )


def _check_keys(plain: dict[str, Any], path: str) -> None:
    missing, unknown = sorted(_TYPES.keys() - plain.keys()), sorted(plain.keys() - _TYPES.keys())
    if missing or unknown:
        raise _fault(path, f"lacks keys {missing}" if missing else f"has unknown keys {unknown}")
    for key, kinds in _TYPES.items():
        value = plain[key]
        wrong_bool = isinstance(value, bool) and bool not in kinds and object not in kinds
        if wrong_bool or not isinstance(value, kinds):
            raise _fault(path, f"has a {type(value).__name__} at {key!r}")
        if isinstance(value, int) and value < 0:
            raise _fault(path, f"has {value} at {key!r}, which cannot be negative")
    unknown = sorted(plain["files"].keys() - _FILES)
    if unknown:
        raise _fault(path, f"lists unknown files {unknown}; known are {', '.join(sorted(_FILES))}")
    for key, allowed in (("layout", ("plain", "pai")), ("loss", ("all", "spans"))):
        if plain[key] not in allowed:
            raise _fault(path, f"has {plain[key]!r} at {key!r}; known are {', '.join(allowed)}")


def _is_hash(value: Any) -> bool:
    """Whether a value can be an xxh3-128 as this package writes it: 32 lower-case hexadecimal digits."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _digest(value: Any, where: str, path: str) -> FileDigest:
    if isinstance(value, dict) and value.keys() == {"size", "xxh3_128"}:
        size, digest = value["size"], value["xxh3_128"]
        if type(size) is int and size >= 0 and _is_hash(digest):
            return FileDigest(size, digest)
    raise _fault(path, f"has no size and xxh3_128 at {where!r}")


def _input(value: Any, where: str, path: str) -> InputFacts:
    if isinstance(value, dict) and value.keys() == {"path", "size", "xxh3_128"}:
        facts = InputFacts(**value)
        if isinstance(facts.path, str) and (facts.size is None or type(facts.size) is int):
            if facts.xxh3_128 is not None and not _is_hash(facts.xxh3_128):
                raise _fault(path, f"has {facts.xxh3_128!r} at '{where}.xxh3_128', which is no hash")
            return facts
    raise _fault(path, f"has no path, size and xxh3_128 at {where!r}")


def read_manifest(prefix: str) -> Manifest | None:
    """The manifest of the local shard `prefix`, None where there is no such file. Raises ManifestError."""
    path = manifest_path(prefix)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _fault(path, f"cannot be read: {error.strerror or error}") from error
    return parse_manifest(content, path)


def write_manifest(prefix: str, manifest: Manifest) -> None:
    """Put the manifest beside the shard in one step. Raises OutputError."""
    write_durably(manifest_path(prefix), manifest.to_json())
