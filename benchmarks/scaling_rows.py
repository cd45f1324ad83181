"""The rows of `scaling.py`: shapes, layouts, and what the library refuses among them. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mmdata_train.config import ParallelConfig, TrainingConfig
from mmdata_train.config_checks import check_run
from mmdata_train.errors import ConfigError
from mmdata_train.launch import DeviceType
from mmdata_train.lora.settings import LoraConfig
from mmdata_train.model.config import ModelConfig

WARM_UP, TIMED = 3, 5
LORA = LoraConfig(rank=16)

ONE = ModelConfig(
    vocab_size=128256, hidden_size=2048, num_layers=16, num_heads=32, num_kv_heads=8, intermediate_size=8192,
    max_positions=4096, rope_theta=500000.0, tie_embeddings=True,
)  # fmt: skip
EIGHT = ModelConfig(
    vocab_size=128256, hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, intermediate_size=14336,
    max_positions=4096, rope_theta=500000.0,
)  # fmt: skip
TINY = ModelConfig(
    vocab_size=128, hidden_size=64, num_layers=8, num_heads=8, num_kv_heads=8, intermediate_size=96, max_positions=32
)
SHAPES = {"1B": ONE, "8B": EIGHT, "8B/2": replace(EIGHT, num_layers=16)}


@dataclass(frozen=True, slots=True)
class Row:
    """One layout of one shape. rows: sequences a step for each GPU, so that all layouts do the same work for each."""

    shape: str
    layout: str
    parallel: ParallelConfig
    micro_batch: int
    rows: int
    compile: bool = True
    lora: LoraConfig | None = None

    @property
    def ranks(self) -> int:
        return self.parallel.tensor * self.parallel.pipeline * (self.parallel.data or 1)

    @property
    def name(self) -> str:
        return f"{self.shape} {self.layout}"

    def training(self, precision: str) -> TrainingConfig:
        return TrainingConfig(
            micro_batch_size=self.micro_batch, global_batch_size=self.rows * self.ranks, steps=WARM_UP + TIMED + 1,
            lr=1e-5, lr_schedule="constant", precision=precision, compile=self.compile,  # type: ignore[arg-type]
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setup:
    """What all rows share."""

    device: DeviceType
    seq_length: int
    precision: str
    tiny: bool

    def model(self, row: Row) -> ModelConfig:
        return replace(TINY, tie_embeddings=SHAPES[row.shape].tie_embeddings) if self.tiny else SHAPES[row.shape]


def layouts(shape: str, micro_batch: int, rows: int) -> list[Row]:
    """Two GPUs, the layouts that matter most first; pipelines with micro-batches of 1, for more of them."""
    fsdp = ParallelConfig(data=2, zero_stage=3)
    tensor = ParallelConfig(tensor=2, data=1)
    pipeline = ParallelConfig(pipeline=2, data=1)
    looped = replace(pipeline, schedule="interleaved", virtual_stages=2)
    return [
        Row(shape, "FSDP2", fsdp, micro_batch, rows),
        Row(shape, "TP2+SP", tensor, micro_batch, rows, compile=False),
        Row(shape, "FSDP2, layers not compiled", fsdp, micro_batch, rows, compile=False),
        Row(shape, "PP2 1F1B", pipeline, 1, rows),
        Row(shape, "PP2 interleaved, v=2", looped, 1, rows),
        Row(shape, "FSDP2, no overlap", replace(fsdp, overlap=False), micro_batch, rows),
        Row(shape, "TP2+SP, layers compiled", tensor, micro_batch, rows),
    ]


def mixed(shape: str, gpus: int, micro_batch: int, rows: int) -> list[Row]:
    """Four or eight GPUs: each axis alone as far as it goes, then mixes, those of a pipeline with ZeRO 1."""

    def sharded(tensor: int) -> ParallelConfig:
        return ParallelConfig(tensor=tensor, data=gpus // tensor, zero_stage=3)

    def staged(stages: int, tensor: int = 1) -> ParallelConfig:
        data = gpus // stages // tensor
        return ParallelConfig(tensor=tensor, pipeline=stages, data=data, zero_stage=1 if data > 1 else 0)

    looped = replace(staged(4), schedule="interleaved", virtual_stages=2)
    rest = gpus // 4
    tail = f" x DP{rest}" if rest > 1 else ""
    made = [
        Row(shape, f"FSDP{gpus}", sharded(1), micro_batch, rows),
        Row(shape, f"TP{gpus}+SP", ParallelConfig(tensor=gpus, data=1), micro_batch, rows, compile=False),
        Row(shape, f"TP{gpus}+SP, layers compiled", ParallelConfig(tensor=gpus, data=1), micro_batch, rows),
        Row(shape, f"PP4{tail} 1F1B", staged(4), 1, rows),
        Row(shape, f"PP4{tail} interleaved, v=2", looped, 1, rows),
        Row(shape, f"TP2+SP x PP2{tail} 1F1B", staged(2, tensor=2), 1, rows, compile=False),
        Row(shape, f"TP2+SP x FSDP{gpus // 2}", sharded(2), micro_batch, rows, compile=False),
        Row(shape, f"PP2 x DP{gpus // 2} 1F1B", staged(2), 1, rows),
        Row(shape, f"FSDP{gpus}, no overlap", replace(sharded(1), overlap=False), micro_batch, rows),
    ]
    if gpus > 4:
        made.insert(6, Row(shape, f"TP4+SP x FSDP{rest}", sharded(4), micro_batch, rows, compile=False))
    return made


def adapted_many(shape: str, gpus: int, micro_batch: int, rows: int) -> list[Row]:
    """Adapters on four or eight GPUs."""
    sharded = ParallelConfig(data=gpus, zero_stage=3)
    mix = ParallelConfig(tensor=2, pipeline=2, data=gpus // 4)
    tail = f" x DP{gpus // 4}" if gpus > 4 else ""
    return [
        Row(shape, f"LoRA FSDP{gpus}", sharded, micro_batch, rows, lora=LORA),
        Row(shape, f"LoRA TP{gpus}+SP", ParallelConfig(tensor=gpus, data=1), micro_batch, rows, compile=False,
            lora=LORA),
        Row(shape, f"LoRA TP2+SP x PP2{tail} 1F1B", mix, 1, rows, compile=False, lora=LORA),
    ]  # fmt: skip


def adapted(shape: str, micro_batch: int, rows: int) -> list[Row]:
    """Adapters on one and two GPUs."""
    tensor, pipeline = ParallelConfig(tensor=2, data=1), ParallelConfig(pipeline=2, data=1)
    sharded = ParallelConfig(data=2, zero_stage=3)
    return [
        Row(shape, "LoRA, one GPU", ParallelConfig(data=1), micro_batch, rows, lora=LORA),
        Row(shape, "LoRA FSDP2", sharded, micro_batch, rows, lora=LORA),
        Row(shape, "LoRA TP2+SP", tensor, micro_batch, rows, compile=False, lora=LORA),
        Row(shape, "LoRA TP2+SP, layers compiled", tensor, micro_batch, rows, lora=LORA),
        Row(shape, "LoRA PP2 1F1B", pipeline, 1, rows, lora=LORA),
    ]


def all_rows() -> list[Row]:
    single = ParallelConfig(data=1)
    return [
        Row("1B", "one GPU", single, 4, 8),
        *layouts("1B", 4, 8),
        Row("8B/2", "one GPU", single, 2, 4),
        Row("8B/2", "FSDP2", ParallelConfig(data=2, zero_stage=3), 2, 4),
        *layouts("8B", 2, 4),
        *adapted("8B", 2, 4),
        Row("1B", "LoRA, one GPU", single, 4, 8, lora=LORA),
        Row("1B", "LoRA FSDP2", ParallelConfig(data=2, zero_stage=3), 4, 8, lora=LORA),
        Row("1B", "ZeRO 1", ParallelConfig(data=2, zero_stage=1), 4, 8),
        Row("1B", "ZeRO 2", ParallelConfig(data=2, zero_stage=2), 4, 8),
        *(row for gpus in (4, 8) for row in rows_on(gpus)),
    ]


def rows_on(gpus: int) -> list[Row]:
    """The rows of four or eight GPUs."""
    return [
        Row("8B/2", f"FSDP{gpus}", ParallelConfig(data=gpus, zero_stage=3), 2, 4),
        *mixed("8B", gpus, 2, 4),
        *mixed("1B", gpus, 4, 8),
        *adapted_many("8B", gpus, 2, 4),
    ]


def is_probe(row: Row, setup: Setup) -> bool:
    """Whether the library refuses the layout."""
    try:
        check_run(setup.model(row), row.parallel, row.training(setup.precision), setup.seq_length, row.ranks)
    except ConfigError:
        return True
    return False
