"""The `mmdata` command: each body parses, calls one library function, and prints.

Commands load when they are used, so `mmdata --help` needs neither numpy nor numba.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import Any

import click
from click.core import ParameterSource

from mmdata.errors import MMDataError, UsageError
from mmdata.run.cli import emit, notice, output_options, run_options

# command -> (module, attribute, help in one line). A test holds the lines equal to the commands' own.
COMMANDS = {
    "clean": ("mmdata.clean.cli", "clean_command", "Repair bad text, drop meaningless text, mask personal data."),
    "decontaminate": (
        "mmdata.dedup.cli", "decontaminate_command", "Drop training records that contain evaluation text."
    ),
    "dedup": ("mmdata.dedup.cli", "dedup_command", "Drop records that duplicate a kept one, by exact similarity."),
    "recipe": ("mmdata.clean.cli", "recipe_group", "Show or check cleaning recipes."),
    "report": ("mmdata.report.cli", "report", "Draw a run's report as one page that works offline."),
    "sample": (
        "mmdata.dedup.cli", "sample_command", "Draw a stratified test set and keep its near-duplicates out of the rest."
    ),
    "adopt": ("mmdata.indexed.cli", "adopt", "Verify a shard made elsewhere and write its manifest."),
    "convert": ("mmdata.cli", "convert", "Turn files of records into verified Megatron shards."),
    "inspect": ("mmdata.indexed.cli", "inspect", "Look into a shard: counts and lengths, a document and its text,..."),
    "merge": ("mmdata.indexed.cli", "merge", "Join shards into one, in the order given, with their sidecars and..."),
    "split": ("mmdata.indexed.cli", "split", "Cut a shard by shares or by size; documents stay whole."),
    "tokenize": ("mmdata.cli", "tokenize", "Only tokenize: convert without cleaning and deduplication."),
    "verify": ("mmdata.indexed.cli", "verify", "Check shards and their sidecars; exit code 1 when anything is wrong."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every name, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Name and one line of each, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in sorted(COMMANDS)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="mmdata")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
@click.pass_context
def group(ctx: click.Context, debug: bool) -> None:
    """Turn raw text into clean, deduplicated, tokenized Megatron shards.

    Example: mmdata convert corpus/ -o out/corpus --tokenizer tokenizers/qwen3
    """
    ctx.ensure_object(dict)["debug"] = debug
    # Stages do not know each other: who reads conversations is told to those that only compare or clean their texts.
    ctx.meta["mmdata.record_parser"] = record_parser


def record_parser(format: str) -> Any:
    """The parser of chat records of a format, for `mmdata.records.parse_block`."""
    from mmdata.chat.formats import chat_parser

    return chat_parser(format)


def tokenizer_options(command: Any) -> Any:
    """Adds what decides token ids, documents and shards: shared by `convert` and `tokenize`."""
    for option in reversed((
        click.option("-o", "--output-prefix", required=True, metavar="P", help="Shards are named P_text_document, ..."),
        click.option("--tokenizer", required=True, metavar="T", help="tokenizer.json, folder, .model, or NAME:RANKS."),
        click.option("--special-tokens", metavar="FILE", help="Special tokens of a bare tiktoken rank file."),
        click.option("--json-keys", default="text", show_default=True, help="Keys to encode, separated by commas."),
        click.option("--append-eod/--no-append-eod", default=True, show_default=True, help="End every document."),
        click.option("--eod-token", metavar="S", help="The token that ends a document; found by itself if absent."),
        click.option("--allow-special", is_flag=True, help="Special-token text in documents becomes the token."),
        click.option("--encoding", default="utf-8", show_default=True, help="utf-8, gb18030 or utf-16."),
        click.option("--txt-document", default="file", show_default=True, help="file, line or blank-line."),
        click.option("--split", metavar="969,30,1", help="Shares of train,valid,test."),
        click.option("--split-by", default="hash", show_default=True, help="hash or order."),
        click.option("--seed", type=int, default=1234, show_default=True, help="Seed of the split."),
        click.option("--max-tokens-per-shard", type=int, metavar="N", help="Begin a new shard after N tokens."),
        click.option("--dtype", default="auto", show_default=True, help="auto, uint16 or int32."),
        click.option("--on-error", default="skip", show_default=True, help="skip or fail at a bad record."),
        click.option("--max-rejects", metavar="N|N%", help="Most rejected records before the run fails."),
        click.option("--dry-run", is_flag=True, help="Check everything and say what would be done."),
    )):
        command = option(command)
    return command


def cleaning_options(command: Any) -> Any:
    """Adds what `convert` does to documents before they are tokenized."""
    for option in reversed((
        click.option("--recipe", default="auto", show_default=True, help="auto, zh, en, none, ... or a file."),
        click.option("--pii", metavar="ACTION", help="off, count, replace or hash; default: what the recipe says."),
        click.option("--pii-key", metavar="KEY", envvar="MMDATA_PII_KEY", help="For --pii hash; or MMDATA_PII_KEY."),
        click.option("--dedup", default="minhash", show_default=True, help="none, exact or minhash."),
        click.option("--dedup-threshold", type=float, default=0.8, show_default=True, help="Jaccard similarity."),
        click.option("--dedup-index", metavar="DIR", help="Deduplicate against earlier runs, and remember this one."),
        click.option("--memory", default="256M", show_default=True, help="Memory for sorting."),
    )):
        command = option(command)
    return command


def chat_options(command: Any) -> Any:
    """Adds what `convert` does with instruction and chat records."""
    for option in reversed((
        click.option("--format", default="auto", show_default=True, help="auto, text, alpaca, sharegpt, messages, ..."),
        click.option("--map", multiple=True, metavar="FIELD=ROLE", help="Names of other fields, such as q=user."),
        click.option("--chat-template", default="auto", show_default=True, help="auto, a built-in's name or a file."),
        click.option("--train-on", default="assistant", show_default=True, help="assistant, last or all."),
        click.option("--thinking", default="keep", show_default=True, help="keep, strip or empty."),
        click.option("--count-empty-thinking", is_flag=True, help="An empty thinking block counts in the loss."),
        click.option("--turn-order", default="reject", show_default=True, help="Roles out of order: reject or repair."),
        click.option("--chat-date", metavar="DATE", help="What templates that ask for the date are told."),
        click.option("--max-length", type=int, metavar="N", help="Most tokens of a conversation."),
        click.option("--too-long", default="error", show_default=True, help="drop, truncate-left, split-turns, ..."),
        click.option("--sft-layout", default="spans", show_default=True, help="spans or pai."),
    )):
        command = option(command)
    return command


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@cleaning_options
@chat_options
@tokenizer_options
@run_options
@output_options
def convert(inputs: tuple[str, ...], as_json: bool, quiet: bool, **options: Any) -> None:
    """Turn files of records into verified Megatron shards.

    INPUT: .jsonl .json .txt (.gz, .zst), .parquet, folders, patterns, or - for standard input.

    Example: mmdata convert corpus/ more.jsonl.gz -o out/corpus --tokenizer tokenizers/qwen3
    """
    from mmdata.terminal import convert_at_terminal

    source = click.get_current_context().get_parameter_source("pii_key")
    if source is ParameterSource.ENVIRONMENT and options["pii"] != "hash" and not os.path.exists(options["recipe"]):
        options["pii_key"] = None  # set for other runs; no built-in recipe hashes
    data, lines = convert_at_terminal(inputs, options, quiet, notice(quiet))
    emit(data, as_json, lines)


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@tokenizer_options
@run_options
@output_options
def tokenize(inputs: tuple[str, ...], as_json: bool, quiet: bool, **options: Any) -> None:
    """Only tokenize: convert without cleaning and deduplication.

    Example: mmdata tokenize clean.jsonl -o out/corpus --tokenizer tokenizers/qwen3
    """
    from mmdata.terminal import convert_at_terminal

    bare = {"recipe": "none", "dedup": "none", "format": "text"}
    data, lines = convert_at_terminal(inputs, options | bare, quiet, notice(quiet))
    emit(data, as_json, lines)


def main() -> None:
    """Run the command line: exit code 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    chosen = {"debug": False}
    try:
        code = group.main(standalone_mode=False, obj=chosen)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("mmdata: interrupted; started again, an unfinished conversion goes on where it stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MMDataError as error:
        if chosen["debug"]:
            raise
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        click.echo(f"mmdata: {error}{notes}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except OSError as error:  # of the system, such as a full disk behind standard output
        if chosen["debug"]:
            raise
        click.echo(f"mmdata: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", err=True)
        sys.exit(1)
    finally:
        gc.freeze()  # leaving looks for cycles twice: .4 s among the objects of a vocabulary
