"""Streamed safetensors files are what the library reads, and exporting costs the largest tensor, not the model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed  # noqa: E402

from mmdata_train.checkpoint_storage import RawWriter  # noqa: E402
from mmdata_train.errors import ConfigError, ExportError  # noqa: E402
from mmdata_train.export.command import export_checkpoint  # noqa: E402
from mmdata_train.export.description import config_of_shape  # noqa: E402
from mmdata_train.export.options import ExportOptions  # noqa: E402
from mmdata_train.export.origin import Origin  # noqa: E402
from mmdata_train.export.sizes import parse_bytes  # noqa: E402
from mmdata_train.export.stream import plan_shards, write_weights  # noqa: E402
from mmdata_train.hf_config import config_from_json  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.model.config import ModelConfig, RopeScaling  # noqa: E402
from mmdata_train.model.decoder import Decoder  # noqa: E402
from mmdata_train.run_folder import FORMAT, STATE  # noqa: E402
from mmdata_train.safetensors_file import Entry  # noqa: E402


def test_library_reads_back_every_dtype_shape_and_view(tmp_path: Path) -> None:
    tensors = {
        "narrow": torch.randn(7, 3).to(torch.bfloat16),
        "wide": torch.randn(5, dtype=torch.float64),
        "turned": torch.randn(4, 6).T,
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "half": torch.randn(3).half(),
    }
    entries = [Entry(name, tuple(value.shape), value.dtype) for name, value in tensors.items()]
    files = write_weights(tmp_path, entries, tensors.__getitem__, 10**9)
    assert files == {"model.safetensors": (tmp_path / "model.safetensors").stat().st_size}
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in tensors.items())


def test_header_is_the_format_s_to_the_byte(tmp_path: Path) -> None:
    write_weights(tmp_path, [Entry("a", (2,), torch.float32)], lambda name: torch.tensor([1.0, 2.0]), 100)
    header = b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    header += b" " * (-len(header) % 8)
    data = b"\x00\x00\x80\x3f\x00\x00\x00\x40"
    assert (tmp_path / "model.safetensors").read_bytes() == len(header).to_bytes(8, "little") + header + data


def test_shards_hold_at_most_their_limit_unless_one_tensor_exceeds_it() -> None:
    entries = [Entry(str(index), (size,), torch.float32) for index, size in enumerate((10, 10, 100, 10, 10, 10))]
    names = [[entry.name for entry in shard] for shard in plan_shards(entries, 80)]
    assert names == [["0", "1"], ["2"], ["3", "4"], ["5"]]


def test_values_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="w holds NaN or infinity: training has failed"):
        write_weights(tmp_path, [Entry("w", (1,), torch.float16)], lambda name: torch.tensor([float("nan")]), 100)


@pytest.mark.parametrize(
    ("text", "value"), [("5GB", 5 * 10**9), ("1.5GiB", 3 << 29), ("2000", 2000), ("3k", 3000), (" 7 MB ", 7 * 10**6)]
)
def test_sizes_are_decimal_unless_written_as_binary(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "GB", "5iB", "five", "-1"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 5GB"):
        parse_bytes(text)


SHAPE = ModelConfig(vocab_size=61, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2)
GPT = ModelConfig(
    vocab_size=61, hidden_size=32, num_layers=2, num_heads=4, norm="layer", positions="learned", activation="gelu_tanh",
    gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, tie_embeddings=True, family="gpt2",
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (SHAPE, "llama"),
        (ModelConfig(vocab_size=61, hidden_size=32, num_layers=2, num_heads=4, qk_norm=True), "qwen3"),
        (ModelConfig(vocab_size=61, hidden_size=32, num_layers=2, num_heads=4, qkv_bias=True), "qwen2"),
        (ModelConfig(vocab_size=61, hidden_size=32, num_layers=2, num_heads=4, sliding_window=8), "mistral"),
        (GPT, "gpt2"),
        (
            ModelConfig(
                vocab_size=61, hidden_size=32, num_layers=2, num_heads=4,
                rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_max_positions=512, attention_factor=1.25),
            ),
            "llama",
        ),
    ],
)  # fmt: skip
def test_shape_trained_from_nothing_gets_the_architecture_that_is_exactly_it(model: ModelConfig, kind: str) -> None:
    raw = config_of_shape(model, torch.bfloat16, {"eos_token_id": 5})
    assert (raw["model_type"], raw["torch_dtype"], raw["eos_token_id"]) == (kind, "bfloat16", 5)
    found = config_from_json(raw, "written", vocab_multiple=model.vocab_multiple)
    for name in ("vocab_size", "num_kv_heads", "head_dim", "rope_scaling", "sliding_window", "qk_norm", "qkv_bias"):
        assert getattr(found, name) == getattr(model, name), name


def test_shape_no_architecture_has_names_what_is_in_the_way() -> None:
    model = ModelConfig(vocab_size=61, hidden_size=32, num_layers=2, num_heads=4, norm="layer")
    with pytest.raises(ExportError, match=r"no Hugging Face architecture is exactly.*llama cannot have norm 'layer'"):
        config_of_shape(model, torch.float32, {})


BIG = ModelConfig(
    vocab_size=8192, hidden_size=768, num_layers=5, num_heads=8, num_kv_heads=8, intermediate_size=3072
)  # fmt: skip


def write_checkpoint(folder: Path, model: ModelConfig) -> tuple[int, int]:
    """A one-rank checkpoint of random weights; returns the bytes of all weights and of the largest."""
    made = Decoder(model)
    weights = {f"model.{name}": torch.randn_like(weight) for name, weight in made.named_parameters()}
    save_distributed(weights, storage_writer=RawWriter(folder), no_dist=True)
    state = {"format": FORMAT, "step": 1, "origin": Origin(model=model).to_state()}
    (folder / STATE).write_text(json.dumps(state), encoding="utf-8")
    sizes = [weight.nbytes for weight in weights.values()]
    return sum(sizes), max(sizes)


def measured_export(checkpoint: Path, output: Path) -> int:
    """Bytes by which anonymous memory grew at its peak."""

    def memory(key: str) -> int:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.split(f"{key}:")[1].split()[0]) << 10

    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak counts from here
    before = memory("VmRSS")
    export_checkpoint(checkpoint, ExportOptions(to="hf", output=output, dtype="bf16", max_shard_bytes=30 * 10**6))
    return memory("VmHWM") - before


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_export_needs_the_largest_tensor_and_the_chunk_it_is_stored_in(one: RankPool, tmp_path: Path) -> None:
    checkpoint, output = tmp_path / "step_00000001", tmp_path / "out"
    [(total, largest)] = one.run(write_checkpoint, checkpoint, BIG)
    assert total > 7 * largest
    one.close()  # a fresh rank, whose memory holds nothing to reuse
    [grown] = one.run(measured_export, checkpoint, output)
    assert grown < 3 * largest + 40e6 < total / 2
    assert len(list(output.glob("*.safetensors"))) >= 4
