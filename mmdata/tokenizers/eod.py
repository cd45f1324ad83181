"""Which token ends a document.

A token named by the user; else the first of five well-known names found in the vocabulary; else the `eos_token` that
`tokenizer_config.json` declares. Among the five, one that is declared a control token goes before one that merely
stands in the vocabulary: Gemma's pieces hold `</s>` as a mark of HTML, and its end is `<eos>`. The well-known name
goes before the declared eos because chat models declare their end of turn there (Qwen3: `<|im_end|>`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmdata.errors import TokenizerEodError
from mmdata.tokenizers.base import EndOfDocument, SpecialToken

CANDIDATES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


def choose_eod(
    wanted: str | None,
    find: Callable[[str], int | None],
    specials: Sequence[SpecialToken],
    declared: str | None,
) -> EndOfDocument | None:
    """The end-of-document token, or None when there is none to be found.

    wanted: the user's choice. find: id of a token by its text. declared: eos of the configuration.
    Raises TokenizerEodError when `wanted` is not in the vocabulary.
    """
    if wanted is not None:
        token_id = find(wanted)
        if token_id is None:
            raise TokenizerEodError(f"the token {wanted!r} is not in the vocabulary; {suggestions(specials)}")
        return EndOfDocument(token_id, wanted, "chosen by the user")
    control = {token.content: token.id for token in specials if token.special}
    for name in CANDIDATES:
        if name in control:
            return EndOfDocument(control[name], name, "well-known end-of-document token")
    for name in (*CANDIDATES, *([declared] if declared else [])):
        token_id = find(name)
        if token_id is not None:
            return EndOfDocument(token_id, name, "declared eos" if name == declared else "found in the vocabulary")
    return None


def suggestions(specials: Sequence[SpecialToken]) -> str:
    """Which tokens a user could name instead, at most twenty."""
    names = [token.content for token in specials if token.special] or [token.content for token in specials]
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"special tokens there: {shown}" if names else "it declares no special token at all"


def declared_eos(config: Mapping[str, Any]) -> str | None:
    """`eos_token` of a tokenizer_config.json: a string, or an object with `content`."""
    eos = config.get("eos_token")
    if isinstance(eos, dict):
        eos = eos.get("content")
    return eos if isinstance(eos, str) else None
