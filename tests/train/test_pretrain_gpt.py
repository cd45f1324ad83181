"""The guide's training command: what it says when something is missing, what it loads, and one run on its own ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import mmdata
from mmdata.indexed.manifest import Manifest, write_manifest
from mmdata_train.errors import CheckpointError, CommandLineError
from mmdata_train.megatron_load import identify, take_over
from mmdata_train.megatron_run import Prepared, make_ready, prepare
from mmdata_train.model.config import ModelConfig

ROOT = Path(__file__).parent.parent.parent
TOOL = ROOT / "tools" / "pretrain_gpt.py"
GUIDE = (
    "--num-layers 48 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048"
    " --micro-batch-size 1 --global-batch-size 32 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"
    " --fp16 --save ./checkpoints --load ./pretrained_model"
)
SHAPE = "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --max-position-embeddings 64"
SMALL = f"{SHAPE} --seq-length 16 --micro-batch-size 2 --global-batch-size 8"


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pretrain_gpt", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def shard(name: str, vocab_size: int | None = 61, tokenizer: str | None = "f" * 32, documents: int = 30) -> str:
    """A small shard of documents that count upwards; with a manifest unless `vocab_size` is None."""
    generator = np.random.default_rng(0)
    with mmdata.ShardWriter(name, vocab_size=vocab_size) as writer:
        for _ in range(documents):
            start, length = generator.integers(0, 60), generator.integers(5, 40)
            writer.add_document(((start + np.arange(length)) % 60).tolist())
    if vocab_size is not None:
        write_manifest(name, Manifest(tokenizer_fingerprint=tokenizer, vocab_size=vocab_size))
    return name


def ready(line: str, world_size: int | None = None) -> Prepared:
    return prepare(shlex.split(line), world_size)


def problems(line: str, world_size: int | None = None) -> tuple[str, ...]:
    with pytest.raises(CommandLineError) as caught:
        ready(line, world_size)
    return caught.value.problems


def write(folder: Path, **files: Any) -> Path:
    """A folder with files by name (`__` stands for a slash); values become JSON or bytes."""
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def hugging_face(folder: Path, **changes: Any) -> Path:
    config = {
        "model_type": "llama", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    write(folder, **{"config.json": config | changes, "model.safetensors": b""})
    return folder


def own_run(folder: Path, *steps: int) -> Path:
    """A run's output folder with checkpoints of this engine, as far as names tell."""
    for step in steps:
        write(folder, **{f"checkpoints__step_{step:08d}__state.json": {"format": 1}})
        write(folder, **{f"checkpoints__step_{step:08d}__rank.distcp": b"weights"})
    write(folder, checkpoints__latest=f"step_{steps[-1]:08d}".encode())
    return folder


def test_guides_command_as_written_names_all_that_is_missing_and_exits_2(
    tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(shlex.split(GUIDE)) == 2
    lines = capsys.readouterr().err.rstrip("\n").split("\n")
    assert len(lines) <= 20
    errors = [line for line in lines if "error:" in line]
    assert len(errors) == 2
    assert "--load ./pretrained_model: there is no such folder" in errors[0]
    assert "--data-path is missing" in errors[1] and "--mock-data" in errors[1]
    assert any("all flags are understood and all sizes fit" in line for line in lines)
    assert any("Megatron's default is 0.1" in line for line in lines)
    assert not Path("checkpoints").exists()


def test_guides_sizes_are_checked_before_anything_starts() -> None:
    assert len(problems(GUIDE)) == 2
    found = problems(f"{GUIDE} --num-attention-heads 30 --kv-channels 128 --global-batch-size 30", world_size=16)
    assert "--global-batch-size 30 is not a multiple of micro_batch_size 1 x data 2 = 2" not in found[-1]
    assert "--tensor-model-parallel-size 4 does not divide --num-attention-heads 30" in found[-1]
    assert "--pipeline-model-parallel-size" not in problems(f"{GUIDE} --mock-data", 8)[0]
    assert any("world size 12" in text for text in problems(f"{GUIDE} --mock-data", 12))
    assert any("use 28 or 32" in text for text in problems(f"{GUIDE} --global-batch-size 30", world_size=32))


def test_long_lists_of_problems_stay_on_one_screen(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main([word for number in range(40) for word in (f"--moe-{number}", "1")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") <= 32 and "more" in error


def test_missing_shape_flags_are_named_together() -> None:
    text = problems("--seq-length 16 --micro-batch-size 1 --mock-data")[0]
    assert text.startswith("--num-layers, --hidden-size, --num-attention-heads, --max-position-embeddings missing")


def test_vocabulary_comes_from_the_manifest() -> None:
    run = ready(f"{SMALL} --data-path {shard('a_text_document')}")
    assert isinstance(run.config.model, ModelConfig)
    assert (run.config.model.vocab_size, run.config.model.vocab_multiple) == (61, 128)
    assert (run.config.train.steps, run.config.train.epochs) == (None, None)  # one epoch
    assert run.config.data.entries == [("a_text_document", None)]
    assert any("61 tokens, from the shard's manifest" in notice for notice in run.notices)


def test_given_vocabulary_wins_and_the_null_tokenizer_adds_its_end_token() -> None:
    path = shard("a_text_document")
    for line, size in (("--vocab-size 70", 70), ("--vocab-size 70 --tokenizer-type NullTokenizer", 71)):
        model = ready(f"{SMALL} --data-path {path} {line}").config.model
        assert isinstance(model, ModelConfig) and model.vocab_size == size
    assert "needs --vocab-size" in problems(f"{SMALL} --data-path {path} --tokenizer-type NullTokenizer")[0]


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("", 128),
        ("--make-vocab-size-divisible-by 1", 61),
        ("--make-vocab-size-divisible-by 3 --tensor-model-parallel-size 4", 72),
        ("--padded-vocab-size 80", 80),
    ],
)
def test_vocabulary_is_padded_to_what_the_tensor_degree_divides(line: str, rows: int) -> None:
    model = ready(f"{SMALL} --mock-data --vocab-size 61 {line}").config.model
    assert isinstance(model, ModelConfig) and model.padded_vocab_size == rows


def test_vocabulary_that_nothing_tells_is_a_problem_with_the_remedy() -> None:
    found = problems(f"{SMALL} --data-path {shard('bare_text_document', None)}")
    assert "give --vocab-size, or --tokenizer-model" in found[0]
    assert (
        "--padded-vocab-size 60 is below" in problems(f"{SMALL} --mock-data --vocab-size 61 --padded-vocab-size 60")[0]
    )


def test_shards_of_different_tokenizers_are_refused_with_both_names() -> None:
    first, second = shard("a_text_document"), shard("b_text_document", tokenizer="0" * 32)
    text = problems(f"{SMALL} --data-path 0.5 {first} 0.5 {second}")[0]
    assert "f" * 32 in text and "0" * 32 in text and second in text


def test_missing_shard_is_named_before_ranks_start() -> None:
    assert "no_such_document.idx" in problems(f"{SMALL} --data-path no_such_document")[0]


def test_tokenizer_of_the_command_line_must_be_the_shards(shared: Path) -> None:
    folders = sorted(path for path in (shared / "tokenizers").iterdir() if (path / "tokenizer.json").is_file())
    if not folders:
        pytest.skip("no tokenizer.json is at hand")
    tokenizer = mmdata.load_tokenizer(folders[0], engine="none")
    path = shard("a_text_document", tokenizer.vocab_size, tokenizer.fingerprint)
    run = ready(f"{SMALL} --data-path {path} --tokenizer-type HuggingFaceTokenizer --tokenizer-model {folders[0]}")
    assert isinstance(run.config.model, ModelConfig)
    assert (run.config.model.vocab_size, run.config.tokenizer) == (tokenizer.vocab_size, str(folders[0]))
    other = shard("b_text_document")
    text = problems(f"{SMALL} --data-path {other} --tokenizer-model {folders[0]}")[0]
    assert tokenizer.fingerprint in text and "the tokenizer of the command line" in text


def test_tokenizer_that_is_not_there_is_a_problem() -> None:
    text = problems(f"{SMALL} --mock-data --tokenizer-type HuggingFaceTokenizer --tokenizer-model some/name")[0]
    assert text.startswith("--tokenizer-model: ") and "some/name" in text
    assert "choose from" in problems(f"{SMALL} --mock-data --tokenizer-type BertWordPieceLowerCase")[0]


def test_mock_data_is_written_once_and_the_same_for_the_same_seed() -> None:
    run = ready(f"{SMALL} --mock-data --save out")
    assert run.mock is not None and run.config.train.steps == 10
    make_ready(run)
    data = mmdata.IndexedDataset(run.mock.prefix)
    assert sum(data.sequence_lengths) >= 65_536
    first = data[0].astype(np.int64)
    assert (np.diff(first) % 50257 == 1).all() and first.max() < 50257
    written = Path(f"{run.mock.prefix}.bin").stat().st_mtime_ns
    make_ready(ready(f"{SMALL} --mock-data --save out --train-iters 3"))
    assert Path(f"{run.mock.prefix}.bin").stat().st_mtime_ns == written


class _Trap:
    """A pickle that leaves a trace when somebody opens it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("opened",))


TRAP = pickle.dumps(_Trap())


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            {"iter_0000100__mp_rank_00__model_optim_rng.pt": TRAP, "latest_checkpointed_iteration.txt": b"100"},
            "mp_rank_",
        ),
        ({"release__mp_rank_00_000__model_optim_rng.pt": TRAP}, "a Megatron torch checkpoint"),
        ({"mp_rank_00__model_optim_rng.pt": TRAP}, "--ckpt-convert-format torch_dist"),
        ({"iter_0000100__common.pt": TRAP, "iter_0000100__.metadata": TRAP}, "a Megatron torch_dist checkpoint"),
        ({"metadata.json": {"sharded_backend": "torch_dist"}, "__0_0.distcp": b""}, "Megatron-Bridge"),
        ({"iter_0000100__.metadata": TRAP, "iter_0000100____0_0.distcp": b""}, "fsdp_dtensor"),
        ({"latest_checkpointed_iteration.txt": b"100"}, "newest iteration is not there"),
        ({"latest": b"global_step9", "global_step9__mp_rank_00_model_states.pt": TRAP}, "DeepSpeed"),
        ({"adapter_config.json": {}, "adapter_model.safetensors": b""}, "PEFT adapter"),
        ({"config.json": {"model_type": "llama"}, "consolidated.00.pth": TRAP}, "Meta's own format"),
        ({"config.json": {"model_type": "llama"}, "pytorch_model-00001-of-00002.bin": TRAP}, "holds pytorch_model-0"),
        ({"config.json": {"model_type": "llama"}}, "has neither model.safetensors"),
        ({"notes.txt": b"hello"}, "neither a Hugging Face folder"),
    ],
)
def test_foreign_checkpoints_are_refused_by_name_and_never_unpickled(files: dict[str, Any], reason: str) -> None:
    pytest.importorskip("torch")
    write(Path("there"), **files)
    found = problems(f"{SMALL} --mock-data --load there")
    assert any(text.startswith("--load there is ") and reason in text for text in found), found
    assert not Path("opened").exists()


def test_kinds_of_folders_are_told_apart() -> None:
    run = own_run(Path("run"), 5, 10)
    assert (identify(run).kind, identify(run).folder.name) == ("own", "step_00000010")
    assert identify(run / "checkpoints").folder.name == "step_00000010"
    assert identify(run / "checkpoints" / "step_00000005").folder.name == "step_00000005"
    assert identify(hugging_face(Path("hf"))).kind == "huggingface"
    assert identify("nothing").kind == "missing"
    Path("empty").mkdir()
    assert identify("empty").kind == "missing"
    write(Path("torn"), latest=b"step_00000007")
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        identify("torn")


def test_same_save_and_load_starts_afresh_and_continues_later() -> None:
    line = f"{SMALL} --mock-data --save run --load run"
    fresh = ready(line)
    assert fresh.checkpoint is None and any("random weights" in notice for notice in fresh.notices)
    assert "no such folder" in problems(f"{line} --exit-on-missing-checkpoint")[0]
    # Killed before its first checkpoint, whatever it had made by then: begun anew, not refused as a strange folder.
    for left in ("mock", "cache", "checkpoints/step_00000005.tmp"):
        Path("run", left).mkdir(parents=True)
        Path("run/config.yaml").write_text("{}", encoding="utf-8")
        again = ready(line)
        assert again.checkpoint is None and any("random weights" in notice for notice in again.notices)
        assert "no checkpoint in it" in problems(f"{SMALL} --mock-data --load run --save new")[0]
    own_run(Path("run"), 5)
    assert ready(line).checkpoint is None
    only_load = ready(f"{SMALL} --mock-data --load run")
    assert only_load.config.output.dir == Path("run")


def test_checkpoint_of_another_folder_is_continued_in_the_new_one() -> None:
    own_run(Path("old"), 5, 10)
    run = ready(f"{SMALL} --mock-data --save new --load old")
    assert run.checkpoint == Path("old/checkpoints/step_00000010")
    make_ready(run)
    make_ready(run)
    copied = Path("new/checkpoints/step_00000010/rank.distcp")
    assert copied.read_bytes() == b"weights" and identify("new").folder == copied.parent
    # The old run may be deleted, and a newer checkpoint is not replaced.
    own_run(Path("new"), 20)
    take_over(Path("old/checkpoints/step_00000005"), Path("new"))
    assert identify("new").folder.name == "step_00000020"
    assert any("which is continued" in notice for notice in ready(f"{SMALL} --mock-data --save new --load old").notices)


def test_older_checkpoint_of_the_same_run_needs_another_folder() -> None:
    own_run(Path("run"), 5, 10)
    text = problems(f"{SMALL} --mock-data --save run --load run/checkpoints/step_00000005")[0]
    assert "is not the newest" in text and "another --save" in text


@pytest.mark.parametrize("flag", ["--finetune", "--no-load-optim"])
def test_weights_only_start_from_an_own_checkpoint_needs_a_folder_of_its_own(flag: str) -> None:
    own_run(Path("run"), 5)
    for save in ("", "--save run"):
        assert "a folder of its own with --save" in problems(f"{SMALL} --mock-data --load run {flag} {save}")[0]
    found = ready(f"{SMALL} --mock-data --load run {flag} --save new")
    assert found.config.start_from == Path("run/checkpoints/step_00000005") and found.checkpoint is None
    assert any("from step 0 and without its optimizer" in notice for notice in found.notices)


def test_shape_of_an_own_checkpoint_comes_from_its_configuration() -> None:
    own_run(Path("run"), 5)
    line = "--seq-length 16 --micro-batch-size 1 --global-batch-size 2 --mock-data --load run --use-checkpoint-args"
    assert "config.yaml" in problems(line)[0]
    Path("run/config.yaml").write_text(
        "model: {vocab_size: 61, hidden_size: 8, num_layers: 2, num_heads: 2}\n", encoding="utf-8"
    )
    model = ready(line).config.model
    assert isinstance(model, ModelConfig) and (model.num_layers, model.hidden_size) == (2, 8)


def test_hugging_face_folder_gives_the_shape_and_flags_must_agree() -> None:
    pytest.importorskip("torch")
    hugging_face(Path("hf"))
    batch = "--seq-length 16 --micro-batch-size 2 --global-batch-size 8 --mock-data --vocab-size 61 --save out"
    run = ready(f"{batch} --load hf --finetune --hidden-dropout 0.1")
    assert (run.config.model, run.config.train.dropout) == ("hf", 0.1)
    assert any("--finetune has no effect" in notice for notice in run.notices)
    assert ready(f"{batch} --load hf {SHAPE}").config.model == "hf"
    found = problems(f"{batch} --load hf {SHAPE} --num-layers 6 --num-query-groups 4 --group-query-attention")
    assert found[0].startswith("--num-layers gives num_layers 6, but hf/config.json has 4")
    assert any("num_kv_heads 4, but hf/config.json has 2" in text for text in found)
    assert ready(f"{batch} --load hf --num-layers 6 --use-checkpoint-args").config.model == "hf"
    Path("hf/model.safetensors").rename("hf/pytorch_model.bin")
    assert ready(f"{batch} --load hf").config.model == "hf"
    assert "differ" in problems(f"{batch} --load hf --hidden-dropout 0.1 --attention-dropout 0.2")[0]


def command(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, str(TOOL), *shlex.split(line)],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, encoding="utf-8", check=False,
    )  # fmt: skip


def test_guides_command_with_data_trains_one_epoch_on_its_own_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = shard(str(tmp_path / "corpus_text_document"))
    samples = (sum(mmdata.IndexedDataset(path).sequence_lengths) - 1) // 16
    guide = f"{SMALL} --tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 --fp16 --save ./checkpoints"
    more = f"--data-path {path} --num-workers 0 --lr 1e-3 --activation-checkpointing"
    done = command(f"{guide} {more}", tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["steps"] == samples // 8
    assert "pipeline=2" in done.stderr and "2 ranks" in done.stderr
    assert identify(tmp_path / "checkpoints").folder.name == f"step_{summary['steps']:08d}"
    assert "activation_checkpointing: full" in (tmp_path / "checkpoints" / "from_flags.yaml").read_text(
        encoding="utf-8"
    )
