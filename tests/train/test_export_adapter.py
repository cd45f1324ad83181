"""LoRA checkpoints of any layout become PEFT adapters and merged models that peft and transformers agree on."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytest.importorskip("tokenizers")
# peft warns of transformers' names it still uses, and of adapters on tied heads.
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*tie:UserWarning")]

from click.testing import CliRunner  # noqa: E402
from export_models import CHATML, LAYOUTS, SIZES, VOCAB, write_tokenizer  # noqa: E402
from rank_meshes import mesh_of  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from mmdata import load_tokenizer  # noqa: E402
from mmdata_train.checkpoint import Checkpointer  # noqa: E402
from mmdata_train.cli import main  # noqa: E402
from mmdata_train.config import ParallelConfig, TrainingConfig  # noqa: E402
from mmdata_train.errors import AdapterError, ExportError  # noqa: E402
from mmdata_train.export.command import export_checkpoint  # noqa: E402
from mmdata_train.export.options import ExportOptions, ExportResult  # noqa: E402
from mmdata_train.export.origin import origin_of_folder  # noqa: E402
from mmdata_train.hf import load_weights  # noqa: E402
from mmdata_train.hf_config import config_from_folder  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.lora.fill import initialize_adapters, initialize_added  # noqa: E402
from mmdata_train.lora.layer import adapter_parameters  # noqa: E402
from mmdata_train.lora.settings import LoraConfig  # noqa: E402
from mmdata_train.lora.tokens import AddedTokens, write_extended  # noqa: E402
from mmdata_train.model.init import weight_seed  # noqa: E402
from mmdata_train.parallelize import build_parts  # noqa: E402
from mmdata_train.slices import fill, local_slices  # noqa: E402
from mmdata_train.step import Engine  # noqa: E402

TOKENS = torch.arange(80).reshape(2, 40) * 37 % 256


def source_folder(kind: str, folder: Path, **options: Any) -> Path:
    torch.manual_seed(5)
    sizes = {**SIZES, "initializer_range": 0.1, **options}
    config = getattr(transformers, f"{kind}Config")(**sizes, eos_token_id=256)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    return write_tokenizer(folder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source_folder("Llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source_folder("Qwen3", tmp_path_factory.mktemp("qwen3"), tie_word_embeddings=True, head_dim=8)


ADDED = AddedTokens(("<law>", "<med>"), (260, 261), ((1, 2), (3,)))
"""The first takes the row the vocabulary has to spare, the second needs a new one."""


def save_adapter(layout: str, folder: Path, out: Path, lora: LoraConfig, facts: dict[str, Any]) -> None:
    """On every rank: adapters with a random B beside the folder's weights, saved as a run would."""
    base = config_from_folder(folder)
    config = dataclasses.replace(base, vocab_size=ADDED.vocabulary(VOCAB)) if lora.added_ids else base
    parallel, training = ParallelConfig(**LAYOUTS[layout]), TrainingConfig(precision="fp32", steps=1)
    parts = build_parts(config, parallel, training, mesh_of(parallel), lora)
    load_weights(parts.parts, base, folder)
    initialize_adapters(parts.parts, 7)
    if lora.added_ids:
        initialize_added(parts.parts, ADDED)
    for name, weight in (item for part in parts.parts for item in adapter_parameters(part).items()):
        if name.endswith("lora_B"):
            generator = torch.Generator().manual_seed(weight_seed(9, name))
            fill(weight, torch.randn(weight.shape, generator=generator)[local_slices(weight)] * 0.1)
    engine = Engine(parts, parallel, training, 16, 10)
    named = {"model": config, **facts}
    origin = origin_of_folder(str(folder), named.pop("tokenizer", str(folder)), **named)
    checkpointer = Checkpointer(out, origin=origin.to_state())
    checkpointer.save(engine, {"step": 3})
    checkpointer.wait()


@pytest.fixture(scope="module")
def adapted(llama: Path, ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lora") / "checkpoints"
    ranks.run(save_adapter, "tp2pp2", llama, out, LoraConfig(rank=4, alpha=6.0), {"chat_templates": (CHATML,)})
    return out


def export(checkpoint: Path, output: Path, to: str, **options: Any) -> ExportResult:
    return export_checkpoint(checkpoint, ExportOptions(**{"to": to, "output": output, **options}))


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model.eval()(TOKENS).logits


def with_peft(base: Path, adapter: Path) -> Any:
    return peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), adapter)


def merged_model(folder: Path) -> Any:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    return model


def test_peft_folder_and_merged_model_give_one_answer_and_the_base_another(
    llama: Path, adapted: Path, tmp_path: Path
) -> None:
    export(adapted, tmp_path / "adapter", "peft")
    result = export(adapted, tmp_path / "merged", "merged")
    found = logits(with_peft(llama, tmp_path / "adapter"))
    assert (logits(merged_model(tmp_path / "merged")) - found).abs().max() < 1e-5
    assert (logits(merged_model(llama)) - found).abs().max() > 1e-2
    ours = with_peft(llama, tmp_path / "adapter").merge_and_unload().state_dict()
    base = merged_model(llama).state_dict()
    assert result.largest_change == pytest.approx(max(float((ours[k] - base[k]).abs().max()) for k in base), rel=1e-5)
    assert result.largest_rounding == 0.0


@pytest.mark.parametrize("layout", ["tp2dp2-zero3", "folded"])
def test_adapter_of_another_layout_is_the_same_file(
    layout: str, llama: Path, adapted: Path, ranks: RankPool, tmp_path: Path
) -> None:
    lora = LoraConfig(rank=4, alpha=6.0)
    ranks.run(save_adapter, layout, llama, tmp_path / "checkpoints", lora, {"chat_templates": (CHATML,)})
    export(adapted, tmp_path / "one", "peft")
    export(tmp_path / "checkpoints", tmp_path / "other", "peft")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_peft_folder_carries_tokenizer_and_names_its_base(llama: Path, adapted: Path, tmp_path: Path) -> None:
    result = export(adapted, tmp_path / "adapter", "peft", serve="ollama")
    assert (tmp_path / "adapter" / "tokenizer.json").read_bytes() == (llama / "tokenizer.json").read_bytes()
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] == str(llama)
    assert f"FROM {llama}\nADAPTER .\n" in (tmp_path / "adapter" / "Modelfile").read_text(encoding="utf-8")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    assert file.stat().st_size == result.bytes < 1.1 * 4 * result.parameters + 10_000


def test_head_adapter_unties_what_it_is_merged_into(tied: Path, ranks: RankPool, tmp_path: Path) -> None:
    lora = LoraConfig(rank=4, targets=("q_proj", "lm_head"))
    ranks.run(save_adapter, "tp2pp2", tied, tmp_path / "checkpoints", lora, {})
    export(tmp_path / "checkpoints", tmp_path / "adapter", "peft")
    export(tmp_path / "checkpoints", tmp_path / "merged", "merged")
    merged = merged_model(tmp_path / "merged")
    assert merged.config.tie_word_embeddings is False
    assert torch.equal(merged.model.embed_tokens.weight, merged_model(tied).model.embed_tokens.weight)
    assert merged.lm_head.weight.shape[0] == VOCAB
    assert (logits(merged) - logits(with_peft(tied, tmp_path / "adapter"))).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["llama", "tied"])
def test_added_tokens_grow_the_vocabulary_of_what_they_are_merged_into(
    kind: str, llama: Path, tied: Path, ranks: RankPool, tmp_path: Path
) -> None:
    source = {"llama": llama, "tied": tied}[kind]
    lora = LoraConfig(rank=4, targets=("q_proj",), added_ids=ADDED.ids)
    ranks.run(save_adapter, "tp2pp2", source, tmp_path / "checkpoints", lora, {})
    result = export(tmp_path / "checkpoints", tmp_path / "merged", "merged")
    found, base = merged_model(tmp_path / "merged"), merged_model(source)
    assert result.vocab_size == found.config.vocab_size == 262
    for ours, theirs in (
        (found.get_input_embeddings().weight, base.get_input_embeddings().weight),
        (found.get_output_embeddings().weight, base.get_output_embeddings().weight),
    ):
        assert torch.equal(ours[:260], theirs[:260])
        assert torch.allclose(ours[260], theirs[1:3].mean(dim=0)) and torch.allclose(ours[261], theirs[3])
    assert found.config.tie_word_embeddings == (kind == "tied")


@pytest.mark.filterwarnings("ignore")
def test_new_rows_load_where_the_source_has_a_tokenizer_json_alone(llama: Path, one: RankPool, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(llama, source)
    (source / "tokenizer_config.json").unlink()
    write_extended(source, ADDED, tmp_path / "tokenizer")
    facts = {"tokenizer": str(tmp_path / "tokenizer")}
    lora = LoraConfig(rank=4, targets=("q_proj",), added_ids=ADDED.ids)
    one.run(save_adapter, "one", source, tmp_path / "checkpoints", lora, facts)
    export(tmp_path / "checkpoints", tmp_path / "adapter", "peft")
    export(tmp_path / "checkpoints", tmp_path / "merged", "merged")
    merged = merged_model(tmp_path / "merged").eval()
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    for folder in (tmp_path / "adapter", tmp_path / "merged"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        ids = torch.tensor([tokenizer("a <law>b<med>").input_ids])
        assert set(ADDED.ids) <= set(ids[0].tolist()) and tokenizer.decode(ids[0]) == "a <law>b<med>"
        assert tokenizer.eos_token == "<|endoftext|>"
        assert load_tokenizer(str(folder)).fingerprint == load_tokenizer(str(tmp_path / "tokenizer")).fingerprint
    with torch.no_grad():
        assert (loaded(ids).logits - merged(ids).logits).abs().max() < 1e-5


def test_merged_head_holds_new_tokens_and_its_adapter(tied: Path, ranks: RankPool, tmp_path: Path) -> None:
    lora = LoraConfig(rank=4, targets=("q_proj", "lm_head"), added_ids=ADDED.ids)
    ranks.run(save_adapter, "tp2pp2", tied, tmp_path / "checkpoints", lora, {})
    export(tmp_path / "checkpoints", tmp_path / "adapter", "peft")
    export(tmp_path / "checkpoints", tmp_path / "merged", "merged")
    merged = merged_model(tmp_path / "merged")
    grown = transformers.AutoModelForCausalLM.from_pretrained(tied)
    grown.resize_token_embeddings(262)
    found = logits(peft.PeftModel.from_pretrained(grown, tmp_path / "adapter"))
    assert merged.lm_head.weight.shape[0] == merged.get_input_embeddings().weight.shape[0] == 262
    assert (logits(merged) - found).abs().max() < 1e-5


def test_module_of_an_adapter_that_the_base_lacks_is_refused(llama: Path, tmp_path: Path) -> None:
    config = peft.LoraConfig(r=4, target_modules=["v_proj"], modules_to_save=["norm"])
    model = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(llama), config)
    model.save_pretrained(tmp_path / "theirs")
    file = tmp_path / "theirs" / "adapter_model.safetensors"
    tensors = load_file(file)
    assert "base_model.model.model.norm.weight" in tensors
    export(tmp_path / "theirs", tmp_path / "merged", "merged")
    save_file({**tensors, "base_model.model.score.weight": torch.ones(2, 32)}, file)
    with pytest.raises(ExportError, match=r"the adapter changes score \(1 modules in all\), which the base does not"):
        export(tmp_path / "theirs", tmp_path / "other", "merged")


def test_adapter_made_by_peft_is_merged_into_its_base(llama: Path, tmp_path: Path) -> None:
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["v_proj", "down_proj"], init_lora_weights=False)
    model = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(llama), config)
    model.save_pretrained(tmp_path / "theirs")
    result = export(tmp_path / "theirs", tmp_path / "merged", "merged")
    assert (logits(merged_model(tmp_path / "merged")) - logits(model)).abs().max() < 1e-5
    assert result.step is None and (tmp_path / "merged" / "tokenizer.json").is_file()
    with pytest.raises(ExportError, match="is a PEFT adapter already"):
        export(tmp_path / "theirs", tmp_path / "out", "peft")
    with pytest.raises(ExportError, match="which the base does not have"):
        shorter = source_folder("Llama", tmp_path / "short", num_hidden_layers=2)
        export(tmp_path / "theirs", tmp_path / "out", "merged", base=str(shorter))


def test_dtype_too_coarse_for_the_update_is_said(llama: Path, one: RankPool, tmp_path: Path) -> None:
    lora = LoraConfig(rank=4, alpha=1e-4)
    one.run(save_adapter, "one", llama, tmp_path / "checkpoints", lora, {})
    result = export(tmp_path / "checkpoints", tmp_path / "merged", "merged", dtype="bf16")
    assert result.largest_rounding is not None and result.largest_change is not None
    assert result.largest_rounding > result.largest_change > 0
    assert any("loses the fine-tuning; use --dtype fp32" in text for text in result.notices)


def test_adapter_is_no_whole_model(adapted: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"holds an adapter, no whole model; use --to peft.*--to merged"):
        export(adapted, tmp_path / "out", "hf")


def test_base_that_changed_since_training_is_refused(llama: Path, adapted: Path, one: RankPool, tmp_path: Path) -> None:
    moved = shutil.copytree(llama, tmp_path / "base")
    one.run(save_adapter, "one", moved, tmp_path / "checkpoints", LoraConfig(rank=4), {})
    raw = json.loads((moved / "config.json").read_text(encoding="utf-8"))
    (moved / "config.json").write_text(json.dumps({**raw, "rms_norm_eps": 0.1}), encoding="utf-8")
    with pytest.raises(ExportError, match=r"config.json is another one than when the adapter was trained"):
        export(tmp_path / "checkpoints", tmp_path / "out", "merged")
    quantised = {**raw, "quantization_config": {"quant_method": "bitsandbytes"}}
    (moved / "config.json").write_text(json.dumps(quantised), encoding="utf-8")
    with pytest.raises(AdapterError, match=r"quantised \(bitsandbytes\)"):
        export(tmp_path / "checkpoints", tmp_path / "out", "merged")
    shutil.rmtree(moved)
    with pytest.raises(ExportError, match="is gone; give its folder with --base"):
        export(tmp_path / "checkpoints", tmp_path / "out", "merged")
    export(tmp_path / "checkpoints", tmp_path / "out", "merged", base=str(llama), tokenizer=str(llama))


def test_adapter_trained_on_another_checkpoint_needs_that_base(llama: Path, one: RankPool, tmp_path: Path) -> None:
    facts = {"other_base": "the weights of the checkpoint runs/first (export it --to hf)"}
    one.run(save_adapter, "one", llama, tmp_path / "checkpoints", LoraConfig(rank=4), facts)
    with pytest.raises(ExportError, match=r"not trained on .* itself, but on the weights of the checkpoint runs/first"):
        export(tmp_path / "checkpoints", tmp_path / "out", "merged")
    export(tmp_path / "checkpoints", tmp_path / "out", "merged", base=str(llama))


def test_command_prints_the_largest_difference_of_a_merge(adapted: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["export", str(adapted), "--to", "merged", "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "merged in float32: largest change 0." in done.stdout
