"""Where the real inputs are, and what all tests share so that it is done once: imports of ranks, checks of engines."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

# The ranks of tests are processes on the CPU, whatever accelerator the machine has; set the variable to try another.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Files of tests run side by side: threads of torch and BLAS would only wait for each other, and spin while they do.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

from mmdata import tokenizer  # noqa: E402 - numpy reads the number when it is imported
from mmdata.tokenizers.engine_choice import Verdict, choose, resume  # noqa: E402

# Processes forked from the server share what it imported: a rank starts in milliseconds in place of three seconds.
multiprocessing.set_forkserver_preload(["mmdata_train.parity"])

LONGEST = (
    "test_parity", "test_lora_ranks", "test_tokenizer_shared", "test_docs", "test_lora_run", "test_dedup_resume",
    "test_chat_parity", "test_evaluate", "test_convert_stages", "test_convert_resume", "test_run", "test_export",
    "test_export_adapter", "test_generate_adapters", "test_convert_neighbours", "test_engine", "test_proof",
    "test_trainer", "test_hf_import", "test_pretrain_gpt", "test_megatron_models", "test_exit_codes", "test_cli",
    "test_lora_peft", "test_lora_merge", "test_clean_published", "test_shared_parity", "test_checkpoint",
)  # fmt: skip
"""Files that take longest, in that order: begun first, none of them is left alone on one core at the end."""

SHARED = Path(__file__).parent.parent.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora and tokenizers; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the shared corpora are not on this machine")
    return SHARED


VERDICTS: dict[tuple[Any, ...], Verdict] = {}


def choose_once(engines: Any, wanted: str, special: Any, sample: Any) -> Any:
    """As `choose`, but a tokenizer that passed its self-check in this process is not checked again: it takes 1 s."""
    kind = getattr(engines.reference, "__self__", None)
    if kind is None or engines.fast is None:
        return choose(engines, wanted, special, sample)
    key = (wanted, kind.name, kind.fingerprint, tuple(special))
    if key in VERDICTS:
        return resume(engines, VERDICTS[key]), VERDICTS[key]
    encoder, verdict = choose(engines, wanted, special, sample)
    if verdict.fast:
        VERDICTS[key] = verdict
    return encoder, verdict


@pytest.fixture(autouse=True)
def one_self_check(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are checked each time in the tests of tokenizers, which are about it; elsewhere once a tokenizer."""
    if request.path.parent.name != "tokenizers":
        monkeypatch.setattr(tokenizer, "choose", choose_once)


@pytest.fixture(autouse=True)
def no_flushing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that it wrote, and fsync takes most of the time of many tests; those that are
    about it carry the mark `fsync`.
    """
    if request.node.get_closest_marker("fsync") is None:
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longest files first; order within a file and among the others stays."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))
