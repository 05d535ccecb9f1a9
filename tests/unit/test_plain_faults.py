"""What is wrong with an input is told in Corral's words, and a hint is given only where it helps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_core._pydantic_core import list_all_errors
from support import forked

from corral.client.corral import Corral
from corral.client.runs import Runs
from corral.client.submit.run_file import parse
from corral.domain.errors import SPEC_HINT, InvalidInput
from corral.domain.runs.states import RunState
from corral.settings import read_settings
from corral.wire.base import validated
from corral.wire.faults import in_words
from corral.wire.runs import RunSelection
from corral.wire.tokens import TokenRequest

CLEAN = {key: value for key, value in os.environ.items() if "CORRAL" not in key}


def corral(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return forked.run(arguments, {**CLEAN, "CORRAL_HOME": str(home)})


@pytest.mark.parametrize("known", list_all_errors(), ids=lambda known: known["type"])
def test_no_fault_that_pydantic_knows_is_told_in_its_words(known: Any) -> None:
    """`Input should be a valid integer, unable to parse string as an integer` reached users."""
    context = {
        name: "" if value is None else value for name, value in (known["example_context"] or {}).items()
    }
    context |= {"expected_plural": "s"}
    said = in_words(
        {"type": known["type"], "msg": known["message_template_python"].format(**context), "ctx": context}
    )

    assert "should" not in said
    assert "Value error" not in said


def test_a_wrong_setting_is_told_in_plain_words() -> None:
    """It said `CORRAL_PORT: Input should be a valid integer, unable to parse string as an integer`."""
    with pytest.raises(InvalidInput) as caught:
        read_settings({"CORRAL_PORT": "x", "CORRAL_TLS": "maybe", "CORRAL_LEASE_S": "0"})

    assert caught.value.message == (
        "the environment has wrong settings: CORRAL_PORT must be a whole number; "
        "CORRAL_TLS must be 'auto', 'on' or 'off'; CORRAL_LEASE_S must be more than 0"
    )


def test_a_wrong_token_is_not_answered_with_the_schema_of_run_files() -> None:
    """Whatever was wrong, the hint was that `corral schema` prints what is allowed."""
    with pytest.raises(InvalidInput) as caught:
        validated(TokenRequest, {"scope": "king", "name": "x"}, what="the token")

    assert caught.value.hint == ""
    assert caught.value.message.startswith("the token is not valid: `scope` must be 'user', 'operator'")


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ('argv = "x"', "argv", "must be a list"),
        ("argv = ['x']\n[params]\nlr = [1]", "params.lr", "must be true or false, a whole number, a number"),
        ("argv = ['x']\n[params]\nlr = nan", "params.lr", "must be true or false, a whole number, a finite"),
        ("argv = ['x']\ninputs = {a = 1}", "inputs.a", "must be a string or a table"),
        ("argv = ['x']\ninputs = {a = {pathh = 'x'}}", "inputs.a.pathh", "is not a known key"),
        ("argv = ['x']\nsecrets = ['1A']", "secrets[0]", "is not a variable's name"),
        ("argv = ['x']\nenvironment = {python = 'new'}", "environment.python", "is not a version of Python"),
    ],
)
def test_a_wrong_run_file_is_told_in_plain_words_with_its_hint(text: str, place: str, said: str) -> None:
    """Pydantic's patterns and its names for kinds of values were shown, as `params.lr.bool`."""
    with pytest.raises(InvalidInput) as caught:
        parse(text, what="run.toml")

    (found,) = caught.value.fields
    assert found.path == place
    assert found.message.startswith(said)
    assert caught.value.hint == SPEC_HINT


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (
            lambda runs: runs.cancel_all(RunSelection(states=[RunState.FAILED])),
            "the filter is not valid: names the state failed, in which there is nothing to cancel",
        ),
        (
            lambda runs: runs.remove_all(RunSelection(states=[RunState.RUNNING])),
            "the filter is not valid: names the state running; only a run that has ended can be removed",
        ),
        (
            lambda runs: runs.cancel("r-bcdfghjkmnpq", reason="x" * 501),
            "the request is not valid: `reason` has more than 500 characters",
        ),
    ],
)
def test_what_cannot_be_asked_is_an_error_before_it_is_sent(act: Callable[[Runs], object], said: str) -> None:
    """`corral cancel --state failed` ended with a traceback of pydantic's."""
    with Corral("http://127.0.0.1:9", "t") as nobody, pytest.raises(InvalidInput) as caught:
        act(nobody.runs)

    assert caught.value.message == said


@pytest.mark.parametrize("command", [("ls",), ("cancel",), ("rm",)])
@pytest.mark.parametrize("label", ["vision", "=vision"])
def test_a_label_without_a_value_is_told_how_to_write_it(
    command: tuple[str, ...], label: str, tmp_path: Path
) -> None:
    """`corral ls --label vision` showed a pattern and hinted at `corral schema`."""
    done = corral(*command, "--label", label, home=tmp_path)

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: --label '{label}' is not KEY=VALUE",
        "hint: Write it as `--label team=vision`.",
    ]


def test_no_command_ends_in_the_words_of_a_model_that_its_options_do_not_fit() -> None:
    """HOUR3-04: `corral fn scale NAME --min 3 --max 2` did."""
    script = (
        "import corral.cli.main as cli\n"
        "from corral.wire.endpoints import Scaling\n"
        "cli.app = lambda **_: Scaling(min=3, max=2)\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("error: what was asked for is not valid: ")
    assert done.stderr.splitlines()[-1].startswith("hint: Correct the options")
    assert "pydantic" not in done.stderr


def test_a_run_file_is_told_all_that_is_wrong_with_it_at_once(tmp_path: Path) -> None:
    """HOUR3-09: it came in five stages, each of them hidden by the one before. HOUR3-10: and as `(whole)`."""
    (tmp_path / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--lr', type=float)\np.add_argument('--data', required=True)\np.parse_args()\n"
    )
    (tmp_path / "run.toml").write_text(
        'argv = ["python3", "train.py", "--lr", "{params.lrr}"]\npriority = "high"\n'
        'params_from = "train.py"\ncode = "nowhere"\nsecrets = ["TWICE"]\n'
        "[params]\nlrr = 0.1\n"
        '[env]\nSIZE = 3\nAPI_KEY = "x"\nTWICE = "y"\n'
        '[inputs]\ndata = "missing.txt"\n'
    )
    done = corral("submit", str(tmp_path / "run.toml"), home=tmp_path / "home")

    assert done.returncode == 1
    told = done.stderr
    for place in ("priority:", "env.SIZE:", "env.API_KEY:", "secrets:", "argv:", "code:", "inputs.data:"):
        assert f"\n  {place} " in told, told
    assert "--data" in told
    assert "(whole)" not in told
