"""Every error a user can meet, as one tree.

MMDataError
├── UsageError            wrong options or values (exit code 2 on the command line)
├── InputError            input files that cannot be found, read or decoded
├── OutputError           output that cannot be written: exists, unwritable, disk full
├── ShardError            a shard on disk that lies, is incomplete or does not fit the request
├── TokenizerError        a tokenizer that cannot be loaded or does not fit the data
├── RunError              a worker died, the ledger disagrees, the run was interrupted
├── RecipeError           a cleaning recipe that cannot be understood
├── DedupError            deduplication parameters or an index that do not fit
├── ChatError             records or templates that cannot be rendered
└── SamplesError          sample indices that cannot be built or do not fit the shard

A message names the file (and line), the value met, the limit and what to do. `assert` is for our own mistakes.
Subclasses stand below their branch, one sentence each on when they occur.
"""

from __future__ import annotations


class MMDataError(Exception):
    """Base of every error this package raises for something a user can mend."""


class UsageError(MMDataError):
    """An option or a value is wrong; the message names the nearest valid one."""


class InputError(MMDataError):
    """An input cannot be found, read or decoded."""


class OutputError(MMDataError):
    """An output cannot be written: it exists, the folder is not writable, or the disk is full."""


class ShardError(MMDataError):
    """A shard on disk lies, is incomplete, or does not fit the request."""


class TokenizerError(MMDataError):
    """A tokenizer cannot be loaded or does not fit the data."""


class RunError(MMDataError):
    """A run failed or was interrupted: a dead worker, a ledger that disagrees."""


class RecipeError(MMDataError):
    """A cleaning recipe holds an unknown step, key or value."""


class DedupError(MMDataError):
    """Deduplication parameters or a stored index do not fit."""


class ChatError(MMDataError):
    """A chat record or template cannot be rendered."""


class SamplesError(MMDataError):
    """A sample index cannot be built, or does not fit its shard."""
