"""The printed job asks for what it was told to, and saves and queues itself again when its time is nearly over."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmdata_train.config import TrainConfig
from mmdata_train.config_io import build
from mmdata_train.errors import ConfigError
from mmdata_train.slurm import SlurmJob, slurm_script

CONFIG = build(
    TrainConfig,
    {"model": {"vocab_size": 61, "hidden_size": 32, "num_layers": 4, "num_heads": 4}, "output": {"dir": "runs/law q4"}},
)
posix = pytest.mark.skipif(os.name != "posix" or shutil.which("bash") is None, reason="Slurm runs bash scripts")


def test_job_asks_for_what_it_was_told_to() -> None:
    job = SlurmJob(nodes=4, time="2-12:00:00", partition="h200", memory="500G", options=("--qos=high",))
    lines = slurm_script("law.yaml", CONFIG, ("train.lr=1e-4", "data.train=[a b]"), job).split("\n")
    assert lines[0] == "#!/usr/bin/env bash"
    for line in (
        "--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--time=2-12:00:00", "--partition=h200", "--mem=500G",
        "--signal=B:TERM@600", "--requeue", "--qos=high", "--job-name='law q4'", "--output='runs/law q4/slurm-%j.out'",
    ):  # fmt: skip
        assert f"#SBATCH {line}" in lines
    text = "\n".join(lines)
    assert "-m mmdata_train finetune law.yaml --set train.lr=1e-4 --set 'data.train=[a b]'" in text
    assert '--nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node 8' in text
    assert not any("=None" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 0}, "--nodes is 0"),
        ({"time": "tomorrow"}, "write 24:00:00"),
        ({"grace": 70_000}, "at most 65535"),
        ({"options": ("qos=high",)}, "no option of sbatch"),
        ({"name": "a\n#SBATCH --qos=high"}, "has several lines"),
    ],
)
def test_wrong_wishes_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SlurmJob(**changes)  # type: ignore[arg-type]


TORCHRUN = """#!{python}
import pathlib, sys, time
pathlib.Path("called").write_text(" ".join(sys.argv[1:]), encoding="utf-8")
stop = pathlib.Path("runs/law q4/stop")
for _ in range(600):
    if stop.exists():
        stop.unlink()
        sys.exit(0)
    if pathlib.Path("fail").exists():
        sys.exit(3)
    time.sleep(0.05)
sys.exit(9)
"""


def start(tmp_path: Path, job: SlurmJob) -> subprocess.Popen[str]:
    """The script with stand-ins for Slurm's commands and torchrun; returns once training began."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tmp_path / "runs" / "law q4").mkdir(parents=True)
    stand_ins = {
        "srun": '#!/usr/bin/env bash\nshift\nexec "$@"\n',
        "scontrol": '#!/usr/bin/env bash\n[ "$1" = show ] && printf "node1\\nnode2\\n" || echo "$@" > requeued\n',
        "torchrun": TORCHRUN.format(python=sys.executable),
    }
    for name, text in stand_ins.items():
        (tools / name).write_text(text, encoding="utf-8")
        (tools / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(slurm_script("law.yaml", CONFIG, (), job), encoding="utf-8")
    environment = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
    }  # fmt: skip
    process = subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, env=environment, text=True)
    end = time.monotonic() + 120
    while not (tmp_path / "called").exists() and time.monotonic() < end:
        time.sleep(0.02)
    return process


@posix
def test_signal_before_the_limit_saves_and_queues_again(tmp_path: Path) -> None:
    process = start(tmp_path, SlurmJob(nodes=2))
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    assert (tmp_path / "requeued").read_text(encoding="utf-8") == "requeue 77\n"
    called = (tmp_path / "called").read_text(encoding="utf-8")
    assert called.startswith("--nnodes 2 --nproc-per-node 8 --rdzv-id 77 --rdzv-backend c10d")
    assert "--rdzv-endpoint node1:20077 -m mmdata_train finetune law.yaml" in called


@posix
@pytest.mark.parametrize("fails", [True, False])
def test_run_that_fails_or_must_not_is_not_queued_again(fails: bool, tmp_path: Path) -> None:
    process = start(tmp_path, SlurmJob(nodes=2, requeue=fails))
    if fails:
        (tmp_path / "fail").touch()
    else:
        process.send_signal(signal.SIGTERM)
    assert process.wait(120) == (3 if fails else 0)
    assert not (tmp_path / "requeued").exists()
