"""Machines that join a server: nothing of the server's home is known to them but what is typed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support import forked
from support.installation import CLEAN, Completed


@dataclass
class RemoteMachine:
    """Another machine: nothing of the server's home is known to it but what is typed."""

    home: Path
    extra: Mapping[str, str] = field(default_factory=dict)

    def corral(self, *arguments: str, within_s: float = 120) -> Completed:
        env = {**CLEAN, "CORRAL_HOME": str(self.home), **self.extra}
        return forked.run(arguments, env, timeout=within_s)

    def ok(self, *arguments: str) -> str:
        done = self.corral(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def pid(self) -> int | None:
        with suppress(OSError, ValueError):
            return int(json.loads((self.home / "worker.pid").read_text())["pid"])
        return None

    def own_view(self) -> str:
        return self.ok("host", "status", "--json")

    def end(self) -> None:
        if self.home.exists():
            self.corral("host", "stop", "--timeout", "5")


@contextmanager
def remote_machines(folder: Path, *names: str) -> Iterator[list[RemoteMachine]]:
    made = [RemoteMachine(folder / name) for name in names]
    try:
        yield made
    finally:
        for machine in made:
            machine.end()
