"""What `inspect`, `verify` and `adopt` say, as JSON values and as lines for a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mmdata.errors import ShardError, UsageError
from mmdata.indexed.adopt import adopt_shard
from mmdata.indexed.repair import repair_shard
from mmdata.indexed.verify import Finding, VerifyResult, verify_shard
from mmdata.inspection import (
    DocumentView,
    find_source,
    histogram_lines,
    overview,
    search,
    tokenizer_of,
    view_document,
)
from mmdata.tokenizer import LoadedTokenizer, load_tokenizer

DIM, BRIGHT, RESET = "\x1b[2m", "\x1b[1;32m", "\x1b[0m"
OPEN, CLOSE = "⟦", "⟧"  # where there are no colours: in a file or a pipe
SHOWN_TOKENS = 64
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(9), 11, 12, *range(13, 32), *range(127, 160))}
# Bidirectional controls can make a terminal show text in another order than it has (Trojan Source, CVE-2021-42574).
_CONTROL |= {code: f"\\u{code:04x}" for code in (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def describe(
    prefix: str,
    *,
    color: bool,
    doc: int | None = None,
    decode: bool = False,
    stats: bool = False,
    source: str | None = None,
    text: str | None = None,
    tokenizer: str | None = None,
) -> tuple[dict[str, Any], str]:
    """The answer to `mmdata inspect`: JSON values and lines. Raises UsageError, ShardError and their kin."""
    data: dict[str, Any] = {}
    lines: list[str] = []
    if source is not None:
        data["source"] = find_source(prefix, source)
        lines += [f"{source}: documents {data['source']}" if data["source"] else f"{source}: no document came from it"]
    if text is not None:
        if not text:
            raise UsageError("--search needs a text to look for; it is empty")
        data["search"] = search(prefix, text, tokenizer_of(prefix, tokenizer))
        lines += [f"document {hit['document']}: …{_printable(hit['excerpt'])}…" for hit in data["search"]]
        lines += [] if data["search"] else ["no document contains it"]
    reader = tokenizer_of(prefix, tokenizer) if decode and (doc is not None or data.get("source")) else None
    if decode and source is not None:
        views = [view_document(prefix, number, reader) for number in data["source"]]
        data["documents"] = [asdict(view) | {"text": view.text} for view in views]
        lines += [line for view in views for line in _document_lines(view, decode, color)]
    if doc is not None:
        view = view_document(prefix, doc, reader)
        data["document"] = asdict(view) | {"text": view.text if decode else None}
        lines += _document_lines(view, decode, color)
    if stats or (doc is None and source is None and text is None):
        data |= overview(prefix)
        lines += _overview_lines(data)
    return data, "\n".join(lines)


def verify_all(
    prefixes: Sequence[str], *, deep: bool, repair: bool, tokenizer: str | None, multimodal: bool
) -> tuple[dict[str, Any], str, bool]:
    """Verify, or repair and verify, each shard: JSON values, lines, and whether all are sound.

    A shard that cannot be repaired is no end: why is its first finding, and the others are looked at all the same.
    """
    facts = load_tokenizer(tokenizer, engine="none") if repair and tokenizer is not None else None
    data: dict[str, Any] = {"shards": []}
    lines: list[str] = []
    for prefix in prefixes:
        actions: tuple[str, ...] = ()
        failed: ShardError | None = None
        if repair:
            try:
                actions = repair_shard(prefix, facts and TokenizerFactsOf(facts), multimodal=multimodal).actions
            except ShardError as error:
                failed = error
            lines += [f"repaired: {action}" for action in actions]
        result = verify_shard(prefix, deep=deep, multimodal=multimodal)
        if failed is not None:
            result.findings.insert(0, Finding.of(failed))
        lines += _verify_lines(result)
        data["shards"].append(
            {"prefix": result.prefix, "ok": result.ok, "deep": result.deep, "repaired": list(actions)}
            | {name: getattr(result, name) for name in ("sequences", "documents", "tokens", "notes")}
            | {"findings": [asdict(finding) for finding in result.findings]}
        )
    return data, "\n".join(lines), all(shard["ok"] for shard in data["shards"])


def adopt_with(prefix: str, tokenizer: str, *, multimodal: bool, overwrite: bool) -> tuple[dict[str, Any], str]:
    """Adopt a foreign shard: JSON values and lines."""
    facts = TokenizerFactsOf(load_tokenizer(tokenizer, engine="none"))
    manifest = adopt_shard(prefix, facts, multimodal=multimodal, overwrite=overwrite)
    eod = {True: "appended to every document", False: "not appended", None: "appended to some documents only"}
    line = (
        f"{prefix}: {manifest.documents:,} documents, {manifest.tokens:,} tokens inside the vocabulary of "
        f"{manifest.vocab_size:,}; end-of-document token {eod[manifest.eod_appended]}"
    )
    return {"prefix": prefix, "documents": manifest.documents, "tokens": manifest.tokens}, line


class TokenizerFactsOf:
    """What adopting and repairing need of a tokenizer; no end-of-document token is None here, not an error."""

    def __init__(self, tokenizer: LoadedTokenizer) -> None:
        self.vocab_size = tokenizer.vocab_size
        self.fingerprint = tokenizer.fingerprint
        self.kind = tokenizer.kind
        self.eod_id = None if tokenizer.eod is None else tokenizer.eod.id


def _document_lines(view: DocumentView, decode: bool, color: bool) -> list[str]:
    head = f"document {view.index}: {len(view.tokens):,} tokens" + (f", from {view.origin}" if view.origin else "")
    if not decode:
        more = "" if len(view.tokens) <= SHOWN_TOKENS else f" ... and {len(view.tokens) - SHOWN_TOKENS:,} more"
        return [head, " ".join(map(str, view.tokens[:SHOWN_TOKENS])) + more]
    if len({counted for _, counted in view.segments}) < 2:
        return [head, _printable(view.text)]
    if not color:
        note = f"tokens that count in the loss stand between {OPEN} and {CLOSE}"
        shown = [(_printable(text), counted) for text, counted in view.segments]
        return [head, note, "".join(OPEN + text + CLOSE if counted else text for text, counted in shown)]
    note = "tokens that count in the loss are bright, the others dim"
    styled = [f"{BRIGHT if counted else DIM}{_printable(text)}{RESET}" for text, counted in view.segments]
    return [head, note, "".join(styled)]


def _overview_lines(data: dict[str, Any]) -> list[str]:
    tokenizer = data["tokenizer"] or "unknown (no manifest)"
    return [
        f"{data['prefix']}: {data['documents']:,} documents, {data['sequences']:,} sequences, {data['tokens']:,} "
        f"tokens as {data['dtype']}",
        f"sequence length {data['shortest']:,} to {data['longest']:,}, mean {data['mean']:,}, "
        f"median {data['median']:,}",
        f"tokenizer {tokenizer}, end-of-document id {data['eod_id']}, loss on {data['loss']}",
        *histogram_lines(data["histogram"]),
    ]


def _verify_lines(result: VerifyResult) -> list[str]:
    how = "deep" if result.deep else "fast"
    if result.ok:
        head = f"{result.prefix}: sound ({how}: {result.documents:,} documents, {result.tokens:,} tokens)"
        return [head, *(f"  note: {note}" for note in result.notes)]
    return [
        f"{result.prefix}: {len(result.findings)} faults ({how})",
        *(f"  {finding.error}: {finding.message}" for finding in result.findings),
        *(f"  note: {note}" for note in result.notes),
    ]


def _printable(text: str) -> str:
    """Text with terminal control characters made visible, so that a document cannot drive the terminal."""
    return text.translate(_CONTROL)
