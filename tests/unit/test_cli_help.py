"""The command line as a user first meets it: help, mistakes, completion."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from support import forked
from typer.testing import CliRunner

from corral import __version__
from corral.cli.display.curves import sparkline
from corral.cli.display.render import size
from corral.cli.main import _COMMANDS, app
from corral.cli.runs.follow import exit_code
from corral.durations import format_duration
from corral.wire.runs import RunView

# What --help must do without: each costs more than the rest of the help together.
HEAVY = ("httpx", "pydantic", "rich", "psutil", "uvicorn", "fastapi", "alembic", "cryptography")
CLEAN = {key: value for key, value in os.environ.items() if "CORRAL" not in key}


def corral(*arguments: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return forked.run(arguments, {**CLEAN, "CORRAL_HOME": str(home), **env})


def final(**fields: object) -> RunView:
    given = {"id": "r-x", "project": "p", "name": "n", "kind": "command", "priority": 0, "created_at": 0}
    return RunView.model_validate({**given, **fields})


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "sys.argv = ['corral', '--help']\n"
        "from corral.cli.main import main\n"
        "try:\n    main()\n"
        f"finally:\n    print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stderr.strip() == "[]"


def test_help_names_every_command_and_the_exit_codes(tmp_path: Path) -> None:
    text = corral("--help", home=tmp_path).stdout

    assert all(f"\n  {command.name} " in text for command in _COMMANDS)
    assert "143 a run was cancelled" in " ".join(text.split())


@pytest.mark.parametrize("command", _COMMANDS, ids=lambda command: command.name)
def test_the_line_in_the_list_is_what_the_command_says_of_itself(command: object) -> None:
    name, line = getattr(command, "name"), getattr(command, "help")  # noqa: B009
    shown = CliRunner().invoke(app, [name, "--help"])

    assert shown.exit_code == 0
    assert line.rstrip(".") in " ".join(shown.output.split())


# What others have as commands, and the words that do it here.
COMMANDS = [
    ("", "--version", "--debug"),
    ("up", "--port", "--detach"),
    ("models",),
    ("gpus",),
    ("status",),
    ("ls", "--json"),
    ("show",),
    ("cancel", "--group"),
    ("requeue", "--set"),
    ("manifest apply",),
    ("hosts ls",),
    ("submit", "--set", "--dry-run", "--follow"),
    ("estimate",),
    ("logs", "--follow"),
    ("artifacts ls", "--run"),
    ("sample", "--message", "--max-tokens"),
    ("eval", "--data"),
    ("secrets set",),
    ("tokens create", "--project"),
    ("fn run",),
    ("fn serve",),
    ("fn deploy",),
    ("fn logs",),
    ("fn rollback",),
    ("fn stop", "--rm"),
    ("calls logs",),
]


@pytest.mark.parametrize(
    ("command", "options"), [(c[0], c[1:]) for c in COMMANDS], ids=lambda part: str(part)
)
def test_what_others_have_as_commands_is_here(command: str, options: tuple[str, ...]) -> None:
    """FL-C09, MT-C14, MT-C15, RF-C25, RF-C34, RF-C39."""
    shown = CliRunner().invoke(app, [*command.split(), "--help"])

    assert shown.exit_code == 0, shown.output
    assert [option for option in options if option not in shown.output] == []


def test_the_version_is_printed(tmp_path: Path) -> None:
    """MT-C14."""
    assert corral("--version", home=tmp_path).stdout.split()[-1] == __version__


@pytest.mark.parametrize(
    ("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_of_a_terminal_can_be_turned_off(env: dict[str, str], coloured: bool) -> None:
    """MT-C18."""
    script = "from corral.cli.display.render import console; console().print('word', style='green')"
    left = {key: value for key, value in CLEAN.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", script], stdout=theirs, env={**left, "TERM": "xterm", **env}, check=True
        )
        os.close(theirs)
        said = os.read(ours, 1000)
    finally:
        os.close(ours)

    assert b"word" in said
    assert (b"\x1b[32m" in said) is coloured


def test_a_mistyped_command_gets_the_nearest_one_and_exit_code_2(tmp_path: Path) -> None:
    done = corral("summit", home=tmp_path)

    assert done.returncode == 2
    assert "Did you mean 'submit'?" in done.stderr


def test_without_a_server_the_error_says_what_to_do_and_the_exit_code_is_3(tmp_path: Path) -> None:
    done = corral("ls", home=tmp_path)

    assert done.returncode == 3
    assert done.stderr.startswith("error: no server is known")
    assert "hint: Start it with `corral up --detach`" in done.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = corral("--debug", "ls", home=tmp_path)

    assert "Traceback" in done.stderr
    assert "ServerUnreachable" in done.stderr


def test_a_wrong_run_file_is_an_error_with_every_field_and_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('agrv = ["x"]\npriority = "high"\n')

    done = corral("submit", str(path), home=tmp_path)

    assert done.returncode == 1
    assert "did you mean `argv`?" in done.stderr
    assert "\n  priority: " in done.stderr


def test_several_mistakes_are_listed_once_below_each_other(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('argv = ["x"]\nwall_limt = "10m"\nnam = "x"\n')

    lines = corral("submit", str(path), home=tmp_path).stderr.splitlines()

    assert lines[:3] == [
        f"error: {path} is not valid:",
        "  wall_limt: is not a known key; did you mean `wall_limit`?",
        "  nam:       is not a known key; did you mean `name`?",
    ]


def test_one_mistake_stands_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('argv = ["x"]\nnam = "x"\n')

    first, second = corral("submit", str(path), home=tmp_path).stderr.splitlines()

    assert first == f"error: {path} is not valid: `nam` is not a known key; did you mean `name`?"
    assert second.startswith("hint: ")


def test_several_wrong_settings_are_listed_once(tmp_path: Path) -> None:
    done = corral("ls", home=tmp_path, CORRAL_PORT="x", CORRAL_LEASE_S="-1")

    assert done.stderr.startswith("error: the environment has wrong settings:\n  CORRAL_PORT:    ")
    assert done.stderr.count("CORRAL_LEASE_S") == 1


class _Stranger(BaseHTTPRequestHandler):
    """Some other server, which notes the tokens that it is shown."""

    shown: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.shown.append(self.headers.get("Authorization"))
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def test_the_local_operator_token_is_not_sent_to_another_server(tmp_path: Path) -> None:
    (tmp_path / "operator.token").write_text("corral_t_secret")
    (tmp_path / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:1"}))
    with HTTPServer(("127.0.0.1", 0), _Stranger) as stranger:
        thread = threading.Thread(target=stranger.serve_forever)
        thread.start()
        done = corral("ls", home=tmp_path, CORRAL_URL=f"http://127.0.0.1:{stranger.server_port}")
        stranger.shutdown()
        thread.join()

    assert done.returncode == 1
    assert "CORRAL_TOKEN is not set" in done.stderr
    assert set(_Stranger.shown) <= {None}


def test_a_server_that_does_not_answer_is_told_before_a_missing_token(tmp_path: Path) -> None:
    done = corral("ls", home=tmp_path, CORRAL_URL="http://127.0.0.1:9")

    assert done.returncode == 3
    assert done.stderr.startswith("error: no answer from http://127.0.0.1:9: cannot connect")


def test_the_schema_is_json_that_names_every_key(tmp_path: Path) -> None:
    schema = json.loads(corral("schema", home=tmp_path).stdout)

    assert {"argv", "params", "seeds", "sweep", "resources"} <= set(schema["properties"])


def test_the_schema_describes_every_key(tmp_path: Path) -> None:
    schema = json.loads(corral("schema", home=tmp_path).stdout)
    tables = [schema, *schema["$defs"].values()]

    keys = {key: part for table in tables for key, part in table.get("properties", {}).items()}
    assert [key for key, part in keys.items() if not part.get("description")] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [("corral arti", "artifacts"), ("corral submit --dry", "--dry-run"), ("corral artifacts ver", "verify")],
)
def test_the_shell_completes_commands_that_are_not_loaded(words: str, expected: str, tmp_path: Path) -> None:
    count = len(words.split()) - 1
    done = corral(home=tmp_path, _CORRAL_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(count))

    assert expected in done.stdout.split()


def test_completion_of_run_ids_is_silent_without_a_server(tmp_path: Path) -> None:
    done = corral(
        home=tmp_path, _CORRAL_COMPLETE="complete_bash", COMP_WORDS="corral show r-", COMP_CWORD="2"
    )

    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_a_secret_is_not_taken_from_the_command_line(tmp_path: Path) -> None:
    assert corral("secrets", "set", "NAME", "the-value", home=tmp_path).returncode == 2


def test_nothing_to_stop_is_said(tmp_path: Path) -> None:
    done = corral("down", home=tmp_path)

    assert (done.returncode, done.stdout) == (0, "nothing is running\n")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"state": "succeeded", "exit_code": 0}, 0),
        ({"state": "failed", "exit_code": 7}, 7),
        ({"state": "failed", "signal": 9, "reason": "out_of_memory"}, 137),
        ({"state": "failed", "reason": "host_lost"}, 1),
        ({"state": "failed", "reason": "bad_output", "exit_code": 0}, 1),
        ({"state": "failed", "reason": "wall_limit", "signal": 15}, 124),
        ({"state": "failed", "exit_code": 256}, 1),
        ({"state": "cancelled", "signal": 15}, 143),
        ({"state": "cancelled"}, 143),
    ],
)
def test_a_followed_run_gives_its_exit_code(fields: dict[str, object], code: int) -> None:
    assert exit_code(final(**fields)) == code


def test_durations_and_sizes_are_short() -> None:
    assert [format_duration(s) for s in (0.25, 59, 60, 3725, 90000, None)] == [
        "0.2s",
        "59s",
        "1m",
        "1h 2m",
        "1d 1h",
        None,
    ]
    assert [size(n) for n in (0, 1023, 1024, 5 << 30, None)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB", None]


def test_a_sparkline_shows_the_course() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▄▄"
    assert sparkline([float("nan")]) == ""
    assert len(sparkline([float(n) for n in range(1000)])) == 40
