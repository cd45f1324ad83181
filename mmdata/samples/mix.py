"""The training mix: entries with weights become one set of samples that can be prolonged and changed on resuming.

A mix is a list of phases. Each blends its entries from a given sample number on; a set that stays in the mix goes on
with its next sample, so that nothing consumed comes again before its epoch ends. A run that grows longer gets a second
index (seed + 1) behind the first, which is never rebuilt. The description of a mix is plain JSON and goes into the
checkpoint: shard lists are frozen there, and fingerprints tell a shard that changed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mmdata.errors import BlendError, ShardChangedError
from mmdata.indexed.reader import IndexedDataset
from mmdata.samples.blend import BlendedSamples
from mmdata.samples.chain import ChainedSamples
from mmdata.samples.entries import Entry
from mmdata.samples.mix_plan import MixOptions, Past, Phase, Planner, SetOpener, SetUse
from mmdata.samples.shards import check_alike


@dataclass
class Mix:
    """A mix that is open: `samples` is what loaders read, `phases` what a checkpoint keeps, `notes` what to tell.

    Raises ShardsDifferError when tokenizer, vocabulary or dtype differ between any two shards.
    """

    opener: SetOpener
    phases: list[Phase]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_alike(self.shards)
        self.blends = [self._open(phase) for phase in self.phases]
        self.samples = ChainedSamples(self.blends, [phase.size for phase in self.phases])

    @property
    def shards(self) -> list[IndexedDataset]:
        """Every shard of every phase, each once."""
        found = {s.prefix: s for p in self.phases for use in p.sets for s in self.opener.group(use.shards).shards}
        return list(found.values())

    def _open(self, phase: Phase) -> BlendedSamples:
        sets = [self.opener.samples(use) for use in phase.sets]
        offsets = [use.offset for use in phase.sets]
        return BlendedSamples(sets, phase.weights, phase.draws, offsets, self.opener.options.cache_dir)

    @property
    def blend(self) -> BlendedSamples:
        """The blend of the last phase."""
        return self.blends[-1]

    def drawn(self, consumed: int) -> dict[str, int]:
        """By key: samples drawn from each set by the first `consumed` samples of the run."""
        totals: dict[str, int] = {}
        for phase, blend in zip(self.phases, self.blends, strict=True):
            counts = blend.drawn(min(max(consumed - phase.start, 0), phase.size)).tolist()
            for use, count in zip(phase.sets, counts, strict=True):
                totals[use.key] = totals.get(use.key, 0) + count
        return totals

    def state(self) -> list[dict[str, Any]]:
        """The phases as JSON values, for a checkpoint."""
        return [asdict(phase) for phase in self.phases]


def start_mix(entries: Sequence[Entry], num_samples: int | None, options: MixOptions) -> Mix:
    """The mix of a new run. num_samples: samples the run needs (None: each entry once, or by its number of epochs).

    Raises BlendError, ShardsDifferError, EmptySplitError, PackingError, and what opening a shard raises.
    """
    opener = SetOpener(options)
    return Mix(opener, [Planner(opener).phase(entries, num_samples, 0, Past())])


@dataclass(frozen=True)
class Resume:
    """How a run goes on. consumed: samples so far. new_phase: begin one now even if nothing else changed."""

    state: Sequence[dict[str, Any]]
    consumed: int
    new_phase: bool = False


def resume_mix(resume: Resume, entries: Sequence[Entry], num_samples: int | None, options: MixOptions) -> Mix:
    """The mix of a run that goes on: as saved, longer, or changed.

    Entries with the paths and weights of the last phase keep its frozen shard lists; if they give fewer than
    num_samples, a phase is appended behind it, and shards that joined a folder since take part from there. Other
    entries or weights, or `new_phase`, begin a phase at `consumed`.
    Raises ShardChangedError when a shard is not the one of the checkpoint.
    """
    phases = [phase_from(saved) for saved in resume.state]
    opener = SetOpener(options)
    saved = Mix(opener, phases)
    _check_unchanged(saved)
    last = phases[-1]
    same = [(use.path, use.weight) for use in last.sets] == [(entry.path, entry.weight) for entry in entries]
    end = last.start + last.size
    if same and not resume.new_phase:
        saved.notes += _newcomers(last, entries)
        if num_samples is None or num_samples <= end:
            return saved
    else:
        end = resume.consumed
        phases = cut_phases(phases, end)
    if num_samples is not None and num_samples <= end:
        raise BlendError(f"a new mix would begin at sample {end:,}, but the run ends at {num_samples:,}; add steps")
    past = Past(saved.drawn(end), {use.key: use.segments for phase in phases for use in phase.sets})
    wanted = None if num_samples is None else num_samples - end
    notes = [*saved.notes, f"a new phase of the data begins at sample {end:,}"]
    return Mix(opener, [*phases, Planner(opener).phase(entries, wanted, end, past)], notes)


def _check_unchanged(mix: Mix) -> None:
    for use in (use for phase in mix.phases for use in phase.sets):
        found = mix.opener.group(use.shards).fingerprint
        if found != use.fingerprint:
            raise ShardChangedError(
                f"{use.path}: its shards have the fingerprint {found}, but the checkpoint was made with "
                f"{use.fingerprint}; restore them, or start a new run"
            )


def _newcomers(phase: Phase, entries: Sequence[Entry]) -> list[str]:
    notes = []
    for use, entry in zip(phase.sets, entries, strict=True):
        new = sorted(set(entry.shards) - set(use.shards))
        if new:
            notes.append(f"{use.path}: {len(new)} new shards (such as {new[0]}) take part when a new phase begins")
    return notes


def phase_from(saved: dict[str, Any]) -> Phase:
    """The inverse of asdict."""
    sets = tuple(
        SetUse(**(use | {"shards": tuple(use["shards"]), "segments": tuple(use["segments"])})) for use in saved["sets"]
    )
    weights = None if saved["weights"] is None else tuple(saved["weights"])
    return Phase(saved["start"], saved["size"], saved["draws"], weights, sets)


def cut_phases(phases: Sequence[Phase], consumed: int) -> list[Phase]:
    """The phases up to sample `consumed`; the one it falls into ends there."""
    kept = [phase for phase in phases if phase.start < consumed]
    return [*kept[:-1], replace(kept[-1], size=min(kept[-1].size, consumed - kept[-1].start))] if kept else []
