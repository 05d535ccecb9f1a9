"""What all commands share: completion, colours, pipes."""

from __future__ import annotations

import json
import subprocess

from support.installation import CORRAL, Installation


def test_the_shell_completes_run_ids(corral: Installation) -> None:
    newest = json.loads(corral.ok("ls", "--json"))[0]["id"]
    env = {
        **corral.env,
        "_CORRAL_COMPLETE": "complete_bash",
        "COMP_WORDS": f"corral show {newest[:6]}",
        "COMP_CWORD": "2",
    }
    done = subprocess.run([CORRAL], capture_output=True, text=True, env=env, timeout=60, check=False)

    assert newest in done.stdout.split()


def test_piped_output_has_no_colours_and_a_closed_pipe_is_no_noise(corral: Installation) -> None:
    assert "\x1b" not in corral.ok("ls")
    env = {**corral.env, "PYTHONUNBUFFERED": "1"}
    script = f"{CORRAL} ls --all --json | head -c 1"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=env, timeout=60, check=False
    )

    assert (done.stdout, done.stderr) == ("[", "")


def test_a_drained_host_takes_nothing_until_it_resumes(corral: Installation) -> None:
    name = json.loads(corral.ok("hosts", "ls", "--json"))[0]["name"]
    assert "drains" in corral.ok("hosts", "drain", name)
    assert "takes runs again" in corral.ok("hosts", "resume", name)
