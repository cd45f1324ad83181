"""A whole run from a configuration: shards in, the same curve from any layout, continued where it stopped."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

import mmdata  # noqa: E402
from mmdata_train.check import check_lines  # noqa: E402
from mmdata_train.cli import main  # noqa: E402
from mmdata_train.config import TrainConfig, TrainingConfig  # noqa: E402
from mmdata_train.config_io import apply_overrides, build, dump_yaml  # noqa: E402
from mmdata_train.counting import Done, count_steps, samples_of_steps  # noqa: E402
from mmdata_train.course import course_lines, course_of_rate  # noqa: E402
from mmdata_train.errors import ConfigError, LayoutError  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.mesh import pick_device  # noqa: E402
from mmdata_train.ranks import start_ranks  # noqa: E402
from mmdata_train.run import check_before_ranks, finetune, open_data  # noqa: E402
from mmdata_train.run_folder import latest_checkpoint, read_state  # noqa: E402
from mmdata_train.trainer import RunSummary, global_rows_at  # noqa: E402


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small shards of documents that count upwards, so there is something to learn."""
    folder = tmp_path_factory.mktemp("shards")
    generator = np.random.default_rng(0)
    for name, stride in (("law", 1), ("general", 2)):
        with mmdata.ShardWriter(folder / f"{name}_text_document", vocab_size=61) as writer:
            for _ in range(40):
                start, length = generator.integers(0, 61), generator.integers(5, 60)
                writer.add_document(((start + stride * np.arange(length)) % 60 + 1).tolist())
    return folder


def config_of(shards: Path, out: Path, **changes: Any) -> TrainConfig:
    mapping: dict[str, Any] = {
        "model": {"vocab_size": 61, "hidden_size": 32, "num_layers": 4, "num_heads": 4, "vocab_multiple": 16},
        "data": {
            "train": [
                {"path": str(shards / "law_text_document"), "weight": 0.7},
                {"path": str(shards / "general_text_document"), "weight": 0.3},
            ],
            "valid": {"law": str(shards / "law_text_document")},
            "seq_length": 16,
            "reset_attention": True,
            "loading": {"workers": 0},
        },
        "train": {
            "micro_batch_size": 2, "global_batch_size": 8, "steps": 6, "lr": 3e-3, "precision": "fp32",
            "eval_every": 3, "eval_batches": 2,
        },
        "output": {"dir": str(out), "save_every": 3},
        "parallel": {"parity_check": False},
    }  # fmt: skip
    return build(
        TrainConfig, apply_overrides(mapping, [f"{key}={json.dumps(value)}" for key, value in changes.items()])
    )


def run(config: TrainConfig) -> RunSummary:
    return finetune(config)


def log_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    return [json.loads(line) for line in lines]


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in log_of(folder) if record["kind"].startswith(("train", "valid"))]


@pytest.fixture(scope="module")
def stopped(shards: Path, one: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 steps of 8 samples."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    one.run(run, config_of(shards, folder, **{"train.eval_every": None}))
    return folder


def test_run_of_four_ranks_gives_the_curve_of_one(shards: Path, one: RankPool, ranks: RankPool, tmp_path: Path) -> None:
    summary = one.run(run, config_of(shards, tmp_path / "one"))[0]
    split = {"parallel.tensor": 2, "parallel.pipeline": 2}
    assert ranks.run(run, config_of(shards, tmp_path / "four", **split))[3].loss == pytest.approx(
        summary.loss, rel=1e-5
    )
    assert losses(tmp_path / "four") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    kinds = [(record["kind"], record["step"]) for record in log_of(tmp_path / "one") if record["kind"] != "event"]
    assert kinds[:2] == [("valid/law", 0), ("train", 1)]
    sources = {record["kind"] for record in log_of(tmp_path / "one") if record["kind"].startswith("source/")}
    assert sources == {f"source/{shards / name}_text_document" for name in ("law", "general")}


def test_second_start_continues_the_first(shards: Path, one: RankPool, ranks: RankPool, tmp_path: Path) -> None:
    one.run(run, config_of(shards, tmp_path / "straight"))
    # The learning rate's schedule depends on the number of steps, so the stop is a limit of time, not of steps.
    stopping = config_of(shards, tmp_path / "parts", **{"train.exit_after_minutes": 0.0})
    first = ranks.run(run, stopping)[0]
    assert (first.steps, first.stopped_by) == (1, "0 minutes are over")
    second = one.run(run, config_of(shards, tmp_path / "parts"))[0]
    assert second.steps == 6
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "straight"), rel=1e-5)


def test_weights_of_a_checkpoint_start_a_new_run_in_another_layout(
    shards: Path, one: RankPool, ranks: RankPool, tmp_path: Path
) -> None:
    one.run(run, config_of(shards, tmp_path / "first"))
    source = tmp_path / "first" / "checkpoints" / "step_00000006"
    anew = {"start_from": str(source), "train.steps": 2, "train.eval_every": 2}
    for pool, name, split in ((one, "one", {}), (ranks, "four", {"parallel.tensor": 2, "parallel.pipeline": 2})):
        assert pool.run(run, config_of(shards, tmp_path / name, **anew, **split))[0].steps == 2
    kinds = [(record["kind"], record["step"]) for record in log_of(tmp_path / "one") if record["kind"] != "event"]
    assert kinds[:2] == [("valid/law", 0), ("train", 1)]
    assert losses(tmp_path / "one")[0] == pytest.approx(losses(tmp_path / "first")[-1], rel=1e-6)
    assert losses(tmp_path / "four") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_steps_follow_from_samples_and_back() -> None:
    plain = TrainingConfig(global_batch_size=8)
    assert (count_steps(plain, 47), samples_of_steps(plain, 5)) == (5, 40)
    ramp = build(TrainingConfig, {"global_batch_size": 8, "batch_rampup": {"start": 2, "increment": 2, "samples": 24}})
    assert samples_of_steps(ramp, 12) == sum([2] * 4 + [4] * 2 + [6] * 2 + [8] * 4)
    assert all(count_steps(ramp, samples_of_steps(ramp, steps)) == steps for steps in range(1, 20))
    with pytest.raises(ConfigError, match="7 samples are fewer than one global batch of 8"):
        count_steps(plain, 7)


def test_steps_after_a_checkpoint_count_by_the_batch_of_now() -> None:
    """What is behind the run stays as it was; ramp-up goes on where the samples stand."""
    done = Done(steps=6, consumed=48)
    for batch, samples in ((4, 56), (8, 64), (16, 80)):
        training = TrainingConfig(global_batch_size=batch)
        assert samples_of_steps(training, 8, done) == samples
        assert [count_steps(training, samples + more, done) for more in (-1, 0, batch)] == [7, 8, 9]
    assert samples_of_steps(TrainingConfig(global_batch_size=4), 5, done) == 48
    assert count_steps(TrainingConfig(global_batch_size=64), 50, done) == 6
    ramp = build(TrainingConfig, {"global_batch_size": 8, "batch_rampup": {"start": 2, "increment": 2, "samples": 24}})
    assert samples_of_steps(ramp, 12, Done(steps=4, consumed=8)) == samples_of_steps(ramp, 12)


def test_ramp_up_is_counted_as_the_loop_takes_it() -> None:
    values = {"global_batch_size": 31, "batch_rampup": {"start": 3, "increment": 4, "samples": 1000}}
    ramp, consumed = build(TrainingConfig, values), 0
    for step in range(1, 120):
        consumed += global_rows_at(ramp, consumed)
        assert (samples_of_steps(ramp, step), count_steps(ramp, consumed)) == (consumed, step)
        assert count_steps(ramp, consumed + global_rows_at(ramp, consumed) - 1) == step
    endless = build(TrainingConfig, values | {"batch_rampup": {"start": 3, "increment": 4, "samples": 10**17}})
    assert samples_of_steps(endless, 10**15) < 10**15 * 31


@pytest.mark.parametrize(("batch", "samples"), [(4, 56), (8, 64), (16, 80)])
def test_a_run_goes_on_with_another_batch_and_more_steps(
    shards: Path, stopped: Path, one: RankPool, tmp_path: Path, batch: int, samples: int
) -> None:
    """6 steps of 8 are behind it; 2 more take 2 batches of now, and the data's next phase holds no more than that."""
    shutil.copytree(stopped, tmp_path / "run")
    changes = {"train.steps": 8, "train.global_batch_size": batch, "train.eval_every": None}
    config = config_of(shards, tmp_path / "run", **changes)
    lines = list(check_lines(config, 1))
    assert any(line.startswith(f"data: {samples} samples of 16 tokens, 8 steps") for line in lines), lines
    assert one.run(run, config)[0].steps == 8
    state = read_state(tmp_path / "run" / "checkpoints" / "step_00000008")
    assert (state["step"], state["consumed"]) == (8, samples)
    assert [phase["size"] for phase in state["data"]["phases"]] == [48, samples - 48]


def test_more_steps_than_the_given_samples_hold_are_refused_before_training(shards: Path, tmp_path: Path) -> None:
    config = config_of(shards, tmp_path, **{"data.num_samples": 40})
    for start in (lambda: check_before_ranks(config, 1), lambda: list(check_lines(config, 1))):
        with pytest.raises(
            ConfigError, match=r"train.steps 6 needs 48 samples, but data.num_samples 40 gives 40: .* 5 "
        ):
            start()


def test_epochs_say_what_follows_from_them(shards: Path, tmp_path: Path) -> None:
    """Two epochs: both shards twice, whatever is left of the last batch dropped."""
    entries = [str(shards / f"{name}_text_document") for name in ("law", "general")]
    changes = {
        "data.train": entries, "train.steps": None, "train.epochs": 2, "train.warmup_ratio": 0.1,
        "data.reset_attention": False,
    }  # fmt: skip
    config = config_of(shards, tmp_path / "out", **changes)
    data, steps = open_data(config, None)
    counts = [int(mmdata.IndexedDataset(path).sequence_lengths.sum()) for path in entries]
    samples = 2 * sum((count - 1) // 16 for count in counts)
    assert len(data.samples) == samples and steps == samples // 8
    assert [share.passes for share in data.shares()] == pytest.approx([2.0, 2.0], rel=0.02)
    lines = list(course_lines(config.train, data, steps))
    assert lines[0] == (
        f"{steps:,} steps (from 2 epochs) of 8 sequences of 16 tokens: {samples:,} samples, {16 * samples:,} tokens,"
        f" {16 * samples:,} of them counted"
    )
    warmup = math.ceil(0.1 * steps)
    assert lines[1] == (
        f"{sum(counts) / 16 / 8:.2f} steps an epoch, {samples * 16 / sum(counts):.2f} epochs; learning rate:"
        f" {warmup} steps of warm-up to 0.003, cosine to 0 at step {steps}"
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"lr_schedule": "constant"}, "1e-05 from the first step, then constant"),
        ({"lr_schedule": "wsd", "warmup_steps": 5}, "5 steps of warm-up to 1e-05, linear to 0 from step 90 to 100"),
        ({"lr_schedule": "linear", "decay_steps": 60, "min_lr": 1e-6}, "linear to 1e-06 at step 60"),
    ],
)
def test_course_of_the_rate_is_said(changes: dict[str, Any], line: str) -> None:
    assert course_of_rate(TrainingConfig(**changes), 100).endswith(line)


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.run(
        [sys.executable, "-m", "mmdata_train", *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, encoding="utf-8", check=False,
    )  # fmt: skip


def test_plain_command_starts_its_own_ranks(shards: Path, tmp_path: Path) -> None:
    config = config_of(shards, tmp_path / "out", **{"train.eval_every": None, "train.steps": 2})
    (tmp_path / "run.yaml").write_text(dump_yaml(config), encoding="utf-8")
    done = command("finetune", "run.yaml", "--set", "parallel={pipeline: 2, data: 1}", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 2
    assert "pipeline=2" in done.stderr and "step 2/2 | loss" in done.stderr
    assert "this layout equals one process within" in done.stderr, "compared before its first run"


def test_more_ranks_than_gpus_are_refused_before_data_and_ranks(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    config = config_of(shards, tmp_path / "out", **{"parallel.pipeline": 2, "parallel.data": 1})
    says = r"2 ranks on this machine need a GPU each, and it has 1: .*torchrun --nnodes.*CUDA_VISIBLE_DEVICES="
    for refused in (lambda: check_before_ranks(config, 2), lambda: start_ranks(2, ["finetune"])):
        with pytest.raises(LayoutError, match=says):
            refused()
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("LOCAL_RANK", "1")  # started by torchrun
    with pytest.raises(LayoutError, match=says):
        pick_device()


def test_check_shows_sizes_data_first_batch_and_disk(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = list(check_lines(config_of(shards, tmp_path / "out"), 2))
    assert lines[0].startswith("sizes: ParallelLayout(tensor=1, pipeline=1, data=2, context=1), 2 micro-batches")
    assert any("48 samples of 16 tokens, 6 steps" in line for line in lines)
    assert any("targets count" in line for line in lines)
    assert lines[-2].startswith("disk: ") and "GiB free" in lines[-2]
    assert lines[-1].startswith("parity: left out")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(ConfigError, match=r"free space, lower output\.keep"):
        list(check_lines(config_of(shards, tmp_path / "out"), 2))


def test_check_and_slurm_answer_in_json(shards: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(dump_yaml(config_of(shards, tmp_path / "out")), encoding="utf-8")
    report = json.loads(CliRunner().invoke(main, ["check", str(file), "--json"]).stdout)["report"]
    assert report[0].startswith("sizes: ") and report[-1].startswith("parity: ")
    found = CliRunner().invoke(main, ["slurm", str(file), "--gpus-per-node", "2", "--json"])
    assert "--nproc-per-node 2" in json.loads(found.stdout)["script"]
    wrong = CliRunner().invoke(main, ["slurm", str(file), "--gpus-per-node", "3"])
    assert wrong.exit_code == 2 and "global_batch_size 8 is not a multiple" in wrong.stderr


def small_run(tmp_path: Path, shards: Path, **changes: Any) -> None:
    """run.yaml of two ranks without evaluation."""
    changes = {"train.eval_every": None, "parallel.pipeline": 2, "parallel.data": 1} | changes
    (tmp_path / "run.yaml").write_text(dump_yaml(config_of(shards, tmp_path / "out", **changes)), encoding="utf-8")


def test_data_smaller_than_a_batch_is_refused_once_before_ranks_start(shards: Path, tmp_path: Path) -> None:
    small_run(tmp_path, shards, **{"train.steps": None, "train.global_batch_size": 4096})
    done = CliRunner().invoke(main, ["finetune", str(tmp_path / "run.yaml")])
    assert done.exit_code == 2
    assert done.stderr.rstrip("\n").count("\n") == 0
    assert "samples are fewer than one global batch of 4096" in done.stderr


def test_failing_rank_is_named_without_the_launchers_traceback(shards: Path, tmp_path: Path) -> None:
    """The rate makes every gradient overflow; no rank could know it before."""
    small_run(tmp_path, shards, **{"train.lr": 1e30, "train.steps": 40, "train.max_skipped_steps": 2})
    done = command("finetune", "run.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert "gradients were not finite 2 steps in a row" in done.stderr
    assert done.stderr.rstrip("\n").split("\n")[-1].startswith("error: rank ")
    assert "Traceback" not in done.stderr and "ChildFailedError" not in done.stderr
    events = [record["text"] for record in log_of(tmp_path / "out") if record["kind"] == "event"]
    assert any("stands out; documents: " in text and "_text_document document " in text for text in events)


@pytest.mark.skipif(os.name != "posix", reason="signals to groups of processes")
def test_signal_to_the_whole_group_saves_though_it_reaches_the_readers(shards: Path, tmp_path: Path) -> None:
    """As a terminal's Ctrl-C, a scheduler or torchrun sends it: to the rank and to its reading workers."""
    changes = {"parallel.pipeline": 1, "train.steps": 5000, "data.loading": {"workers": 1}, "output.save_every": None}
    small_run(tmp_path, shards, **changes)
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    process = subprocess.Popen(
        [sys.executable, "-m", "mmdata_train", "finetune", "run.yaml"], cwd=tmp_path, start_new_session=True,
        env={**environment, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True, encoding="utf-8",
    )  # fmt: skip
    watchdog = threading.Timer(240.0, process.kill)
    watchdog.start()
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("step 3/"):
            os.killpg(process.pid, signal.SIGTERM)
    code = process.wait()
    watchdog.cancel()
    process.stderr.close()
    assert code == 0, "".join(lines)
    assert any("stopping: signal SIGTERM" in line for line in lines)
    found = latest_checkpoint(tmp_path / "out" / "checkpoints")
    assert found is not None and int(found.name.removeprefix("step_")) >= 3


def test_signal_nine_is_told_as_the_host_out_of_memory() -> None:
    from mmdata_train.ranks import explain_exit

    assert "killed by signal 9" in explain_exit(-9) and "host's memory" in explain_exit(-9)
    assert "parallel.timeout_minutes" in explain_exit(-6)
    assert explain_exit(-11).endswith("(SIGSEGV)")


def test_raw_lines_are_converted_and_trained_on(shared: Path, one: RankPool, tmp_path: Path) -> None:
    """From JSON lines to a falling loss, and a second start finds the shards made by the first."""
    sentence = "The court of the second instance upheld the ruling of the first on all counts."
    lines = "".join(json.dumps({"text": f"{sentence} {sentence} Case {i}."}) + "\n" for i in range(64))
    (tmp_path / "cases.jsonl").write_text(lines, encoding="utf-8")
    mapping = {
        "model": {"vocab_size": 50257, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "vocab_multiple": 64},
        "tokenizer": str(shared / "tokenizers" / "gpt2"),
        "data": {
            "train": [{"path": str(tmp_path / "cases.jsonl")}], "seq_length": 32, "loading": {"workers": 0},
            "convert": {"workers": 1, "recipe": "none", "dedup": "none"},
        },
        "train": {"micro_batch_size": 4, "global_batch_size": 8, "steps": 8, "lr": 3e-2, "precision": "fp32"},
        "output": {"dir": str(tmp_path / "out")},
    }  # fmt: skip
    config = build(TrainConfig, mapping)
    summary = one.run(run, config)[0]
    curve = losses(tmp_path / "out")
    assert curve[0] == pytest.approx(np.log(50257), rel=0.02)
    assert summary.loss == curve[-1] < curve[0] - 1
    assert (tmp_path / "out" / "config.yaml").read_text(encoding="utf-8") == dump_yaml(config)
    assert len(list((tmp_path / "out" / "cache" / "converted").iterdir())) == 1


def test_wrong_value_is_one_line_and_exit_code_2(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(dump_yaml(config_of(shards, tmp_path / "out")), encoding="utf-8")
    done = CliRunner().invoke(main, ["finetune", str(tmp_path / "run.yaml"), "--set", "train.global_batch_size=7"])
    assert done.exit_code == 2
    assert done.stderr.rstrip("\n").count("\n") == 0
    assert "use 6 or 8, or a micro_batch_size of 1, 7" in done.stderr
