"""Lets `mmdata.convert(...)` be a call although `mmdata/convert.py` is a module (likewise `clean`, `dedup`).

Python binds a submodule to its parent's attribute whenever it is imported, so a function of the same name would work
or not depending on import order. Here the module itself is callable and forwards to its function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A module whose call runs the function that bears the module's last name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


def make_callable(module_name: str) -> None:
    """Turn the loaded module `module_name` into a CallableModule."""
    sys.modules[module_name].__class__ = CallableModule
