"""A layout is compared with one process before it trains: once, on the run's ranks, and refused with the numbers."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rank_start import START  # noqa: E402

from mmdata_train import proof  # noqa: E402
from mmdata_train.check import _parity  # noqa: E402
from mmdata_train.config import ParallelConfig, TrainConfig, TrainingConfig  # noqa: E402
from mmdata_train.config_checks import check_run  # noqa: E402
from mmdata_train.errors import LayoutError, ParityError, RankError  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.mesh import Mesh  # noqa: E402
from mmdata_train.model.config import ModelConfig  # noqa: E402
from mmdata_train.schedules import SCHEDULES  # noqa: E402

QWEN = ModelConfig(
    vocab_size=151_936, hidden_size=4096, num_layers=36, num_heads=32, num_kv_heads=8, head_dim=128,
    intermediate_size=12_288, family="qwen3", qk_norm=True, tie_embeddings=True, sliding_window=4096, dropout=0.1,
)  # fmt: skip


def run_of(parallel: dict[str, Any], model: ModelConfig = QWEN, **training: Any) -> TrainConfig:
    values = {"micro_batch_size": 4, "global_batch_size": 64, **training}
    return TrainConfig(model=model, parallel=ParallelConfig(**parallel), train=TrainingConfig(**values))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MMDATA_CACHE_DIR", str(tmp_path / "cache"))


def test_small_model_keeps_heads_and_switches_and_loses_width_and_words() -> None:
    small = proof.shrunk(run_of({"tensor": 4, "pipeline": 2}), 2)
    model = small.model
    assert isinstance(model, ModelConfig)
    kept = ("num_heads", "num_kv_heads", "family", "qk_norm", "tie_embeddings", "qkv_bias", "norm", "gated")
    assert all(getattr(model, name) == getattr(QWEN, name) for name in kept)
    assert (model.num_layers, model.head_dim, model.hidden_size, model.dropout) == (2, 8, 256, 0.0)
    assert model.padded_vocab_size == model.vocab_size == 256, "151,936 is a multiple of 128: nothing was padded"
    assert model.sliding_window == 8
    padded = dataclasses.replace(QWEN, vocab_size=151_665)
    shrunk = proof.shrunk(run_of({"tensor": 4}, padded), 1).model
    assert isinstance(shrunk, ModelConfig) and shrunk.padded_vocab_size - shrunk.vocab_size == 3


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_small_run_fits_every_schedule_and_data_degree(schedule: str) -> None:
    rule = SCHEDULES[schedule]  # type: ignore[index]
    for virtual in (2, 3) if rule.several and not rule.folded else (1 + rule.folded,):
        for data in (1, 3):
            config = run_of({"tensor": 8, "pipeline": 4, "schedule": schedule, "virtual_stages": virtual})
            small = proof.shrunk(config, data)
            assert isinstance(small.model, ModelConfig)
            assert small.model.num_layers == 4 * virtual
            check_run(small.model, small.parallel, small.train, small.data.seq_length, 32 * data)


def test_uneven_stages_keep_one_layer_each_and_empty_ones_stay_empty() -> None:
    small = proof.shrunk(run_of({"pipeline": 4, "stage_layers": [0, 13, 12, 11]}), 1)
    assert small.parallel.stage_layers == (0, 1, 1, 1)
    assert isinstance(small.model, ModelConfig) and small.model.num_layers == 3


def test_a_proof_is_of_one_torch_layout_and_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    def facts(config: TrainConfig, world_size: int = 4) -> dict[str, Any]:
        return proof.facts_of(config, world_size, "cpu")

    config = run_of({"tensor": 2})
    assert facts(config) == facts(run_of({"tensor": 2, "timeout_minutes": 3.0}, lr=1.0))
    others = [
        run_of({"tensor": 4}),
        run_of({"tensor": 2, "zero_stage": 3}),
        run_of({"tensor": 2, "overlap": False}),
        run_of({"tensor": 2}, activation_checkpointing="full"),
        run_of({"tensor": 2}, compile=True),
        run_of({"tensor": 2}, dataclasses.replace(QWEN, qkv_bias=True)),
    ]
    assert all(facts(other) != facts(config) for other in others)
    assert facts(config, 8) != facts(config)
    before = facts(config)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert facts(config) != before


def small_config(**parallel: Any) -> TrainConfig:
    model = ModelConfig(vocab_size=61, hidden_size=32, num_layers=8, num_heads=4, num_kv_heads=2, vocab_multiple=16)
    return run_of(parallel, model, micro_batch_size=1, activation_checkpointing="selective")


def test_check_starts_ranks_compares_and_remembers() -> None:
    config = small_config(pipeline=2, schedule="interleaved", virtual_stages=2)
    first = list(_parity(config, 2))
    assert first[0].startswith("parity: starting 2 ranks") and "equals one process within" in first[1]
    again = list(_parity(config, 2))
    assert len(again) == 1 and "found before" in again[0]


def test_what_cannot_be_compared_here_is_said() -> None:
    assert "nothing to compare" in next(_parity(small_config(), 1))
    assert "more than the 8" in next(_parity(small_config(data=16, zero_stage=3), 16))
    assert "left out" in next(_parity(small_config(tensor=2, parity_check=False), 2))


def compare(config: TrainConfig, cache: str, spoil: float = 1.0) -> tuple[list[str], bool]:
    """What finetune does before it trains; `spoil` multiplies rank 0's reference. Returns log lines, whether known."""
    import os

    os.environ["MMDATA_CACHE_DIR"] = cache
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    proof.logger.addHandler(handler)
    proof.logger.setLevel(logging.INFO)
    try:
        reference = proof.reference_if_needed(config)
        if reference is not None:
            reference = [(loss, norm * spoil) for loss, norm in reference]
        proof.prove(config, Mesh.make(config.parallel, torch.device("cpu")), reference)
    finally:
        proof.logger.removeHandler(handler)
        proof.logger.setLevel(logging.WARNING)
    return lines, proof.known(proof.facts_of(config, 2, "cpu")) is not None


def test_ranks_of_a_run_compare_once_with_their_adapters(two: RankPool, tmp_path: Path) -> None:
    plain = small_config(tensor=2)
    config = dataclasses.replace(plain, lora_rank=4, lora_dropout=0.1)
    facts = proof.facts_of(config, 2, "cpu")
    assert facts["small"]["lora_rank"] == 4 and facts["small"]["lora_dropout"] == 0.0
    assert proof.facts_of(plain, 2, "cpu") != facts
    first = two.run(compare, config, str(tmp_path))
    assert first[0][1], "rank 0 keeps it"
    assert "comparing it with one process" in first[0][0][0] and "within" in first[0][0][1]
    assert two.run(compare, config, str(tmp_path)) == [([], True)] * 2


def test_layout_that_differs_is_refused_with_the_numbers_and_not_remembered(tmp_path: Path) -> None:
    config = small_config(data=2, zero_stage=2)
    with RankPool(2, deadline_s=150, method=START) as pool, pytest.raises(RankError) as caught:
        pool.run(compare, config, str(tmp_path), 2.0)
    message = str(caught.value)
    assert "ParityError" in message and "relative difference 5.0e-01, limit 1e-05" in message
    assert "in step 0 of a small model" in message and "--no-parity" in message
    assert not (tmp_path / "parity").exists()


def test_remedy_names_what_is_most_likely_wrong() -> None:
    def message(config: TrainConfig) -> str:
        facts = proof.facts_of(config, 4, "cpu")
        with pytest.raises(ParityError) as caught:
            proof.judged(proof.Proof(0.5, [(1.0, 3.0)], [(1.0, 2.0)], facts))
        return str(caught.value)

    assert "Set train.compile: false" in message(
        dataclasses.replace(small_config(tensor=2), train=TrainingConfig(compile=True))
    )
    assert "Set parallel.schedule: interleaved" in message(small_config(pipeline=2, schedule="zbv", virtual_stages=2))
    assert "zero_stage 1" in message(small_config(data=4))


def test_compiled_tensor_layers_need_the_comparison() -> None:
    model = small_config().model
    assert isinstance(model, ModelConfig)
    training = TrainingConfig(compile=True, global_batch_size=4)
    check_run(model, ParallelConfig(tensor=2), training, 16, 2)
    with pytest.raises(LayoutError, match="need the parity check"):
        check_run(model, ParallelConfig(tensor=2, parity_check=False), training, 16, 2)


def test_former_proof_spares_the_comparison_and_its_absence_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled tensor-parallel layers as a case: what proves them on one torch does not on another."""
    config = dataclasses.replace(small_config(tensor=2), train=TrainingConfig(compile=True, global_batch_size=4))
    asked: list[bool] = []
    monkeypatch.setattr(
        proof, "reference_curve", lambda small, device: asked.append(small.train.compile) or [(1.0, 1.0)]
    )
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert proof.reference_if_needed(config) == [(1.0, 1.0)] and asked == [True]
    facts = proof.facts_of(config, 2, "cpu")
    proof.remember(proof.Proof(1e-7, [(1.0, 1.0)], [(1.0, 1.0)], facts))
    assert proof.known(facts) == 1e-7 and proof.reference_if_needed(config) is None
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert proof.reference_if_needed(config) == [(1.0, 1.0)]
    monkeypatch.setenv("RANK", "1")
    assert proof.reference_if_needed(config) is None, "only rank 0 trains the reference"


def test_a_proof_that_cannot_be_kept_is_told_and_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    facts = proof.facts_of(small_config(tensor=2), 2, "cpu")
    proof._place(facts).mkdir(parents=True)
    proof.remember(proof.Proof(1e-7, [], [], facts))
    assert "the proof of this layout cannot be kept in" in caplog.text and proof.known(facts) is None


def test_torn_or_foreign_proof_counts_as_none(tmp_path: Path) -> None:
    facts = proof.facts_of(small_config(tensor=2), 2, "cpu")
    proof.remember(proof.Proof(1e-7, [], [], facts))
    (file,) = (tmp_path / "cache" / "parity").iterdir()
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole[:-20], encoding="utf-8")
    assert proof.known(facts) is None
    file.write_text(whole.replace('"world_size": 2', '"world_size": 4'), encoding="utf-8")
    assert proof.known(facts) is None


def refused_by_the_compiler(config: TrainConfig, cache: str) -> str:
    """Compiled layers that cannot run: what torch raises comes out as a refusal with the remedy."""
    import os

    os.environ["MMDATA_CACHE_DIR"] = cache

    def broken(small: TrainConfig, mesh: Any) -> Any:
        raise AttributeError("'Tensor' object has no attribute '_local_tensor'")

    former, proof.curve_of = proof.curve_of, broken
    try:
        proof.prove(config, Mesh.make(config.parallel, torch.device("cpu")), [(1.0, 1.0)])
    except ParityError as error:
        return str(error)
    finally:
        proof.curve_of = former
    return "passed"


def test_compiled_layers_that_cannot_run_are_refused_with_the_remedy(two: RankPool, tmp_path: Path) -> None:
    config = dataclasses.replace(small_config(tensor=2), train=TrainingConfig(compile=True, global_batch_size=4))
    for message in two.run(refused_by_the_compiler, config, str(tmp_path)):
        assert "compiled layers cannot run in this layout" in message and "_local_tensor" in message
        assert message.endswith("set train.compile: false")
