"""What `mmdata-train generate` does with its options: prompts in, text streaming out, files, a talk at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mmdata.errors import UsageError
from mmdata.reading.writer import JsonlWriter
from mmdata_train.generation.generate import Completion, generate
from mmdata_train.generation.items import Item, read_items
from mmdata_train.generation.model import LoadedModel, facts_line, open_model
from mmdata_train.generation.prompts import Begin, ChatPrompter, Prompt, named_by, text_prompt
from mmdata_train.generation.sampling import GenerationOptions
from mmdata_train.json_text import json_text
from mmdata_train.precision import Precision

_ASK = "> "


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The command's options, as they were given."""

    model: str
    prompts: tuple[str, ...] = ()
    file: str | None = None
    chat: bool = False
    system: str | None = None
    thinking: bool = True
    begin: Begin = "auto"
    output: str | None = None
    overwrite: bool = False
    adapter: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    precision: Precision | None = None
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1234
    stop_strings: tuple[str, ...] = ()
    batch_rows: int = 16
    as_json: bool = False

    def sampling(self) -> GenerationOptions:
        """The options of generation; raises ConfigError."""
        names = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop_strings", "batch_rows")
        return GenerationOptions(**{name: getattr(self, name) for name in names})

    def check(self) -> None:
        """Raises UsageError for options that do not go together."""
        if self.file is not None and self.prompts:
            raise UsageError("--prompt and --prompts are both given; put all prompts into one of them")
        if self.file is not None and self.output is None and not self.as_json:
            raise UsageError("--prompts needs -o OUTPUT for its answers, or --json")
        if self.output == "":
            raise UsageError("-o is empty; give the file of the answers, such as answers.jsonl")
        if self.file is None and self.output is not None:
            raise UsageError("-o takes the answers to a file of --prompts; a --prompt is answered on stdout")
        if not (self.prompts or self.file or self.chat):
            raise UsageError("nothing to generate from: give --prompt TEXT, --prompts FILE or --chat")
        if self.system is not None and not self.chat:
            raise UsageError("--system is a message of a conversation; add --chat")


def run(request: Request) -> None:
    """Do what the request says; answers go to stdout or its output."""
    request.check()
    options = request.sampling()
    items = None if request.file is None else read_items(request.file)
    with ExitStack() as stack:
        # Before any work: a name that cannot be written must not cost an hour of answers.
        writer = None
        if request.output is not None:
            writer = stack.enter_context(JsonlWriter(request.output, overwrite=request.overwrite))
        _answer(request, options, items, writer)


def _answer(request: Request, options: GenerationOptions, items: list[Item] | None, writer: JsonlWriter | None) -> None:
    model = open_model(
        request.model, request.adapter, precision=request.precision, tokenizer=request.tokenizer,
        chat_template=request.chat_template,
    )  # fmt: skip
    if items is None and not request.prompts:
        return talk(model, request, options)
    prompter = ChatPrompter(model, thinking=request.thinking) if request.chat else None
    if items is None:
        items = [_typed(number, text) for number, text in enumerate(request.prompts)]
    prompts = [prompt_of(model, item, prompter, request) for item in items]
    stream = sys.stdout if len(items) == 1 and request.output is None and not request.as_json else None
    made = complete(model, prompts, options, stream, names=[item.place for item in items])
    if writer is not None:
        for item, completion in zip(items, made, strict=True):
            writer.write({**item.record, "id": item.id, "prediction": completion.text, "ended": completion.reason})
    elif request.as_json:
        results = [{"id": i.id, "prompt": i.prompt, **asdict(c)} for i, c in zip(items, made, strict=True)]
        text = json_text({**facts_line(model), "options": asdict(options), "results": results})
        sys.stdout.write(f"{text}\n")
    elif stream is None:
        for completion in made:
            sys.stdout.write(completion.text + "\n")


def _typed(number: int, text: str) -> Item:
    return Item("--prompt", number + 1, str(number), ({"role": "user", "content": text},), ())


def prompt_of(model: LoadedModel, item: Item, prompter: ChatPrompter | None, request: Request) -> Prompt:
    """An item as ids: in the chat template, or its text. Raises GenerationError naming its file and line."""
    with named_by(item):
        return _prompt_of(model, item, prompter, request)


def _prompt_of(model: LoadedModel, item: Item, prompter: ChatPrompter | None, request: Request) -> Prompt:
    if prompter is None:
        return text_prompt(model, item.prompt, request.begin)
    messages = list(item.messages)
    if request.system is not None and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": request.system}, *messages]
    return prompter.prompt([dict(message) for message in messages])


def complete(
    model: LoadedModel,
    prompts: Sequence[Prompt],
    options: GenerationOptions,
    stream: Any = None,
    *,
    names: Sequence[str] | None = None,
) -> list[Completion]:
    """Answers to prompts; with a stream, the text is written there as it comes. names: of the prompts in messages."""
    ends = {stop for prompt in prompts for stop in prompt.stop_ids}
    options = replace(options, stop_ids=tuple(sorted(ends | set(options.stop_ids))))

    def show(number: int, text: str) -> None:
        stream.write(text)
        stream.flush()

    told = show if stream is not None else None
    made = generate(model, [prompt.ids for prompt in prompts], options, names=names, on_text=told)
    if stream is not None:
        stream.write("\n")
    return made


def talk(model: LoadedModel, request: Request, options: GenerationOptions) -> None:
    """Ask and answer at the terminal until the input ends; the conversation grows."""
    prompter = ChatPrompter(model, thinking=request.thinking)
    messages: list[dict[str, Any]] = []
    if request.system is not None:
        messages.append({"role": "system", "content": request.system})
    name = Path(request.model).name
    sys.stderr.write(f"talking to {name}; an empty line or the end of the input ends it\n")
    while True:
        sys.stderr.write(_ASK)
        sys.stderr.flush()
        question = sys.stdin.readline().strip()
        if not question:
            return
        messages.append({"role": "user", "content": question})
        answer = complete(model, [prompter.prompt(messages)], options, sys.stdout)[0]
        if answer.text:
            messages.append({"role": "assistant", "content": answer.text})
        else:
            messages.pop()
            sys.stderr.write("(the model ended at once; the question is forgotten)\n")
