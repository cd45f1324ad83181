"""The loop: resume equals going straight on, stops are shared, what stands out is said."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mmdata_train.batch import Batch  # noqa: E402
from mmdata_train.checkpoint import Checkpointer  # noqa: E402
from mmdata_train.config import BatchRampup, OutputConfig, ParallelConfig, TrainConfig, TrainingConfig  # noqa: E402
from mmdata_train.errors import ConfigError, RankError  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.metrics import Meter, RunLog, flops_per_token  # noqa: E402
from mmdata_train.model.config import ModelConfig  # noqa: E402
from mmdata_train.run_folder import latest_checkpoint, read_state  # noqa: E402
from mmdata_train.session import open_engine  # noqa: E402
from mmdata_train.trainer import RunSummary, Trainer, ValidationSet, global_rows_at  # noqa: E402
from mmdata_train.watch import STOP_FILE, BestWatch, SpikeWatch, StopWatch  # noqa: E402

LENGTH = 16
MODEL = ModelConfig(
    vocab_size=61, hidden_size=32, num_layers=4, num_heads=4, num_kv_heads=2, vocab_multiple=16, init_std=0.1,
    tie_embeddings=True, dropout=0.1, attention_dropout=0.1,
)  # fmt: skip


class Rows:
    """Global sample i is drawn from i alone, so any data rank finds its rows by arithmetic."""

    def __init__(self, data_rank: int, data_ranks: int, position: int = 0) -> None:
        self.data_rank, self.data_ranks, self.position = data_rank, data_ranks, position

    def next_batch(self, global_rows: int) -> Batch:
        share = global_rows // self.data_ranks
        first = self.position + self.data_rank * share
        self.position += global_rows
        rows = []
        for index in range(first, first + share):
            start = torch.randint(0, 61, (1,), generator=torch.Generator().manual_seed(index))
            rows.append((start + torch.arange(LENGTH + 1) * (1 + index % 3)) % 61)
        stream = torch.stack(rows)
        batch = Batch.causal(stream[:, :-1].contiguous(), stream[:, 1:].contiguous())
        return replace(batch, sources=torch.arange(first, first + share) % 2)

    def state(self) -> dict[str, Any]:
        return {"position": self.position}

    def describe(self) -> list[str]:
        return [f"rank{self.data_rank}.jsonl:{self.position}"]


def make_trainer(folder: Path, config: TrainConfig, total: int, **options: Any) -> Trainer:
    """A trainer that continues from `folder` when there is a checkpoint in it."""
    engine = open_engine(config, seq_length=LENGTH, total_steps=total)
    mesh = engine.model.mesh
    checkpointer = Checkpointer(folder / "checkpoints", keep=config.output.keep)
    found = latest_checkpoint(folder / "checkpoints")
    state = checkpointer.load(engine, found) if found else None
    stream = Rows(mesh.data_rank, mesh.layout.data, state["data"]["position"] if state else 0)
    log = RunLog(folder, total, enabled=mesh.speaks_for_data and mesh.data_rank == 0)
    meter = Meter(engine.model.config, LENGTH, 1, mesh.device)
    trainer = Trainer(engine, stream, checkpointer, log, meter, config.output, sources=("even", "odd"), **options)
    if state:
        trainer.resume(state)
    return trainer


def run_config(parallel: dict[str, Any], **training: Any) -> TrainConfig:
    values = {"micro_batch_size": 1, "global_batch_size": 8, "lr": 3e-3, "precision": "fp32", "warmup_steps": 2}
    return TrainConfig(model=MODEL, parallel=ParallelConfig(**parallel), train=TrainingConfig(**{**values, **training}))


def run(folder: Path, config: TrainConfig, total: int, until: int | None = None) -> RunSummary:
    """Train to `total`, or stop after step `until` as a signal would make it."""
    trainer = make_trainer(folder, config, total)
    if until is not None:
        signal_at(trainer, until)
    return trainer.run()


def signal_at(trainer: Trainer, step: int) -> None:
    """Send this process SIGTERM while its batch of that step is made; on data rank 0 only."""
    inner = trainer.stream.next_batch

    def next_batch(rows: int) -> Batch:
        if trainer.step == step - 1 and trainer.engine.model.mesh.data_rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(rows)

    trainer.stream.next_batch = next_batch  # type: ignore[method-assign]


def log_of(folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    return [record for line in lines if (record := json.loads(line))["kind"] == kind]


def curve(folder: Path) -> list[tuple[float, float, float]]:
    return [(record["loss"], record["grad_norm"], record["lr"]) for record in log_of(folder)]


@pytest.mark.parametrize("parallel", [{"pipeline": 2, "zero_stage": 2}, {"tensor": 2, "pipeline": 2}], ids=str)
def test_stop_and_resume_equal_going_straight_on_bit_for_bit(
    parallel: dict[str, Any], ranks: RankPool, tmp_path: Path
) -> None:
    """With dropout on: its masks are a function of the step, so they come back too."""
    config = run_config(parallel, batch_rampup=BatchRampup(start=4, increment=4, samples=12))
    straight = ranks.run(run, tmp_path / "straight", config, 6)[0]
    first = ranks.run(run, tmp_path / "stopped", config, 6, 3)
    assert {summary.steps for summary in first} == {3} and "SIGTERM" in str(first[0].stopped_by)
    second = ranks.run(run, tmp_path / "stopped", config, 6)[0]
    assert (second.steps, second.loss, second.stopped_by) == (6, straight.loss, None)
    assert curve(tmp_path / "stopped") == curve(tmp_path / "straight")
    assert [record["tokens"] for record in log_of(tmp_path / "straight")] == [64, 64, 64, 128, 128, 128]


def test_run_under_another_layout_continues_the_same_curve(ranks: RankPool, one: RankPool, tmp_path: Path) -> None:
    smooth = replace(run_config({}), model=replace(MODEL, dropout=0.0, attention_dropout=0.0))
    split = replace(smooth, parallel=ParallelConfig(pipeline=2, zero_stage=3))
    one.run(run, tmp_path / "straight", smooth, 6)
    ranks.run(run, tmp_path / "moved", split, 6, 3)
    one.run(run, tmp_path / "moved", smooth, 6)
    straight, moved = curve(tmp_path / "straight"), curve(tmp_path / "moved")
    assert len(moved) == 6
    for ours, theirs in zip(moved, straight, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


def run_with_validation(folder: Path, best_by: str | None, early_stop: int | None) -> RunSummary:
    config = run_config({}, eval_every=2, early_stop_after=early_stop, lr=0.0 if early_stop else 3e-3)
    config = replace(config, output=OutputConfig(best_by=best_by, keep=1))
    sets = [ValidationSet(name, lambda: [Rows(0, 1, 500).next_batch(8)]) for name in ("law", "general")]
    return make_trainer(folder, config, 8, validation=sets).run()


def test_validation_comes_before_the_first_update_and_best_is_kept(one: RankPool, tmp_path: Path) -> None:
    summary = one.run(run_with_validation, tmp_path, "general", None)[0]
    measured = log_of(tmp_path, "valid/general")
    assert [record["step"] for record in measured] == [0, 2, 4, 6, 8]
    assert measured[0]["perplexity"] == pytest.approx(math.exp(measured[0]["loss"]))
    assert summary.best == min(record["loss"] for record in measured) < measured[0]["loss"]
    assert (tmp_path / "checkpoints" / "best").read_text(encoding="utf-8") == "step_00000008"
    by_source = {name: log_of(tmp_path, f"source/{name}") for name in ("even", "odd")}
    for record, even, odd in zip(log_of(tmp_path), *by_source.values(), strict=True):
        assert even["counted_tokens"] + odd["counted_tokens"] == record["counted_tokens"]
        parts = even["loss"] * even["counted_tokens"] + odd["loss"] * odd["counted_tokens"]
        assert parts / record["counted_tokens"] == pytest.approx(record["loss"], rel=1e-5)


def test_training_stops_early_when_nothing_gets_better(one: RankPool, tmp_path: Path) -> None:
    summary = one.run(run_with_validation, tmp_path, None, 2)[0]
    assert (summary.steps, summary.stopped_by) == (4, "no better validation loss in 2 evaluations")


def test_better_by_less_than_the_delta_does_not_put_off_the_stop() -> None:
    watch = BestWatch(delta=0.1)
    assert [watch.note(loss) for loss in (3.0, 2.95, 2.92, 2.85)] == [True, True, True, True]
    assert (watch.best, watch.since, watch.mark) == (2.85, 0, 2.85)
    assert (watch.note(2.8), watch.since, watch.best) == (True, 1, 2.8)
    other = BestWatch(delta=0.1)
    other.load(json.loads(json.dumps(watch.state())))
    assert other == watch
    fresh = BestWatch()
    fresh.load(json.loads(json.dumps(BestWatch().state())))
    assert fresh == BestWatch()


def test_unknown_deciding_set_is_an_error_that_lists_the_sets(one: RankPool, tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"output\.best_by is 'medicine'; validation sets: law, general"):
        one.run(run_with_validation, tmp_path, "medicine", None)


def run_loaded(folder: Path, allow: bool) -> RunSummary:
    return make_trainer(folder, run_config({}, allow_random=allow), 1, loaded=True).run()


def test_loaded_model_that_knows_nothing_stops_before_the_first_update(one: RankPool, tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"no better than guessing \(ln\(vocabulary\) = 4.111\)"):
        one.run(run_loaded, tmp_path / "a", False)
    assert one.run(run_loaded, tmp_path / "b", True)[0].steps == 1


def run_with_a_bad_step(folder: Path) -> list[str]:
    trainer = make_trainer(folder, run_config({"data": 4}), 4)
    inner = trainer.engine.train_step

    def train_step(batch: Batch, step: int, *, stop: bool = False) -> Any:
        mesh = trainer.engine.model.mesh
        weight = dict(trainer.engine.model.named_parameters())["layers.2.mlp.up_proj.weight"]
        if step == 1 and mesh.data_rank == 3:  # one rank's gradient alone is not finite
            handle = weight.register_post_accumulate_grad_hook(lambda w: w.grad.to_local().fill_(float("inf")))
            try:
                return inner(batch, step, stop=stop)
            finally:
                handle.remove()
        return inner(batch, step, stop=stop)

    trainer.engine = replace_step(trainer.engine, train_step)
    trainer.run()
    return []


def replace_step(engine: Any, train_step: Any) -> Any:
    class Wrapped:
        def __getattr__(self, name: str) -> Any:
            return train_step if name == "train_step" else getattr(engine, name)

    return Wrapped()


def test_non_finite_gradient_on_one_rank_skips_the_step_everywhere_and_is_named(
    ranks: RankPool, tmp_path: Path
) -> None:
    ranks.run(run_with_a_bad_step, tmp_path)
    records = log_of(tmp_path)
    assert [record["skipped"] for record in records] == [False, True, False, False]
    assert records[1]["non_finite"] == "layers.2.mlp.up_proj.weight"
    events = [record["text"] for record in log_of(tmp_path, "event")]
    assert any("stands out; documents: rank0.jsonl:16, rank1.jsonl:16" in text for text in events)


def test_batch_ramp_up_gives_each_size_an_equal_share() -> None:
    training = TrainingConfig(global_batch_size=16, batch_rampup=BatchRampup(start=4, increment=4, samples=120))
    sizes, consumed = [], 0
    while consumed < 168:
        sizes.append(global_rows_at(training, consumed))
        consumed += sizes[-1]
    assert sizes == [4] * 10 + [8] * 5 + [12] * 4 + [16] * 3


def test_file_in_the_output_folder_stops_after_the_step_and_one_from_before_does_not(tmp_path: Path) -> None:
    file = tmp_path / STOP_FILE
    file.touch()
    with StopWatch(file=file) as watch:
        assert not watch.wants_to_stop() and not file.exists()
        file.touch()
        assert watch.wants_to_stop() and str(watch.reason).endswith("stop was made")
        assert not file.exists() and watch.wants_to_stop()


def test_weights_and_biases_gets_the_numbers_and_one_run_for_all_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the package, which needs an account or a server."""
    calls: list[tuple[str, Any]] = []

    class Run:
        def log(self, values: dict[str, float], step: int) -> None:
            calls.append(("log", (values, step)))

        def finish(self) -> None:
            calls.append(("finish", None))

    module = ModuleType("wandb")
    module.init = lambda **options: calls.append(("init", options)) or Run()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    for _ in range(2):
        log = RunLog(tmp_path / "law", 10, enabled=True, wandb="fine-tuning", facts={"seed": 1})
        log.evaluation(3, {"law": {"loss": 2.0, "perplexity": 7.4}})
        log.event(3, "saving")
        log.close()
    first, second = (options for kind, options in calls if kind == "init")
    assert first == second and first["id"] == (tmp_path / "law" / "wandb.id").read_text(encoding="utf-8")
    assert (first["project"], first["name"], first["config"], first["resume"]) == (
        "fine-tuning",
        "law",
        {"seed": 1},
        "allow",
    )
    assert calls[1] == ("log", ({"valid/law/loss": 2.0, "valid/law/perplexity": 7.4}, 3))
    assert [kind for kind, _ in calls] == ["init", "log", "finish"] * 2


def test_absent_weights_and_biases_is_named_and_ranks_that_do_not_write_need_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        RunLog(tmp_path, 10, enabled=True, wandb="fine-tuning")
    RunLog(tmp_path, 10, enabled=False, wandb="fine-tuning").close()


def test_operations_of_a_known_model_are_counted_by_the_formula() -> None:
    llama_7b = ModelConfig(
        vocab_size=32000, hidden_size=4096, num_layers=32, num_heads=32, intermediate_size=11008, vocab_multiple=1
    )
    # 6 x (6.738 B weights - 131 M embedding) + 12 x 32 x 4096 x 2048; norms (0.27 M) left out
    assert flops_per_token(llama_7b, 2048) == pytest.approx(6 * 6.607e9 + 3.221e9, rel=1e-3)
    assert flops_per_token(llama_7b, 2048, frozen=True) == pytest.approx(4 * 6.607e9 + 3.221e9, rel=1e-3)


def test_spike_stands_out_of_noise_and_noise_does_not() -> None:
    watch, generator = SpikeWatch(), torch.Generator().manual_seed(0)
    noise = 2.0 + 0.05 * torch.randn(300, generator=generator)
    assert not any(watch.is_spike(float(loss)) for loss in noise)
    assert watch.is_spike(3.0) and watch.is_spike(math.nan)
    assert not watch.is_spike(2.02)


def test_best_watch_counts_evaluations_since_the_best() -> None:
    watch = BestWatch()
    assert [watch.note(loss) for loss in (3.0, 2.0, 2.5, 2.0)] == [True, True, False, False]
    assert (watch.best, watch.since) == (2.0, 2)


def test_checkpoint_state_names_step_and_consumed_samples(one: RankPool, tmp_path: Path) -> None:
    one.run(run, tmp_path, run_config({}), 2)
    found = latest_checkpoint(tmp_path / "checkpoints")
    assert found is not None
    state = read_state(found)
    assert (state["step"], state["consumed"], state["data"]) == (2, 16, {"position": 16})


logging.getLogger("mmdata_train").setLevel(logging.WARNING)
