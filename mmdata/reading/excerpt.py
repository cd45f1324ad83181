"""Short, masked excerpts of records that could not be read, for the rejects file.

Long runs of digits, e-mail addresses, credentials in addresses and long tokens are masked before the cut, so no half
of one is left. Names and addresses in words are not recognised: an excerpt is short because of that.
"""

from __future__ import annotations

import re

EXCERPT_CHARACTERS = 80
_WINDOW_BYTES = 1024

_CREDENTIALS = re.compile(r"(?<=://)[^\s/@\"]+@")
_EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]*")
_DIGITS = re.compile(r"\+?[0-9０-９](?:[ \-.()]?[0-9０-９]){5,}[Xx]?")
_TOKEN = re.compile(r"[A-Za-z0-9_\-]{24,}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def excerpt_of(raw: bytes) -> str:
    """At most 80 characters from the start of `raw`, one line, masked; bytes that are no UTF-8 as `\\xNN`."""
    text = raw[:_WINDOW_BYTES].strip().decode("utf-8", "backslashreplace")
    masked = mask(text)
    if len(masked) > EXCERPT_CHARACTERS or len(raw) > _WINDOW_BYTES:
        masked = masked[: EXCERPT_CHARACTERS - 1] + "…"
    return masked


def mask(text: str) -> str:
    """The text with what may identify somebody replaced, and control characters as escapes."""
    text = _CREDENTIALS.sub("<credentials>@", text)
    text = _EMAIL.sub("<email>", text)
    text = _TOKEN.sub("<token>", text)
    text = _DIGITS.sub("<digits>", text)
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
