"""`corral backup` and `corral restore`: copies of this machine's installation."""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from corral.settings import process_environment

Folder = Annotated[Path, typer.Argument(help="The folder of the backup.")]


class DamagedFiles(StrEnum):
    REFUSE = "refuse"
    SKIP = "skip"


def backup(folder: Folder) -> None:
    """Copy this machine's installation into a folder; it may run meanwhile.

    A second backup into the same folder copies only what is new.
    """
    _run("backup", str(folder))


def restore(
    folder: Folder,
    replace: Annotated[
        bool, typer.Option("--replace", help="Move the installation that is there aside first.")
    ] = False,
    damaged: Annotated[
        DamagedFiles, typer.Option(help="What becomes of a backup with damaged files, or of those files.")
    ] = DamagedFiles.REFUSE,
) -> None:
    """Put a backup in place as this machine's installation; the server must be down."""
    skip = ["--skip-damaged"] if damaged is DamagedFiles.SKIP else []
    _run("restore", str(folder), *(["--replace"] if replace else []), *skip)


def _run(module: str, *arguments: str) -> None:
    """In a process of its own, which knows the database; the command itself does not."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", f"corral.bootstrap.{module}", *arguments],
        env=process_environment(),
        check=False,
    )
    if done.returncode:
        raise typer.Exit(done.returncode)
