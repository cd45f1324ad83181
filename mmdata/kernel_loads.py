"""What numba's language lacks: plain pointers, eight bytes as one number, and the ASCII letters and digits among the
next 32 bytes.

A pointer has no length and is not counted: nothing is checked, an index below 0 does not count from the end, and the
array must outlive the kernel. (Numba counts references to arrays at every step of a loop that hands them on, which
costs more than the work.) All loads read behind the place they are asked about: a buffer needs 64 bytes before and
behind its text. Written for machines that put the lowest byte first, as all do for which numba is built. LLVM turns
the 32-byte comparisons into the widest instructions of the machine at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.extending
from llvmlite import ir
from numba import core

types: Any = core.types  # numba's own annotations are partial
pack_array: Any = core.cgutils.pack_array
_BYTE, _WORD = ir.IntType(8), ir.IntType(64)
_LANES = 32
_BLOCK = ir.VectorType(_BYTE, _LANES)
_VOWELS = b"aeiouy"


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of a function that gives a signature and the code for it: what kernels call, without the typing context."""
    made: Callable[..., Any] = numba.extending.intrinsic(function)
    return made


@intrinsic
def pointer(typingctx: Any, array: Any) -> Any:
    """The address of an array's first item, to be indexed as the array is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), generate


@intrinsic
def get(typingctx: Any, start: Any, index: Any) -> Any:
    """start[index] of unsigned integers; up to 32 bits as int64, 64 bits as uint64."""
    result = types.uint64 if start.dtype.bitwidth == 64 else types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(builder.gep(arguments[0], [arguments[1]]))
        return value if value.type.width == 64 else builder.zext(value, _WORD)

    return result(start, types.int64), generate


@intrinsic
def load8(typingctx: Any, start: Any, index: Any) -> Any:
    """Bytes index to index + 7 as one uint64, the first byte lowest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.gep(arguments[0], [arguments[1]])
        return builder.load(builder.bitcast(address, _WORD.as_pointer()), align=1)

    return types.uint64(start, types.int64), generate


@intrinsic
def load8_first_highest(typingctx: Any, start: Any, index: Any) -> Any:
    """Bytes index to index + 7 as one uint64, the first byte highest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.gep(arguments[0], [arguments[1]])
        return builder.bswap(builder.load(builder.bitcast(address, _WORD.as_pointer()), align=1))

    return types.uint64(start, types.int64), generate


@intrinsic
def ascii_word(typingctx: Any, start: Any, index: Any) -> Any:
    """(size, digits, vowels) of the ASCII letters and digits from byte index on.

    size: how many stand in a row, 32 at most; digits and vowels: int64 with bit k set where byte index + k is one,
    for k < size.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.gep(arguments[0], [arguments[1]])
        block = builder.load(builder.bitcast(address, _BLOCK.as_pointer()), align=1)
        lower = builder.or_(block, _each(32))
        letters = builder.icmp_unsigned("<", builder.sub(lower, _each(ord("a"))), _each(26))
        digits = builder.icmp_unsigned("<", builder.sub(block, _each(ord("0"))), _each(10))
        vowels = builder.icmp_unsigned("==", lower, _each(_VOWELS[0]))
        for vowel in _VOWELS[1:]:
            vowels = builder.or_(vowels, builder.icmp_unsigned("==", lower, _each(vowel)))
        breaks = builder.not_(_bits(builder, builder.or_(letters, digits)))
        size = builder.cttz(breaks, ir.Constant(ir.IntType(1), 0))  # bits 32 to 63 are ones
        row = builder.sub(builder.shl(ir.Constant(_WORD, 1), size), ir.Constant(_WORD, 1))
        found = [size, builder.and_(_bits(builder, digits), row), builder.and_(_bits(builder, vowels), row)]
        return pack_array(builder, found)

    return types.UniTuple(types.int64, 3)(start, types.int64), generate


def _each(value: int) -> Any:
    """A vector of one byte's value."""
    return ir.Constant(_BLOCK, [value] * _LANES)


def _bits(builder: Any, lanes: Any) -> Any:
    """One bit for each lane of a vector of truth values, as a 64-bit integer."""
    return builder.zext(builder.bitcast(lanes, ir.IntType(_LANES)), _WORD)
