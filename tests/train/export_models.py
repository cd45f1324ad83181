"""What the export tests share: a real tokenizer, and checkpoints of tiny Hugging Face folders by any layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rank_meshes import mesh_of

from mmdata_train.checkpoint import Checkpointer
from mmdata_train.config import ParallelConfig, TrainingConfig
from mmdata_train.export.origin import origin_of_folder
from mmdata_train.hf import load_weights
from mmdata_train.hf_config import config_from_folder
from mmdata_train.parallelize import build_parts
from mmdata_train.step import Engine

VOCAB = 261  # the tokenizer has 260: as with Qwen, the config's is neither it nor a multiple of anything
SIZES = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2,
)  # fmt: skip
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "tp2pp2": {"tensor": 2, "pipeline": 2},
    "tp2dp2-zero3": {"tensor": 2, "data": 2, "zero_stage": 3},
    "pp2dp2-zero1": {"pipeline": 2, "data": 2, "zero_stage": 1},
    "folded": {"pipeline": 2, "data": 2, "schedule": "zbv", "virtual_stages": 2},
}
CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)


def write_tokenizer(folder: Path, template: str | None = CHATML) -> Path:
    """A byte-level tokenizer of 256 bytes and 4 special tokens, with files that must survive byte for byte."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|tool|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "model_max_length": 64, "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    if template is not None:
        config["chat_template"] = template
    # Spaces and a missing line end that no program of ours would write.
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=3), encoding="utf-8")
    return folder


def save_checkpoint(layout: str, folder: Path, out: Path, facts: dict[str, Any]) -> None:
    """On every rank: load the folder in a layout and write its checkpoint as a run would."""
    config = config_from_folder(folder)
    parallel, training = ParallelConfig(**LAYOUTS[layout]), TrainingConfig(precision="fp32", steps=1)
    parts = build_parts(config, parallel, training, mesh_of(parallel))
    load_weights(parts.parts, config, folder)
    engine = Engine(parts, parallel, training, 16, 10)
    origin = origin_of_folder(str(folder), str(folder), layout=layout, **facts)
    checkpointer = Checkpointer(out, origin=origin.to_state())
    checkpointer.save(engine, {"step": 3})
    checkpointer.wait()
