"""How much memory this machine has, and sample indices that are beyond it. Nothing here imports torch."""

from __future__ import annotations

import math
import os
from pathlib import Path

from mmdata_train.errors import ConfigError
from mmdata_train.limits import MOST

_CGROUP = Path("/sys/fs/cgroup/memory.max")
_BYTES_A_SAMPLE = 10
"""Of a blend's index: int16 for the set and int64 for the sample in it (docs/samples.md)."""


def host_bytes() -> int | None:
    """Bytes of memory this process may use: physical, or the control group's limit where that is less (memory.max:
    admin-guide/cgroup-v2 of kernel.org). None where the system does not tell.
    """
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        granted = _CGROUP.read_text(encoding="utf-8").strip()
    except OSError:
        return physical
    return min(physical, int(granted)) if granted.isdigit() else physical


def in_words(size: float) -> str:
    """Bytes for people: `21.5 GiB`."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(len(units) - 1, max(0, int(size).bit_length() - 1) // 10)
    return f"{size / 1024**power:,.4g} {units[power]}"


def check_index(samples: float, cause: str) -> int:
    """The number of samples as a whole one, rounded up, where an index of so many can be built on this machine.

    cause: the setting it follows from. Raises ConfigError beyond int64, or when the index is larger than the memory.
    """
    if not math.isfinite(samples) or samples > MOST:
        raise ConfigError(f"{cause} means {samples:.3g} samples, and an index holds at most {MOST:,}; lower it")
    size, memory = _BYTES_A_SAMPLE * samples, host_bytes()
    if memory is not None and size > memory:
        raise ConfigError(
            f"{cause} means {math.ceil(samples):,} samples, whose index takes at least {in_words(size)}; this machine"
            f" has {in_words(memory)} of memory, enough for {memory // _BYTES_A_SAMPLE:,} samples at most: lower it"
        )
    return math.ceil(samples)
