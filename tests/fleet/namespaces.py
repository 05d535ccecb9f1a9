"""Lines for root on Linux: each host in a network namespace of its own, joined to the server by a bridge.

Packets are lost by a filter of the kernel's traffic control that draws a random number for each. Names
carry the pid of their owner; what an owner that died left behind is removed by the next.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

# Reserved for tests of networks, so that nobody's own addresses are hidden.
NETWORKS = [f"198.18.{number}" for number in range(256)]
# What a filter of traffic control answers.
PASS, DROP = 0, 2
# Classic BPF: load a word, jump if greater, return; and where the load of a word is a random number.
LOAD, JUMP_GREATER, RETURN, RANDOM = 32, 37, 6, 0xFFFFF038
PROGRAMS = ("ip", "tc", "ss", "nsenter")
_SPACE = re.compile(r"corral-(\d+)-\d+")
_INTERFACE = re.compile(r"cf(\d+)[bv]\d*")
_counter = itertools.count(1)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _dropping(share: float) -> str:
    if share >= 1:
        return f"1,{RETURN} 0 0 {DROP}"
    most = round(share * 0xFFFFFFFF)
    return f"4,{LOAD} 0 0 {RANDOM},{JUMP_GREATER} 0 1 {most},{RETURN} 0 0 {PASS},{RETURN} 0 0 {DROP}"


class NamespaceLine:
    def __init__(self, network: str, bridge: str, *, place: int, server_port: int) -> None:
        number = next(_counter)
        self.address = f"{network}.{place}"
        self._space = f"corral-{os.getpid()}-{number}"
        self._outer, self._inner = f"cf{os.getpid()}v{number}", "eth0"
        self._server = f"{network}.1:{server_port}"
        _run("ip", "netns", "add", self._space)
        peer = ("peer", "name", self._inner, "netns", self._space)
        _run("ip", "link", "add", self._outer, "type", "veth", *peer)
        _run("ip", "link", "set", self._outer, "master", bridge, "up")
        _run("ip", "-n", self._space, "addr", "add", f"{self.address}/24", "dev", self._inner)
        for name in (self._inner, "lo"):
            _run("ip", "-n", self._space, "link", "set", name, "up")
        for tc, name in self._ways():
            _run(*tc, "qdisc", "add", "dev", name, "ingress")

    @property
    def server(self) -> str:
        return self._server

    def wrap(self, argv: Sequence[str]) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self._space}", *argv]

    def _ways(self) -> list[tuple[tuple[str, ...], str]]:
        """Where packets of the host come out, and where those for the host do."""
        return [(("tc",), self._outer), (("tc", "-n", self._space), self._inner)]

    def _drop(self, *shares: float) -> None:
        for (tc, name), share in zip(self._ways(), shares, strict=True):
            _run(*tc, "filter", "del", "dev", name, "parent", "ffff:")
            if share:
                program = ("bpf", "direct-action", "bytecode", _dropping(share))
                _run(*tc, "filter", "add", "dev", name, "parent", "ffff:", "pref", "1", *program)

    def cut(self) -> None:
        self._drop(1, 1)

    def deafen(self) -> None:
        self._drop(0, 1)

    def lose(self, share: float) -> None:
        self._drop(share, share)

    def throttle(self, bytes_per_s: int) -> None:
        shape = ("tbf", "rate", f"{bytes_per_s * 8}bit", "burst", "16kb", "latency", "300ms")
        _run("tc", "-n", self._space, "qdisc", "replace", "dev", self._inner, "root", *shape)

    def mend(self) -> None:
        self._drop(0, 0)
        kinds = json.loads(_run("tc", "-n", self._space, "-j", "qdisc", "show", "dev", self._inner))
        if any(kind["kind"] == "tbf" for kind in kinds):
            _run("tc", "-n", self._space, "qdisc", "del", "dev", self._inner, "root")

    def break_off(self) -> None:
        _run("ss", "-K", "-N", self._space, "state", "connected")

    def close(self) -> None:
        # The other end goes with it.
        subprocess.run(["ip", "link", "del", self._outer], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self._space], capture_output=True, check=False)


class NamespaceNetwork:
    def __init__(self) -> None:
        sweep_dead_owners()
        self._bridge = f"cf{os.getpid()}b{next(_counter)}"
        self._lines: list[NamespaceLine] = []
        _run("ip", "link", "add", self._bridge, "type", "bridge", "forward_delay", "0")
        try:
            self._network = self._take_a_free_one()
            _run("ip", "link", "set", self._bridge, "up")
        except OSError:
            self.close()
            raise

    def _take_a_free_one(self) -> str:
        taken = _run("ip", "-4", "-o", "addr")
        first = os.getpid() % len(NETWORKS)
        for network in NETWORKS[first:] + NETWORKS[:first]:
            if f" {network}." not in taken:
                _run("ip", "addr", "add", f"{network}.1/24", "dev", self._bridge)
                return network
        raise OSError("no network of 198.18.0.0/16 is free")

    @property
    def server_host(self) -> str:
        return f"{self._network}.1"

    def join(self, server_port: int) -> NamespaceLine:
        place = len(self._lines) + 2
        line = NamespaceLine(self._network, self._bridge, place=place, server_port=server_port)
        self._lines.append(line)
        return line

    def close(self) -> None:
        for line in self._lines:
            line.close()
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)


def sweep_dead_owners() -> None:
    for space in Path("/run/netns").glob("corral-*"):
        if (found := _SPACE.fullmatch(space.name)) and not Path("/proc", found[1]).exists():
            subprocess.run(["ip", "netns", "del", space.name], capture_output=True, check=False)
    for link in Path("/sys/class/net").glob("cf*"):
        if (found := _INTERFACE.fullmatch(link.name)) and not Path("/proc", found[1]).exists():
            subprocess.run(["ip", "link", "del", link.name], capture_output=True, check=False)


def why_not() -> str | None:
    """Why there can be no namespaces here; None if a word came through one and another was lost."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        return f"network namespaces need {', '.join(missing)}"
    try:
        network = NamespaceNetwork()
    except OSError as error:
        return f"there can be no network namespaces here: {error}"
    try:
        return _try(network)
    except (OSError, subprocess.SubprocessError) as error:
        return f"network namespaces do not work here: {error}"
    finally:
        network.close()


def _try(network: NamespaceNetwork) -> str | None:
    with socket.create_server((network.server_host, 0)) as server:
        server.settimeout(60)
        line = network.join(server.getsockname()[1])
        say = f"import socket; socket.create_connection({server.getsockname()!r}, 60).send(b'word')"
        speak = line.wrap([sys.executable, "-S", "-c", say])
        heard = threading.Thread(target=subprocess.run, args=(speak,), kwargs={"timeout": 60})
        heard.start()
        connection, _ = server.accept()
        with connection:
            connection.settimeout(60)
            word = connection.recv(10)
        heard.join()
        line.lose(0.5)
        line.cut()
        line.mend()
        return None if word == b"word" else "a namespace was joined, but nothing came through"
