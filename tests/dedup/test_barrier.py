"""The barrier as convert uses it: resumable before and while deciding, frames in input order, kept names resolved."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from mmdata.dedup.barrier import Barrier, BarrierOptions, FrameDecision, drop_of, sign_documents
from mmdata.dedup.keeper import KeeperPolicy, rank_in_memory, rank_on_disk
from mmdata.dedup.params import DedupParams
from mmdata.dedup.plan import Plan
from mmdata.dedup.signer import Signer
from mmdata.document import Document, Part
from mmdata.errors import DedupStateError
from mmdata.run.channel import pack

PARAMS = DedupParams()
LONGEST = BarrierOptions(KeeperPolicy("longest"))


def blocks() -> list[list[Document]]:
    """Ten frames of seven documents (one frame empty); every third document repeats the one before, longer."""
    made: list[list[Document]] = []
    number = 0
    for frame in range(10):
        documents = []
        for _ in range(0 if frame == 4 else 7):
            stem = number - 1 if number % 3 == 0 and number else number
            text = " ".join(f"w{stem}x{i}" for i in range(40)) + " tail" * (number % 3 == 0)
            part = (Part("text", "text", text),)
            documents.append(Document("in.jsonl", 0, number + 1, None, {"text": text}, part))
            number += 1
        made.append(documents)
    return made


def outcome(barrier: Barrier) -> list[FrameDecision]:
    return list(barrier.decide(["in.jsonl"]))


def flat(decisions: list[FrameDecision]) -> tuple[list[int], list[str | None]]:
    kept_of = np.concatenate([d.kept_of for d in decisions]).tolist()
    return kept_of, [name for d in decisions for name in d.kept_names]


@pytest.mark.parametrize("options", [BarrierOptions(), LONGEST])
def test_a_barrier_killed_between_checkpoints_or_while_deciding_decides_the_same(
    tmp_path: Path, options: BarrierOptions
) -> None:
    signer = Signer(PARAMS)
    signed = [sign_documents(documents, signer, options.policy) for documents in blocks()]
    whole = Barrier(tmp_path / "whole", PARAMS, options)
    for block in signed:
        whole.take(block)
    wanted = outcome(whole)
    assert [d.frame for d in wanted] == list(range(10))
    assert sum((d.kept_of >= 0).sum() for d in wanted) > 5
    whole.close()
    assert not (tmp_path / "whole").exists()

    first = Barrier(tmp_path / "killed", PARAMS, options)
    for block in signed[:6]:
        first.take(block)
    state = first.checkpoint()
    for block in signed[6:8]:
        first.take(block)
    first.suspend()
    second = Barrier(tmp_path / "killed", PARAMS, options, state)
    for block in signed[6:]:
        second.take(block)
    state = second.checkpoint()
    frames = second.decide(["in.jsonl"])
    next(frames)  # the keys are consumed by now
    frames.close()
    second.suspend()
    third = Barrier(tmp_path / "killed", PARAMS, options, state)
    assert flat(outcome(third)) == flat(wanted)
    assert third.statistics.cluster_sizes() == whole.statistics.cluster_sizes()
    third.close()


@pytest.mark.parametrize("policy", [KeeperPolicy(), KeeperPolicy("longest")])
def test_a_signed_block_that_was_handed_over_is_spooled_as_it_was(tmp_path: Path, policy: KeeperPolicy) -> None:
    """Its frame lies outside the pickle when it is large; older protocols and small frames keep it inside."""
    made = [sign_documents(documents * 20, Signer(PARAMS), policy) for documents in blocks()[:5]]
    spooled = []
    for name, received in (
        ("made", made),
        ("buffers", [pack(block).load() for block in made]),
        ("inside", [pickle.loads(pickle.dumps(block, protocol=5)) for block in made]),
        ("old", [pickle.loads(pickle.dumps(block, protocol=4)) for block in made]),
    ):
        barrier = Barrier(tmp_path / name, PARAMS, BarrierOptions(policy))
        for block in received:
            barrier.take(block)
        barrier.checkpoint()
        spooled.append((barrier.spool_path.read_bytes(), flat(outcome(barrier))))
        barrier.close()
    assert spooled == spooled[:1] * 4
    assert made[1].frame in pack(made[1]).buffers


@pytest.mark.parametrize("memory", [1 << 20, 256 << 20])
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_several_threads_decide_what_one_does(tmp_path: Path, threads: int, memory: int) -> None:
    """Of a corpus whose pieces of a work memory are many, one document larger than a piece."""
    texts = [" ".join(f"w{i // 3}x{j}" for j in range(900)) + f" {i}" for i in range(300)]
    texts[150] = " ".join(f"y{j}" for j in range(60_000))
    documents = [
        Document("in.jsonl", 0, i + 1, None, {"text": text}, (Part("text", "text", text),))
        for i, text in enumerate(texts)
    ]
    found = {}
    for count in (1, threads):
        barrier = Barrier(tmp_path / f"work{count}", PARAMS, BarrierOptions(threads=count, memory=memory))
        for low in range(0, 300, 50):
            barrier.take(sign_documents(documents[low : low + 50], Signer(PARAMS), KeeperPolicy()))
        decisions = outcome(barrier)
        found[count] = flat(decisions), [d.similarity.tolist() for d in decisions], barrier.statistics.compared
        barrier.close()
    assert found[threads] == found[1]
    assert sum(number >= 0 for number in found[1][0][0]) == 199  # of three alike one stays; one became another text


def test_drops_name_the_kept_document_by_path_and_line(tmp_path: Path) -> None:
    barrier = Barrier(tmp_path / "work", PARAMS)
    signer = Signer(PARAMS)
    text = "a b c d e f g h"
    documents = [
        Document(f"{name}.jsonl", n, 5 + n, name, {"text": text}, (Part("text", "text", text),))
        for n, name in enumerate("ab")
    ]
    barrier.take(sign_documents(documents, signer, KeeperPolicy()))
    decision = outcome_named(barrier, ["a.jsonl", "b.jsonl"])
    drop = drop_of(("b.jsonl", 1, 6, "b"), decision, 1, PARAMS)
    assert (drop.kept, drop.similarity, drop.limit, drop.reason) == ("a.jsonl:5", 1.0, 0.8, "near_duplicate")
    assert decision.kept.tolist() == [True, False]
    barrier.close()


def outcome_named(barrier: Barrier, names: list[str]) -> FrameDecision:
    (decision,) = barrier.decide(names)
    return decision


def test_a_checkpoint_of_other_parameters_is_refused(tmp_path: Path) -> None:
    barrier = Barrier(tmp_path / "work", PARAMS)
    state = barrier.checkpoint()
    barrier.suspend()
    with pytest.raises(DedupStateError, match="start anew"):
        Barrier(tmp_path / "work", DedupParams(ngram=3), state=state)


def test_ranking_on_disk_equals_a_stable_sort_with_ties_negatives_and_missing_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    spread = rng.normal(size=30_000)
    for values in (
        spread,
        np.round(spread),
        np.zeros(5000),
        np.where(rng.random(9000) < 0.3, -np.inf, np.abs(spread[:9000])),
        np.array([0.0, -0.0, 1e300, -1e300, np.inf, 5e-324]),
    ):
        path = tmp_path / "order"
        path.write_bytes(values.astype("<f8").tobytes())
        wanted = np.empty(len(values), dtype=np.uint32)
        wanted[np.argsort(-values, kind="stable")] = np.arange(len(values))
        assert np.array_equal(rank_in_memory(values), wanted)
        assert np.array_equal(rank_on_disk(path, len(values)), wanted)


def test_the_plan_stays_within_512_bytes_of_scratch_and_8_of_memory_for_any_bands() -> None:
    for bands in range(1, 25):
        plan = Plan(10_000_000, 10**10, DedupParams(bands=bands, rows=4), 1 << 28)
        assert plan.scratch_per_document <= 512
        assert plan.ram - Plan(0, 0, DedupParams(), 1 << 28).ram == 8 * 10_000_000
