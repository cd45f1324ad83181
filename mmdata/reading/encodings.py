"""Input encodings: turns chunks of bytes into chunks of UTF-8, never asking the locale.

UTF-8 passes untouched and is checked where lines are parsed. Other encodings are decoded incrementally in the reading
process and written back as UTF-8, so everything after this file knows one encoding. A byte that does not decode
becomes bytes that are no UTF-8 either, so exactly its record is rejected. Offsets of such inputs count bytes of the
UTF-8 they become. Costs about 10 ns a character; resuming decodes from the start of the file.
"""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Iterator

from mmdata.errors import InputError, UsageError
from mmdata.reading.sources import ByteSource

# gb2312 and gbk are subsets of gb18030 and files called so often hold more: the WHATWG rule (encoding.spec.whatwg.org).
_CODECS = {
    "utf-8": "utf-8", "utf8": "utf-8", "utf-8-sig": "utf-8",
    "gb18030": "gb18030", "gbk": "gb18030", "gb2312": "gb18030", "cp936": "gb18030",
    "utf-16": "utf-16", "utf16": "utf-16", "utf-16-le": "utf-16-le", "utf-16-be": "utf-16-be",
}  # fmt: skip
OFFERED = ("utf-8", "gb18030", "utf-16", "utf-16-le", "utf-16-be")
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
UNDECODED = "\udcff".encode("utf-8", "surrogatepass")  # stands for bytes that did not decode
_MARK_BAD_BYTES = "mmdata.mark-bad-bytes"


def _mark_bad_bytes(fault: UnicodeError) -> tuple[str, int]:
    """Puts U+DCFF, which no text holds and which is no UTF-8, for what does not decode, and goes on behind it."""
    if not isinstance(fault, UnicodeDecodeError):
        raise fault
    return "\udcff", fault.end if fault.encoding.startswith("utf-16") else fault.start + 1


codecs.register_error(_MARK_BAD_BYTES, _mark_bad_bytes)


def resolve_encoding(name: str) -> str:
    """The codec behind a name or alias, any case, `_` like `-`; UsageError names the nearest that is offered."""
    wanted = name.strip().lower().replace("_", "-")
    if wanted in _CODECS:
        return _CODECS[wanted]
    near = difflib.get_close_matches(wanted, OFFERED, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UsageError(f"unknown encoding {name!r}: offered are {', '.join(OFFERED)}{hint}")


def utf8_from(source: ByteSource, codec: str, offset: int) -> tuple[int, Iterator[bytes]]:
    """The text from `offset` on as UTF-8 and the offset it really starts at (behind a byte order mark at 0).

    codec: from resolve_encoding. `utf-16` obeys the mark and is little-endian without one. Raises InputError for a
    file that says by its mark that it is UTF-16 while UTF-8 was asked for.
    """
    if codec == "utf-8":
        if offset:
            return offset, source.chunks(offset)
        head, rest = _peek(source.chunks())
        if head[:2] in _UTF16_MARKS:
            raise InputError(f"{source.path} begins with the byte order mark of UTF-16; read it with --encoding utf-16")
        offset = len(_UTF8_MARK) if head.startswith(_UTF8_MARK) else 0
        return offset, _then(head[offset:], rest)
    return offset, _skip(_transcoded(source.chunks(), codec), offset)


def _transcoded(chunks: Iterator[bytes], codec: str) -> Iterator[bytes]:
    head, rest = _peek(chunks)
    if codec == "utf-16":
        codec = _UTF16_MARKS.get(head[:2], "utf-16-le")
    decoder = codecs.getincrementaldecoder(codec)(_MARK_BAD_BYTES)
    first = True
    for chunk in _then(head, rest):
        text = decoder.decode(chunk)
        if first and text:
            text, first = text.removeprefix("\ufeff"), False
        if text:
            yield text.encode("utf-8", "surrogatepass")
    if text := decoder.decode(b"", final=True):  # the file ends inside a character
        yield text.encode("utf-8", "surrogatepass")


def _peek(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, enough to hold a byte order mark, and what follows them."""
    head = b""
    while len(head) < len(_UTF8_MARK) and (chunk := next(chunks, b"")):
        head += chunk
    return head, chunks


def _then(head: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from chunks


def _skip(chunks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for chunk in chunks:
        if count < len(chunk):
            yield chunk[count:]
        count = max(0, count - len(chunk))
