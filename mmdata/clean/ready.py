"""What a recipe's steps need from outside, found before the first record is read: functions, lists, models, packages.

A worker would find the same fault, but after the inputs were opened and, without this, in the middle of a run. Costs
the import of the user's modules and reading the lists, once a process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from mmdata.clean.chinese import convert_chinese
from mmdata.clean.language import FastTextModel
from mmdata.clean.recipe import Recipe, Step
from mmdata.errors import StepParameterError, UnknownStepError


def check_ready(recipe: Recipe) -> None:
    """Raise what the recipe's steps would raise on the first text.

    UnknownStepError: a function that cannot be imported. StepParameterError: one that does not take the parameters.
    BoilerplateListError, RecipeError: a list or model that cannot be read. MissingPackageError: an optional package.
    """
    for step in recipe.steps:
        if step.kind == "function":
            _check_parameters(load_function(step.name), step)
        elif step.name == "boilerplate":
            from mmdata.clean.lines import boilerplate_patterns

            boilerplate_patterns(tuple(step.parameters["lists"]))
        elif step.name == "bad_words":
            from mmdata.clean.text_rules import bad_word_share  # imports numba

            bad_word_share("", step.parameters["path"])
        elif step.name == "convert_chinese":
            convert_chinese("", step.parameters["conversion"])
        elif step.name == "language" and step.parameters["model"]:
            FastTextModel.check(step.parameters["model"])


@lru_cache(maxsize=64)
def load_function(name: str) -> Callable[..., Any]:
    """The user's function `module:function`. Raises UnknownStepError, whatever the module's own code raises."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(import_module(module), attribute)
    except Exception as error:  # the user's module may raise anything
        why = f"{type(error).__name__}: {error}"
        advice = "; Python looks in the folders of PYTHONPATH" if isinstance(error, ModuleNotFoundError) else ""
        raise UnknownStepError(f"step {name}: cannot import it ({why}){advice}") from error
    if not callable(function):
        raise UnknownStepError(f"step {name}: {attribute} is {type(function).__name__}, not a function of one text")
    found: Callable[..., Any] = function
    return found


def _check_parameters(function: Callable[..., Any], step: Step) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without one
        return
    try:
        signature.bind("", **step.parameters)
    except TypeError as error:
        raise StepParameterError(f"step {step.name}{signature}: cannot be called with a text and {step.parameters}: "
                                 f"{error}") from error  # fmt: skip
