"""One adapter as PEFT stores it: its configuration, its tensors by the file's names, its scale module by module.

Tensors carry the file's names without `base_model.model.`: PATH.lora_A.weight [rank, in], PATH.lora_B.weight [out,
rank], PATH.lora_magnitude_vector [out], PATH.token_adapter.trainable_tokens_delta [tokens, hidden] (the rows
themselves, whatever its name says), PATH.weight for a module stored whole. PATH is the module's path in the Hugging
Face model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from mmdata_train.lora.settings import ALL_LINEAR, LoraConfig
from mmdata_train.model.config import ModelConfig

A, B, MAGNITUDE_VECTOR = ".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"
TOKENS = ".token_adapter.trainable_tokens_delta"
BASE_COPY = ".base_layer.weight"
EMBEDDINGS = ("embed_tokens", "wte")
LM_HEAD = "lm_head"


@dataclass(frozen=True, kw_only=True, slots=True)
class PeftConfig:
    """`adapter_config.json`, as far as it changes numbers. targets: as in the file (a list, or one regular expression).

    rank_pattern, alpha_pattern: PEFT's exceptions by module path. trainable_tokens: module -> token ids whose rows are
    stored beside LoRA. modules_to_save: modules stored whole. exclude: as targets, of modules left out. layers: numbers
    of the layers that targets mean, None for all; layers_pattern: names before such a number (default: any).
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
    exclude: tuple[str, ...] | str = ()
    layers: tuple[int, ...] | None = None
    layers_pattern: tuple[str, ...] = ()

    def covers(self, path: str) -> bool:
        """Whether the linear layer at `path` gets an adapter, by PEFT's rules (`check_target_module_exists`)."""
        kept = path == LM_HEAD and self.targets == ALL_LINEAR
        if kept or _names(self.exclude, path) or _names(self.modules_to_save, path):
            return False
        if not (self.targets == ALL_LINEAR or _names(self.targets, path)):
            return False
        if self.layers is None or isinstance(self.targets, str) or path in self.targets:
            return True
        patterns = self.layers_pattern or (r"[^.]*",)
        numbers = (re.match(rf".*\.{pattern}\.(\d+)\.", path) for pattern in patterns)
        number = next((match for match in numbers if match is not None), None)
        return number is not None and int(number[1]) in self.layers

    def rank_of(self, path: str) -> int:
        """The rank of the module at `path`."""
        return int(_by_pattern(self.rank_pattern, path, self.rank))

    def scale(self, path: str) -> float:
        """What B @ A of the module at `path` is multiplied by."""
        rank, alpha = self.rank_of(path), _by_pattern(self.alpha_pattern, path, self.alpha)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank


def _names(chosen: tuple[str, ...] | str, path: str) -> bool:
    """One string is a regular expression over the whole path; names mean the path or its end from a dot on."""
    if isinstance(chosen, str):
        return re.fullmatch(chosen, path) is not None
    return any(path == name or path.endswith(f".{name}") for name in chosen)


def _by_pattern(patterns: Mapping[str, float], path: str, default: float) -> float:
    """PEFT's rule: the first key that, as a regular expression, is the end of the path from a dot on."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", path)), default)


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter as PEFT stores it; tensors on the CPU, in the dtype of the file."""

    config: PeftConfig
    tensors: Mapping[str, Tensor]

    def paths(self) -> list[str]:
        """Modules with a low-rank update."""
        return [name.removesuffix(A) for name in self.tensors if name.endswith(A)]

    def touched(self) -> list[str]:
        """Modules any tensor belongs to: low-rank updates, rows of tokens, modules stored whole."""
        ends = (A, B, MAGNITUDE_VECTOR, TOKENS, BASE_COPY, ".weight", ".bias")
        return list(dict.fromkeys(next((n.removesuffix(e) for e in ends if n.endswith(e)), n) for n in self.tensors))

    def tokens_of(self, path: str) -> tuple[int, ...]:
        """Token ids whose rows of the embedding or head at `path` the adapter holds."""
        if path + TOKENS not in self.tensors:
            return ()
        return next(
            (ids for name, ids in self.config.trainable_tokens.items() if path == name or path.endswith(f".{name}")), ()
        )

    def rows_needed(self) -> int:
        """Rows the embedding needs for the tokens the adapter holds; 0 if it holds none."""
        return max((max(ids, default=-1) + 1 for ids in self.config.trainable_tokens.values()), default=0)

    def unties(self) -> bool:
        """Whether merging into a model with tied embeddings needs an `lm_head.weight` of its own: the adapter changes
        the head and the embedding differently. The exporter then writes
        `merge(adapter, "lm_head.weight", embedding)` beside the embedding and sets tie_word_embeddings to false.
        """
        return any(f"{LM_HEAD}{end}" in self.tensors for end in (A, TOKENS, ".weight"))


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """What turns adapter weights of this engine into a PEFT adapter. base_model: what PEFT should load beneath it.

    added_tokens: ids of tokens whose rows were trained beside LoRA.
    """

    lora: LoraConfig
    model: ModelConfig
    base_model: str | None = None
    added_tokens: tuple[int, ...] = ()

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the tokens whose rows were trained, from wherever they are known."""
        return self.added_tokens or self.lora.added_ids
