"""Sizes of the command line."""

from __future__ import annotations

import pytest

from mmdata.errors import UsageError
from mmdata.run.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "value"),
    [("1000", 1000), ("512M", 512 << 20), ("512Mi", 512 << 20), ("2GiB", 2 << 30), ("1.5k", 1536), (" 3 TB ", 3 << 40)],
)
def test_sizes_are_powers_of_1024_however_they_are_written(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "M", "-1M", "1,5G", "512X", "ten"])
def test_what_is_no_size_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(UsageError, match=r"--scratch .* such as 512M"):
        parse_size(text, "--scratch")
