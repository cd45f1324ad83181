"""Finds personal data in Chinese and English text; validates each hit; replaces, hashes or counts it.

Edges are "not next to an ASCII letter or digit", never \\\\b: Han characters are word characters, so \\\\b does not fire
between 号 and 1 and half an address would leak. Every expression is one left-to-right scan with bounded repeats, so a
megabyte of `a@a.a.` takes time linear in its size. Case numbers, statute numbers, dosages, dates, versions and
decimals are not touched: identity numbers need a real date and the ISO 7064 mod 11-2 check character, cards the Luhn
digit and an issuer's prefix, landlines an area code, IPv4 addresses no neighbouring dot.

Does not cover names and street addresses.
"""

# ruff: noqa: E501, SIM905 - tables read best on one line

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date

_L, _R = r"(?<![0-9A-Za-z])", r"(?![0-9A-Za-z])"
_PROVINCES = frozenset("11 12 13 14 15 21 22 23 31 32 33 34 35 36 37 41 42 43 44 45 46 50 51 52 53 54 61 62 63 64 65 71 81 82 83".split())
_PLATE_HEADS = "京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼"
_CODE_ALPHABET = "0123456789ABCDEFGHJKLMNPQRTUWXY"


def valid_identity(number: str) -> bool:
    """18 digits: real region and date, check character by ISO 7064 mod 11-2 (GB 11643-1999); 15 digits: the old form."""
    if number[:2] not in _PROVINCES:
        return False
    born = number[6:14] if len(number) == 18 else "19" + number[6:12]
    try:
        day = date(int(born[:4]), int(born[4:6]), int(born[6:]))
    except ValueError:
        return False
    if not 1900 <= day.year <= 2099:
        return False
    if len(number) == 15:
        return True
    return _check_character(number) == number[17].upper()


def plausible_identity(number: str) -> bool:
    """Region and date are real, whatever the check character says: enough after the words for identity number."""
    return valid_identity(number[:17] + _check_character(number)) if len(number) == 18 else valid_identity(number)


def _check_character(number: str) -> str:
    return "10X98765432"[sum(int(digit) * pow(2, 17 - i, 11) for i, digit in enumerate(number[:17])) % 11]


def valid_card(number: str) -> bool:
    """13 to 19 digits with the Luhn check digit (ISO/IEC 7812-1) and an issuer's prefix, not one digit alone."""
    digits = re.sub("[ -]", "", number)
    if not 13 <= len(digits) <= 19 or len(set(digits)) < 2:
        return False
    if not re.match(r"62|4|5[1-5]|2[2-7]|3[47]|35|6011|65|9[0-9]{3}(?=[0-9]{15})", digits):
        return False
    doubled = [int(digit) * (2 if i % 2 else 1) for i, digit in enumerate(reversed(digits))]
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


def valid_credit_code(code: str) -> bool:
    """Unified social credit code (GB 32100-2015): 18 characters, weights 3^i mod 31, check character."""
    if any(char not in _CODE_ALPHABET for char in code) or code[0] not in "123456789ANY" or code[2:4] not in _PROVINCES:
        return False
    total = sum(_CODE_ALPHABET.index(char) * pow(3, i, 31) for i, char in enumerate(code[:17]))
    return _CODE_ALPHABET[(31 - total % 31) % 31] == code[17]


def valid_ipv4(address: str) -> bool:
    """Four octets without leading zeros; not 0.x and not a version-like address whose octets are all below 10."""
    octets = address.split(".")
    if any((len(octet) > 1 and octet[0] == "0") or int(octet) > 255 for octet in octets):
        return False
    return octets[0] != "0" and any(int(octet) >= 10 for octet in octets)


def valid_ipv6(address: str) -> bool:
    """Parses as an IPv6 address with at least three groups or a digit in it (`a::b` alone is code)."""
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return len([group for group in address.split(":") if group]) >= 3 and any(char.isdigit() for char in address)


@dataclass(frozen=True, slots=True)
class Kind:
    """One type of personal data: its expression, its check, which group is replaced, and the placeholder.

    near: a cheap expression that matches inside every match of `pattern`.
    """

    name: str
    pattern: re.Pattern[str]
    placeholder: str
    near: re.Pattern[str]
    valid: Callable[[str], bool]
    group: int = 0


# A number that begins behind no letter or digit is looked for there alone, with the look back behind its first digit: so
# a search jumps from digit to digit. An address is looked for from full stop to full stop, which are fewer.
_NEAR = {
    "url_credentials": "://", "email": "@", "identity_number": "[0-9](?<![0-9A-Za-z].)[0-9]{13}",
    "social_credit_code": "[0-9]{6}[0-9A-Z]{10}", "bank_card": "[0-9](?<![0-9A-Za-z].)[0-9]{3}(?:[0-9]{9}|[ -][0-9]{4}[ -][0-9]{4})",
    "mobile": "1[3-9][0-9](?:[0-9]{8}|[ -][0-9]{4}[ -]|[0-9][ -][0-9]{3}[ -])",
    "landline": "0[1-9][0-9]{1,2}[-) ）] ?[2-8][0-9]{6}", "ipv6": ":[0-9A-Fa-f]{0,4}:",
    "ipv4": r"\.(?<=[0-9]\.)[0-9]{1,3}\.[0-9]{1,3}\.[0-9]", "passport": "[A-Z][0-9]{7}",
    "licence_plate": f"[{_PLATE_HEADS}][A-Z]", "medical_record": "[院诊診历歷案记查像理](?:[号號编卡]|ID)|MRN|[Rr]ecord [Nn]",
}  # fmt: skip
_WINDOW = 96  # characters around a match of `near` in which a match of `pattern` lies whole; the longest has 50


def _has_digit(text: str) -> bool:
    return any(char.isdigit() for char in text)


def _any_value(text: str) -> bool:
    return True


def _kind(name: str, pattern: str, placeholder: str, valid: Callable[[str], bool] = _any_value, group: int = 0) -> Kind:
    return Kind(name, re.compile(pattern), placeholder, re.compile(_NEAR[name]), valid, group)


# In the order they are applied: what is found by an earlier kind is not looked at again.
KINDS = (
    _kind("url_credentials", r"(?<=://)[^\s/@:<>\"'，。；]{1,64}:[^\s/@<>\"'，。；]{1,64}(?=@[A-Za-z0-9\[])", "<网址口令>"),
    _kind("email", r"(?<![0-9A-Za-z._%+-])[0-9A-Za-z][0-9A-Za-z._%+-]{0,63}@(?:[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?\.){1,8}[A-Za-z]{2,24}(?![0-9A-Za-z])", "<邮箱>"),
    _kind("identity_number", rf"{_L}(?<![0-9]\.)[1-9][0-9]{{5}}(?:(?:19|20)[0-9]{{2}}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])[0-9]{{3}}[0-9Xx]|[0-9]{{2}}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])[0-9]{{3}}){_R}", "<身份证号>", valid_identity),
    _kind("social_credit_code", rf"{_L}[0-9A-HJ-NP-RTUWXY]{{2}}[0-9]{{6}}[0-9A-HJ-NP-RTUWXY]{{10}}{_R}", "<统一社会信用代码>", valid_credit_code),
    _kind("bank_card", rf"{_L}(?<![0-9][.-])(?:[0-9]{{4}}[ -]){{3,4}}[0-9]{{1,4}}(?![.][0-9]){_R}|{_L}(?<![0-9][.-])[0-9]{{13,19}}(?![.][0-9]){_R}", "<银行卡号>", valid_card),
    _kind("mobile", rf"(?:{_L}|(?<=\+86)|(?<=\(86\)))(?<![0-9][.-])(?:(?:\+|00)?86[ -]?)?1[3-9][0-9](?:[0-9]{{8}}|[ -][0-9]{{4}}[ -][0-9]{{4}}|[0-9][ -][0-9]{{3}}[ -][0-9]{{4}}){_R}(?![.-][0-9])", "<手机号>"),
    _kind("landline", rf"{_L}(?<![0-9][.-])(?:(?:\+|00)86[ -]?)?(?:\(0[1-9][0-9]{{1,2}}\) ?|（0[1-9][0-9]{{1,2}}）|0[1-9][0-9]{{1,2}}[- ])[2-8][0-9]{{6,7}}(?:[-转][0-9]{{1,6}})?{_R}(?![.-][0-9])", "<固定电话>"),
    _kind("ipv6", r"(?<![0-9A-Za-z:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![0-9A-Za-z:])", "<IP地址>", valid_ipv6),
    _kind("ipv4", rf"{_L}(?<![0-9.§第])(?<!第 )[0-9]{{1,3}}(?:\.[0-9]{{1,3}}){{3}}(?!\.[0-9])(?! ?[节條条款章版]){_R}", "<IP地址>", valid_ipv4),
    _kind("passport", rf"{_L}(?:[EG][0-9]{{8}}|E[A-HJ-NP-Z][0-9]{{7}}|[DSP][0-9]{{7}}|[PS]E[0-9]{{7}}){_R}(?![.-][0-9])", "<护照号>"),
    _kind("licence_plate", rf"[{_PLATE_HEADS}][A-HJ-NP-Z][·• ]?(?:[DF][A-HJ-NP-Z0-9][0-9]{{4}}|[0-9]{{5}}[DF]|(?=[A-Z]{{0,2}}[0-9])[A-HJ-NP-Z0-9]{{4}}[A-HJ-NP-Z0-9学警挂领港澳]){_R}", "<车牌号>"),
    _kind("medical_record", r"(?:住院|门诊|門診|病历|病歷|病案|就诊|就診|登记|检查|影像|病理)(?:号码|號碼|号|號|编号|ID|卡号)[：:为是]?[ \t]{0,2}([0-9A-Za-z][0-9A-Za-z-]{3,19})(?![0-9A-Za-z])|(?<![0-9A-Za-z])(?:MRN|[Mm]edical [Rr]ecord (?:[Nn]umber|[Nn]o\.?))[ :#]{1,3}([0-9A-Za-z][0-9A-Za-z-]{3,19})(?![0-9A-Za-z])", "<病历号>", _has_digit, -1),
)  # fmt: skip
# After these words a mistyped identity number is one all the same.
_IDENTITY_WORDS = re.compile("身份证|身份證|公民身份号码|证件号|證件號|ID card|identity (?:card|number)")
NAMES = tuple(kind.name for kind in KINDS)
ACTIONS = ("replace", "hash", "count", "off")

# Identity number, mobile, bank card, e-mail and URL credentials are replaced; the rest is counted (see docs/cleaning.md).
DEFAULT_ACTIONS = {
    name: "replace" if name in ("identity_number", "mobile", "bank_card", "email", "url_credentials") else "count"
    for name in NAMES
}


@dataclass(frozen=True, slots=True)
class PiiOptions:
    """actions: kind -> replace, hash, count or off. placeholders override Kind.placeholder. key: for hash, secret."""

    actions: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULT_ACTIONS))
    placeholders: Mapping[str, str] = field(default_factory=dict)
    key: bytes = b""


def mask_pii(text: str, options: PiiOptions, found: Counter[str], kinds: int = -1, label: str = "") -> str:
    """The text with personal data treated as the options say; adds the number of valid hits of each kind to `found`.

    kinds: bits of the KINDS that the text may hold, as the measuring pass found them; -1 looks for all. A hash is
    `<name:xxxxxxxxxxxx>`, 48 bits of HMAC-SHA256 with the key: equal values stay equal, and without the key nobody can
    try all telephone numbers. label: words in front of the text, such as the key it stands under. A bare number behind
    a key (`"phone": 13812345678`) is replaced by a quoted placeholder, so that JSON in prose stays JSON.
    """
    taken: list[tuple[int, int, str]] = []
    for bit, kind in enumerate(KINDS):
        action = options.actions.get(kind.name, "off")
        if action == "off" or not kinds >> bit & 1:
            continue
        for match in _matches(kind, text):
            group = kind.group if kind.group >= 0 else match.lastindex or 0
            start, stop = match.span(group)
            value = match.group(group)
            named = kind.name == "identity_number" and _IDENTITY_WORDS.search(_before(text, start, label))
            if not kind.valid(value) and not (named and plausible_identity(value)):
                continue
            at = bisect_left(taken, (start, 0, ""))
            if (at and taken[at - 1][1] > start) or (at < len(taken) and taken[at][0] < stop):
                continue
            found[kind.name] += 1
            new = _treated(kind, action, value, options)
            if new != value and _is_bare_value(text, start, stop):
                new = json.dumps(new, ensure_ascii=False)
            taken.insert(at, (start, stop, new))
    if not taken:
        return text
    pieces, position = [], 0
    for start, stop, new in taken:
        pieces += [text[position:start], new]
        position = stop
    return "".join(pieces) + text[position:]


def _before(text: str, start: int, label: str) -> str:
    """The 16 characters before `start`, those of the label included."""
    return text[start - 16 : start] if start >= 16 else (label + text[:start])[-16:]


def _is_bare_value(text: str, start: int, stop: int) -> bool:
    """Whether a JSON number stands at `start` to `stop`: behind a quoted key and a colon, before a comma or bracket."""
    before = text[max(0, start - 16) : start].rstrip()
    return (
        before.endswith(":")
        and before[:-1].rstrip().endswith('"')
        and text[stop : stop + 16].lstrip()[:1] in (",", "}", "]")
    )


_LOCAL = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz._%+-"  # of an e-mail address before the @


def _matches(kind: Kind, text: str) -> Iterator[re.Match[str]]:
    """What `kind.pattern.finditer(text)` gives, looked for only around the matches of `near`."""
    if kind.name in ("email", "url_credentials"):
        yield from _matches_at_mark(kind, text)
        return
    position, found = 0, kind.near.search(text)
    while found is not None:
        low, high = max(position, found.start() - _WINDOW), found.end() + _WINDOW
        match = kind.pattern.search(text, low, high)
        if match is None or match.start() > found.end():
            found = kind.near.search(text, found.end())
            continue
        yield match
        position = match.end()
        found = kind.near.search(text, position)


def _matches_at_mark(kind: Kind, text: str) -> Iterator[re.Match[str]]:
    """E-mail addresses and credentials have one place each where they can begin: before their mark, or behind it."""
    mark = kind.near.pattern
    position, at = 0, text.find(mark)
    while at >= 0:
        start = at + len(mark)
        if mark == "@":  # where the run of characters that an address may hold before its @ begins
            before = text[max(at - 65, 0) : at]
            start = at - len(before) + len(before.rstrip(_LOCAL))
        match = kind.pattern.match(text, start) if start >= position else None
        if match is not None:
            yield match
            position = match.end()
        at = text.find(mark, max(at + len(mark), position))


def _treated(kind: Kind, action: str, value: str, options: PiiOptions) -> str:
    if action == "count":
        return value
    placeholder = options.placeholders.get(kind.name, kind.placeholder)
    if action == "replace":
        return placeholder
    digest = hmac.new(options.key, value.encode(), hashlib.sha256).hexdigest()[:12]
    return f"{placeholder.rstrip('>')}:{digest}>" if placeholder.endswith(">") else f"{placeholder}:{digest}"
