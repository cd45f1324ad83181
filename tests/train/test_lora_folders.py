"""PEFT folders that would be misread are refused by name: other methods, damaged files, settings that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402

from mmdata_train.errors import AdapterError  # noqa: E402
from mmdata_train.lora.peft import Adapter, from_peft, read_adapter  # noqa: E402
from mmdata_train.lora.settings import LoraConfig  # noqa: E402
from mmdata_train.model.config import ModelConfig  # noqa: E402

CONFIG = ModelConfig(vocab_size=50, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=48)
PLAIN = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
PATH = "base_model.model.model.layers.0.self_attn.q_proj"
PAIR = {f"{PATH}.lora_A.weight": torch.ones(2, 32), f"{PATH}.lora_B.weight": torch.ones(32, 2)}


def folder_with(folder: Path, tensors: dict[str, Any], **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**PLAIN, **changes}), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
        ({"bias": "all"}, "bias 'all'"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base model too"),
        ({"layer_replication": [[0, 1]]}, "layer_replication is set"),
        ({"r": 4}, r"has rank \(2, 2\), but adapter_config.json says 4"),
        ({"use_dora": True}, "lora_magnitude_vector is missing"),
        ({"r": "many"}, "a field is missing or of another kind"),
    ],
)
def test_adapter_that_would_be_misread_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=words):
        read_adapter(folder_with(tmp_path, PAIR, **changes))


def test_damaged_and_incomplete_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"adapter_config\.json is missing"):
        read_adapter(tmp_path)
    folder = folder_with(tmp_path / "half", {f"{PATH}.lora_A.weight": torch.ones(2, 32)})
    with pytest.raises(AdapterError, match="its lora_B is not"):
        read_adapter(folder)
    whole = (folder / "adapter_model.safetensors").read_bytes()
    (folder / "adapter_model.safetensors").write_bytes(whole[:-9])
    with pytest.raises(AdapterError, match="not a whole safetensors file"):
        read_adapter(folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(AdapterError, match=r"adapter_model\.safetensors is missing"):
        read_adapter(folder)
    (folder / "adapter_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(AdapterError, match="is not JSON"):
        read_adapter(folder)


def test_nothing_in_an_adapter_is_left_out_unseen(tmp_path: Path) -> None:
    renamed = {name.replace(".weight", ".default.weight"): tensor for name, tensor in PAIR.items()}
    with pytest.raises(AdapterError, match=r"lora_A\.default\.weight is no tensor of a saved LoRA adapter"):
        read_adapter(folder_with(tmp_path / "live", renamed))
    with pytest.raises(AdapterError, match="lora_embedding_A is not supported"):
        read_adapter(folder_with(tmp_path / "embedding", {f"{PATH}.lora_embedding_A": torch.ones(2, 32)}))
    rows = {**PAIR, "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta": torch.ones(1, 32)}
    tokens = read_adapter(folder_with(tmp_path / "tokens", rows, trainable_token_indices={"embed_tokens": [7]}))
    with pytest.raises(
        AdapterError, match=r"rows of tokens \[7\] of model\.embed_tokens, this run's added_tokens are \[\]"
    ):
        from_peft(tokens, CONFIG, LoraConfig(rank=2))
    copied = {**PAIR, "base_model.model.lm_head.base_layer.weight": torch.ones(60, 32)}
    with pytest.raises(AdapterError, match="of 60 rows, the model has 50"):
        from_peft(read_adapter(folder_with(tmp_path / "copy", copied)), CONFIG, LoraConfig(rank=2))


class Foreign:
    """Nothing that a file of tensors may name."""


def test_pickled_adapter_is_read_as_plain_tensors_only(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "good", PAIR)
    (folder / "adapter_model.safetensors").unlink()
    torch.save(PAIR, folder / "adapter_model.bin")
    assert torch.equal(read_adapter(folder).tensors[f"{PATH[17:]}.lora_B.weight"], torch.ones(32, 2))
    # A class of this file: what torch counts as safe grows with every library imported (megatron-core adds paths).
    torch.save({"weights": Foreign()}, folder / "adapter_model.bin")
    with pytest.raises(AdapterError, match="cannot be read as plain tensors"):
        read_adapter(folder)


def test_adapter_that_does_not_fit_the_run_says_what_to_set(tmp_path: Path) -> None:
    adapter = read_adapter(folder_with(tmp_path, PAIR))
    with pytest.raises(AdapterError, match="set lora_rank to at least that"):
        from_peft(adapter, CONFIG, LoraConfig(rank=1))
    with pytest.raises(AdapterError, match=r"lora_targets leave out layers\.0\.attention\.q_proj"):
        from_peft(adapter, CONFIG, LoraConfig(rank=2, targets=("v_proj",)))
    with pytest.raises(AdapterError, match="is not DoRA"):
        from_peft(adapter, CONFIG, LoraConfig(rank=2, dora=True))
    other = Adapter(adapter.config, {name.replace("q_proj", "query"): t for name, t in adapter.tensors.items()})
    with pytest.raises(AdapterError, match=r"self_attn\.query is not in this llama model"):
        from_peft(other, CONFIG, LoraConfig(rank=2))
