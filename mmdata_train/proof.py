"""Proof that the layout a run asks for trains like one process under the torch that is installed, before it trains.

A small model with the run's own switches (heads and groups of heads, biases, ties, norms, adapters; as many layers as
the stages need, at least two, and narrow) makes three AdamW steps in the chosen layout and on one process; loss and
gradient norm must agree to 1e-5 in fp32. That takes 10 to 60 seconds and happens once: a pass is kept in the user's
cache under everything that decides it. The job's own ranks and devices run it; `mmdata-train check` starts ranks on
this machine for it. It does not prove the widths, the precision or the data of the run itself.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml

import mmdata
from mmdata.errors import OutputError
from mmdata.indexed.durable import write_durably
from mmdata.indexed.remote import default_cache_dir
from mmdata.samples.cache import key_of
from mmdata_train.config import ParallelConfig, TrainConfig, TrainingConfig
from mmdata_train.config_io import build, dump_yaml, to_mapping
from mmdata_train.data_config import DataConfig
from mmdata_train.errors import ParityError, RankError
from mmdata_train.json_text import json_text
from mmdata_train.launch import DeviceType, RankPool
from mmdata_train.lora.settings import targets_for
from mmdata_train.mesh import Mesh
from mmdata_train.model.config import ModelConfig
from mmdata_train.parity import STEPS, TOLERANCE, Curve, difference, uneven_batch
from mmdata_train.schedules import SCHEDULES, micro_batches_fit
from mmdata_train.session import model_config, open_engine

logger = logging.getLogger("mmdata_train")

HEAD_DIM = 8
RANK_VARIABLES = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
)
SECONDS = 300.0
"""What ranks started for a proof may take; the ranks of a run are bound by parallel.timeout_minutes."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A comparison that was made. difference: the largest relative one of any loss or gradient norm."""

    difference: float
    curve: Curve
    reference: Curve
    facts: dict[str, Any]


def shrunk_model(model: ModelConfig, parallel: ParallelConfig) -> ModelConfig:
    """`model` with its switches and heads, but narrow, of few words and of as many layers as the stages need."""
    size = min(model.head_dim, HEAD_DIM)
    hidden = max(2 * size, model.hidden_size * size // model.head_dim)
    unit = 4 * parallel.tensor
    multiple = 8 * parallel.tensor
    layers = max(2, parallel.stages)
    if parallel.pipeline > 1 and parallel.stage_layers is not None:
        layers = sum(min(1, count) for count in parallel.stage_layers)
    length = shrunk_length(parallel)
    return dataclasses.replace(
        model,
        num_layers=layers,
        hidden_size=hidden,
        head_dim=size,
        intermediate_size=-(-2 * hidden // unit) * unit,
        vocab_multiple=multiple,
        # The padding of the vocabulary is part of what can go wrong.
        vocab_size=8 * multiple - (3 if model.padded_vocab_size > model.vocab_size else 0),
        max_positions=max(length, 2) if model.positions == "learned" else model.max_positions,
        sliding_window=None if model.sliding_window is None else min(model.sliding_window, length // 2),
        dropout=0.0,
        attention_dropout=0.0,
        init_std=0.1,
    )


def shrunk_length(parallel: ParallelConfig) -> int:
    """Positions of a sample: 16, or 4 on each tensor rank where that is more."""
    return 16 if 16 % parallel.tensor == 0 else 4 * parallel.tensor


def shrunk(config: TrainConfig, data_ranks: int) -> TrainConfig:
    """The small run that stands for `config`: its layout, recomputation, compilation and adapters, in fp32."""
    parallel, training = config.parallel, config.train
    rule = SCHEDULES[parallel.schedule]
    least = 2 if parallel.pipeline == 1 else 2 * rule.depth * parallel.pipeline
    micro_batches = next(
        count for count in range(least, 4 * least + 1) if micro_batches_fit(rule, count, parallel.pipeline)
    )
    size = min(2, training.micro_batch_size)
    shrunk = shrunk_model(model_config(config), parallel)
    stages = parallel.stage_layers
    return dataclasses.replace(
        config,
        model=shrunk,
        tokenizer=None,
        start_from=None,
        data=DataConfig(seq_length=shrunk_length(parallel)),
        parallel=dataclasses.replace(
            parallel, data=None, stage_layers=None if stages is None else tuple(min(1, count) for count in stages)
        ),
        train=TrainingConfig(
            micro_batch_size=size, global_batch_size=size * micro_batches * data_ranks, steps=STEPS, lr=1e-3,
            weight_decay=0.1, precision="fp32", lr_schedule="constant", seed=7, compile=training.compile,
            activation_checkpointing=training.activation_checkpointing, deterministic=training.deterministic,
        ),
        lora_dropout=None if config.lora is None else 0.0,
        lora_targets=None if config.lora is None else targets_for(config.lora, shrunk),
        lora_from=None,
        lora_merge_first=False,
        added_tokens=(),
    )  # fmt: skip


def alone(small: TrainConfig) -> TrainConfig:
    """The same small run on one process with plain layers."""
    training = dataclasses.replace(small.train, compile=False, activation_checkpointing="none")
    return dataclasses.replace(small, parallel=ParallelConfig(), train=training)


def curve_of(small: TrainConfig, mesh: Mesh | None = None) -> Curve:
    """(loss, gradient norm) of each step of a small run, the same on every rank; a collective over the default group.

    mesh: of a layout as `small` asks for; None makes one.
    """
    length, rows = small.data.seq_length, small.train.global_batch_size
    if small.train.compile:
        torch.compiler.reset()
    level = logger.level
    # What is said of the small model would be taken for the run's own.
    logger.setLevel(logging.WARNING)
    try:
        engine = open_engine(small, seq_length=length, total_steps=STEPS, mesh=mesh)
    finally:
        logger.setLevel(level)
    mesh = engine.model.mesh
    share = rows // mesh.layout.data
    own = slice(mesh.data_rank * share, (mesh.data_rank + 1) * share)
    curve = []
    for step in range(STEPS):
        batch = uneven_batch(engine.model.config.vocab_size, rows, length, step)
        result = engine.train_step(batch.rows(own), step)
        curve.append((result.loss, result.grad_norm))
    return curve


def facts_of(config: TrainConfig, world_size: int, device: DeviceType) -> dict[str, Any]:
    """What a proof depends on, as plain values."""
    small = shrunk(config, config.parallel.layout(world_size).data)
    grid = to_mapping(small.parallel)
    for name in ("timeout_minutes", "parity_check"):
        grid.pop(name)
    return {
        "mmdata": mmdata.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "world_size": world_size,
        "small": {**to_mapping(small), "parallel": grid, "output": None},
    }


def _place(facts: dict[str, Any]) -> Path:
    base = Path(default_cache_dir())
    folder = base if os.environ.get("MMDATA_CACHE_DIR") else base.parent
    return folder / "parity" / f"{key_of({'kind': 'parity', **facts})}.json"


def known(facts: dict[str, Any]) -> float | None:
    """The difference a former proof of these facts found, None where there is none."""
    try:
        stored = json.loads(_place(facts).read_text(encoding="utf-8"))
        return float(stored["difference"]) if stored["facts"] == facts else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(proof: Proof) -> None:
    """Keep a pass; a folder that cannot be written to costs the next run the same seconds again, and a warning."""
    place = _place(proof.facts)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_durably(str(place), json_text(dataclasses.asdict(proof), indent=1).encode())
    except (OSError, OutputError) as error:
        logger.warning("the proof of this layout cannot be kept in %s: %s", place.parent, error)


def judged(proof: Proof) -> Proof:
    """The proof itself when it holds. Raises ParityError with the numbers of the first step that differs."""
    if proof.difference < TOLERANCE:
        return proof
    pairs = enumerate(zip(proof.curve, proof.reference, strict=True))
    step, (ours, theirs) = next((n, pair) for n, pair in pairs if difference([pair[0]], [pair[1]]) >= TOLERANCE)
    raise ParityError(
        f"this layout does not train like one process under torch {torch.__version__} on {proof.facts['device']}: in"
        f" step {step} of a small model like this one its loss is {ours[0]:.8g} and one process's {theirs[0]:.8g}, its"
        f" gradient norm {ours[1]:.8g} and {theirs[1]:.8g} (relative difference {proof.difference:.1e}, limit"
        f" {TOLERANCE:g}). {_remedy(proof.facts['small'])}, or install another torch; parallel.parity_check: false"
        " (--no-parity) trains all the same"
    )


def _remedy(small: dict[str, Any]) -> str:
    parallel = small["parallel"]
    if small["train"]["compile"]:
        return "Set train.compile: false"
    if SCHEDULES[parallel["schedule"]].splits_backward:
        return "Set parallel.schedule: interleaved or 1f1b"
    return "Try parallel.schedule 1f1b, zero_stage 1 or activation_checkpointing none, one at a time"


def _not_compiled(reason: str) -> ParityError:
    return ParityError(
        f"compiled layers cannot run in this layout under torch {torch.__version__} ({reason[:300]}); set"
        " train.compile: false"
    )


def prove_here(config: TrainConfig, world_size: int, device: DeviceType) -> Proof:
    """Compare on ranks started on this machine; a pass is remembered. Raises ParityError, RankError."""
    facts = facts_of(config, world_size, device)
    small = shrunk(config, config.parallel.layout(world_size).data)
    try:
        with RankPool(world_size, SECONDS, device) as pool:
            curve = pool.run(curve_of, small)[0]
    except RankError as error:
        if not config.train.compile:
            raise
        raise _not_compiled(str(error).rstrip("\n").rsplit("\n", 1)[-1]) from error
    reference = reference_curve(small, device)
    proof = judged(Proof(difference(curve, reference), curve, reference, facts))
    remember(proof)
    return proof


def reference_curve(small: TrainConfig, device: DeviceType) -> Curve:
    """The small run on one process of its own, which ends before this returns. Raises RankError."""
    environment = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    try:
        # A plain child, since a rank of a pool may not start processes of multiprocessing.
        done = subprocess.run(
            [sys.executable, "-m", "mmdata_train.proof"],
            input=dump_yaml(alone(small)), capture_output=True, env=environment, timeout=SECONDS, encoding="utf-8",
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RankError(
            f"the process that trains the reference of the parity check did not end within {SECONDS:g} s; --no-parity"
            " leaves the check out"
        ) from None
    if done.returncode:
        raise RankError(f"the process that trains the reference of the parity check failed:\n{done.stderr[-2000:]}")
    return [(float(loss), float(norm)) for loss, norm in json.loads(done.stdout)]


def reference_if_needed(config: TrainConfig) -> Curve | None:
    """What `prove` compares with: on rank 0 of a run of several ranks whose layout is not proved yet, else None.

    Called before this process uses its device: the reference needs it in a process of its own for some seconds.
    """
    joined = dist.is_initialized()
    rank = dist.get_rank() if joined else int(os.environ.get("RANK", "0"))
    world_size = dist.get_world_size() if joined else int(os.environ.get("WORLD_SIZE", "1"))
    if rank or world_size == 1 or not config.parallel.parity_check:
        return None
    device: DeviceType = "cuda" if torch.cuda.is_available() else "cpu"
    if known(facts_of(config, world_size, device)) is not None:
        return None
    logger.info(
        "first run of this layout under torch %s: comparing it with one process on a small model like this one"
        " (once; --no-parity leaves it out)",
        torch.__version__,
    )
    return reference_curve(shrunk(config, config.parallel.layout(world_size).data), device)


def prove(config: TrainConfig, mesh: Mesh, reference: Curve | None) -> None:
    """Compare the layout on the ranks of the run, where rank 0 has a reference; a collective over all ranks.

    mesh: of the run, whose groups are used. Raises ParityError on every rank alike.
    """
    if not config.parallel.parity_check or mesh.layout.world_size == 1:
        return
    box = [reference]
    dist.broadcast_object_list(box, src=0)
    if box[0] is None:
        return
    device: DeviceType = "cuda" if mesh.device.type == "cuda" else "cpu"
    facts = facts_of(config, mesh.layout.world_size, device)
    try:
        curve = curve_of(shrunk(config, mesh.layout.data), mesh)
    except Exception as error:
        if not config.train.compile:
            raise
        raise _not_compiled(str(error).split("\n", 1)[0]) from error
    proof = judged(Proof(difference(curve, box[0]), curve, box[0], facts))
    if dist.get_rank() == 0:
        remember(proof)
        logger.info("this layout equals one process within %.1e (limit %g)", proof.difference, TOLERANCE)
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(mesh.device)


if __name__ == "__main__":
    # One process: a small run as YAML in, its curve as JSON out.
    sys.stdout.write(json.dumps(curve_of(build(TrainConfig, yaml.safe_load(sys.stdin.read())))))
