"""Whole runs with adapters: warm starts, second stages, new tokens, what is told, what is refused."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402

import mmdata  # noqa: E402
from mmdata_train.checkpoint import Checkpointer  # noqa: E402
from mmdata_train.config import TrainConfig  # noqa: E402
from mmdata_train.config_io import build, dump_yaml, load_mapping  # noqa: E402
from mmdata_train.errors import ConfigError  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.lora.layer import adapter_parameters  # noqa: E402
from mmdata_train.lora.tokens import plan_tokens, write_extended  # noqa: E402
from mmdata_train.run import finetune  # noqa: E402
from mmdata_train.run_folder import latest_checkpoint, read_state  # noqa: E402
from mmdata_train.session import base_config, open_engine  # noqa: E402
from mmdata_train.trainer import RunSummary  # noqa: E402

WORDS = [f"w{i:02d}" for i in range(56)]
SHAPE = {"vocab_size": 60, "hidden_size": 32, "num_layers": 4, "num_heads": 4, "vocab_multiple": 16}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A word-level tokenizer of 60 entries, as a folder."""
    folder = tmp_path_factory.mktemp("tokenizer")
    vocabulary = {word: i for i, word in enumerate(["<unk>", "</s>", "-", "+", *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {}, "eos_token": "</s>"}), encoding="utf-8"
    )
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "count.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for start in range(40):
            words = [WORDS[(start + i) % 56] for i in range(30)]
            words[5] = "w01-w02"
            file.write(json.dumps({"text": " ".join(words)}) + "\n")
    return path


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents that count upwards, so there is something to learn."""
    prefix = tmp_path_factory.mktemp("shards") / "count_text_document"
    with mmdata.ShardWriter(prefix, vocab_size=60) as writer:
        for start in range(40):
            writer.add_document([4 + (start + i) % 56 for i in range(30)])
    return prefix


def config_of(texts: Path, tokenizer: Path, out: Path, **changes: Any) -> TrainConfig:
    mapping: dict[str, Any] = {
        "model": SHAPE,
        "tokenizer": str(tokenizer),
        "data": {
            "train": str(texts), "valid": {"count": str(texts)}, "seq_length": 16, "loading": {"workers": 0},
            "convert": {"recipe": "none", "dedup": "none", "workers": 1, "allow_special": True},
        },
        "train": {
            "micro_batch_size": 2, "global_batch_size": 8, "steps": 4, "lr": 1e-2, "precision": "fp32",
            "eval_every": 2, "eval_batches": 2, "allow_random": True,
        },
        "output": {"dir": str(out), "save_every": 2},
        "parallel": {"parity_check": False},
        **changes,
    }  # fmt: skip
    return build(TrainConfig, mapping)


def run(config: TrainConfig) -> RunSummary:
    return finetune(config)


def events(folder: Path) -> str:
    return (folder / "log.jsonl").read_text(encoding="utf-8")


def losses(folder: Path) -> list[float]:
    lines = events(folder).rstrip("\n").split("\n")
    return [record["loss"] for record in map(json.loads, lines) if record["kind"].startswith(("train", "valid"))]


def test_adapters_learn_in_one_stage_or_two_and_a_second_start_continues(
    shards: Path, tokenizer: Path, one: RankPool, two: RankPool, tmp_path: Path
) -> None:
    lora = {"lora_rank": 4, "lora_dropout": 0.1, "lora_plus_ratio": 4.0}
    one.run(run, config_of(shards, tokenizer, tmp_path / "one", **lora))
    found = losses(tmp_path / "one")
    assert found[-1] < found[0]
    limits = config_of(shards, tokenizer, tmp_path / "parts", **lora)
    stopping = build(TrainConfig, {**json_of(limits), "train": {**json_of(limits)["train"], "exit_after_minutes": 0.0}})
    assert one.run(run, stopping)[0].steps == 1
    assert one.run(run, limits)[0].steps == 4
    assert losses(tmp_path / "parts") == found
    stages = {"pipeline": 2, "parity_check": False}
    split = config_of(shards, tokenizer, tmp_path / "split", **lora, parallel=stages)
    assert two.run(run, split)[0].steps == 4


def json_of(config: TrainConfig) -> dict[str, Any]:
    import yaml

    value: dict[str, Any] = yaml.safe_load(dump_yaml(config))
    return value


def states(config: TrainConfig) -> dict[str, Any]:
    """Whole weights of an engine as it starts, one rank."""
    engine = open_engine(config, seq_length=16, total_steps=4)
    found = {}
    for name, weight in engine.model.named_parameters():
        found[name] = (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).detach().clone()
    return found


def adapter_folder(folder: Path, rank: int) -> Path:
    folder.mkdir()
    generator = torch.Generator().manual_seed(4)
    path = "base_model.model.model.layers.1.self_attn.o_proj"
    pair = {
        f"{path}.lora_A.weight": torch.randn(rank, 32, generator=generator),
        f"{path}.lora_B.weight": torch.randn(32, rank, generator=generator),
    }
    save_file(pair, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 6, "target_modules": ["layers.1.self_attn.o_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_second_stage_starts_from_an_adapter_or_merges_it_first(
    shards: Path, tokenizer: Path, one: RankPool, tmp_path: Path
) -> None:
    folder = adapter_folder(tmp_path / "adapter", 2)
    base = one.run(states, config_of(shards, tokenizer, tmp_path / "a", lora_rank=4))[0]
    warm = one.run(states, config_of(shards, tokenizer, tmp_path / "b", lora_rank=4, lora_from=str(folder)))[0]
    merged = one.run(
        states, config_of(shards, tokenizer, tmp_path / "c", lora_rank=4, lora_from=str(folder), lora_merge_first=True)
    )[0]
    name = "layers.1.attention.o_proj"
    update = 2.0 * warm[f"{name}.lora_B"] @ warm[f"{name}.lora_A"]
    assert float((update).abs().max()) > 0.1 and torch.equal(warm[f"{name}.weight"], base[f"{name}.weight"])
    assert torch.allclose(merged[f"{name}.weight"], base[f"{name}.weight"] + update, atol=1e-5)
    assert not merged[f"{name}.lora_B"].any()
    others = [key for key in base if not key.startswith(name)]
    assert all(torch.equal(base[key], warm[key]) and torch.equal(base[key], merged[key]) for key in others)


def test_full_checkpoint_is_the_base_and_adapter_checkpoint_the_start(
    shards: Path, tokenizer: Path, one: RankPool, ranks: RankPool, tmp_path: Path
) -> None:
    full = config_of(shards, tokenizer, tmp_path / "full", parallel={"tensor": 2, "pipeline": 2, "parity_check": False})
    ranks.run(run, full)
    start = latest_checkpoint(tmp_path / "full" / "checkpoints")
    lora = {"lora_rank": 4, "lora_alpha": 8.0, "start_from": str(start)}
    one.run(run, config_of(shards, tokenizer, tmp_path / "lora", **lora))
    # The base is the trained one: step 0 begins where the full run ended, up to which batches are evaluated.
    assert losses(tmp_path / "lora")[0] == pytest.approx(losses(tmp_path / "full")[-1], rel=1e-4)
    second = latest_checkpoint(tmp_path / "lora" / "checkpoints")
    assert second is not None and read_state(second)["lora"]["rank"] == 4
    again = {**lora, "start_from": str(second)}
    one.run(run, config_of(shards, tokenizer, tmp_path / "again", **again))
    assert read_state(latest_checkpoint(tmp_path / "again" / "checkpoints") or tmp_path)["step"] == 4


def test_new_tokens_begin_as_the_mean_of_their_pieces_and_are_trained_alone(
    texts: Path, tokenizer: Path, one: RankPool, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"lora_rank": 4, "added_tokens": ["w01-w02", "w03+w04"]}
    before = one.run(states, config_of(texts, tokenizer, tmp_path / "plain", lora_rank=4))[0]
    after = one.run(states, config_of(texts, tokenizer, tmp_path / "new", **changes))[0]
    for rows, table in (("embed.added.rows", "embed.tokens.weight"), ("head.added_rows", "head.weight")):
        for index, pieces in enumerate(((5, 2, 6), (7, 3, 8))):
            assert torch.allclose(after[rows][index], before[table][list(pieces)].mean(dim=0), atol=1e-6)
        assert torch.equal(after[table][:60], before[table][:60])
    assert not after["embed.tokens.weight"][60:62].any()
    one.run(run, config_of(texts, tokenizer, tmp_path / "run", **changes))
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0]
    made = mmdata.load_tokenizer(tmp_path / "run" / "tokenizer")
    assert made.vocab_size == 62
    state = read_state(latest_checkpoint(tmp_path / "run" / "checkpoints") or tmp_path)
    assert state["lora"]["added_ids"] == [60, 61]


def save_bytes(config: TrainConfig, folder: Path) -> int:
    """A checkpoint in `folder`; bytes of the adapters and of both of Adam's moments."""
    engine = open_engine(config, seq_length=16, total_steps=4)
    Checkpointer(folder, in_background=False).save(engine, {"step": 1})
    return sum(12 * weight.numel() for part in engine.model.parts for weight in adapter_parameters(part).values())


def test_checkpoint_takes_at_most_a_tenth_more_than_adapters_and_moments(
    shards: Path, tokenizer: Path, one: RankPool, tmp_path: Path
) -> None:
    # The sizes of stories260K: tensors so small that what is stored beside their numbers counts.
    small = {**SHAPE, "hidden_size": 64, "num_layers": 5, "num_heads": 8, "num_kv_heads": 4, "intermediate_size": 172}
    config = config_of(shards, tokenizer, tmp_path, model=small, lora_rank=8)
    expected = one.run(save_bytes, config, tmp_path / "checkpoints")[0]
    found = latest_checkpoint(tmp_path / "checkpoints")
    assert found is not None
    size = sum(path.stat().st_size for path in found.iterdir())
    assert expected < size < 1.1 * expected


EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "stories_lora.yaml"


def test_example_lowers_the_loss_of_texts_it_did_not_train_on(shared: Path, one: RankPool, tmp_path: Path) -> None:
    mapping = load_mapping(EXAMPLE)
    root = EXAMPLE.parent.parent
    mapping["model"] = str(shared / "models" / "stories260K")
    mapping["data"]["train"] = str(root / mapping["data"]["train"])
    mapping["data"]["valid"] = {"stories": str(root / mapping["data"]["valid"]["stories"])}
    del mapping["train"]["epochs"]
    mapping["train"] |= {"steps": 8, "eval_every": 8}
    mapping["output"] = {"dir": str(tmp_path)}
    one.run(run, build(TrainConfig, mapping))
    records = [json.loads(line) for line in events(tmp_path).rstrip("\n").split("\n")]
    course = [record["loss"] for record in records if record["kind"] == "valid/stories"]
    assert course[0] == pytest.approx(2.3467, abs=1e-3)
    assert course[-1] < course[0] - 0.05


def test_model_folder_that_is_not_there_says_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"models/stories260K is no folder here; give the model's .* --set model=DIR"):
        base_config(build(TrainConfig, {**load_mapping(EXAMPLE), "model": "no/models/stories260K"}))


def test_extended_tokenizer_knows_the_tokens_and_loses_nothing(tokenizer: Path, tmp_path: Path) -> None:
    added = plan_tokens(tokenizer, ["w01-w02", "北京大学"])
    assert (added.ids, added.pieces[0]) == ((60, 61), (5, 2, 6))
    folder = write_extended(tokenizer, added, tmp_path / "new")
    assert write_extended(tokenizer, added, folder) == folder
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert made.encode("w01-w02 w03 北京大学").ids == [60, 7, 61]
    assert plan_tokens(folder, ["w01-w02", "北京大学"]) == added
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["added_tokens_decoder"]["60"]["content"] == "w01-w02"
    assert settings["eos_token"] == "</s>"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new.lock", "new"]


def test_ranks_that_extend_a_tokenizer_at_once_all_find_it_whole(tokenizer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    # One of another run, and what a killed rank left: both give way before any rank goes on.
    write_extended(tokenizer, plan_tokens(tokenizer, ["other"]), folder)
    (tmp_path / ".new.partial").mkdir()
    (tmp_path / ".new.partial" / "tokenizer.json").write_text("half", encoding="utf-8")
    added = plan_tokens(tokenizer, ["w01-w02", "北京大学"])
    begin = threading.Barrier(8)

    def rank(number: int) -> bytes:
        begin.wait(60)
        return (write_extended(tokenizer, added, folder) / "tokenizer.json").read_bytes()

    with ThreadPoolExecutor(8) as ranks:
        found = set(ranks.map(rank, range(8), timeout=240))
    assert len(found) == 1 and "北京大学".encode() in found.pop()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new.lock", "new"]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["w01"], r"'w01' is in the vocabulary of .* already"),
        (["x", "x"], "hold a token twice"),
        ([""], "hold a token twice, or an empty one"),
        ([" "], "has no pieces"),
    ],
)
def test_tokens_that_cannot_be_added_are_refused(tokens: list[str], words: str, tokenizer: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_tokens(tokenizer, tokens)


def test_tokens_need_a_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    for where in (None, tmp_path, tmp_path / "tokenizer.model"):
        with pytest.raises(ConfigError, match=r"added_tokens need a tokenizer\.json"):
            plan_tokens(where, ["x"])
