"""A tokenizer travels to a spawned worker as a note of where it is, and fails there when the files have changed."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from mmdata.errors import TokenizerChangedError
from mmdata.tokenizer import LoadedTokenizer, TokenizerSpec, load_tokenizer

DEADLINE_SECONDS = 240


def encode_in_worker(spec: TokenizerSpec, text: str) -> tuple[list[int], str, int]:
    tokenizer = spec.load()
    return tokenizer.encode_batch([text]).tokens.tolist(), tokenizer.engine, tokenizer.eod_id


def test_a_spawned_worker_gives_the_same_ids_with_the_same_verdict(bpe_folder: Path) -> None:
    tokenizer = load_tokenizer(bpe_folder)
    text = "人工智能 fox <|im_end|>"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        answer = pool.apply_async(encode_in_worker, (tokenizer.spec, text)).get(DEADLINE_SECONDS)
    assert answer == (tokenizer.encode_batch([text]).tokens.tolist(), tokenizer.engine, tokenizer.eod_id)


def test_a_pickle_holds_paths_and_options_and_no_vocabulary(
    bpe_folder: Path, sp_model: Path, rank_file: Path, rank_specials: Path
) -> None:
    for tokenizer in (
        load_tokenizer(bpe_folder, allow_special=True, eod_token="<|im_end|>"),
        load_tokenizer(sp_model),
        load_tokenizer(rank_file, special_tokens=rank_specials),
    ):
        note = pickle.dumps(tokenizer)
        assert len(note) < 2000
        copy: LoadedTokenizer = pickle.loads(note)
        assert (copy.fingerprint, copy.eod, copy.engine) == (tokenizer.fingerprint, tokenizer.eod, tokenizer.engine)
        assert (
            copy.encode_batch(["a <|im_end|>"]).tokens.tolist()
            == tokenizer.encode_batch(["a <|im_end|>"]).tokens.tolist()
        )


def test_a_relative_path_still_holds_in_another_folder(
    bpe_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bpe_folder)
    spec = load_tokenizer("tokenizer.json", engine="huggingface").spec
    monkeypatch.chdir(tmp_path)
    assert spec.load().vocab_size > 500


def test_files_that_changed_meanwhile_are_an_error_in_the_worker(bpe_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    text = (bpe_folder / "tokenizer.json").read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    spec = load_tokenizer(path, engine="huggingface").spec
    path.write_text(text.replace("<think>", "<thank>"), encoding="utf-8")
    with pytest.raises(TokenizerChangedError, match="changed since the run was planned"):
        spec.load()


def test_engines_start_no_threads_unless_the_user_asks(bpe_folder: Path) -> None:
    program = (
        "import os, sys, numpy; threads = lambda: len(os.listdir('/proc/self/task')); before = threads()\n"
        "from mmdata.tokenizer import load_tokenizer\n"
        "load_tokenizer(sys.argv[1], engine=sys.argv[2]).encode_batch(['a b c ' * 2000] * 200)\n"
        "print(threads() - before, os.environ['FASTOKENS_BPE_THREADS'])"
    )
    if not Path("/proc/self/task").is_dir():
        pytest.skip("threads are counted in /proc")
    for engine in ("fast", "huggingface"):
        command = [sys.executable, "-c", program, str(bpe_folder), engine]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True)
        assert done.stdout.split() == ["0", "1"], engine


def test_nothing_imports_transformers_torch_or_the_network(bpe_folder: Path) -> None:
    program = (
        "import sys; import mmdata.tokenizer; assert 'tokenizers' not in sys.modules and 'numba' not in sys.modules\n"
        "mmdata.tokenizer.load_tokenizer(sys.argv[1])\n"
        "print(sorted({'transformers', 'torch', 'huggingface_hub', 'requests', 'httpx'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program, str(bpe_folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True)
    assert done.stdout.strip() == "[]"
