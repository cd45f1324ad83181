"""Ranks that do not come or cannot be reached are named within the limit, with interface and address."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from mmdata_train.errors import RankError  # noqa: E402
from mmdata_train.preflight import Card, _connect, _matches, chosen_interface, interfaces, meet, preflight  # noqa: E402


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "LOCAL_RANK", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")


def run_all(store: Any, ranks: int, seconds: float, world_size: int | None = None) -> list[Future[Any]]:
    with ThreadPoolExecutor(ranks) as threads:
        return [threads.submit(preflight, store, rank, world_size or ranks, seconds) for rank in range(ranks)]


def test_ranks_that_reach_each_other_know_each_other() -> None:
    found = [future.result() for future in run_all(dist.HashStore(), 4, 30.0)]
    assert all(cards == found[0] for cards in found)
    assert [card.rank for card in found[0]] == [0, 1, 2, 3]
    assert {card.host for card in found[0]} == {socket.gethostname()}


def test_rank_that_does_not_come_is_named_within_the_limit() -> None:
    began = time.monotonic()
    failures = [future.exception() for future in run_all(dist.HashStore(), 2, 0.5, world_size=4)]
    assert time.monotonic() - began < 30
    for failure in failures:
        assert isinstance(failure, RankError)
        assert "ranks 2, 3 did not come within 0.5 s" in str(failure)
        assert f"the others are on {socket.gethostname()}" in str(failure)


def card_of_a_silent_rank(address: str, port: int) -> str:
    values = {"rank": 1, "host": socket.gethostname(), "interface": "ib0", "address": address, "port": port}
    return json.dumps({**values, "leads": True})


def test_peer_that_cannot_be_reached_is_named_with_both_interfaces() -> None:
    """Rank 1 says where it is, but nothing listens there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    store = dist.HashStore()
    store.set("preflight/card/1", card_of_a_silent_rank("127.0.0.1", port))
    store.set("preflight/verdict/1", "")
    with pytest.raises(RankError) as caught:
        preflight(store, 0, 2, 2.0)
    message = str(caught.value)
    own = f"rank 0 ({socket.gethostname()}, interface "
    assert (
        message.startswith(own) and f"cannot reach rank 1 ({socket.gethostname()}, interface ib0, 127.0.0.1)" in message
    )
    assert "NCCL_SOCKET_IFNAME (now not set)" in message


def test_one_of_several_addresses_is_enough() -> None:
    """Where no variable chose, the address a machine thinks it is reached at may be the wrong one."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()[1]
    own = Card(0, "a", "eth0", "127.0.0.1", 1, True, others=("127.0.0.2",))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        peer = Card(1, "b", "eth0", "127.0.0.9", port, True, others=("127.0.0.1",))
        assert _connect(own, peer, time.monotonic() + 4.0) is None
    assert "refused" in str(_connect(own, replace(peer, port=dead), time.monotonic() + 2.0)).lower()


def test_trouble_of_one_rank_is_told_to_all() -> None:
    store = dist.HashStore()
    with socket.create_server(("127.0.0.1", 0)) as server:
        store.set("preflight/card/1", card_of_a_silent_rank("127.0.0.1", server.getsockname()[1]))
        store.set("preflight/verdict/1", "rank 1 cannot reach rank 0")
        with pytest.raises(RankError, match="rank 1 cannot reach rank 0"):
            preflight(store, 0, 2, 5.0)


@pytest.mark.parametrize(
    ("wanted", "hits"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth0", ["eth0"]),
        ("^lo,docker", ["eth0", "eth1", "ib0"]),
        ("ib,eth1", ["eth1", "ib0"]),
    ],
)
def test_interfaces_are_chosen_by_nccls_rule(wanted: str, hits: list[str]) -> None:
    assert [name for name in ("lo", "docker0", "eth0", "eth1", "ib0") if _matches(name, wanted)] == hits


def test_named_interface_wins_and_an_unknown_one_lists_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"lo": "127.0.0.1", "eth0": "10.0.0.5", "ib0": "10.1.0.5"}
    assert chosen_interface(known, "127.0.0.1") == ("ib0", "10.1.0.5"), "on rank 0's own machine: the way out"
    assert chosen_interface({"lo": "127.0.0.1", "docker0": "172.17.0.1"}, "127.0.0.1") == ("lo", "127.0.0.1")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth")
    assert chosen_interface(known, "127.0.0.1") == ("eth0", "10.0.0.5")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib")
    assert chosen_interface(known, "127.0.0.1") == ("ib0", "10.1.0.5")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "bond0")
    with pytest.raises(RankError, match=r"NCCL_SOCKET_IFNAME=bond0 names no interface.*it has lo 127.0.0.1, eth0 10"):
        chosen_interface(known, "127.0.0.1")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not tell")
def test_loopback_is_known_by_its_address() -> None:
    assert interfaces()["lo"] == "127.0.0.1"


def test_meeting_point_out_of_reach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_PORT", str(port))):
        monkeypatch.setenv(name, value)
    with pytest.raises(RankError, match=rf"rank 1 .* cannot meet the others at 127.0.0.1:{port} within 1 s"):
        meet(1.0)


JOB = """
import torch.distributed as dist, torch, os
from mmdata_train.mesh import start_process_group
start_process_group("cpu", 2.0)
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
print("world", dist.get_world_size(), "rank", dist.get_rank(), "sum", int(total), "node", os.environ["GROUP_RANK"])
dist.destroy_process_group()
"""


def test_two_launchers_on_one_machine_meet(tmp_path: Path) -> None:
    """What two machines do, each with its own torchrun: one rank a launcher."""
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    line = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend",
        "c10d", "--rdzv-id", "two", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1", "job.py",
    ]  # fmt: skip
    launchers = [
        subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    watchdog = threading.Timer(240.0, lambda: [launcher.kill() for launcher in launchers])
    watchdog.start()
    outputs = [launcher.communicate() for launcher in launchers]
    watchdog.cancel()
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    lines = sorted(line for out, _ in outputs for line in out.split("\n") if line.startswith("world"))
    assert [line.split(" node")[0] for line in lines] == ["world 2 rank 0 sum 3", "world 2 rank 1 sum 3"]
    assert {line[-1] for line in lines} == {"0", "1"}
