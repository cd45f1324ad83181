"""Weights from Hugging Face folders into the parts of a model, each rank its own rows and columns.

Every rank first checks the whole folder against the whole model, by headers alone: a missing tensor, one without a
place, a wrong shape or a quantised dtype is the same error on every rank, before anything is read. Then it copies what
it keeps, weight by weight, out of one mapped file at a time: memory beyond the weights themselves is the mapped pages
of one file, which the system takes back when it needs them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from mmdata_train.errors import ModelError
from mmdata_train.hf_files import FLOATS, WeightFiles
from mmdata_train.hf_names import Source, expected_shape, ignorable, sources
from mmdata_train.loss import to_local
from mmdata_train.model.config import ModelConfig
from mmdata_train.model.decoder import Decoder
from mmdata_train.slices import local_slices, named_weights

_COMPARED_ROWS = 4096


@torch.no_grad()
def load_weights(parts: Iterable[nn.Module], config: ModelConfig, folder: str | Path) -> None:
    """Fill every weight of the parts from the folder; padded vocabulary rows become 0, adapters are left alone.

    Raises ModelError when a weight is missing, has another shape, or a tensor of the folder is used by nothing.
    """
    files = WeightFiles.of(Path(folder))
    table = sources(config)
    check_folder(files, config, table)
    wanted: dict[str, list[tuple[str, Tensor, Source]]] = {}
    weight: Tensor
    for name, weight in named_weights(parts):
        key = files.name_of(table[name].key)
        assert key is not None, "check_folder names missing tensors"
        wanted.setdefault(files.tensors[key].file, []).append((key, weight, table[name]))
    for file, weights in wanted.items():
        with files.open(file) as tensor:
            for key, weight, source in weights:
                _copy_part(tensor(key), weight, source)


def check_folder(files: WeightFiles, config: ModelConfig, table: dict[str, Source]) -> None:
    """Compare headers with the model. Raises ModelError naming the first tensor that does not fit."""
    with torch.device("meta"):
        shapes = {name: tuple(weight.shape) for name, weight in Decoder(config).named_parameters()}
    keys = {name: files.name_of(table[name].key) for name in shapes}
    missing = sorted({table[name].key for name, key in keys.items() if key is None})
    if missing:
        raise ModelError(
            f"{files.folder}: tensor {missing[0]!r} is missing ({len(missing)} in all){_tie_hint(missing)}"
        )
    used = set(keys.values())
    unknown = sorted(name for name in files.tensors if name not in used and not ignorable(config, name))
    if unknown:
        raise ModelError(
            f"{files.folder}: {len(unknown)} tensors have no place in a {config.family} model of this config, such as"
            f" {unknown[0]!r}"
        )
    for name, shape in shapes.items():
        stored = files.tensors[str(keys[name])]
        expected = expected_shape(config, shape, table[name])
        if expected != stored.shape:
            raise ModelError(
                f"{files.folder / stored.file}: {table[name].key!r} is {list(stored.shape)}, but {name} of this config"
                f" needs {list(expected)}"
            )
        if stored.dtype not in FLOATS:
            raise ModelError(
                f"{files.folder / stored.file}: {table[name].key!r} is stored as {stored.dtype}; quantised weights are"
                f" not read, only {', '.join(FLOATS)}: use the model's original folder"
            )
    _check_second_head(files, config, table)


def _tie_hint(missing: list[str]) -> str:
    return "; if head and embedding are one weight, config.json says tie_word_embeddings: true" * (
        missing == ["lm_head.weight"]
    )


def _check_second_head(files: WeightFiles, config: ModelConfig, table: dict[str, Source]) -> None:
    """A tied model's folder may hold the head too; it must be the embedding, or one of the two would be lost."""
    if not config.tie_embeddings or "lm_head.weight" not in files.tensors:
        return
    embedding = files.name_of(table["embed.tokens.weight"].key)
    assert embedding is not None
    head_file, embedding_file = files.tensors["lm_head.weight"].file, files.tensors[embedding].file
    with files.open(head_file) as head, files.open(embedding_file) as embed:
        one, other = head("lm_head.weight"), embed(embedding)
        rows = range(0, one.shape[0], _COMPARED_ROWS)
        equal = one.shape == other.shape and all(
            torch.equal(one[row : row + _COMPARED_ROWS], other[row : row + _COMPARED_ROWS]) for row in rows
        )
    if not equal:
        raise ModelError(
            f"{files.folder}: config.json ties head and embedding, but lm_head.weight and {embedding} differ; set"
            " tie_word_embeddings: false in config.json to keep both"
        )


def _copy_part(stored: Tensor, weight: Tensor, source: Source) -> None:
    """This rank's part of a whole tensor, into its shard; rows beyond the stored ones (vocabulary padding) are 0."""
    target, slices = to_local(weight), local_slices(weight)
    whole = stored.T if source.transposed else stored
    first, last = (min(bound + source.offset, whole.shape[0]) for bound in (slices[0].start, slices[0].stop))
    held = last - first
    target[:held].copy_(whole[(slice(first, last), *slices[1:])])
    target[held:].zero_()
