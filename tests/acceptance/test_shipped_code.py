"""Which code goes along with a run: this folder where the command needs it, and nothing that was fetched."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.installation import Installation

SAY = (
    "import os, pathlib\n"
    "print('at work')\n"
    "pathlib.Path(os.environ['CORRAL_OUTPUT_DIR'], 'made').write_text('x')\n"
)


@pytest.fixture
def here(corral: Installation, tmp_path: Path) -> Installation:
    """The same, for a user who works in a folder of their own."""
    return replace(corral, folder=tmp_path)


def code_files(corral: Installation, run: str) -> int:
    artifact = corral.show(run)["spec"]["code"]
    if artifact is None:
        return 0
    listed = json.loads(corral.ok("artifacts", "ls", "--json", "-n", "1000"))
    return int(next(item["files"] for item in listed if item["id"] == artifact))


def test_the_folder_of_a_script_goes_along_with_it(here: Installation) -> None:
    """NEW-04: `corral run -- python train.py`, the example of `--help`."""
    here.write("train.py", SAY)
    here.write("scratch.log", "x")
    here.write(".gitignore", "*.log\n")

    done = here("run", "--", sys.executable, "train.py")

    assert done.returncode == 0, done.stderr
    assert "at work" in done.stdout
    assert "shipping this folder (2 files, " in done.stderr
    module = here("run", "--", sys.executable, "-m", "train")
    assert module.returncode == 0, module.stderr


def test_what_names_no_file_of_the_folder_ships_nothing(here: Installation) -> None:
    """NEW-04: a command that needs nothing from here is as quick as before."""
    here.write("train.py", SAY)

    run = here.ok("run", "--detach", "--", "true", "--seed", "3", "/train.py").strip()
    forbidden = here.ok("run", "--detach", "--no-code", "--", "true", "train.py").strip()

    assert code_files(here, run) == code_files(here, forbidden) == 0


def test_a_large_folder_is_not_shipped_unasked(here: Installation) -> None:
    """NEW-04: it is refused with the words that ship it."""
    assert here.folder is not None
    here.write("train.py", SAY)
    with (here.folder / "weights.bin").open("wb") as file:
        file.truncate(65 << 20)

    done = here("run", "--", sys.executable, "train.py")

    assert done.returncode == 1
    assert "the command names train.py" in done.stderr
    assert "`--code .`" in done.stderr


def test_a_run_file_that_forgets_its_code_is_told_so(here: Installation) -> None:
    """NEW-04: a run file says what it ships; what it seems to lack is told at submit."""
    here.write("train.py", SAY)
    here.write("run.toml", 'argv = ["python3", "train.py"]\nresources.hosts = ["nobody"]\n')

    done = here("submit", "run.toml")

    assert done.returncode == 0, done.stderr
    assert 'note: train.py lies here, but no code is shipped with the run: add code = "."' in done.stderr


def test_a_run_goes_again_with_changed_code(here: Installation) -> None:
    """NEW-14: the same run in everything but its code."""
    here.write("train.py", "raise SystemExit(3)")
    assert here("run", "--env", "KEPT=yes", "--", sys.executable, "train.py").returncode == 3
    before = here.show()
    here.write("train.py", 'import os; print("mended", os.environ["KEPT"])')

    done = here("requeue", before["id"], "--code", ".", "--follow")

    assert done.returncode == 0, done.stderr
    assert "mended yes" in done.stdout
    after = here.show()
    assert after["spec"]["code"] != before["spec"]["code"]
    assert {**after["spec"], "code": 0, "code_digest": 0} == {**before["spec"], "code": 0, "code_digest": 0}


def test_what_was_fetched_is_not_shipped_as_code(here: Installation) -> None:
    """NEW-23: `artifacts get` puts its folder beside the code; as an input it is what it was."""
    here.write("train.py", SAY)
    assert here("run", "--", sys.executable, "train.py").returncode == 0
    first = here.show()
    here.ok("artifacts", "get", first["id"])

    done = here("run", "--", sys.executable, "train.py")

    assert done.returncode == 0, done.stderr
    second = here.show()
    assert second["spec"]["code"] == first["spec"]["code"]
    folder = f"{first['name']}-{first['id']}"
    assert f"note: {folder}/ is not shipped: it was fetched from a server" in done.stderr

    here.write("again.toml", f'argv = ["true"]\ninputs.made = "{folder}"\nresources.hosts = ["nobody"]\n')
    run = here.ok("submit", "again.toml").strip()
    given = here.show(run)["spec"]["inputs"]["made"]
    assert here.ok("artifacts", "verify", given).startswith(f"{given}: 1 file, ")
