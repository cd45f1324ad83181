"""How a run ends when it goes wrong: steps that are not finite, weights that are not, a disk that takes no more."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from test_trainer import log_of, make_trainer, replace_step, run_config  # noqa: E402

from mmdata.errors import DiskFullError  # noqa: E402
from mmdata_train.batch import Batch  # noqa: E402
from mmdata_train.cli import main  # noqa: E402
from mmdata_train.config import OutputConfig  # noqa: E402
from mmdata_train.errors import StepError  # noqa: E402
from mmdata_train.json_text import json_text  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.loss import to_local  # noqa: E402
from mmdata_train.metrics import RunLog  # noqa: E402
from mmdata_train.run_folder import latest_checkpoint  # noqa: E402
from mmdata_train.trainer import RunSummary, Trainer, ValidationSet  # noqa: E402


def weights_of(trainer: Trainer) -> list[Any]:
    state = trainer.engine.optimizer.state if trainer.engine.optimizer else {}
    held = []
    for _, weight in trainer.engine.model.named_parameters():
        held += [to_local(weight.detach()).clone(), *(to_local(value).clone() for value in state[weight].values())]
    return held


def spoil_from(trainer: Trainer, first: int) -> list[Any]:
    """Gradients are not finite from step `first` (0-based) on; returns where the state before it is put."""
    inner = trainer.engine.train_step
    before: list[Any] = []

    def train_step(batch: Batch, step: int, *, stop: bool = False) -> Any:
        if step < first:
            return inner(batch, step, stop=stop)
        if not before and step:
            before.extend(weights_of(trainer))
        weight = dict(trainer.engine.model.named_parameters()).get("layers.1.mlp.up_proj.weight")
        if weight is None:  # another stage has it
            return inner(batch, step, stop=stop)
        handle = weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda w: to_local(w.grad).fill_(float("nan"))
        )
        try:
            return inner(batch, step, stop=stop)
        finally:
            handle.remove()

    trainer.engine = replace_step(trainer.engine, train_step)
    return before


def run_spoilt(folder: Path, first: int, total: int, parallel: dict[str, Any]) -> tuple[int, int, bool] | str:
    config = replace(run_config(parallel), output=OutputConfig(dir=folder, save_every=2))
    trainer = make_trainer(folder, config, total)
    before = spoil_from(trainer, first)
    try:
        summary = trainer.run()
    except StepError as error:
        return str(error)
    same = not before or all(torch.equal(a, b) for a, b in zip(before, weights_of(trainer), strict=True))
    return summary.steps, summary.skipped, same


@pytest.mark.parametrize("parallel", [{}, {"pipeline": 2}], ids=str)
def test_last_step_that_is_not_finite_leaves_the_weights_of_the_last_good_step_and_are_told(
    parallel: dict[str, Any], one: RankPool, two: RankPool, tmp_path: Path
) -> None:
    pool = two if parallel else one
    assert pool.run(run_spoilt, tmp_path, 4, 5, parallel)[0] == (5, 1, True)
    told = [record["text"] for record in log_of(tmp_path, "event")]
    assert "1 of 5 steps changed no weights, the first was step 5; the weights are those of step 4" in told
    skipped = log_of(tmp_path)[4]
    assert (
        skipped["skipped"] and skipped["grad_norm"] is None and skipped["non_finite"] == "layers.1.mlp.up_proj.weight"
    )
    assert "NaN" not in (tmp_path / "log.jsonl").read_text(encoding="utf-8")


def test_run_in_which_no_step_was_finite_is_an_error_and_keeps_the_former_checkpoint(
    one: RankPool, tmp_path: Path
) -> None:
    assert one.run(run_spoilt, tmp_path, 9, 3, {})[0] == (3, 0, True)
    told = one.run(run_spoilt, tmp_path, 0, 6, {})[0]
    assert "3 of 3 steps changed no weights, the first was step 4: not one had finite gradients" in told
    told = one.run(run_spoilt, tmp_path / "new", 0, 1, {})[0]
    assert "nothing was trained, and nothing more is saved" in told
    assert latest_checkpoint(tmp_path / "new" / "checkpoints") is None


def run_exploding(folder: Path, lr: float, total: int, save_every: int) -> str:
    config = replace(
        run_config({"data": 2}, lr=3e-3, clip_grad=0.0), output=OutputConfig(dir=folder, save_every=save_every)
    )
    trainer = make_trainer(folder, config, total)
    inner = trainer.engine.train_step

    def train_step(batch: Batch, step: int, *, stop: bool = False) -> Any:
        if step == 2 and trainer.engine.optimizer is not None:
            for group in trainer.engine.optimizer.param_groups:
                group["lr_factor"] = lr
        return inner(batch, step, stop=stop)

    trainer.engine = replace_step(trainer.engine, train_step)
    try:
        trainer.run()
    except StepError as error:
        return str(error)
    return "saved"


def test_finite_weights_whose_gradients_are_not_are_not_saved(two: RankPool, tmp_path: Path) -> None:
    """A learning rate of 1e25 leaves weights of 1e22, whose products overflow."""
    told = two.run(run_exploding, tmp_path, 1e25, 6, 2)
    assert set(told) == {told[0]} and "the gradients of the last 3 were not finite" in told[0]
    found = latest_checkpoint(tmp_path / "checkpoints")
    assert found is not None and found.name == "step_00000002"
    told = [record["text"] for record in log_of(tmp_path, "event")]
    assert sum("not saved: this step changed no weights" in text for text in told) == 2


@pytest.mark.parametrize(("total", "save_every"), [(3, 2), (6, 2), (6, 3)], ids=["last", "next", "saved"])
def test_update_that_makes_weights_infinite_ends_the_run_naming_one_and_is_not_saved(
    total: int, save_every: int, two: RankPool, tmp_path: Path
) -> None:
    """Whether it is noticed at the end, at the next step or at a save."""
    told = two.run(run_exploding, tmp_path, 1e45, total, save_every)
    assert set(told) == {told[0]} and "is not finite: an update of this run was too large" in told[0]
    found = latest_checkpoint(tmp_path / "checkpoints")
    assert (None if found is None else found.name) == ("step_00000002" if save_every == 2 else None)


def run_stopping(folder: Path, limit: int) -> tuple[int, str | None, float]:
    config = run_config({}, eval_every=2, early_stop_after=limit, lr=0.0)
    sets = [ValidationSet("law", lambda: [make_rows()])]
    summary = make_trainer(folder, config, 12, validation=sets).run()
    return summary.steps, summary.stopped_by, summary.loss


def make_rows() -> Batch:
    from test_trainer import Rows

    return Rows(0, 1, 500).next_batch(8)


def test_run_that_stopped_early_stops_at_once_when_it_is_started_again(one: RankPool, tmp_path: Path) -> None:
    steps, reason, _ = one.run(run_stopping, tmp_path, 2)[0]
    assert (steps, reason) == (4, "no better validation loss in 2 evaluations")
    steps, reason, loss = one.run(run_stopping, tmp_path, 2)[0]
    assert (steps, loss != loss) == (4, True)
    assert str(reason).endswith("in 2 evaluations: stopped there before; to go on raise train.early_stop_after")
    assert len(log_of(tmp_path)) == 4
    assert one.run(run_stopping, tmp_path, 4)[0][:2] == (8, "no better validation loss in 4 evaluations")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_log_that_the_disk_has_no_room_for_is_our_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    with pytest.raises(DiskFullError, match=r"log\.jsonl: the disk is full"):
        RunLog(tmp_path, 3, enabled=True).event(1, "saving")


def test_log_holds_null_where_a_number_is_none(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 3, enabled=True)
    log.evaluation(1, {"law": {"loss": float("nan"), "perplexity": float("inf"), "tokens": 3.0}})
    log.close()
    text = (tmp_path / "log.jsonl").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=pytest.fail) == {
        "kind": "valid/law", "loss": None, "perplexity": None, "tokens": 3.0, "step": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "out/x"), "out/x: No space left on device; free disk space"),
        (PermissionError(errno.EACCES, "Permission denied", "out/x"), "out/x: Permission denied; choose a folder"),
        (OSError(errno.EROFS, "Read-only file system", "out/x"), "out/x: Read-only file system; choose a folder"),
    ],
    ids=["full", "denied", "read-only"],
)
def test_refusal_of_the_file_system_is_one_line_with_path_and_remedy(
    raised: OSError, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise raised

    monkeypatch.setattr("mmdata_train.cli.load_config", refuse)
    done = CliRunner().invoke(main, ["finetune", "any.yaml"])
    assert done.exit_code == 1 and done.stderr.startswith(f"error: {told}") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("raised", [OSError("no number"), KeyError("ours"), ValueError("ours")], ids=repr)
def test_mistakes_of_ours_keep_their_traceback(raised: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise raised

    monkeypatch.setattr("mmdata_train.cli.load_config", refuse)
    assert CliRunner().invoke(main, ["finetune", "any.yaml"]).exception is raised


def test_summary_of_a_start_that_had_nothing_to_do_is_json() -> None:
    summary = RunSummary(5, float("nan"), None, None)
    assert json.loads(json_text(asdict(summary)), parse_constant=pytest.fail)["loss"] is None
