"""The package's log records on stderr, as every command shows them."""

from __future__ import annotations

import logging
import os


def start_logging() -> None:
    """Records of rank 0 as they are; of the other ranks only warnings, each with its rank. Call once a process."""
    rank = os.environ.get("RANK", "0")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s" if rank == "0" else f"rank {rank}: %(message)s"))
    logger = logging.getLogger("mmdata_train")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if rank == "0" else logging.WARNING)
