"""What a run begins with is found, compared and refused before data is converted and ranks are started."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

import mmdata  # noqa: E402
from mmdata_train.beginning import settle, start_checkpoint  # noqa: E402
from mmdata_train.check import check_lines  # noqa: E402
from mmdata_train.cli import main  # noqa: E402
from mmdata_train.config import TrainConfig  # noqa: E402
from mmdata_train.config_io import build  # noqa: E402
from mmdata_train.errors import CheckpointError, ConfigError, SamplerStateError  # noqa: E402
from mmdata_train.export.origin import find_checkpoint, read_origin  # noqa: E402
from mmdata_train.generation.sources import find_source  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.run import check_before_ranks, finetune  # noqa: E402
from mmdata_train.trainer import RunSummary  # noqa: E402

MODEL = {"vocab_size": 61, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "vocab_multiple": 16}
LORA = {"lora_rank": 4, "lora_alpha": 8.0, "lora_targets": ["q_proj", "v_proj"]}


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("shards") / "law_text_document"
    generator = np.random.default_rng(0)
    with mmdata.ShardWriter(prefix, vocab_size=61) as writer:
        for _ in range(40):
            writer.add_document(((generator.integers(0, 61) + np.arange(40)) % 60 + 1).tolist())
    return prefix


def mapping_of(shard: Path, out: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "data": {"train": str(shard), "valid": {"law": str(shard)}, "seq_length": 16, "loading": {"workers": 0}},
        "train": {
            "micro_batch_size": 2, "global_batch_size": 4, "steps": 4, "lr": 3e-3, "precision": "fp32",
            "eval_every": 2, "eval_batches": 2,
        },
        "output": {"dir": str(out), "save_every": 2},
        "parallel": {"parity_check": False},
        **changes,
    }  # fmt: skip


def config_of(shard: Path, out: Path, **changes: Any) -> TrainConfig:
    return build(TrainConfig, mapping_of(shard, out, **changes))


def run(config: TrainConfig) -> RunSummary:
    return finetune(config)


@pytest.fixture(scope="module")
def full(shard: Path, one: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps with checkpoints at 2 and 4; the first is called its best."""
    out = tmp_path_factory.mktemp("full")
    one.run(run, config_of(shard, out))
    (out / "checkpoints" / "best").write_text("step_00000002", encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def adapters(shard: Path, one: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lora")
    one.run(run, config_of(shard, out, **LORA))
    return out


MEANT = {"": 4, "checkpoints": 4, "checkpoints/latest": 4, "checkpoints/best": 2, "checkpoints/step_00000002": 2}


@pytest.mark.parametrize("given", MEANT)
def test_every_command_takes_a_run_its_checkpoints_one_of_them_best_and_latest(full: Path, given: str) -> None:
    wanted = full / "checkpoints" / f"step_{MEANT[given]:08d}"
    assert start_checkpoint(full / given) == wanted
    assert find_checkpoint(full / given) == wanted
    assert find_source(full / given).checkpoint == wanted


def test_best_that_names_a_checkpoint_that_is_gone_is_said(tmp_path: Path) -> None:
    (tmp_path / "best").write_text("step_00000007\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match="best names 'step_00000007', which is not a whole checkpoint"):
        start_checkpoint(tmp_path / "best")


def first_loss(out: Path) -> float:
    return float(json.loads((out / "log.jsonl").read_text(encoding="utf-8").split("\n")[0])["loss"])


def test_run_folder_as_start_is_its_newest_checkpoint(shard: Path, full: Path, one: RankPool, tmp_path: Path) -> None:
    for name, start in (("run", full), ("step", full / "checkpoints" / "step_00000004")):
        one.run(run, config_of(shard, tmp_path / name, start_from=str(start)))
    one.run(run, config_of(shard, tmp_path / "best", start_from=str(full / "checkpoints" / "best")))
    assert first_loss(tmp_path / "run") == first_loss(tmp_path / "step") != first_loss(tmp_path / "best")


def ways_in(config: TrainConfig) -> list[Callable[[], object]]:
    """A single process or a rank, the process that starts ranks, and `check`."""
    return [lambda: finetune(config), lambda: check_before_ranks(config, 1), lambda: list(check_lines(config, 1))]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("config.json", "is a Hugging Face folder; use model: "),
        ("adapter_config.json", "is a PEFT adapter; use lora_from: "),
        ("notes.txt", "holds no checkpoint of this engine; give a run's output folder"),
        (None, "does not exist; give a run's output folder"),
    ],
)
def test_start_that_is_no_checkpoint_is_refused_before_data_is_looked_at(
    tmp_path: Path, file: str | None, message: str
) -> None:
    start = tmp_path / "start"
    if file is not None:
        start.mkdir()
        (start / file).write_text("{}", encoding="utf-8")
    config = config_of(tmp_path / "missing.jsonl", tmp_path / "out", start_from=str(start))
    for way in ways_in(config):
        with pytest.raises(ConfigError, match=message):
            way()
    assert not (tmp_path / "out").exists()


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "rank": ({**LORA, "lora_rank": 8}, "holds lora_rank 4, this run has lora_rank 8; set the lora_ fields"),
    "none": ({}, "holds lora_rank 4, this run has no adapters"),
    "model": ({**LORA, "model": {**MODEL, "hidden_size": 64}}, r"is \[4, 32\], this model needs \[4, 64\]; is `model`"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_checkpoint_of_other_adapters_or_model_is_refused_before_data_is_looked_at(
    adapters: Path, kind: str, tmp_path: Path
) -> None:
    changes, message = OTHERS[kind]
    for way in ways_in(config_of(tmp_path / "missing.jsonl", adapters, **changes)):
        with pytest.raises(CheckpointError, match=message):
            way()


@pytest.mark.parametrize("lora", [{}, LORA], ids=["weights", "base"])
def test_start_from_a_model_of_another_size_is_refused(full: Path, lora: dict[str, Any], tmp_path: Path) -> None:
    other = {**lora, "model": {**MODEL, "num_layers": 3}, "start_from": str(full)}
    for way in ways_in(config_of(tmp_path / "missing.jsonl", tmp_path / "out", **other)):
        with pytest.raises(CheckpointError, match=r"layers\.2\..* is missing, this model needs"):
            way()


def test_data_options_other_than_those_of_the_checkpoint_are_refused_by_check(shard: Path, full: Path) -> None:
    mapping = mapping_of(shard, full)
    mapping["data"] |= {"seq_length": 32}
    with pytest.raises(SamplerStateError, match="seq_length, seed, split"):
        list(check_lines(build(TrainConfig, mapping), 1))


def test_check_tells_what_the_run_begins_with_and_exits_with_1_where_it_cannot(
    shard: Path, adapters: Path, full: Path, tmp_path: Path
) -> None:
    lines = list(check_lines(config_of(shard, adapters, **LORA), 1))
    assert f"checkpoint: {adapters}/checkpoints/step_00000004 fits; the run continues it" in lines
    lines = list(check_lines(config_of(shard, tmp_path / "new", start_from=str(full)), 1))
    assert f"checkpoint: {full}/checkpoints/step_00000004 fits; the run starts from its weights" in lines
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(mapping_of(shard, adapters, **LORA)), encoding="utf-8")
    found = CliRunner().invoke(main, ["check", str(file), "--set", "lora_rank=8"])
    assert found.exit_code == 1 and "lora_rank 4, this run has lora_rank 8" in found.stderr


def test_adapters_stay_on_the_checkpoint_they_began_with(
    shard: Path, full: Path, one: RankPool, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(full, base)
    (base / "checkpoints" / "latest").write_text("step_00000002", encoding="utf-8")
    config = config_of(shard, tmp_path / "lora", **LORA, start_from=str(base))
    one.run(run, config)
    # The run it stands on goes on, and has a newer checkpoint when the adapters' run is started again.
    (base / "checkpoints" / "latest").write_text("step_00000004", encoding="utf-8")
    wanted = base / "checkpoints" / "step_00000002"
    assert settle(config).config.start_from == wanted
    origin = read_origin(tmp_path / "lora" / "checkpoints" / "step_00000004")
    assert origin.start_from == str(wanted) and "step_00000002" in str(origin.other_base)
    for other in (full, full / "checkpoints" / "best"):
        with pytest.raises(CheckpointError, match=r"this run began from .*base.*step_00000002; start_from .* means"):
            settle(config_of(shard, tmp_path / "lora", **LORA, start_from=str(other)))
    with pytest.raises(CheckpointError, match=r"step_00000002, on which its adapters stand; set start_from: "):
        settle(config_of(shard, tmp_path / "lora", **LORA))
    base.rename(tmp_path / "moved")
    moved = tmp_path / "moved" / "checkpoints" / "step_00000002"
    assert settle(config_of(shard, tmp_path / "lora", **LORA, start_from=str(moved))).config.start_from == moved
    with pytest.raises(CheckpointError, match=r"step_00000002, which is gone; start_from .* means .*step_00000004"):
        settle(config_of(shard, tmp_path / "lora", **LORA, start_from=str(tmp_path / "moved")))
