"""English words and sentences as published filter chains count them, without a tokenizer package.

Gopher, FineWeb and C4 are run by datatrove on the units of spaCy's rule-based English tokenizer, whose documented
scheme this follows: split at white space, peel marks off both ends while no special case matches, split the rest at
infixes. The tables are short ones of our own (no emoticons, few foreign currency signs), so rare tokens may differ;
tests compare the recipes' decisions with datatrove's. Chunks are cached, which makes it about 10 MB/s.
"""

# ruff: noqa: E501, SIM905 - tables read best on one line

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

_QUOTES = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉⟦⟧"
_PUNCT = "…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪"
_CURRENCY = "US\\$|C\\$|A\\$|[$£€¥฿₽﷼₴₠₡₢₣₤₥₦₧₨₩₪₫₭₮₯₰₱₲₳₵₶₷₸₹₺₻₼₾₿]"
_ICONS = "[\u00a6\u00a9\u00ae\u2100-\u218f\u2195-\u21f3\u2300-\u23ff\u2400-\u27bf\u2900-\u2bff\ufffd\U0001f000-\U0001faff]"
_UNITS = "km²|km³|km|m²|m³|m|dm²|dm³|dm|cm²|cm³|cm|mm²|mm³|mm|ha|µm|nm|yd|in|ft|kg|g|mg|µg|t|lb|oz|m/s|km/h|mph|hPa|Pa|mbar|mb|MB|kb|KB|gb|GB|tb|TB|T|G|M|K|%"
_A, _LOWER, _UPPER = "[^\\W\\d_]", "[a-zà-öø-ÿāăąćĉċčďđēėęěĝğġģĥħĩīįıĵķĺļľłńņňōőœŕřśŝşšţťũūůűųŵŷźżžа-яёα-ω]", "[A-ZÀ-ÖØ-ÞА-ЯЁΑ-Ω]"
_Q, _P = re.escape(_QUOTES), re.escape(_PUNCT)
_PREFIX = re.compile(f"[§%=—–]|\\+(?![0-9])|\\.\\.+|……|[{_P}]|[{_Q}]|{_CURRENCY}|{_ICONS}")
_SUFFIX = re.compile(
    f"(?:\\.\\.+|……|[{_P}]|[{_Q}]|{_ICONS}|'[sS]|’[sS]|[—–]|(?<=[0-9])\\+|(?<=°[FfCcKk])\\.|(?<=[0-9])(?:{_CURRENCY})"
    f"|(?<=[0-9])(?:{_UNITS})|(?<=[0-9%²\\-+{_P}{_Q}])\\.|(?<={_LOWER})\\.|(?<={_UPPER}{_UPPER})\\.)$"
)
_INFIX = re.compile(
    f"\\.\\.+|…|{_ICONS}|(?<=[0-9])[+\\-*^](?=[0-9-])|(?:(?<={_LOWER})|(?<=[{_Q}]))\\.(?={_UPPER}|[{_Q}])"
    f"|(?<={_A}),(?={_A})|(?:(?<={_A})|(?<=[0-9]))(?:-|–|—|--|---|——|~)(?={_A})|(?:(?<={_A})|(?<=[0-9]))[:<>=/](?={_A})"
)
_URL = re.compile(
    "(?:(?:https?|ftp|file)://)?(?:[^\\s/@:]+(?::[^\\s/@]*)?@)?(?:[A-Za-z0-9\u00a1-\uffff]"
    "(?:[A-Za-z0-9\u00a1-\uffff_-]{0,62}[A-Za-z0-9\u00a1-\uffff])?\\.)+[a-z\u00a1-\uffff]{2,63}"
    "(?::[0-9]{2,5})?(?:[/?#]\\S*)?"
)
_KEPT = (
    "'d 'S 's \u2018S \u2018s and/or w/o 're 'Cause 'cause 'cos 'Cos 'coz 'Coz 'cuz 'Cuz 'bout 'em 'll 'nuff 're o'clock "
    "ma'am Ma'am o'er ol' Ol' nothin' Nothin' nuthin' havin' Havin' doin' Doin' goin' Goin' lovin' Lovin' somethin' C++ "
    "Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont. Mr. "
    "Mrs. Ms. p.m. Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s. a.m. Jan. Feb. Mar. Apr. Jun. Jul. Aug. Sep. Sept. Oct. Nov. "
    "Dec. Ala. Ariz. Ark. Calif. Colo. Conn. Del. Fla. Ga. Ia. Id. Ill. Ind. Kan. Kans. Ky. La. Mass. Mich. Minn. Miss. "
    "N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Okla. Ore. Pa. S.C. Tenn. Va. Wash. Wis. vs. "
    ":) :( :D :P ;) :-) :-( :/ :x :o :3 :0 :1 :| xD XD <3 </3 >.< ^_^ -_- (: ): (; 8) 8-) =) =( :* ;D :'( "
    "(= :') ): '' \\n \\t \" \\\\) ¯\\(ツ)/¯"
).split()


def _contractions() -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}

    def add(*parts: str) -> None:
        for first in (parts[0], parts[0].capitalize()):
            for mark in ("'", "’", ""):
                tokens = (first, *(part.replace("'", mark) for part in parts[1:]))
                if mark or "".join(tokens).lower() not in _WORDS_WITHOUT_MARK:
                    table["".join(tokens)] = tokens

    for pronoun in ("i", "you", "he", "she", "it", "we", "they"):
        for ending in ("'ll", "'d", *{"i": ["'m", "'ve"], "you": ["'re", "'ve"], "we": ["'re", "'ve"],
                                      "they": ["'re", "'ve"]}.get(pronoun, ["'s"])):  # fmt: skip
            add(pronoun, ending)
        add(pronoun, "'d", "'ve")
        add(pronoun, "'ll", "'ve")
    for word in ("who", "what", "when", "where", "why", "how", "there", "that", "this"):
        for ending in ("'s", "'ll", "'d", "'ve", "'re"):
            add(word, ending)
        add(word, "'d", "'ve")
        add(word, "'ll", "'ve")
    for verb in ("ca", "could", "do", "does", "did", "had", "may", "might", "must", "need", "ought", "sha", "should",
                 "wo", "would", "ai", "are", "is", "was", "were", "have", "has", "dare"):  # fmt: skip
        add(verb, "n't")
        if verb in ("ca", "could", "might", "must", "should", "would", "wo", "ought", "sha"):
            add(verb, "n't", "'ve")
    for verb in ("could", "might", "must", "should", "would"):
        add(verb, "'ve")
    add("let", "'s")
    for whole, cut in (("cannot", 3), ("gonna", 3), ("gotta", 3)):
        for word in (whole, whole.capitalize()):
            table[word] = (word[:cut], word[cut:])
    return table


_WORDS_WITHOUT_MARK = frozenset(
    "lets ill its hell shell shed were well whore".split()
)
_SPECIAL: dict[str, tuple[str, ...]] = {word: (word,) for word in _KEPT}
_SPECIAL |= {f"{letter}.": (f"{letter}.",) for letter in "abcdefghijklmnopqrstuvwxyzäöü"}
_SPECIAL |= {mark: (mark,) for mark in ("):", "''", ":]", "[:", ":*")}
_SPECIAL |= _contractions()
for _hour in range(1, 13):
    for _period in ("a.m.", "am", "p.m.", "pm"):
        _SPECIAL[f"{_hour}{_period}"] = (str(_hour), _period)


@lru_cache(maxsize=65536)
def _tokens(chunk: str) -> tuple[str, ...]:
    """The tokens of a run of characters without white space."""
    tokens = _split(chunk)
    return _rejoined(tokens) if len(tokens) > 1 else tokens


def _split(chunk: str, special: Mapping[str, tuple[str, ...]] = _SPECIAL) -> tuple[str, ...]:
    """Marks peeled off both ends until a special case is left, the middle split at infixes."""
    prefixes: list[str] = []
    suffixes: list[str] = []
    size = -1
    while chunk and len(chunk) != size and chunk not in special:
        size = len(chunk)
        before = _PREFIX.match(chunk)
        if before:
            prefixes.append(before.group())
            if chunk[before.end() :] in special:
                chunk = chunk[before.end() :]
                break
        rest = chunk[before.end() :] if before else chunk
        after = _SUFFIX.search(rest) if rest else None
        if after:
            suffixes.append(after.group())
            whole = chunk[: len(chunk) - len(after.group())]
            if whole in special:
                if before:
                    prefixes.pop()
                chunk = whole
                break
            rest = rest[: after.start()]
        chunk = rest
    return (*prefixes, *_middle(chunk, special), *reversed(suffixes))


@lru_cache(maxsize=1)
def _broken() -> dict[tuple[str, ...], tuple[str, ...]]:
    """Special cases that splitting takes apart where they are part of a longer run, by the tokens it makes of them."""
    table = {_split(word, {}): tokens for word, tokens in _SPECIAL.items()}
    return {peeled: tokens for peeled, tokens in table.items() if len(peeled) > 1}


def _rejoined(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """The tokens with special cases put together again where they were taken apart: `last):` ends in `):`.

    The longest comes first, then the leftmost, as where spaCy applies its special cases to what was split.
    """
    table = _broken()
    longest = max(map(len, table), default=0)
    spans = [
        (start, start + size)
        for size in range(min(longest, len(tokens)), 1, -1)
        for start in range(len(tokens) - size + 1)
        if tokens[start : start + size] in table
    ]
    taken: dict[int, int] = {}
    for start, stop in spans:
        if not any(start < b and a < stop for a, b in taken.items()):
            taken[start] = stop
    out: list[str] = []
    at = 0
    for start in sorted(taken):
        out += [*tokens[at:start], *table[tokens[start : taken[start]]]]
        at = taken[start]
    return (*out, *tokens[at:])


def _middle(chunk: str, special: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if not chunk:
        return ()
    if chunk in special:
        return special[chunk]
    if "." in chunk and _URL.fullmatch(chunk):
        return (chunk,)
    pieces, start = [], 0
    for match in _INFIX.finditer(chunk):
        if match.start() == start:
            continue
        pieces += [chunk[start : match.start()], match.group()]
        start = match.end()
    if start < len(chunk):
        pieces.append(chunk[start:])
    return tuple(pieces)


_LONG_CHUNK = 256  # longer runs (base64, rules of dashes) are tokenized without filling the cache


def words(text: str) -> list[str]:
    """The words and punctuation marks of an English text, in order."""
    out: list[str] = []
    for chunk in text.split():
        if len(chunk) <= _LONG_CHUNK:
            out += _tokens(chunk)
        else:
            out += [token for i in range(0, len(chunk), _LONG_CHUNK) for token in _tokens(chunk[i : i + _LONG_CHUNK])]
    return out


_STOPS = frozenset("!.?։؟۔।॥။‼‽⁇⁈⁉⸮。．！？｡﹒﹗﹖")


def count_sentences(text: str) -> int:
    """Sentences by the rule of spaCy's sentencizer: one starts at the first word after a lone . ! or ?"""
    count, ended = 0, True
    for token in words(text):
        if token in _STOPS:
            count, ended = max(count, 1), True
        elif (ended or count == 0) and any(map(str.isalnum, token)):
            count, ended = count + 1, False
        elif count == 0:
            count, ended = 1, False
    return count


_HAN = "\u3005\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HAN_WORD = re.compile(f"[{_HAN}]|[^\\W{_HAN}]+|[^\\w\\s]")


def han_words(text: str) -> list[str]:
    """One word for each Han or kana character and each run of other letters or digits; punctuation marks apart."""
    return _HAN_WORD.findall(text)
