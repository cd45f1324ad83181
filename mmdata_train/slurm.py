"""The sbatch script of a run on several machines: one torchrun a machine, and requeueing that loses no step.

Slurm tells the script some time before the job's limit, or when it is preempted; the script then makes the file `stop`
in the run's output folder, training saves after the step at hand and ends, and the job is queued again, where the same
command goes on. A signal to torchrun itself would leave its ranks 30 seconds. Nothing here needs Slurm or torch.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmdata_train.config import TrainConfig
from mmdata_train.errors import ConfigError
from mmdata_train.watch import STOP_FILE

_TIME = re.compile(r"(\d+-\d+(:\d+){0,2}|\d+(:\d+){0,2})")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmJob:
    """What Slurm is asked for. time: as sbatch takes it (`24:00:00`, `2-12`). grace: seconds before the limit at which
    the run is told to save. setup: shell lines before training. options: further `#SBATCH` options, as `--qos=high`.
    """

    nodes: int = 1
    gpus_per_node: int = 8
    time: str = "24:00:00"
    name: str | None = None
    partition: str | None = None
    account: str | None = None
    cpus_per_task: int | None = None
    memory: str | None = None
    grace: int = 600
    requeue: bool = True
    setup: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node", "grace"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least 1")
        if self.grace > 65535:
            raise ConfigError(f"--grace is {self.grace}; Slurm takes at most 65535 seconds")
        if _TIME.fullmatch(self.time) is None:
            raise ConfigError(f"--time {self.time!r} is no time of Slurm's; write 24:00:00, 90 (minutes) or 2-12:00:00")
        for field in ("name", "partition", "account", "memory"):
            if "\n" in (getattr(self, field) or ""):
                raise ConfigError(f"--{field} {getattr(self, field)!r} has several lines; give one")
        for option in self.options:
            if not option.startswith("-") or "\n" in option:
                raise ConfigError(f"--sbatch {option!r} is no option of sbatch; write it as --sbatch=--qos=high")

    @property
    def world_size(self) -> int:
        """Ranks of the run: one a GPU."""
        return self.nodes * self.gpus_per_node


def slurm_script(config_path: str, config: TrainConfig, overrides: Sequence[str], job: SlurmJob) -> str:
    """The text for `sbatch`. The sizes of `config` are the caller's to check against `job.world_size`."""
    out = Path(config.output.dir)
    name = job.name or out.name or "finetune"
    wishes = {
        "job-name": name,
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": job.gpus_per_node,
        "cpus-per-task": job.cpus_per_task,
        "mem": job.memory,
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
        "signal": f"B:TERM@{job.grace}",
        "open-mode": "append",
        # sbatch reads % in file names as a pattern, and quotes as a shell does.
        "output": f"{str(out).replace('%', '%%')}/slurm-%j.out",
    }
    head = [f"#SBATCH --{key}={shlex.quote(str(value))}" for key, value in wishes.items() if value is not None]
    head.append("#SBATCH --requeue" if job.requeue else "#SBATCH --no-requeue")
    head += [f"#SBATCH {option}" for option in job.options]
    sets = "".join(f" --set {shlex.quote(override)}" for override in overrides)
    return _SCRIPT.format(
        head="\n".join(head),
        setup="".join(f"{line}\n" for line in job.setup),
        stop=shlex.quote(str(out / STOP_FILE)),
        out=shlex.quote(str(out)),
        gpus=job.gpus_per_node,
        command=f"finetune {shlex.quote(config_path)}{sets}",
        again=_REQUEUE if job.requeue else "",
    )


_REQUEUE = """if [ "$told" -gt 0 ] && [ "$status" -eq 0 ]; then
    echo "saved before the limit: queued again"
    scontrol requeue "$SLURM_JOB_ID"
fi
"""
_SCRIPT = """#!/usr/bin/env bash
{head}
# Submit from the folder that relative paths of the configuration begin at, once {out} exists:
#     mkdir -p {out} && sbatch THIS_FILE
set -uo pipefail
{setup}
# All torchruns meet at the first machine of the job; each starts a rank a GPU.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))

# Told before the limit or at a preemption, the run saves after the step at hand and ends.
told=0
tell() {{
    told=$((told + 1))
    touch {stop}
}}
trap tell TERM

srun --kill-on-bad-exit=1 torchrun \\
    --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node {gpus} \\
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$first:$port" \\
    -m mmdata_train {command} &
pid=$!
wait "$pid"
status=$?
# A signal ends the wait, not the run.
heard=0
while [ "$told" -gt "$heard" ]; do
    heard=$told
    wait "$pid"
    status=$?
done

{again}exit "$status"
"""
