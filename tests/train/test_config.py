"""Configurations read, override and write themselves, and every error names the key and what would work."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from mmdata.errors import OutputError
from mmdata_train.config import ParallelConfig, TrainConfig, TrainingConfig, load_config
from mmdata_train.config_checks import check_run
from mmdata_train.config_io import ALIASES, apply_overrides, build, dump_yaml, load_mapping
from mmdata_train.errors import ConfigError
from mmdata_train.model.config import ModelConfig
from mmdata_train.schedules import SCHEDULES, rank_of_stage, split_layers, stages_of_rank

SHAPE = {"vocab_size": 61, "hidden_size": 32, "num_layers": 8, "num_heads": 4, "vocab_multiple": 16}
MODEL = ModelConfig(**SHAPE)


def test_yaml_of_a_config_reads_back_equal() -> None:
    config = build(
        TrainConfig,
        {
            "model": {**SHAPE, "rope_scaling": {"kind": "llama3", "factor": 8}},
            "parallel": {
                "tensor": 2,
                "pipeline": 2,
                "schedule": "interleaved",
                "virtual_stages": 2,
                "stage_layers": [2, 2, 2, 2],
            },
            "train": {
                "lr": "1e-4",
                "global_batch_size": 8,
                "batch_rampup": {"start": 2, "increment": 2, "samples": 100},
            },
            "output": {"dir": "runs/ä"},
        },
    )
    assert config.train.lr == 1e-4 and config.output.dir == Path("runs/ä")
    assert build(TrainConfig, yaml.safe_load(dump_yaml(config))) == config


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: some/folder\ntrain: {lr: 1.0e-5, steps: 3}\n", encoding="utf-8")
    config = load_config(path, ["train.lr=3e-4", "parallel.zero_stage=3", "train.steps=null"])
    assert (config.train.lr, config.parallel.zero_stage, config.train.steps) == (3e-4, 3, None)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"model": "m", "trian": {}}, "trian is unknown; did you mean train?"),
        ({"model": "m", "train": {"learning_rte": 1}}, "train.learning_rte is unknown"),
        ({"model": "m", "parallel": {"zero_stage": 4}}, "parallel.zero_stage is 4; choose from 0, 1, 2, 3"),
        ({"model": "m", "parallel": {"schedule": "1F1B"}}, "choose from 1f1b"),
        ({"model": "m", "train": {"lr": "fast"}}, "train.lr is 'fast'; it must be a number"),
        ({"model": "m", "train": {"compile": 1}}, "train.compile is 1; it must be true or false"),
        ({"model": "m", "train": {"steps": 2.5}}, "train.steps is 2.5; it must be a whole number"),
        ({"model": "m", "train": {"steps": 2, "epochs": 1}}, "both set"),
        ({"model": {"vocab_size": 5}}, "model.hidden_size is missing"),
        ({"train": {}}, "model is missing"),
        ({"model": "m", "parallel": {"context": 2}}, "use parallel.tensor with sequence_parallel"),
        ({"model": "m", "parallel": {"schedule": "zbv", "pipeline": 2}}, "set virtual_stages: 2"),
        ({"model": "m", "parallel": {"virtual_stages": 2, "pipeline": 2}}, "needs one of the schedules interleaved"),
        ({"model": "m", "parallel": {"sequence_parallel": True}}, "needs parallel.tensor above 1"),
        ({"model": "m", "train": {"min_lr": 1.0}}, "min_lr 1.0 is above train.lr"),
        ({"model": "m", "train": []}, "must hold `key: value` lines"),
        (
            {"model": {**SHAPE, "num_kv_heads": 3}},
            r"num_kv_heads 3 does not divide num_heads 4; use one of \[1, 2, 4\]",
        ),
    ],
)
def test_a_wrong_value_names_its_key_and_what_would_work(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        build(TrainConfig, mapping)


@pytest.mark.parametrize(
    ("where", "key", "meant"),
    [
        ("train", "learning_rate", "lr?"),
        ("train", "batch_size", "global_batch_size (of the whole step"),
        ("train", "gradient_accumulation_steps", "global_batch_size (micro_batch_size x data ranks x accumulation"),
        ("train", "max_steps", "steps?"),
        ("train", "num_train_epochs", "epochs?"),
        ("train", "num-epochs", "epochs?"),
        ("train", "warmup_fraction", "warmup_ratio?"),
        ("train", "max_grad_norm", "clip_grad?"),
        ("train", "max_seq_length", "data.seq_length?"),
        ("data", "max_length", "seq_length?"),
        ("parallel", "tp", "tensor?"),
        ("output", "save_steps", "save_every?"),
        ("", "learning_rate", "train.lr?"),
        ("", "model_name_or_path", "model?"),
        ("", "lora_r", "lora_rank?"),
        ("train", "lerning_rate", "lr?"),
    ],
)
def test_key_of_another_trainer_is_told_by_ours(where: str, key: str, meant: str) -> None:
    mapping: dict[str, Any] = {"model": "m"} | ({where: {key: 1}} if where else {key: 1})
    with pytest.raises(ConfigError) as caught:
        build(TrainConfig, mapping)
    assert f"{key} is unknown; did you mean {meant}" in str(caught.value)


def test_wrong_shape_in_a_configuration_is_wrong_usage() -> None:
    """Exit code 2, as for every other setting."""
    with pytest.raises(ConfigError, match=r"model.num_layers is 1000000000; it must be at least 1 and at most 10,000"):
        build(TrainConfig, {"model": {**SHAPE, "num_layers": 10**9}})


def test_every_key_named_as_ours_is_one() -> None:
    for meant in ALIASES.values():
        kind: Any = TrainConfig
        for name in meant.split(" ")[0].rstrip(":").split("."):
            assert name in get_type_hints(kind), meant
            kind = get_type_hints(kind)[name]


def test_override_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not KEY=VALUE"):
        apply_overrides({}, ["train.lr"])
    with pytest.raises(ConfigError, match="has no keys below it"):
        apply_overrides({"model": "folder"}, ["model.hidden_size=4"])


def check(parallel: dict[str, Any], training: dict[str, Any], world: int, model: ModelConfig = MODEL) -> int:
    return check_run(model, ParallelConfig(**parallel), TrainingConfig(**training), 16, world)


@pytest.mark.parametrize(
    ("parallel", "training", "world", "message"),
    [
        ({"tensor": 3}, {"global_batch_size": 1}, 3, r"does not divide model.num_heads 4.*use one of \[1, 2, 4\]"),
        ({"tensor": 2}, {}, 3, "start 2 or 4 ranks"),
        ({"data": 4}, {}, 2, "set parallel.data to 2 or null"),
        ({}, {"global_batch_size": 6, "micro_batch_size": 4}, 1, "use 4 or 8, or a micro_batch_size of 1, 2, 3, 6"),
        ({"pipeline": 4}, {"global_batch_size": 3}, 4, "numbers that work: 4, 5, 6"),
        (
            {"pipeline": 2, "schedule": "interleaved", "virtual_stages": 2},
            {"global_batch_size": 5},
            2,
            "work: 2, 3, 4, 6",
        ),
        (
            {"pipeline": 2, "schedule": "interleaved", "virtual_stages": 8},
            {"global_batch_size": 4},
            2,
            "at most 8 stages",
        ),
        ({"pipeline": 2, "stage_layers": (3, 4)}, {"global_batch_size": 2}, 2, "2 stages that add up to 8"),
        ({"shard_size": 3}, {"global_batch_size": 4}, 4, r"use one of \[1, 2, 4\]"),
        (
            {"pipeline": 2, "schedule": "zbv", "virtual_stages": 2, "zero_stage": 3},
            {"global_batch_size": 8},
            4,
            "nearest that works: zero_stage 1",
        ),
        (
            {"tensor": 2, "parity_check": False},
            {"compile": True, "global_batch_size": 1},
            2,
            "compile: false, or tensor: 1",
        ),
        (
            {},
            {"global_batch_size": 8, "batch_rampup": {"start": 3, "increment": 2, "samples": 9}},
            1,
            "increment of 1, 5",
        ),
    ],
)
def test_sizes_that_do_not_fit_list_those_that_do(
    parallel: dict[str, Any], training: dict[str, Any], world: int, message: str
) -> None:
    training = build(TrainingConfig, training)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=message):
        check_run(MODEL, ParallelConfig(**parallel), training, 16, world)  # type: ignore[arg-type]


def test_micro_batches_follow_from_the_sizes() -> None:
    assert check({"tensor": 2, "pipeline": 2}, {"global_batch_size": 16, "micro_batch_size": 2}, 8) == 4


def test_every_stage_lies_on_exactly_one_rank() -> None:
    for name, rule in SCHEDULES.items():
        for ranks in (1, 2, 4):
            per_rank = 2 if rule.several else 1
            held = [stages_of_rank(rule, rank, ranks, per_rank) for rank in range(ranks)]
            assert sorted(stage for stages in held for stage in stages) == list(range(ranks * per_rank)), name
            assert all(rank_of_stage(rule, stage, ranks) == rank for rank in range(ranks) for stage in held[rank])


@pytest.mark.parametrize(
    ("layers", "stages", "head", "expected"),
    [
        (8, 1, 5.0, (8,)),
        (8, 4, 0.0, (2, 2, 2, 2)),
        (8, 8, 9.0, (1,) * 8),
        (32, 4, 2.4, (9, 9, 8, 6)),
        (28, 4, 8.0, (9, 9, 9, 1)),
    ],
)
def test_stage_with_the_head_gets_fewer_layers(
    layers: int, stages: int, head: float, expected: tuple[int, ...]
) -> None:
    assert split_layers(layers, stages, head) == expected


def test_a_key_that_stands_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("train:\n  lr: 1e-4\n  steps: 3\n  lr: 1e-3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"(?s)the key 'lr' stands twice.*line 4"):
        load_mapping(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_mapping(tmp_path)


def test_an_output_folder_that_cannot_be_made_is_one_message(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from mmdata_train.run import own_output

    (tmp_path / "file").write_bytes(b"")
    config = build(TrainConfig, {"model": "m", "data": {}, "output": {"dir": str(tmp_path / "file" / "run")}})
    with pytest.raises(OutputError, match="run: cannot be written"), own_output(config):
        pass
