"""Messages under construction, and the way back from cleaned texts to messages.

A conversation is plain JSON: `{"messages": [...], "tools": [...] or None, "slots": [...]}`. A message has `role`
(system, user, assistant, tool), `content` (a string), and where they occur `reasoning_content`, `tool_calls` (OpenAI's
form, arguments as the record has them: an object, or its JSON text), `name`, `tool_call_id`. Slot k says where the text
of the document's part k belongs, and that of a tool call also what the text was.
Where each part is a message of its own and there is nothing else, it is only `{"simple": true}`; neighbouring parts of
the user are then the pieces of one message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mmdata.chat.json_text import OutOfRangeError, read_json
from mmdata.document import Document, Part
from mmdata.errors import ChatRecordError

Slot = tuple[Any, ...]
_JOINER = "\n"


class Fault(Exception):
    """Why a record is no usable conversation; its text is `cause: detail`."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause


class Builder:
    """Collects messages, the document's parts, and where each part goes."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.tools: list[Any] | None = None
        self.parts: list[Part] = []
        self.slots: list[Slot] = []
        self.plain_slots = True

    def add(self, role: str, pieces: list[tuple[str, str]]) -> int:
        """Append a message whose content is the pieces (json path, text) joined by a line feed; its number."""
        index = len(self.messages)
        content = pieces[0][1] if len(pieces) == 1 else _JOINER.join([text for _, text in pieces])
        self.messages.append({"role": role, "content": content})
        for path, text in pieces:
            self.parts.append(Part(path, role, text))
            self.slots.append((index, "content"))
        return index

    def add_text(self, role: str, path: str, text: str) -> None:
        """Append a message of one text."""
        self.parts.append(Part(path, role, text))
        self.slots.append((len(self.messages), "content"))
        self.messages.append({"role": role, "content": text})

    def set_text(self, index: int, key: str, path: str, text: str) -> None:
        """Set another text of a message."""
        message = self.messages[index]
        message[key] = text
        self.parts.append(Part(path, message["role"], text))
        self.slots.append((index, key))
        self.plain_slots = False

    def add_call_text(self, path: str, text: str) -> None:
        """A ShareGPT function_call: joined to the assistant message before it, where there is one."""
        try:
            calls = calls_of_text(text)
        except OutOfRangeError as error:
            raise Fault("bad-tool-call", f"{path}: {error}") from None
        if calls is None:
            raise Fault("bad-tool-call", f"{path} is not JSON with name and arguments")
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        message = self.messages[-1]
        start = len(message.setdefault("tool_calls", []))
        message["tool_calls"].extend(calls)
        self.parts.append(Part(path, "assistant", text))
        self.slots.append((len(self.messages) - 1, "tool_calls", start, len(calls), text))
        self.plain_slots = False

    def add_calls(self, index: int, calls: Any, path: str) -> None:
        """OpenAI tool calls. The arguments of each become a part: their JSON text, also where they are an object."""
        if not isinstance(calls, list):
            raise Fault("bad-tool-call", f"{path} is not a list")
        self.plain_slots = False
        made = []
        for i, call in enumerate(calls):
            function = call.get("function", call) if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise Fault("bad-tool-call", f"{path}[{i}] has no function name")
            at = f"{path}[{i}].function.arguments" if "function" in call else f"{path}[{i}].arguments"
            arguments = function.get("arguments", {})
            if isinstance(arguments, str):
                try:
                    parsed_object(arguments)
                except OutOfRangeError as error:
                    raise Fault("bad-tool-call", f"{at}: {error}") from None
            made.append(_call(function["name"], arguments, call.get("id")))
            if arguments or isinstance(arguments, str):
                text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                self.parts.append(Part(at, "assistant", text))
                self.slots.append((index, "arguments", i, text))
        self.messages[index]["tool_calls"] = made

    def set_tools(self, tools: Any) -> None:
        """Tool definitions, as a list or as JSON text, in OpenAI's form `{"type": "function", "function": {...}}`."""
        if isinstance(tools, str):
            try:
                tools = read_json(tools) if tools.strip() else None
            except OutOfRangeError as error:
                raise Fault("bad-tool-call", f"tools: {error}") from None
            except ValueError:
                raise Fault("bad-tool-call", "tools is a text but not JSON") from None
        if tools is None or tools == []:
            return
        if isinstance(tools, dict):
            tools = [tools]
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise Fault("bad-tool-call", "tools is not a list of objects")
        self.tools = [t if "function" in t else {"type": "function", "function": t} for t in tools]

    def structure(self) -> dict[str, Any]:
        """The conversation as plain JSON; see the top of this file."""
        if self.plain_slots and self.tools is None and all(len(message) == 2 for message in self.messages):
            roles = [part.role for part in self.parts]
            if collapsed(roles) == [message["role"] for message in self.messages]:
                return SIMPLE
        return {"messages": self.messages, "tools": self.tools, "slots": self.slots}


SIMPLE: dict[str, Any] = {"simple": True}
"""The structure of conversations that are their parts: one text a message and nothing else, but that neighbouring
parts of the user are pieces of one message. Shared, never changed."""


def collapsed(roles: Sequence[str]) -> list[str]:
    """The role of each message of a simple conversation whose parts have these roles."""
    return [role for i, role in enumerate(roles) if role != "user" or i == 0 or roles[i - 1] != "user"]


def contents(roles: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The content of each message of a simple conversation whose parts have these roles and texts."""
    made: list[str] = []
    for i, text in enumerate(texts):
        if i and roles[i] == "user" == roles[i - 1]:
            made[-1] = f"{made[-1]}{_JOINER}{text}"
        else:
            made.append(text)
    return made


def _call(name: str, arguments: Any, call_id: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if isinstance(call_id, str):
        made["id"] = call_id
    return made


def calls_of_text(text: str) -> list[dict[str, Any]] | None:
    """The calls in a JSON text: one object with name and arguments, or a list of them; None when it is neither.

    Raises OutOfRangeError.
    """
    try:
        value = read_json(text)
    except OutOfRangeError:
        raise
    except ValueError:
        return None
    calls = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            return None
        arguments = item.get("arguments", item.get("parameters", {}))
        if isinstance(arguments, str):
            parsed_object(arguments)
        calls.append(_call(item["name"], arguments, item.get("id")))
    return calls or None


def parsed_object(text: str) -> dict[str, Any] | None:
    """The JSON object in `text`, or None. Raises OutOfRangeError."""
    try:
        value = read_json(text)
    except OutOfRangeError:
        raise
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def with_objects(messages: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The messages with every text of arguments that is a JSON object read; the very same where there is none."""
    changed: dict[int, dict[str, Any]] = {}
    for number, message in enumerate(messages):
        calls = message.get("tool_calls", ())
        read = [_with_object(call) for call in calls]
        if any(new is not old for new, old in zip(read, calls, strict=True)):
            changed[number] = {**message, "tool_calls": read}
    return [changed.get(i, message) for i, message in enumerate(messages)] if changed else messages


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    whole = parsed_object(arguments) if isinstance(arguments, str) else None
    return call if whole is None else {**call, "function": {**function, "arguments": whole}}


def conversation_of(document: Document) -> tuple[list[dict[str, Any]], list[Any] | None]:
    """The messages and tools of a document, with the texts its parts hold now (after cleaning).

    Raises ChatRecordError when a cleaned tool call is no longer JSON.
    """
    chat = document.meta["chat"]
    if "simple" in chat:
        roles = [part.role for part in document.parts]
        texts = contents(roles, [part.text for part in document.parts])
        return [{"role": role, "content": text} for role, text in zip(collapsed(roles), texts, strict=True)], None
    messages, slots = chat["messages"], chat["slots"]
    changed: dict[int, dict[str, Any]] = {}
    gathered: dict[tuple[int, str], list[str]] = {}
    for part, slot in zip(document.parts, slots, strict=True):
        key = slot[1]
        if key == "content" or key == "reasoning_content":
            gathered.setdefault((slot[0], key), []).append(part.text)
        elif slot[-1] != part.text:
            message = changed.setdefault(slot[0], json.loads(json.dumps(messages[slot[0]])))
            _put_call(message, slot, part.text, document)
    for (index, key), texts in gathered.items():
        text = texts[0] if len(texts) == 1 else _JOINER.join(texts)
        if text != messages[index][key]:
            changed.setdefault(index, dict(messages[index]))[key] = text
    if not changed:
        return messages, chat["tools"]
    return [changed.get(i, message) for i, message in enumerate(messages)], chat["tools"]


def _put_call(message: dict[str, Any], slot: Slot, text: str, document: Document) -> None:
    calls = message["tool_calls"]
    try:
        if slot[1] == "arguments":
            function = calls[slot[2]]["function"]
            if not isinstance(function["arguments"], str):
                function["arguments"] = read_json(text)
                return
            if parsed_object(text) is None and parsed_object(function["arguments"]) is not None:
                raise _no_longer_json(document, text)
            function["arguments"] = text
        else:
            made = calls_of_text(text)
            if made is None or len(made) != slot[3]:
                raise _no_longer_json(document, text)
            calls[slot[2] : slot[2] + slot[3]] = made
    except ValueError:
        raise _no_longer_json(document, text) from None


def _no_longer_json(document: Document, text: str) -> ChatRecordError:
    return ChatRecordError(
        f"{document.path}:{document.line}: after cleaning, a tool call of {len(text)} characters is no longer JSON"
    )
