"""Batches: independent of where they are cut, drops with reasons, lengths, reasoning, mixed kinds."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_cases import SHAPES, TOOLS, answer, user

from mmdata.chat.formats import chat_parser
from mmdata.chat.render import ChatOptions, ChatRenderer, RenderedBatch, render_chat, thinking_note
from mmdata.chat.templates import BUILT_IN, load_template
from mmdata.document import Document
from mmdata.errors import ChatRecordError, ChatTemplateError, UsageError
from mmdata.tokenizer import LoadedTokenizer


def document(messages: list[dict[str, Any]], line: int = 1, tools: Any = None) -> Document:
    made = chat_parser()({"messages": messages, "tools": tools}, "in.jsonl", 0, line)
    assert isinstance(made, Document), made
    return made


def rendered(tokenizer: LoadedTokenizer, documents: list[Document], **options: Any) -> RenderedBatch:
    return ChatRenderer(tokenizer, ChatOptions(**{"template": "chatml", **options})).render_documents(documents)


def counted(tokenizer: LoadedTokenizer, batch: RenderedBatch) -> list[list[str]]:
    """The counted texts of each sequence."""
    result = []
    token, span = 0, 0
    for length, numbers in zip(batch.lengths.tolist(), batch.span_lengths.tolist(), strict=True):
        ids = batch.tokens[token : token + length]
        pairs = batch.spans[span : span + numbers].reshape(-1, 2).tolist()
        assert all(1 <= start < end <= length for start, end in pairs)
        result.append([tokenizer.decode(ids[start:end]) for start, end in pairs])
        token, span = token + length, span + numbers
    assert token == len(batch.tokens) and span == len(batch.spans)
    return result


def texts(tokenizer: LoadedTokenizer, batch: RenderedBatch) -> list[str]:
    return (
        [tokenizer.decode(ids) for ids in np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])]
        if len(batch.lengths)
        else []
    )


LONG = [m for i in range(6) for m in (user(f"question {i} " + "w " * 10), answer(f"answer {i} " + "v " * 10))]


def test_a_batch_gives_what_its_records_give_one_by_one(tokenizer: LoadedTokenizer) -> None:
    documents = [document(m, i, TOOLS if s == "tool calls" else None) for i, (s, m) in enumerate(SHAPES.items())] * 3
    whole = rendered(tokenizer, documents)
    renderer = ChatRenderer(tokenizer, ChatOptions(template="chatml"))
    single = [renderer.render_documents([one]) for one in documents]
    for name in ("tokens", "lengths", "spans", "span_lengths"):
        joined = np.concatenate([getattr(part, name) for part in single])
        assert np.array_equal(getattr(whole, name), joined)
        assert getattr(whole, name).dtype == joined.dtype
    assert whole.kept.tolist() == list(range(len(documents)))
    assert whole.counters["conversations"] == len(documents)


def test_no_documents_give_an_empty_batch(tokenizer: LoadedTokenizer) -> None:
    batch = rendered(tokenizer, [])
    assert [len(x) for x in (batch.tokens, batch.lengths, batch.spans, batch.span_lengths, batch.kept)] == [0] * 5


def test_plain_text_in_a_chat_run_counts_whole_and_gets_the_end_token(tokenizer: LoadedTokenizer) -> None:
    plain = chat_parser()({"text": "some <|im_end|> text"}, "in.jsonl", 0, 1)
    assert isinstance(plain, Document)
    batch = rendered(tokenizer, [plain, document(SHAPES["one question"])], eod_id=1)
    n = int(batch.lengths[0])
    assert batch.spans[:2].tolist() == [1, n] and int(batch.tokens[n - 1]) == 1
    assert tokenizer.decode(batch.tokens[: n - 1]) == "some <|im_end|> text"
    assert texts(tokenizer, batch)[1].endswith("Hi there.<|im_end|>\n")
    alone = ChatRenderer(tokenizer, ChatOptions(eod_id=1), conversations=False).render_documents([plain])
    assert alone.tokens.tolist() == batch.tokens[:n].tolist() and alone.spans.tolist() == [1, n]


def test_plain_text_of_no_token_is_dropped_and_of_one_token_kept(tokenizer: LoadedTokenizer) -> None:
    documents = [chat_parser()({"text": text}, "in.jsonl", 0, 1) for text in ("", "a", "")]
    for eod, spans in ((None, []), (1, [1, 2])):
        renderer = ChatRenderer(tokenizer, ChatOptions(eod_id=eod), conversations=False)
        batch = renderer.render_documents([d for d in documents if isinstance(d, Document)])
        assert batch.kept.tolist() == [1] and batch.spans.tolist() == spans
        assert [drop.reason for drop in batch.drops] == ["empty", "empty"]


def test_a_forced_end_token_ends_conversations_and_does_not_count(tokenizer: LoadedTokenizer) -> None:
    documents = [document(SHAPES["one question"])]
    for train_on in ("assistant", "all"):
        plain = rendered(tokenizer, documents, train_on=train_on)
        forced = rendered(tokenizer, documents, train_on=train_on, eod_id=1, force_eod=True)
        assert forced.tokens.tolist() == [*plain.tokens.tolist(), 1]
        assert forced.spans.tolist() == plain.spans.tolist()


def test_drop_and_error_beyond_max_length(tokenizer: LoadedTokenizer) -> None:
    documents = [document(SHAPES["one question"], 1), document(LONG, 2)]
    length = int(rendered(tokenizer, documents).lengths[1])
    batch = rendered(tokenizer, documents, max_length=60, too_long="drop")
    assert batch.kept.tolist() == [0]
    assert [(d.line, d.reason, d.value, d.limit) for d in batch.drops] == [(2, "too-long", length, 60)]
    with pytest.raises(ChatRecordError, match=rf"in\.jsonl:2: {length} tokens, --max-length is 60.*split-turns"):
        rendered(tokenizer, documents, max_length=60)
    assert len(rendered(tokenizer, documents, max_length=length).lengths) == 2


@pytest.mark.parametrize("side", ["left", "right"])
def test_truncation_keeps_one_side_and_clips_the_ranges(side: str, tokenizer: LoadedTokenizer) -> None:
    whole = rendered(tokenizer, [document(SHAPES["one question"]), document(LONG)])
    short, n = int(whole.lengths[0]), int(whole.lengths[1])
    limit = n - 30
    cut = rendered(
        tokenizer,
        [document(SHAPES["one question"]), document(LONG)],
        max_length=limit,
        too_long=f"truncate-{side}",
    )
    assert cut.lengths.tolist() == [short, limit] and cut.counters[f"truncate_{side}"] == 1
    full = whole.tokens[short:]
    assert cut.tokens[short:].tolist() == (full[30:] if side == "left" else full[:limit]).tolist()
    mask = np.zeros(n, bool)
    for start, end in whole.spans[2:].reshape(-1, 2):
        mask[start:end] = True
    mask = mask[30:] if side == "left" else mask[:limit]
    mask[0] = False
    made = np.zeros(limit, bool)
    for start, end in cut.spans[2:].reshape(-1, 2):
        made[start:end] = True
    assert np.array_equal(made, mask)


def test_truncation_that_leaves_no_counted_token_drops_the_record(tokenizer: LoadedTokenizer) -> None:
    batch = rendered(tokenizer, [document(LONG, 4)], max_length=5, too_long="truncate-right")
    assert [(d.line, d.reason, d.value) for d in batch.drops] == [(4, "no-counted-token", 5)]
    assert len(batch.tokens) == 0


def test_split_turns_gives_whole_exchanges_each_with_the_system_message(tokenizer: LoadedTokenizer) -> None:
    system = {"role": "system", "content": "S"}
    documents = [document(SHAPES["one question"], 1), document([system, *LONG], 2), document(SHAPES["one question"], 3)]
    batch = rendered(tokenizer, documents, max_length=180, too_long="split-turns")
    assert len(batch.kept) > 4 and batch.kept.tolist() == sorted(batch.kept.tolist())
    assert int(batch.lengths.max()) <= 180 and batch.drops == []
    pieces = [text for text, owner in zip(texts(tokenizer, batch), batch.kept.tolist(), strict=True) if owner == 1]
    assert all(piece.startswith("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nquestion") for piece in pieces)
    answers = [
        a
        for piece, owner in zip(counted(tokenizer, batch), batch.kept.tolist(), strict=True)
        if owner == 1
        for a in piece
    ]
    assert answers == [message["content"] + "<|im_end|>" for message in LONG if message["role"] == "assistant"]
    assert batch.counters["made_by_splitting"] == len(pieces) - 1


def test_an_exchange_longer_than_allowed_is_left_out_and_counted(tokenizer: LoadedTokenizer) -> None:
    talk = [user("a"), answer("b"), user("x " * 200), answer("y"), user("c"), answer("d")]
    batch = rendered(tokenizer, [document(talk)], max_length=60, too_long="split-turns")
    assert counted(tokenizer, batch) == [["b<|im_end|>"], ["d<|im_end|>"]]
    assert batch.counters["exchanges_too_long"] == 1
    only = rendered(tokenizer, [document(talk[2:4])], max_length=60, too_long="split-turns")
    assert [d.reason for d in only.drops] == ["too-long"]


def test_a_conversation_the_template_refuses_is_dropped_with_its_words(tokenizer: LoadedTokenizer) -> None:
    batch = rendered(tokenizer, [document(SHAPES["tool calls"], 8, TOOLS)], template="gemma")
    assert [(d.line, d.stage, d.reason) for d in batch.drops] == [(8, "encode", "template-refused")]
    assert "no way to write tools" in str(batch.drops[0].value)


THINK = "<think>\nlet me see\n</think>\n\nyes"
REASONED = [user("q"), answer("yes", reasoning_content="let me see")]


def test_keep_writes_a_block_where_the_template_knows_none(tokenizer: LoadedTokenizer) -> None:
    for messages in (REASONED, [user("q"), answer(THINK)]):
        batch = rendered(tokenizer, [document(messages)])
        assert counted(tokenizer, batch) == [[THINK + "<|im_end|>"]]
        ids = batch.tokens.tolist()
        assert tokenizer.token_to_id("<think>") in ids and tokenizer.token_to_id("</think>") in ids
        assert batch.counters["thinking_with"] == 1


def test_strip_removes_reasoning_and_empty_writes_an_empty_block_that_does_not_count(
    tokenizer: LoadedTokenizer,
) -> None:
    talk = [user("p"), answer("no"), *REASONED]
    stripped = rendered(tokenizer, [document(talk)], thinking="strip")
    assert "think" not in texts(tokenizer, stripped)[0]
    empty = rendered(tokenizer, [document(talk)], thinking="empty")
    assert texts(tokenizer, empty)[0].count("<|im_start|>assistant\n<think>\n\n</think>\n\n") == 2
    assert counted(tokenizer, empty) == counted(tokenizer, stripped) == [["no<|im_end|>", "yes<|im_end|>"]]
    asked = rendered(tokenizer, [document(talk)], thinking="empty", count_empty_thinking=True)
    block = "<think>\n\n</think>\n\n"
    assert counted(tokenizer, asked) == [[block + "no<|im_end|>", block + "yes<|im_end|>"]]


def test_qwen3_template_keeps_strips_and_empties(qwen3: LoadedTokenizer) -> None:
    talk = [user("p"), answer("<think>\nold\n</think>\n\nno"), *REASONED]
    short = [user("q"), answer("plain")]
    block = "<think>\n\n</think>\n\n"

    def both(thinking: str) -> tuple[list[str], list[list[str]]]:
        batch = rendered(qwen3, [document(talk), document(short)], template="auto", thinking=thinking)
        return texts(qwen3, batch), counted(qwen3, batch)

    kept, kept_counted = both("keep")
    assert kept_counted == [["no<|im_end|>", THINK + "<|im_end|>"], ["plain<|im_end|>"]]
    assert "old" not in kept[0] and block in kept[1]
    stripped, stripped_counted = both("strip")
    assert stripped_counted == [["no<|im_end|>", "yes<|im_end|>"], ["plain<|im_end|>"]]
    assert not any("think" in text for text in stripped)
    emptied, emptied_counted = both("empty")
    assert emptied_counted == stripped_counted
    assert [text.count("assistant\n" + block) for text in emptied] == [2, 1]


def test_a_mix_of_reasoning_is_announced(tokenizer: LoadedTokenizer) -> None:
    batch = rendered(tokenizer, [document(REASONED), document(SHAPES["one question"])])
    note = thinking_note(batch.counters)
    assert note is not None and "1 conversations reason" in note and "--thinking" in note
    assert thinking_note(rendered(tokenizer, [document(REASONED)]).counters) is None


def test_an_end_inside_a_stretch_is_placed_by_bytes_or_by_offsets(tokenizer: LoadedTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "bare.jinja"
    path.write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}",
        encoding="utf-8",
    )
    talk = [
        user("你好 hello"),
        answer("世界 world"),
        user("e\u0301 x"),
        answer("e\u0301 composed"),
        user("z"),
        answer("end"),
    ]
    ids, spans = render_chat(talk, tokenizer, str(path))
    assert [tokenizer.decode(ids[a:b]).strip() for a, b in spans] == ["世界 world", "é composed", "end"]


def test_tokens_that_swallow_white_space_are_followed(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    from mmdata.tokenizer import load_tokenizer

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(["a b c d"], trainer)
    made.add_special_tokens([tokenizers.AddedToken(t, rstrip=True, normalized=False) for t in ("<|user|>", "<|bot|>")])
    made.add_special_tokens([tokenizers.AddedToken("<|end|>", lstrip=True, normalized=False)])
    made.save(str(tmp_path / "tokenizer.json"))
    template = tmp_path / "chat_template.jinja"
    template.write_text(
        "{% for m in messages %}{{ '<|user|>' if m.role == 'user' else '<|bot|>' }}\n{{ m.content }}\n<|end|>"
        "{% endfor %}"
        "{% if add_generation_prompt %}<|bot|>\n{% endif %}",
        encoding="utf-8",
    )
    tokenizer = load_tokenizer(tmp_path)
    hf = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for talk in ([user(" a "), answer("b c")], [user("\n\na"), answer("  b\n\n"), user("d"), answer("c")]):
        ids, spans = render_chat(talk, tokenizer)
        theirs = hf.apply_chat_template(talk, chat_template=template.read_text(encoding="utf-8"), return_dict=False)
        assert ids.tolist() == theirs
        kept = [tokenizer.decode(ids[a:b]) for a, b in spans]
        assert kept == [m["content"].strip() + "<|end|>" for m in talk if m["role"] == "assistant"]


def test_the_clock_is_refused_unless_the_date_is_fixed(tokenizer: LoadedTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(
        "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}", encoding="utf-8"
    )
    with pytest.raises(ChatTemplateError, match="date"):
        ChatRenderer(tokenizer, ChatOptions(template=str(path), train_on="all"))
    ids, _ = render_chat([user("q"), answer("a")], tokenizer, str(path), train_on="all", date="2026-01-31")
    assert tokenizer.decode(ids) == "31 Jan 2026qa"


def test_templates_are_found_or_the_choices_are_named(tokenizer: LoadedTokenizer, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match=r"brings no chat template.*chatml"):
        load_template("auto", tokenizer)
    with pytest.raises(ChatTemplateError, match=r"did you mean 'llama3'"):
        load_template("lama3", tokenizer)
    assert load_template("qwen", tokenizer).source == load_template("chatml", tokenizer).source
    assert load_template("plain", tokenizer).variables == {"bos_token": "<s>", "eos_token": "</s>"}
    broken = tmp_path / "b.jinja"
    broken.write_text("{% for %}", encoding="utf-8")
    with pytest.raises(ChatTemplateError, match="line 1"):
        ChatRenderer(tokenizer, ChatOptions(template=str(broken)))
    named = tmp_path / "chat_template.json"
    named.write_text('{"chat_template": {"default": "d", "tool_use": "t"}}', encoding="utf-8")
    loaded = load_template(str(named), tokenizer)
    assert (loaded.source, loaded.tool_source) == ("d", "t")
    for name in BUILT_IN:
        ChatRenderer(tokenizer, ChatOptions(template=name))


def test_options_are_checked_and_travel_to_workers() -> None:
    for wrong in (
        {"train_on": "some"},
        {"too_long": "cut"},
        {"thinking": "yes"},
        {"max_length": 1},
        {"force_eod": True},
    ):
        with pytest.raises(UsageError):
            ChatOptions(**wrong)
    options = ChatOptions(template="chatml", max_length=10)
    assert pickle.loads(pickle.dumps(options)) == options


def test_what_is_kept_between_records_is_bounded(tokenizer: LoadedTokenizer) -> None:
    renderer = ChatRenderer(tokenizer, ChatOptions(template="chatml"))
    documents = [document(SHAPES["three questions"], i) for i in range(50)]
    renderer.render_documents(documents)
    traced = renderer._programs.traced
    renderer.render_documents(documents)
    assert renderer._programs.traced == traced <= 3


def test_a_message_that_cleaning_emptied_drops_the_record(tokenizer: LoadedTokenizer) -> None:
    emptied = document(SHAPES["one question"], 5).with_texts(["Hello?", ""])
    with_tools = document(SHAPES["tool calls"], 6, TOOLS)
    texts_left = [part.text if part.text != "3 degrees." else "" for part in with_tools.parts]
    batch = rendered(tokenizer, [emptied, with_tools.with_texts(texts_left), with_tools])
    assert [(drop.line, drop.reason, drop.value) for drop in batch.drops] == [
        (5, "empty-message", 1),
        (6, "empty-message", 3),
    ]
    assert batch.kept.tolist() == [2]
