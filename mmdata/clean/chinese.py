"""Opt-in conversion between traditional and simplified Chinese with OpenCC (extra `zh`), phrase by phrase."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mmdata.errors import MissingPackageError

CONVERSIONS = ("s2t", "t2s", "s2tw", "tw2s", "s2hk", "hk2s", "s2twp", "tw2sp", "t2tw", "t2hk", "t2jp", "jp2t")


@lru_cache(maxsize=4)
def _converter(conversion: str) -> Any:
    try:
        import opencc
    except ImportError as error:
        raise MissingPackageError("the step convert_chinese needs OpenCC: pip install 'mmdata[zh]'") from error
    return opencc.OpenCC(conversion)


def convert_chinese(text: str, conversion: str = "t2s") -> str:
    """Text in the other script; conversion is one of CONVERSIONS (t2s: traditional to simplified).

    Raises MissingPackageError without OpenCC.
    """
    return str(_converter(conversion).convert(text))
