"""`mmdata-train data`: look at what a configuration trains on, before or after it did."""

from __future__ import annotations

from dataclasses import asdict

import click

from mmdata_train.config import load_config
from mmdata_train.json_text import json_text


@click.command("data")
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a value of the configuration.")
@click.option("--steps", default=1, show_default=True, help="How many first steps to show.")
@click.option("--rank", default=0, show_default=True, help="Which rank's batches to show.")
@click.option("--world-size", type=int, help="Ranks of the run (default: as few as the configuration allows).")
@click.option("--decode", is_flag=True, help="Show text; targets that count stand within « ».")
@click.option("--trace", type=int, metavar="STEP", help="Instead, list the documents of a step, with file and line.")
@click.option("--json", "as_json", is_flag=True, help="With --trace: print JSON.")
def data_command(
    config: str,
    overrides: tuple[str, ...],
    steps: int,
    rank: int,
    world_size: int | None,
    decode: bool,
    trace: int | None,
    as_json: bool,
) -> None:
    """Show the batches of a run, or the documents of one of its steps.

    \b
    Example:
      mmdata-train data finetune.yaml --steps 3 --decode
      mmdata-train data finetune.yaml --trace 1200
    """
    from mmdata_train.data.show import batch_lines, open_run, open_tokenizer, share_lines, trace_lines, trace_step

    settings = load_config(config, overrides)
    run = open_run(settings, world_size, as_run=trace is not None)
    if trace is not None and as_json:
        click.echo(json_text([asdict(sample) for sample in trace_step(run, trace)]))
        return
    if trace is None:
        for line in share_lines(run.data):
            click.echo(line, err=True)
    decoder = open_tokenizer(settings) if decode and trace is None else None
    for line in trace_lines(run, trace) if trace is not None else batch_lines(run, rank, steps, decoder):
        click.echo(line)
