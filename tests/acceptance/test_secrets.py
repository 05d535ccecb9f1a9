"""Secrets from the command line."""

from __future__ import annotations

from support.installation import Installation


def test_a_secret_comes_from_stdin_and_is_hidden_in_the_output(corral: Installation) -> None:
    corral.ok("secrets", "set", "API_KEY", given="hunter2-hunter2\n")

    done = corral.python("import os; print(os.environ['API_KEY'])", "--secret", "API_KEY")

    assert done.returncode == 0, done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert "API_KEY" in corral.ok("secrets", "ls")
    corral.ok("secrets", "rm", "API_KEY")
    assert "API_KEY" not in corral.ok("secrets", "ls")
