"""`mmdata-train generate`: try a model, at a prompt, in a chat, or over a file of prompts."""

from __future__ import annotations

from typing import Any

import click


def model_options(command: Any) -> Any:
    """Adds what model a command opens."""
    for option in reversed(
        (
            click.option("--adapter", type=click.Path(), help="A PEFT folder to put on top of MODEL."),
            click.option("--tokenizer", help="Tokenizer, where MODEL's own is not to be used."),
            click.option("--chat-template", help="auto, a built-in's name or a file (default: the run's, else auto)."),
            click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]), help="bf16 on a GPU, else fp32."),
        )
    ):
        command = option(command)
    return command


def sampling_options(command: Any) -> Any:
    """Adds how texts are continued."""
    for option in reversed(
        (
            click.option("--max-new-tokens", default=256, show_default=True, help="New tokens at most."),
            click.option("--temperature", default=0.0, show_default=True, help="0: always the likeliest token."),
            click.option("--top-k", default=0, show_default=True, help="Draw among the k likeliest; 0 for all."),
            click.option("--top-p", default=1.0, show_default=True, help="Draw among the likeliest that make up p."),
            click.option("--seed", default=1234, show_default=True, help="Of the draws."),
            click.option("--stop", "stop_strings", multiple=True, help="Text that ends the answer; may be repeated."),
            click.option("--batch-rows", default=16, show_default=True, help="Prompts at once."),
        )
    ):
        command = option(command)
    return command


@click.command("generate")
@click.argument("model", type=click.Path())
@click.option("--prompt", "prompts", multiple=True, help="Text to go on with; may be repeated.")
@click.option("--prompts", "file", type=click.Path(), help="JSON lines of prompts or conversations.")
@click.option("--chat", is_flag=True, help="Use the chat template; without a prompt, talk at the terminal.")
@click.option("--system", help="The system message of --chat.")
@click.option("--thinking/--no-thinking", default=True, help="Whether a reasoning model's template lets it think.")
@click.option("--bos", "begin", type=click.Choice(["auto", "always", "never"]), default="auto", help="Begin token.")
@click.option("-o", "--output", type=click.Path(), help="With --prompts: JSON lines with `prediction` added.")
@click.option("--overwrite", is_flag=True, help="Write over OUTPUT.")
@model_options
@sampling_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON result on stdout.")
def generate_command(model: str, **options: Any) -> None:
    """Continue prompts with MODEL: a Hugging Face folder, a run or checkpoint, or a PEFT folder.

    \b
    Example:
      mmdata-train generate runs/finetune --chat
      mmdata-train generate models/base --adapter out/peft --prompt "Once upon a time" --temperature 0.8
      mmdata-train generate models/base --prompts test.jsonl -o answers.jsonl --chat
    """
    from mmdata_train.generation.terminal import Request, run

    run(Request(model=model, **options))
