"""Published config.json files give the published number of parameters, and what they leave out is filled as the
architecture's own default.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mmdata_train.errors import ModelError  # noqa: E402
from mmdata_train.hf_config import DEFAULTS, config_from_folder, config_from_json  # noqa: E402
from mmdata_train.model.decoder import Decoder  # noqa: E402

CONFIGS = Path(__file__).parent / "hf_configs"
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "yi-6b": 6_061_035_520,
    "deepseek-llm-7b": 6_910_365_696,
    "deepseek-coder-6.7b": 6_740_512_768,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-0.6b": 596_049_920,
    "gpt2": 124_439_808,
}
MINIMAL = {
    "vocab_size": 61, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 32,
}  # fmt: skip


def published(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    return value


def test_every_published_config_is_counted() -> None:
    assert {path.stem for path in CONFIGS.glob("*.json")} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config_gives_the_published_number_of_parameters(name: str) -> None:
    config = config_from_json(published(name), name, vocab_multiple=1)
    with torch.device("meta"):
        assert sum(weight.numel() for weight in Decoder(config).parameters()) == PUBLISHED[name]


def test_vocabulary_is_the_config_s_and_rows_are_padded_beside_it() -> None:
    config = config_from_json(published("gpt2"), "gpt2")
    assert (config.vocab_size, config.padded_vocab_size) == (50257, 50304)


def test_yi_has_its_base_of_rotary_positions_and_four_key_heads() -> None:
    config = config_from_json(published("yi-6b"), "yi")
    assert (config.rope_theta, config.num_kv_heads, config.rope_scaling) == (5_000_000.0, 4, None)


def test_deepseek_coder_s_old_spelling_of_linear_scaling_is_read() -> None:
    scaling = config_from_json(published("deepseek-coder-6.7b"), "coder").rope_scaling
    assert scaling is not None and (scaling.kind, scaling.factor) == ("linear", 4.0)


def test_mistral_s_window_is_read_from_v01_and_absent_from_v03() -> None:
    assert config_from_json(published("mistral-7b-v0.1"), "v0.1").sliding_window == 4096
    assert config_from_json(published("mistral-7b-v0.3"), "v0.3").sliding_window is None


def test_a_window_that_qwen_switches_off_is_off() -> None:
    assert config_from_json(published("qwen2.5-7b"), "qwen").sliding_window is None


@pytest.mark.peer
@pytest.mark.parametrize("kind", DEFAULTS)
def test_keys_left_out_have_the_defaults_of_transformers(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(kind, **MINIMAL)
    for key, value in DEFAULTS[kind].items():
        if key in ("head_dim", "num_key_value_heads", "sliding_window") or not hasattr(theirs, key):
            continue  # filled in from other sizes, or switched off by another key
        assert getattr(theirs, key) == value, key
    ours = config_from_json({"model_type": kind, **MINIMAL}, kind)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", 2)
    assert ours.sliding_window == getattr(theirs, "sliding_window", None)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama-2-7b", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not.*Up to 4096 positions"),
        ("llama-2-7b", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ("llama-2-7b", {"quantization_config": {"quant_method": "gptq"}}, "quantised .gptq.; use the original model"),
        ("llama-2-7b", {"hidden_size": "big"}, "llama-2-7b: "),
        ("qwen3-8b", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ by layer"),
        ("qwen2.5-7b", {"use_sliding_window": True, "max_window_layers": 20}, "layers mix full_attention and sliding"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True is not supported"),
        ("yi-6b", {"model_type": "Yi"}, "'Yi' is not supported .it is Yi's first release.*supported: llama .*gpt2"),
        ("yi-6b", {"model_type": "gemma3", "architectures": None}, "a model without a name of model_type 'gemma3'"),
    ],
)
def test_what_would_change_the_result_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        config_from_json({**published(name), **changes}, name)


def test_missing_key_names_file_and_key(tmp_path: Path) -> None:
    raw = published("yi-6b")
    del raw["intermediate_size"]
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(ModelError, match=r"config.json: 'intermediate_size' is missing"):
        config_from_folder(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("vocab_size", "512", "vocab_size is '512'; it must be a whole number"),
        ("hidden_size", None, "hidden_size is None; it must be a whole number"),
        ("rms_norm_eps", "x", "rms_norm_eps is 'x'; it must be a number"),
        ("hidden_act", ["silu"], "it must be a name"),
        ("rope_parameters", "x", "rope_parameters is 'x'; it must be an object"),
    ],
)
def test_values_of_another_kind_are_refused_by_file_key_and_value(key: str, value: object, words: str) -> None:
    raw = {
        "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }  # fmt: skip
    assert config_from_json(raw, "config.json").num_kv_heads == 4
    with pytest.raises(ModelError, match=f"^config.json: .*{re.escape(words)}"):
        config_from_json({**raw, key: value}, "config.json")
