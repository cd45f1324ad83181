"""English words and sentences as published filter chains count them, without a tokenizer package.

Gopher, FineWeb and C4 are run by datatrove on the word units of spaCy's rule-based English tokenizer. `words` follows
that tokenizer's documented scheme (white space, then punctuation at both edges, then infixes, contractions and
abbreviations kept whole) with short lists of our own; the decisions of the recipes, not every token, are compared
with datatrove's in tests. About 8 MB/s.
"""

from __future__ import annotations

import re

_ABBREVIATIONS = (
    "Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Gov|Sen|Rep|Lt|Col|Adm|Bros|Co|Corp|Inc|Ltd|Jr|Sr|St|Mt|Messrs|Ph\\.D|vs|v\\.s|e\\.g|i\\.e|"
    "a\\.m|p\\.m|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|Ala|Ariz|Ark|Calif|Colo|Conn|Del|Fla|Ga|Ill|Ind|Kan|"
    "Kans|Ky|La|Mass|Md|Mich|Minn|Miss|Mont|Neb|Nebr|Nev|Okla|Ore|Pa|Tenn|Va|Wash|Wis|[A-Z](?:\\.[A-Z])*|[a-z]"
)
_A = "[^\\W\\d_]"
_TOKEN = re.compile(
    rf"""
    https?://\S+ | www\.\S+
  | \.{{2,}} | …
  | (?:(?:{_ABBREVIATIONS})\.)(?![\w.])
  | [Cc]an(?=not\b)
  | \w+?(?=[nN]['’][tT]\b) | [nN]['’][tT]\b
  | ['’](?:s|S|re|RE|ve|VE|ll|LL|m|M|d|D)\b
  | \w+(?:
        (?<=\d)[.,:](?=\d)\w+
      | (?<=[a-z\d])\.(?=[a-z\d])\w+
      | (?<=[A-Z])\.(?=[A-Za-z\d])\w+
      | (?<=\d)-(?=[A-Za-z])\w+
      | (?<=[A-Za-z])-(?=\d)\w+
      | ['’](?!(?:s|S|re|RE|ve|VE|ll|LL|m|M|d|D)\b)(?=\w)\w+?(?![nN]['’][tT]\b)
      | @(?=\w)\w+
      | (?<=\d)/(?=\d)\w+
      | \((?=\w)\w*
    )*
  | -{{2,3}} | —— | [^\w\s]
    """,
    re.VERBOSE,
)
_PUNCTUATION_SENTENCE = frozenset("!.?։؟۔।॥။‼‽⁇⁈⁉⸮。．！？｡﹒﹗﹖")


def words(text: str) -> list[str]:
    """The words and punctuation marks of an English text, in order."""
    return _TOKEN.findall(text)


def count_sentences(text: str) -> int:
    """Sentences by the rule of spaCy's sentencizer: one starts at the first word after a lone . ! or ?"""
    tokens = words(text)
    if not tokens:
        return 0
    count, ended = 1, False
    for token in tokens:
        stop = token in _PUNCTUATION_SENTENCE
        if ended and not stop and (token[0].isalnum() or len(token) > 1 and any(map(str.isalnum, token))):
            count, ended = count + 1, False
        elif stop:
            ended = True
    return count


_HAN_WORD = re.compile("[\u3005\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]|[^\\W\\u3005\\u3007\\u3040-\\u30ff\\u3400-\\u9fff\\uf900-\\ufaff]+|[^\\w\\s]")


def han_words(text: str) -> list[str]:
    """One word for each Han or kana character and each run of other letters or digits; punctuation marks apart."""
    return _HAN_WORD.findall(text)
