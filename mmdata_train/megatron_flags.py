"""A Megatron command line as our configuration: the table's rows for single flags, rules for those that act together.

Everything wrong with a command is found in one go and raised as one CommandLineError with a sentence each, in the
words of the command line. Files are not looked at here: `megatron_run` adds the model folder, the data and the
vocabulary they need. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmdata_train.errors import ConfigError
from mmdata_train.megatron_parse import Given, parse
from mmdata_train.megatron_rules import RULES
from mmdata_train.megatron_shape import model_rules
from mmdata_train.megatron_table import FLAGS


@dataclass(frozen=True, slots=True)
class Translation:
    """A command line, translated. fields: values by dotted name, the model's without the vocabulary.

    notices: one line each, for the user. problems: one sentence each; with any of them the run must not start.
    """

    given: Given
    fields: dict[str, Any]
    notices: tuple[str, ...]
    problems: tuple[str, ...]

    def section(self, name: str) -> dict[str, Any]:
        """The fields of one section by their bare names."""
        start = f"{name}."
        return {key.removeprefix(start): value for key, value in self.fields.items() if key.startswith(start)}


def translate(arguments: Sequence[str], data_ranks: int = 1) -> Translation:
    """Flags to fields. data_ranks: ranks that hold different samples, which a few flags are relative to."""
    given, problems = parse(arguments)
    notices = [
        f"--{name} has no effect: {FLAGS[name].note}"
        for name, value in given.values.items()
        if FLAGS[name].kind == "notice" and value is not False
    ]
    fields: dict[str, Any] = {}
    for flag in FLAGS.values():
        if flag.fate == "=" and (value := given.get(flag.name)) is not None:
            fields[flag.target] = value
    for rule in RULES:
        try:
            fields |= rule(given, data_ranks, notices)
        except ConfigError as error:
            problems.append(str(error))
    try:
        fields |= {f"model.{name}": value for name, value in model_rules(given).items()}
    except ConfigError as error:
        problems.append(str(error))
    if given.absent("hidden-dropout") and given.absent("attention-dropout"):
        notices.append("dropout is 0; Megatron's default is 0.1 (--hidden-dropout 0.1 --attention-dropout 0.1)")
    return Translation(given, fields, tuple(notices), tuple(problems))


def nested(fields: dict[str, Any]) -> dict[str, Any]:
    """Dotted names as a mapping of mappings, for `config_io.build`."""
    result: dict[str, Any] = {}
    for name, value in fields.items():
        *parents, last = name.split(".")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return result


def in_flags(message: str) -> str:
    """A message about the configuration in the words of the command line: `train.lr` as `--lr`."""
    names: dict[str, str] = {}
    for flag in FLAGS.values():
        if flag.fate in ("=", "@") and ("." in flag.target or flag.target.startswith("lora_")):
            names.setdefault(flag.target, f"--{flag.name}")
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w.])(?:{pattern})\b(?!\.)", lambda match: names[match[0]], message)
