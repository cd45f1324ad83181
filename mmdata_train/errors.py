"""Every error a user of the training package can meet, as one tree below MMDataError.

MMDataError
└── TrainError
    ├── ConfigError           a value in the configuration is wrong (exit code 2); names the values that would work
    │   ├── LayoutError       degrees of parallelism that do not fit the world, the batch or each other
    │   └── CommandLineError  a Megatron command line; one sentence for each thing wrong with it
    ├── SamplerError          an order of samples that cannot be given
    │   ├── SamplesExhausted  the run asks for more samples than its index holds
    │   └── SamplerStateError a saved position that belongs to another order of samples
    ├── ParityError           a layout that does not train like one process under the installed torch
    ├── ModelError            a model that cannot be built, read or loaded
    │   └── AdapterError      an adapter folder that cannot be read, does not fit the model, or cannot be merged
    ├── CheckpointError       a checkpoint that cannot be written, found or trusted
    ├── ExportError           a checkpoint that cannot be exported as asked
    ├── RankError             a rank that failed, died or did not answer in time
    ├── MemoryExhaustedError  a device or the host is out of memory; lists what used it and the remedies in order
    ├── StepError             training that cannot go on: too many non-finite steps, a batch of the wrong shape
    ├── GenerationError       a prompt or a setting a model cannot generate from
    ├── EvaluationError       an evaluation file, a set of ratings or a score that cannot be used
    │   └── ContaminationError evaluation items that stand in the training data; lists them with their share
    └── DataError             shards that do not fit the model, the tokenizer or the checkpoint
        └── BatchMismatch     ranks that must hold the same batch hold different ones

A message names the value met, the limit and what to do. `assert` is for our own mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmdata.errors import MMDataError, UsageError


class TrainError(MMDataError):
    """Base of every error of the training package."""


class ConfigError(TrainError, UsageError):
    """A value in the configuration is wrong; the message lists the values that would work."""


class LayoutError(ConfigError):
    """Degrees of parallelism that do not fit the world size, the batch sizes or each other."""


class CommandLineError(ConfigError):
    """A Megatron command line that cannot run. problems: one sentence for each thing wrong with it.

    notices: what the user would have been told of a run that starts.
    """

    def __init__(self, problems: Sequence[str], notices: Sequence[str] = ()) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)
        self.notices = tuple(notices)


class SamplerError(TrainError):
    """An order of samples that cannot be given, such as fewer samples than one global batch."""


class SamplesExhausted(SamplerError):
    """The run asks for a step beyond the last sample of its index."""


class SamplerStateError(SamplerError):
    """A saved position belongs to another order of samples; the message shows both fingerprints."""


class ParityError(TrainError):
    """A layout does not give the loss and gradient norm of one process; the message shows both."""


class ModelError(TrainError):
    """A model that cannot be built, read or loaded: sizes that disagree, a folder of an unknown architecture."""


class AdapterError(ModelError):
    """An adapter that cannot be read, does not fit the model or the run, or cannot be merged."""


class CheckpointError(TrainError):
    """A checkpoint that cannot be written, found or trusted."""


class ExportError(TrainError):
    """A checkpoint cannot be exported as asked: the wrong target, values beyond the dtype, a template that differs."""


class RankError(TrainError):
    """A rank failed, died or did not answer in time; the message names it. exit_code: for the command that waited."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class MemoryExhaustedError(TrainError):
    """A device or the host is out of memory; the message lists what used it, measured, and the remedies in order."""


class StepError(TrainError):
    """Training cannot go on: too many non-finite steps in a row, or a batch of the wrong shape."""


class GenerationError(TrainError):
    """A prompt or a setting a model cannot generate from: too long for it, no template, an adapter that is missing."""


class EvaluationError(TrainError):
    """An evaluation file, a set of ratings or a score that cannot be used; the message names file and line."""


class ContaminationError(EvaluationError):
    """Evaluation items stand in the training data; the message lists them with the share that was found."""


class DataError(TrainError):
    """Shards that do not fit the model, the tokenizer or the checkpoint."""


class BatchMismatch(DataError):
    """Ranks that must hold the same batch (tensor peers, first and last stage) hold different ones."""


def exit_code_of(error: MMDataError) -> int:
    """What a command that fails with `error` ends with: 2 for wrong usage, else 1; a rank's own is passed on."""
    if isinstance(error, RankError):
        return error.exit_code
    return 2 if isinstance(error, UsageError) else 1
