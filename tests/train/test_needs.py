"""What cannot work, or has no effect, is said before anything is allocated or trained."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mmdata  # noqa: E402
from mmdata_train import host_memory  # noqa: E402
from mmdata_train.check import check_lines  # noqa: E402
from mmdata_train.config import TrainConfig  # noqa: E402
from mmdata_train.config_io import apply_overrides, build  # noqa: E402
from mmdata_train.course import notices  # noqa: E402
from mmdata_train.data.open import samples_for_epochs  # noqa: E402
from mmdata_train.errors import ConfigError  # noqa: E402
from mmdata_train.host_memory import check_index, host_bytes, in_words  # noqa: E402
from mmdata_train.lora.settings import LoraConfig, check_rank  # noqa: E402
from mmdata_train.model.config import ModelConfig  # noqa: E402
from mmdata_train.needs import Machine, check_needs, device_parts, row_bytes  # noqa: E402
from mmdata_train.run import check_before_ranks  # noqa: E402

MODEL = ModelConfig(
    vocab_size=61, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=1, vocab_multiple=16, max_positions=64
)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("shards") / "law_text_document"
    with mmdata.ShardWriter(path, vocab_size=61) as writer:
        for start in range(40):
            writer.add_document(((start + np.arange(30)) % 60).tolist())
    return str(path)


def config_of(shard: str, out: Path = Path("unused"), **changes: Any) -> TrainConfig:
    mapping: dict[str, Any] = {
        "model": MODEL,
        "data": {"train": [shard], "seq_length": 16, "loading": {"workers": 0}},
        "train": {"global_batch_size": 8, "micro_batch_size": 2, "steps": 6, "precision": "fp32"},
        "parallel": {"parity_check": False},
        "output": {"dir": str(out)},
    }
    return build(TrainConfig, apply_overrides(mapping, [f"{key}={value}" for key, value in changes.items()]))


def test_least_bytes_are_those_of_what_must_be_held(shard: str) -> None:
    plain, reset = config_of(shard), config_of(shard, **{"data.reset_attention": "true"})
    assert row_bytes(plain, 2) == 4 * 16 * 45 and row_bytes(reset, 2) == 4 * 16 * 53
    parameters = 2 * MODEL.layer_parameters + 2 * 64 * 32
    parts = device_parts(reset, MODEL, 2)
    assert parts == {
        "inputs of the layers": 2 * 16 * 32 * 4 * 2,
        "attention mask, length x length": 16 * 16 * (8 + 2),
        "weights, gradients and moments": 4 * parameters + 4 * parameters + 4 * parameters,
    }
    assert "attention mask, length x length" not in device_parts(plain, MODEL, 2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data.reset_attention": "true"}, "length x length 8.882e?.* PiB.*|lower data.seq_length or train.micro"),
        ({}, r"data.seq_length 100,000,000: a rank on the host needs at least .* GiB .*rows of a step 33.53 GiB"),
        ({"train.micro_batch_size": 8}, r"inputs of the layers 190.7 GiB.*there is 16 GiB; lower data.seq_length or"),
    ],
)
def test_sizes_beyond_the_memory_are_refused_with_their_bytes(shard: str, changes: dict[str, Any], says: str) -> None:
    config = config_of(shard, **({"data.seq_length": 10**8} | changes))
    with pytest.raises(ConfigError, match=says):
        check_needs(config, MODEL, 1, Machine(host=16 * 2**30, device=None))


def test_what_fits_is_let_through_and_an_accelerator_has_its_own_limit(shard: str) -> None:
    config = config_of(shard, **{"data.seq_length": 2**20})
    check_needs(config_of(shard), MODEL, 4, Machine.here(4))
    check_needs(config, MODEL, 1, Machine(host=16 * 2**30, device=16 * 2**30))
    with pytest.raises(ConfigError, match=r"a rank on its device needs at least 512\..* MiB .*there is 256 MiB"):
        check_needs(config, MODEL, 1, Machine(host=16 * 2**30, device=2**28))
    with pytest.raises(ConfigError, match="4 ranks of this machine on the host needs at least"):
        check_needs(config, MODEL, 4, Machine(host=2**30, device=None, ranks=4))
    large = replace(MODEL, hidden_size=2**20, head_dim=2**18, intermediate_size=2**22)
    with pytest.raises(ConfigError, match=r"use a smaller model, a higher parallel\.tensor"):
        check_needs(config, large, 1, Machine.elsewhere())


def test_a_length_no_machine_can_hold_is_refused_before_data_is_looked_at(shard: str, tmp_path: Path) -> None:
    changes = {"data.seq_length": 10**8, "data.reset_attention": "true"}
    config = config_of("no_such_shard", tmp_path / "out", **changes)
    for start in (lambda: check_before_ranks(config, 1), lambda: list(check_lines(config, 1))):
        with pytest.raises(ConfigError, match=r"data.seq_length 100,000,000: .* needs at least"):
            start()
    assert not (tmp_path / "out").exists()


def test_samples_beyond_an_index_are_told_as_such(shard: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = config_of(shard)
    assert samples_for_epochs(config.data, 1.5, None) == math.ceil(1.5 * samples_for_epochs(config.data, 1, None))
    with pytest.raises(ConfigError, match=r"train.epochs 1e\+300 means .* an index holds at most 9,223,372,036,854"):
        samples_for_epochs(config.data, 1e300, None)
    monkeypatch.setattr(host_memory, "host_bytes", lambda: 2**34)
    with pytest.raises(ConfigError, match=r"train.epochs 1e\+12 means .* has 16 GiB .* 1,717,986,918 samples"):
        samples_for_epochs(config.data, 1e12, None)
    for changes in ({"train.steps": 10**12}, {"train.steps": "null", "train.epochs": "1e12"}):
        with pytest.raises(ConfigError, match="whose index takes at least"):
            list(check_lines(config_of(shard, tmp_path, **changes), 1))


def test_memory_is_told_in_words() -> None:
    assert [in_words(size) for size in (0, 1023, 1024, 3 * 2**29, 10**20)] == [
        "0 bytes", "1,023 bytes", "1 KiB", "1.5 GiB", "8.882e+04 PiB",
    ]  # fmt: skip
    found = host_bytes()
    assert found is None or found > 2**27
    assert check_index(7.2, "x") == 8


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"output.best_by": "law"},
            "output.best_by is 'law', which is no validation set; there is none; name one",
        ),
        ({"output.best_by": "law", "data.split": '"9,1,0"'}, "which is no validation set; choose from valid"),
        ({"output.best_by": "x", "data.valid": "{law: a, general: b}"}, "choose from law, general"),
        ({"train.early_stop_after": 2, "train.eval_every": 2}, "early_stop_after is 2, but there is no validation set"),
    ],
)
def test_what_needs_a_validation_set_is_refused_without_it(shard: str, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config_of(shard, **changes)


def test_what_has_a_validation_set_is_not_refused(shard: str) -> None:
    config = config_of(shard, **{"output.best_by": "valid", "data.split": '"9,1,0"', "train.early_stop_after": 1,
                                 "train.eval_every": 1})  # fmt: skip
    assert (config.output.best_by, config.train.early_stop_after) == ("valid", 1)
    assert config_of(shard, **{"output.best_by": "law", "data.valid": "{law: a}"}).output.best_by == "law"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train.warmup_steps": 6}, "warm-up takes 6 of 6 steps: the rate reaches 1e-05 at the last step"),
        ({"train.warmup_steps": 12}, "warm-up takes 12 of 6 steps: the rate reaches 5e-06 at the last step"),
        ({"data.seq_length": 65}, "data.seq_length 65 is beyond the 64 positions the model was made for"),
        ({"train.eval_every": 2}, "train.eval_every has no effect: there is no validation set"),
        ({"lora_rank": 16}, r"lora_rank 16 is beyond the smaller dimension of k_proj \(8\), v_proj \(8\): there"),
    ],
)
def test_settings_without_effect_are_told(shard: str, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    config = config_of(shard, tmp_path, **changes)
    assert [text for text in notices(config, MODEL, 6) if re.search(says, text)]
    told = [line for line in check_lines(config, 1) if line.startswith("notice: ")]
    assert len(told) == 1
    assert not list(notices(config_of(shard), MODEL, 6))


def test_a_rank_beyond_every_layer_is_refused_before_it_is_allocated(shard: str, tmp_path: Path) -> None:
    assert not list(check_rank(LoraConfig(rank=8), MODEL))
    with pytest.raises(ConfigError, match="100,000, beyond the dimensions of every adapted layer; at most 32"):
        list(check_lines(config_of(shard, tmp_path, lora_rank=100000), 1))
    with pytest.raises(ConfigError, match="at most 8 has an effect"):
        list(check_rank(LoraConfig(rank=9, targets=("k_proj",)), MODEL))
