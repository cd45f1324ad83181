"""A Hugging Face tokenizer read without its library: vocabulary, added tokens, fingerprint, JSON for an engine.

The engine's JSON leaves out what would change ids unasked: truncation, padding, the post-processor (it adds bos or
eos), and, unless special tokens are allowed in text, every added token. Reading Qwen3 (11 MB) takes 0.4 s and peaks at
about 90 MB, given back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from mmdata.errors import TokenizerFormatError
from mmdata.tokenizers.base import SpecialToken
from mmdata.tokenizers.fingerprint import fingerprint
from mmdata.tokenizers.locate import Source, read_json_object
from mmdata.tokenizers.vocabulary import BYTE_LEVEL, Vocabulary, byte_level_bytes, metaspace_bytes, plain_bytes

# A piece no text can spell by accident: it starts with a noncharacter. Ids are checked besides (`hidden`).
HIDDEN_PREFIX = "\ufdd0mmdata-hidden:"


@dataclass(slots=True, frozen=True)
class Definition:
    """What one `tokenizer.json` says.

    engine_json: for the engine, UTF-8. hidden: ids of special tokens that the model itself could match in ordinary text
    (Unigram, WordPiece, WordLevel); their pieces are renamed in engine_json. byte_level: ids are byte sequences and
    decoding is joining them. header: model options, normaliser and pre-tokenizer.
    """

    vocabulary: Vocabulary
    specials: tuple[SpecialToken, ...]
    fingerprint: str
    engine_json: bytes
    hidden: tuple[int, ...]
    byte_level: bool
    header: dict[str, Any]


def read_definition(source: Source, allow_special: bool) -> Definition:
    """The definition behind a `json` or `pair` source.

    Raises TokenizerFormatError, naming file and fault, when it cannot be understood.
    """
    path = source.files[0]
    document = pair_document(source) if source.kind == "pair" else read_json_object(path)
    model = document.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), (dict, list)):
        raise TokenizerFormatError(f"{path}: `model` with a `vocab` is missing: not a tokenizer.json")
    kind = model.get("type") or (
        "BPE" if "merges" in model else "WordPiece" if "max_input_chars_per_word" in model else ""
    )
    if model.get("dropout"):
        raise TokenizerFormatError(
            f"{path}: BPE dropout {model['dropout']} makes token ids random; set `model.dropout` to null"
        )
    specials = read_added_tokens(document.get("added_tokens") or [], source)
    byte_level = _mentions(document.get("decoder"), "ByteLevel") or _mentions(
        document.get("pre_tokenizer"), "ByteLevel"
    )
    vocabulary = _vocabulary(
        path, model["vocab"], specials, byte_level, _mentions(document.get("decoder"), "ByteFallback")
    )
    options = {key: value for key, value in model.items() if key not in ("vocab", "merges", "type")}
    header = {
        "kind": kind,
        "model": options,
        "normalizer": document.get("normalizer"),
        "pre_tokenizer": document.get("pre_tokenizer"),
    }
    rows = model["vocab"] if isinstance(model["vocab"], list) else _merge_pairs(path, model.get("merges") or [])
    value = fingerprint(header, specials, vocabulary, rows)
    hidden = () if allow_special else _hide(document, specials, kind)
    engine_json = _engine_json(document, specials if allow_special else ())
    return Definition(vocabulary, specials, value, engine_json, hidden, byte_level, header)


def pair_document(source: Source) -> dict[str, Any]:
    """`vocab.json` and `merges.txt` as the tokenizer.json they amount to: byte-level BPE in GPT-2's way.

    Pieces that neither stand for one byte nor come from a merge can only be special (GPT-2: `<|endoftext|>`), and count
    as added tokens, as do those of `added_tokens.json` beside them.
    """
    vocab_path, merges_path = source.files
    vocab = read_json_object(vocab_path)
    merges = read_merges(merges_path)
    alphabet = {chr(point) for point in BYTE_LEVEL}
    missing = sorted(alphabet - vocab.keys())
    if missing:
        raise TokenizerFormatError(
            f"{vocab_path}: {len(missing)} of the 256 byte pieces are missing (first {missing[0]!r}): not a byte-level "
            "vocabulary; give the model's tokenizer.json instead"
        )
    reachable = alphabet.union(left + right for left, right in merges)
    unknown = next((pair for pair in merges if pair[0] + pair[1] not in vocab), None)
    if unknown:
        raise TokenizerFormatError(f"{merges_path}: the merge {' '.join(unknown)!r} gives a piece {vocab_path} lacks")
    control = {piece: number for piece, number in vocab.items() if piece not in reachable}
    added = control | source.sibling("added_tokens.json")
    prefix = bool(source.sibling("tokenizer_config.json").get("add_prefix_space", False))
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": piece} | ({"special": True} if piece in control else {})
            for piece, number in added.items()
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Pairs in order of rank from a merges.txt. Raises TokenizerFormatError with file and line."""
    merges = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise TokenizerFormatError(f"{path}:{number}: {line!r} is not two pieces with one space between")
        merges.append((left, right))
    return merges


def read_added_tokens(rows: Iterable[Mapping[str, Any]], source: Source) -> tuple[SpecialToken, ...]:
    """Added tokens by id.

    Those that only `tokenizer_config.json` beside the file declares are counted too, and rows that state no `special`
    (from an `added_tokens.json`) take their flags from there.
    """
    flags = ("special", "single_word", "lstrip", "rstrip", "normalized")
    declared = source.sibling("tokenizer_config.json").get("added_tokens_decoder") or {}
    found = {int(key): row for key, row in declared.items()}
    for row in rows:
        if "special" in row or found.get(row["id"], {}).get("content") != row["content"]:
            found[row["id"]] = row
    return tuple(
        SpecialToken(number, found[number]["content"], *(bool(found[number].get(flag)) for flag in flags))
        for number in sorted(found)
    )


def _vocabulary(
    path: Path,
    vocab: dict[str, int] | list[list[Any]],
    specials: Sequence[SpecialToken],
    byte_level: bool,
    fallback: bool,
) -> Vocabulary:
    pairs: Iterator[tuple[str, int]]
    pairs = iter(vocab.items()) if isinstance(vocab, dict) else ((row[0], n) for n, row in enumerate(vocab))
    table = dict((number, piece) for piece, number in pairs)
    table.update((token.id, token.content) for token in specials)
    if not table or min(table) < 0:
        raise TokenizerFormatError(f"{path}: the vocabulary is empty or holds a negative id")
    size = max(table) + 1
    if size > 4 * len(table) + 1024:
        raise TokenizerFormatError(f"{path}: {len(table)} tokens but an id of {size - 1}: the ids make no sense")
    to_bytes = (
        byte_level_bytes if byte_level else metaspace_bytes if fallback or isinstance(vocab, list) else plain_bytes
    )
    literal = {token.id for token in specials}
    return Vocabulary([table.get(number) for number in range(size)], to_bytes, literal)


def _merge_pairs(path: Path, merges: list[Any]) -> list[Any]:
    """Merges as pairs: files write them as `"a b"` or as `["a", "b"]`."""
    pairs = [merge.split(" ") for merge in merges] if merges and isinstance(merges[0], str) else merges
    for number, pair in enumerate(pairs):
        if len(pair) != 2:
            raise TokenizerFormatError(f"{path}: merge {number} is {merges[number]!r}, not a pair of pieces")
    return pairs


def _mentions(component: Any, kind: str) -> bool:
    """Whether a component, or one inside it, is of type `kind`."""
    if isinstance(component, dict):
        return component.get("type") == kind or any(_mentions(value, kind) for value in component.values())
    return isinstance(component, list) and any(_mentions(value, kind) for value in component)


def _hide(document: dict[str, Any], specials: Sequence[SpecialToken], kind: str) -> tuple[int, ...]:
    """Rename special pieces that a non-BPE model could match in ordinary text; the ids renamed.

    A Unigram model takes the piece `</s>` for text like any other. BPE reaches a piece only through its merges, unless
    it ignores them.
    """
    control = {token.content: token.id for token in specials if token.special}
    model, vocab = document["model"], document["model"]["vocab"]
    if kind == "BPE":
        _unmerge(model, control.keys())
        if not model.get("ignore_merges"):
            return ()
    present = control.keys() & (vocab.keys() if isinstance(vocab, dict) else {row[0] for row in vocab})
    if isinstance(vocab, dict):
        model["vocab"] = {HIDDEN_PREFIX + piece if piece in present else piece: n for piece, n in vocab.items()}
    else:
        model["vocab"] = [[HIDDEN_PREFIX + row[0], *row[1:]] if row[0] in present else row for row in vocab]
    if model.get("unk_token") in present:
        model["unk_token"] = HIDDEN_PREFIX + model["unk_token"]
    unknown = model.get("unk_id")
    unk = (
        {unknown} if unknown is not None else {control.get((model.get("unk_token") or "").removeprefix(HIDDEN_PREFIX))}
    )
    return tuple(sorted(control[piece] for piece in present if control[piece] not in unk))


def _unmerge(model: dict[str, Any], control: Set[str]) -> None:
    """Take out merges that spell a special token: a tokenizer trained on chat logs may have learnt `<|im_end|>`."""
    merges = model.get("merges") or []
    spelled = ["".join(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges]
    if not control.isdisjoint(spelled):
        model["merges"] = [merge for merge, piece in zip(merges, spelled, strict=True) if piece not in control]


def _engine_json(document: dict[str, Any], specials: Sequence[SpecialToken]) -> bytes:
    added = [
        {
            "id": token.id,
            "content": token.content,
            "special": token.special,
            "single_word": token.single_word,
            "lstrip": token.lstrip,
            "rstrip": token.rstrip,
            "normalized": token.normalized,
        }
        for token in specials
    ]
    changes: dict[str, Any] = {"added_tokens": added, "post_processor": None, "truncation": None, "padding": None}
    model = document["model"]
    merges = model.get("merges")
    if merges and not isinstance(merges[0], str) and not any(" " in piece for pair in merges for piece in pair):
        # Engines read merges faster as `"a b"` than as `["a", "b"]`: 0.3 s less for Qwen3.
        changes["model"] = {**model, "merges": list(map(" ".join, merges))}
    return orjson.dumps({"version": "1.0", "decoder": None, **document, **changes})
