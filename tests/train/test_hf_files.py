"""Files of a model folder that are torn, missing, foreign or of the older kind; and what reading one costs."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rank_meshes import mesh_of  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from mmdata_train.config import ParallelConfig, TrainingConfig  # noqa: E402
from mmdata_train.errors import ModelError  # noqa: E402
from mmdata_train.hf import load_weights  # noqa: E402
from mmdata_train.hf_config import config_from_folder  # noqa: E402
from mmdata_train.hf_files import WeightFiles, load_bin  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.loss import to_local  # noqa: E402
from mmdata_train.model.decoder import Decoder  # noqa: E402
from mmdata_train.parallelize import build_parts  # noqa: E402
from mmdata_train.slices import named_weights  # noqa: E402

Tensors = dict[str, Any]
TINY = {
    "model_type": "llama", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
INDEX = "model.safetensors.index.json"


def llama_tensors(raw: dict[str, Any], dtype: Any = None) -> Tensors:
    """A Llama's tensors by their names on disk, written out here so that no code under test makes them."""
    hidden, inner, size = raw["hidden_size"], raw["intermediate_size"], raw["hidden_size"] // raw["num_attention_heads"]
    keys = raw["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (raw["vocab_size"], hidden)}
    for layer in range(raw["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (hidden,), f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.self_attn.q_proj.weight": (hidden, hidden), f"{at}.self_attn.k_proj.weight": (keys, hidden),
            f"{at}.self_attn.v_proj.weight": (keys, hidden), f"{at}.self_attn.o_proj.weight": (hidden, hidden),
            f"{at}.mlp.gate_proj.weight": (inner, hidden), f"{at}.mlp.up_proj.weight": (inner, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, inner),
        }  # fmt: skip
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (raw["vocab_size"], hidden)}
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator).to(dtype or torch.float32) for name, shape in shapes.items()}


def write(folder: Path, tensors: Tensors, kind: str, **changes: Any) -> Path:
    """A folder of one of four kinds: one or several files, safetensors or bin."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**TINY, **changes}), encoding="utf-8")
    suffix = "bin" if kind.endswith("bin") else "safetensors"
    stem = "pytorch_model" if suffix == "bin" else "model"
    save = torch.save if suffix == "bin" else save_file
    if not kind.startswith("sharded"):
        save(tensors, folder / f"{stem}.{suffix}")
        return folder
    names = sorted(tensors)
    cut, weight_map = len(names) // 3 + 1, {}
    for number, start in enumerate(range(0, len(names), cut)):
        file = f"{stem}-{number + 1:05d}-of-00003.{suffix}"
        save({name: tensors[name] for name in names[start : start + cut]}, folder / file)
        weight_map.update(dict.fromkeys(names[start : start + cut], file))
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return folder


def load(folder: Path) -> dict[str, Any]:
    config = config_from_folder(folder, vocab_multiple=16)
    model = Decoder(config)
    load_weights([model], config, folder)
    return dict(model.named_parameters())


@pytest.mark.parametrize("kind", ["safetensors", "sharded", "bin", "sharded-bin"])
def test_each_kind_of_folder_gives_the_same_weights(kind: str, tmp_path: Path) -> None:
    tensors = llama_tensors(TINY)
    loaded = load(write(tmp_path / kind, tensors, kind))
    assert torch.equal(loaded["layers.1.mlp.down_proj.weight"], tensors["model.layers.1.mlp.down_proj.weight"])
    assert torch.equal(loaded["layers.0.attention.k_proj.weight"], tensors["model.layers.0.self_attn.k_proj.weight"])
    for name, key in (("embed.tokens.weight", "model.embed_tokens.weight"), ("head.weight", "lm_head.weight")):
        assert torch.equal(loaded[name][:61], tensors[key])
        assert loaded[name].shape[0] == 64 and not loaded[name][61:].any()


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_float_types_are_converted_exactly(dtype: str, tmp_path: Path) -> None:
    tensors = llama_tensors(TINY, getattr(torch, dtype))
    loaded = load(write(tmp_path / "model", tensors, "safetensors"))
    assert torch.equal(loaded["head.norm.weight"], tensors["model.norm.weight"].float())


def test_bin_of_torch_before_1_6_is_read_whole_with_a_warning(tmp_path: Path, caplog: Any) -> None:
    tensors = llama_tensors(TINY)
    folder = write(tmp_path / "old", tensors, "bin")
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(load(folder)["head.norm.weight"], tensors["model.norm.weight"])
    assert "read whole into memory" in caplog.text


class Foreign:
    """Something a state dict must not hold."""

    def __reduce__(self) -> Any:
        return os.getcwd, ()


def test_bin_that_would_run_code_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "bad", llama_tensors(TINY), "bin")
    torch.save({"model.norm.weight": Foreign()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model.bin asks for \w+.getcwd, which is no tensor"):
        load(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}, protocol=2))
    with pytest.raises(ModelError, match=r"pytorch_model.bin is not a whole file of torch.save"):
        load(folder)


def test_bin_that_the_system_cannot_read_is_not_called_torn(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").mkdir()
    with pytest.raises(ModelError, match=r"pytorch_model.bin cannot be read: "):
        load_bin(tmp_path / "pytorch_model.bin")


@pytest.mark.parametrize("kind", ["sharded", "sharded-bin"])
def test_torn_shard_is_named(kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "torn", llama_tensors(TINY), kind)
    shard = next(folder.glob("*-00002-of-00003.*"))
    shard.write_bytes(shard.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=rf"{shard.name}.*copy it again"):
        load(folder)


def test_git_lfs_pointer_instead_of_a_shard_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "lfs", llama_tensors(TINY), "sharded")
    shard = next(folder.glob("*-00003-of-00003.*"))
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", encoding="utf-8")
    with pytest.raises(ModelError, match=rf"{shard.name} \(6\d bytes\) is not a whole safetensors file.*Git LFS"):
        load(folder)


def test_missing_shard_is_named_and_counted(tmp_path: Path) -> None:
    folder = write(tmp_path / "gap", llama_tensors(TINY), "sharded")
    next(folder.glob("*-00002-of-00003.*")).unlink()
    with pytest.raises(ModelError, match=r"names model-00002-of-00003.safetensors, which is not.*1 of 3 files"):
        load(folder)


def test_missing_index_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "noindex", llama_tensors(TINY), "sharded")
    (folder / INDEX).unlink()
    with pytest.raises(ModelError, match=r"holds model-00001-of-00003.safetensors but no index"):
        load(folder)


def test_index_that_names_a_file_outside_the_folder_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "outside", llama_tensors(TINY), "sharded")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}), encoding="utf-8")
    with pytest.raises(ModelError, match=r"names ../a.safetensors, which is not in the folder"):
        load(folder)


def test_tensor_the_index_gives_to_the_wrong_file_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "lie", llama_tensors(TINY), "sharded")
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    index["weight_map"]["lm_head.weight"] = "model-00003-of-00003.safetensors"
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ModelError, match=r"model-00003-of-00003.safetensors lacks 'lm_head.weight' \(1 in all\)"):
        load(folder)


def changed(tensors: Tensors, key: str, value: Any) -> Tensors:
    rest = {name: tensor for name, tensor in tensors.items() if name != key}
    return rest if value is None else {**rest, key: value}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.norm.weight", None, r"tensor 'model.norm.weight' is missing \(1 in all\)"),
        ("lm_head.weight", None, r"'lm_head.weight' is missing.*tie_word_embeddings: true"),
        ("score.weight", "vector", r"1 tensors have no place in a llama model of this config, such as 'score.weight'"),
        ("model.norm.weight", "vector", r"'model.norm.weight' is \[3\], but head.norm.weight.*needs \[32"),
        ("model.layers.0.mlp.up_proj.weight", "int8", r"up_proj.weight' is stored as I8; quantised weights are"),
    ],
)
def test_folder_that_does_not_fit_its_config_names_the_tensor(
    key: str, value: str | None, message: str, tmp_path: Path
) -> None:
    made = {None: None, "vector": torch.zeros(3), "int8": torch.zeros(48, 32, dtype=torch.int8)}[value]
    folder = write(tmp_path / "model", changed(llama_tensors(TINY), key, made), "safetensors")
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_second_copy_of_a_tied_head_must_equal_the_embedding(tmp_path: Path) -> None:
    tensors = llama_tensors(TINY)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    folder = write(tmp_path / "tied", tensors, "safetensors", tie_word_embeddings=True)
    assert "head.weight" not in load(folder)
    tensors["lm_head.weight"][60, 31] += 1
    write(folder, tensors, "safetensors", tie_word_embeddings=True)
    with pytest.raises(ModelError, match=r"lm_head.weight and model.embed_tokens.weight differ"):
        load(folder)


def test_adapter_folder_given_as_a_model_is_explained(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match="it is a PEFT adapter; give its base model"):
        WeightFiles.of(tmp_path)


BIG = {
    **TINY, "vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 8,
}  # fmt: skip


def _memory(key: str) -> int:
    """Bytes of one line of this process's status."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").split("\n"):
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(key)


def measured_load(folder: Path) -> tuple[int, int]:
    """(bytes of this rank's share, bytes by which resident memory grew at its peak)."""
    config = config_from_folder(folder)
    parallel, training = ParallelConfig(tensor=2), TrainingConfig(precision="fp32", steps=1)
    parts = build_parts(config, parallel, training, mesh_of(parallel))
    share = sum(to_local(weight).nbytes for _, weight in named_weights(parts.parts))
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak counts from here
    before = _memory("VmRSS")
    load_weights(parts.parts, config, folder)
    return share, _memory("VmHWM") - before


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_a_rank_needs_its_share_and_the_pages_of_one_file(two: RankPool, tmp_path: Path) -> None:
    """300 MB in ten files onto two ranks: nothing beyond the share grows with the model."""
    tensors = llama_tensors(BIG, torch.bfloat16)
    names = sorted(tensors)
    weight_map = {name: f"model-{index * 10 // len(names):05d}.safetensors" for index, name in enumerate(names)}
    for file in sorted(set(weight_map.values())):
        save_file({name: tensors[name] for name in names if weight_map[name] == file}, tmp_path / file)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps(BIG), encoding="utf-8")
    whole = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    largest = max(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert whole > 290e6
    for share, grown in two.run(measured_load, tmp_path):
        assert share > whole * 0.99, "float32 halves of bfloat16 tensors"
        assert grown < share + largest + 20e6
