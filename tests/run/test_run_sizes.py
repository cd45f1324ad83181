"""Sizes of the command line."""

from __future__ import annotations

from typing import Any

import pytest

from mmdata.dedup.files import FileOptions
from mmdata.errors import UsageError
from mmdata.pipeline.conversion import RunOptions
from mmdata.run.sizes import parse_memory, parse_size


@pytest.mark.parametrize(
    ("text", "value"),
    [("1000", 1000), ("512M", 512 << 20), ("512Mi", 512 << 20), ("2GiB", 2 << 30), ("1.5k", 1536), (" 3 TB ", 3 << 40)],
)
def test_sizes_are_powers_of_1024_however_they_are_written(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "M", "-1M", "1,5G", "512X", "ten", "nan", "1e9", "9" * 400])
def test_what_is_no_size_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(UsageError, match=r"--scratch .* such as 512M"):
        parse_size(text, "--scratch")


@pytest.mark.parametrize("text", ["0", "0.5", "256", "1023K", "1025T", "9" * 18 + "T"])
def test_memory_that_sorting_cannot_work_in_is_refused_with_both_limits(text: str) -> None:
    with pytest.raises(UsageError, match=r"--memory .* at least 1M and at most 1024T"):
        parse_memory(text)


@pytest.mark.parametrize(("text", "value"), [("1M", 1 << 20), ("1024T", 1 << 50), ("256M", 256 << 20)])
def test_memory_at_the_limits_is_taken(text: str, value: int) -> None:
    assert parse_memory(text) == value


@pytest.mark.parametrize("options", [FileOptions, RunOptions])
@pytest.mark.parametrize("size", [0, -1, True, 1.5, "256M"])
def test_programs_cannot_give_memory_that_is_no_positive_number_of_bytes(options: Any, size: Any) -> None:
    with pytest.raises(UsageError, match=r"memory=.* at least 1"):
        options(memory=size)
