"""A reader who does what a page says, in a shell of his own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import forked

from docs.pages import ROOT, Command, Save, Step, missing, name_of

# The longest take half a minute of one core, which a busy machine may not give them at once.
PATIENCE_S = 600
# GPUs as the library for them would tell of, where there are none.
GPUS = {
    "PYTHONPATH": str(ROOT / "tests" / "fleet" / "stand_ins"),
    "STAND_IN_GPUS": "2",
    "CORRAL_GPU_CHECK": "off",
}


@dataclass(frozen=True)
class Reader:
    """A user with a home of his own; `corral` keeps its data in there."""

    home: Path
    extra: Mapping[str, str]

    @property
    def environ(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
        return kept | {
            "HOME": str(self.home),
            # Its `corral` is forked, and so is what trains: each would import seconds of modules anew.
            "PATH": os.pathsep.join([str(forked.commands()), str(Path(sys.executable).parent), kept["PATH"]]),
            **forked.environment(),
            "XDG_CACHE_HOME": kept.get("XDG_CACHE_HOME", str(ROOT / ".cache")),
            "CORRAL_PORT": "0",
            "CORRAL_WORKER_NAME": "laptop",
            # Beats every second: what a page waits for comes soon.
            "CORRAL_LEASE_S": "8",
            "NO_COLOR": "1",
            "TERM": "dumb",
            # Two threads fight for the cores that the tests share, and are far slower than one.
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **self.extra,
        }

    def corral(self, *arguments: str) -> None:
        done = forked.run(arguments, self.environ)
        assert done.returncode == 0, done.stderr


@contextmanager
def reader(home: Path, extra: Mapping[str, str]) -> Iterator[Reader]:
    home.mkdir()
    made = Reader(home, extra)
    try:
        yield made
    finally:
        made.corral("down", "--timeout", "5")


def check_page(page: Path, todo: list[Step], user: Reader, folder: Path) -> None:
    """All in one shell, so that variables and folders last; each step's output is kept apart."""
    work, notes = folder / "work", folder / "notes"
    work.mkdir()
    notes.mkdir()
    script = "\n".join(_script(number, step, notes) for number, step in enumerate(todo))
    subprocess.run(
        ["bash", "-c", script],
        cwd=work,
        env=user.environ,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    for number, step in enumerate(todo):
        if isinstance(step, Command):
            _check(page, step, notes / f"{number}")


def _script(number: int, step: Step, notes: Path) -> str:
    note = notes / f"{number}"
    if isinstance(step, Save):
        note.write_text(step.text, encoding="utf-8")
        return f"mkdir -p \"$(dirname '{step.name}')\" && cp '{note}' '{step.name}'"
    run = f"{{ {step.text}\n}} >'{note}.out' 2>&1"
    return f"{run}; code=$?; echo $code >'{note}.code'; [ $code = {step.expect} ] || exit"


def _check(page: Path, step: Command, note: Path) -> None:
    place = f"{name_of(page)}:{step.line}: {step.text}"
    printed = note.with_suffix(".out").read_text(encoding="utf-8", errors="replace")
    code = int(note.with_suffix(".code").read_text())
    assert code == step.expect, f"{place}\nexit code {code}, not {step.expect}; it printed:\n{printed}"
    lost = missing(step.shown, printed)
    assert lost is None, f"{place}\ndid not print\n{lost}\nbut\n{printed}"
