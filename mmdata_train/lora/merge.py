"""Adding an adapter's update to the weights of a Hugging Face folder, one tensor at a time, in float32.

A merged weight is W + scale x B @ A, with DoRA m (W + scale x B @ A) / |W + scale x B @ A| by rows. It is rounded once,
to the dtype it is stored in; what that costs is measured. Memory: three float32 copies of the tensor.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mmdata_train.errors import AdapterError
from mmdata_train.lora.adapter import BASE_COPY, LM_HEAD, MAGNITUDE_VECTOR, TOKENS, A, Adapter, B

CONV1D = re.compile(r"(^|\.)h\.\d+\.(attn|crossattention|mlp)\.c_(attn|proj|fc)$")
"""GPT-2's Conv1D modules store [in, out]; PEFT's own flag for it is wrong where its user forgot it."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged weight and two measures over its elements: change = max |merged - base|, rounding = max |stored -
    exact|: a rounding near or above the change means the dtype swallows the update.
    """

    weight: Tensor
    change: float
    rounding: float


def refuse_quantised(folder: str | Path) -> None:
    """Raises AdapterError when the model folder's config.json names a quantisation: merge into the original."""
    path = Path(folder) / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{path} cannot be read: {error}") from None
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise AdapterError(
            f"{path}: the base is quantised ({method}); a merge would round the update away or answer to another base:"
            " merge into the original model's folder"
        )


@torch.no_grad()
def merge(
    adapter: Adapter, key: str, weight: Tensor, dtype: torch.dtype | None = None, *, tied_to: str | None = None
) -> Merged:
    """The base tensor `key` of the Hugging Face folder with the adapter's update, computed in float32 and stored as
    `dtype` (default: as it came). A tensor the adapter does not touch comes back as it is with change 0.

    weight: as in the folder, [out, in], or [in, out] where GPT-2 stores it so. An embedding or head gains rows where
    the adapter holds tokens beyond it. Base models' keys without `model.` or `transformer.` are found too. tied_to: the
    embedding's key where `key` is a head made of its table; rows of tokens trained there are the head's too. Raises
    AdapterError for a base that is not floating point, or shapes that disagree.
    """
    path = _path_of(adapter, key)
    if path is None and not key.endswith(".weight"):
        weight = adapter.tensors.get(key, weight)  # the bias of a module stored whole
    stored = weight.dtype if dtype is None else dtype
    tied = None if tied_to is None else _path_of(adapter, tied_to)
    exact = None if path is None else _exact(adapter, path, weight, tied)
    if exact is None:
        cast = weight.to(stored)
        return Merged(cast, 0.0, _largest(cast.double() - weight.double()) if stored != weight.dtype else 0.0)
    before = weight.float()
    change = _largest(exact[: before.shape[0]] - before) if exact.dim() == before.dim() else 0.0
    merged = exact.to(stored)
    return Merged(merged, change, _largest(merged.float() - exact))


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max()) if difference.numel() else 0.0


def _path_of(adapter: Adapter, key: str) -> str | None:
    """The path whose entries touch the tensor `key`, or None."""
    if not key.endswith(".weight"):
        return None
    path = key.removesuffix(".weight")
    ends = (A, TOKENS, ".weight", BASE_COPY)
    for found in (path, f"model.{path}", f"transformer.{path}"):
        if any(found + end in adapter.tensors for end in ends):
            return found
    return None


def _exact(adapter: Adapter, path: str, weight: Tensor, tied: str | None) -> Tensor:
    tensors = adapter.tensors
    if not weight.is_floating_point() or weight.element_size() < 2:
        raise AdapterError(
            f"{path}.weight of the base is {str(weight.dtype).removeprefix('torch.')}: a quantised base is not merged"
            " into; use the original model's folder"
        )
    whole = tensors.get(f"{path}.weight", tensors.get(path + BASE_COPY))
    base = weight.float() if whole is None else whole.float()
    # Rows first: a head's adapter acts on new tokens too.
    if path + TOKENS in tensors:
        base = _with_rows(adapter, path, base)
    elif whole is None and tied is not None and tied + TOKENS in tensors:
        base = _with_rows(adapter, tied, base)
    return _updated(adapter, path, base) if path + A in tensors else base


def _updated(adapter: Adapter, path: str, base: Tensor) -> Tensor:
    a, b = adapter.tensors[path + A].float(), adapter.tensors[path + B].float()
    turned = CONV1D.search(path) is not None
    rows = base.T if turned else base
    if tuple(rows.shape) != (b.shape[0], a.shape[1]):
        raise AdapterError(
            f"{path}: the adapter is made for a weight of {[b.shape[0], a.shape[1]]}, the base has"
            f" {list(rows.shape)}; is it the base the adapter was trained on"
            f" ({adapter.config.base_model or 'not named'})?"
        )
    sum_ = rows + (b @ a) * adapter.config.scale(path)
    magnitude = adapter.tensors.get(path + MAGNITUDE_VECTOR)
    if magnitude is not None:
        sum_ *= (magnitude.float() / torch.linalg.vector_norm(sum_, dim=1))[:, None]
    return sum_.T.contiguous() if turned else sum_


def _with_rows(adapter: Adapter, path: str, base: Tensor) -> Tensor:
    ids, rows = adapter.tokens_of(path), adapter.tensors[path + TOKENS].float()
    if len(ids) != rows.shape[0] or rows.shape[1] != base.shape[1]:
        raise AdapterError(
            f"{path}: {len(ids)} tokens are named but rows are {list(rows.shape)}, over a base {list(base.shape)}"
        )
    missing = max(ids) + 1 - base.shape[0]
    if missing > 0:
        base = torch.cat((base, base.new_zeros(missing, base.shape[1])))
    return base.index_copy(0, torch.tensor(ids), rows)


__all__ = ["LM_HEAD", "Merged", "merge", "refuse_quantised"]
