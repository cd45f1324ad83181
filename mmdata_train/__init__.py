"""mmdata_train: fine-tuning on mmdata's shards in any parallel layout.

Public names load on first use, so `import mmdata_train` imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmdata_train.config import TrainConfig as TrainConfig
    from mmdata_train.errors import TrainError as TrainError
    from mmdata_train.layout import ParallelLayout as ParallelLayout
    from mmdata_train.sampler import ParallelSampler as ParallelSampler

_HOMES = {
    "ParallelLayout": "mmdata_train.layout",
    "ParallelSampler": "mmdata_train.sampler",
    "TrainConfig": "mmdata_train.config",
    "TrainError": "mmdata_train.errors",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mmdata_train' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
