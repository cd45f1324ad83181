"""Models read from Hugging Face folders give the logits transformers gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

from mmdata_train.errors import ModelError  # noqa: E402
from mmdata_train.hf import load_weights  # noqa: E402
from mmdata_train.hf_config import config_from_folder  # noqa: E402
from mmdata_train.model.decoder import Decoder  # noqa: E402

SIZES = dict(
    vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2,
)  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-wide-heads": ("Llama", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "llama-rope-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-rope-yarn": ("Llama", {"rope_parameters": YARN}),
    "llama-rope-linear": ("Llama", {"rope_parameters": LINEAR, "tie_word_embeddings": True}),
    "mistral-window": ("Mistral", {"sliding_window": 5}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
}


def shake(model: Any) -> None:
    """transformers starts norms at 1 and biases at 0, which would hide a mix-up."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or "ln_" in name or name.endswith("bias"):
                weight.add_(torch.randn_like(weight) * 0.2)


def random_model(kind: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **options})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    shake(model)
    return model


def random_gpt2() -> Any:
    torch.manual_seed(5)
    config = transformers.GPT2Config(
        vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=64, initializer_range=0.2
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    shake(model)
    return model


def our_logits(folder: Path, tokens: Any) -> Any:
    config = config_from_folder(folder, vocab_multiple=16)
    model = Decoder(config).eval()
    load_weights([model], config, folder)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    return model(tokens, positions)


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    model = random_model(*MODELS[name])
    model.save_pretrained(tmp_path)
    tokens = torch.randint(0, 61, (2, 40))
    with torch.no_grad():
        expected = model(tokens).logits
    assert (our_logits(tmp_path, tokens) - expected).abs().max() < 1e-4


def test_gpt2_logits_equal_transformers_with_and_without_the_prefix(tmp_path: Path) -> None:
    model = random_gpt2()
    tokens = torch.randint(0, 61, (2, 40))
    with torch.no_grad():
        expected = model(tokens).logits
    model.save_pretrained(tmp_path / "head")
    model.transformer.save_pretrained(tmp_path / "base")
    for folder in ("head", "base"):
        assert (our_logits(tmp_path / folder, tokens) - expected).abs().max() < 1e-4


CONFIGS = sorted((Path(__file__).parent / "hf_configs").glob("*.json"))


def shrunk(raw: dict[str, Any]) -> dict[str, Any]:
    """A published config with small sizes and everything else as it is."""
    if raw["model_type"] == "gpt2":
        return {**raw, "n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 61, "initializer_range": 0.2}
    groups = raw["num_attention_heads"] // raw["num_key_value_heads"]
    sizes = {
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2 * groups,
        "num_key_value_heads": 2, "vocab_size": 61, "initializer_range": 0.2, "hidden_size": 8 * 2 * groups,
    }  # fmt: skip
    if raw.get("head_dim"):
        sizes["head_dim"] = 16
    if raw.get("sliding_window") and raw["model_type"] == "mistral":
        sizes["sliding_window"] = 6
    return {**raw, **sizes}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_published_config_gives_transformers_logits(path: Path, tmp_path: Path) -> None:
    """Yi, DeepSeek, Mistral and the rest as their config.json spells them, sizes reduced, weights random."""
    raw = shrunk(json.loads(path.read_text(encoding="utf-8")))
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    model = model.float().eval()
    shake(model)
    model.save_pretrained(tmp_path / "saved")
    weights = tmp_path / "saved" / "model.safetensors"
    weights.rename(tmp_path / weights.name)  # beside the config as published, not as transformers writes it
    tokens = torch.randint(0, 61, (2, 40))
    with torch.no_grad():
        expected = model(tokens).logits
    assert (our_logits(tmp_path, tokens) - expected).abs().max() < 1e-4


def test_sharded_folder_is_read_whole(tmp_path: Path) -> None:
    model = random_model("Qwen2", {})
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    tokens = torch.randint(0, 61, (1, 9))
    with torch.no_grad():
        expected = model(tokens).logits
    assert (our_logits(tmp_path, tokens) - expected).abs().max() < 1e-4


def test_old_and_new_spelling_of_rope_give_one_config(tmp_path: Path) -> None:
    model = random_model("Llama", {"rope_parameters": LLAMA3})
    model.save_pretrained(tmp_path)
    new = config_from_folder(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    parameters = raw.pop("rope_parameters")
    raw["rope_theta"] = parameters.pop("rope_theta")
    parameters["type"] = parameters.pop("rope_type")
    raw["rope_scaling"] = parameters
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    assert config_from_folder(tmp_path) == new
    assert new.rope_theta == 500.0 and new.rope_scaling is not None


def write(folder: Path, **changes: Any) -> Path:
    model = random_model("Llama", {})
    model.save_pretrained(folder)
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**raw, **changes}), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "mixtral"},
            r"LlamaForCausalLM of model_type 'mixtral' is not .*mixture of experts.*supported: llama",
        ),
        ({"hidden_act": "tanh"}, "activation 'tanh' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "'longrope' is not supported"),
        (
            {"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},
            "layers mix",
        ),
    ],
)
def test_what_would_change_the_result_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        config_from_folder(write(tmp_path, **changes))


def test_shape_that_disagrees_with_the_config_names_tensor_and_both_shapes(tmp_path: Path) -> None:
    folder = write(tmp_path, intermediate_size=64)
    config = config_from_folder(folder)
    with pytest.raises(ModelError, match=r"gate_proj.weight' is \[48, 32\].*needs \[64, 32\]"):
        load_weights([Decoder(config)], config, folder)


def test_tensor_without_a_place_is_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path, num_hidden_layers=2)
    config = config_from_folder(folder)
    with pytest.raises(ModelError, match=r"9 tensors have no place in a llama.*such as 'model.layers.2"):
        load_weights([Decoder(config)], config, folder)


def test_stories_checkpoint_gives_its_known_cross_entropies(shared: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    folder = shared / "models" / "stories260K"
    config = config_from_folder(folder)
    model = Decoder(config)
    load_weights([model], config, folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    known = {
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.": 0.18036,
        "The defendant shall pay the plaintiff the sum of 500 yuan within ten days of this judgment.": 5.23977,
    }
    for text, nats in known.items():
        ids = torch.tensor([[1, *tokenizer.encode(text, add_special_tokens=False).ids]])
        positions = torch.arange(ids.shape[1] - 1)[None]
        _, nll = model(ids[:, :-1], positions, labels=ids[:, 1:])
        assert nll.item() / positions.numel() == pytest.approx(nats, abs=1e-4)
