"""Cleaning, personal data and deduplication of conversations through `convert`, and what merging and splitting keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_cases import TOOLS, answer, user

import mmdata
from mmdata.indexed.merge import merge_shards
from mmdata.indexed.split import split_shard
from mmdata.indexed.verify import verify_shard
from mmdata.inspection import view_document
from mmdata.tokenizer import LoadedTokenizer

LONG = "Regular exercise improves heart health, and a balanced diet with plenty of vegetables helps people keep fit."
CALL = {"type": "function", "function": {"name": "mail", "arguments": {"to": "li@example.com", "text": "13812345678"}}}
RECORDS: list[dict[str, Any]] = [
    {"messages": [user("My number is 13812345678, is that fine?"), answer(LONG + " Write to li@example.com.")]},
    {"messages": [user("My number is 13812345678, is that fine?"), answer(LONG + " Write to li@example.com.")]},
    {
        "messages": [
            user("send it"),
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "sent to li@example.com"},
            answer("Done, as you wished."),
        ],
        "tools": TOOLS,
    },
    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "donâ€™t"}]},
]


@pytest.fixture(scope="module")
def prefix(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("chat")
    (path / "in.jsonl").write_text("\n".join(map(json.dumps, RECORDS)), encoding="utf-8")
    mmdata.convert(
        path / "in.jsonl", path / "out", folder, recipe="auto", pii="replace", chat_template="chatml", workers=1
    )
    return str(path / "out_text_document")


def shown(prefix: str, tokenizer: LoadedTokenizer) -> list[str]:
    """Each document's text, what counts between brackets."""
    count = mmdata.IndexedDataset(prefix).document_count
    views = [view_document(prefix, number, tokenizer) for number in range(count)]
    return ["".join(f"⟦{text}⟧" if counted else text for text, counted in view.segments) for view in views]


def test_stages_work_on_the_messages_and_leave_their_structure(prefix: str, tokenizer: LoadedTokenizer) -> None:
    first, call, repaired = shown(prefix, tokenizer)  # the second record was the first one's duplicate
    assert "13812345678" not in first + call and "li@example.com" not in first + call
    assert first.startswith("<|im_start|>user\nMy number is <") and first.endswith(">.<|im_end|>⟧\n")
    arguments = call[call.index('"arguments": ') + 13 : call.index("}\n</tool_call>")]
    assert json.loads(arguments).keys() == {"to", "text"}
    assert call.count("⟦") == 2 and "⟦Done, as you wished.<|im_end|>⟧" in call
    assert repaired.endswith("⟦don’t<|im_end|>⟧\n")


def test_merging_and_splitting_keep_texts_and_what_counts(
    prefix: str, folder: Path, tokenizer: LoadedTokenizer, tmp_path: Path
) -> None:
    (tmp_path / "plain.jsonl").write_text(json.dumps({"text": LONG}), encoding="utf-8")
    mmdata.convert(tmp_path / "plain.jsonl", tmp_path / "plain", folder, recipe="none", format="text", workers=1)
    merge_shards([prefix, str(tmp_path / "plain_text_document")], str(tmp_path / "all"))
    parts = [part.prefix for part in split_shard(str(tmp_path / "all"), str(tmp_path / "part"), max_tokens=200)]
    assert len(parts) > 1 and all(verify_shard(part, deep=True).ok for part in [str(tmp_path / "all"), *parts])
    whole = shown(str(tmp_path / "all"), tokenizer)
    assert whole[:3] == shown(prefix, tokenizer) and whole[3][0] != "⟦" and whole[3].endswith("⟧")
    assert [text for part in parts for text in shown(part, tokenizer)] == whole


PHONE = 13812345678
NESTED = {"phone": PHONE, "who": {"ids": [PHONE, 7]}, str(PHONE): "x", "note": "call\n13812345678", "n": 12}


def _asked(arguments: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "dial", "arguments": arguments}}
    turns = [user("ring them"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    return {"messages": [*turns, {"role": "tool", "content": json.dumps({"rang": PHONE})}, answer("Done.")]}


@pytest.mark.parametrize(
    "record",
    [
        _asked(NESTED),
        _asked(json.dumps(NESTED)),
        {
            "conversations": [
                {"from": "human", "value": "ring them"},
                {"from": "function_call", "value": json.dumps({"name": "dial", "arguments": NESTED})},
                {"from": "observation", "value": json.dumps({"rang": PHONE})},
                {"from": "gpt", "value": "Done."},
            ]
        },
    ],
    ids=["object", "json text", "function_call"],
)
def test_numbers_of_people_in_a_call_are_masked_and_the_record_is_kept(
    record: dict[str, Any], folder: Path, tokenizer: LoadedTokenizer, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(record), encoding="utf-8")
    mmdata.convert(
        tmp_path / "in.jsonl", tmp_path / "out", folder, recipe="auto", chat_template="chatml", workers=1, dedup="none"
    )
    (text,) = shown(str(tmp_path / "out_text_document"), tokenizer)
    call = json.loads(text[text.index("<tool_call>") + 11 : text.index("</tool_call>")])
    assert call["arguments"] == {
        "phone": "<手机号>", "who": {"ids": ["<手机号>", 7]}, "<手机号>": "x", "note": "call\n<手机号>", "n": 12,
    }  # fmt: skip
    assert '{"rang": "<手机号>"}' in text and str(PHONE) not in text
    report = json.loads((tmp_path / "out_report.json").read_text(encoding="utf-8"))
    assert report["counters"]["pii.mobile"] == 5 and report["records"]["dropped"] == {}
