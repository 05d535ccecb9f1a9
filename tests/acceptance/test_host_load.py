"""How busy a host with GPUs is, from the driver to the terminal: real processes, a stand-in for a driver."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.installation import CLEAN, CORRAL
from support.live_server import new_host, serve
from support.waiting import eventually
from support.watched_worker import WatchedWorker

from acceptance.driver.cards import GIB, Card, Cards
from corral.domain.hosts.samples import HostSampleRecord
from corral.domain.ids import HostId
from corral.store.transaction import Tx
from corral.wire.hosts import HostSampleView

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

BUSY = Card("H200", "GPU-aaaa", total_gib=140, free_gib=30, busy_percent=97, celsius=68, watts=612)
IDLE = Card("H200", "GPU-bbbb", total_gib=140, busy_percent=0, celsius=31, watts=75)
WIDTH = 80


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedWorker]:
    folder = tmp_path_factory.mktemp("load")
    cards = Cards(folder / "driver")
    cards.put(BUSY, IDLE)
    made = WatchedWorker(folder / "home", **cards.environment)
    made.start_server()
    made.start_worker()
    yield made
    made.close()


def sample(fleet: WatchedWorker) -> HostSampleView:
    def look() -> HostSampleView | None:
        hosts = fleet.corral.hosts.all()
        return hosts[0].sample if hosts else None

    return eventually(look, lambda: f"the host says how busy it is; {fleet.said()}")


def on_terminal(home: Path, *arguments: str, until: str | None = None, **settings: str) -> list[str]:
    """The lines that the command shows on a terminal of 80 columns; with `until`, up to Ctrl-C after that."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    env = {**CLEAN, "CORRAL_HOME": str(home), "TERM": "dumb", **settings}
    env.pop("COLUMNS", None)
    shown = b""
    with subprocess.Popen(
        [CORRAL, *arguments], stdin=there, stdout=there, stderr=there, env=env, start_new_session=True
    ) as process:
        os.close(there)
        try:
            while chunk := os.read(here, 65536):
                shown += chunk
                if until is not None and until in shown.decode(errors="replace"):
                    process.send_signal(signal.SIGINT)
                    until = None
        except OSError:
            # The other side is closed.
            pass
    os.close(here)
    lines = shown.decode().splitlines()
    assert max(map(len, lines)) <= WIDTH, "\n".join(lines)
    return lines


def line_with(lines: list[str], *words: str) -> str:
    found = [line for line in lines if all(word in line.split() for word in words)]
    assert found, "\n".join(lines)
    return found[0]


def test_an_idle_host_reports_its_gpus_with_the_first_look(fleet: WatchedWorker) -> None:
    """DEF-02: utilisation, memory, temperature and power, by the official client of the driver."""
    seen = sample(fleet)

    busy, idle = seen.gpus
    assert (busy.name, busy.utilisation, busy.memory_used_bytes) == ("H200", 0.97, 110 * GIB)
    assert (busy.temperature_c, busy.power_w) == (68, 612)
    assert (idle.utilisation, idle.memory_used_bytes, idle.temperature_c) == (0, 0, 31)
    assert seen.ram_bytes
    assert 0 < (seen.ram_used_bytes or 0) < seen.ram_bytes
    assert seen.cpu is not None


def test_it_is_seen_in_the_terminal(fleet: WatchedWorker) -> None:
    """DEF-02: `hosts show`, and `hosts ls --watch` until Ctrl-C."""
    sample(fleet)
    (host,) = fleet.corral.hosts.all()

    shown = on_terminal(fleet.home, "hosts", "show", host.name)
    watched = on_terminal(fleet.home, "hosts", "ls", "--watch", until="75W")

    assert "CPU" in line_with(shown, "load")
    assert line_with(shown, "0", "H200", "97%", "68", "612").endswith("W")
    line_with(watched, host.name, "ready", "0/2", "0", "97%", "110/140G", "68°C", "612W")
    line_with(watched, "1", "0%", "0/140G", "31°C", "75W")


def test_a_run_shows_the_gpu_that_it_has_and_its_memory(fleet: WatchedWorker) -> None:
    """DEF-02."""
    sample(fleet)
    run = fleet.python("import time; time.sleep(600)", resources={"gpus": 1})
    eventually(lambda: "uses" in " ".join(on_terminal(fleet.home, "show", run)), "its beat says what it uses")

    shown = on_terminal(fleet.home, "show", run)

    fleet.corral.runs.cancel(run)
    assert "memory" in line_with(shown, "uses")
    line_with(shown, "0", "H200", "97%", "68", "612")
    assert not [line for line in shown if "31 °C" in line], "the other GPU is not its own"


def test_hours_become_small_curves_with_gaps(tmp_path: Path) -> None:
    """DEF-02: a host's history on a terminal, and as JSON."""
    with serve(tmp_path / "home") as live:
        worker = new_host(live)
        host_id = HostId(live.ok("GET", f"/v1/hosts/{worker.name}")["id"])
        now = time.time() // 60 * 60
        # An hour of rising load, half an hour away, and an hour of rest.
        loads = [(now - 9000 + 60 * minute, minute / 60) for minute in range(60)]
        loads += [(now - 3600 + 60 * minute, 0.0) for minute in range(60)]

        def history(tx: Tx) -> None:
            for at, load in loads:
                gpu = {"index": 0, "utilisation": load, "power_w": 100 + 500 * load, "temperature_c": 40}
                text = json.dumps({"cpu": load, "ram_used_bytes": GIB, "ram_bytes": 4 * GIB, "gpus": [gpu]})
                tx.host_samples.put(HostSampleRecord(host_id, at, text))

        live.write(history)
        env = {"CORRAL_URL": live.url, "CORRAL_TOKEN": live.operator}
        shown = on_terminal(tmp_path, "hosts", "show", worker.name, "--history", **env)
        recent = on_terminal(
            tmp_path, "hosts", "show", worker.name, "--history", "--hours", "1", "--json", **env
        )

    use = line_with(shown, "GPU", "0", "use")
    rising, rest = re.findall("[▁-█]+", use)
    assert list(rising) == sorted(rising)
    assert rising.endswith("█")
    assert set(rest) == {"▁"}
    assert f"{rising}  " in use, "while it was away nothing is drawn"
    assert use.split()[-3:] == ["0%", "98%", "0%"]
    assert line_with(shown, "GPU", "0", "power").split()[-6:] == ["100", "W", "592", "W", "100", "W"]
    assert {row["cpu"] for row in json.loads("\n".join(recent))} == {0.0}
