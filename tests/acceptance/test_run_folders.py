"""Folders as users have them, in and out of a run: links, devices, names, very many files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.installation import Installation, installed


def _hostile(folder: Path) -> dict[str, Callable[[], object]]:
    return {
        "link to a file outside": lambda: (folder / "bad").symlink_to("/etc/passwd"),
        "link to a folder outside": lambda: (folder / "bad").symlink_to("/etc"),
        "link up": lambda: (folder / "bad").symlink_to("../.."),
        "link to nowhere": lambda: (folder / "bad").symlink_to("nowhere"),
        "link to itself": lambda: (folder / "bad").symlink_to("bad"),
        "fifo": lambda: os.mkfifo(folder / "bad"),
        "socket": lambda: _socket(folder / "bad"),
        "device": lambda: os.mknod(folder / "bad", 0o666 | 0o020000, os.makedev(1, 5)),
        "newline in the name": lambda: (folder / "ba\nd").write_text("x"),
        "name that is not UTF-8": lambda: Path(os.fsdecode(os.fsencode(folder) + b"/ba\xffd")).write_text(
            "x"
        ),
        "backslash in the name": lambda: (folder / "ba\\d").write_text("x"),
    }


def _socket(path: Path) -> None:
    code = f"import socket; socket.socket(socket.AF_UNIX).bind({path.name!r})"
    subprocess.run([sys.executable, "-c", code], cwd=path.parent, check=True)


HOSTILE = list(_hostile(Path()))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="making devices and mounts needs root")


@pytest.mark.parametrize("what", [pytest.param(w, marks=needs_root) if w == "device" else w for w in HOSTILE])
def test_a_code_folder_with_such_an_entry_is_refused_by_name(
    what: str, corral: Installation, tmp_path: Path
) -> None:
    """FL-D47, MT-C40. Reading a device or a FIFO would never end."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").write_text("print('started')")
    _hostile(code)[what]()

    done = corral("run", "--code", str(code), "--", sys.executable, "main.py")

    assert "Traceback" not in done.stderr
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "started" not in done.stdout
    assert "ba" in done.stderr


MAKE = {
    "link to a file outside": "(O / 'bad').symlink_to('/etc/passwd')",
    "link to a folder outside": "(O / 'bad').symlink_to('/etc')",
    "link to nowhere": "(O / 'bad').symlink_to('nowhere')",
    "fifo": "os.mkfifo(O / 'bad')",
    "newline in the name": "(O / 'ba\\nd').write_text('x')",
    "name that is not UTF-8": "open(os.fsencode(O) + b'/ba\\xffd', 'w').close()",
    "the folder is a link": "O.rmdir(); O.symlink_to('/etc')",
    "the folder is a file": "O.rmdir(); O.write_text('bad')",
}
PRELUDE = "import os, pathlib, signal, sys, time\nO = pathlib.Path(os.environ['CORRAL_OUTPUT_DIR'])\n"


DEVICE = "os.mknod(O / 'bad', 0o666 | 0o020000, os.makedev(1, 5))"


@pytest.mark.parametrize("what", MAKE)
def test_an_output_folder_with_such_an_entry_fails_the_run_by_name(what: str, corral: Installation) -> None:
    check_refused(corral, MAKE[what])


@needs_root
def test_a_device_in_an_output_folder_fails_the_run_by_name(tmp_path: Path) -> None:
    """Reading it would never end. Only a run that is not isolated can make one."""
    with installed(tmp_path / "home", CORRAL_ISOLATION="off") as corral:
        check_refused(corral, DEVICE)


def check_refused(corral: Installation, make: str) -> None:
    done = corral.python(f"{PRELUDE}{make}\nprint('done')")

    assert done.stdout == "done\n"
    run = corral.show()
    assert (run["state"], run["artifact_id"]) == ("failed", None), run
    assert done.returncode == 1
    assert run["detail"]


NAMES = ["données.txt", "数据/模型.bin", "данные.csv", "🤖 robot.json", "a b'c\"d.txt", "‮rtl", "-rf", "é"]


def test_names_in_other_scripts_come_through_both_ways(corral: Installation, tmp_path: Path) -> None:
    code = tmp_path / "код"
    for name in NAMES:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    (code / "копия.py").write_text(
        f"{PRELUDE}import shutil\n"
        "shutil.copytree('.', O, dirs_exist_ok=True, ignore=shutil.ignore_patterns('*.py'))\n"
    )
    done = corral("run", "--code", str(code), "--", sys.executable, "копия.py")
    assert done.returncode == 0, done.stderr

    corral.ok("artifacts", "get", "latest", str(tmp_path / "got"))

    found = {str(p.relative_to(tmp_path / "got")) for p in (tmp_path / "got").rglob("*") if p.is_file()}
    assert found == {*NAMES, ".corral-artifact"}
    assert all((tmp_path / "got" / name).read_text() == name for name in NAMES)


def test_a_folder_of_thousands_of_files_goes_out_and_comes_back(
    corral: Installation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "code"
    for number in range(50):
        folder = code / f"d{number}"
        folder.mkdir(parents=True)
        for inner in range(100):
            (folder / f"f{inner}").write_text(f"{number} {inner}")
    began = time.monotonic()

    copy = f"{PRELUDE}import shutil\nshutil.copytree('.', O, dirs_exist_ok=True)"
    done = corral("run", "--code", str(code), "--", sys.executable, "-c", copy)

    assert done.returncode == 0, done.stderr
    listed = json.loads(corral.ok("artifacts", "ls", "--json", "-n", "1"))[0]
    assert listed["files"] == 5_000
    with capsys.disabled():
        print(f"\n5,000 files as code and as output: {time.monotonic() - began:.1f} s")
