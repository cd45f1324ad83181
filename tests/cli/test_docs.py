"""The README's commands run as written, both languages show the same ones, and every link leads somewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import yaml
from click.testing import CliRunner
from tokenizers import decoders, models, pre_tokenizers, trainers

from mmdata.cli import COMMANDS
from mmdata_train.cli import main as MAIN

ROOT = Path(__file__).parent.parent.parent
READMES = (ROOT / "README.md", ROOT / "README.zh.md")
PAGES = [*READMES, *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def commands(page: Path) -> list[str]:
    lines = [line.split("  #")[0].strip() for block in blocks(page, "sh") for line in block.split("\n")]
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the README assumes it: corpus/, tokenizer/, chat.jsonl."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "corpus").mkdir()
    (folder / "tokenizer").mkdir()
    law = "条 为了保护民事主体的合法权益，调整民事关系，维护社会和经济秩序，根据宪法制定本法之"
    texts = [f"第{n}{law}{n}。" * 3 for n in range(40)]
    texts += [f"Chapter {n}. It was the best of times number {n}, it was the worst of times." * 4 for n in range(40)]
    lines = [json.dumps({"id": n, "text": text}, ensure_ascii=False) for n, text in enumerate(texts)]
    (folder / "corpus" / "a.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    chat = {"messages": [{"role": "user", "content": "你好"}, {"role": "assistant", "content": "你好，请讲。"}]}
    (folder / "chat.jsonl").write_text(json.dumps(chat, ensure_ascii=False) + "\n", encoding="utf-8")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    os.symlink(ROOT / "tools", folder / "tools")
    (folder / "finetune.yaml").write_text(blocks(READMES[0], "yaml")[0], encoding="utf-8")
    held_out = {"text": "A small fox found seven red apples near the old wooden bridge before the cold night came."}
    (folder / "held_out.jsonl").write_text(json.dumps(held_out) + "\n", encoding="utf-8")
    questions = "".join(json.dumps({"question": text[-40:][::-1]}) + "\n" for text in texts[::20])
    (folder / "questions.jsonl").write_text(questions, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def model(place: Path) -> None:
    """A tiny Llama in model/ that learned a little, since a run refuses one that knows nothing, and its shards."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = tokenizers.Tokenizer.from_file(str(place / "tokenizer" / "tokenizer.json"))
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    torch.manual_seed(1)
    llama = transformers.LlamaForCausalLM(config)
    ids = torch.tensor(tokenizer.encode((place / "corpus" / "a.jsonl").read_text("utf-8")).ids)
    optimizer = torch.optim.Adam(llama.parameters(), lr=1e-2)
    for rows in ids[: len(ids) // 512 * 512].view(-1, 4, 128)[:20]:
        llama(rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    llama.save_pretrained(place / "model")
    shutil.copyfile(place / "tokenizer" / "tokenizer.json", place / "model" / "tokenizer.json")
    run(place, "mmdata convert corpus/ -o out/corpus --tokenizer tokenizer/ --overwrite")


def run(place: Path, line: str) -> None:
    words = shlex.split(line)
    programs = {"mmdata": ["-m", "mmdata"], "mmdata-train": ["-m", "mmdata_train"], "python": []}
    start = [sys.executable, *programs[words[0]]]
    done = subprocess.run([*start, *words[1:]], cwd=place, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, f"{line}\n{done.stderr.decode()}"


def test_readme_commands_run_as_written(place: Path) -> None:
    for line in commands(READMES[0]):
        if not line.startswith(("make ", "pip ", "mmdata-train ")):
            run(place, line)


@pytest.mark.peer
def test_readme_training_commands_run_as_written(place: Path, model: None, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = [line for line in commands(READMES[0]) if line.startswith("mmdata-train ")]
    assert {line.split()[1] for line in trained} == {*MAIN.commands} - {"data"}
    monkeypatch.chdir(place)
    for line in trained:
        if line == "mmdata-train finetune finetune.yaml":
            run(place, line)
            continue
        # In this process, which has loaded torch already.
        done = CliRunner().invoke(MAIN, shlex.split(line)[1:])
        assert done.exit_code == 0, f"{line}\n{done.output}"


def test_readme_python_runs_as_written(place: Path) -> None:
    for block in blocks(READMES[0], "python"):
        done = subprocess.run([sys.executable, "-c", block], cwd=place, capture_output=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr.decode()


def test_both_readmes_show_the_same_commands_code_and_sections() -> None:
    english, chinese = READMES
    assert commands(english) == commands(chinese)
    assert blocks(english, "python") == blocks(chinese, "python")
    assert [*map(yaml.safe_load, blocks(english, "yaml"))] == [*map(yaml.safe_load, blocks(chinese, "yaml"))]
    sections = [page.read_text(encoding="utf-8").count("\n## ") for page in READMES]
    assert sections[0] == sections[1]
    assert [line.count("|") for line in english.read_text("utf-8").split("\n") if line.startswith("| ")] == [
        line.count("|") for line in chinese.read_text("utf-8").split("\n") if line.startswith("| ")
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_named_file_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
    for name in re.findall(r"`((?:mmdata|mmdata_train|tools|docs|benchmarks|examples)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), f"{page.name}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_named_in_the_docs_is_there(page: Path) -> None:
    for name in re.findall(r"`mmdata ([a-z]+)\b", page.read_text(encoding="utf-8")):
        assert name in COMMANDS, f"{page.name}: mmdata {name}"
    for name in re.findall(r"`mmdata-train ([a-z]+)\b", page.read_text(encoding="utf-8")):
        assert name in MAIN.commands, f"{page.name}: mmdata-train {name}"
