"""`mmdata-train export`: options in, one call, what was written out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mmdata_train.export.sizes import parse_bytes
from mmdata_train.json_text import json_text


@click.command("export")
@click.argument("checkpoint", type=click.Path(exists=True, path_type=Path))
@click.option("--to", type=click.Choice(["hf", "peft", "merged"]), required=True, help="A model, an adapter, or both.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option("--dtype", default="auto", show_default=True, help="auto (the source's), fp32, bf16 or fp16.")
@click.option("--max-shard-size", default="5GB", show_default=True, help="Largest weights file, such as 500MB.")
@click.option("--base", help="The base model's folder, in place of the one training recorded.")
@click.option("--tokenizer", help="The tokenizer, in place of the one training recorded.")
@click.option(
    "--chat-template",
    default="auto",
    show_default=True,
    help="auto (training's), tokenizer, a built-in's name or a file.",
)
@click.option("--serve", type=click.Choice(["ollama"]), help="Add a Modelfile with the same template and stops.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier export in the output folder.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON on stdout.")
def export_command(checkpoint: Path, max_shard_size: str, as_json: bool, **options: Any) -> None:
    """Write a model from CHECKPOINT: a run's folder (its latest), a checkpoint of it, its checkpoints/best, or a PEFT
    adapter's folder.

    Any layout's checkpoint; one process; memory is bounded by the largest tensor.

    \b
    Example:
      mmdata-train export runs/finetune --to hf -o models/mine --dtype bf16
      mmdata-train export runs/lora/checkpoints/step_00000100 --to merged -o models/merged --serve ollama
    """
    from mmdata_train.export.command import export_checkpoint
    from mmdata_train.export.options import ExportOptions

    chosen = ExportOptions(**options, max_shard_bytes=parse_bytes(max_shard_size))
    result = export_checkpoint(checkpoint, chosen)
    for notice in result.notices:
        click.echo(f"notice: {notice}", err=True)
    click.echo(json_text(asdict(result)) if as_json else "\n".join(result.lines()))
