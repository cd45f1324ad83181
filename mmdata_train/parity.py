"""Proof that a layout trains like one process: a few AdamW steps on a small model, loss and gradient norm compared.

A cell is one combination of degrees, ZeRO stage, schedule, recomputation, compilation and adapters. `run_cell` is
called on every rank of a group of the cell's size; `config_checks` refuses cells with a reason, and `probes` lists
refused ones worth running all the same, to see whether their reason still holds. Labels are partly ignored and unevenly
spread over rows, so a mean of means would be caught; clipping is active; documents restart within rows. The same on
gloo and NCCL; a cell takes a second or two, a compiled one 10 to 60.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass
from typing import Literal

import torch

from mmdata_train.batch import Batch
from mmdata_train.config import ParallelConfig, TrainingConfig
from mmdata_train.config_checks import check_run
from mmdata_train.errors import ConfigError
from mmdata_train.lora.fill import initialize_adapters, initialize_added
from mmdata_train.lora.layer import adapter_parameters
from mmdata_train.lora.settings import LoraConfig
from mmdata_train.lora.tokens import AddedTokens
from mmdata_train.loss import IGNORED
from mmdata_train.mesh import Mesh
from mmdata_train.model.config import ModelConfig
from mmdata_train.model.init import initialize, weight_seed
from mmdata_train.parallelize import ModelParts, build_parts
from mmdata_train.schedules import SCHEDULES, ScheduleName, micro_batches_fit
from mmdata_train.slices import fill, local_slices
from mmdata_train.step import Engine

STEPS = 3
SEQ_LENGTH = 16
TOLERANCE = 1e-5
"""Largest relative difference of a loss or gradient norm in fp32: the order of sums differs, nothing else."""
BF16_TOLERANCE = 1e-2
"""The same in bf16, against one process in bf16. Products are rounded to 8 bits, a unit is 2^-8 = 4e-3 relative, and
layouts round partial sums at other places (on gloo up to 1.4e-3 was seen); a lost or doubled share of a gradient shows
as 0.1 and more.
"""
SMALL = ModelConfig(
    vocab_size=61,
    hidden_size=32,
    num_layers=4,
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
Precision = Literal["fp32", "bf16"]
TOLERANCES: dict[Precision, float] = {"fp32": TOLERANCE, "bf16": BF16_TOLERANCE}
LoraKind = Literal["none", "lora", "dora", "one-layer", "head", "tokens"]
LORAS: dict[LoraKind, LoraConfig | None] = {
    "none": None,
    "lora": LoraConfig(rank=3, plus_ratio=4.0),
    "dora": LoraConfig(rank=3, dora=True, rslora=True),
    # Stages before and behind the second layer train nothing.
    "one-layer": LoraConfig(rank=3, targets=("layers.1.*",)),
    "head": LoraConfig(rank=3, targets=("q_proj", "down_proj", "head")),
    # Rows that lie in two shares of a vocabulary split in four.
    "tokens": LoraConfig(rank=3, targets=("v_proj", "head"), added_ids=(46, 47, 48, 49)),
}
ADDED = AddedTokens(("a", "b", "c", "d"), (46, 47, 48, 49), ((1, 2), (3,), (4, 60, 30), (17, 5)))
Curve = list[tuple[float, float]]


def uneven_batch(vocab_size: int, rows: int, length: int, step: int) -> Batch:
    """The global batch of one step: two documents a row, a third of the labels ignored, more in the first rows."""
    generator = torch.Generator().manual_seed(1000 + step)
    stream = torch.randint(0, vocab_size, (rows, length + 1), generator=generator)
    labels = stream[:, 1:].clone()
    chance = torch.linspace(0.6, 0.05, rows)[:, None]
    labels[torch.rand((rows, length), generator=generator) < chance] = IGNORED
    cut = torch.randint(1, length, (rows, 1), generator=generator)
    index = torch.arange(length).expand(rows, length)
    documents = (index >= cut).long()
    return Batch(stream[:, :-1].contiguous(), labels, index - documents * cut, documents)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a cell is compared on: a reference run has the same."""

    model: ModelName
    layers: int
    rows: int

    def config(self) -> ModelConfig:
        """The model compared: a small one of its family with so many layers."""
        return dataclasses.replace(MODELS[self.model], num_layers=self.layers)

    def batch(self, step: int) -> Batch:
        """The global batch of one step."""
        return uneven_batch(SMALL.vocab_size, self.rows, SEQ_LENGTH, step)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination. `sequence_parallel` matters with a tensor axis only, `schedule` with pipeline ranks only.

    compile: each layer by itself, with inductor. lora: adapters with random B are trained in place of the weights.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    zero_stage: Literal[0, 1, 2, 3] = 0
    schedule: ScheduleName = "1f1b"
    recompute: Recompute = "none"
    model: ModelName = "llama"
    sequence_parallel: bool = True
    compile: bool = False
    precision: Precision = "fp32"
    lora: LoraKind = "none"

    @property
    def plain(self) -> Cell:
        """What the cell is compared with: one process, the same model, adapters and precision."""
        return Cell(model=self.model, precision=self.precision, lora=self.lora)

    @property
    def world_size(self) -> int:
        """Ranks of the cell."""
        return self.tensor * self.pipeline * self.data

    @property
    def shape(self) -> Shape:
        """The smallest model and batch that fill the cell's pipeline."""
        rule = SCHEDULES[self.schedule]
        stages = self.pipeline * (2 if rule.several and self.pipeline > 1 else 1)
        return Shape(self.model, max(4, stages), max(8, 2 * self.pipeline * self.data))

    def configs(self) -> tuple[ModelConfig, ParallelConfig, TrainingConfig]:
        """The configuration of the cell. Raises ConfigError where it is refused."""
        model, parallel, training = self.unchecked_configs()
        check_run(model, parallel, training, SEQ_LENGTH, self.world_size)
        return model, parallel, training

    def unchecked_configs(self) -> tuple[ModelConfig, ParallelConfig, TrainingConfig]:
        """The configuration of the cell, refused or not: for probes."""
        rule = SCHEDULES[self.schedule]
        rows = self.shape.rows
        parallel = ParallelConfig(
            tensor=self.tensor,
            pipeline=self.pipeline,
            data=self.data,
            zero_stage=self.zero_stage,
            schedule=self.schedule,
            virtual_stages=2 if rule.several and self.pipeline > 1 else 1 + rule.folded,
            sequence_parallel=self.sequence_parallel and self.tensor > 1,
            # A cell is the proof itself: what is offered only with one is refused here, and run as a probe.
            parity_check=False,
        )
        size = 2 if micro_batches_fit(rule, rows // self.data // 2, self.pipeline) else 1
        training = TrainingConfig(
            micro_batch_size=size,
            global_batch_size=rows,
            steps=STEPS,
            lr=1e-3,
            weight_decay=0.1,
            clip_grad=1.0,
            precision=self.precision,
            activation_checkpointing=self.recompute,
            compile=self.compile,
            lr_schedule="constant",
        )
        return self.shape.config(), parallel, training

    def refusal(self) -> str | None:
        """Why the cell is not offered, or None."""
        try:
            self.configs()
        except ConfigError as error:
            return str(error)
        return None


@functools.cache
def _mesh(parallel: ParallelConfig, device: torch.device) -> Mesh:
    """Groups are made once for many cells of one pool of ranks."""
    return Mesh.make(parallel, device)


def run_cell(
    cell: Cell,
    shape: Shape | None = None,
    seed: int = 7,
    device: Literal["cpu", "cuda"] = "cpu",
    *,
    probe: bool = False,
) -> Curve:
    """(loss, gradient norm before clipping) of each step, the same on every rank; a collective over the default group.

    shape: train on this instead of the cell's own, for a reference of one process. device: of the model; the process's
    current GPU for `cuda`. probe: run the cell though it is refused. Raises ConfigError where it is refused otherwise.
    """
    shape = shape or cell.shape
    engine = open_cell(cell, shape, seed, device, probe=probe)
    curve = []
    for step in range(STEPS):
        result = engine.train_step(shape.batch(step).rows(own_rows(engine, shape)), step)
        curve.append((result.loss, result.grad_norm))
    return curve


def own_rows(engine: Engine, shape: Shape) -> slice:
    """This data rank's rows of a global batch."""
    mesh = engine.model.mesh
    share = shape.rows // mesh.layout.data
    return slice(mesh.data_rank * share, (mesh.data_rank + 1) * share)


def open_cell(
    cell: Cell, shape: Shape, seed: int = 7, device: Literal["cpu", "cuda"] = "cpu", *, probe: bool = False
) -> Engine:
    """The engine `run_cell` trains; a collective over the default group. Raises ConfigError as run_cell does."""
    _, parallel, training = cell.unchecked_configs() if probe else cell.configs()
    # Its default; TF32 would differ from the CPU in the fourth digit.
    torch.set_float32_matmul_precision("highest")
    if cell.compile:
        # Compiled code of former cells counts towards the compiler's limit of versions.
        torch.compiler.reset()
    grid = ParallelConfig(tensor=cell.tensor, pipeline=cell.pipeline, data=cell.data, zero_stage=cell.zero_stage)
    model = shape.config()
    mesh = _mesh(grid, current_device(device))
    parts = build_parts(model, parallel, training, mesh, LORAS[cell.lora])
    initialize(parts.parts, model, seed)
    if parts.lora is not None:
        initialize_adapters(parts.parts, seed)
        if parts.lora.added_ids:
            initialize_added(parts.parts, ADDED)
        _fill_b(parts, seed)
    return Engine(parts, parallel, training, SEQ_LENGTH, STEPS)


def _fill_b(parts: ModelParts, seed: int) -> None:
    """Adapters start at B = 0, where A has no gradient yet: a wrong one would pass."""
    for part in parts.parts:
        for name, weight in adapter_parameters(part).items():
            if name.endswith("lora_B"):
                generator = torch.Generator().manual_seed(weight_seed(seed, name))
                fill(weight, torch.empty(weight.shape).normal_(0.0, 0.05, generator=generator)[local_slices(weight)])


def run_probe(cell: Cell, device: Literal["cpu", "cuda"] = "cpu") -> Curve:
    """`run_cell` of a cell that may be refused."""
    return run_cell(cell, device=device, probe=True)


def current_device(device: Literal["cpu", "cuda"]) -> torch.device:
    """The CPU, or the GPU this process has chosen."""
    return torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device("cpu")


def all_cells(max_ranks: int) -> list[Cell]:
    """Every combination up to `max_ranks` ranks, refused ones included, cheap ones first; llama with sequence
    parallelism.
    """
    degrees = itertools.product((1, 2, 4), (1, 2, 4), (1, 2))
    layouts = [layout for layout in degrees if layout[0] * layout[1] * layout[2] <= max_ranks]
    cells = []
    for tensor, pipeline, data in sorted(layouts, key=lambda layout: (layout[0], layout[1], layout[2])):
        schedules: tuple[ScheduleName, ...] = tuple(SCHEDULES) if pipeline > 1 else ("1f1b",)
        stages: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)
        modes: tuple[Recompute, ...] = ("none", "selective", "full")
        for zero_stage, schedule, recompute in itertools.product(stages, schedules, modes):
            cells.append(Cell(tensor, pipeline, data, zero_stage, schedule, recompute))
    return cells


def lora_cells(max_ranks: int) -> list[Cell]:
    """The offered cells of `all_cells` with adapters on every linear layer; the other kinds without recomputation."""
    offered = [cell for cell in all_cells(max_ranks) if cell.refusal() is None]
    kinds: tuple[LoraKind, ...] = ("dora", "one-layer", "head", "tokens")
    cells = [dataclasses.replace(cell, lora="lora") for cell in offered]
    return cells + [
        dataclasses.replace(cell, lora=kind) for kind in kinds for cell in offered if cell.recompute == "none"
    ]


def compiled_cells(max_ranks: int) -> list[Cell]:
    """Offered combinations with compiled layers: each axis they may be combined with, each recomputation."""
    layouts = [
        Cell(compile=True),
        Cell(data=2, zero_stage=1, compile=True),
        Cell(data=2, zero_stage=3, compile=True),
        Cell(pipeline=2, compile=True),
        Cell(pipeline=2, schedule="interleaved", compile=True),
        Cell(pipeline=2, data=2, zero_stage=3, compile=True),
        Cell(data=2, zero_stage=3, compile=True, lora="lora"),
        Cell(compile=True, lora="dora"),
    ]
    modes: tuple[Recompute, ...] = ("none", "selective", "full")
    cells = [dataclasses.replace(cell, recompute=mode) for cell in layouts for mode in modes]
    return [cell for cell in cells if cell.world_size <= max_ranks]


def probes(max_ranks: int) -> list[Cell]:
    """Refused cells whose results were found wrong somewhere: layers compiled under a tensor axis, and split backward
    passes with gradients or parameters sharded between micro-batches.
    """
    modes: tuple[Recompute, ...] = ("none", "selective", "full")
    cells = [Cell(tensor=2, recompute=mode, compile=True) for mode in modes]
    cells.append(Cell(tensor=2, sequence_parallel=False, compile=True))
    stages: tuple[Literal[2, 3], ...] = (2, 3)
    cells += [Cell(tensor=2, data=2, zero_stage=stage, compile=True) for stage in stages]
    split: tuple[ScheduleName, ...] = ("zero_bubble", "zbv", "dualpipev")
    cells += [Cell(pipeline=2, data=2, zero_stage=stage, schedule=name) for stage in stages for name in split]
    return [cell for cell in cells if cell.world_size <= max_ranks]


def difference(curve: Curve, reference: Curve) -> float:
    """The largest relative difference of any loss or gradient norm; inf where one is not finite."""
    pairs = [(a, b) for ours, theirs in zip(curve, reference, strict=True) for a, b in zip(ours, theirs, strict=True)]
    if not all(math.isfinite(value) for pair in pairs for value in pair):
        return math.inf
    return max(abs(a - b) / abs(b) for a, b in pairs)
