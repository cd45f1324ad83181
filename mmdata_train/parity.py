"""Proof that a layout trains like one process: a few AdamW steps on a small model, loss and gradient norm compared.

A cell is one combination of degrees, ZeRO stage, schedule and recomputation. `run_cell` is called on every rank of a
group of the cell's size; `nearest problem` cells are refused by `config_checks` with a reason. Labels are partly
ignored and unevenly spread over rows, so a mean of means would be caught; clipping is active; documents restart
within rows.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch

from mmdata_train.batch import Batch
from mmdata_train.config import ParallelConfig, TrainingConfig
from mmdata_train.config_checks import check_run
from mmdata_train.errors import ConfigError
from mmdata_train.loss import IGNORED
from mmdata_train.mesh import Mesh
from mmdata_train.model.config import ModelConfig
from mmdata_train.model.init import initialize
from mmdata_train.parallelize import build_parts
from mmdata_train.schedules import SCHEDULES, ScheduleName, micro_batches_fit
from mmdata_train.step import Engine

STEPS = 3
ROWS = 16
SEQ_LENGTH = 16
TOLERANCE = 1e-5
SMALL = ModelConfig(
    vocab_size=61,
    hidden_size=32,
    num_layers=8,
    num_heads=8,
    num_kv_heads=4,
    intermediate_size=48,
    max_positions=SEQ_LENGTH,
    vocab_multiple=16,
    init_std=0.1,
)
MODELS = {
    "llama": SMALL,
    "qwen3-tied": dataclasses.replace(SMALL, family="qwen3", qk_norm=True, tie_embeddings=True),
    "gpt2": dataclasses.replace(
        SMALL, family="gpt2", num_kv_heads=8, norm="layer", positions="learned", activation="gelu_tanh", gated=False,
        qkv_bias=True, output_bias=True, mlp_bias=True, tie_embeddings=True,
    ),
}  # fmt: skip
ModelName = Literal["llama", "qwen3-tied", "gpt2"]
Recompute = Literal["none", "selective", "full"]
Curve = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination. `sequence_parallel` matters with a tensor axis only, `schedule` with pipeline ranks only."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    zero_stage: Literal[0, 1, 2, 3] = 0
    schedule: ScheduleName = "1f1b"
    recompute: Recompute = "none"
    model: ModelName = "llama"
    sequence_parallel: bool = True

    @property
    def world_size(self) -> int:
        return self.tensor * self.pipeline * self.data

    def configs(self) -> tuple[ModelConfig, ParallelConfig, TrainingConfig]:
        """The configuration of the cell. Raises ConfigError where it is refused."""
        rule = SCHEDULES[self.schedule]
        parallel = ParallelConfig(
            tensor=self.tensor,
            pipeline=self.pipeline,
            data=self.data,
            zero_stage=self.zero_stage,
            schedule=self.schedule,
            virtual_stages=2 if rule.several and self.pipeline > 1 else 1 + rule.folded,
            sequence_parallel=self.sequence_parallel and self.tensor > 1,
        )
        count = ROWS // self.data
        size = 2 if micro_batches_fit(rule, count // 2, self.pipeline) else 1
        training = TrainingConfig(
            micro_batch_size=size,
            global_batch_size=ROWS,
            steps=STEPS,
            lr=1e-3,
            weight_decay=0.1,
            clip_grad=1.0,
            precision="fp32",
            activation_checkpointing=self.recompute,
            lr_schedule="constant",
        )
        model = MODELS[self.model]
        check_run(model, parallel, training, SEQ_LENGTH, self.world_size)
        return model, parallel, training

    def refusal(self) -> str | None:
        """Why the cell is not offered, or None."""
        try:
            self.configs()
        except ConfigError as error:
            return str(error)
        return None


def small_batch(model: ModelConfig, step: int) -> Batch:
    """The global batch of one step: two documents a row, a third of the labels ignored, more in the first rows."""
    generator = torch.Generator().manual_seed(1000 + step)
    stream = torch.randint(0, model.vocab_size, (ROWS, SEQ_LENGTH + 1), generator=generator)
    labels = stream[:, 1:].clone()
    chance = torch.linspace(0.6, 0.05, ROWS)[:, None]
    labels[torch.rand(labels.shape, generator=generator) < chance] = IGNORED
    cut = torch.randint(1, SEQ_LENGTH, (ROWS, 1), generator=generator)
    index = torch.arange(SEQ_LENGTH).expand(ROWS, -1)
    documents = (index >= cut).long()
    return Batch(stream[:, :-1].contiguous(), labels, index - documents * cut, documents)


def run_cell(cell: Cell, seed: int = 7) -> Curve:
    """(loss, gradient norm before clipping) of each step, the same on every rank. A collective over the default
    group.
    """
    model, parallel, training = cell.configs()
    mesh = Mesh.make(parallel, torch.device("cpu"))
    parts = build_parts(model, parallel, training, mesh)
    initialize(parts.parts, model, seed)
    engine = Engine(parts, parallel, training, SEQ_LENGTH, STEPS)
    share = ROWS // cell.data
    own = slice(mesh.data_rank * share, (mesh.data_rank + 1) * share)
    curve = []
    for step in range(STEPS):
        result = engine.train_step(small_batch(model, step).rows(own), step)
        curve.append((result.loss, result.grad_norm))
    return curve


def difference(curve: Curve, reference: Curve) -> float:
    """The largest relative difference of any loss or gradient norm."""
    pairs = [(a, b) for ours, theirs in zip(curve, reference, strict=True) for a, b in zip(ours, theirs, strict=True)]
    return max(abs(a - b) / abs(b) for a, b in pairs)
