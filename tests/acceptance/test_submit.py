"""Describing a run on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.installation import Installation


@pytest.mark.parametrize(
    ("code", "expected"),
    [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137), ("", 0)],
)
def test_the_exit_code_is_the_programs(code: str, expected: int, corral: Installation) -> None:
    """MT-C17."""
    assert corral.python(code).returncode == expected


@pytest.mark.parametrize(("mode", "expected"), [(None, 127), (0o644, 126)])
def test_a_program_that_cannot_be_started_gives_the_code_of_a_shell(
    mode: int | None, expected: int, corral: Installation, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    if mode is not None:
        program.touch(mode)

    done = corral("run", "--", str(program))

    assert done.returncode == expected
    assert "cannot execute" in done.stderr
    assert "corral logs" not in done.stderr
    assert json.loads(corral.ok("show", "latest", "--json"))["exit_code"] == expected


def test_env_labels_and_overrides_reach_the_run(corral: Installation) -> None:
    """MT-C23."""
    done = corral.python(
        "import os; print(os.environ['A'])", "--env", "A=b=c", "--label", "team=x", "--set", "priority=5"
    )

    assert done.stdout == "b=c\n"
    newest = json.loads(corral.ok("ls", "--label", "team=x", "--json"))[0]
    assert (newest["priority"], newest["labels"]) == (5, {"team": "x"})


def test_code_is_shipped_without_what_is_ignored(corral: Installation, tmp_path: Path) -> None:
    """MT-C40."""
    (tmp_path / "say.py").write_text("import os; print(sorted(os.listdir('.')))")
    (tmp_path / "big.bin").write_bytes(b"x" * 1000)
    (tmp_path / ".gitignore").write_text("*.bin\n")

    done = corral("run", "--code", str(tmp_path), "--", sys.executable, "say.py")

    assert done.returncode == 0, done.stderr
    assert "say.py" in done.stdout
    assert "big.bin" not in done.stdout


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    (tmp_path / "data.txt").write_text("from the input")
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
        name = "sweep"
        argv = [{sys.executable!r}, "-c", "print('lr', '{{params.lr}}', 'seed', '{{seed}}')"]
        seeds = [0, 1]
        [inputs]
        data = "data.txt"
        [sweep]
        lr = [0.1, 0.2]
        """
    )
    return path


def test_a_dry_run_shows_spec_and_hosts_and_stores_nothing(corral: Installation, sweep: Path) -> None:
    before = corral.ok("ls", "--all", "--json")
    artifacts = corral.ok("artifacts", "ls", "--json")

    shown = json.loads(corral.ok("submit", str(sweep), "--dry-run", "--json", "--set", "params.x=3e-4"))

    assert [(run["params"]["lr"], run.get("seed")) for run in shown["runs"]] == [
        (0.1, 0),
        (0.1, 1),
        (0.2, 0),
        (0.2, 1),
    ]
    assert shown["runs"][0]["params"]["x"] == 3e-4
    assert [host["eligible"] for host in shown["hosts"]] == [True]
    assert corral.ok("ls", "--all", "--json") == before
    assert corral.ok("artifacts", "ls", "--json") == artifacts


def test_options_after_the_program_are_the_program_s(corral: Installation) -> None:
    assert corral("run", "-q", "echo", "-l", "a", "--name", "b").stdout == "-l a --name b\n"


def test_a_dry_run_names_what_would_be_uploaded(corral: Installation, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "poem.txt").write_text("roses")
    (tmp_path / "run.toml").write_text('argv = ["true"]\ninputs.poems = "data"\n')

    said = corral.ok("submit", str(tmp_path / "run.toml"), "--dry-run")

    assert f"input poems: {tmp_path / 'data'} (1 file, 5 B)" in said
