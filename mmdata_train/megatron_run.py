"""From a Megatron command line to a run that can start: the flags, the `--load` folder, the shards, every size check.

`prepare` looks at files but writes none and imports torch only for a Hugging Face folder; all that is wrong is raised
together. `make_ready` then writes what the run needs in its output folder. Both may be called on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmdata_train.config import TrainConfig
from mmdata_train.config_checks import check_run
from mmdata_train.config_io import build, load_mapping
from mmdata_train.errors import CheckpointError, CommandLineError, ConfigError, TrainError
from mmdata_train.megatron_data import MockData, find_data, write_mock
from mmdata_train.megatron_flags import Translation, in_flags, nested, translate
from mmdata_train.megatron_load import (
    check_shape,
    folder_dropout,
    has_run,
    identify,
    run_folder,
    take_over,
    weights_problem,
)
from mmdata_train.megatron_parse import Given, parse
from mmdata_train.megatron_shape import vocabulary_rules
from mmdata_train.megatron_table import FLAGS
from mmdata_train.model.config import ModelConfig

REQUIRED = ("num-layers", "hidden-size", "num-attention-heads", "max-position-embeddings")
_STAND_IN_VOCABULARY = 50257


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that can start. mock: data to write first. checkpoint: one of another folder to continue from."""

    config: TrainConfig
    notices: tuple[str, ...]
    mock: MockData | None = None
    checkpoint: Path | None = None


@dataclass(slots=True)
class _Plan:
    """What the stages of `prepare` fill in."""

    translation: Translation
    fields: dict[str, Any]
    problems: list[str]
    notices: list[str]
    folder: Path | None = None
    checkpoint: Path | None = None
    needs_shape: bool = True
    mock: MockData | None = field(default=None)

    @property
    def given(self) -> Given:
        return self.translation.given


def data_ranks(given: Given, world_size: int | None) -> int:
    """Ranks that hold different samples: as given, or what tensor x pipeline leave of the world (1 if not known)."""
    if "data-parallel-size" in given:
        return max(1, int(given.get("data-parallel-size")))
    block = int(given.get("tensor-model-parallel-size") * given.get("pipeline-model-parallel-size"))
    return max(1, (world_size or block) // max(block, 1))


def prepare(arguments: Sequence[str], world_size: int | None = None) -> Prepared:
    """A command line as a configuration whose sizes fit together.

    world_size: ranks of the run, None where they are still to be started: then data ranks count as 1 unless given.
    Raises CommandLineError with everything that is wrong.
    """
    translation = translate(arguments, data_ranks(parse(arguments)[0], world_size))
    plan = _Plan(translation, dict(translation.fields), list(translation.problems), list(translation.notices))
    try:
        _load(plan)
    except (CheckpointError, ConfigError) as error:
        plan.problems.append(f"--load: {error}")
    missing = [f"--{name}" for name in REQUIRED if plan.needs_shape and plan.given.absent(name)]
    if missing:
        plan.problems.append(
            f"{', '.join(missing)} missing: give the model's shape, or a Hugging Face folder with --load"
        )
    vocabulary = _data(plan)
    config = None
    # Sizes can only be judged when every flag they come from was understood.
    if not translation.problems and not missing:
        config = _build(plan, vocabulary, world_size)
    if plan.problems:
        if config is not None:
            plan.notices.append("all flags are understood and all sizes fit together; what is missing:")
        raise CommandLineError(list(dict.fromkeys(plan.problems)), plan.notices)
    assert config is not None
    return Prepared(config, tuple(plan.notices), plan.mock, plan.checkpoint)


def _load(plan: _Plan) -> None:
    """Where the weights come from: fills `fields`, `folder`, `checkpoint`."""
    given = plan.given
    flag = given.first(("load", "pretrained-checkpoint"))
    output = Path(plan.fields.get("output.dir", "runs/finetune"))
    if flag is None:
        if has_run(output):
            plan.notices.append(f"{output} holds a run, which is continued; give another --save to begin anew")
        return
    path = given.get(flag)
    found = identify(path)
    if found.kind == "refused":
        plan.problems.append(f"--{flag} {path} is {found.reason}")
    elif found.kind == "huggingface":
        _load_folder(plan, flag, Path(path), output)
    elif found.kind == "own":
        _continue(plan, found.folder, output)
    elif Path(path).absolute() == output.absolute() and not given.get("exit-on-missing-checkpoint"):
        plan.notices.append(f"--{flag} {path} holds no checkpoint yet: training starts from random weights")
    else:
        plan.problems.append(
            f"--{flag} {path}: there is no such folder, or no checkpoint in it; give a Hugging Face folder or one this"
            f" engine saved, or leave --{flag} out to start from random weights"
        )


def _load_folder(plan: _Plan, flag: str, path: Path, output: Path) -> None:
    given = plan.given
    plan.folder, plan.needs_shape = path, False
    problem = weights_problem(path)
    if problem is not None:
        plan.problems.append(f"--{flag} {path} is {problem}")
    for name in ("finetune", "no-load-optim", "make-vocab-size-divisible-by", "padded-vocab-size"):
        if name in given and given.get(name):
            plan.notices.append(f"--{name} has no effect with a Hugging Face folder")
    if has_run(output):
        plan.notices.append(f"{output} holds a run, which is continued; {path} is what it started from")
    written = {
        row.target.removeprefix("model."): f"--{name}"
        for name, row in FLAGS.items()
        if name in given and row.target.startswith("model.")
    }
    if not given.get("use-checkpoint-args"):
        shape = plan.translation.section("model") | {"vocab_size": _given_vocabulary(given)}
        plan.problems += check_shape(shape, written, path)
    drops = (given.get(name) if name in given else None for name in ("hidden-dropout", "attention-dropout"))
    plan.fields["train.dropout"] = folder_dropout(*drops)


def _continue(plan: _Plan, checkpoint: Path, output: Path) -> None:
    """A checkpoint of ours goes on where it stopped, in its own folder or in a new one."""
    given, run = plan.given, run_folder(checkpoint)
    if given.get("use-checkpoint-args"):
        saved = None if run is None else load_mapping(run / "config.yaml").get("model")
        if saved is None:
            raise ConfigError(f"{checkpoint} has no config.yaml beside it; give the model's shape by flags")
        plan.needs_shape = False
        plan.fields = {key: value for key, value in plan.fields.items() if not key.startswith("model.")}
        plan.fields["model"] = saved
    fresh = next((name for name in ("finetune", "no-load-optim") if given.get(name)), None)
    if fresh is not None:
        _start_anew(plan, fresh, checkpoint, output)
    elif "save" not in given and run is not None:
        plan.fields["output.dir"] = str(run)
        plan.notices.append(f"--save is absent: the run goes on in {run}")
    elif run is not None and run.absolute() == output.absolute():
        if identify(output).folder.name != checkpoint.name:
            raise ConfigError(f"{checkpoint} is not the newest of {run}; to go on from it, give another --save")
    elif has_run(output):
        plan.notices.append(f"{output} holds a run, which is continued; --load is what it started from")
    else:
        plan.checkpoint = checkpoint
        plan.notices.append(f"continuing {checkpoint} in {output}")


def _start_anew(plan: _Plan, flag: str, checkpoint: Path, output: Path) -> None:
    """Weights of a checkpoint of ours, but neither its optimizer nor its place, into a folder of their own."""
    run = run_folder(checkpoint)
    if "save" not in plan.given or (run is not None and run.absolute() == output.absolute()):
        plan.problems.append(
            f"--{flag} starts a new run from the weights of {checkpoint}; give it a folder of its own with --save"
        )
        return
    plan.fields["start_from"] = str(checkpoint)
    if has_run(output):
        plan.notices.append(f"{output} holds a run, which is continued; {checkpoint} is what it started from")
    else:
        plan.notices.append(f"--{flag}: weights of {checkpoint}, from step 0 and without its optimizer")


def _given_vocabulary(given: Given) -> int | None:
    """--vocab-size as the model's vocabulary; Megatron's NullTokenizer adds its end token."""
    size: int | None = given.get("vocab-size")
    return size + 1 if size is not None and given.get("tokenizer-type") == "NullTokenizer" else size


def _data(plan: _Plan) -> int | None:
    """Shards, tokenizer and vocabulary; returns the vocabulary's size where it is known."""
    from_folder = plan.folder is not None or "model" in plan.fields
    found = find_data(plan.given, plan.fields, _given_vocabulary(plan.given), from_folder=from_folder)
    plan.fields |= found.fields
    plan.problems += found.problems
    plan.notices += found.notices
    plan.mock = found.mock
    return found.vocab_size


def _build(plan: _Plan, vocabulary: int | None, world_size: int | None) -> TrainConfig | None:
    """The configuration, every size of it checked; what is wrong goes to `problems`."""
    fields = dict(plan.fields)
    try:
        if plan.folder is not None:
            fields = {key: value for key, value in fields.items() if not key.startswith("model.")}
            fields["model"] = str(plan.folder)
        elif "model" not in fields:
            size = _STAND_IN_VOCABULARY if vocabulary is None else vocabulary
            fields |= {f"model.{name}": value for name, value in vocabulary_rules(plan.given, size).items()}
        config = build(TrainConfig, nested(fields))
        parallel = config.parallel
        ranks = world_size or parallel.tensor * parallel.pipeline * (parallel.data or 1)
        check_run(_shape(config), parallel, config.train, config.data.seq_length, ranks)
        return config
    except TrainError as error:
        plan.problems.append(in_flags(str(error)))
        return None


def _shape(config: TrainConfig) -> ModelConfig:
    if isinstance(config.model, ModelConfig):
        return config.model
    from mmdata_train.hf_config import config_from_folder

    return config_from_folder(config.model)


def make_ready(prepared: Prepared) -> None:
    """Write what the run needs before it starts: mock data, the checkpoint to continue. Raises what writing raises."""
    if prepared.mock is not None:
        write_mock(prepared.mock)
    if prepared.checkpoint is not None:
        take_over(prepared.checkpoint, Path(prepared.config.output.dir))
