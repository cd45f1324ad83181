"""The package's log records on stderr, as every command shows them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def shown_logging() -> Iterator[None]:
    """Records of rank 0 as they are; of the other ranks only warnings, each with its rank. As before at the end.

    Records go no further than here: libraries that score or log put handlers of their own on the root logger, which
    would show each line a second time.
    """
    rank = os.environ.get("RANK", "0")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s" if rank == "0" else f"rank {rank}: %(message)s"))
    logger = logging.getLogger("mmdata_train")
    former = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if rank == "0" else logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(former[0])
        logger.propagate = former[1]
