"""The tokenizer of an export: its files byte for byte, the chat template of training, the tokens that end a turn.

The template that training rendered with stands in the shards' manifests. Where it is not the tokenizer's own, the
export says so, holds the template of training as `chat_template.jinja`, which transformers prefers, and the difference
as `chat_template.diff`.
"""

from __future__ import annotations

import difflib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

import mmdata
from mmdata.chat.sandbox import ChatEnvironment
from mmdata.chat.templates import BUILT_IN, load_template, template_variables
from mmdata.errors import ChatError, TokenizerNotFoundError
from mmdata_train.errors import ExportError

TEMPLATE = "chat_template.jinja"
SETTINGS = "tokenizer_config.json"
DIFFERENCE = "chat_template.diff"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja",
    "chat_template.json", "vocab.jsonl", "tekken.json",
)  # fmt: skip
PATTERNS = ("*.tiktoken", "additional_chat_templates/*.jinja")
_PROBE = [{"role": "user", "content": "What ends a turn?"}, {"role": "assistant", "content": "A token does."}]


@dataclass(slots=True)
class ChatFiles:
    """What was written. copied: names. template: the text the model is to be used with. end_of_turn: ids and their
    text. stops: texts that end an answer. notices: what the user is to read.
    """

    tokenizer: Any = None
    copied: list[str] = field(default_factory=list)
    template: str | None = None
    differs: bool = False
    end_of_turn: dict[int, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def tokenizer_files(path: Path) -> list[Path]:
    """The files of a tokenizer: the known ones of its folder, or the one file given."""
    if path.is_file():
        # A tokenizer.json alone is used with what stands beside it, as training did.
        return tokenizer_files(path.parent) if path.name == "tokenizer.json" else [path]
    found = [path / name for name in TOKENIZER_FILES if (path / name).is_file()]
    return found + [match for pattern in PATTERNS for match in sorted(path.glob(pattern))]


def write_tokenizer(
    folder: Path, where: str | None, fingerprint: str | None, templates: Sequence[str], choice: str
) -> ChatFiles:
    """Copy the tokenizer's files and settle the template.

    where: the tokenizer's path. fingerprint: of the one training used. templates: those of the training shards.
    choice: `auto`, `tokenizer` (its own, whatever training used), a built-in's name or a file. Raises ExportError where
    the tokenizer is another one now or shards disagree on the template, ChatTemplateError for a choice that is none,
    TokenizerError.
    """
    made = ChatFiles()
    if where is None:
        made.notices.append("no tokenizer is known, so none was written; give it with --tokenizer")
    else:
        _copy(folder, where, fingerprint, made)
    trained = _choose(templates, choice, made.tokenizer)
    own = None if made.tokenizer is None else _own_template(made.tokenizer)
    made.template = own if trained is None else trained
    if trained is not None and trained != own:
        _write_template(folder, own, trained, made)
    if trained is not None and made.tokenizer is not None:
        _refuse_joined(trained, template_variables(made.tokenizer))
        _find_end_of_turn(folder, trained, made)
    return made


def _copy(folder: Path, where: str, fingerprint: str | None, made: ChatFiles) -> None:
    path = Path(where)
    try:
        tokenizer = mmdata.load_tokenizer(where, engine="huggingface")
    except TokenizerNotFoundError:
        if fingerprint is not None:
            raise
        made.notices.append(f"{where} holds no tokenizer, so none was written; give it with --tokenizer")
        return
    if fingerprint is not None and tokenizer.fingerprint != fingerprint:
        raise ExportError(
            f"the tokenizer at {where} has the fingerprint {tokenizer.fingerprint}, but training used {fingerprint};"
            " give that one with --tokenizer"
        )
    made.tokenizer = tokenizer
    if not path.exists():
        made.notices.append(f"{where} is a tiktoken rank file, which transformers does not load; it was not copied")
        return
    home = path if path.is_dir() else path.parent
    for file in tokenizer_files(path):
        target = folder / file.relative_to(home)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
        made.copied.append(str(target.relative_to(folder)))


def describe_tokenizer(folder: Path, made: ChatFiles) -> None:
    """Write a small tokenizer_config.json beside a tokenizer.json that stands alone.

    peft's AutoPeftModel makes room for new rows only where it finds that file. It names the begin and end tokens that
    are used without it, so that nothing else changes.
    """
    settings = folder / SETTINGS
    if made.tokenizer is None or settings.is_file() or not (folder / "tokenizer.json").is_file():
        return
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    text = json.dumps({**named, **template_variables(made.tokenizer)}, indent=2, ensure_ascii=False)
    settings.write_text(text + "\n", encoding="utf-8")
    made.notices.append(f"the tokenizer has no {SETTINGS}; a small one was written, so that the new tokens' rows load")


def _choose(templates: Sequence[str], choice: str, tokenizer: Any) -> str | None:
    """The template the export is used with, None for the tokenizer's own."""
    if choice == "tokenizer":
        return None
    if choice != "auto" and tokenizer is not None:
        return load_template(choice, tokenizer).source
    if choice in BUILT_IN:
        return files("mmdata.chat").joinpath("templates", f"{BUILT_IN[choice]}.jinja").read_text(encoding="utf-8")
    if choice != "auto":
        try:
            return Path(choice).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ExportError(
                f"--chat-template {choice} cannot be read: {error}; give auto, tokenizer, a file, or a built-in's name:"
                f" {', '.join(BUILT_IN)}"
            ) from None
    if len(templates) > 1:
        starts = "; ".join(repr(template[:60]) for template in templates)
        raise ExportError(
            f"the training shards were rendered with {len(templates)} chat templates ({starts}); give the one to use"
            " with --chat-template FILE, or --chat-template tokenizer for the tokenizer's own"
        )
    return templates[0] if templates else None


def _own_template(tokenizer: Any) -> str | None:
    try:
        return load_template("auto", tokenizer).source
    except ChatError:
        return None


def _write_template(folder: Path, own: str | None, trained: str, made: ChatFiles) -> None:
    made.differs = True
    (folder / TEMPLATE).write_text(trained, encoding="utf-8", newline="")
    if own is None:
        made.notices.append(f"the tokenizer has no chat template of its own; {TEMPLATE} holds that of training")
        return
    lines = list(
        difflib.unified_diff(
            own.split("\n"),
            trained.split("\n"),
            "the tokenizer's own template",
            "the template of training",
            lineterm="",
        )
    )
    (folder / DIFFERENCE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    changed = [line for line in lines[2:] if line[:1] in "+-"]
    shown = "\n".join(f"  {line}" for line in changed[:12])
    more = f"\n  ... and {len(changed) - 12} more lines" if len(changed) > 12 else ""
    made.notices.append(
        f"the chat template of training is not the tokenizer's own: {TEMPLATE} holds that of training, {DIFFERENCE}"
        f" the difference:\n{shown}{more}"
    )


def _refuse_joined(template: str, variables: Mapping[str, str]) -> None:
    """A merge of shards with several templates joins them in its manifest: such a text writes each message twice."""
    try:
        text = ChatEnvironment().from_string(template).render(messages=_PROBE, **variables)
    except (TemplateError, ChatError):
        return  # what is wrong with it is said where the end of a turn is looked for
    if text.count(_PROBE[0]["content"]) > 1:
        raise ExportError(
            "the training shards were merged from shards with several chat templates; give the one to use with"
            " --chat-template FILE, or --chat-template tokenizer for the tokenizer's own"
        )


def _find_end_of_turn(folder: Path, template: str, made: ChatFiles) -> None:
    """The special token that closes a counted answer, found by rendering one with the very code of training."""
    path = folder / f"{TEMPLATE}.probe"
    path.write_text(template, encoding="utf-8", newline="")
    try:
        tokens, spans = mmdata.render_chat(_PROBE, made.tokenizer, str(path))
    except ChatError as error:
        made.notices.append(f"the tokens that end a turn could not be found, the source's stay: {error}")
        return
    finally:
        path.unlink()
    special = {token.id: token.content for token in made.tokenizer.special_tokens if token.special}
    last = int(tokens[int(spans[-1][1]) - 1]) if len(spans) else -1
    if last in special:
        made.end_of_turn = {last: special[last]}
    else:
        made.notices.append("the template ends an answer with no special token; generation stops at the source's alone")
