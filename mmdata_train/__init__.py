"""mmdata_train: fine-tuning on mmdata's shards in any parallel layout.

Public names load on first use, so `import mmdata_train` imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmdata._lazy import exporter

if TYPE_CHECKING:
    from mmdata_train.config import TrainConfig as TrainConfig
    from mmdata_train.errors import TrainError as TrainError
    from mmdata_train.layout import ParallelLayout as ParallelLayout
    from mmdata_train.run import finetune as finetune
    from mmdata_train.sampler import ParallelSampler as ParallelSampler

_HOMES = {
    "ParallelLayout": "mmdata_train.layout",
    "ParallelSampler": "mmdata_train.sampler",
    "TrainConfig": "mmdata_train.config",
    "TrainError": "mmdata_train.errors",
    "finetune": "mmdata_train.run",
}

__all__ = sorted(_HOMES)

__getattr__ = exporter(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
