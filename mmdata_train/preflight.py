"""Whether the ranks of a run can reach each other, found out before NCCL or gloo would wait and say little.

Each rank tells its host, network interface and address through the store the ranks meet at; the first rank of each
machine connects to the first of every other. Whoever does not come or cannot be reached is named, with both interfaces,
within the limit (two minutes). One connection a pair of machines, milliseconds where all is well. It does not test
bandwidth, nor InfiniBand: NCCL_DEBUG=INFO says what NCCL chose.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist

from mmdata_train.errors import RankError
from mmdata_train.foreign_text import useful_part

SECONDS = 120.0
_ADDRESS_OF_INTERFACE = 0x8915  # SIOCGIFADDR, Linux
_INSIDE = ("lo", "docker", "veth", "virbr", "br-")
_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class Card:
    """How a rank is reached. port: 0 where it does not listen. leads: the first rank of its machine.

    others: further addresses to try; none where a variable chose the interface.
    """

    rank: int
    host: str
    interface: str
    address: str
    port: int
    leads: bool
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host}, interface {self.interface}, {self.address})"


def interfaces() -> dict[str, str]:
    """IPv4 address by interface name; empty where the system does not tell (other than Linux)."""
    if not sys.platform.startswith("linux"):
        return {}
    import fcntl

    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            # An interface without an address answers with an error.
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _ADDRESS_OF_INTERFACE, name.encode().ljust(256, b"\0"))
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def chosen_interface(known: dict[str, str], master: str) -> tuple[str, str]:
    """(name, address) of the interface this rank uses: as NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME say, else the one
    that leads to the machine of rank 0; on that machine itself, whose own name often stands for the loopback, the first
    that leads out (NCCL's order: InfiniBand, then others). Raises RankError when the variable names none that is here.
    """
    for variable in _VARIABLES:
        wanted = os.environ.get(variable)
        if not wanted or not known:
            continue
        name = next((name for name in known if _matches(name, wanted)), None)
        if name is None:
            here = ", ".join(f"{other} {address}" for other, address in known.items())
            raise RankError(f"{variable}={wanted} names no interface of {socket.gethostname()}; it has {here}")
        return name, known[name]
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Nothing is sent: the system only picks the route.
            probe.connect((master, 9))
            address = str(probe.getsockname()[0])
    except OSError:
        address = "127.0.0.1"
    outside = [name for name in known if not name.startswith(_INSIDE)]
    if address.startswith("127.") and outside:
        name = min(outside, key=lambda name: not name.startswith("ib"))
        return name, known[name]
    return next((name for name, other in known.items() if other == address), "unknown"), address


def _matches(name: str, wanted: str) -> bool:
    """NCCL's rule: a list of prefixes, after `=` of whole names, after `^` of those to leave out."""
    excluded = wanted.startswith("^")
    exact = wanted.removeprefix("^").startswith("=")
    words = wanted.removeprefix("^").removeprefix("=").split(",")
    hit = any(name == word if exact else name.startswith(word) for word in words)
    return hit != excluded


def meet(seconds: float = SECONDS) -> tuple[Any, int, int]:
    """(store, rank, world size) as the launcher's environment says. Raises RankError when the store is out of reach."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master, port = os.environ.get("MASTER_ADDR", "?"), os.environ.get("MASTER_PORT", "?")
    try:
        store, rank, world = next(
            dist.rendezvous("env://", rank, world, timeout=datetime.timedelta(seconds=seconds))  # type: ignore[attr-defined]
        )
    except (dist.DistError, TimeoutError, RuntimeError, ValueError) as error:
        name, address = chosen_interface(interfaces(), master)
        raise RankError(
            f"rank {rank} ({socket.gethostname()}, interface {name}, {address}) cannot meet the others at"
            f" {master}:{port} within {seconds:g} s: is rank 0 up, is the port open in the firewall, is MASTER_ADDR the"
            f" address of the right network? ({useful_part(error)})"
        ) from None
    return store, rank, world


@contextlib.contextmanager
def _listening(address: str) -> Iterator[int]:
    """Accept and close connections until the body ends; yields the port."""
    with socket.create_server((address, 0), backlog=1024) as server:
        server.settimeout(0.2)
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    server.accept()[0].close()

        thread = threading.Thread(target=serve, name="preflight", daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            ended.set()
            thread.join()


def preflight(store: Any, rank: int, world_size: int, seconds: float = SECONDS) -> list[Card]:
    """Every rank's card, after proof that the machines reach each other; every rank calls it.

    Raises RankError on every rank that is there, naming who is missing or which two cannot connect.
    """
    end = time.monotonic() + seconds
    known = interfaces()
    name, address = chosen_interface(known, os.environ.get("MASTER_ADDR", "127.0.0.1"))
    leads = os.environ.get("LOCAL_RANK", "0") == "0"
    told = any(os.environ.get(variable) for variable in _VARIABLES)
    outside = (other for other in known.values() if other != address and not other.startswith("127."))
    others = () if told else tuple(outside)
    with _listening(address if told else "") if leads else contextlib.nullcontext(0) as port:
        own = Card(rank, socket.gethostname(), name, address, port, leads, others)
        store.set(f"preflight/card/{rank}", json.dumps(asdict(own)))
        cards = _gather(store, "card", range(world_size), end, seconds)
        everyone = [_card(cards[number]) for number in range(world_size)]
        leaders = [card for card in everyone if card.leads]
        if leads:
            store.set(f"preflight/verdict/{rank}", _verdict(own, leaders, end, seconds))
        # The others may need the whole time themselves before they say so.
        verdicts = _gather(store, "verdict", [card.rank for card in leaders], end + 5.0, seconds)
    problems = [text for text in verdicts.values() if text]
    if problems:
        raise RankError(problems[0])
    return everyone


def _card(text: str) -> Card:
    values = json.loads(text)
    return Card(**{**values, "others": tuple(values.get("others", ()))})


def _verdict(own: Card, leaders: list[Card], end: float, seconds: float) -> str:
    """What keeps this rank from the others, or an empty string."""
    for peer in leaders:
        # A machine without an IPv4 address of its own cannot be tested; one machine is reached over its loopback.
        if peer.rank == own.rank or (peer.address.startswith("127.") and peer.host != own.host):
            continue
        problem = _connect(own, peer, end)
        if problem is not None:
            return (
                f"{own} cannot reach {peer} within {seconds:g} s: {problem}. Open the firewall"
                f" between them, or name the right network with {_VARIABLES[0]} (now"
                f" {os.environ.get(_VARIABLES[0], 'not set')})"
            )
    return ""


def _connect(own: Card, peer: Card, end: float) -> str | None:
    """Why no address of the peer answers, None where one does."""
    source = None if own.others else (own.address, 0)
    problem, addresses = None, (peer.address, *peer.others)
    for number, address in enumerate(addresses):
        left = max(0.1, (end - time.monotonic()) / (len(addresses) - number))
        try:
            socket.create_connection((address, peer.port), timeout=left, source_address=source).close()
            return None
        except OSError as error:
            problem = problem or str(error) or type(error).__name__
    return problem


def _gather(store: Any, kind: str, ranks: range | list[int], end: float, seconds: float) -> dict[int, str]:
    """What each of the ranks wrote. Raises RankError naming those that did not."""
    keys = {rank: f"preflight/{kind}/{rank}" for rank in ranks}
    while not all(store.check([key]) for key in keys.values()):
        if time.monotonic() > end:
            missing = [rank for rank, key in keys.items() if not store.check([key])]
            there = [_card(store.get(key).decode()) for key in _cards(store, keys)]
            hosts = ", ".join(sorted({f"{card.host} ({card.interface} {card.address})" for card in there}))
            raise RankError(
                f"ranks {', '.join(map(str, missing[:16]))}{' ...' if len(missing) > 16 else ''} did not come within"
                f" {seconds:g} s; the others are on {hosts or 'no machine'}. Look whether their launcher runs and"
                " whether --nnodes and --nproc-per-node are the same everywhere"
            )
        time.sleep(0.05)
    return {rank: store.get(key).decode() for rank, key in keys.items()}


def _cards(store: Any, keys: dict[int, str]) -> list[str]:
    names = [f"preflight/card/{rank}" for rank in keys]
    return [name for name in names if store.check([name])]
