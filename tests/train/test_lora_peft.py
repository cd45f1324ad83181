"""Adapters against peft and transformers: equal logits and gradients both ways, merged weights, files, refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from safetensors.torch import load_file  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from mmdata.errors import OutputExistsError  # noqa: E402
from mmdata_train.errors import AdapterError  # noqa: E402
from mmdata_train.hf import load_weights  # noqa: E402
from mmdata_train.hf_config import config_from_folder  # noqa: E402
from mmdata_train.lora.fill import (  # noqa: E402
    adapted_layers,
    initialize_adapters,
    initialize_added,
    load_adapters,
    merge_into_base,
)
from mmdata_train.lora.layer import adapter_parameters, insert_adapters, tie_added_rows  # noqa: E402
from mmdata_train.lora.peft import (  # noqa: E402
    AdapterSource,
    from_peft,
    merge,
    peft_adapter,
    read_adapter,
    refuse_quantised,
    write_adapter,
)
from mmdata_train.lora.settings import LoraConfig  # noqa: E402
from mmdata_train.lora.start import shape_of  # noqa: E402
from mmdata_train.lora.tokens import AddedTokens, plan_tokens, write_extended  # noqa: E402
from mmdata_train.model.config import ModelConfig  # noqa: E402
from mmdata_train.model.decoder import Decoder  # noqa: E402

# The peers' own notices about each other are no concern of these tests.
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]

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


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
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


def near(found: Any, expected: Any, limit: float = 1e-5) -> None:
    assert float((found - expected).abs().max()) < limit * max(1.0, float(expected.abs().max()))


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
    near(peer_logits(loaded), logits(model))


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
    near(logits(model), peer_logits(theirs))


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
        near(result.weight, expected[key], 1e-6)
        assert (result.change > 1e-3) == (not torch.equal(base[key], expected[key])), key
        assert result.rounding == 0.0
    model = base_of(folders[kind])
    model.load_state_dict({key: result.weight for key, result in merged.items()}, strict=False)
    near(peer_logits(model), before)


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
        near(logits(model), peer_logits(theirs))


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
        near(grad, expected[name.removesuffix(".weight")])


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
        near(back[name], there[name], 1e-6)


def test_gpt2_adapter_written_here_is_read_back_with_its_rank(folders: dict[str, Path], tmp_path: Path) -> None:
    lora = VARIANTS["dora"]
    model = ours(folders["gpt2"], lora)
    write_adapter(state_of(model), source_of(model, lora, folders["gpt2"]), tmp_path)
    assert read_adapter(tmp_path).config.rank_of("transformer.h.1.attn.c_attn") == 9
    again = ours(folders["gpt2"], lora, seed=None)
    load_adapters([again], from_peft(read_adapter(tmp_path), again.config, lora), 7)
    near(logits(again), logits(model))


def test_single_target_of_a_fused_module_is_written_for_peft(folders: dict[str, Path], tmp_path: Path) -> None:
    lora = LoraConfig(rank=2, targets=("v_proj", "layers.1.mlp.*"))
    model = ours(folders["gpt2"], lora)
    assert {name for name, _ in adapted_layers(model)} == {
        "layers.0.attention.v_proj", "layers.1.attention.v_proj", "layers.1.mlp.up_proj", "layers.1.mlp.down_proj",
    }  # fmt: skip
    write_adapter(state_of(model), source_of(model, lora, folders["gpt2"]), tmp_path)
    near(peer_logits(peft.PeftModel.from_pretrained(base_of(folders["gpt2"]), tmp_path).eval()), logits(model))


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_head_adapter_is_pefts_and_unties_when_merged(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    lora = LoraConfig(rank=3, targets=("q_proj", "lm_head"))
    model = ours(folders[kind], lora)
    write_adapter(state_of(model), source_of(model, lora, folders[kind]), tmp_path)
    loaded = peft.PeftModel.from_pretrained(base_of(folders[kind]), tmp_path).eval()
    near(peer_logits(loaded), logits(model))
    adapter, base = read_adapter(tmp_path), load_file(folders[kind] / "model.safetensors")
    assert adapter.unties()
    merged = {key: merge(adapter, key, weight).weight for key, weight in base.items()}
    merged["lm_head.weight"] = merge(
        adapter, "lm_head.weight", base.get("lm_head.weight", base["model.embed_tokens.weight"])
    ).weight
    untied = PEERS[kind](tie_word_embeddings=False)
    untied.load_state_dict(merged)
    near(peer_logits(untied.eval()), logits(model))


def test_modules_stored_whole_are_merged_and_refused_for_training(folders: dict[str, Path], tmp_path: Path) -> None:
    theirs = peft_model(folders["llama"], "plain", target_modules=["q_proj"], modules_to_save=["lm_head"])
    with torch.no_grad():
        theirs.base_model.model.lm_head.modules_to_save["default"].weight.add_(0.3)
    theirs.save_pretrained(tmp_path)
    adapter, before = read_adapter(tmp_path), peer_logits(theirs)
    model = base_of(folders["llama"])
    merged = {key: merge(adapter, key, weight).weight for key, weight in model.state_dict().items()}
    model.load_state_dict(merged)
    near(peer_logits(model), before)
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
    near(peer_logits(model), before)


NEW = AddedTokens(("x", "y", "z"), (50, 51, 52), ((1, 2), (3,), (4, 5, 6)))
WITH_NEW = torch.cat((TOKENS[:, :9], torch.tensor([[50, 51, 52], [52, 7, 50]])), dim=1)


@pytest.mark.parametrize("kind", PEERS)
def test_rows_of_new_tokens_load_in_peft_and_merge_for_transformers(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    lora = LoraConfig(rank=3, added_ids=NEW.ids)
    base = config_from_folder(folders[kind], dropout=0.0, attention_dropout=0.0)
    model = extended(base, lora, folders[kind], NEW)
    with torch.no_grad():
        found = model(WITH_NEW, POSITIONS)
    assert found.shape[-1] == 53
    write_adapter(state_of(model), source_of(model, lora, folders[kind]), tmp_path)
    grown = base_of(folders[kind])
    grown.resize_token_embeddings(53)
    loaded = peft.PeftModel.from_pretrained(grown, tmp_path).eval()
    with torch.no_grad():
        near(loaded(WITH_NEW).logits, found)
    adapter, stored = read_adapter(tmp_path), load_file(folders[kind] / "model.safetensors")
    assert adapter.rows_needed() == 53 and adapter.unties() == (kind in ("llama", "qwen2"))
    merged = base_of(folders[kind])
    merged.resize_token_embeddings(53)
    merged.load_state_dict({key: merge(adapter, key, weight).weight for key, weight in stored.items()}, strict=False)
    with torch.no_grad():
        near(merged(WITH_NEW).logits, found)


@pytest.mark.parametrize("kind", PEERS)
def test_an_adapter_of_the_head_acts_on_new_tokens_too(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    lora = LoraConfig(rank=3, targets=("q_proj", "head"), added_ids=NEW.ids)
    base = config_from_folder(folders[kind], dropout=0.0, attention_dropout=0.0)
    model = extended(base, lora, folders[kind], NEW)
    source = source_of(model, lora, folders[kind])
    with torch.no_grad():
        found = model(WITH_NEW, POSITIONS)
    embedding = "transformer.wte.weight" if kind == "gpt2" else "model.embed_tokens.weight"
    if base.tie_embeddings:
        write_adapter(state_of(model), source, tmp_path / "adapter")
        grown = base_of(folders[kind])
        grown.resize_token_embeddings(53)
        with torch.no_grad():
            near(peft.PeftModel.from_pretrained(grown, tmp_path / "adapter").eval()(WITH_NEW).logits, found)
    else:
        with pytest.raises(AdapterError, match="have no PEFT form; export it merged"):
            write_adapter(state_of(model), source, tmp_path / "adapter")
    adapter, stored = peft_adapter(state_of(model), source), load_file(folders[kind] / "model.safetensors")
    weights = {key: merge(adapter, key, weight).weight for key, weight in stored.items()}
    if base.tie_embeddings:
        weights["lm_head.weight"] = merge(adapter, "lm_head.weight", stored[embedding], tied_to=embedding).weight
    config = transformers.AutoConfig.from_pretrained(folders[kind], vocab_size=53, tie_word_embeddings=False)
    merged = transformers.AutoModelForCausalLM.from_config(config).eval()
    merged.load_state_dict(weights)
    with torch.no_grad():
        near(merged(WITH_NEW).logits, found)


def test_auto_peft_makes_room_for_new_tokens_by_the_tokenizer_beside_the_adapter(tmp_path: Path) -> None:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    made.train_from_iterator(["the patient has a mutation of the gene"] * 9, trainer)
    size = made.get_vocab_size()
    folder = tmp_path / "base"
    torch.manual_seed(1)
    config = transformers.Qwen2Config(**{**LLAMA, "vocab_size": size}, tie_word_embeddings=True)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>").save_pretrained(folder)
    new = plan_tokens(folder, ["EGFR-T790M", "<|case|>"])
    write_extended(folder, new, tmp_path / "adapter")
    lora = LoraConfig(rank=3, added_ids=new.ids)
    base = config_from_folder(folder, dropout=0.0, attention_dropout=0.0)
    model = extended(base, lora, folder, new)
    write_adapter(state_of(model), source_of(model, lora, folder), tmp_path / "adapter")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "adapter")
    text = "<|case|>the patient has EGFR-T790M"
    ids = torch.tensor([tokenizer(text).input_ids])
    assert tokenizer.decode(ids[0]) == text and {size, size + 1} <= set(ids[0].tolist())
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    with torch.no_grad():
        near(loaded(ids).logits, model(ids, torch.arange(ids.shape[1])[None]))


def extended(base: ModelConfig, lora: LoraConfig, folder: Path, new: AddedTokens) -> Decoder:
    """This engine's model of the folder with room for new tokens, every adapter and row moved a little."""
    with torch.device("meta"):
        model = Decoder(dataclasses.replace(base, vocab_size=new.vocabulary(base.vocab_size)))
    insert_adapters(model, lora)
    model.to_empty(device="cpu")
    tie_added_rows(model)
    load_weights([model], base, folder)
    initialize_adapters([model], 7)
    initialize_added([model], new)
    with torch.no_grad():
        for name, weight in adapter_parameters(model).items():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))) * 0.1)
    return model


def test_written_files_are_no_larger_than_their_tensors_by_a_tenth(folders: dict[str, Path], tmp_path: Path) -> None:
    lora = LoraConfig(rank=16)
    model = ours(folders["llama"], lora)
    write_adapter(state_of(model), source_of(model, lora, folders["llama"]), tmp_path)
    own = sum(weight.numel() * 4 for weight in state_of(model).values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1.1 * own


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
