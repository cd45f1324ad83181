"""No number of the configuration may be NaN, infinite or outside its range, and every field that holds one has one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from mmdata_train.config import BatchRampup, OptimConfig, TrainConfig, TrainingConfig
from mmdata_train.config_io import build
from mmdata_train.data_config import DataEntry
from mmdata_train.errors import ConfigError, TrainError
from mmdata_train.limits import MOST, Limit, divisors, number_fields
from mmdata_train.lora.settings import LoraConfig
from mmdata_train.model.config import ModelConfig, RopeScaling

SHAPE = {"vocab_size": 61, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
REQUIRED: dict[type, dict[str, Any]] = {
    ModelConfig: SHAPE,
    RopeScaling: {"kind": "linear", "factor": 2.0},
    BatchRampup: {"start": 1, "increment": 1, "samples": 1},
    DataEntry: {"path": "law"},
    TrainConfig: {"model": "m"},
}


def parts(hint: Any) -> Iterator[Any]:
    """An annotation and all that stands inside it."""
    yield hint
    for inner in get_args(hint):
        yield from parts(inner)


def sections(kind: type) -> Iterator[type]:
    """A dataclass and all that its fields may hold, at any depth."""
    yield kind
    for hint in get_type_hints(kind).values():
        for part in parts(hint):
            if dataclasses.is_dataclass(part):
                yield from sections(part)  # type: ignore[arg-type]


CLASSES = list(dict.fromkeys([*sections(TrainConfig), OptimConfig, LoraConfig]))
NUMBERS = [(kind, name) for kind in CLASSES for name in number_fields(kind)]


def test_every_section_of_a_configuration_is_looked_at() -> None:
    found = {kind.__name__ for kind in CLASSES}
    assert found == {
        "TrainConfig", "ModelConfig", "RopeScaling", "DataConfig", "DataEntry", "LoadingConfig", "ParallelConfig",
        "TrainingConfig", "BatchRampup", "OutputConfig", "OptimConfig", "LoraConfig",
    }  # fmt: skip
    names = {name for _, name in NUMBERS}
    assert {"lr", "steps", "weight", "timeout_minutes", "lora_alpha", "start", "save_every", "norm_eps"} <= names
    assert not {"compile", "stage_layers", "added_ids", "precision"} & names


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda item: getattr(item, "__name__", item))
def test_no_number_may_be_nan_or_infinite(kind: type, name: str, bad: float) -> None:
    with pytest.raises(TrainError, match=rf"{name} is {bad}; it must be finite"):
        kind(**(REQUIRED.get(kind, {}) | {name: bad}))


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda item: getattr(item, "__name__", item))
def test_no_number_goes_below_zero_or_beyond_64_bits(kind: type, name: str) -> None:
    with pytest.raises(TrainError, match=rf"{name} is -1; it must be"):
        kind(**(REQUIRED.get(kind, {}) | {name: -1}))
    if int in (hint := get_type_hints(kind)[name], *get_args(hint)):
        with pytest.raises(TrainError, match=rf"{name} is {2**70}; it must be at (most|least)"):
            kind(**(REQUIRED.get(kind, {}) | {name: 2**70}))


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("train", "lr", ".nan", "train.lr is nan; it must be finite and at least 0; such as 1e-5"),
        ("train", "epochs", 0, "train.epochs is 0.0; it must be above 0; such as 1 or 0.5"),
        ("train", "eps", 0, "train.eps is 0.0; it must be above 0 and at most 1; 1e-8 is usual; 0 would divide by"),
        ("train", "beta2", 1.0, r"train.beta2 is 1.0; it must be at least 0 and below 1; in \[0, 1\)"),
        ("train", "initial_loss_scale", 0, "train.initial_loss_scale is 0.0; it must be above 0"),
        ("train", "max_skipped_steps", 0, "train.max_skipped_steps is 0; it must be at least 1; it counts non-finite"),
        ("train", "max_skipped_steps", -3, "train.max_skipped_steps is -3; it must be at least 1"),
        ("train", "exit_after_minutes", -1, "train.exit_after_minutes is -1.0; it must be at least 0; null for no"),
        ("train", "peak_tflops", -1, "train.peak_tflops is -1.0; it must be above 0; null where"),
        ("train", "steps", 0, "train.steps is 0; it must be at least 1"),
        ("train", "dropout", 1.0, "train.dropout is 1.0; it must be at least 0 and below 1; it is a probability"),
        ("train", "min_loss_scale", 2.0**127 * 1.5, "train.min_loss_scale is 2.5"),
        ("parallel", "timeout_minutes", 0, "parallel.timeout_minutes is 0.0; it must be above 0 and at most 525,600"),
        ("output", "save_every", 0, "output.save_every is 0; it must be at least 1; it counts steps; null saves at"),
        ("data", "seed", 2**32, "data.seed is 4294967296; it must be at least 0 and at most 4,294,901,759"),
        ("data", "seq_length", 1, "data.seq_length is 1; it must be at least 2"),
    ],
)
def test_value_limit_and_remedy_are_named(section: str, key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(TrainConfig, {"model": "m", section: {key: value if value != ".nan" else math.nan}})


@pytest.mark.parametrize("ramp", [(0, 2, 9), (-2, 2, 9), (2, 0, 9), (2, -1, 9), (2, 2, 0), (2, 2, -5)], ids=str)
def test_batch_ramp_up_that_never_ends_is_refused_where_it_is_made(ramp: tuple[int, int, int]) -> None:
    values = dict(zip(("start", "increment", "samples"), ramp, strict=True))
    with pytest.raises(ConfigError, match=r"train\.batch_rampup\.\w+ is -?\d+; it must be at least 1"):
        build(TrainingConfig, {"global_batch_size": 8, "batch_rampup": values})


def test_edges_of_a_range_count_as_said() -> None:
    closed, opened = Limit(0, 1), Limit(0, 1, above=True, below=True)
    assert [closed.holds(value) for value in (-1e-9, 0, 1, 1 + 1e-9)] == [False, True, True, False]
    assert [opened.holds(value) for value in (0, 1e-9, 1 - 1e-9, 1)] == [False, True, True, False]
    assert Limit(0).holds(MOST) and not Limit(0).holds(MOST + 1)
    assert Limit(0).holds(1e300) and not Limit(0, 1e299).holds(1e300)
    assert TrainingConfig(lr=1e30).lr == 1e30
    # What means "off", "none" or "right away" stays allowed.
    TrainingConfig(lr=0, clip_grad=0, warmup_steps=0, exit_after_minutes=0, early_stop_delta=0, weight_decay=0)


def test_a_smallest_loss_scale_above_the_first_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"min_loss_scale 8 is above train.initial_loss_scale 4; lower it"):
        TrainingConfig(precision="fp16", initial_loss_scale=4, min_loss_scale=8)


def test_divisors_of_large_numbers_are_found_at_once() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12] and divisors(36, 24) == [1, 2, 3, 4, 6, 12] and divisors(1) == [1]
    assert divisors(2**31 - 1) == [1, 2**31 - 1]
