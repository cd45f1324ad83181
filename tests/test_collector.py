"""The search for cycles is kept away while work lasts, and is afterwards what it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from mmdata.collector import collector_paused, loaded_spared


@pytest.fixture(autouse=True)
def nothing_set_aside() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("enabled", [True, False])
def test_a_pause_ends_with_what_was_before_faults_included(enabled: bool) -> None:
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(KeyError), collector_paused():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_what_is_loaded_is_set_aside_and_taken_back() -> None:
    with pytest.raises(KeyError), loaded_spared():
        assert gc.get_freeze_count() > 1000
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_what_the_program_set_aside_itself_stays_aside() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with loaded_spared():
        assert gc.get_freeze_count() == count
    assert gc.get_freeze_count() == count
