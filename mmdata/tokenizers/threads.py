"""One worker is one thread: engines start no threads of their own unless the user asks for them.

`fastokens` reads FASTOKENS_BPE_THREADS when it first encodes, Hugging Face `tokenizers` reads TOKENIZERS_PARALLELISM at
each batch. Values the user set before stay as they are. Also gives freed memory back to the system between engines.
"""

from __future__ import annotations

import ctypes
import os
import sys

VARIABLES = {"FASTOKENS_BPE_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def use_one_thread() -> None:
    """Set what is not set yet. Call before an engine is loaded."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)


def release_memory() -> None:
    """Where the C library can (glibc), hand free heap pages back to the system.

    What loading leaves behind is in no cycle: looking for cycles among all that a program has imported takes 0.1 s.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
