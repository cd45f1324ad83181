"""Real shards, converted from the shared corpora: every sample, blend draw and sampled batch is megatron-core's.

megatron-core has no samplers (they are in Megatron's training package), so theirs are the few lines of their rule.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdata
from mmdata.samples import BlendedSamples, GPTSamples
from mmdata.samples.mix_plan import megatron_sizes
from mmdata.samples.rows import Rows

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]
SEQ_LENGTH, SEED, SPLIT = 256, 1234, "90,10,0"
SOURCES = {"zh": "zh_medical.jsonl", "en": "en_prose_0.jsonl", "sft": "chat_zh_messages.jsonl"}


@pytest.fixture(scope="module")
def prefixes(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One shard for each of SOURCES, uncleaned: int32, with end-of-document tokens; `sft` has loss spans."""
    folder = tmp_path_factory.mktemp("shards")
    for name, file in SOURCES.items():
        mmdata.convert(
            shared / "data" / file, folder / name, shared / "tokenizers" / "qwen3", recipe="none", pii="off",
            dedup="none", workers=1,
        )  # fmt: skip
    return {name: str(folder / f"{name}_text_document") for name in SOURCES}


def megatrons(blend: Any, sizes: list[int]) -> Any:
    """What megatron-core's builder makes of a blend: train, valid and test sets."""
    gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset")
    builder = pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_builder")

    class Tokenizer:
        vocab_size, eod, pad, unique_identifiers = 151_669, 151_643, 151_642, {"name": "none"}

    config = gpt.GPTDatasetConfig(
        random_seed=SEED, sequence_length=SEQ_LENGTH, blend=blend, split=SPLIT, tokenizer=Tokenizer(),
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False,
        path_to_cache="",
    )  # fmt: skip
    return builder.BlendedMegatronDatasetBuilder(gpt.GPTDataset, sizes, lambda: True, config).build()


def assert_same(samples: Any, theirs: Any, *, all_count: bool = True) -> None:
    """Tokens, labels, positions and, where every token counts, the loss mask of every sample."""
    assert len(samples) == len(theirs)
    rows = Rows.empty(len(samples), SEQ_LENGTH)
    samples.read(np.arange(len(samples)), rows)
    assert rows.tokens is not None
    for index in range(len(samples)):
        item = theirs[index]
        assert np.array_equal(rows.tokens[index, :-1], item["tokens"].numpy())
        assert np.array_equal(rows.tokens[index, 1:], item["labels"].numpy())
        assert np.array_equal(rows.positions[index], item["position_ids"].numpy())
        if all_count:
            assert np.array_equal(rows.counted[index], item["loss_mask"].bool().numpy())


@pytest.mark.parametrize("name", ["zh", "en", "sft"])
def test_every_sample_of_a_converted_shard_is_megatron_cores(name: str, prefixes: dict[str, str]) -> None:
    wanted = [2500, 60, 0]  # more than one epoch of each
    theirs = megatrons(([prefixes[name]], None), wanted)
    for number, subset in enumerate(("train", "valid")):
        mine = GPTSamples(prefixes[name], SEQ_LENGTH, wanted[number], SEED, split=SPLIT, subset=subset)  # type: ignore[arg-type]
        for array in ("document_index", "sample_index", "shuffle_index"):
            assert np.array_equal(getattr(mine, array), getattr(theirs[number], array)), array
        assert_same(mine, theirs[number], all_count=name != "sft")


def blended(prefixes: dict[str, str], weights: list[float], size: int, subset: Any) -> BlendedSamples:
    sizes, total = megatron_sizes(weights, size)
    pairs = zip(prefixes.values(), sizes, strict=True)
    return BlendedSamples(
        [GPTSamples(prefix, SEQ_LENGTH, n, SEED, split=SPLIT, subset=subset) for prefix, n in pairs], weights, total
    )


def test_every_draw_of_a_blend_of_converted_shards_is_megatron_cores(prefixes: dict[str, str]) -> None:
    weights = [0.5, 0.3, 0.2]
    theirs = megatrons((list(prefixes.values()), weights), [1500, 100, 0])
    for number, (subset, size) in enumerate((("train", 1500), ("valid", 100))):
        mine = blended(prefixes, weights, size, subset)
        assert np.array_equal(mine.dataset_index, theirs[number].dataset_index)
        assert np.array_equal(mine.dataset_sample_index, theirs[number].dataset_sample_index)
        assert_same(mine, theirs[number], all_count=False)


def single(total: int, micro: int, data: int, rank: int) -> list[list[int]]:
    """The rule of Megatron's MegatronPretrainingSampler, drop_last: consecutive batches, each rank its slice."""
    step = micro * data
    return [list(range(k + rank * micro, k + (rank + 1) * micro)) for k in range(0, total - step + 1, step)]


def cyclic(total: int, micro: int, data: int, rank: int) -> list[list[int]]:
    """The rule of MegatronPretrainingRandomSampler with data sharding, epoch 0: each rank a permuted bucket."""
    torch = pytest.importorskip("torch")
    bucket = total // (micro * data) * micro
    order = torch.randperm(bucket, generator=torch.Generator().manual_seed(0)).tolist()
    return [[rank * bucket + i for i in order[k : k + micro]] for k in range(0, bucket, micro)]


@pytest.mark.parametrize(("order", "rule"), [("single", single), ("cyclic", cyclic)])
@pytest.mark.parametrize(("micro", "data"), [(4, 1), (2, 3)])
def test_batches_of_both_samplers_hold_megatron_cores_samples(
    order: Any, rule: Any, micro: int, data: int, prefixes: dict[str, str]
) -> None:
    from mmdata_train.layout import ParallelLayout
    from mmdata_train.sampler import ParallelSampler

    theirs = megatrons((list(prefixes.values()), [0.5, 0.3, 0.2]), [200, 0, 0])[0]
    mine = blended(prefixes, [0.5, 0.3, 0.2], 200, "train")
    sampler = ParallelSampler(len(mine), ParallelLayout(data=data), micro, micro * data, order=order, epochs=1)
    for rank in range(data):
        batches = [part[0] for part, _ in sampler.iterate(rank)]
        wanted = rule(len(theirs), micro, data, rank)
        assert [batch.tolist() for batch in batches] == wanted and len(batches) > 30 // data
        rows = Rows.empty(micro, SEQ_LENGTH)
        for batch, indices in zip(batches, wanted, strict=True):
            mine.read(batch, rows)
            assert rows.tokens is not None
            expected = [theirs[i]["tokens"].numpy() for i in indices]
            assert np.array_equal(rows.tokens[:, :-1], np.stack(expected))
