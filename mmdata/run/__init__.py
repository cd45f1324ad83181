"""Running: executors that apply a function to items in order, the ledger of a run, and its progress.

Names load on first use, so that the command line's help needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmdata._lazy import exporter

if TYPE_CHECKING:
    from mmdata.run.executor import Executor as Executor
    from mmdata.run.executor import make_executor as make_executor
    from mmdata.run.ledger import Ledger as Ledger
    from mmdata.run.local import LocalExecutor as LocalExecutor
    from mmdata.run.progress import Progress as Progress
    from mmdata.run.progress import SilentProgress as SilentProgress
    from mmdata.run.progress import make_progress as make_progress

_HOMES = {
    "Executor": "mmdata.run.executor",
    "Ledger": "mmdata.run.ledger",
    "LocalExecutor": "mmdata.run.local",
    "Progress": "mmdata.run.progress",
    "SilentProgress": "mmdata.run.progress",
    "make_executor": "mmdata.run.executor",
    "make_progress": "mmdata.run.progress",
}

__all__ = sorted(_HOMES)

__getattr__ = exporter(__name__, _HOMES)
