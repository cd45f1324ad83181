"""Fast engine or reference: the fast one is used only where it gave the reference's ids on this run's own texts.

`choose` encodes the fixed list of hard texts and a sample of the run's documents with the reference, lets it go, loads
the fast engine, and compares every id. Both are never in memory together (Qwen3: 130 and 210 MB). Costs the loading of
both and about 0.3 s. A worker that is handed the verdict skips all of this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mmdata.errors import TokenizerEngineError, TokenizerTextError, UsageError
from mmdata.tokenizers.adversarial import adversarial_texts
from mmdata.tokenizers.base import Encoder, TokenBatch, refuse_surrogates
from mmdata.tokenizers.threads import release_memory

ENGINES = ("auto", "fast", "huggingface", "none")
SAMPLE_TEXTS = 64
SAMPLE_CHARACTERS = 2048
_LOG = logging.getLogger(__name__)
EncoderFactory = Callable[[], Encoder]


@dataclass(slots=True, frozen=True)
class Verdict:
    """Outcome of the choice: picklable, so that workers need not repeat it.

    fast: the fast engine passed. description: engine, version and reason, in words for the user.
    """

    fast: bool
    description: str


@dataclass(slots=True, frozen=True)
class Engines:
    """The two ways to encode with one tokenizer, not yet loaded. fast: None where this kind has none."""

    reference: EncoderFactory
    fast: EncoderFactory | None


def choose(engines: Engines, wanted: str, special: Sequence[str], sample: Sequence[str]) -> tuple[Encoder, Verdict]:
    """The engine to use, loaded.

    wanted: `auto`, `fast`, `huggingface` (the reference) or `none` (nothing is loaded, encoding is an error). special:
    contents of special tokens. sample: texts of this run; at most 64, evenly spread, of 2,048 characters each, are
    compared. Raises TokenizerEngineError when `fast` was asked for and does not hold, UsageError for another word.
    """
    if wanted not in ENGINES:
        raise UsageError(f"engine {wanted!r} is unknown; choose one of {', '.join(ENGINES)}")
    if wanted == "none":
        return NoEncoder(), Verdict(False, NoEncoder.name)
    if engines.fast is None and wanted == "fast":
        raise TokenizerEngineError("this kind of tokenizer has no fast engine; use engine auto")
    if engines.fast is None or wanted == "huggingface":
        encoder = engines.reference()
        return encoder, Verdict(False, encoder.name + (" (asked for)" if engines.fast else ""))
    hard = adversarial_texts(special)
    texts = [*hard, *thin(sample)]
    reference = engines.reference()
    name = reference.name
    try:
        expected = reference.encode_batch(texts)
    except TokenizerTextError as error:
        return _settle(reference, wanted, f"{name} itself cannot encode every text of the self-check: {error}")
    del reference
    release_memory()
    fast, fault = _load_fast(engines.fast)
    if fast is not None:
        fault = first_difference(fast, texts, expected, len(hard))
        if fault is None:
            return fast, Verdict(True, f"{fast.name} (same ids as {name} on {len(texts)} texts)")
        del fast
        release_memory()
    return _settle(engines.reference(), wanted, fault)


def _settle(reference: Encoder, wanted: str, fault: str | None) -> tuple[Encoder, Verdict]:
    """The reference, said aloud, since the fast engine has a fault. Raises TokenizerEngineError for `fast`."""
    if wanted == "fast":
        raise TokenizerEngineError(
            f"the fast engine cannot serve this tokenizer: {fault}; use engine auto or huggingface"
        )
    _LOG.warning("encoding with %s, several times slower: %s", reference.name, fault)
    return reference, Verdict(False, f"{reference.name} (the fast engine was not used: {fault})")


def recalled(engines: Engines, verdict: Verdict | None) -> tuple[Encoder, Verdict] | None:
    """The fast engine with an earlier pass; None without one, or where that engine cannot be loaded any more."""
    if verdict is None or engines.fast is None:
        return None
    encoder, _ = _load_fast(engines.fast)
    if encoder is None or not verdict.description.startswith(f"{encoder.name} "):
        return None
    encoder.encode_batch(["a"])  # as the check does: the engine makes its tables at the first text
    return encoder, verdict


def resume(engines: Engines, verdict: Verdict) -> Encoder:
    """The engine an earlier verdict settled on."""
    if verdict.description == NoEncoder.name:
        return NoEncoder()
    return engines.fast() if verdict.fast and engines.fast else engines.reference()


def thin(sample: Sequence[str]) -> list[str]:
    """At most SAMPLE_TEXTS texts spread evenly over `sample`, each cut to SAMPLE_CHARACTERS."""
    step = max(1, len(sample) // SAMPLE_TEXTS)
    return [text[:SAMPLE_CHARACTERS] for text in sample[::step][:SAMPLE_TEXTS]]


def first_difference(encoder: Encoder, texts: Sequence[str], expected: TokenBatch, fixed: int) -> str | None:
    """Where an engine's ids first depart from `expected`, in words, or None; the first `fixed` texts are no secret."""
    try:
        found = encoder.encode_batch(texts)
    except TokenizerEngineError as error:
        return str(error)
    pairs = zip(texts, found.split(), expected.split(), strict=True)
    for number, (text, ours, theirs) in enumerate(pairs):
        if not np.array_equal(ours, theirs):
            # Documents of the run may be private: only texts of the fixed list are shown.
            shown = f"hard text {number} ({text[:24]!a})" if number < fixed else f"sampled document {number - fixed}"
            return f"{encoder.name} gives other ids than the reference on {shown}"
    return None


def _load_fast(load: EncoderFactory) -> tuple[Encoder | None, str | None]:
    try:
        encoder = load()
    except TokenizerEngineError as error:
        return None, str(error)
    release_memory()  # loading left 80 MB of parsed JSON behind (Qwen3)
    return encoder, None


class NoEncoder:
    """Stands where no engine was loaded: for looking at a vocabulary, its end token, or decoding."""

    name = "none"

    def encode_batch(self, texts: Sequence[str]) -> TokenBatch:
        """Raises TokenizerEngineError, always."""
        raise TokenizerEngineError(f"{len(texts)} texts to encode, but the tokenizer was loaded with engine none")


class GuardedEncoder:
    """The fast engine, and the reference for the batch on which the fast one gives up (a regex limit, a panic).

    The ids are the same either way; the first time is logged.
    """

    def __init__(self, fast: Encoder, reference: EncoderFactory) -> None:
        self._fast = fast
        self._load_reference = reference
        self._reference: Encoder | None = None

    @property
    def name(self) -> str:
        """The fast engine and its version."""
        return self._fast.name

    def encode_batch(self, texts: Sequence[str]) -> TokenBatch:
        """Ids of each text. Raises TokenizerTextError for a text that is not valid Unicode."""
        try:
            return self._fast.encode_batch(texts)
        except TokenizerEngineError as error:
            refuse_surrogates(texts)
            if self._reference is None:
                _LOG.warning("%s; such batches go to the slower engine", error)
                self._reference = self._load_reference()
            return self._reference.encode_batch(texts)


def described_failure(name: str, error: BaseException) -> TokenizerEngineError:
    """An engine's own exception as ours. Interrupts and lack of memory are never taken for a failing engine."""
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, TokenizerTextError)):
        raise error
    return TokenizerEngineError(f"{name}: {type(error).__name__}: {str(error)[:200]}")
