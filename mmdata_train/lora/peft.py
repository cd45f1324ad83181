"""PEFT's adapter folders: `adapter_config.json` and `adapter_model.safetensors`, read, written, and merged.

Tensors carry the names of the file without its `base_model.model.` prefix: PATH.lora_A.weight [rank, in],
PATH.lora_B.weight [out, rank], PATH.lora_magnitude_vector [out], where PATH is the module's path in the Hugging Face
model. GPT-2's fused c_attn is written as one adapter of three times the rank, block by block, which computes the same.
Nothing is unpickled: `.bin` adapters are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from mmdata_train.lora.settings import LoraConfig
from mmdata_train.model.config import ModelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class PeftConfig:
    """`adapter_config.json`, as far as it changes numbers. targets: as in the file (a list, or one regular expression).

    rank_pattern, alpha_pattern: PEFT's exceptions by module path. trainable_tokens: module -> rows stored beside LoRA.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] | str
    dropout: float = 0.0
    rslora: bool = False
    dora: bool = False
    fan_in_fan_out: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    modules_to_save: tuple[str, ...] = ()
    trainable_tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    base_model: str | None = None

    def scale(self, path: str) -> float:
        """What B @ A of the module at `path` is multiplied by."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter as PEFT stores it; tensors on the CPU, in the dtype of the file."""

    config: PeftConfig
    tensors: Mapping[str, Tensor]

    def unties(self) -> bool:
        """Whether merging into a model with tied embeddings needs an `lm_head.weight` of its own: the adapter changes
        the head and the embedding differently. The exporter then writes
        `merge(adapter, "lm_head.weight", embedding)` beside the embedding and sets tie_word_embeddings to false.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """What turns adapter weights of this engine into a PEFT adapter. base_model: what PEFT should load beneath it."""

    lora: LoraConfig
    model: ModelConfig
    base_model: str | None = None


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged weight and two measures over its elements: change = max |merged - base|, rounding = max |stored -
    exact|: a rounding near or above the change means the dtype swallows the update.
    """

    weight: Tensor
    change: float
    rounding: float


def read_adapter(folder: str | Path) -> Adapter:
    """The adapter of a PEFT folder. Raises AdapterError naming the file and what is wrong with it."""
    raise NotImplementedError


def peft_adapter(state: Mapping[str, Tensor], source: AdapterSource) -> Adapter:
    """Whole adapter weights by our names (as in a checkpoint below `model.`) as PEFT names them."""
    raise NotImplementedError


def write_adapter(
    state: Mapping[str, Tensor], source: AdapterSource, folder: str | Path, *, overwrite: bool = False
) -> Path:
    """Write adapter weights by our names as a PEFT folder; one tensor of `state` is in memory at a time.

    Raises OutputExistsError where an adapter is there already and `overwrite` is off.
    """
    raise NotImplementedError


def merge(adapter: Adapter, key: str, weight: Tensor, dtype: torch.dtype | None = None) -> Merged:
    """The base tensor `key` of the Hugging Face folder with the adapter's update, computed in float32 and stored as
    `dtype` (default: as it came). A tensor the adapter does not touch comes back as it is with change 0.

    weight: as in the folder, [out, in], or [in, out] where GPT-2 stores it so. Raises AdapterError for a base that is
    quantised (not floating point, or packed), or shapes that disagree.
    """
    raise NotImplementedError


def refuse_quantised(folder: str | Path) -> None:
    """Raises AdapterError when the model folder's config.json names a quantisation: merge into the original."""
    raise NotImplementedError
