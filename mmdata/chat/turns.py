"""The order of turns: what is right, what can be repaired, what is refused.

Right: optional system messages, then user and assistant in turn, tool results only behind a call. Every answer has text
or calls; a last question without an answer is kept and never counted. `reject` refuses anything else. `repair` joins
neighbouring messages of one role with a line feed, removes what stands before the first user message save system
messages, removes empty messages, and says so; what is still wrong then is refused.
"""

from __future__ import annotations

from typing import Any, Literal

from mmdata.chat.conversation import Builder, Fault

TurnPolicy = Literal["reject", "repair"]


def order_fault(messages: list[dict[str, Any]]) -> Fault | None:
    """The first thing wrong with the order or the contents, or None."""
    before = None
    asked = False
    answers = 0
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "assistant":
            answers += 1
            if not message["content"].strip() and not message.get("tool_calls"):
                return Fault("empty-answer", f"message {i} of the assistant is empty")
        elif role in ("user", "system") and not message["content"].strip():
            return Fault("empty-message", f"message {i} of the {role} is empty")
        wrong = _wrong_neighbour(before, message, asked)
        if wrong:
            return Fault("bad-turns", f"message {i}: {wrong}")
        asked = asked or role == "user"
        before = message
    return None if answers else Fault("no-answer", "no message of the assistant")


def _wrong_neighbour(before: dict[str, Any] | None, message: dict[str, Any], asked: bool) -> str | None:
    role = message["role"]
    last = None if before is None else before["role"]
    called = before is not None and bool(before.get("tool_calls"))
    if role == "assistant" and not asked:
        return "the assistant speaks first"
    if role == "tool" and not (last == "tool" or called):
        return "a tool result without a call before it"
    if role in ("user", "assistant") and role == last:
        return f"two messages of the {role} in a row"
    return None


def repair(builder: Builder) -> list[str]:
    """Repair the builder's messages in place; the names of what was done, one for each change."""
    done: list[str] = []
    keep: list[int] = []
    joined: dict[int, int] = {}
    spoken = False
    for i, message in enumerate(builder.messages):
        role = message["role"]
        empty = not message["content"].strip() and not message.get("tool_calls")
        last = builder.messages[keep[-1]] if keep else None
        if empty:
            done.append(f"removed an empty message of the {role}")
        elif role in ("assistant", "tool") and not spoken:
            done.append(f"removed a message of the {role} before the first question")
        elif last is not None and role == last["role"] and role in ("user", "assistant") and not _has_calls(last):
            done.append(f"joined two messages of the {role}")
            joined[i] = keep[-1]
        else:
            keep.append(i)
        spoken = spoken or (role == "user" and not empty)
    if done:
        _rebuild(builder, keep, joined)
    return done


def _has_calls(message: dict[str, Any]) -> bool:
    return bool(message.get("tool_calls"))


def _rebuild(builder: Builder, keep: list[int], joined: dict[int, int]) -> None:
    """Drop the messages not kept and their parts; append the joined ones behind a line feed."""
    place = {old: new for new, old in enumerate(keep)}
    messages = [dict(builder.messages[old]) for old in keep]
    for old, target in joined.items():
        source, into = builder.messages[old], messages[place[target]]
        into["content"] = f"{into['content']}\n{source['content']}"
        for key in ("tool_calls", "reasoning_content"):
            if key in source:
                into.setdefault(key, source[key])
        place[old] = place[target]
    kept = [(part, slot) for part, slot in zip(builder.parts, builder.slots, strict=True) if slot[0] in place]
    builder.messages = messages
    builder.plain_slots = False
    builder.parts = [part for part, _ in kept]
    builder.slots = [(place[slot[0]], *slot[1:]) for _, slot in kept]
