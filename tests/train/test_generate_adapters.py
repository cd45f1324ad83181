"""Runs, checkpoints, PEFT folders and exports of one training open as one model: the same texts everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

from mmdata_train.cli import main  # noqa: E402
from mmdata_train.errors import ContaminationError, GenerationError  # noqa: E402
from mmdata_train.evaluate.run import evaluate  # noqa: E402
from mmdata_train.evaluate.suite import ModelEntry, SetEntry, Suite  # noqa: E402
from mmdata_train.generation.generate import generate_ids  # noqa: E402
from mmdata_train.generation.model import open_model  # noqa: E402
from mmdata_train.generation.sampling import GenerationOptions  # noqa: E402

PROMPTS = [[1], [1, 403, 407, 261], [1, 9, 8, 7, 6, 5]]
OPTIONS = GenerationOptions(max_new_tokens=20)
TEXT = "The quick brown fox jumps over the lazy dog while seven old men watch the river run past the mill. "


@pytest.fixture(scope="module")
def runs(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two short trainings of stories260K: all weights, and adapters with a PEFT export."""
    folder = tmp_path_factory.mktemp("runs")
    model = shared / "models" / "stories260K"
    texts = [{"text": TEXT * 3 + str(n)} for n in range(40)]
    (folder / "train.jsonl").write_text("".join(json.dumps(t) + "\n" for t in texts), encoding="utf-8")
    run = CliRunner().invoke
    for name, lines in (("full", ""), ("lora", "lora_rank: 8\n")):
        config = folder / f"{name}.yaml"
        config.write_text(
            f"model: {model}\n{lines}"
            f"data: {{train: {folder}/train.jsonl, seq_length: 64, loading: {{workers: 0}},\n"
            "  convert: {recipe: none, dedup: none, workers: 1}}\n"
            "train: {steps: 4, global_batch_size: 4, micro_batch_size: 2, lr: 1.0e-2, precision: fp32}\n"
            f"output: {{dir: {folder}/{name}}}\n",
            encoding="utf-8",
        )
        done = run(main, ["finetune", str(config)])
        assert done.exit_code == 0, done.output
    for kind, name in (("peft", "lora"), ("merged", "lora"), ("hf", "full")):
        done = run(main, ["export", str(folder / name), "--to", kind, "-o", str(folder / kind)])
        assert done.exit_code == 0, done.output
    return {name: folder / name for name in ("full", "lora", "peft", "merged", "hf")} | {"base": model}


def ids(path: Path, adapter: Path | None = None) -> list[tuple[int, ...]]:
    decoder = open_model(path, adapter, precision="fp32").decoder
    return [one.ids for one in generate_ids(decoder, PROMPTS, OPTIONS)]


def test_a_run_its_checkpoint_and_its_export_generate_the_same(runs: dict[str, Path]) -> None:
    full = ids(runs["full"])
    assert ids(runs["full"] / "checkpoints" / "step_00000004") == ids(runs["full"] / "checkpoints") == full
    assert ids(runs["hf"]) == full != ids(runs["base"])


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_from_a_checkpoint_a_peft_folder_and_a_merge_equal_peft(runs: dict[str, Path]) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    found = ids(runs["lora"])
    assert ids(runs["peft"]) == ids(runs["base"], runs["peft"]) == ids(runs["merged"]) == found
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(runs["base"], dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(theirs, runs["peft"]).eval()
    for prompt, ours in zip(PROMPTS, found, strict=True):
        tokens = torch.tensor([prompt])
        made = theirs.generate(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=20, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert tuple(made[0, len(prompt) :].tolist()) == ours


def test_an_adapter_on_an_adapter_is_refused(runs: dict[str, Path]) -> None:
    with pytest.raises(GenerationError, match="is an adapter itself"):
        open_model(runs["peft"], runs["peft"])
    with pytest.raises(GenerationError, match="holds adapters itself"):
        open_model(runs["lora"], runs["peft"])


def test_what_a_run_was_trained_on_is_found_and_checked(runs: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "qa.jsonl"
    file.write_text(json.dumps({"question": TEXT, "answer": "a dog"}) + "\n", encoding="utf-8")
    sets = {"qa": SetEntry(kind="answers", path=str(file), max_new_tokens=4, metrics=("f1",))}
    models = {"tuned": ModelEntry(model=str(runs["full"]))}
    with pytest.raises(ContaminationError, match=r"1 of 1 evaluation items .*qa.jsonl:1 "):
        evaluate(Suite(models=models, sets=sets, output=tmp_path / "out"))
    found = evaluate(Suite(models=models, sets=sets, output=tmp_path / "out", allow_contamination=True))
    assert found.contamination is not None and found.contamination["contaminated"][0][2] > 0.8
    assert "1 contaminated items were allowed (--allow-contamination)" in found.notes
