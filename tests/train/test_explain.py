"""What torch raises as bare RuntimeErrors comes out as an error that says what to do."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rank_meshes import mesh_of  # noqa: E402

from mmdata_train.config import ParallelConfig, TrainConfig, TrainingConfig  # noqa: E402
from mmdata_train.errors import MemoryExhaustedError, RankError  # noqa: E402
from mmdata_train.explain import explained, memory_by_cause, remedies  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.model.config import ModelConfig  # noqa: E402
from mmdata_train.model.init import initialize  # noqa: E402
from mmdata_train.parallelize import build_parts  # noqa: E402
from mmdata_train.parity import SEQ_LENGTH, Shape  # noqa: E402
from mmdata_train.step import Engine  # noqa: E402

CONFIG = TrainConfig(model=ModelConfig(vocab_size=61, hidden_size=32, num_layers=2, num_heads=4))


def test_torch_out_of_memory_lists_the_remedies_in_order() -> None:
    with pytest.raises(MemoryExhaustedError) as caught, explained(CONFIG):
        torch.empty(2**62, dtype=torch.uint8)
    message = str(caught.value)
    places = [message.index(name) for name in ("activation_checkpointing selective", "zero_stage 2", "tensor 2")]
    assert places == sorted(places)
    assert "still being built" in message


def test_what_is_at_its_end_is_no_remedy() -> None:
    tight = dataclasses.replace(
        CONFIG,
        train=TrainingConfig(activation_checkpointing="full", micro_batch_size=4, global_batch_size=4),
        parallel=ParallelConfig(zero_stage=3, cpu_offload=True),
    )
    assert remedies(tight)[0] == "train.micro_batch_size 2 (now 4)"
    assert not any(word in " ".join(remedies(tight)) for word in ("activation_checkpointing", "zero_stage", "offload"))


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        ("Timed out waiting 600000ms for recv operation to complete", "parallel.timeout_minutes (10)"),
        ("[../gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:3456", "that rank ended first"),
        (
            "[/b/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:27350: Connection reset by peer. This is"
            " typically caused by a remote worker hanging. Check the logs of the remote worker. GLHF! :)",
            "say why (Read error [127.0.0.1]:27350: Connection reset by peer.)",
        ),
        (
            "\nNCCL error in: /b/NCCLUtils.cpp:94, remote process exited or there was a network error, NCCL 2.27",
            "(NCCL: remote process exited or there was a network error, NCCL 2.27)",
        ),
    ],
)
def test_lost_and_slow_peers_are_explained(raised: str, words: str) -> None:
    with pytest.raises(RankError) as caught, explained(CONFIG):
        raise RuntimeError(raised)
    told = str(caught.value)
    assert words in told and not any(part in told for part in ("GLHF", "pair.cc", "NCCLUtils", "\n"))


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match=r"^size mismatch$"), explained(CONFIG):
        raise RuntimeError("size mismatch")


def measured(folder: Path) -> tuple[dict[str, int], int]:
    parallel, training = ParallelConfig(), TrainingConfig(precision="fp32", global_batch_size=4, steps=1)
    shape = Shape("llama", 2, 4)
    parts = build_parts(shape.config(), parallel, training, mesh_of(parallel))
    initialize(parts.parts, shape.config(), 7)
    engine = Engine(parts, parallel, training, SEQ_LENGTH, 1)
    engine.train_step(shape.batch(0), 0)
    return memory_by_cause(engine), sum(weight.numel() for _, weight in parts.named_parameters())


def test_measured_bytes_are_those_of_the_live_tensors(one: RankPool, tmp_path: Path) -> None:
    causes, count = one.run(measured, tmp_path)[0]
    assert causes["weights"] == 4 * count
    assert causes["gradients"] == 0, "a step leaves none behind"
    # Two moments, and a step count of one float for each weight.
    assert 8 * count < causes["optimizer state"] < 8 * count + 4 * 64
