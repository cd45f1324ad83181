"""How the ranks of tests start."""

from __future__ import annotations

import multiprocessing
from typing import Literal

START: Literal["forkserver", "spawn"] = (
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)
"""Ranks fork from a server that imported torch once; benchmarks and products spawn them."""
