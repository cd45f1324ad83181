"""A suite from the command line: a YAML file, or models and sets named by flags. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmdata.errors import UsageError
from mmdata_train.config_io import apply_overrides, build, load_mapping
from mmdata_train.evaluate.suite import Suite

_ENDINGS = (".yaml", ".yml")
_GIVEN = "answers"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The command's options. `NAME=PATH` names a model or a set; without a name the path's last part does."""

    targets: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    perplexity: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    references: str | None = None
    model: dict[str, Any] = field(default_factory=dict)
    entry: dict[str, Any] = field(default_factory=dict)
    suite: dict[str, Any] = field(default_factory=dict)

    def to_suite(self) -> Suite:
        """Raises ConfigError, UsageError."""
        if len(self.targets) == 1 and self.targets[0].endswith(_ENDINGS):
            if self.perplexity or self.questions or self.choices or self.answers:
                raise UsageError(f"{self.targets[0]} names models and sets; use --set to change it")
            mapping = {**load_mapping(self.targets[0]), **self.suite}
            return build(Suite, apply_overrides(mapping, self.overrides))
        if self.overrides:
            raise UsageError("--set changes values of a YAML suite; there is none here")
        mapping = {"models": self._models(), "sets": self._sets(), **self.suite}
        return build(Suite, mapping)

    def _models(self) -> dict[str, Any]:
        models: dict[str, Any] = {}
        for target in self.targets:
            name, path = _named(target)
            _put(models, name, {"model": path, **self.model}, "model")
        for given in self.answers:
            name, path = _named(given)
            _put(models, name, {"answers": {_GIVEN: path}}, "--answers")
        if not models:
            raise UsageError("nothing to evaluate: give a suite.yaml, models, or --answers FILE")
        return models

    def _sets(self) -> dict[str, Any]:
        sets: dict[str, Any] = {}
        common = {key: value for key, value in self.entry.items() if value is not None and value != ()}
        shots: dict[str, Any] = {key: common.pop(key) for key in ("shots", "shots_from") if key in common}
        for kind, paths in (("perplexity", self.perplexity), ("answers", self.questions), ("choices", self.choices)):
            for target in paths:
                name, path = _named(target)
                extra: dict[str, Any] = {} if kind == "perplexity" else shots
                _put(sets, name, {"kind": kind, "path": path, **common, **extra}, f"--{kind}")
        if self.answers:
            # Answers carry their own references, unless a file of questions has them.
            source = self.references or _named(self.answers[0])[1]
            _put(sets, _GIVEN, {"kind": "answers", "path": source, **common}, "--answers")
        if not sets:
            raise UsageError("nothing to evaluate on: give --perplexity, --questions, --choices or --answers")
        return sets


def _named(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if equals and name and "/" not in name:
        return name, path
    return (Path(text).name.split(".")[0] or "model").replace(" ", "_"), text


def _put(into: dict[str, Any], name: str, value: dict[str, Any], what: str) -> None:
    if name in into:
        raise UsageError(f"two of {what} are called {name!r}; give them names, such as before=PATH after=PATH")
    into[name] = value


def ranks_wanted(suite: Suite) -> int:
    """Ranks the suite's models take."""
    return suite.parallel.world if suite.needs_models else 1
