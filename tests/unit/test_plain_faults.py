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

from corral.cli.functions.calls import _why
from corral.cli.runs.run import _code_of, _refuse_bare_file
from corral.cli.runs.why import show_placements
from corral.client.corral import Corral
from corral.client.runs import Runs
from corral.client.submit.problems import ProblemList
from corral.client.submit.run_file import parse
from corral.domain.errors import PARAMS_HINT, SPEC_HINT, FieldError, InvalidInput
from corral.domain.runs.states import RunState
from corral.domain.secrets.secrets import looks_secret
from corral.domain.webhooks.addresses import parse_url
from corral.errors import FunctionError
from corral.functions.find_app import find_app
from corral.settings import read_settings
from corral.wire.base import validated
from corral.wire.calls import CallView
from corral.wire.faults import in_words
from corral.wire.runs import HostVerdict, RunSelection
from corral.wire.tokens import TokenRequest
from corral.wire.webhooks import WebhookRequest

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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('memory = "3GB"', "resources.memory` is not a known key; did you mean `min_ram`?"),
        ("cpus = 4", "resources.cpus` is not a known key; did you mean `min_cores`?"),
        ("gpu_count = 1", "resources.gpu_count` is not a known key; did you mean `gpus`?"),
        ("min_ram = 8", 'resources.min_ram` is 8 bytes; write a size as "8GiB"'),
    ],
)
def test_words_and_units_of_other_tools_are_told_as_ours(line: str, said: str) -> None:
    """HOUR3-14."""
    with pytest.raises(InvalidInput) as caught:
        parse(f'argv = ["true"]\n[resources]\n{line}\n', what="run.toml")

    assert said in caught.value.message


def test_help_says_what_an_option_takes_in_words(tmp_path: Path) -> None:
    """HOUR3-18: `<list[str]>` is a word of Python's."""
    for command in (("requeue",), ("run",), ("fn", "run")):
        shown = corral(*command, "--help", home=tmp_path).stdout
        assert "list[" not in shown
        assert "<str>" not in shown


def test_every_reason_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """HOUR3-15: reasons were parted by the sign that some of them hold."""
    show_placements(
        [HostVerdict(host="tower", host_id="h-1", eligible=False, reasons=["set aside; it broke", "away"])]
    )

    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [["tower", "no", "set", "aside;", "it", "broke"], ["away"]]


def test_a_file_that_lies_here_is_not_run_by_its_bare_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOUR3-19: the run was made, and failed on its host."""
    (tmp_path / "fit.py").write_text("")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidInput, match=r"fit\.py lies in") as caught:
        _refuse_bare_file("fit.py", Path.cwd())

    assert caught.value.hint == "Say `corral run -- python3 fit.py`."
    _refuse_bare_file("./fit.py", Path.cwd())
    _refuse_bare_file("python3", Path.cwd())


def test_a_wrong_model_is_not_also_told_as_missing() -> None:
    """HOUR4-01: what is wrong was taken out, and then missed."""
    with pytest.raises(InvalidInput) as caught:
        parse('model = "corral/tinny"\n[train]\nrecipe = "sft"\ndata = "rows.jsonl"\n', what="run.toml")

    assert [field.path for field in caught.value.fields] == ["model"]


def test_a_script_that_is_not_here_is_told_before_it_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """HOUR4-02: nothing was shipped, and the run failed on its host."""
    (tmp_path / "train.py").write_text("")
    assert _code_of(["python3", "trian.py", "--lr", "1"], tmp_path, quiet=False) is None
    told = capsys.readouterr().err
    assert told == "corral: trian.py is not a file here, and nothing is shipped; did you mean train.py?\n"
    for command in (["python3", "-c", "pass"], ["python3", "/opt/own.py"], ["touch", "made.py"], ["true"]):
        assert _code_of(command, tmp_path, quiet=False) is None
    assert capsys.readouterr().err == ""


def test_the_page_on_secrets_says_what_is_let_through() -> None:
    """HOUR4-03: a name that looks like a secret's passes with a value that cannot be one."""
    page = (Path(__file__).parents[2] / "docs" / "howto" / "secrets.md").read_text()
    assert not looks_secret("API_KEY", "1")
    for word in ("`1`", "`true`", "`off`", "`_FILE`", "`_URL`"):
        assert word in page


def test_the_form_of_an_address_is_told_before_the_lack_of_a_token(tmp_path: Path) -> None:
    """HOUR4-04: the token was asked for first, and could not have helped."""
    env = {**CLEAN, "CORRAL_HOME": str(tmp_path), "CORRAL_URL": "127.0.0.1:7373"}
    done = forked.run(("ls",), env)
    assert "'127.0.0.1:7373' is not a server's address" in done.stderr
    assert "CORRAL_TOKEN" not in done.stderr


def test_faults_of_fields_and_of_params_have_one_hint() -> None:
    """HOUR4-05: it was two hints in one."""
    problems = ProblemList()
    problems.add(InvalidInput("the file is wrong", hint=SPEC_HINT, fields=[FieldError("priority", "is bad")]))
    problems.add(InvalidInput("so are params", hint=PARAMS_HINT, fields=[FieldError("params.lr", "is bad")]))
    with pytest.raises(InvalidInput) as caught:
        problems.check("run.toml")
    assert caught.value.hint == SPEC_HINT


def test_a_method_is_called_with_the_parameters_of_its_class(tmp_path: Path) -> None:
    """HOUR3-16."""
    (tmp_path / "demo.py").write_text(
        'import corral\napp = corral.App("demo")\n\n@app.cls()\nclass Acc:\n'
        "    start: int = corral.parameter()\n\n    @corral.method()\n"
        "    def add(self, x):\n        return self.start + x\n"
    )
    place = f"{tmp_path / 'demo.py'}::Acc.add"

    done = corral("fn", "run", place, "--local", "-a", "2", "--param", "start=40", home=tmp_path / "home")
    wrong = corral("fn", "run", place, "--local", "-a", "2", "--param", "40", home=tmp_path / "home")

    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    assert (wrong.returncode, "--param 40 is not NAME=VALUE" in wrong.stderr) == (1, True)


def test_the_error_of_a_call_is_one_line_in_a_list() -> None:
    """HOUR3-16."""
    error = {"type": "ValueError", "message": "one\n  two"}
    call = CallView(
        id="c-1", project="p", endpoint="e", function="f", state="failed", created_at=0.0, error=error
    )
    assert _why(call) == "ValueError: one two"


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_an_address_with_an_impossible_port_is_told_in_plain_words(tmp_path: Path, port: str) -> None:
    """HOUR6-03: `CORRAL_URL` and `host enroll` ended with a traceback."""
    url = f"http://127.0.0.1:{port}"
    given = {"CORRAL_HOME": str(tmp_path), "CORRAL_URL": url, "CORRAL_TOKEN": "x"}

    done = forked.run(["ls"], {**CLEAN, **given})

    assert done.returncode == 1
    assert done.stderr.startswith(
        f"error: '{url}' is not a server's address: a port is a number from 1 to 65535\n"
    )
    with pytest.raises(InvalidInput, match="a port is a number"):
        Corral(url, None)


def test_a_webhooks_address_is_told_what_it_lacks_however_short_it_is() -> None:
    """HOUR6-04: `ftp://x` must have at least 8 characters, it said."""
    assert validated(WebhookRequest, {"name": "a", "url": "ftp://x"}, what="the webhook").url == "ftp://x"
    with pytest.raises(InvalidInput, match=r"https://|http") as caught:
        parse_url("ftp://x")
    assert "characters" not in caught.value.message


def test_one_colon_between_a_file_and_a_function_is_noticed(tmp_path: Path) -> None:
    """HOUR6-05."""
    (tmp_path / "demo.py").write_text("")
    with pytest.raises(FunctionError) as caught:
        find_app(f"{tmp_path / 'demo.py'}:embed")
    assert caught.value.hint == "Write it with two colons: demo.py::embed."
