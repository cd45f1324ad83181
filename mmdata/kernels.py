"""The one way numba kernels are declared here.

`kernel` compiles on first call, releases the GIL, and caches machine code beside the source, or in the user's cache
folder when the installation is read-only (numba picks the first writable place). `inlined` is for the parts of a
kernel that have names of their own: they become part of their caller before it is compiled, so each is compiled once
and calls between them cost nothing. Machine code is made anew when anything that a kernel reaches has changed, in
whatever file (`mmdata.kernel_cache`). Importing this module imports numba (about half a second), so only modules that
hold kernels do.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from mmdata.kernel_cache import refresh_with_callees

UNKNOWN_CACHE = (
    "this version of numba keeps machine code in a way not known here, so kernels are compiled at every start; results"
    " are the same. Install numba 0.61 to 0.68 to start sooner"
)
Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile `function` in nopython mode with an on-disk cache and without the GIL; integer overflow wraps."""
    compiled = numba.njit(cache=True, nogil=True)(function)
    if not refresh_with_callees(compiled):
        warnings.warn(UNKNOWN_CACHE, stacklevel=2)
        compiled = numba.njit(nogil=True)(function)
    return cast(Function, compiled)


def inlined(function: Function) -> Function:
    """A part of kernels: its body takes the place of each call, so keep it for parts that are called once or twice."""
    return cast(Function, numba.njit(inline="always")(function))


NOTICE_AFTER = 1.5  # seconds; loading cached machine code takes less, compiling more


def prepare(first_call: Callable[[], object], what: str, notice: Callable[[str], None] | None = None) -> None:
    """Make the first call of some kernels, and say so where it takes long because it compiles them.

    what: a name for the kernels, for the sentence that `notice` is told.
    """
    text = f"preparing the {what} kernels (the first run on a machine compiles them, some ten seconds)"
    timer = threading.Timer(NOTICE_AFTER, notice or (lambda text: None), args=(text,))
    timer.daemon = True
    timer.start()
    try:
        first_call()
    finally:
        timer.cancel()
