"""The `mmdata-train` command: options in, one library call each, errors as one line."""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import asdict
from typing import Any

import click

from mmdata.errors import MMDataError
from mmdata_train.compare.cli import compare_command
from mmdata_train.config import load_config
from mmdata_train.console import shown_logging
from mmdata_train.data.cli import data_command
from mmdata_train.errors import exit_code_of
from mmdata_train.evaluate.cli import evaluate_command
from mmdata_train.export.cli import export_command
from mmdata_train.foreign_text import useful_part
from mmdata_train.generation.cli import generate_command
from mmdata_train.json_text import json_text

NO_PARITY = "parallel.parity_check=false"


_FULL = "free disk space, or choose another disk"
_DENIED = "choose a folder that this user may write to (output.dir), or change its rights"
REMEDIES = {
    errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EACCES: _DENIED, errno.EPERM: _DENIED, errno.EROFS: _DENIED, errno.EIO: "look at the disk's health",
    errno.ENAMETOOLONG: "choose a shorter path", errno.ELOOP: "look at the links in the path",
    errno.EISDIR: "give a file", errno.ENOTDIR: "a file stands where a folder should be; give another path",
    errno.EMFILE: "raise the limit of open files (ulimit -n)", errno.ENFILE: "too many files are open on this machine",
    errno.ESTALE: "the network file system lost the file; mount it again",
}  # fmt: skip
"""What to do about the file system's refusals; other OSErrors are taken for mistakes of ours."""


class _Group(click.Group):
    """Turns the package's errors, and refusals of the file system, into one line and an exit code: 2 for wrong usage, 1
    for the rest.
    """

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except MMDataError as error:
            if ctx.params.get("debug"):
                raise
            sys.exit(_told(str(error), exit_code_of(error)))
        except OSError as error:
            if ctx.params.get("debug") or error.errno not in REMEDIES:
                raise
            sys.exit(_told(f"{useful_part(error)}; {REMEDIES[error.errno]}", 1))


def _told(text: str, code: int) -> int:
    rank = os.environ.get("RANK")
    click.echo(f"error: {f'rank {rank}: ' if rank else ''}{text}", err=True)
    return code


@click.group(cls=_Group)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Fine-tune language models on Megatron shards in any parallel layout.

    \b
    Example:
      mmdata-train finetune finetune.yaml --set parallel.tensor=2
      torchrun --nnodes 2 --nproc-per-node 8 ... -m mmdata_train finetune finetune.yaml
    """


@main.command()
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a value of the configuration.")
@click.option("--no-parity", is_flag=True, help="Leave out the comparison of a new layout with one process.")
@click.option("--allow-random", is_flag=True, help="Go on though a loaded model's first loss is that of guessing.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON on stdout.")
def finetune(config: str, overrides: tuple[str, ...], no_parity: bool, allow_random: bool, as_json: bool) -> None:
    """Train as CONFIG says; a run found in its output folder is continued.

    Started plainly, it starts its own ranks on this machine; under torchrun it is one rank.

    \b
    Example:
      mmdata-train finetune finetune.yaml --set train.lr=1e-4 --set parallel.pipeline=2
    """
    from mmdata_train import ranks, run

    flags = ([NO_PARITY] if no_parity else []) + (["train.allow_random=true"] if allow_random else [])
    settings = load_config(config, [*overrides, *flags])
    click.get_current_context().with_resource(shown_logging())
    count = ranks.ranks_here(settings)
    if count > 1 and not ranks.under_launcher():
        run.check_before_ranks(settings, count)
        return ranks.start_ranks(count, sys.argv[1:])
    summary = run.finetune(settings)
    if as_json and os.environ.get("RANK", "0") == "0":
        click.echo(json_text(asdict(summary)))


@main.command()
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a value of the configuration.")
@click.option("--world-size", type=int, help="Ranks of the run (default: those it would start on this machine).")
@click.option("--no-parity", is_flag=True, help="Leave out the comparison of the layout with one process.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout when all is well.")
def check(config: str, overrides: tuple[str, ...], world_size: int | None, no_parity: bool, as_json: bool) -> None:
    """Look at sizes, shards, tokenizer, first batch, disk and layout of a run without starting it.

    The layout is compared with one process on ranks of this machine, by a small model like the run's: 10 to 60 seconds
    the first time.

    \b
    Example:
      mmdata-train check finetune.yaml --world-size 64
    """
    from mmdata_train.check import check_lines
    from mmdata_train.ranks import ranks_here

    settings = load_config(config, [*overrides, *([NO_PARITY] if no_parity else [])])
    lines = check_lines(settings, world_size or ranks_here(settings))
    if as_json:
        return click.echo(json.dumps({"report": list(lines)}, ensure_ascii=False))
    for line in lines:
        click.echo(line)


@main.command()
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a value of the configuration.")
@click.option("--nodes", default=1, show_default=True, help="Machines.")
@click.option("--gpus-per-node", default=8, show_default=True, help="GPUs of each machine, a rank each.")
@click.option("--time", default="24:00:00", show_default=True, help="The job's limit, as sbatch takes it.")
@click.option("--name", help="Name of the job (default: of the output folder).")
@click.option("--partition", help="Partition to run in.")
@click.option("--account", help="Account to charge.")
@click.option("--cpus-per-task", type=int, help="Cores of each machine for the run.")
@click.option("--memory", help="Host memory of each machine, such as 500G.")
@click.option("--grace", default=600, show_default=True, help="Seconds before the limit at which the run saves.")
@click.option("--requeue/--no-requeue", default=True, show_default=True, help="Queue again after saving at the limit.")
@click.option("--setup", multiple=True, metavar="LINE", help="Shell line before training, such as 'module load cuda'.")
@click.option("--sbatch", "options", multiple=True, metavar="OPTION", help="A further option, such as --qos=high.")
@click.option("--json", "as_json", is_flag=True, help='Print {"script": ...} as JSON.')
def slurm(config: str, overrides: tuple[str, ...], as_json: bool, **job: Any) -> None:
    """Print the sbatch script that trains as CONFIG says on several machines.

    Before the limit it saves and queues itself again; the same command goes on from there.

    \b
    Example:
      mmdata-train slurm finetune.yaml --nodes 4 --time 12:00:00 --setup "source .venv/bin/activate" > law.sbatch
    """
    from mmdata_train.config_checks import check_run
    from mmdata_train.session import model_config
    from mmdata_train.slurm import SlurmJob, slurm_script

    settings, wanted = load_config(config, overrides), SlurmJob(**job)
    check_run(model_config(settings), settings.parallel, settings.train, settings.data.seq_length, wanted.world_size)
    script = slurm_script(config, settings, overrides, wanted)
    click.echo(json.dumps({"script": script}) if as_json else script, nl=as_json)


main.add_command(data_command)
main.add_command(export_command)
main.add_command(compare_command)
main.add_command(evaluate_command)
main.add_command(generate_command)
