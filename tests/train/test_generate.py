"""Generation continues prompts as transformers does, token for token, whatever the batch and its padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

from mmdata_train.cli import main  # noqa: E402
from mmdata_train.errors import ConfigError, GenerationError, ModelError  # noqa: E402
from mmdata_train.export.description import generation_config  # noqa: E402
from mmdata_train.generation.generate import generate, generate_ids, refuse_unknown_ids  # noqa: E402
from mmdata_train.generation.model import LoadedModel, open_model  # noqa: E402
from mmdata_train.generation.prompts import ChatPrompter, text_prompt  # noqa: E402
from mmdata_train.generation.sampling import Chooser, GenerationOptions, warp  # noqa: E402
from mmdata_train.generation.sources import find_source  # noqa: E402
from mmdata_train.generation.text import TextStream  # noqa: E402
from mmdata_train.hf import load_weights  # noqa: E402
from mmdata_train.hf_config import config_from_folder  # noqa: E402
from mmdata_train.model.decoder import Decoder  # noqa: E402

SIZES = dict(
    vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3, eos_token_id=None, bos_token_id=None,
)  # fmt: skip
GPT2 = dict(
    vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=64, initializer_range=0.3, eos_token_id=None,
    bos_token_id=None,
)  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral-window": ("Mistral", {"sliding_window": 5}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "gpt2": ("GPT2", {}),
}
PROMPTS = [[5], [7, 11, 13, 2, 9, 40, 41], [3, 3, 60], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [20, 19]]
STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a"
    " big, red ball. She wanted to play with it, but it was too high."
)


def tiny(name: str, folder: Path) -> tuple[Any, Decoder]:
    """A random model of transformers, and ours read from its folder."""
    transformers = pytest.importorskip("transformers")
    kind, options = MODELS[name]
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**{**(GPT2 if kind == "GPT2" else SIZES), **options})
    theirs = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config).eval()
    theirs.save_pretrained(folder)
    ours = Decoder(config_from_folder(folder, vocab_multiple=16, dropout=0.0, attention_dropout=0.0)).eval()
    load_weights([ours], ours.config, folder)
    return theirs, ours


def their_greedy(model: Any, prompt: list[int], new: int, stop: int | None = None) -> list[int]:
    tokens = torch.tensor([prompt])
    ends = {} if stop is None else {"eos_token_id": stop}
    made = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new, do_sample=False, pad_token_id=0, **ends
    )
    found: list[int] = made[0, len(prompt) :].tolist()
    return found[:-1] if stop is not None and found[-1] == stop else found


@pytest.mark.peer
@pytest.mark.parametrize("name", MODELS)
def test_greedy_batches_padded_on_either_side_equal_transformers_one_by_one(name: str, tmp_path: Path) -> None:
    theirs, ours = tiny(name, tmp_path)
    expected = [their_greedy(theirs, prompt, 14) for prompt in PROMPTS]
    for padding in ("left", "right"):
        options = GenerationOptions(max_new_tokens=14, batch_rows=3, padding=padding)
        made = generate_ids(ours, PROMPTS, options)
        assert [list(one.ids) for one in made] == expected
        assert {one.reason for one in made} == {"length"}
    stop = expected[1][4]
    made = generate_ids(ours, PROMPTS, GenerationOptions(max_new_tokens=14, stop_ids=(stop,)))
    assert [list(one.ids) for one in made] == [their_greedy(theirs, prompt, 14, stop) for prompt in PROMPTS]
    assert [one.reason for one in made] == ["stop" if stop in ids else "length" for ids in expected]


def test_generation_ends_at_the_models_longest_sequence_and_says_so(tmp_path: Path) -> None:
    _, ours = tiny("gpt2", tmp_path)
    made = generate_ids(ours, [[1] * 60, [1]], GenerationOptions(max_new_tokens=10))
    assert [(len(one.ids), one.reason) for one in made] == [(4, "context"), (10, "length")]
    with pytest.raises(GenerationError, match="prompt 0 has 64 tokens, the model takes 64 in all"):
        generate_ids(ours, [[1] * 64], GenerationOptions())
    with pytest.raises(GenerationError, match="prompt 1 has no token"):
        generate_ids(ours, [[1], []], GenerationOptions())


@pytest.mark.peer
def test_temperature_top_k_and_top_p_leave_what_transformers_leaves() -> None:
    warpers = pytest.importorskip("transformers.generation.logits_process")
    torch.manual_seed(0)
    logits = torch.randn(20, 100) * 3
    for temperature, k, p in [(0.7, 0, 1.0), (1.0, 5, 1.0), (1.3, 0, 0.8), (0.9, 20, 0.5), (2.0, 200, 0.999)]:
        expected = warpers.TemperatureLogitsWarper(temperature)(None, logits) if temperature != 1.0 else logits
        if k:
            expected = warpers.TopKLogitsWarper(k)(None, expected)
        if p < 1.0:
            expected = warpers.TopPLogitsWarper(p)(None, expected)
        options = GenerationOptions(temperature=temperature, top_k=k, top_p=p)
        assert torch.equal(warp(logits, options), expected)


def test_draws_follow_the_chances_and_never_take_what_was_removed() -> None:
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()[None]
    chooser = Chooser(GenerationOptions(temperature=1.0, top_k=3))
    counts = torch.bincount(
        torch.tensor([chooser.choose(logits, [number])[0] for number in range(4000)]), minlength=4
    ).tolist()
    assert counts[3] == 0
    for count, chance in zip(counts, (0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9), strict=False):
        assert abs(count / 4000 - chance) < 0.03


def test_a_drawn_text_depends_on_seed_and_prompt_number_and_not_on_the_batch(tmp_path: Path) -> None:
    _, ours = tiny("llama", tmp_path)
    options = GenerationOptions(max_new_tokens=8, temperature=1.0, top_p=0.95, seed=7)
    together = generate_ids(ours, PROMPTS, options)
    alone = [generate_ids(ours, [prompt], options, numbers=[i])[0] for i, prompt in enumerate(PROMPTS)]
    assert together == alone
    other = generate_ids(ours, PROMPTS, GenerationOptions(max_new_tokens=8, temperature=1.0, top_p=0.95, seed=8))
    assert other != together


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"temperature": 1e-40}, "temperature is 1e-40"),
        ({"top_p": 0.0, "temperature": 1.0}, "top_p is 0.0"),
        ({"top_k": 5}, "temperature 0 draws none"),
        ({"stop_strings": ("",)}, "empty stop string"),
    ],
)
def test_settings_that_mean_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GenerationOptions(**options)


def test_ids_the_model_does_not_have_and_logits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(GenerationError, match="text 7 holds the token id 61, the model knows 0 to 60"):
        refuse_unknown_ids([5, 61], 61, "text 7")
    with pytest.raises(GenerationError, match="prompt 4: the model's logits are not numbers"):
        Chooser(GenerationOptions()).choose(torch.tensor([[0.0, 1.0], [0.0, float("nan")]]), [3, 4])


class ByteTokenizer:
    """Each id is a byte."""

    def decode(self, ids: Any) -> str:
        return bytes(ids).decode(errors="replace")


def test_streamed_text_has_whole_characters_and_stops_before_a_stop_string() -> None:
    stream = TextStream(ByteTokenizer(), list("问".encode()), frozenset({0}), ["END", "终止"])
    pieces = [stream.push(token) for token in [0, *"答案是甲EN不终".encode()]]
    assert "".join(pieces) == "答案是甲EN不"
    assert all("\ufffd" not in piece for piece in pieces)
    assert not stream.stopped
    pieces += [stream.push(token) for token in "止后".encode()[:3]]
    assert stream.stopped
    assert "".join(pieces) + stream.finish() == stream.text == "答案是甲EN不"


def test_text_that_ends_inside_a_character_or_a_stop_string_is_given_at_the_end() -> None:
    stream = TextStream(ByteTokenizer(), [], frozenset(), ["XYZ"])
    pieces = [stream.push(token) for token in b"abXY" + "字".encode()[:2]]
    assert "".join(pieces) == "ab"
    assert stream.finish() == "XY\ufffd"
    assert stream.text == "abXY\ufffd"


@pytest.fixture(scope="module")
def stories(shared: Path) -> LoadedModel:
    return open_model(shared / "models" / "stories260K", precision="fp32")


def test_the_known_story_is_told_from_the_begin_token_alone(stories: LoadedModel) -> None:
    made = generate(stories, [text_prompt(stories, "").ids], GenerationOptions(max_new_tokens=100))
    assert made[0].prompt_tokens == 1
    assert made[0].text.startswith(STORY)


def test_texts_of_a_batch_stream_and_stop_at_strings(stories: LoadedModel) -> None:
    prompts = [text_prompt(stories, text, "always").ids for text in ("Once upon a time", "Once upon", "The dog")]
    seen: dict[int, str] = {}
    options = GenerationOptions(max_new_tokens=60, stop_strings=("Lily", "park."), batch_rows=2)
    made = generate(
        stories, prompts, options, on_text=lambda number, text: seen.update({number: seen.get(number, "") + text})
    )
    assert [seen[i] for i in range(3)] == [one.text for one in made]
    assert made[0].text == ", there was a little girl named " and made[0].reason == "stop-string"
    assert all("Lily" not in one.text for one in made)


def test_a_conversation_is_cut_where_the_trained_answer_begins(stories: LoadedModel, shared: Path) -> None:
    import mmdata

    model = LoadedModel(stories.decoder, stories.source, stories.device, "chatml")
    qwen = mmdata.load_tokenizer(shared / "tokenizers" / "qwen3")
    model.__dict__["tokenizer"] = qwen
    prompt = ChatPrompter(model).prompt([{"role": "user", "content": "hi <|im_end|>"}])
    assert qwen.decode(prompt.ids).endswith("<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\n")
    # The control token typed by the user is plain text; the template's own is the one token.
    assert prompt.ids.count(qwen.token_to_id("<|im_end|>")) == 1 + (prompt.ids[0] == qwen.token_to_id("<|im_start|>")
        and "system" in qwen.decode(prompt.ids[:3]))  # fmt: skip
    assert prompt.stop_ids == (qwen.token_to_id("<|im_end|>"),)
    with pytest.raises(GenerationError, match="ends with a message of the user"):
        ChatPrompter(model).prompt([{"role": "assistant", "content": "hello"}])


def test_the_command_answers_prompts_and_files_and_refuses_what_does_not_fit(shared: Path, tmp_path: Path) -> None:
    model = str(shared / "models" / "stories260K")
    run = CliRunner().invoke
    first = run(main, ["generate", model, "--prompt", "", "--max-new-tokens", "20"])
    assert first.exit_code == 0 and first.stdout.startswith("Once upon a time, there was")
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"id": "a", "prompt": "Once upon"}\n\n{"id": "b", "prompt": "Tom"}\n', encoding="utf-8")
    out = tmp_path / "answers.jsonl"
    command = ["generate", model, "--prompts", str(file), "-o", str(out), "--max-new-tokens", "5", "--bos", "always"]
    assert run(main, command).exit_code == 0
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n") if line]
    assert [line["id"] for line in lines] == ["a", "b"]
    assert lines[0]["prediction"].startswith(" a time") and lines[0]["ended"] == "length"
    again = run(main, command)
    assert again.exit_code == 1 and "exists" in again.stderr
    file.write_text('{"id": "a", "prompt": "Once"}\n\n{"prompt": "' + "Once upon " * 300 + '"}\n', encoding="utf-8")
    long = run(main, [*command, "--overwrite"])
    assert long.exit_code == 1 and f"{file}:3 has " in long.stderr and "the model takes 512" in long.stderr
    answered = [{"role": "user", "content": "x"}, *[{"role": "assistant", "content": "y"}] * 2]
    file.write_text(json.dumps({"messages": answered}) + "\n", encoding="utf-8")
    asked = run(main, [*command, "--overwrite", "--chat", "--chat-template", "chatml"])
    assert asked.exit_code == 1 and f"{file}:1: a conversation to be answered ends with" in asked.stderr
    other = str(shared / "tokenizers" / "qwen3")
    for arguments, words, code in [
        ([model], "give --prompt TEXT", 2),
        ([model, "--prompt", "internationalization", "--tokenizer", other], "the tokenizer is another model's", 1),
        ([model, "--prompt", "x", "--system", "y"], "add --chat", 2),
        ([model, "--prompt", "", "--bos", "never"], "leaves no token to start from; give a prompt, or leave out", 1),
        ([model, "--prompts", str(file), "-o", ""], "-o is empty; give the file", 2),
        ([str(tmp_path), "--prompt", "x"], "is no model: looked for config.json", 1),
        ([model, "--prompt", "x", "--chat"], "brings no chat template", 1),
        ([model, "--prompt", "x", "--adapter", str(tmp_path)], "holds no adapter_config.json", 1),
    ]:
        refused = run(main, ["generate", *arguments])
        assert words in refused.stderr and refused.exit_code == code, refused.output


@pytest.mark.parametrize("value", ["x", "2", [2, "3"], True, 2.0, -1, {"id": 2}])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_an_end_that_is_no_token_id_is_refused(value: Any, file: str, tmp_path: Path) -> None:
    facts = {"config.json": {"model_type": "llama", **SIZES}, "generation_config.json": {"eos_token_id": [2, 3]}}
    facts[file] = {**facts[file], "eos_token_id": value}
    for name, content in facts.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ModelError, match=rf"{file}: eos_token_id is .*; it must be a token id"):
        find_source(tmp_path)
    config, generation = facts["config.json"], facts["generation_config.json"]
    with pytest.raises(ModelError, match=rf"{file} of the source: eos_token_id is .*; it must be a token id"):
        generation_config(generation, config, [9])


def test_ends_of_both_files_are_taken_and_written() -> None:
    config = {"eos_token_id": 4, "bos_token_id": 1}
    assert generation_config({"eos_token_id": [2, 3]}, config, [9, 4])["eos_token_id"] == [2, 3, 4, 9]
    assert generation_config(None, {"eos_token_id": None}, []) == {"_from_model_config": True}


def test_the_command_talks_in_turns(shared: Path) -> None:
    model = str(shared / "models" / "stories260K")
    talk = CliRunner().invoke(
        main,
        ["generate", model, "--chat", "--chat-template", "plain", "--max-new-tokens", "8"],
        input="Hello\nMore\n\n",
    )
    assert talk.exit_code == 0, talk.output
    assert talk.stderr.count("> ") == 3
