"""Every error a user can meet, as one tree.

MMDataError
├── UsageError            wrong options or values (exit code 2 on the command line)
│   ├── NotOfferedError, MissingPackageError
│   └── RecipeError: UnknownStepError, StepParameterError, BoilerplateListError
├── InputError            input files that cannot be found, read or decoded
│   ├── InputReadError, InputTruncatedError, InputCorruptError, InputChangedError
│   └── InputRejectedError, TooManyRejectsError
├── OutputError           output that cannot be written: exists, unwritable, disk full
│   └── OutputExistsError, DiskFullError, OutputReplacedError, CheckpointError
├── ShardError            a shard on disk that lies, is incomplete or does not fit the request
│   ├── ShardNotFoundError, ShardReadError, IndexTruncatedError, BadMagicError, UnsupportedVersionError
│   ├── UnknownDtypeError, IndexSizeError, DocumentIndexError, PointerError, SequenceLengthError, BinSizeError
│   ├── SequenceRangeError, ShortReadError, RemoteStorageError
│   ├── ManifestError, ManifestMismatchError, ChecksumError, TokenizerMismatchError
│   ├── SidecarMissingError, SidecarMismatchError
│   └── TokenRangeError, LengthMismatchError, SequenceTooLongError, EodPlacementError, EmptySequenceError,
│       DtypeMergeError, RepairError
├── TokenizerError        a tokenizer that cannot be loaded or does not fit the data
│   ├── TokenizerNotFoundError, TokenizerFormatError, TokenizerEngineError, TokenizerChangedError
│   └── TokenizerEodError, TokenizerTextError
├── RunError              a worker died, the ledger disagrees, the run was interrupted
│   └── WorkerDiedError, WorkFolderBusyError, LedgerMismatchError, LedgerDamagedError
├── DedupError            deduplication parameters or an index that do not fit
│   ├── DedupParameterError, DedupFieldError, DedupSpaceError, DedupStateError
│   └── DedupIndexError, DedupIndexMismatchError, DedupIndexChangedError
├── ChatError             records or templates that cannot be rendered
│   └── ChatTemplateError, ChatRecordError
└── SamplesError          sample indices that cannot be built or do not fit the shard
    ├── SampleOptionError, SampleRangeError, EmptySplitError, PackingError, BlendError
    └── CorruptSampleError, TokenOutsideVocabularyError, ShardsDifferError, ShardChangedError

A message names the file (and line), the value met, the limit and what to do. `assert` is for our own mistakes.
Subclasses stand below their branch, one sentence each on when they occur.
"""

from __future__ import annotations


class MMDataError(Exception):
    """Base of every error this package raises for something a user can mend."""


class UsageError(MMDataError):
    """An option or a value is wrong; the message names the nearest valid one."""


class NotOfferedError(UsageError):
    """Something this version does not do was asked for by name; the message names what does the job."""


class MissingPackageError(UsageError):
    """An optional package is needed; the message gives the pip command."""


class InputError(MMDataError):
    """An input cannot be found, read or decoded."""


class InputReadError(InputError):
    """The system failed to open or read an input that was found; another run may succeed."""


class InputTruncatedError(InputError):
    """A compressed file or a JSON array ends in the middle; the message names the last whole record."""


class InputCorruptError(InputError):
    """Compressed data fail their own checks, or a JSON array goes on after its end."""


class InputRejectedError(InputError):
    """A record cannot be read and the run was told to stop at the first (`--on-error fail`)."""


class TooManyRejectsError(InputError):
    """More records were rejected than `--max-rejects` allows."""


class InputChangedError(InputError):
    """An input's size or time changed while it was read."""


class OutputError(MMDataError):
    """An output cannot be written: it exists, the folder is not writable, or the disk is full."""


class ShardError(MMDataError):
    """A shard on disk lies, is incomplete, or does not fit the request.

    path: the file at fault. where: the place in it (a sequence, a document, a byte). remedy: what to do.
    """

    def __init__(
        self, message: str, *, path: str | None = None, where: str | None = None, remedy: str | None = None
    ) -> None:
        head = ", ".join(part for part in (path, where) if part)
        text = f"{head}: {message}" if head else message
        super().__init__(f"{text}; {remedy}" if remedy else text)
        self.path = path
        self.where = where
        self.remedy = remedy


class ShardNotFoundError(ShardError):
    """`.bin` or `.idx` of a shard is missing."""


class ShardReadError(ShardError):
    """A file of a shard is there but cannot be read: it is a folder, permission is missing, or the disk fails."""


class IndexTruncatedError(ShardError):
    """`.idx` is shorter than its 34-byte header."""


class BadMagicError(ShardError):
    """`.idx` does not begin with the format's magic bytes."""


class UnsupportedVersionError(ShardError):
    """`.idx` has a version other than 1."""


class UnknownDtypeError(ShardError):
    """`.idx` names a dtype code the format does not have, or a dtype without a code was asked for."""


class IndexSizeError(ShardError):
    """`.idx` is not as long as its own counts say."""


class DocumentIndexError(ShardError):
    """The document indices do not start at 0, do not end at the number of sequences, or decrease."""


class PointerError(ShardError):
    """A sequence pointer does not follow from the one before it and the length."""


class SequenceLengthError(ShardError):
    """A sequence has a negative length."""


class BinSizeError(ShardError):
    """`.bin` is shorter or longer than the index says."""


class SequenceRangeError(ShardError, IndexError):
    """A sequence, a document, or a range inside a sequence was asked for that does not exist."""


class ShortReadError(ShardError):
    """Remote storage gave fewer bytes than were asked for."""


class RemoteStorageError(ShardError):
    """A remote address cannot be read: the extra is not installed, or the store refused."""


class ManifestError(ShardError):
    """A manifest is not JSON, has an unknown version, or has missing, unknown or mistyped keys."""


class ManifestMismatchError(ShardError):
    """The manifest and the shard disagree on dtype, counts, sizes or layout."""


class ChecksumError(ShardError):
    """A file holds other bytes than the manifest says."""


class TokenizerMismatchError(ShardError):
    """A shard was made with another tokenizer than the one in use."""


class SidecarMissingError(ShardError):
    """The manifest or the request needs a sidecar that is not there."""


class SidecarMismatchError(ShardError):
    """A sidecar does not fit its shard."""


class TokenRangeError(ShardError):
    """A token is outside the vocabulary or the dtype."""


class LengthMismatchError(ShardError):
    """Lengths do not add up to the tokens, or documents not to the sequences."""


class SequenceTooLongError(ShardError):
    """A sequence has more tokens than a signed 32-bit length holds."""


class EodPlacementError(ShardError):
    """A document does not end with the end-of-document token, or has one inside."""


class EmptySequenceError(ShardError):
    """A sequence holds no token."""


class DtypeMergeError(ShardError):
    """The dtypes of the parts to merge have no common integer dtype."""


class RepairError(ShardError):
    """A shard cannot be repaired with what is there; the message says what is missing."""


class OutputExistsError(OutputError):
    """A file of that name exists and `overwrite` was not given."""


class DiskFullError(OutputError):
    """The disk is full or the quota is used up."""


class OutputReplacedError(OutputError):
    """Another writer took over the unfinished files of this one."""


class CheckpointError(OutputError):
    """Unfinished files do not fit the checkpoint they are to be continued from."""


class TokenizerError(MMDataError):
    """A tokenizer cannot be loaded or does not fit the data."""


class TokenizerNotFoundError(TokenizerError):
    """No tokenizer stands at the path; the message says which files were looked for."""


class TokenizerFormatError(TokenizerError):
    """A tokenizer file is there but cannot be understood, or needs something named beside it."""


class TokenizerEngineError(TokenizerError):
    """The engine asked for cannot load this tokenizer, or failed its self-check."""


class TokenizerChangedError(TokenizerError):
    """The tokenizer files changed between planning a run and loading them in a worker."""


class TokenizerEodError(TokenizerError):
    """There is no end-of-document token, or the one asked for is not in the vocabulary."""


class TokenizerTextError(TokenizerError):
    """A text cannot be encoded: it holds a lone surrogate, or ids cannot be decoded."""


class RunError(MMDataError):
    """A run failed or was interrupted: a dead worker, a ledger that disagrees."""


class WorkerDiedError(RunError):
    """A worker process ended twice on one item (killed, out of memory, crashed); the message names the item."""


class WorkFolderBusyError(RunError):
    """Another run that is still alive holds the work folder."""


class LedgerMismatchError(RunError):
    """The unfinished run in a work folder was started with other options or inputs; the message names them."""


class LedgerDamagedError(RunError):
    """A ledger holds something its writer never wrote, before its last line."""


class RecipeError(UsageError):
    """A cleaning recipe is unknown, or holds an unknown step, key or value."""


class UnknownStepError(RecipeError):
    """A recipe names a step, or a step a parameter, that does not exist; the message names the nearest one."""


class StepParameterError(RecipeError):
    """A step's parameter has the wrong type or range, or a user's function failed or returned something else."""


class BoilerplateListError(RecipeError):
    """A list of boilerplate lines or of bad words cannot be read or understood."""


class DedupError(MMDataError):
    """Deduplication parameters or a stored index do not fit."""


class DedupParameterError(DedupError, UsageError):
    """A deduplication parameter is out of range or does not fit another one."""


class DedupFieldError(DedupError):
    """The field that chooses the keeper holds neither a number nor an ISO 8601 date."""


class DedupSpaceError(DedupError):
    """The scratch folder lacks the space the printed plan needs."""


class DedupStateError(DedupError):
    """A checkpoint of a deduplication does not fit the files in its work folder."""


class DedupIndexError(DedupError):
    """A deduplication index on disk is damaged or no index at all."""


class DedupIndexMismatchError(DedupIndexError):
    """A deduplication index was made with other parameters."""


class DedupIndexChangedError(DedupIndexError):
    """Another run added to the index since this one opened it."""


class ChatError(MMDataError):
    """A chat record or template cannot be rendered."""


class ChatTemplateError(ChatError):
    """A chat template cannot be found, does not compile, or does what cannot be followed exactly."""


class ChatRecordError(ChatError):
    """A conversation does not fit: unknown role, wrong order, no answer, or the template refused it."""


class SamplesError(MMDataError):
    """A sample index cannot be built, or does not fit its shard."""


class PackingError(SamplesError):
    """Sequences cannot be packed: one is longer than a bin, or the lengths are no lengths."""


class SampleOptionError(SamplesError, UsageError):
    """An option of a sample index is wrong: a length, a split, a number of samples, an engine."""


class SampleRangeError(SamplesError, IndexError):
    """A sample number is outside the set."""


class EmptySplitError(SamplesError):
    """A shard, or the part of it that a split gives, has too few tokens for one sample."""


class BlendError(SamplesError):
    """A blend cannot be made: weights that are no weights, or more draws than a set has samples."""


class CorruptSampleError(SamplesError):
    """A sample cannot be read because its shard lies; the message names shard and document."""


class TokenOutsideVocabularyError(SamplesError):
    """A shard holds a token id that the model's or the tokenizer's vocabulary does not have."""


class ShardsDifferError(SamplesError):
    """Shards that are to be used together, or with a tokenizer, disagree on tokenizer, vocabulary or dtype."""


class ShardChangedError(SamplesError):
    """A shard is not the one it was when the checkpoint or manifest was written; both fingerprints are shown."""
