"""Run files and command lines that make no sense are refused: nothing hangs or ends in a traceback."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.installation import CORRAL, Completed, Installation


def assert_refused(done: Completed, *words: str) -> None:
    """Exit 1 or 2, a message with these words and a hint, no traceback, nothing on stdout."""
    assert done.returncode in (1, 2), (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr, done.stderr
    if done.returncode == 1:
        assert done.stderr.startswith("error: "), done.stderr
        assert "\nhint: " in done.stderr, done.stderr


FAULTS = {
    # Unknown and mistyped keys, at each level, with the nearest name.
    "top": ('agrv = ["true"]', "agrv", "did you mean `argv`?"),
    "resources": ('argv = ["true"]\n[resources]\ngpu_s = 1', "resources.gpu_s", "did you mean `gpus`?"),
    "retries": ('argv = ["true"]\n[retries]\ncod = 1', "retries.cod", "did you mean `code`?"),
    "keep": ('argv = ["true"]\n[keep]\nlast = 1', "keep.last", "is not a known key"),
    "environment": (
        'argv = ["true"]\n[environment]\nrequirement = []',
        "environment.requirement",
        "did you mean `requirements`?",
    ),
    "input": ('argv = ["true"]\n[inputs.x]\npth = "a"', "inputs.x", "pth"),
    # Wrong types.
    "argv": ('argv = "true"', "argv", "list"),
    "argv of numbers": ("argv = [1, 2]", "argv[0]", "string"),
    "gpus": ('argv = ["true"]\n[resources]\ngpus = "two"', "resources.gpus", "whole number"),
    "half a gpu": ('argv = ["true"]\n[resources]\ngpus = 0.5', "resources.gpus", "whole number"),
    "size": ('argv = ["true"]\n[resources]\nmin_ram = "8 gigs"', "resources.min_ram", "24GiB"),
    "duration": ('argv = ["true"]\nwall_limit = "soon"', "wall_limit", "is not a duration"),
    "a date": ('argv = ["true"]\nname = 2026-01-01', "name", "string"),
    "a table": ('name = "x"\n[argv]\nx = 1', "argv", "list"),
    # Absurd sizes.
    "many gpus": ('argv = ["true"]\n[resources]\ngpus = 100000', "resources.gpus", "1024"),
    "much memory": ('argv = ["true"]\n[resources]\nmin_ram = "9999999PB"', "resources.min_ram", ""),
    "negative": ('argv = ["true"]\n[resources]\nmin_cores = -1', "resources.min_cores", "0"),
    "long time": ('argv = ["true"]\nwall_limit = "999999d"', "wall_limit", ""),
    "infinite": ('argv = ["true"]\nwall_limit = inf', "wall_limit", "finite"),
    "not a number": ('argv = ["true"]\n[params]\nlr = nan', "params.lr", "finite"),
    "long name": (f'argv = ["true"]\nname = "{"x" * 100}"', "name", "at most 64"),
    "seed": ('argv = ["true"]\nseeds = [99999999999999999999]', "seeds", "64 bits"),
    "seed twice": ('argv = ["true"]\nseeds = [1, 1]', "seeds", "twice"),
    "sweep": (
        'argv = ["true"]\n[sweep]\na = [' + "1," * 200 + "]\nb = [" + "1," * 200 + "]",
        "40000 runs",
        "at most 10000",
    ),
    # What makes no sense.
    "empty argv": ("argv = []", "argv", ""),
    "no argv": ('name = "x"', "argv", "required"),
    "hole": ('argv = ["echo", "{params.lr}"]', "params.lr", "does not have"),
    "reserved": ('argv = ["true"]\n[env]\nCORRAL_RUN_ID = "x"', "CORRAL_RUN_ID", "worker's"),
    "project": ('argv = ["true"]\nproject = "../x"', "project", "is not a name"),
    "nul": ('argv = ["a\\u0000b"]', "argv", "NUL"),
    "secret": ('argv = ["true"]\nsecrets = ["NOT_SET"]', "NOT_SET", "does not have"),
    "no such code": ('argv = ["true"]\ncode = "nowhere"', "code", "is not a folder"),
    "no such input": ('argv = ["true"]\n[inputs]\nx = "nowhere"', "inputs.x", "neither a file nor a folder"),
    "no such artifact": (
        'argv = ["true"]\n[inputs]\nx = {artifact = "a-bcdfghjkmnpq"}',
        "inputs.x",
        "does not have",
    ),
    "no such run": ('argv = ["true"]\n[inputs]\nx = {run = "r-bcdfghjkmnpq"}', "r-bcdfghjkmnpq", "no run"),
    # Not a run file at all.
    "syntax": ('argv = ["true"]\nname = "x\n', "is not valid TOML", "line 2"),
    "twice": ('argv = ["true"]\nargv = ["true"]\n', "is not valid TOML", "line 2"),
    "empty": ("", "argv", "required"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_faulty_run_file_is_refused_at_its_place(what: str, corral: Installation, tmp_path: Path) -> None:
    text, *words = FAULTS[what]
    path = tmp_path / "run.toml"
    path.write_text(text)

    assert_refused(corral("submit", str(path)), *words)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe\x00a", "is not UTF-8"),
        (b"argv = " + b"[" * 100_000, "nested too deeply"),
        (b"#" * (5 << 20), "larger than"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "TOML"),
    ],
    ids=["not UTF-8", "deep", "5 MB", "a program"],
)
def test_a_file_that_is_no_run_file_is_refused(
    data: bytes, words: str, corral: Installation, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(data)

    assert_refused(corral("submit", str(path)), words)


def test_a_run_file_that_is_a_folder_or_missing_is_refused(corral: Installation, tmp_path: Path) -> None:
    assert_refused(corral("submit", str(tmp_path)), "cannot be read")
    assert_refused(corral("submit", str(tmp_path / "none.toml")), "cannot be read")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",),
        ("run", "--"),
        ("run", "--", ""),
        ("run", "--env", "A", "--", "true"),
        ("run", "--set", "nonsense", "--", "true"),
        ("run", "--set", "resources.gpsu=1", "--", "true"),
        ("show", "r-bcdfghjkmnpq"),
        ("show", "../../etc/passwd"),
        ("show", "a\nb"),
        ("logs", ".."),
        ("cancel", "x" * 3000),
        ("requeue", "r-"),
        ("artifacts", "get", "a-bcdfghjkmnpq"),
        ("artifacts", "verify", "é"),
        ("hosts", "drain", "no/such"),
        ("tokens", "rm", "t-.."),
        ("secrets", "rm", "NOT_SET"),
        ("ls", "--label", "nonsense"),
        ("ls", "--state", "runing"),
    ],
    ids=lambda arguments: " ".join(arguments)[:40],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    arguments: tuple[str, ...], corral: Installation
) -> None:
    done = corral(*arguments)

    assert done.returncode in (1, 2), (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stderr


def test_debug_prints_the_traceback(corral: Installation) -> None:
    """MT-C14."""
    done = corral("--debug", "show", "r-bcdfghjkmnpq")

    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "NotFound" in done.stderr


def test_no_server_is_exit_3(tmp_path: Path) -> None:
    done = Installation(tmp_path)("ls")

    assert done.returncode == 3
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


LISTS = [
    ("ls",),
    ("ls", "--all"),
    ("artifacts", "ls"),
    ("hosts", "ls"),
    ("secrets", "ls"),
    ("tokens", "ls"),
    ("show", "latest"),
    ("events", "latest"),
    ("metrics", "latest"),
    ("why", "latest"),
    ("logs", "latest"),
    ("fsck",),
    ("status",),
]


@pytest.mark.parametrize("arguments", LISTS, ids=" ".join)
def test_json_is_json_on_every_command_that_lists(arguments: tuple[str, ...], corral: Installation) -> None:
    """MT-C04: for programs and agents."""
    corral.ok("run", "--", "echo", "one line")
    out = corral.ok(*arguments, "--json")

    try:
        json.loads(out)
    except ValueError:
        # Streams are lines of JSON, and no line when there is nothing.
        assert all(json.loads(line) for line in out.splitlines())


def test_a_reader_that_goes_away_is_no_error_to_show(corral: Installation) -> None:
    code = "for i in range(50_000): print('line', i)"
    corral.python(code, "--quiet", "--name", "long")
    for command in ("logs latest", "events latest", "schema", "ls --all", "--help"):
        piped = f"{CORRAL} {command} | head -n 1"
        done = subprocess.run(
            ["bash", "-c", piped], capture_output=True, text=True, env=corral.env, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout.count("\n") == 1
