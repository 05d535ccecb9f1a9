"""What is wrong in a file with functions is told at the user's own line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import forked

CLEAN = {key: value for key, value in os.environ.items() if "CORRAL" not in key}


def checked(folder: Path, source: str) -> list[str]:
    (folder / "demo.py").write_text(source)
    done = forked.run(
        ["fn", "check", str(folder / "demo.py")], {**CLEAN, "CORRAL_HOME": str(folder / "home")}
    )
    assert done.returncode == 1
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ('idel="3s"', "there is no option idel; did you mean `idle`?"),
        ("timeout=-1", "timeout must be a millisecond or more, not -1"),
    ],
)
def test_a_wrong_option_is_told_once_at_the_line_and_function_that_have_it(
    tmp_path: Path, option: str, said: str
) -> None:
    """HOUR3-08: frames of Corral's own files were shown, and the message twice."""
    source = f'import corral\napp = corral.App("a")\n\n@app.function({option})\ndef embed(x): ...\n'

    assert checked(tmp_path, source) == [
        f"error: demo.py, line 4, at embed: {said}",
        "hint: Correct what is given there.",
    ]


def test_what_a_file_raises_itself_is_told_with_its_own_frames(tmp_path: Path) -> None:
    """HOUR3-08."""
    said = checked(tmp_path, "def f():\n    raise OSError('no disk')\nf()\n")

    assert said[0] == f"error: {tmp_path / 'demo.py'} cannot be imported: OSError: no disk"
    assert [line for line in said if "File " in line] == [
        f'  File "{tmp_path / "demo.py"}", line 3, in <module>',
        f'  File "{tmp_path / "demo.py"}", line 2, in f',
    ]
    assert sum("no disk" in line for line in said) == 2, "the message, and the line that raises it"


def test_ctrl_c_while_a_file_is_imported_says_that_nothing_was_submitted(tmp_path: Path) -> None:
    """HOUR3-17."""
    (tmp_path / "slow.py").write_text('import time\nprint("importing", flush=True)\ntime.sleep(60)\n')
    child = subprocess.Popen(
        [sys.executable, "-m", "corral", "fn", "check", "slow.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**CLEAN, "CORRAL_HOME": str(tmp_path / "home")},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "importing\n"
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)

    assert (child.returncode, said) == (
        130,
        "corral: interrupted while slow.py was imported; nothing was submitted\n",
    )


def test_ctrl_c_while_the_program_itself_is_loaded_ends_it_without_a_word() -> None:
    """HOUR3-17: the first tenth of a second showed a traceback of imports."""
    script = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'corral.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from corral.cli.start import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (130, "")
