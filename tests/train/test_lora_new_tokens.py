"""Rows of new tokens and adapters of the head: peft loads them, merged weights give the same logits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from peft_models import LLAMA, PEERS, POSITIONS, TOKENS, base_of, distance, source_of, state_of  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from mmdata_train.errors import AdapterError  # noqa: E402
from mmdata_train.hf import load_weights  # noqa: E402
from mmdata_train.hf_config import config_from_folder  # noqa: E402
from mmdata_train.lora.fill import initialize_adapters, initialize_added  # noqa: E402
from mmdata_train.lora.layer import adapter_parameters, insert_adapters, tie_added_rows  # noqa: E402
from mmdata_train.lora.peft import merge, peft_adapter, read_adapter, write_adapter  # noqa: E402
from mmdata_train.lora.settings import LoraConfig  # noqa: E402
from mmdata_train.lora.tokens import AddedTokens, plan_tokens, write_extended  # noqa: E402
from mmdata_train.model.config import ModelConfig  # noqa: E402
from mmdata_train.model.decoder import Decoder  # noqa: E402

# The peers' own notices about each other are no concern of these tests.
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]

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
        assert distance(loaded(WITH_NEW).logits, found) < 1e-5
    adapter, stored = read_adapter(tmp_path), load_file(folders[kind] / "model.safetensors")
    assert adapter.rows_needed() == 53 and adapter.unties() == (kind in ("llama", "qwen2"))
    merged = base_of(folders[kind])
    merged.resize_token_embeddings(53)
    merged.load_state_dict({key: merge(adapter, key, weight).weight for key, weight in stored.items()}, strict=False)
    with torch.no_grad():
        assert distance(merged(WITH_NEW).logits, found) < 1e-5


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
            assert (
                distance(peft.PeftModel.from_pretrained(grown, tmp_path / "adapter").eval()(WITH_NEW).logits, found)
                < 1e-5
            )
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
        assert distance(merged(WITH_NEW).logits, found) < 1e-5


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
        assert distance(loaded(ids).logits, model(ids, torch.arange(ids.shape[1])[None])) < 1e-5


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
