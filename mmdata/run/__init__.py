"""Running: executors that apply a function to items in order, the ledger of a run, and its progress."""

from __future__ import annotations

from mmdata.run.executor import Executor, make_executor
from mmdata.run.ledger import Ledger
from mmdata.run.local import LocalExecutor
from mmdata.run.progress import Progress, SilentProgress, make_progress

__all__ = ["Executor", "Ledger", "LocalExecutor", "Progress", "SilentProgress", "make_executor", "make_progress"]
