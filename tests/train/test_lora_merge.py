"""Merging gives peft's weights and logits; what cannot be merged is refused; rounding is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from peft_models import (  # noqa: E402
    PEERS,
    VARIANTS,
    base_of,
    distance,
    logits,
    ours,
    peer_logits,
    peft_model,
    source_of,
    state_of,
)
from safetensors.torch import load_file  # noqa: E402

from mmdata_train.errors import AdapterError  # noqa: E402
from mmdata_train.hf_config import config_from_folder  # noqa: E402
from mmdata_train.lora.fill import merge_into_base  # noqa: E402
from mmdata_train.lora.peft import from_peft, merge, peft_adapter, read_adapter, refuse_quantised, write_adapter  # noqa: E402
from mmdata_train.lora.settings import LoraConfig  # noqa: E402
from mmdata_train.lora.start import shape_of  # noqa: E402

# The peers' own notices about each other are no concern of these tests.
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", PEERS)
def test_merged_weights_are_pefts_and_give_the_same_logits(
    kind: str, variant: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    theirs = peft_model(folders[kind], variant)
    theirs.save_pretrained(tmp_path)
    adapter, before = read_adapter(tmp_path), peer_logits(theirs)
    base = load_file(folders[kind] / "model.safetensors")
    merged = {key: merge(adapter, key, weight) for key, weight in base.items()}
    expected = theirs.merge_and_unload().state_dict()
    for key, result in merged.items():
        assert distance(result.weight, expected[key]) < 1e-6
        assert (result.change > 1e-3) == (not torch.equal(base[key], expected[key])), key
        assert result.rounding == 0.0
    model = base_of(folders[kind])
    model.load_state_dict({key: result.weight for key, result in merged.items()}, strict=False)
    assert distance(peer_logits(model), before) < 1e-5


@pytest.mark.parametrize("kind", PEERS)
def test_merging_first_into_the_base_gives_the_adapted_logits(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    for variant in ("plain", "dora"):
        theirs = peft_model(folders[kind], variant)
        theirs.save_pretrained(tmp_path / variant)
        adapter = read_adapter(tmp_path / variant)
        model = ours(folders[kind], LoraConfig(rank=2), seed=None)
        shape = shape_of(adapter)
        merge_into_base([model], from_peft(adapter, model.config, shape), shape)
        assert distance(logits(model), peer_logits(theirs)) < 1e-5


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_head_adapter_is_pefts_and_unties_when_merged(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    lora = LoraConfig(rank=3, targets=("q_proj", "lm_head"))
    model = ours(folders[kind], lora)
    write_adapter(state_of(model), source_of(model, lora, folders[kind]), tmp_path)
    loaded = peft.PeftModel.from_pretrained(base_of(folders[kind]), tmp_path).eval()
    assert distance(peer_logits(loaded), logits(model)) < 1e-5
    adapter, base = read_adapter(tmp_path), load_file(folders[kind] / "model.safetensors")
    assert adapter.unties()
    merged = {key: merge(adapter, key, weight).weight for key, weight in base.items()}
    merged["lm_head.weight"] = merge(
        adapter, "lm_head.weight", base.get("lm_head.weight", base["model.embed_tokens.weight"])
    ).weight
    untied = PEERS[kind](tie_word_embeddings=False)
    untied.load_state_dict(merged)
    assert distance(peer_logits(untied.eval()), logits(model)) < 1e-5


def test_modules_stored_whole_are_merged_and_refused_for_training(folders: dict[str, Path], tmp_path: Path) -> None:
    theirs = peft_model(folders["llama"], "plain", target_modules=["q_proj"], modules_to_save=["lm_head"])
    with torch.no_grad():
        theirs.base_model.model.lm_head.modules_to_save["default"].weight.add_(0.3)
    theirs.save_pretrained(tmp_path)
    adapter, before = read_adapter(tmp_path), peer_logits(theirs)
    model = base_of(folders["llama"])
    merged = {key: merge(adapter, key, weight).weight for key, weight in model.state_dict().items()}
    model.load_state_dict(merged)
    assert distance(peer_logits(model), before) < 1e-5
    config = config_from_folder(folders["llama"])
    with pytest.raises(AdapterError, match=r"whole modules \(lm_head\.weight\)"):
        from_peft(adapter, config, LoraConfig(rank=3, targets=("q_proj",)))


def test_trained_rows_of_tokens_are_merged_as_peft_does(folders: dict[str, Path], tmp_path: Path) -> None:
    theirs = peft_model(
        folders["llama"], "plain", target_modules=["q_proj"],
        trainable_token_indices={"embed_tokens": [3, 47], "lm_head": [3, 47]},
    )  # fmt: skip
    for name, weight in theirs.named_parameters():
        if "trainable_tokens" in name:
            weight.data += 0.5
    theirs.save_pretrained(tmp_path)
    adapter, before = read_adapter(tmp_path), peer_logits(theirs)
    assert adapter.rows_needed() == 48 and adapter.unties()
    model = base_of(folders["llama"])
    model.load_state_dict({key: merge(adapter, key, w).weight for key, w in model.state_dict().items()})
    assert distance(peer_logits(model), before) < 1e-5


def test_merging_in_a_small_dtype_measures_what_rounding_takes(folders: dict[str, Path]) -> None:
    lora = LoraConfig(rank=2, targets=("q_proj",))
    model = ours(folders["llama"], lora)
    state = {name: w * (1e-3 if name.endswith("B") else 1.0) for name, w in state_of(model).items()}
    adapter = peft_adapter(state, source_of(model, lora, folders["llama"]))
    key = "model.layers.0.self_attn.q_proj.weight"
    weight = load_file(folders["llama"] / "model.safetensors")[key]
    exact, rounded = merge(adapter, key, weight), merge(adapter, key, weight, torch.bfloat16)
    assert exact.rounding == 0.0 and exact.weight.dtype == torch.float32
    assert rounded.weight.dtype == torch.bfloat16
    assert rounded.rounding == pytest.approx(float((rounded.weight.float() - exact.weight).abs().max()))
    assert 0 < exact.change < 1e-3
    untouched = merge(adapter, "model.norm.weight", weight[0])
    assert untouched.change == 0.0 and torch.equal(untouched.weight, weight[0])


def test_quantised_bases_are_refused(tmp_path: Path, folders: dict[str, Path]) -> None:
    lora = LoraConfig(rank=2, targets=("q_proj",))
    model = ours(folders["llama"], lora)
    adapter = peft_adapter(state_of(model), source_of(model, lora, folders["llama"]))
    with pytest.raises(AdapterError, match="quantised base is not merged"):
        merge(adapter, "model.layers.0.self_attn.q_proj.weight", torch.zeros(32, 32, dtype=torch.uint8))
    (tmp_path / "config.json").write_text(
        json.dumps({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}), encoding="utf-8"
    )
    with pytest.raises(AdapterError, match=r"quantised \(bitsandbytes\)"):
        refuse_quantised(tmp_path)
    refuse_quantised(folders["llama"])


def test_merging_into_another_base_names_both_shapes(folders: dict[str, Path]) -> None:
    lora = LoraConfig(rank=2, targets=("q_proj",))
    model = ours(folders["llama"], lora)
    adapter = peft_adapter(state_of(model), source_of(model, lora, folders["llama"]))
    with pytest.raises(AdapterError, match=r"made for a weight of \[32, 32\], the base has \[16, 32\]"):
        merge(adapter, "model.layers.0.self_attn.q_proj.weight", torch.zeros(16, 32))
