"""GPUs that come and go, on a machine that has none: a driver's library that says what a file says."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30


@dataclass(frozen=True)
class Card:
    name: str
    uuid: str
    total_gib: int = 80
    free_gib: int | None = None
    busy_percent: int = 0
    celsius: int = 30
    watts: int = 70


class Cards:
    """`environment` is for a worker; `put` says what its driver finds from now on."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._file = folder / "gpus"
        library = folder / "libnvidia-ml.so.1"
        source = Path(__file__).with_name("nvml.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
        self.environment = {
            "LD_LIBRARY_PATH": str(folder),
            "FAKE_GPUS": str(self._file),
            "CORRAL_GPU_CHECK": "off",
        }

    def put(self, *cards: Card) -> None:
        lines = [
            f"{card.name} {card.uuid} {card.total_gib * GIB}"
            f" {(card.total_gib if card.free_gib is None else card.free_gib) * GIB}"
            f" {card.busy_percent} {card.celsius} {card.watts * 1000}\n"
            for card in cards
        ]
        self._replace("".join(lines))

    def break_driver(self) -> None:
        self._replace("broken\n")

    def _replace(self, text: str) -> None:
        part = self._file.with_suffix(".new")
        part.write_text(text)
        part.replace(self._file)
