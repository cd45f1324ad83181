"""Sample, shuffle and blend indices over shards, and packing: index arithmetic only, no training framework.

Public names load on first use. `pack` is a module that can be called (see `mmdata._callable`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mmdata._callable import make_callable

if TYPE_CHECKING:
    from mmdata.samples.blend import BlendedSamples as BlendedSamples
    from mmdata.samples.gpt import GPTSamples as GPTSamples
    from mmdata.samples.packed import PackedSamples as PackedSamples

_HOMES = {
    "BlendedSamples": "mmdata.samples.blend",
    "GPTSamples": "mmdata.samples.gpt",
    "PackedSamples": "mmdata.samples.packed",
    "pack": "mmdata.samples.pack",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mmdata.samples' has no attribute {name!r}; public names: {', '.join(__all__)}")
    module = import_module(home)
    if home.rpartition(".")[2] == name:
        make_callable(home)
        return module
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
