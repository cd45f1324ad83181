"""PEFT folders that would be misread are refused by name: other methods, damaged files, settings that do not fit."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402

from mmdata_train.config import TrainConfig  # noqa: E402
from mmdata_train.config_io import build, to_mapping  # noqa: E402
from mmdata_train.errors import AdapterError, ExportError  # noqa: E402
from mmdata_train.lora.peft import Adapter, AdapterSource, from_peft, read_adapter, write_adapter  # noqa: E402
from mmdata_train.lora.settings import LoraConfig  # noqa: E402
from mmdata_train.lora.start import check_start  # noqa: E402
from mmdata_train.model.config import ModelConfig  # noqa: E402
from mmdata_train.run import check_before_ranks, finetune  # noqa: E402
from mmdata_train.session import model_config  # noqa: E402

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
        ({"r": "many"}, "r is 'many'; it must be a whole number from 1"),
        ({"r": "2"}, "r is '2'; it must be a whole number from 1"),
        ({"r": True}, "r is True; it must be a whole number from 1"),
        ({"r": None}, "r is None; it must be a whole number from 1"),
        ({"lora_alpha": "16"}, "lora_alpha is '16'; it must be a number"),
        ({"lora_dropout": 1.5}, r"lora_dropout is 1\.5; it must be a probability"),
        ({"use_rslora": "false"}, "use_rslora is 'false'; it must be true or false"),
        ({"rank_pattern": {"q_proj": "2"}}, "rank_pattern is .*it must be an object of patterns with whole numbers"),
        ({"alpha_pattern": {"q_proj(": 2}}, "alpha_pattern is .*it must be an object of patterns with numbers"),
        ({"target_modules": "q_proj("}, "target_modules is 'q_proj.'; it must be a list of names, or a regular expr"),
        ({"target_modules": [1]}, r"target_modules is \[1\]; it must be"),
        ({"modules_to_save": "lm_head"}, "modules_to_save is 'lm_head'; it must be a list of names"),
        ({"base_model_name_or_path": 7}, "base_model_name_or_path is 7; it must be a path or a name"),
        ({"target_modules": ["k_proj", "v_proj"]}, "adapts model.layers.0.self_attn.q_proj, but .* are k_proj, v_proj"),
        ({"target_modules": r".*\.k_proj"}, r"adapts model.layers.0.self_attn.q_proj, but .* are '\.\*"),
        ({"layers_to_transform": [1]}, "adapts model.layers.0.self_attn.q_proj, but target_modules"),
        ({"exclude_modules": ["q_proj"]}, "adapts model.layers.0.self_attn.q_proj, but target_modules"),
    ],
)
def test_adapter_that_would_be_misread_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=words):
        read_adapter(folder_with(tmp_path, PAIR, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": r"model\.layers\.\d+\.self_attn\.(q|k)_proj", "layers_to_transform": None},
        {"target_modules": [PATH[17:]], "layers_to_transform": [1]},
        {"layers_to_transform": 0, "layers_pattern": "layers"},
        {"exclude_modules": ["k_proj"], "modules_to_save": None, "alpha_pattern": {}, "base_model_name_or_path": None},
    ],
)
def test_targets_mean_what_they_mean_to_peft(changes: dict[str, Any], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    check = pytest.importorskip("peft.tuners.tuners_utils").check_target_module_exists
    config = read_adapter(folder_with(tmp_path, PAIR, **changes)).config
    given = {**PLAIN, **changes}
    theirs = peft.LoraConfig(**{key: given[key] for key in given if key != "peft_type"})
    paths = [f"model.layers.{n}.self_attn.{kind}" for n in (0, 1, 10) for kind in ("q_proj", "k_proj", "o_proj")]
    assert [config.covers(path) for path in paths] == [bool(check(theirs, path)) for path in paths]


def test_all_linear_means_every_layer_but_the_head(tmp_path: Path) -> None:
    config = read_adapter(folder_with(tmp_path, PAIR, target_modules="all-linear")).config
    assert config.covers("model.layers.1.mlp.down_proj") and not config.covers("lm_head")


def test_an_adapter_of_another_model_or_half_of_one_is_told_from_its_headers(tmp_path: Path) -> None:
    lora = LoraConfig(rank=2, targets=("q_proj",))
    folder = folder_with(tmp_path / "half", PAIR)
    words = r"lora_from .*half: .* targets q_proj, but .* no tensors for model.layers.1.self_attn.q_proj \(1 of 2"
    with pytest.raises(AdapterError, match=words):
        check_start(folder, CONFIG, lora)
    wide = {name: torch.ones(2, 64) if "lora_A" in name else torch.ones(64, 2) for name in PAIR}
    other = folder_with(tmp_path / "wide", wide, layers_to_transform=[0])
    with pytest.raises(AdapterError, match=r"q_proj has \[64, 64\] outputs and inputs, the model's \[32, 32\]"):
        check_start(other, CONFIG, lora)
    good = folder_with(tmp_path / "good", PAIR, layers_to_transform=[0])
    check_start(good, CONFIG, lora)
    check_start(good, CONFIG, lora, merge_first=True)
    dora = {**PAIR, f"{PATH}.lora_magnitude_vector": torch.ones(32)}
    with pytest.raises(AdapterError, match=r"is a tensor of DoRA, but adapter_config\.json says use_dora false"):
        check_start(folder_with(tmp_path / "dora", dora, layers_to_transform=[0]), CONFIG, lora)


def test_a_run_refuses_a_bad_adapter_before_its_data_and_model_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with(tmp_path / "adapter", PAIR)
    config = build(
        TrainConfig,
        {"model": to_mapping(CONFIG), "lora_rank": 2, "lora_from": str(folder), "output": {"dir": str(tmp_path)}},
    )
    with pytest.raises(AdapterError, match=r"lora_from .*no tensors for model\.layers\.1"):
        model_config(config)
    with pytest.raises(AdapterError, match=r"adapter_config\.json is missing"):
        model_config(dataclasses.replace(config, lora_from=tmp_path / "none"))
    monkeypatch.setattr("mmdata_train.run.with_shards", lambda config: pytest.fail("data were converted first"))
    for start in (finetune, partial(check_before_ranks, world_size=2)):
        with pytest.raises(AdapterError, match=r"lora_from .*no tensors for model\.layers\.1"):
            start(config)


def test_values_that_are_no_numbers_are_not_written(tmp_path: Path) -> None:
    lora = LoraConfig(rank=2, targets=("q_proj",))
    state = {f"layers.{n}.attention.q_proj.lora_A": torch.ones(2, 32) for n in range(2)}
    state |= {f"layers.{n}.attention.q_proj.lora_B": torch.full((32, 2), float("nan")) for n in range(2)}
    with pytest.raises(ExportError, match=r"q_proj\.lora_B\.weight holds NaN or infinity"):
        write_adapter(state, AdapterSource(lora, CONFIG), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


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
    with pytest.raises(AdapterError, match=r"adapter_model.bin asks for \S+Foreign, which is no tensor"):
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
