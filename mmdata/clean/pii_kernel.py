"""Which kinds of personal data could stand at a number or an at sign: a bit mask.

Bits stand in the order of mmdata.clean.pii.KINDS. The measuring pass asks here at words that hold a digit and at `@`,
so that an expression runs only on texts that hold a candidate of its kind. A mask may have a bit too many and never
one too few: tests compare it with the expressions. All walks are bounded and stop at a line feed, which stands before
and behind every text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdata.clean import columns as c
from mmdata.clean.hashing_kernel import WORD_BYTES
from mmdata.clean.tables import DIGIT, LATIN
from mmdata.kernel_loads import pointer
from mmdata.kernels import inlined, kernel

(
    URL_CREDENTIALS,
    EMAIL,
    IDENTITY,
    CREDIT_CODE,
    CARD,
    MOBILE,
    LANDLINE,
    IPV6,
    IPV4,
    PASSPORT,
    PLATE,
    RECORD,
) = (1 << bit for bit in range(12))
ALL_KINDS = (1 << 12) - 1


@kernel
def all_digits(data: Any, first: int, stop: int) -> bool:
    """Are the bytes [first, stop) digits?"""
    for j in range(first, stop):  # noqa: SIM110 - a loop is what compiles
        if WORD_BYTES[data[j]] != 8:
            return False
    return True


@kernel
def dash_at(data: Any, i: int) -> bool:
    """Is byte i a space or a hyphen?"""
    return bool(data[i] == 0x20 or data[i] == 0x2D)


@kernel
def at_sign(data: Any, i: int) -> int:
    """An address or the end of a URL's credentials at the `@` of byte i."""
    kinds = 0
    before, after = data[i - 1], data[i + 1]
    local = WORD_BYTES[before] or before == 0x2E or before == 0x5F or before == 0x25 or before == 0x2B or before == 0x2D
    if local and WORD_BYTES[after]:
        j = i + 2
        while WORD_BYTES[data[j]] or data[j] == 0x2D or data[j] == 0x2E:
            if data[j] == 0x2E and WORD_BYTES[data[j + 1]] & 2 and WORD_BYTES[data[j + 2]] & 2:
                kinds = EMAIL
                break
            j += 1
    if WORD_BYTES[after] or after == 0x5B:
        j, colon = i - 1, False
        while i - j < 560 and data[j] > 32 and data[j] != 0x2F and data[j] != 0x40:
            colon |= data[j] == 0x3A
            j -= 1
        if colon and data[j] == 0x2F and data[j - 1] == 0x2F and data[j - 2] == 0x3A:
            kinds |= URL_CREDENTIALS
    return kinds


@kernel
def telephone(data: Any, a: int, b: int) -> int:
    """Bank card, mobile or landline number in, or beginning or ending with, the digits [a, b)."""
    size, kinds = b - a, 0
    if 13 <= size <= 19:
        kinds = CARD
    elif size <= 4 and dash_at(data, a - 1) and dash_at(data, a - 6) and dash_at(data, a - 11):
        fours = all_digits(data, a - 5, a - 1) and all_digits(data, a - 10, a - 6)
        kinds = CARD if fours and all_digits(data, a - 15, a - 11) else 0
    if (size == 11 or size == 13 or size == 15) and data[b - 11] == 0x31 and data[b - 10] >= 0x33:
        kinds |= MOBILE
    if 3 <= size <= 8:
        if data[b - 3] == 0x31 and data[b - 2] >= 0x33 and dash_at(data, b) and all_digits(data, b + 1, b + 5):
            kinds |= MOBILE if dash_at(data, b + 5) and all_digits(data, b + 6, b + 10) else 0
        if data[b - 4] == 0x31 and data[b - 3] >= 0x33 and dash_at(data, b) and all_digits(data, b + 1, b + 4):
            kinds |= MOBILE if dash_at(data, b + 4) and all_digits(data, b + 5, b + 9) else 0
        if data[b - 3] == 0x30 or data[b - 4] == 0x30:
            j = b + 3 if data[b] == 0xEF and data[b + 1] == 0xBC and data[b + 2] == 0x89 else b
            if j == b and (dash_at(data, b) or data[b] == 0x29):
                j = b + 1
            if j > b:
                j += data[j] == 0x20
                kinds |= LANDLINE if 0x32 <= data[j] <= 0x38 and all_digits(data, j + 1, j + 7) else 0
    return kinds


@kernel
def ipv4_at(data: Any, a: int, b: int) -> bool:
    """Do four octets, one of them of two digits or more, begin with the digits [a, b) before a full stop?"""
    if data[a - 1] == 0x2E or b - a > 3:
        return False
    wide, dots, j, octet = b - a > 1, 1, b + 1, 0
    while True:
        if WORD_BYTES[data[j]] == 8:
            octet += 1
            if octet > 3:
                return False
            wide |= octet > 1
        else:
            if octet == 0:
                return False
            if data[j] != 0x2E or dots == 3:
                return bool(dots == 3 and wide)
            dots, octet = dots + 1, 0
        j += 1


@kernel
def ipv6_at(data: Any, a: int) -> bool:
    """Is byte a inside hexadecimal groups and colons that could be an IPv6 address?"""
    first = a
    while a - first < 40 and (data[first - 1] == 0x3A or WORD_BYTES[data[first - 1]]):
        first -= 1
    last, colons, groups, double = first, 0, 0, False
    while last - first < 41 and (data[last] == 0x3A or WORD_BYTES[data[last]]):
        colon = data[last] == 0x3A
        if data[last] | 32 > 0x66:
            return False
        colons += colon
        double |= colon and data[last + 1] == 0x3A
        groups += not colon and (last == first or data[last - 1] == 0x3A)
        last += 1
    return bool(last - first <= 39 and colons >= 2 and groups >= 3 and (double or colons == 7))


@kernel
def plate_at(data: Any, a: int, size: int) -> bool:
    """Do `size` capitals and digits from byte a on stand where a licence plate's could, behind a Han character?"""
    if data[a - 1] >= 0x80 and 0xE4 <= data[a - 3] <= 0xE9:
        return bool(5 <= size <= 7 and data[a] >= 0x41)
    if not 4 <= size <= 6:
        return False
    gap = 1 if data[a - 1] == 0x20 else 0
    gap = 2 if data[a - 1] == 0xB7 and data[a - 2] == 0xC2 else gap
    gap = 3 if data[a - 1] == 0xA2 and data[a - 2] == 0x80 and data[a - 3] == 0xE2 else gap
    head = a - gap - 1
    return bool(gap and 0x41 <= data[head] <= 0x5A and data[head - 1] >= 0x80)


@kernel
def han_before(data: Any, i: int) -> Any:
    """The code point of the three bytes before byte i, or 0."""
    if data[i - 1] < 0x80 or data[i - 1] >= 0xC0 or data[i - 3] < 0xE0 or data[i - 3] >= 0xF0:
        return 0
    middle = (np.int64(data[i - 2]) & 63) << 6
    return (np.int64(data[i - 3]) & 15) << 12 | middle | (np.int64(data[i - 1]) & 63)


@kernel
def keyword_end(code: int) -> bool:
    """Is this the last character of 住院 门诊 病历 病案 就诊 登记 检查 影像 病理 or a traditional form?"""
    return bool(
        code == 0x9662 or code == 0x8BCA or code == 0x8A3A or code == 0x5386 or code == 0x6B77 or code == 0x6848
        or code == 0x8BB0 or code == 0x67E5 or code == 0x50CF or code == 0x7406
    )  # fmt: skip


@kernel
def record_at(data: Any, a: int) -> bool:
    """Does the word at byte a belong to a number that follows a keyword such as 住院号 or MRN?"""
    first = a
    while a - first < 22 and (WORD_BYTES[data[first - 1]] or data[first - 1] == 0x2D):
        first -= 1
    if data[first] == 0x49 and data[first + 1] == 0x44 and keyword_end(han_before(data, first)):
        return True
    i = first
    while first - i < 3 and (data[i - 1] == 0x20 or data[i - 1] == 9 or data[i - 1] == 0x3A or data[i - 1] == 0x23):
        i -= 1
    if i < first:
        k = i - 2 if data[i - 1] == 0x2E else i - 1
        if data[k] == 0x4E and data[k - 1] == 0x52 and data[k - 2] == 0x4D:
            return True
        if data[k] == 0x72 or data[k] == 0x6F:
            for j in range(k - 12, k - 1):
                if data[j] == 0x63 and data[j + 1] == 0x6F and data[j + 2] == 0x72 and data[j + 3] == 0x64:
                    return True
    code = han_before(data, i)
    if code == 0xFF1A or code == 0x4E3A or code == 0x662F:  # ：为是
        i -= 3
        code = han_before(data, i)
    if data[i - 1] == 0x44 and data[i - 2] == 0x49:
        return keyword_end(han_before(data, i - 2))
    if code == 0x53F7 or code == 0x865F or code == 0x7801 or code == 0x78BC:  # 号號码碼
        return keyword_end(han_before(data, i - 3)) or keyword_end(han_before(data, i - 6))
    return False


@kernel
def run_kinds(data: Any, a: int, b: int) -> int:
    """Kinds that the ASCII letters and digits [a, b), between other bytes, may be or begin or end."""
    digits, capitals, size = 0, 0, b - a
    for j in range(a, b):
        digits += WORD_BYTES[data[j]] == 8
        capitals += 0x41 <= data[j] <= 0x5A
    if digits == 0:
        return 0
    kinds = RECORD if record_at(data, a) else 0
    if digits == size:
        kinds |= telephone(data, a, b)
        if data[b] == 0x2E and ipv4_at(data, a, b):
            kinds |= IPV4
    if (size == 15 and digits == 15) or (size == 18 and all_digits(data, a, a + 17)):
        kinds |= IDENTITY
    if digits + capitals == size:
        if size == 18 and all_digits(data, a + 2, a + 8):
            kinds |= CREDIT_CODE
        if (size == 8 or size == 9) and data[a] >= 0x41 and all_digits(data, b - 7, b):
            kinds |= PASSPORT
        if size <= 7 and plate_at(data, a, size):
            kinds |= PLATE
    if (data[a - 1] == 0x3A or data[b] == 0x3A) and ipv6_at(data, a):
        kinds |= IPV6
    return kinds


@inlined
def word_kinds(data: Any, first: Any, last: Any) -> Any:
    """(number of ASCII digits, kinds) of the word [first, last), which may hold letters beyond ASCII."""
    digits, kinds, a = 0, 0, first
    for j in range(first, last + 1):
        shape = WORD_BYTES[data[j]] if j < last else 0
        if shape == 0:
            if j > a:
                kinds |= run_kinds(data, a, j)
            a = j + 1
        digits += shape == 8
    return digits, kinds


@kernel
def spot_batch(data: Any, spots: Any, stops: Any, ends: Any, out: Any) -> None:
    """Digits and kinds of personal data at the words with a digit and the at signs that the scan noted.

    The spots of document i end at ends[i, 1]; each is a word [spots[k], stops[k]), or an at sign where the two agree.
    """
    k, text = 0, pointer(data)
    for i in range(ends.shape[0]):
        digits, only, kinds = 0, 0, 0
        while k < ends[i, 1]:
            first, last = spots[k], stops[k]
            if first == last:
                kinds |= at_sign(text, first)
            else:
                here, found = word_kinds(text, first, last)
                digits, kinds, only = digits + here, kinds | found, only + (here == last - first)
            k += 1
        out[i, c.PII] = kinds
        out[i, c.DIGIT_WORDS] = only
        out[i, DIGIT] += digits
        out[i, LATIN] -= digits
