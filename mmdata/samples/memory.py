"""Memory by its address, for kernels that read from many mapped files at once: loads, and hints to the processor.

A kernel takes arrays as arguments, and a batch may come from hundreds of files; so it gets a table of addresses, and
whoever fills the table keeps the arrays alive. Nothing is checked here: the kernels do that before they read.

A hint asks for a line of memory that is needed soon. The processor's own prefetching follows a run only after its first
misses and stops at the end of each page, and a document of a few hundred tokens is over before that pays. A hint is one
instruction, never faults whatever the address, and changes no result.

Written for machines that put the lowest byte first, as all do for which numba is built.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import core

from mmdata.kernel_loads import intrinsic
from mmdata.kernels import inlined

types: Any = core.types  # numba's own annotations are partial
LINE, PAGE = 64, 4096  # bytes; where the machine's are larger some hints are superfluous
_WORD, _INT = ir.IntType(64), ir.IntType(32)
_BYTES = ir.IntType(8).as_pointer()
_PREFETCH = ir.FunctionType(ir.VoidType(), [_BYTES, _INT, _INT, _INT])
# For reading, into the second level (a batch and the next run would push each other out of the first), as data.
_HOW = [ir.Constant(_INT, value) for value in (0, 2, 1)]


@intrinsic
def load64(typingctx: Any, address: Any) -> Any:
    """The int64 at `address`, which may be unaligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _WORD.as_pointer()), align=1)

    return types.int64(types.int64), generate


@intrinsic
def items_at(typingctx: Any, address: Any, like: Any) -> Any:
    """The memory at `address`, aligned to its items, as items of the dtype of the array `like`, to be indexed."""
    result = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return result(types.int64, like), generate


@intrinsic
def address_of(typingctx: Any, array: Any) -> Any:
    """Where the array's first item stands."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(context.make_array(signature.args[0])(context, builder, arguments[0]).data, _WORD)

    return types.int64(array), generate


@intrinsic
def copy_bytes(typingctx: Any, target: Any, address: Any, size: Any) -> Any:
    """Copy `size` bytes from `address` to the first item of the array `target`, which must have room for them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        source = builder.inttoptr(arguments[1], _BYTES)
        function = builder.module.declare_intrinsic("llvm.memcpy", [_BYTES, _BYTES, _WORD])
        builder.call(function, [builder.bitcast(start, _BYTES), source, arguments[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64), generate


@intrinsic
def hint(typingctx: Any, address: Any) -> Any:
    """Fetch the line that holds `address`, any int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTES], _PREFETCH)
        builder.call(function, [builder.inttoptr(arguments[0], _BYTES), *_HOW])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@inlined
def hint_run(begin: int, size: int) -> None:
    """`hint` for every line of the bytes [begin, begin + size)."""
    place = begin
    while place < begin + size:
        hint(place)
        place += LINE


@inlined
def hint_pages(begin: int, size: int) -> None:
    """`hint` for the first line of each page of the bytes [begin, begin + size): their addresses get translated."""
    place = begin
    while place < begin + size:
        hint(place)
        place = (place | (PAGE - 1)) + 1
