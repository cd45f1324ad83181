"""The short way for records as most are: a text, a question and its answer, or messages of a role and a text in turns.

Gives what the general way of `mmdata.chat.formats` gives, in a quarter of its time (2 microseconds for a question and
its answer, 0.5 for each further message), and None wherever the general way has anything to decide. What a record's
keys and the order of its roles mean is worked out once and remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmdata.document import Part

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "function_call": "call",
    "tool_call": "call",
}
SHORT_ROLES = {word: role for word, role in ROLES.items() if role != "call"}
PAIRS = {
    "prompt-completion": ("prompt", ("completion", "response")),
    "question-answer": ("question", ("answer",)),
    "input-output": ("input", ("output",)),
}
TURN_KEYS = ("messages", "conversations", "conversation")
_BESIDE_TURNS = ("system", "tools", "functions")
_NO_TOOLS = "[]"  # how ShareGPT records say that there are none
_BESIDE_ALPACA = ("history", "system")
_REMEMBERED = 4096
_UNSEEN = object()
_PLAIN = object()


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Records with these keys hold a question and its answer. beside: keys that must hold nothing. more: the key of
    what may follow the question, a piece of the same message."""

    question: str
    answer: str
    beside: tuple[str, ...]
    more: str | None = None


@dataclass(frozen=True, slots=True)
class _Turns:
    """Records with these keys hold messages under `where`. beside: keys that must hold nothing."""

    where: str
    beside: tuple[str, ...]


class UsualReader:
    """Reads usual records of one format (`auto`: of any). Not for two threads at once."""

    def __init__(self, format: str = "auto") -> None:
        self._format = format
        self._ways: dict[tuple[str, ...], Any] = {}  # _Exchange, _Turns, _PLAIN, or None
        self._orders: dict[tuple[str, ...], Any] = {}  # the roles of right turns, or None
        self._paths: dict[tuple[str, str, int], tuple[str, ...]] = {}

    def parts(self, record: Mapping[str, Any]) -> tuple[Part, ...] | None:
        """The parts of a usual record: a plain text, or each a message of its own save two of the user side by side,
        which are one; None for any other."""
        keys = tuple(record)
        way = self._ways.get(keys, _UNSEEN)
        if way is _UNSEEN:
            way = _remember(self._ways, keys, self._way(record))
        if way is None:
            return None
        if way is _PLAIN:
            text = record["text"]
            return (_part("text", "text", text),) if type(text) is str else None
        for name in way.beside:
            if record[name] and (record[name] != _NO_TOOLS or name == "system"):
                return None
        if type(way) is _Turns:
            return self._turns(record[way.where], way.where)
        question, answer = way.question, way.answer
        asked, said = record[question], record[answer]
        if type(asked) is not str or type(said) is not str or not asked or not said or asked.isspace():
            return None
        if said.isspace():
            return None
        if way.more is not None and (added := record[way.more]):
            if type(added) is not str:
                return None
            return _part(question, "user", asked), _part(way.more, "user", added), _part(answer, "assistant", said)
        return _part(question, "user", asked), _part(answer, "assistant", said)

    def _way(self, record: Mapping[str, Any]) -> object:
        """An _Exchange, _Turns, _PLAIN, or None."""
        chosen = self._format
        where = next((name for name in TURN_KEYS if name in record), None)
        if where is not None and chosen in ("auto", "messages", "sharegpt"):
            return _Turns(where, tuple(name for name in _BESIDE_TURNS if name in record))
        kinds = {"alpaca": ("instruction", ("output", "response")), **PAIRS}
        for kind, (question, answers) in kinds.items():
            answer = next((name for name in answers if name in record), None)
            if chosen in ("auto", kind) and question in record and answer is not None:
                beside = _BESIDE_ALPACA if kind == "alpaca" else ("system",)
                more = "input" if kind == "alpaca" and "input" in record else None
                return _Exchange(question, answer, tuple(name for name in beside if name in record), more)
        return _PLAIN if chosen in ("auto", "text") and "text" in record else None

    def _turns(self, turns: Any, where: str) -> tuple[Part, ...] | None:
        """The parts of messages that take turns as they should and hold texts alone; else None."""
        if type(turns) is not list or not turns or type(turns[0]) is not dict:
            return None
        word, field = ("role", "content") if "role" in turns[0] else ("from", "value")
        try:
            words = tuple([turn[word] for turn in turns])
            texts = [turn[field] for turn in turns]
            if "" in texts or True in map(str.isspace, texts):
                return None
            roles = self._orders.get(words, _UNSEEN)
            if roles is _UNSEEN:
                roles = _remember(self._orders, words, _order(words))
        except (KeyError, TypeError):  # another key, a turn that is no object, a role or content that is no text
            return None
        if roles is None or sum(map(len, turns)) != 2 * len(turns):
            return None
        place = (where, field, len(turns))
        paths = self._paths.get(place)
        if paths is None:
            paths = _remember(self._paths, place, tuple([f"{where}[{i}].{field}" for i in range(len(turns))]))
        return tuple(map(_part, paths, roles, texts))


def _order(words: tuple[Any, ...]) -> tuple[str, ...] | None:
    """The roles of messages that open with at most one system message and then take turns; else None."""
    roles: list[str] = []
    awaited, other = "user", "assistant"
    for word in words:
        role = SHORT_ROLES.get(word) if type(word) is str else None
        if role == awaited:
            awaited, other = other, awaited
        elif role != "system" or roles:
            return None
        roles.append(role)
    return tuple(roles) if "assistant" in roles else None


def _remember(known: dict[Any, Any], key: Any, value: Any) -> Any:
    """`value`, kept under `key`; what is kept is bounded, since records may have any keys."""
    if len(known) >= _REMEMBERED:
        known.clear()
    known[key] = value
    return value


_blank = object.__new__
_put_path, _put_role, _put_text = (vars(Part)[name].__set__ for name in ("json_path", "role", "text"))


def _part(json_path: str, role: str, text: str) -> Part:
    """`Part(json_path, role, text)` in a quarter of the time: the constructor of a frozen dataclass is slow."""
    part = _blank(Part)
    _put_path(part, json_path)
    _put_role(part, role)
    _put_text(part, text)
    return part
