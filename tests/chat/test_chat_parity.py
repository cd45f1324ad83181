"""Every chat and instruction record of the shared corpora, through every template, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_cases import TEMPLATES

from mmdata.chat.conversation import conversation_of
from mmdata.chat.formats import chat_parser
from mmdata.chat.render import ChatOptions, ChatRenderer
from mmdata.document import Document
from mmdata.tokenizer import LoadedTokenizer, load_tokenizer

COUNTS = {
    "chat_en_sharegpt": 500,
    "chat_en_toolcall_sharegpt": 144,
    "chat_zh_toolcall_sharegpt": 162,
    "chat_zh_medical_messages": 425,
    "chat_zh_messages": 264,
    "instruct_en_alpaca": 1627,
    "instruct_en_gsm8k_original": 600,
    "instruct_en_zh_identity_alpaca": 91,
    "instruct_zh_legal_qa": 300,
    "instruct_zh_medical_alpaca": 4401,
}
TOOL_RECORDS = 202  # of the 306 tool call records that really define tools


@pytest.fixture(scope="module")
def documents(shared: Path) -> list[Document]:
    parse = chat_parser("auto")
    made: list[Document] = []
    for name, count in COUNTS.items():
        with open(shared / "data" / f"{name}.jsonl", encoding="utf-8") as lines:
            found = [parse(json.loads(line), name, 0, number) for number, line in enumerate(lines, 1)]
        assert len(found) == count
        assert not [fault for fault in found if isinstance(fault, str)]
        made += [document for document in found if isinstance(document, Document)]
    return made


@pytest.mark.peer
@pytest.mark.parametrize("template", ["auto", *TEMPLATES])
def test_every_record_has_the_ids_of_transformers(
    template: str, documents: list[Document], qwen3: LoadedTokenizer, hf_qwen3: Any
) -> None:
    renderer = ChatRenderer(qwen3, ChatOptions(template=template))
    batch = renderer.render_documents(documents)
    refused = TOOL_RECORDS if template in ("llama2", "deepseek", "gemma", "alpaca", "plain") else 0
    assert len(batch.drops) == refused and {drop.reason for drop in batch.drops} <= {"template-refused"}
    assert batch.kept.tolist() == sorted(batch.kept.tolist()) and len(batch.kept) == len(documents) - refused
    texts = []
    for number in batch.kept.tolist():
        messages, tools = conversation_of(documents[number])
        texts.append(
            hf_qwen3.apply_chat_template(messages, tools=tools, chat_template=renderer.template.source, tokenize=False)
        )
    theirs = hf_qwen3.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    ours = np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])
    wrong = [
        (documents[number].path, documents[number].line)
        for number, mine, other in zip(batch.kept.tolist(), ours, theirs, strict=True)
        if mine.tolist() != other.ids
    ]
    assert wrong == []


@pytest.mark.peer
def test_apply_chat_template_itself_agrees_on_the_first_records_of_each_file(
    documents: list[Document], qwen3: LoadedTokenizer, hf_qwen3: Any
) -> None:
    renderer = ChatRenderer(qwen3, ChatOptions())
    chosen = [document for document in documents if document.line <= 10]
    assert len(chosen) == 10 * len(COUNTS)
    for document in chosen:
        messages, tools = conversation_of(document)
        ids, _ = renderer.render(messages, tools)
        assert ids.tolist() == hf_qwen3.apply_chat_template(messages, tools=tools, return_dict=False)


def test_all_answers_of_the_shared_chats_count_and_nothing_else(
    documents: list[Document], qwen3: LoadedTokenizer
) -> None:
    batch = ChatRenderer(qwen3, ChatOptions(template="chatml")).render_documents(documents)
    ends, span_ends = np.cumsum(batch.lengths), np.cumsum(batch.span_lengths)
    for place, number in enumerate(batch.kept.tolist()):
        if number % 7:
            continue
        messages, _ = conversation_of(documents[number])
        ids = batch.tokens[ends[place] - batch.lengths[place] : ends[place]]
        spans = batch.spans[span_ends[place] - batch.span_lengths[place] : span_ends[place]].reshape(-1, 2)
        answers = [message for message in messages if message["role"] == "assistant"]
        assert len(spans) == len(answers)
        for (start, end), message in zip(spans.tolist(), answers, strict=True):
            text = qwen3.decode(ids[start:end])
            assert text.endswith("<|im_end|>")
            if not message.get("tool_calls"):
                assert text == message["content"] + "<|im_end|>"


SPACED = [
    {"role": "user", "content": "Hello, 你好 world"},
    {"role": "assistant", "content": "Once upon a time\nthere was."},
    {"role": "user", "content": "and\n\nthen"},
    {"role": "assistant", "content": "the end"},
]


@pytest.fixture(scope="module", params=["prefix on every stretch", "prefix on the first stretch"])
def spaced(request: pytest.FixtureRequest, shared: Path) -> tuple[LoadedTokenizer, Any]:
    """A tokenizer that puts a space in front, and transformers' own of it."""
    transformers = pytest.importorskip("transformers")
    if request.param == "prefix on every stretch":
        where = shared / "models" / "stories260K" / "tokenizer.json"
        hf = transformers.PreTrainedTokenizerFast(tokenizer_file=str(where), bos_token="<s>", eos_token="</s>")
    else:
        where = shared / "tokenizers" / "mistral_sp"
        hf = transformers.LlamaTokenizer.from_pretrained(str(where), legacy=False)
    return load_tokenizer(where), hf


@pytest.mark.peer
@pytest.mark.parametrize("template", ["llama2", "mistral", "alpaca", "plain", "chatml"])
def test_tokenizers_that_put_a_space_in_front_agree_behind_control_tokens(
    template: str, spaced: tuple[LoadedTokenizer, Any]
) -> None:
    tokenizer, hf = spaced
    renderer = ChatRenderer(tokenizer, ChatOptions(template=template))
    ids, spans = renderer.render(SPACED)
    assert ids.tolist() == hf.apply_chat_template(SPACED, chat_template=renderer.template.source, return_dict=False)
    decoded = [hf.decode(ids[start:end]) for start, end in spans.tolist()]
    assert ["Once upon a time\nthere was." in decoded[0], "the end" in decoded[1]] == [True, True]


def test_tiktoken_ranks_render_the_ids_of_the_same_vocabulary(shared: Path, qwen3: LoadedTokenizer) -> None:
    tiktoken = load_tokenizer(f"qwen:{shared / 'tokenizers' / 'qwen_tiktoken' / 'qwen.tiktoken'}")
    ids, spans = ChatRenderer(tiktoken, ChatOptions(template="chatml")).render(SPACED)
    ids_hf, spans_hf = ChatRenderer(qwen3, ChatOptions(template="chatml")).render(SPACED)
    assert ids.tolist() == ids_hf.tolist() and spans.tolist() == spans_hf.tolist()
