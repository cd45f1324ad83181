"""Reading one Megatron command line in tests: a small model's sizes, then the flags in question."""

from __future__ import annotations

import shlex

from mmdata_train.config import TrainConfig
from mmdata_train.config_io import build
from mmdata_train.megatron_flags import Translation, nested, translate
from mmdata_train.model.config import ModelConfig

BASE = "--seq-length 64 --micro-batch-size 1 --global-batch-size 8"
SIZES = f"--num-layers 8 --hidden-size 32 --num-attention-heads 4 --max-position-embeddings 64 {BASE}"


def read(line: str, data_ranks: int = 1) -> Translation:
    return translate(shlex.split(f"{SIZES} {line}"), data_ranks)


def config_of(line: str, data_ranks: int = 1) -> TrainConfig:
    found = read(line, data_ranks)
    assert not found.problems, found.problems
    return build(TrainConfig, nested(found.fields | {"model.vocab_size": 61}))


def model_of(line: str) -> ModelConfig:
    model = config_of(line).model
    assert isinstance(model, ModelConfig)
    return model
