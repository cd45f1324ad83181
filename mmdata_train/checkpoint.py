"""Checkpoints: every rank writes its own shards by name, any layout reads them back.

`save` copies the state to host memory and returns; a thread writes it with torch's distributed checkpoint over its
own process group. A checkpoint is written under a temporary name, made durable, renamed, and only then named in
`latest`: after a crash, a full disk or a dead rank the former one is still in use. Memory: one host copy of this
rank's weights and optimizer state while a save runs.

A folder holds `step_00000010/` (torch's index `.metadata`, `*.distcp` with each rank's tensors, `state.json`) and
`latest`. Weights are stored under `model.NAME`, Adam's moments under `optimizer.NAME.exp_avg` and `.exp_avg_sq`,
float32.
"""

from __future__ import annotations

import datetime
import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from mmdata.indexed.durable import sync_directory, write_durably
from mmdata_train.checkpoint_format import load_tensors, read_index
from mmdata_train.checkpoint_storage import RawWriter
from mmdata_train.config_io import to_mapping
from mmdata_train.errors import CheckpointError
from mmdata_train.foreign_text import TOO_LONG, useful_part
from mmdata_train.json_text import json_text
from mmdata_train.lora.settings import LoraConfig
from mmdata_train.loss import to_local
from mmdata_train.mesh import group_limit
from mmdata_train.model.decoder import canonical_name
from mmdata_train.parallelize import ModelParts
from mmdata_train.run_folder import (
    BEST,
    ENGINE_STATE,
    FORMAT,
    LATEST,
    STATE,
    STEP_FOLDER,
    check_state,
    read_state,
    step_folder,
)
from mmdata_train.slices import named_weights
from mmdata_train.step import Engine

MOMENTS = ("exp_avg", "exp_avg_sq")
SAVE_LIMITS = 3
"""Ranks that wrote their files wait for the slowest one as long as so many collectives may (its disk may be shared)."""


def named_state(engine: Engine, *, optimizer: bool = True) -> Iterator[tuple[str, Tensor, bool]]:
    """(stored name, tensor, whether it is a tied head's second copy) of this rank's weights and moments.

    The second copy has the stored name of the embedding. With adapters the frozen base is left out.
    """
    for name, weight in engine.model.named_parameters():
        if engine.model.lora is not None and not weight.requires_grad:
            continue
        stored, second = canonical_name(engine.model.config, name), engine.tied.is_second_copy(weight)
        yield f"model.{stored}", weight.detach(), second
        if optimizer and engine.optimizer is not None and weight.requires_grad:
            for moment in MOMENTS:
                yield f"optimizer.{stored}.{moment}", engine.optimizer.state[weight][moment], second


def check_tensors(checkpoint: Path, needed: Iterable[tuple[str, tuple[int, ...]]]) -> None:
    """Raises CheckpointError naming the first (stored name, shape) that is missing or has another shape."""
    stored = read_index(checkpoint).state_dict_metadata
    for name, shape in needed:
        size = getattr(stored.get(name), "size", None)
        if size is None or tuple(size) != shape:
            found = "missing" if size is None else f"{list(size)}"
            raise CheckpointError(
                f"{checkpoint}: {name} is {found}, this model needs {list(shape)}; is `model` the same?"
            )


def check_base(checkpoint: Path, weights: Iterable[tuple[str, tuple[int, ...]]]) -> None:
    """Raises CheckpointError where a checkpoint does not hold these (name, shape) as a base's weights."""
    check_tensors(checkpoint, ((f"model.{name}", shape) for name, shape in weights))


def load_base(parts: ModelParts, checkpoint: Path) -> None:
    """Fill the model's own weights, adapters left alone, from a full run's checkpoint of any layout; a collective.

    Raises CheckpointError naming the first tensor that is missing or has another shape.
    """
    weights = [(canonical_name(parts.config, name), weight) for name, weight in named_weights(parts.parts)]
    check_base(checkpoint, ((name, tuple(weight.shape)) for name, weight in weights))
    tensors: dict[str, Tensor] = {}
    copies: list[tuple[str, Tensor]] = []
    for name, weight in weights:
        key = f"model.{name}"
        if key in tensors:
            copies.append((key, weight.detach()))
        else:
            tensors[key] = weight.detach()
    load_tensors(dict(tensors), checkpoint)
    for key, second in copies:
        to_local(second).copy_(to_local(tensors[key]))


def fill_optimizer_state(engine: Engine, steps: float | None = None) -> None:
    """Make Adam's state where it is not made yet, and set its step count if given."""
    if engine.optimizer is None:
        return
    for group in engine.optimizer.param_groups:
        for weight in group["params"]:
            state = engine.optimizer.state[weight]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
                state.update({moment: torch.zeros_like(weight) for moment in MOMENTS})
            if steps is not None:
                state["step"].fill_(steps)


def optimizer_steps(engine: Engine) -> float:
    """Updates Adam has made; skipped steps do not count."""
    return float(engine.updates)


def check_adapters(checkpoint: Path, stored: dict[str, Any] | None, lora: LoraConfig | None) -> None:
    """Raises CheckpointError where the adapters of the checkpoint are not those of this run."""
    wanted = None if lora is None else to_mapping(lora)
    # Dropout and the rate of B may change; the rest decides shapes and what the weights mean.
    for name in ("rank", "alpha", "targets", "rslora", "dora", "added_ids"):
        found, here = (None if value is None else value.get(name) for value in (stored, wanted))
        if found != here:
            kinds = [f"lora_{name} {value}" if value is not None else "no adapters" for value in (found, here)]
            raise CheckpointError(
                f"{checkpoint} holds {kinds[0]}, this run has {kinds[1]}; set the lora_ fields and added_tokens as they"
                " were, or export it and start from the folder"
            )


def _cause(problem: BaseException, limit: datetime.timedelta) -> str:
    """One line: which rank could not write what, and why; ranks that could not either say so themselves."""
    if isinstance(problem, CheckpointException) and problem.failures:
        rank, (inner, _) = min(problem.failures.items(), key=lambda failure: failure[0])
        return f"rank {rank}: {useful_part(inner)}"
    told = useful_part(problem)
    if TOO_LONG.search(told):
        minutes = limit.total_seconds() / 60
        return f"a rank did not finish its part within {minutes:g} minutes, {SAVE_LIMITS} x parallel.timeout_minutes"
    return told


@dataclass(slots=True)
class Checkpointer:
    """Saves and loads one run's checkpoints. Made on every rank together: it owns a process group for its thread.

    origin: JSON values kept in each checkpoint, so that it can be exported by itself (rank 0's are written).
    """

    folder: Path
    keep: int = 3
    in_background: bool = True
    origin: dict[str, Any] = field(default_factory=dict)
    group: dist.ProcessGroup | None = field(init=False)
    _thread: threading.Thread | None = None
    _problem: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.group = dist.new_group(backend="gloo", timeout=SAVE_LIMITS * group_limit())
        if dist.get_rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.glob("step_*.tmp"):
                shutil.rmtree(left)
        dist.barrier(group=self.group)

    def save(self, engine: Engine, state: dict[str, Any], *, best: bool = False) -> None:
        """Begin writing the checkpoint of `state["step"]`; waits for the former save first.

        Raises CheckpointError if that one failed. The state must be finite: see Engine.require_finite.
        """
        self.wait()
        fill_optimizer_state(engine)
        tensors = {
            name: tensor.detach().to("cpu", copy=True) for name, tensor, second in named_state(engine) if not second
        }
        full = {
            "format": FORMAT, **state, "origin": self.origin, "optimizer_steps": optimizer_steps(engine),
            "scaler": engine.scaler.state(), "skipped_in_a_row": engine.skipped_in_a_row, "torch": torch.__version__,
            "lora": None if engine.model.lora is None else to_mapping(engine.model.lora),
        }  # fmt: skip
        self._thread = threading.Thread(target=self._write, args=(tensors, full, best), name="checkpoint")
        self._thread.start()
        if not self.in_background:
            self.wait()

    def wait(self) -> None:
        """Wait for the save in progress. Raises CheckpointError when it failed; the former one is in use then."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._problem:
            problem = self._problem.pop()
            self._problem.clear()
            former = self.folder / LATEST
            name = former.read_text(encoding="utf-8").strip() if former.is_file() else None
            raise CheckpointError(
                f"the checkpoint in {self.folder} could not be written ({_cause(problem, self.limit)});"
                f" {f'the former one, {name}, stays in use' if name else 'no former one is there'}:"
                " free disk space, or look at the first failing rank"
            ) from problem

    @property
    def limit(self) -> datetime.timedelta:
        """How long a rank waits for the others' part of a save."""
        return group_limit(self.group)

    def _write(self, tensors: dict[str, Tensor], state: dict[str, Any], best: bool) -> None:
        target = self.folder / step_folder(int(state["step"]))
        temporary = target.with_name(f"{target.name}.tmp")
        published = torch.zeros((), dtype=torch.int64)
        try:
            save_distributed(tensors, storage_writer=RawWriter(temporary), process_group=self.group)
            try:
                if dist.get_rank() == 0:
                    self._publish(temporary, target, state, best)
                    published.fill_(1)
            finally:
                # Whatever happened on rank 0, the others are waiting to hear of it.
                dist.broadcast(published, src=0, group=self.group)
            if not published:
                raise CheckpointError("rank 0 could not publish it")
        except BaseException as error:  # kept for wait(): a thread has nobody to raise to
            self._problem.append(error)
            if dist.get_rank() == 0:
                shutil.rmtree(temporary, ignore_errors=True)

    def _publish(self, temporary: Path, target: Path, state: dict[str, Any], best: bool) -> None:
        write_durably(str(temporary / STATE), json_text(state, indent=1).encode())
        if target.exists():
            shutil.rmtree(target)
        temporary.replace(target)
        sync_directory(str(target))
        write_durably(str(self.folder / LATEST), target.name.encode())
        if best:
            write_durably(str(self.folder / BEST), target.name.encode())
        self._prune()

    def _prune(self) -> None:
        """Delete all but the newest `keep` and those `latest` and `best` name."""
        whole = sorted(path for path in self.folder.glob("step_*") if STEP_FOLDER.fullmatch(path.name))
        named = {
            pointer.read_text(encoding="utf-8").strip()
            for pointer in (self.folder / LATEST, self.folder / BEST)
            if pointer.is_file()
        }
        for path in whole[: -self.keep]:
            if path.name not in named:
                shutil.rmtree(path)

    def load(self, engine: Engine, checkpoint: Path, *, weights_only: bool = False) -> dict[str, Any]:
        """Fill weights, and unless `weights_only` optimizer and scaler, from any layout's checkpoint; returns its
        state.

        Raises CheckpointError naming the first tensor that is missing or has another shape. A collective.
        """
        state = read_state(checkpoint)
        if not weights_only:
            check_state(checkpoint, state, ENGINE_STATE)
        check_adapters(checkpoint, state.get("lora"), engine.model.lora)
        if not weights_only:
            fill_optimizer_state(engine, float(state["optimizer_steps"]))
        wanted = [(name, tensor) for name, tensor, _ in named_state(engine, optimizer=not weights_only)]
        check_tensors(checkpoint, ((name, tuple(tensor.shape)) for name, tensor in wanted))
        tensors: dict[str, Tensor] = {}
        second_copies = []
        for name, tensor in wanted:
            if name in tensors:
                second_copies.append((name, tensor))
            else:
                tensors[name] = tensor
        load_tensors(dict(tensors), checkpoint, group=self.group)
        for name, tensor in second_copies:
            to_local(tensor).copy_(to_local(tensors[name]))
        if not weights_only:
            engine.updates = round(state["optimizer_steps"])
            engine.scaler.load(state["scaler"])
            engine.skipped_in_a_row = int(state["skipped_in_a_row"])
        return state
