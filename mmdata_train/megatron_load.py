"""What a `--load` folder is, told by its files' names: nothing is unpickled and no tensor is read.

A Hugging Face folder and this engine's own checkpoints can be used; Megatron's two formats and a few others are refused
by name with the conversion to use.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import filelock

from mmdata.indexed.durable import write_durably
from mmdata_train.errors import ConfigError, ModelError
from mmdata_train.hf_folder import weight_homes
from mmdata_train.run_folder import LATEST, RUN_CHECKPOINTS, STATE, STEP_FOLDER, latest_checkpoint

LoadKind = Literal["huggingface", "own", "missing", "refused"]
_TRACKER = "latest_checkpointed_iteration.txt"
_BEGUN = (RUN_CHECKPOINTS, "from_flags.yaml", "mock")
"""What a run that ended before its first checkpoint leaves in its output folder, one of them at least."""
_BRIDGE = (
    "convert it to a Hugging Face folder with Megatron-Bridge (AutoBridge.export_ckpt(megatron_path, hf_path)) and give"
    " that to --load"
)
_DIST = f"a Megatron torch_dist checkpoint; {_BRIDGE}"
_LEGACY = (
    "a Megatron torch checkpoint (mp_rank_* folders of pickles); rerun Megatron's own script on it with"
    f" --ckpt-convert-format torch_dist --ckpt-convert-save DIR, then {_BRIDGE}"
)
_FSDP = f"a Megatron fsdp_dtensor or another program's distributed checkpoint; {_BRIDGE}"
_DEEPSPEED = "a DeepSpeed checkpoint; make a Hugging Face folder of it with its own zero_to_fp32.py"
_ADAPTER = "a PEFT adapter without its model; merge it with peft (merge_and_unload) and save_pretrained"
_CONSOLIDATED = (
    "Meta's own format (consolidated.*.pth); convert it with transformers' convert_llama_weights_to_hf.py and give the"
    " Hugging Face folder"
)


@dataclass(frozen=True, slots=True)
class Loadable:
    """What stands at a path. folder: the Hugging Face folder, or the checkpoint of ours. reason: why it is refused.

    missing: no folder, an empty one, or a run of ours that has saved nothing yet.
    """

    kind: LoadKind
    folder: Path
    reason: str = ""


def identify(path: str | Path) -> Loadable:
    """Tell by names what `path` holds. Raises CheckpointError as latest_checkpoint does."""
    folder = Path(path)
    if not folder.exists():
        return Loadable("missing", folder)
    if not folder.is_dir():
        return Loadable("refused", folder, "a file; give the folder of a model or of checkpoints")
    own = _own_checkpoint(folder)
    if own is not None:
        return Loadable("own", own)
    if (folder / "adapter_config.json").is_file():
        return Loadable("refused", folder, _ADAPTER)
    foreign = _foreign(folder)
    if foreign is not None:
        return Loadable("refused", folder, foreign)
    if _is_hugging_face(folder):
        return Loadable("huggingface", folder)
    if not any(folder.iterdir()) or any((folder / name).exists() for name in _BEGUN):
        return Loadable("missing", folder)
    return Loadable(
        "refused", folder, "neither a Hugging Face folder (config.json with model_type) nor one this engine saved"
    )


def _own_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint of a run's folder, of its `checkpoints`, or the checkpoint itself."""
    if STEP_FOLDER.fullmatch(folder.name) and (folder / STATE).is_file():
        return folder
    for place in (folder, folder / RUN_CHECKPOINTS):
        pointer = place / LATEST
        # DeepSpeed has a file of this name too, which names folders of another kind.
        if pointer.is_file() and not STEP_FOLDER.fullmatch(pointer.read_text("utf-8", errors="replace").strip()):
            continue
        found = latest_checkpoint(place)
        if found is not None:
            return found
    return None


def _foreign(folder: Path) -> str | None:
    for place in _iterations(folder):
        if any(place.glob("mp_rank_*")) and not any(place.glob("mp_rank_*_model_states.pt")):
            return _LEGACY
        if any(place.glob("mp_rank_*_model_states.pt")):
            return _DEEPSPEED
        metadata = place / "metadata.json"
        if (place / "common.pt").is_file() or (metadata.is_file() and b"sharded_backend" in metadata.read_bytes()):
            return _DIST
        if (place / ".metadata").is_file() or any(place.glob("*.distcp")):
            return _FSDP
    if (folder / _TRACKER).is_file():
        return "a Megatron checkpoint folder whose newest iteration is not there; look at " + _TRACKER
    return None


def _iterations(folder: Path) -> Iterator[Path]:
    """The folder and those below it that checkpoint formats use."""
    yield folder
    for pattern in ("iter_*", "release", "global_step*"):
        yield from sorted((place for place in folder.glob(pattern) if place.is_dir()), reverse=True)


def _is_hugging_face(folder: Path) -> bool:
    config = folder / "config.json"
    if not config.is_file():
        return False
    try:
        value = json.loads(config.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(value, dict) and "model_type" in value


def weights_problem(folder: Path) -> str | None:
    """Why a Hugging Face folder has no weights to start from, or None."""
    try:
        weight_homes(folder)
    except ModelError as error:
        consolidated = any(folder.glob("*.pth")) and not any(folder.glob("*.safetensors"))
        return _CONSOLIDATED if consolidated else f"a Hugging Face folder without weights to load: {error}"
    return None


def run_folder(checkpoint: Path) -> Path | None:
    """The output folder of the run that saved a checkpoint of ours; None where it was moved out of one."""
    return checkpoint.parent.parent if checkpoint.parent.name == RUN_CHECKPOINTS else None


def has_run(output: Path) -> bool:
    """Whether the output folder holds a run that would be continued. Raises CheckpointError as latest_checkpoint."""
    return latest_checkpoint(output / RUN_CHECKPOINTS) is not None


def take_over(checkpoint: Path, output: Path) -> None:
    """Make a checkpoint of another folder the newest one of `output`, unless a run is there already.

    Files are linked where the file system can, else copied. Safe to call on every rank at once.
    """
    place = output / RUN_CHECKPOINTS
    place.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(output / "take_over.lock"):
        if (place / LATEST).is_file():
            return
        target, partial = place / checkpoint.name, place / f"{checkpoint.name}.tmp"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(checkpoint, partial, copy_function=_link_or_copy)
        partial.replace(target)
        write_durably(str(place / LATEST), checkpoint.name.encode())


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def check_shape(fields: dict[str, Any], given: dict[str, str], folder: Path) -> list[str]:
    """A sentence for each shape flag that contradicts the Hugging Face folder.

    fields: the model section as the flags give it. given: field -> flag, for the flags written on the command line.
    Imports torch.
    """
    from mmdata_train.hf_config import config_from_folder

    try:
        found = config_from_folder(folder)
    except ModelError as error:
        return [f"--load: {error}"]
    problems = []
    for field, flag in given.items():
        if field in ("dropout", "attention_dropout", "vocab_multiple", "init_std", "rope_scaling"):
            continue
        wanted, stored = fields.get(field), getattr(found, field)
        fits = wanted <= stored if field == "max_positions" and wanted is not None else wanted == stored
        if not fits:
            problems.append(
                f"{flag} gives {field} {wanted}, but {folder / 'config.json'} has {stored}; correct it or leave it out"
            )
    return problems


def folder_dropout(hidden: float | None, attention: float | None) -> float | None:
    """The one dropout that a model from a folder can have. Raises ConfigError when two are wanted."""
    if hidden is not None and attention is not None and hidden != attention:
        raise ConfigError(
            f"--hidden-dropout {hidden} and --attention-dropout {attention} differ; a model from a Hugging Face folder"
            " has one dropout for both"
        )
    return hidden if hidden is not None else attention
