"""Running: executors that apply a function to items in order, the ledger of a run, and its progress."""

from __future__ import annotations

from mmdata.run.executor import Executor, make_executor
from mmdata.run.local import LocalExecutor

__all__ = ["Executor", "LocalExecutor", "make_executor"]
