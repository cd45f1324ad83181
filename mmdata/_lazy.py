"""Lets a package's public names load on first use, from one table of name -> module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exporter(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The package's `__getattr__`: imports the name's home; raises AttributeError listing the names there are."""

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; public: {', '.join(sorted(homes))}")
        return getattr(import_module(home), name)

    return load
