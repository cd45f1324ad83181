"""The fixed list of hard texts every fast engine must encode exactly as the reference does before it is used.

Every script and block of Unicode (one code point in 16 and both ends of each block of 256, unassigned ones included,
and all blocks added since Unicode 15), lone and stacked combining marks, Hangul jamo, all white space and control
characters, contractions in odd cases and with odd apostrophes, digits of many scripts, emoji sequences, long runs,
special-token text and byte-piece look-alikes. About 150 kB, 0.1 s for the slow engine.
"""

from __future__ import annotations

from collections.abc import Sequence

VERSION = 1

# Planes 0, 1, 2, 3 and 14 without surrogates; ideographs, Hangul and private use are thinned by the stride alone.
_RANGES = ((0x80, 0xD800), (0xE000, 0x20000), (0x2A6D0, 0x2A710), (0x2B730, 0x2B830), (0x2CE90, 0x2CEC0))
_TAIL = (
    (0x2EBD0, 0x2EE80, 8),
    (0x2F800, 0x2FA20, 8),
    (0x31340, 0x313B0, 4),
    (0x323A0, 0x33480, 64),
    (0xE0000, 0xE01F0, 16),
)
# Blocks that came or grew in Unicode 15.1, 16 and 17: engines differ in the age of their tables.
_RECENT = (
    (0x0870, 0x0900), (0x1C80, 0x1C90), (0xA7C0, 0xA800), (0x105C0, 0x10600), (0x10940, 0x10960), (0x10D40, 0x10D90),
    (0x10EC0, 0x10F00), (0x11380, 0x113F0), (0x116D0, 0x116F0), (0x11B60, 0x11B68), (0x11BC0, 0x11C00),
    (0x11DB0, 0x11DF0), (0x11F00, 0x11F60), (0x16100, 0x16140), (0x16D40, 0x16D80), (0x16EA0, 0x16EE0),
    (0x1C000, 0x1C010), (0x1CCF0, 0x1CD10), (0x1E5D0, 0x1E600), (0x1E6C0, 0x1E700),
)  # fmt: skip
_SPACES = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u180e\u2000\u2003\u2007\u200a\u200b\u2028\u2029\u202f\u205f\u2060"
    "\u3000\ufeff"
)
_WORDS = (
    *("", " ", "  ", "\n", "\n\n", " \n", "\n ", "\r\n\r\n", "\t\t x", "a", "Z", "0", "\x00", "a\x00b", "\x7f", "\xad"),
    "I'm you're WE'VE They'LL it'S don'T ’s ’S 'ſ 'ı I'd'd",
    *("'s's's", "''''", "x'\u0301s"),
    "1 22 333 4444 55555 1234567890123456789012345678901234567890",
    "３４５６ ٣٤٥ ५६७ ⅷ ² ½ ㊿ 〇 一二三 𝟘𝟙",
    "HELLOworld helloWORLD HeLLo ǅ ǈ ﬁ ß ẞ İ ı \u212a \u212b",
    "e\u0301 \u0301e \u0301\u0301\u0301 a\u0327\u0301 a\u0301\u0327 \u0344",
    "\u1100\u1161\u11a8 가각 \u1161 \uac00\u11a8",
    "\u0958 \u0915\u093c \u09cb \u09c7\u09be \u2126 \u212b \uf900 \U0002f800",
    "👩\u200d👩\u200d👧\u200d👦 🏳\ufe0f\u200d🌈 👍🏽 🇨🇳🇺🇸 ☺\ufe0e ☺\ufe0f #\ufe0f\u20e3 \u200d\ufe0f",
    "ไทย ລາວ မြန်မာ ខ្មែរ हिन्दी தமிழ் עִבְרִית العَرَبِيَّة አማርኛ ქართული 한국어 ひらがなカタカナ",
    "人工智能正在改变医疗行业，患者需要更准确的诊断。",
    "《民法典》第1165条：行為人因過錯…… 𠮷野家 㐀 龘 \U000323af \U00031350",
    "\u0378\u0379 \u0530a \u05ff1 \u0bfe \u2fe0 \U0001246f \U0001fbfa \U000323b0 \U0002fa1e \U000e0fff",  # no character
    "http://a.b/c?d=e&f=%20#g user@example.com C:\\x\\y __init__ --flag /* c */ <a href='b'>",
    '{"k": [1, 2.5e-3, null]}',
    "def f(x):\n    return x\n\n\n\tif x:\r\n\t\tpass  # 注释\n",
    *("...!!!???。。。！！！———~~~===***", "«»„“”‘’…–—", "a/b//c///\n/\n//"),
    "\u202eabc\u202c \u2066x\u2069 \ufeffBOM \ufffd \ufffe \uffff \ufdd0 \U0001ffff \U0010ffff \ue000 \U000f0000",
    *("<0x0A> <0xE4> <0x00> ▁ ▁▁ _▁_ Ġ Ċ Ā ##ing @@ </w>", "[SEP] [CLS] [PAD] [UNK] [MASK]"),
    "<|endoftext|> <|im_start|>user\n<|im_end|> <|begin_of_text|> <|eot_id|> <s> </s> <unk> <pad> <bos> <eos> [INST]",
    "<think>\n</think> <tool_call> <|fim_prefix|> <｜begin▁of▁sentence｜> <|endoftext|",
    *("|endoftext|> <|endo ftext|>", "[/INST]"),
)
_RUNS = (
    " ",
    "\n",
    "\t",
    "a",
    "A",
    "0",
    "!",
    "é",
    "中",
    "\u0301",
    "=",
    "\x00",
    "\r\n",
    " a",
    "ab",
    "a1",
    "😀",
    "\u3000",
    "'s",
    "\u00a0 ",
)


def adversarial_texts(special: Sequence[str] = ()) -> list[str]:
    """The list. special: contents of the tokenizer's own special tokens, which are put into text too."""
    texts = list(_WORDS)
    texts += [f"x{space}y {space}{space}\n{space}1{space}" for space in _SPACES]
    texts += [run * length for run in _RUNS for length in (3, 17, 300)]
    texts += [" " * 5000 + "x", "\n" * 5000, "ab" * 4000, "中文" * 2000, "9" * 3000, "e" + "\u0301" * 500]
    texts += _code_points()
    for start in range(0, min(len(special), 512), 16):
        row = special[start : start + 16]
        texts += ["".join(row), " ".join(row), "".join(f"a{token}b\n{token[:-1]}{token.upper()}" for token in row)]
    return texts


def _code_points() -> list[str]:
    points = [
        point for low, high in _RANGES for point in range(low, high) if point % 16 == 5 or point % 256 in (0, 255)
    ]
    points += [point for low, high, step in _TAIL for point in range(low, high, step)]
    points += [point for low, high in _RECENT for point in range(low, high)]
    rows = [points[start : start + 64] for start in range(0, len(points), 64)]
    return ["".join(f"{chr(point)} a{chr(point)}1" for point in row) for row in rows]
