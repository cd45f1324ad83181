"""Tiny models of each architecture with adapters, by peft and transformers on one side and this engine on the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")


from mmdata_train.hf import load_weights  # noqa: E402
from mmdata_train.hf_config import config_from_folder  # noqa: E402
from mmdata_train.lora.fill import initialize_adapters  # noqa: E402
from mmdata_train.lora.layer import adapter_parameters, insert_adapters  # noqa: E402
from mmdata_train.lora.peft import AdapterSource  # noqa: E402
from mmdata_train.lora.settings import LoraConfig  # noqa: E402
from mmdata_train.model.decoder import Decoder  # noqa: E402

LLAMA = dict(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=48, max_position_embeddings=32,
)  # fmt: skip
GPT2 = dict(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0)
DROPS = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
PEERS: dict[str, Any] = {
    "llama": lambda **k: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, **k)),
    "qwen2": lambda **k: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LLAMA, **k)),
    "qwen3": lambda **k: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LLAMA, head_dim=8, **k)),
    "gpt2": lambda **k: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, **DROPS, **k)),
}
VARIANTS = {
    "plain": LoraConfig(rank=3, alpha=5.0),
    "rslora": LoraConfig(rank=3, alpha=5.0, rslora=True),
    "dora": LoraConfig(rank=3, alpha=5.0, dora=True),
}
TOKENS = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(5))
POSITIONS = torch.arange(12).expand(2, -1)


def make_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny random model of each architecture."""
    made = {}
    for kind, make in PEERS.items():
        torch.manual_seed(1)
        model = make(tie_word_embeddings=kind in ("qwen3", "gpt2"))
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(weight, std=0.1)
        made[kind] = tmp_path_factory.mktemp(kind)
        model.save_pretrained(made[kind])
    return made


def base_of(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def ours(folder: Path, lora: LoraConfig, *, seed: int | None = 3) -> Decoder:
    """This engine's model of the folder with adapters; B is random unless `seed` is None."""
    config = config_from_folder(folder, dropout=0.0, attention_dropout=0.0)
    with torch.device("meta"):
        model = Decoder(config)
    insert_adapters(model, lora)
    model.to_empty(device="cpu")
    load_weights([model], config, folder)
    initialize_adapters([model], 7)
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        for name, weight in adapter_parameters(model).items():
            with torch.no_grad():
                noise = torch.randn(weight.shape, generator=generator) * 0.1
                weight.copy_(noise if name.endswith("lora_B") else weight + noise)
    return model


def state_of(model: Decoder) -> dict[str, Any]:
    return {name: weight.detach() for name, weight in adapter_parameters(model).items()}


def source_of(model: Decoder, lora: LoraConfig, base: Path) -> AdapterSource:
    return AdapterSource(lora, model.config, str(base))


def logits(model: Decoder) -> Any:
    with torch.no_grad():
        return model(TOKENS, POSITIONS)


def peer_logits(model: Any) -> Any:
    with torch.no_grad():
        return model(TOKENS).logits


def distance(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest expected value where that is above 1."""
    return float((found - expected).abs().max()) / max(1.0, float(expected.abs().max()))


def peft_model(folder: Path, variant: str, **changes: Any) -> Any:
    lora = VARIANTS[variant]
    options: dict[str, Any] = dict(
        r=lora.rank, lora_alpha=5, use_rslora=lora.rslora, use_dora=lora.dora, target_modules="all-linear",
        init_lora_weights=False, task_type="CAUSAL_LM",
    )  # fmt: skip
    torch.manual_seed(2)
    model = peft.get_peft_model(base_of(folder), peft.LoraConfig(**{**options, **changes}))
    for name, weight in model.named_parameters():
        if "magnitude" in name:
            weight.data *= 1.0 + 0.1 * torch.rand_like(weight)
    return model.eval()
