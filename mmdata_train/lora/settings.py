"""What an adapter is: rank, scale, dropout, variants, and the linear layers it stands beside. No torch here.

Targets are named as this engine names its modules (`q_proj`, `attention.q_proj`, `layers.3.mlp.up_proj`) or as the
model's Hugging Face folder does (`c_attn`, `self_attn.q_proj`, `lm_head`); a name means every module that ends with it.
Names with `*`, `?` or `[` are patterns over whole paths. `all-linear` is every linear layer but the head, as in PEFT.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mmdata_train.errors import ConfigError
from mmdata_train.hf_names import sources
from mmdata_train.limits import CHANCE, MOST_WIDTH, Limit, check_numbers
from mmdata_train.model.config import ModelConfig

ALL_LINEAR = "all-linear"
HEAD = "head"
MATRICES = ("lora_A", "lora_B")
MAGNITUDE = "lora_magnitude"
ADDED = "embed.added.rows"
HEAD_ADDED = "head.added_rows"
ADAPTER_NAMES = (*MATRICES, MAGNITUDE, "rows", "added_rows")
USUAL_RANKS = range(8, 65)
"""Ranks that published recipes use; others are legal and get a notice."""

ALPHA = Limit(0, above=True, hint="usual: 2 x lora_rank")
PLUS_RATIO = Limit(0, above=True, hint="usual: 4 to 16, 1 for off")
_LIMITS = {
    "rank": Limit(1, MOST_WIDTH, hint="leave it out for full fine-tuning"),
    "alpha": ALPHA,
    "dropout": CHANCE,
    "plus_ratio": PLUS_RATIO,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraConfig:
    """Adapters of one run. The update of a weight is scale x B @ A with A [rank, in] and B [out, rank].

    alpha: null is 2 x rank. rslora: scale alpha / sqrt(rank) (arXiv 2312.03732) instead of alpha / rank (2106.09685).
    dora: rows keep a learned length and the update turns them only (2402.09353). plus_ratio: learning rate of B over
    that of A (LoRA+, 2402.12354; 1: the same). added_ids: tokens whose embedding rows are trained beside the adapters.
    """

    rank: int = 16
    alpha: float | None = None
    dropout: float = 0.0
    targets: tuple[str, ...] | str = ALL_LINEAR
    rslora: bool = False
    dora: bool = False
    plus_ratio: float = 1.0
    added_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_numbers(self, "lora_", _LIMITS)
        if not self.targets:
            raise ConfigError(f"lora_targets is empty; name linear layers, or use {ALL_LINEAR!r}")

    @property
    def scale(self) -> float:
        """What B @ A is multiplied by."""
        alpha = 2.0 * self.rank if self.alpha is None else self.alpha
        return alpha / math.sqrt(self.rank) if self.rslora else alpha / self.rank

    def describe(self, model: ModelConfig) -> Iterator[str]:
        """What is trained, in words, and the notices. Raises ConfigError for unknown targets."""
        targets = resolve_targets(self, model)
        kinds = dict.fromkeys(name.rpartition(".")[2] for name in targets)
        variant = ("rsLoRA, " if self.rslora else "") + ("DoRA, " if self.dora else "")
        tokens = f" and the rows of {len(self.added_ids)} new tokens" if self.added_ids else ""
        yield (
            f"adapters: rank {self.rank}, {variant}scale {self.scale:g}, on {len(targets)} linear layers"
            f" ({', '.join(kinds)}){tokens}; the model's own weights stay as they are"
        )
        yield from self.notices()

    def notices(self) -> Iterator[str]:
        """What is legal but seldom meant."""
        if self.rank not in USUAL_RANKS:
            yield (
                f"lora_rank {self.rank} is outside {USUAL_RANKS.start} to {USUAL_RANKS.stop - 1}, where published"
                " recipes lie; memory and adapter size grow with it, the quality of most tasks does not"
            )


def is_adapter_weight(name: str) -> bool:
    """Whether a parameter's name is that of an adapter's own weight."""
    return name.rpartition(".")[2] in ADAPTER_NAMES


def linear_modules(model: ModelConfig) -> dict[str, str]:
    """Every linear layer of the model by our name -> its path in the model's Hugging Face folder, the head last."""
    table, found = sources(model), {}
    kinds = ["attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"]
    kinds += ["mlp.gate_proj"] if model.gated else []
    kinds += ["mlp.up_proj", "mlp.down_proj"]
    for layer in range(model.num_layers):
        for kind in kinds:
            name = f"layers.{layer}.{kind}"
            found[name] = table[f"{name}.weight"].key.removesuffix(".weight")
    # A tied head has no tensor of its own in the folder; the module is called so all the same.
    found[HEAD] = "lm_head"
    return found


def _matches(target: str, *paths: str) -> bool:
    if any(sign in target for sign in "*?["):
        return any(fnmatchcase(path, target) for path in paths)
    return any(path == target or path.endswith(f".{target}") for path in paths)


def resolve_targets(lora: LoraConfig, model: ModelConfig) -> tuple[str, ...]:
    """Our names of the modules that get an adapter, in the model's order.

    Raises ConfigError for a target that is no linear layer, with the names that exist.
    """
    modules = linear_modules(model)
    wanted = (lora.targets,) if isinstance(lora.targets, str) else lora.targets
    chosen: set[str] = set()
    for target in wanted:
        if target == ALL_LINEAR:
            chosen.update(name for name in modules if name != HEAD)
            continue
        hits = [name for name, path in modules.items() if _matches(target, name, path)]
        if not hits:
            raise ConfigError(f"lora_targets: no linear layer is called {target!r}; {_known(modules)}")
        chosen.update(hits)
    if lora.dora and HEAD in chosen:
        raise ConfigError(f"lora_dora with the head as a target ({HEAD}, lm_head) is not offered; take out one of them")
    return tuple(name for name in modules if name in chosen)


def check_rank(lora: LoraConfig, model: ModelConfig) -> Iterator[str]:
    """A notice where the rank is beyond a dimension of some layers: B @ A has the rank of the smaller one at most.

    Raises ConfigError where it is beyond that of every layer, with the largest rank that means something.
    """
    heads, groups = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    hidden, wide = model.hidden_size, model.intermediate_size
    outputs = {"q_proj": heads, "o_proj": heads, "k_proj": groups, "v_proj": groups, HEAD: model.vocab_size}
    kinds = dict.fromkeys(name.rpartition(".")[2] for name in resolve_targets(lora, model))
    most = {kind: min(hidden, outputs.get(kind, wide)) for kind in kinds}
    if lora.rank > max(most.values()):
        raise ConfigError(
            f"lora_rank is {lora.rank:,}, beyond the dimensions of every adapted layer; at most {max(most.values()):,}"
            " has an effect (usual: 8 to 64)"
        )
    beyond = [f"{kind} ({size})" for kind, size in most.items() if lora.rank > size]
    if beyond:
        yield (
            f"lora_rank {lora.rank} is beyond the smaller dimension of {', '.join(beyond)}: there it only takes memory"
        )


def targets_for(lora: LoraConfig, model: ModelConfig) -> tuple[str, ...] | str:
    """The targets where `model` has them all; else, as in a copy with fewer layers, every linear layer."""
    try:
        resolve_targets(lora, model)
    except ConfigError:
        return ALL_LINEAR
    return lora.targets


def _known(modules: Mapping[str, str]) -> str:
    ours = dict.fromkeys(name.rpartition(".")[2] for name in modules)
    theirs = dict.fromkeys(path.rpartition(".")[2] for path in modules.values())
    return f"known: {', '.join({**ours, **theirs})}, {ALL_LINEAR}, or a pattern such as layers.0.* over whole paths"
