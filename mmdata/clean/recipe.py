"""Recipes: YAML lists of named steps with parameters, checked in full before anything runs.

    name: mine
    steps:
      - mojibake
      - space_runs: {min_run: 4}
      - words: {min: 20, languages: [zh], action: drop}
      - my_package.rules:no_adverts        # a function str -> str | None; None drops the record

Built in: auto, zh, en, none, gopher, c4, fineweb, fineweb2-zh. The fingerprint is a hash of the resolved steps, every
default written out, so two recipes with one fingerprint do the same. Repeated keys and limits that nothing can pass
are errors.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from mmdata.clean.catalog import CATALOG, Parameter, StepKind
from mmdata.clean.language import LANGUAGES
from mmdata.errors import RecipeError, StepParameterError, UnknownStepError
from mmdata.strict_yaml import load_yaml

BUILTIN = ("auto", "zh", "en", "none", "gopher", "c4", "fineweb", "fineweb2-zh")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (int, float), "str": (str,), "bool": (bool,), "list": (list,), "pairs": (list,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """name: of the catalogue, or `module:function`; parameters: all of them, defaults filled in."""

    name: str
    parameters: dict[str, Any]

    @property
    def kind(self) -> str:
        """`repair`, `rule`, `text_rule`, `parity`, `language` or `pii`, from the catalog; `function` for a user's."""
        return CATALOG[self.name].kind if self.name in CATALOG else "function"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A checked recipe. fingerprint: 32 hexadecimal digits of the SHA-256 of the resolved steps."""

    name: str
    steps: tuple[Step, ...]

    @property
    def fingerprint(self) -> str:
        """The same for recipes with the same steps and parameters in the same order, whatever their names."""
        canonical = json.dumps([[s.name, s.parameters] for s in self.steps], sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]

    def replace_parameter(self, step: str, **parameters: Any) -> Recipe:
        """A copy in which every step of that name has these parameters."""
        steps = tuple(
            Step(s.name, {**s.parameters, **parameters}) if s.name == step else s for s in self.steps
        )  # fmt: skip
        return Recipe(self.name, steps)


def nearest(word: str, choices: Iterable[str]) -> str:
    """The most similar choice, as a sentence for an error."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.0)
    return f"; did you mean {found[0]!r}?" if found else ""


def load_recipe(source: str) -> Recipe:
    """A built-in recipe by name, or a recipe file by path.

    Raises RecipeError (UnknownStepError, StepParameterError) that names the file, the step, the value met and the
    nearest valid one.
    """
    if source in BUILTIN:
        text = files("mmdata.clean").joinpath(f"recipes/{source}.yaml").read_text(encoding="utf-8")
    elif source.endswith((".yaml", ".yml")) or "/" in source or "\\" in source:
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"cannot read recipe {source}: {error}") from error
    else:
        raise RecipeError(
            f"no recipe {source!r}{nearest(source, BUILTIN)} Built in: {', '.join(BUILTIN)}; or give a .yaml file"
        )
    return parse_recipe(text, source)


def parse_recipe(text: str, source: str = "recipe") -> Recipe:
    """Check a recipe's YAML text; `source` names it in errors."""
    try:
        data = load_yaml(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"{source}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise RecipeError(f"{source}: a recipe is a mapping with the keys name and steps, not {type(data).__name__}")
    for key in data:
        if key not in ("name", "steps", "description"):
            raise RecipeError(f"{source}: unknown key {key!r}{nearest(str(key), ('name', 'steps', 'description'))}")
    steps = data.get("steps")
    if not isinstance(steps, list):
        raise RecipeError(f"{source}: steps must be a list of steps, not {type(steps).__name__}")
    parsed = tuple(_parse_step(entry, f"{source}: step {number}") for number, entry in enumerate(steps, start=1))
    _refuse_contradictions(parsed, source)
    return Recipe(str(data.get("name", source)), parsed)


def _parse_step(entry: Any, where: str) -> Step:
    if isinstance(entry, str):
        name: Any = entry
        given: Any = {}
    elif isinstance(entry, dict) and len(entry) == 1:
        name, given = next(iter(entry.items()))
        given = {} if given is None else given
    else:
        raise RecipeError(f"{where}: write `- name` or `- name: {{parameter: value}}`, not {entry!r}")
    if not isinstance(given, dict):
        raise StepParameterError(f"{where} ({name}): parameters are a mapping, not {given!r}")
    if isinstance(name, str) and _FUNCTION.fullmatch(name):
        return Step(name, dict(given))
    kind = CATALOG.get(name)
    if kind is None:
        raise UnknownStepError(f"{where}: no step {name!r}{nearest(str(name), CATALOG)}")
    for key in given:
        if key not in kind.parameters:
            choices = ", ".join(kind.parameters) or "none"
            hint = nearest(str(key), kind.parameters)
            raise UnknownStepError(f"{where}: {name} has no parameter {key!r}{hint} Parameters: {choices}")
    values = {key: _check(f"{where}: {name}.{key}", p, given.get(key, p.default)) for key, p in kind.parameters.items()}
    if kind.kind == "rule" and values["min"] is None and values["max"] is None:
        raise StepParameterError(f"{where}: {name} needs min, max or both")
    for key in (key for key in values if key.startswith("min")):
        least, most = values[key], values.get("max" + key[3:])
        if least is not None and most is not None and least > most:
            raise StepParameterError(f"{where}: {name}.{key} {least:g} is above max{key[3:]} {most:g}: nothing passes")
    if name == "language" and values["keep"] is not None and not values["model"]:
        _check_choices(f"{where}: language.keep", values["keep"], LANGUAGES)
    return Step(name, values)


def _refuse_contradictions(steps: tuple[Step, ...], source: str) -> None:
    """Raise StepParameterError where two steps of one rule, about the same documents, let none of them pass."""
    bounds: dict[str, dict[str, list[tuple[float, int]]]] = {}
    for number, step in enumerate(steps, start=1):
        p = step.parameters
        if step.kind != "rule" or p["action"] != "drop":
            continue
        same = json.dumps([step.name, *(p[key] for key in ("languages", "min_words", "chat"))])
        for side in ("min", "max"):
            if p[side] is not None:
                bounds.setdefault(same, {"min": [], "max": []})[side].append((p[side], number))
    for same, both in bounds.items():
        if both["min"] and both["max"] and max(both["min"])[0] > min(both["max"])[0]:
            (least, first), (most, second) = max(both["min"]), min(both["max"])
            raise StepParameterError(
                f"{source}: {json.loads(same)[0]}: min {least:g} of step {first} contradicts max {most:g} of step "
                f"{second}: nothing passes both"
            )


def _check(where: str, parameter: Parameter, value: Any) -> Any:
    """The value, floats for whole numbers where floats are meant; raises StepParameterError."""
    if value is None and parameter.default is None:
        return None
    wanted = _KINDS[parameter.kind]
    fits = isinstance(value, wanted) and (bool in wanted or not isinstance(value, bool))
    if not fits:
        raise StepParameterError(f"{where} must be {parameter.kind}, not {value!r}")
    if parameter.kind == "float":
        value = float(value)
        if not math.isfinite(value):
            raise StepParameterError(f"{where} must be a finite number, not {value!r}; leave it out for no limit")
    if parameter.kind in ("list", "pairs") and not value:
        raise StepParameterError(f"{where} must not be empty; leave it out for {_spoken(parameter.default)}")
    if parameter.low is not None and value < parameter.low:
        raise StepParameterError(f"{where} must be at least {parameter.low:g}, not {value!r}")
    if parameter.high is not None and value > parameter.high:
        raise StepParameterError(f"{where} must be at most {parameter.high:g}, not {value!r}")
    if parameter.kind == "list":
        value = [str(item) for item in value]
    if parameter.kind == "pairs":
        return _check_pairs(where, value)
    if parameter.choices:
        _check_choices(where, value if isinstance(value, list) else [value], parameter.choices)
    return value


def _check_choices(where: str, items: list[Any], choices: tuple[str, ...]) -> None:
    for item in items:
        if item not in choices:
            listed = ", ".join(choices)
            raise StepParameterError(f"{where}: no {item!r}{nearest(str(item), choices)} Choices: {listed}")


def _spoken(default: Any) -> str:
    return "all" if default is None else f"the default, {default}"


def _check_pairs(where: str, value: list[Any]) -> list[list[float]]:
    for pair in value:
        fits = isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int) and 1 <= pair[0] <= 64
        if not fits or not isinstance(pair[1], int | float):
            raise StepParameterError(f"{where} must be a list of [n, limit] with n from 1 to 64, not {pair!r}")
    return [[pair[0], float(pair[1])] for pair in value]


def show_recipe(source: str) -> str:
    """The resolved recipe as YAML, every default written out, with its fingerprint in a comment."""
    recipe = load_recipe(source)
    lines = [f"# fingerprint {recipe.fingerprint}", f"name: {recipe.name}", "steps:" if recipe.steps else "steps: []"]
    for step in recipe.steps:
        values = {key: value for key, value in step.parameters.items() if value is not None}
        flow = yaml.safe_dump(values, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
        lines.append(f"  - {step.name}: {flow.strip()}" if values else f"  - {step.name}")
    return "\n".join(lines) + "\n"


def check_recipe(source: str) -> dict[str, Any]:
    """Load a recipe, and what its steps need from outside, and say what it holds: name, fingerprint, steps by kind.

    Raises RecipeError and its kin, MissingPackageError.
    """
    from mmdata.clean.ready import check_ready

    recipe = load_recipe(source)
    check_ready(recipe)
    kinds: dict[str, int] = {}
    for step in recipe.steps:
        kinds[step.kind] = kinds.get(step.kind, 0) + 1
    return {"name": recipe.name, "fingerprint": recipe.fingerprint, "steps": len(recipe.steps), "kinds": kinds}


def step_kind(name: str) -> StepKind | None:
    """The catalogue's entry, or None for a user's function."""
    return CATALOG.get(name)
