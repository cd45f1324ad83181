"""Split patterns and special tokens that belong to published tiktoken rank files, by name.

A rank file holds only byte sequences and their ranks; which regular expression cuts the text first, and which ids are
special, is knowledge kept elsewhere (in OpenAI's tiktoken, Meta's llama-models and Qwen's model code). These are those
constants. `r50k_base` is GPT-2's.
"""

from __future__ import annotations

from dataclasses import dataclass

GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
LLAMA3_PATTERN = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
QWEN_PATTERN = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
O200K_PATTERN = "|".join(
    (
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    )
)


@dataclass(slots=True, frozen=True)
class RankEncoding:
    """What a rank file leaves out: the pattern that cuts text into words, and special tokens with their ids."""

    pattern: str
    special_tokens: dict[str, int]


def _numbered(first: int, names: list[str]) -> dict[str, int]:
    return {name: first + number for number, name in enumerate(names)}


def _reserved(first: int, last: int) -> list[str]:
    return [f"<|reserved_special_token_{number}|>" for number in range(first, last + 1)]


_LLAMA3 = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    *_reserved(0, 3),
    "<|start_header_id|>",
    "<|end_header_id|>",
    *_reserved(4, 4),
    "<|eot_id|>",
    *_reserved(5, 250),
]
_LLAMA31 = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    *_reserved(0, 1),
    "<|finetune_right_pad_id|>",
    *_reserved(2, 2),
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    *_reserved(3, 247),
]
_QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))]

ENCODINGS: dict[str, RankEncoding] = {
    "r50k_base": RankEncoding(GPT2_PATTERN, {"<|endoftext|>": 50256}),
    "p50k_base": RankEncoding(GPT2_PATTERN, {"<|endoftext|>": 50256}),
    "cl100k_base": RankEncoding(
        CL100K_PATTERN,
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": RankEncoding(O200K_PATTERN, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
    "llama3": RankEncoding(LLAMA3_PATTERN, _numbered(128000, _LLAMA3)),
    "llama3.1": RankEncoding(LLAMA3_PATTERN, _numbered(128000, _LLAMA31)),
    "qwen": RankEncoding(QWEN_PATTERN, _numbered(151643, _QWEN)),
}
