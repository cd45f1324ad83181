"""Adapters against peft: equal logits and gradients both ways, the files, and adapters of other models."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from peft_models import (  # noqa: E402
    PEERS,
    POSITIONS,
    TOKENS,
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

from mmdata.errors import OutputExistsError  # noqa: E402
from mmdata_train.errors import AdapterError  # noqa: E402
from mmdata_train.hf_config import config_from_folder  # noqa: E402
from mmdata_train.lora.fill import adapted_layers, load_adapters  # noqa: E402
from mmdata_train.lora.layer import adapter_parameters  # noqa: E402
from mmdata_train.lora.peft import from_peft, peft_adapter, read_adapter, write_adapter  # noqa: E402
from mmdata_train.lora.settings import LoraConfig  # noqa: E402
from mmdata_train.lora.start import shape_of  # noqa: E402

# The peers' own notices about each other are no concern of these tests.
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", PEERS)
def test_peft_loads_what_was_trained_here_with_equal_logits(
    kind: str, variant: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    lora = VARIANTS[variant]
    model = ours(folders[kind], lora)
    write_adapter(state_of(model), source_of(model, lora, folders[kind]), tmp_path)
    loaded = peft.PeftModel.from_pretrained(base_of(folders[kind]), tmp_path).eval()
    assert float((logits(model) - peer_logits(base_of(folders[kind]))).abs().max()) > 1e-2
    assert distance(peer_logits(loaded), logits(model)) < 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", PEERS)
def test_adapter_made_by_peft_starts_training_here_with_equal_logits(
    kind: str, variant: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    theirs = peft_model(folders[kind], variant)
    theirs.save_pretrained(tmp_path)
    lora = dataclasses.replace(VARIANTS[variant], alpha=9.0, rank=4)
    model = ours(folders[kind], lora, seed=None)
    load_adapters([model], from_peft(read_adapter(tmp_path), model.config, lora), 7)
    assert distance(logits(model), peer_logits(theirs)) < 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_gradients_of_adapters_are_pefts(kind: str, variant: str, folders: dict[str, Path], tmp_path: Path) -> None:
    theirs = peft_model(folders[kind], variant)
    theirs.save_pretrained(tmp_path)
    theirs(TOKENS, labels=TOKENS).loss.backward()
    lora, adapter = VARIANTS[variant], read_adapter(tmp_path)
    model = ours(folders[kind], lora, seed=None)
    load_adapters([model], from_peft(adapter, model.config, lora), 7)
    labels = torch.cat((TOKENS[:, 1:], torch.full((2, 1), -100)), dim=1)
    loss, _ = model(TOKENS, POSITIONS, labels=labels)
    (loss / 22).sum().backward()
    assert all(weight.grad is None for name, weight in model.named_parameters() if "lora_" not in name)
    grads = {n: w.grad for n, w in adapter_parameters(model).items() if w.grad is not None}
    found = peft_adapter(grads, source_of(model, lora, folders[kind])).tensors
    expected = {
        name.removeprefix("base_model.model.").replace(".default", "").removesuffix(".weight"): weight.grad
        for name, weight in theirs.named_parameters() if weight.requires_grad
    }  # fmt: skip
    assert {name.removesuffix(".weight") for name in found} == set(expected)
    for name, grad in found.items():
        assert distance(grad, expected[name.removesuffix(".weight")]) < 1e-5


def test_gpt2_adapter_that_peft_made_comes_back_as_it_was(folders: dict[str, Path], tmp_path: Path) -> None:
    theirs = peft_model(folders["gpt2"], "plain")
    theirs.save_pretrained(tmp_path / "in")
    lora = VARIANTS["plain"]
    model = ours(folders["gpt2"], lora, seed=None)
    load_adapters([model], from_peft(read_adapter(tmp_path / "in"), model.config, lora), 7)
    write_adapter(state_of(model), source_of(model, lora, folders["gpt2"]), tmp_path / "out")
    there, back = (load_file(tmp_path / place / "adapter_model.safetensors") for place in ("in", "out"))
    assert there.keys() == back.keys()
    for name in there:
        assert distance(back[name], there[name]) < 1e-6


def test_gpt2_adapter_written_here_is_read_back_with_its_rank(folders: dict[str, Path], tmp_path: Path) -> None:
    lora = VARIANTS["dora"]
    model = ours(folders["gpt2"], lora)
    write_adapter(state_of(model), source_of(model, lora, folders["gpt2"]), tmp_path)
    assert read_adapter(tmp_path).config.rank_of("transformer.h.1.attn.c_attn") == 9
    again = ours(folders["gpt2"], lora, seed=None)
    load_adapters([again], from_peft(read_adapter(tmp_path), again.config, lora), 7)
    assert distance(logits(again), logits(model)) < 1e-5


def test_single_target_of_a_fused_module_is_written_for_peft(folders: dict[str, Path], tmp_path: Path) -> None:
    lora = LoraConfig(rank=2, targets=("v_proj", "layers.1.mlp.*"))
    model = ours(folders["gpt2"], lora)
    assert {name for name, _ in adapted_layers(model)} == {
        "layers.0.attention.v_proj", "layers.1.attention.v_proj", "layers.1.mlp.up_proj", "layers.1.mlp.down_proj",
    }  # fmt: skip
    write_adapter(state_of(model), source_of(model, lora, folders["gpt2"]), tmp_path)
    assert (
        distance(peer_logits(peft.PeftModel.from_pretrained(base_of(folders["gpt2"]), tmp_path).eval()), logits(model))
        < 1e-5
    )


def test_written_files_are_no_larger_than_their_tensors_by_a_tenth(folders: dict[str, Path], tmp_path: Path) -> None:
    lora = LoraConfig(rank=16)
    model = ours(folders["llama"], lora)
    write_adapter(state_of(model), source_of(model, lora, folders["llama"]), tmp_path)
    own = sum(weight.numel() * 4 for weight in state_of(model).values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1.1 * own


def test_existing_adapter_is_replaced_only_when_asked(folders: dict[str, Path], tmp_path: Path) -> None:
    lora = LoraConfig(rank=2, targets=("q_proj",))
    model = ours(folders["llama"], lora)
    source = source_of(model, lora, folders["llama"])
    write_adapter(state_of(model), source, tmp_path)
    with pytest.raises(OutputExistsError, match="holds an adapter already"):
        write_adapter(state_of(model), source, tmp_path)
    write_adapter({name: weight * 0 for name, weight in state_of(model).items()}, source, tmp_path, overwrite=True)
    assert all(not tensor.any() for tensor in read_adapter(tmp_path).tensors.values())


@pytest.mark.parametrize("end", ["lora_A.weight", "lora_B.weight", "lora_magnitude_vector"])
def test_adapter_made_for_a_smaller_module_is_refused_and_fills_no_part(
    end: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    peft_model(folders["llama"], "dora").save_pretrained(tmp_path)
    adapter, config = read_adapter(tmp_path), config_from_folder(folders["llama"])
    name = next(name for name in adapter.tensors if name.endswith(f"q_proj.{end}"))
    tensor = adapter.tensors[name]
    adapter.tensors[name] = tensor[:, :20] if end == "lora_A.weight" else tensor[:20]
    message = "magnitude_vector is .20." if "magnitude" in end else "outputs and inputs, the model's .32, 32.; is it"
    with pytest.raises(AdapterError, match=message):
        from_peft(adapter, config, shape_of(adapter))


def test_adapter_of_a_deeper_model_is_refused_by_its_module_and_base(folders: dict[str, Path], tmp_path: Path) -> None:
    peft_model(folders["llama"], "plain").save_pretrained(tmp_path)
    adapter, config = read_adapter(tmp_path), config_from_folder(folders["llama"])
    shallow = dataclasses.replace(config, num_layers=1)
    with pytest.raises(AdapterError, match=r"layers\.1\..* is not in this llama model \(7 in all\); is it the base"):
        from_peft(adapter, shallow, shape_of(adapter))
