"""StepLoader on one rank at a time: what every rank gets, exact resume, worker counts, what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loader_shards import VOCAB, write_corpus, write_shard  # noqa: E402

from mmdata.errors import (  # noqa: E402
    CorruptSampleError,
    ShardChangedError,
    ShardsDifferError,
    TokenOutsideVocabularyError,
)
from mmdata.indexed.writer import ShardWriter  # noqa: E402
from mmdata_train.batch import Batch  # noqa: E402
from mmdata_train.data.open import (  # noqa: E402
    ModelFacts,
    TrainingData,
    open_training,
    open_validation,
    samples_for_epochs,
)
from mmdata_train.data_config import DataConfig, DataEntry, LoadingConfig  # noqa: E402
from mmdata_train.errors import ConfigError, DataError, SamplerStateError, SamplesExhausted  # noqa: E402
from mmdata_train.layout import ParallelLayout  # noqa: E402
from mmdata_train.loader import Place, StepLoader  # noqa: E402
from mmdata_train.loss import IGNORED  # noqa: E402
from mmdata_train.sampler import ParallelSampler  # noqa: E402

HERE = LoadingConfig(workers=0)
GLOBAL = 8
ALONE = ParallelLayout()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def config_of(corpus: dict[str, str], **changes: Any) -> DataConfig:
    train = (
        DataEntry(path=corpus["plain"], weight=0.5),
        DataEntry(path=corpus["more"], weight=0.3),
        DataEntry(path=corpus["chat"], weight=0.2),
    )
    return DataConfig(**({"train": train, "seq_length": 32, "seed": 9, "loading": HERE} | changes))


def loader_of(
    data: TrainingData,
    layout: ParallelLayout = ALONE,
    rank: int = 0,
    micro: int = 1,
    **changes: Any,
) -> StepLoader:
    options = {"consumed": 0, "global_batch": GLOBAL} | changes
    sampler = ParallelSampler(len(data.samples), layout, micro, shuffle=False, **options)
    return StepLoader(data, sampler, Place(layout, rank), data.config.loading)


def equal(one: Batch, other: Batch) -> bool:
    pairs = ((getattr(one, name), getattr(other, name)) for name in ("tokens", "labels", "positions", "documents"))
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def data(corpus: dict[str, str]) -> TrainingData:
    return open_training(config_of(corpus), 6 * GLOBAL, None)


def test_batches_have_one_shape_and_come_from_every_source(data: TrainingData) -> None:
    batches = list(loader_of(data))
    assert len(batches) == 6
    for batch in batches:
        batch.check(GLOBAL, 32)
        assert batch.tokens.dtype == batch.labels.dtype == batch.positions.dtype == torch.int64
    sources = torch.cat([batch.sources for batch in batches if batch.sources is not None])
    assert torch.bincount(sources).tolist() == np.bincount(data.mix.blend.dataset_index[:48]).tolist()
    assert data.sources == [use.path for use in data.mix.phases[0].sets]


def test_labels_are_the_next_tokens_where_they_count(data: TrainingData) -> None:
    for batch in loader_of(data):
        counted = batch.labels[:, :-1] != IGNORED
        assert torch.equal(batch.labels[:, :-1][counted], batch.tokens[:, 1:][counted])
        assert batch.documents is not None
        crossing = batch.documents[:, 1:] != batch.documents[:, :-1]
        assert not (counted & crossing).any()


GRID = list(itertools.product((1, 2), (1, 2, 3), (1, 2, 4), (1, 2)))


@pytest.mark.parametrize(("tensor", "pipeline", "replicas", "micro"), GRID)
def test_every_layout_trains_on_the_same_samples(
    data: TrainingData, tensor: int, pipeline: int, replicas: int, micro: int
) -> None:
    whole = list(loader_of(data))
    layout = ParallelLayout(tensor, pipeline, replicas)
    steps = [list(loader_of(data, layout, rank, micro)) for rank in range(layout.world_size)]
    assert {len(batches) for batches in steps} == {6}
    for step, reference in enumerate(whole):
        for rank in range(layout.world_size):
            place, batch = layout.coordinates(rank), steps[rank][step]
            rows = torch.arange(GLOBAL).reshape(-1, replicas, micro)[:, place.data].reshape(-1)
            assert reference.documents is not None and batch.documents is not None
            assert torch.equal(batch.positions, reference.positions[rows])
            assert torch.equal(batch.documents, reference.documents[rows])
            assert torch.equal(batch.labels == IGNORED, reference.labels[rows] == IGNORED)
            if 0 < place.pipeline < pipeline - 1:
                assert not batch.tokens.any(), "a middle stage reads no token"
            else:
                assert torch.equal(batch.tokens, reference.tokens[rows])
                assert torch.equal(batch.labels, reference.labels[rows])


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_resuming_at_every_step_under_every_data_size_goes_on_exactly(
    corpus: dict[str, str], data: TrainingData, replicas: int
) -> None:
    whole = list(loader_of(data))
    first = iter(loader := loader_of(data))
    for step in range(6):
        state = loader.state()
        assert state["consumed"] == step * GLOBAL
        again = open_training(config_of(corpus), 6 * GLOBAL, None, state=state)
        layout = ParallelLayout(data=replicas)
        rest = [list(loader_of(again, layout, rank, consumed=state["consumed"])) for rank in range(replicas)]
        for offset, reference in enumerate(whole[step:]):
            rows = [part[offset].tokens for part in rest]
            assert torch.equal(torch.stack(rows, dim=1).reshape(GLOBAL, -1), reference.tokens)
        next(first)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_change_nothing(corpus: dict[str, str], data: TrainingData, tmp_path: Path, method: Any) -> None:
    loading = LoadingConfig(workers=2, start_method=method)
    other = open_training(config_of(corpus, loading=loading), 6 * GLOBAL, tmp_path)
    pairs = list(zip(loader_of(data), loader_of(other), strict=True))
    assert len(pairs) == 6 and all(equal(one, two) for one, two in pairs)


def test_read_ahead_does_not_move_the_place(corpus: dict[str, str], tmp_path: Path) -> None:
    config = config_of(corpus, loading=LoadingConfig(workers=1, prefetch=4))
    loader = loader_of(open_training(config, 6 * GLOBAL, tmp_path))
    for step in range(1, 3):
        loader.next_batch(GLOBAL)
        assert loader.consumed == loader.state()["consumed"] == step * GLOBAL
    loader.close()


def test_the_stream_ends_with_an_error_and_describes_its_documents(data: TrainingData) -> None:
    loader = loader_of(data)
    assert loader.describe() == []
    for _ in range(6):
        loader.next_batch(GLOBAL)
    documents = loader.describe()
    assert documents and all(text.startswith("corpus.jsonl:") for text in documents)
    with pytest.raises(SamplesExhausted, match="no whole step is left"):
        loader.next_batch(GLOBAL)


def test_a_growing_batch_takes_each_sample_once(data: TrainingData) -> None:
    sampler = ParallelSampler(48, ParallelLayout(), 2, GLOBAL, shuffle=False)
    loader = StepLoader(data, sampler, Place(ParallelLayout()), HERE, global_batch=lambda c: 4 if c < 8 else 8)
    sizes = []
    rows = []
    for size in (4, 4, 8, 8, 8, 8, 8):
        rows.append(loader.next_batch(size).tokens)
        sizes.append(len(rows[-1]))
    assert sizes == [4, 4, 8, 8, 8, 8, 8]
    assert torch.equal(torch.cat(rows), torch.cat([batch.tokens for batch in loader_of(data)]))


def test_validation_sees_each_sample_once_in_full_shapes(corpus: dict[str, str]) -> None:
    sets = open_validation(config_of(corpus, valid={"more": corpus["more"], "chat": corpus["chat"]}), None)
    assert list(sets) == ["more", "chat"]
    for data in sets.values():
        layout = ParallelLayout(data=2)
        sampler = ParallelSampler(len(data.samples), layout, 2, GLOBAL, shuffle=False, tail="pad", epochs=1)
        parts = [list(StepLoader(data, sampler, Place(layout, rank), HERE)) for rank in (0, 1)]
        assert len(parts[0]) == len(parts[1]) == -(-len(data.samples) // GLOBAL)
        rows = [batch for part in parts for batch in part]
        assert all(batch.tokens.shape == (4, 32) for batch in rows)
        padding = sum(int((batch.sources == -1).sum()) for batch in rows if batch.sources is not None)
        assert padding == len(parts[0]) * GLOBAL - len(data.samples)
        uncounted = [batch.labels[batch.sources == -1] for batch in rows if batch.sources is not None]
        assert all((labels == IGNORED).all() for labels in uncounted)


def test_a_split_gives_a_validation_set_that_shares_no_document(corpus: dict[str, str]) -> None:
    config = config_of(corpus, train=(corpus["plain"],), split="80,20")
    train, valid = open_training(config, 100, None), open_validation(config, None)["valid"]
    seen = [
        {piece.document for index in range(len(one.samples)) for piece in one.samples.pieces(index)}
        for one in (train, valid)
    ]
    assert seen[0] and seen[1] and not seen[0] & seen[1]


def test_shares_add_up_and_say_what_counts(data: TrainingData) -> None:
    shares = data.shares()
    assert [share.draws for share in shares] == np.bincount(data.mix.blend.dataset_index[:48]).tolist()
    for column in ("samples", "tokens", "counted"):
        assert sum(getattr(share, column) for share in shares) == pytest.approx(1)
    bins = data.mix.blend.sets[2].bins
    assert [share.filled for share in shares] == [1.0, 1.0, pytest.approx(bins.fill)]
    counted = [0, 0, 0]
    total = 0
    for batch in loader_of(data):
        assert batch.sources is not None
        for row, source in enumerate(batch.sources.tolist()):
            counted[source] += int((batch.labels[row] != IGNORED).sum())
        total += int(batch.counted())
    assert [share.counted for share in shares] == pytest.approx([c / total for c in counted], abs=0.03)


def test_epochs_are_passes_over_all_entries(corpus: dict[str, str]) -> None:
    config = config_of(corpus, train=(corpus["plain"], corpus["more"]))
    one = len(open_training(config, None, None).samples)
    assert samples_for_epochs(config, 2.5, None) == -(-one * 5 // 2)


# What is refused.


def test_another_tokenizer_is_refused_with_both_fingerprints(corpus: dict[str, str]) -> None:
    with pytest.raises(ShardsDifferError, match=f"{'f' * 32}.*{'0' * 32}"):
        open_training(config_of(corpus), 10, None, facts=ModelFacts(VOCAB, "0" * 32))
    open_training(config_of(corpus), 10, None, facts=ModelFacts(VOCAB, "f" * 32))


def test_a_vocabulary_beyond_the_models_is_refused(corpus: dict[str, str]) -> None:
    with pytest.raises(DataError, match="vocabulary of 1,000 tokens, but the model has 999"):
        open_training(config_of(corpus), 10, None, facts=ModelFacts(999))


def test_different_tokenizers_in_a_blend_are_refused(corpus: dict[str, str], tmp_path: Path) -> None:
    other = write_shard(tmp_path / "other", [50, 50], tokenizer_fingerprint="e" * 32)
    with pytest.raises(ShardsDifferError, match=f"tokenizer fingerprint {'f' * 32} and .* has {'e' * 32}"):
        open_training(config_of(corpus, train=(corpus["plain"], other)), 10, None)


def test_other_templates_and_recipes_may_be_mixed(tmp_path: Path) -> None:
    paths = tuple(
        write_shard(tmp_path / name, [40] * 5, seed=k, chat_template=name, recipe=name) for k, name in enumerate("ab")
    )
    assert len(open_training(DataConfig(train=paths, seq_length=16), 10, None).samples) == 10


def test_a_shard_changed_under_its_manifest_is_refused(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a", [40] * 5)
    with ShardWriter(path, vocab_size=VOCAB, overwrite=True) as writer:
        writer.add_documents(np.arange(200), np.full(4, 50))
    write_shard(tmp_path / "b", [40] * 5)
    (tmp_path / "a.json").write_bytes((tmp_path / "b.json").read_bytes())
    with pytest.raises(ShardChangedError, match="its manifest says"):
        open_training(DataConfig(train=(path,), seq_length=16), 10, None)


def test_a_state_of_other_options_is_refused_and_a_changed_shard_too(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a", [40] * 5)
    config = DataConfig(train=(path,), seq_length=16)
    state = open_training(config, 10, None).state(4)
    with pytest.raises(SamplerStateError, match=state["fingerprint"]):
        open_training(replace(config, seq_length=8), 10, None, state=state)
    for file in tmp_path.iterdir():
        file.unlink()
    write_shard(tmp_path / "a", [40] * 5, seed=99)
    with pytest.raises(ShardChangedError, match="but the checkpoint was made with"):
        open_training(config, 10, None, state=state)


def test_a_shard_without_manifest_warns_once_and_its_ids_are_checked(corpus: dict[str, str], tmp_path: Path) -> None:
    prefix = str(tmp_path / "bare")
    with ShardWriter(prefix, vocab_size=60_000) as writer:
        writer.add_documents(np.concatenate([np.arange(100), [2000], np.arange(99)]), np.array([100, 100]))
    config = DataConfig(train=(prefix,), seq_length=16, loading=HERE)
    data = open_training(config, 12, None, facts=ModelFacts(VOCAB))
    assert len(data.warnings) == 1 and "mmdata adopt" in data.warnings[0]
    sampler = ParallelSampler(12, ParallelLayout(), 1, 12, shuffle=False)
    with pytest.raises(
        TokenOutsideVocabularyError, match=r"bare: document 1 holds the token id 2,000.*vocabulary has 1,000"
    ):
        next(iter(StepLoader(data, sampler, Place(ParallelLayout()), HERE, vocab_size=VOCAB)))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_sample_names_its_shard_and_document(tmp_path: Path, workers: int) -> None:
    prefix = str(tmp_path / "lying")
    with ShardWriter(prefix, vocab_size=VOCAB) as writer:
        writer.add_documents(np.arange(100), np.full(5, 20))
    content = bytearray(Path(prefix + ".idx").read_bytes())
    place = 34 + 5 * 4 + 2 * 8
    content[place : place + 8] = (78).to_bytes(8, "little")
    Path(prefix + ".idx").write_bytes(content)
    config = DataConfig(train=(prefix,), seq_length=16, loading=LoadingConfig(workers=workers))
    data = open_training(config, 6, tmp_path / "cache")
    sampler = ParallelSampler(6, ParallelLayout(), 1, 6, shuffle=False)
    with pytest.raises(CorruptSampleError, match=r"^\S*lying: document [12] \("):
        next(iter(StepLoader(data, sampler, Place(ParallelLayout()), config.loading)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq_length": 1}, "seq_length is 1"),
        ({"num_samples": 0}, "num_samples is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"split": "x"}, "split 'x'"),
        ({"train": ("0.3", "a", "0.7")}, "neither prefixes alone nor pairs"),
        ({"train": (DataEntry(path="a", weight=1.0), DataEntry(path="b"))}, "some entries only"),
        ({"train": (0.0, "a")}, "a.* weight"),
        ({"train": (DataEntry(path="a"), "b")}, "write all of them one way"),
        ({"order": "cyclic", "tail": "pad"}, "cyclic has no padded tail"),
    ],
)
def test_a_wrong_section_is_a_configuration_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(**({"train": ("a",)} | changes))


def test_an_entry_of_no_weight_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"data\.train: a: weight is 0\.0; it must be above 0"):
        DataEntry(path="a", weight=0.0)


def test_nothing_to_train_on_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"data\.train is empty"):
        open_training(DataConfig(), 10, None)


def test_entries_may_be_written_in_three_ways() -> None:
    expected = [("a", 0.3), ("b", 0.7)]
    assert DataConfig(train=(0.3, "a", 0.7, "b")).entries == expected
    assert DataConfig(train=(DataEntry(path="a", weight=0.3), DataEntry(path="b", weight=0.7))).entries == expected
    assert DataConfig(train="a").entries == [("a", None)]
