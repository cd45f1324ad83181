"""Checkpoints of any layout become folders that transformers loads with the very same weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
pytestmark = pytest.mark.peer

from click.testing import CliRunner  # noqa: E402
from export_models import CHATML, SIZES, VOCAB, save_checkpoint, write_tokenizer  # noqa: E402

import mmdata  # noqa: E402
from mmdata.errors import ChatTemplateError, DiskFullError, OutputExistsError  # noqa: E402
from mmdata_train.cli import main  # noqa: E402
from mmdata_train.config import TrainConfig  # noqa: E402
from mmdata_train.config_io import build  # noqa: E402
from mmdata_train.errors import ConfigError, ExportError  # noqa: E402
from mmdata_train.export.command import export_checkpoint  # noqa: E402
from mmdata_train.export.options import ExportOptions, ExportResult  # noqa: E402
from mmdata_train.export.record import RECORD  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.run import finetune  # noqa: E402

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True}),
    "gpt2": ("GPT2", {}),
}
CASES = [
    ("llama", "tp2pp2"), ("mistral", "pp2dp2-zero1"), ("qwen2", "tp2dp2-zero3"), ("qwen3", "tp2pp2"),
    ("qwen3", "folded"), ("gpt2", "tp2pp2"), ("gpt2", "tp2dp2-zero3"),
]  # fmt: skip
GPT2_SIZES = dict(vocab_size=VOCAB, n_embd=32, n_layer=4, n_head=4, n_positions=64, initializer_range=0.2)
TOKENS = 260 + torch.arange(80).reshape(2, 40) * 37 % 261 - 260


def source_folder(name: str, folder: Path) -> Path:
    """A random model saved by transformers, with a tokenizer and a generation config."""
    kind, options = MODELS[name]
    torch.manual_seed(5)
    sizes = GPT2_SIZES if kind == "GPT2" else SIZES
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **options}, eos_token_id=256, bos_token_id=256)
    head = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    model = getattr(transformers, head)(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    model.generation_config.temperature, model.generation_config.do_sample = 0.7, True
    model.save_pretrained(folder)
    return write_tokenizer(folder)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: source_folder(name, tmp_path_factory.mktemp(name)) for name in MODELS}


@pytest.fixture(scope="module")
def checkpoint(sources: dict[str, Path], one: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama's, trained on chat shards with the tokenizer's own template."""
    out = tmp_path_factory.mktemp("run") / "checkpoints"
    one.run(save_checkpoint, "one", sources["llama"], out, {"chat_templates": (CHATML,)})
    return out


def export(checkpoint: Path, output: Path, **options: Any) -> ExportResult:
    return export_checkpoint(checkpoint, ExportOptions(**{"to": "hf", "output": output, **options}))


def loaded(folder: Path) -> Any:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    return model.eval()


@pytest.mark.parametrize(("name", "layout"), CASES, ids=lambda value: str(value))
def test_export_of_any_layout_has_the_source_s_weights_and_logits(
    name: str, layout: str, sources: dict[str, Path], ranks: RankPool, tmp_path: Path
) -> None:
    ranks.run(save_checkpoint, layout, sources[name], tmp_path / "checkpoints", {})
    result = export(tmp_path / "checkpoints", tmp_path / "out")
    theirs, ours = loaded(sources[name]), loaded(tmp_path / "out")
    expected, found = theirs.state_dict(), ours.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    with torch.no_grad():
        assert torch.equal(ours(TOKENS).logits, theirs(TOKENS).logits)
    assert (result.step, result.vocab_size, result.dtype) == (3, VOCAB, "float32")
    assert ours.config.tie_word_embeddings == theirs.config.tie_word_embeddings


def test_config_is_the_source_s_and_tokenizer_files_are_its_bytes(
    checkpoint: Path, sources: dict[str, Path], tmp_path: Path
) -> None:
    export(checkpoint, tmp_path / "out")
    read = [json.loads((folder / "config.json").read_text("utf-8")) for folder in (sources["llama"], tmp_path / "out")]
    assert read[0] == read[1]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (sources["llama"] / name).read_bytes()
    assert not (tmp_path / "out" / "chat_template.jinja").exists(), "the template of training is the tokenizer's own"


def test_generation_config_keeps_the_source_s_values_and_gains_the_end_of_turn(
    checkpoint: Path, tmp_path: Path
) -> None:
    result = export(checkpoint, tmp_path / "out")
    found = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert found.eos_token_id == result.eos_token_id == [256, 258]  # <|endoftext|>, <|im_end|>
    assert (found.temperature, found.do_sample, found.bos_token_id) == (0.7, True, 256)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_dtype_is_that_of_tensors_and_config(
    dtype: str, checkpoint: Path, sources: dict[str, Path], tmp_path: Path
) -> None:
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    result = export(checkpoint, tmp_path / "out", dtype=dtype)
    found, expected = loaded(tmp_path / "out").state_dict(), loaded(sources["llama"]).state_dict()
    assert all(found[key].dtype == kind and torch.equal(found[key], expected[key].to(kind)) for key in expected)
    assert result.bytes < 2.2 * sum(value.numel() for value in expected.values()) + 10_000


def test_shards_and_index_load_as_one_model(checkpoint: Path, sources: dict[str, Path], tmp_path: Path) -> None:
    result = export(checkpoint, tmp_path / "out", max_shard_bytes=30_000)
    shards = sorted((tmp_path / "out").glob("model-*.safetensors"))
    assert len(shards) > 3 and shards[-1].name == f"model-{len(shards):05d}-of-{len(shards):05d}.safetensors"
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text(encoding="utf-8"))
    expected = loaded(sources["llama"]).state_dict()
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in expected.values())
    assert set(index["weight_map"]) == set(expected)
    found = loaded(tmp_path / "out").state_dict()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert {path.name for path in shards} <= set(result.files)


def test_another_template_of_training_is_written_printed_and_used_by_transformers(
    sources: dict[str, Path], one: RankPool, tmp_path: Path
) -> None:
    trained = CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\nAnswer: '")
    one.run(save_checkpoint, "one", sources["qwen2"], tmp_path / "checkpoints", {"chat_templates": (trained,)})
    result = export(tmp_path / "checkpoints", tmp_path / "out")
    assert result.chat_template_differs
    assert any("chat_template.diff" in text and "Answer: " in text for text in result.notices)
    assert "+" in (tmp_path / "out" / "chat_template.diff").read_text(encoding="utf-8")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template == trained
    files = [name for name in ("tokenizer.json", "tokenizer_config.json")]
    assert all((tmp_path / "out" / n).read_bytes() == (sources["qwen2"] / n).read_bytes() for n in files)
    own = export(tmp_path / "checkpoints", tmp_path / "own", chat_template="tokenizer")
    assert not own.chat_template_differs and not (tmp_path / "own" / "chat_template.jinja").exists()


def test_shards_with_several_templates_need_a_choice(sources: dict[str, Path], one: RankPool, tmp_path: Path) -> None:
    facts = {"chat_templates": (CHATML, CHATML + " ")}
    one.run(save_checkpoint, "one", sources["qwen2"], tmp_path / "checkpoints", facts)
    with pytest.raises(ExportError, match=r"rendered with 2 chat templates.*--chat-template FILE"):
        export(tmp_path / "checkpoints", tmp_path / "out")
    joined = {"chat_templates": (f"{CHATML} + {CHATML.replace('im_end', 'tool')}",)}
    one.run(save_checkpoint, "one", sources["qwen2"], tmp_path / "merged", joined)
    with pytest.raises(ExportError, match="merged from shards with several chat templates"):
        export(tmp_path / "merged", tmp_path / "out")
    (tmp_path / "chosen.jinja").write_text(CHATML, encoding="utf-8")
    export(tmp_path / "checkpoints", tmp_path / "out", chat_template=str(tmp_path / "chosen.jinja"))


def test_template_may_be_a_built_in_or_a_file_as_generate_takes_them(checkpoint: Path, tmp_path: Path) -> None:
    result = export(checkpoint, tmp_path / "llama3", chat_template="llama3")
    built_in = (tmp_path / "llama3" / "chat_template.jinja").read_text(encoding="utf-8")
    assert result.chat_template_differs and "<|start_header_id|>" in built_in
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "llama3").chat_template == built_in
    file = tmp_path / "chat_template.json"
    file.write_text(json.dumps({"chat_template": built_in}), encoding="utf-8")
    export(checkpoint, tmp_path / "json", chat_template=str(file))
    assert (tmp_path / "json" / "chat_template.jinja").read_text(encoding="utf-8") == built_in
    with pytest.raises(ChatTemplateError, match=r"--chat-template chatlm: no such file and no built-in; did you mean"):
        export(checkpoint, tmp_path / "none", chat_template="chatlm")
    assert not (tmp_path / "none").exists()


def test_tokenizer_changed_since_training_is_refused(sources: dict[str, Path], one: RankPool, tmp_path: Path) -> None:
    facts = {"tokenizer_fingerprint": "f" * 32}
    one.run(save_checkpoint, "one", sources["qwen2"], tmp_path / "checkpoints", facts)
    with pytest.raises(ExportError, match=r"has the fingerprint [0-9a-f]{32}, but training used f{32}; give that one"):
        export(tmp_path / "checkpoints", tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


def test_value_beyond_fp16_is_named_and_nothing_is_left(
    sources: dict[str, Path], one: RankPool, tmp_path: Path
) -> None:
    folder = shutil.copytree(sources["qwen2"], tmp_path / "huge")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.norm.weight[3] = 70_000.0
    model.save_pretrained(folder)
    one.run(save_checkpoint, "one", folder, tmp_path / "checkpoints", {})
    with pytest.raises(ExportError, match=r"model.norm.weight holds 7e\+04, beyond float16's 65504; use --dtype bf16"):
        export(tmp_path / "checkpoints", tmp_path / "out", dtype="fp16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "huge"]


def test_output_is_replaced_only_when_asked_and_only_an_export(checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "out")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        export(checkpoint, tmp_path / "out")
    notes = tmp_path / "out" / "notes.txt"
    notes.write_text("", encoding="utf-8")
    with pytest.raises(ExportError, match=r"out holds notes.txt \(1 files in all\), which this command did not write"):
        export(checkpoint, tmp_path / "out", overwrite=True)
    notes.unlink()
    export(checkpoint, tmp_path / "out", overwrite=True, dtype="bf16")
    assert json.loads((tmp_path / "out" / RECORD).read_text(encoding="utf-8"))["dtype"] == "bfloat16"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(ExportError, match=f"was not written by this command.*{RECORD}"):
        export(checkpoint, mine, overwrite=True)
    with pytest.raises(ExportError, match="lie in one another"):
        export(checkpoint, checkpoint.parent, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


def test_full_disk_is_known_before_anything_is_written(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))  # type: ignore[attr-defined]
    with pytest.raises(DiskFullError, match="to be written and 1 are free"):
        export(checkpoint, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", ["peft", "merged"])
def test_whole_model_is_no_adapter(to: str, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="holds a whole model, no adapter; use --to hf"):
        export(checkpoint, tmp_path / "out", to=to)


def test_checkpoint_from_before_origins_needs_a_base(
    checkpoint: Path, sources: dict[str, Path], tmp_path: Path
) -> None:
    old = shutil.copytree(checkpoint, tmp_path / "old")
    state = next(old.glob("step_*")) / "state.json"
    kept = {key: value for key, value in json.loads(state.read_text(encoding="utf-8")).items() if key != "origin"}
    state.write_text(json.dumps(kept), encoding="utf-8")
    with pytest.raises(ExportError, match=r"does not say what it was trained from; give.*--base"):
        export(old, tmp_path / "out")
    export(old, tmp_path / "out", base=str(sources["llama"]))
    expected, found = (loaded(folder).state_dict() for folder in (sources["llama"], tmp_path / "out"))
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_base_of_another_shape_names_the_weight(checkpoint: Path, sources: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"holds neither state\.json nor latest"):
        export(sources["llama"], tmp_path / "out")
    with pytest.raises(ConfigError, match="--dtype int8: use auto, fp32, bf16, fp16"):
        export(checkpoint, tmp_path / "out", dtype="int8")


def test_command_prints_json_and_notices_apart(checkpoint: Path, tmp_path: Path) -> None:
    arguments = ["export", str(checkpoint), "--to", "hf", "-o", str(tmp_path / "out"), "--json", "--serve", "ollama"]
    done = CliRunner().invoke(main, [*arguments, "--max-shard-size", "1MiB"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["vocab_size"] == VOCAB and "Modelfile" in printed["files"]
    modelfile = (tmp_path / "out" / "Modelfile").read_text(encoding="utf-8")
    assert (
        modelfile.startswith('FROM .\nTEMPLATE """')
        and 'PARAMETER stop "<|im_end|>"\nPARAMETER stop "<|endoftext|>"\n' in modelfile
    )
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 1 and "--overwrite" in again.stderr
    wrong = CliRunner().invoke(main, [*arguments, "--overwrite", "--max-shard-size", "5 apples"])
    assert wrong.exit_code == 2 and "such as 5GB" in wrong.stderr


def test_checkpoint_of_a_run_carries_what_its_export_needs(
    sources: dict[str, Path], one: RankPool, tmp_path: Path
) -> None:
    """Chat records to shards with a built-in template, two steps of training, export: nothing is told twice."""
    ask, answer = "What is clause {}?", "Clause {} binds both parties for {} years."
    records = [
        [{"role": "user", "content": ask.format(i)}, {"role": "assistant", "content": answer.format(i, i + 1)}]
        for i in range(60)
    ]
    lines = "".join(json.dumps({"messages": messages}) + "\n" for messages in records)
    (tmp_path / "chat.jsonl").write_text(lines, encoding="utf-8")
    mmdata.convert(
        [str(tmp_path / "chat.jsonl")], str(tmp_path / "chat"), str(sources["qwen2"]), recipe="none", dedup="none",
        chat_template="chatml", workers=1,
    )  # fmt: skip
    config = build(
        TrainConfig,
        {
            "model": str(sources["qwen2"]),
            "data": {"train": [str(tmp_path / "chat_text_document")], "seq_length": 256, "loading": {"workers": 0}},
            "train": {"steps": 2, "lr": 1e-2, "precision": "fp32", "allow_random": True},
            "output": {"dir": str(tmp_path / "run")},
        },
    )
    one.run(finetune, config)
    result = export(tmp_path / "run", tmp_path / "out", serve="ollama")
    manifest = mmdata.IndexedDataset(str(tmp_path / "chat_text_document")).manifest
    assert manifest is not None and result.step == 2 and result.chat_template_differs
    assert (tmp_path / "out" / "chat_template.jinja").read_text(encoding="utf-8") == manifest.chat_template
    assert result.eos_token_id == [256, 258]
    state = json.loads((tmp_path / "run/checkpoints/step_00000002/state.json").read_text(encoding="utf-8"))
    assert "tensor" in state["origin"]["layout"] and state["origin"]["source"] == str(sources["qwen2"])
    trained, source = loaded(tmp_path / "out"), loaded(sources["qwen2"])
    assert trained.lm_head.weight is trained.model.embed_tokens.weight
    assert not torch.equal(trained.model.norm.weight, source.model.norm.weight)
