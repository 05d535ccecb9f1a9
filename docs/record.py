"""Records the demo in a terminal of its own and draws what came as docs/images/demo.svg.

    python docs/record.py

It needs nothing but Corral's own installation; Rich draws the picture.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "demo.svg"
COLUMNS, LINES = 100, 50
# The longest part of the picture is of no use to its reader: the lines between are left out.
_EPOCH = re.compile(r"epoch +(\d+) of")
# Progress bars are erased by moving the cursor, which this does not follow.
_BAR = "━━━"
_ERASE = "\r\x1b[K"


def record() -> str:
    """Everything that the demo writes to its terminal."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "TERM": "xterm-256color", "CORRAL_WORKER_NAME": "laptop"}
    # Not this machine's folders in a picture for everybody.
    env |= {"DEMO_HOME": "/tmp/demo"}
    with subprocess.Popen(
        [ROOT / "examples" / "demo" / "demo.sh"], stdin=inner, stdout=inner, stderr=inner, env=env
    ) as process:
        os.close(inner)
        pieces = []
        while piece := _read(outer):
            pieces.append(piece)
            sys.stdout.write(piece.decode(errors="replace"))
    if process.returncode:
        raise SystemExit(f"the demo ended with {process.returncode}")
    return b"".join(pieces).decode()


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:
        # How Linux says that the other end of a terminal is closed.
        return b""


def settled(written: str) -> list[str]:
    """The lines as they stand at the end. Of each status line, the last state before it was erased is kept
    once, so that the picture shows it."""
    lines: list[str] = []
    for line in written.replace("\r\n", "\n").split("\n"):
        drawn = [part for part in line.split(_ERASE) if part.strip()]
        if len(drawn) > 1 and "step " in drawn[-2] and not any("step " in kept for kept in lines):
            lines.append(f"\x1b[2m{drawn[-2].strip()}\x1b[0m")
        lines.append(drawn[-1] if drawn else "")
    return lines


def shortened(lines: list[str]) -> list[str]:
    kept: list[str] = []
    for line in lines:
        if _BAR in line:
            continue
        epoch = _EPOCH.search(line)
        if epoch and 90 <= int(epoch[1]) < 240:
            if kept[-1] != "...":
                kept.append("...")
            continue
        kept.append(line)
    return kept


def draw(lines: list[str]) -> None:
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, highlight=False)
        for line in lines:
            console.print(Text.from_ansi(line), soft_wrap=False, overflow="fold")
    PICTURE.parent.mkdir(exist_ok=True)
    svg = console.export_svg(title="make demo", unique_id="demo")
    # The font comes with the reader's machine: nothing is fetched from elsewhere.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")
    PICTURE.write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE), encoding="utf-8")


if __name__ == "__main__":
    draw(shortened(settled(record())))
