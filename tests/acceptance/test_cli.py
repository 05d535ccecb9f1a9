"""What all commands share: completion, colours, pipes."""

from __future__ import annotations

import json
import subprocess
import sys

from support.installation import CORRAL, Installation
from support.waiting import eventually


def test_the_shell_completes_run_ids(corral: Installation) -> None:
    newest = corral.ok("run", "--detach", "--", "true").strip()
    env = {
        **corral.env,
        "_CORRAL_COMPLETE": "complete_bash",
        "COMP_WORDS": f"corral show {newest[:6]}",
        "COMP_CWORD": "2",
    }
    done = subprocess.run([CORRAL], capture_output=True, text=True, env=env, timeout=60, check=False)

    assert newest in done.stdout.split()


def test_piped_output_has_no_colours_and_a_closed_pipe_is_no_noise(corral: Installation) -> None:
    """MT-C18."""
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


def test_control_characters_of_others_do_not_reach_the_terminal(corral: Installation) -> None:
    """SEC-20: labels, params, metrics, progress, last words: all of it is shown, none of it is obeyed."""
    code = (
        "import json, os, sys\n"
        "with open(os.environ['CORRAL_EVENTS'], 'a') as file:\n"
        "    print(json.dumps({'metrics': {'lo\\x1b[2Jss': 1.0}}), file=file)\n"
        "    print(json.dumps({'progress': {'at\\x9b': 'here\\x1b[2J'}}), file=file)\n"
        "    print(json.dumps({'note': 'noted\\x1b[2J'}), file=file)\n"
        "sys.exit('sorry\\x1b[2J')"
    )
    labelled = ("--label", "team=\x1b[2Jred", "--set", "params.x=\x1b[31m", "--name", "nasty")
    run_id = corral.ok("run", "--detach", *labelled, "--", sys.executable, "-c", code).strip()
    eventually(lambda: corral.state(run_id) == "failed", "the run to end")

    said = [corral(*one, run_id) for one in (("show",), ("events",), ("metrics",), ("why",))]
    said += [corral("ls", "--name", "nasty"), corral("show", run_id, "--json"), corral("show", "r-\x1b[2J")]

    shown = "".join(done.stdout + done.stderr for done in said)
    assert shown.replace("\n", "").isprintable(), repr(shown)
    assert "team=\\x1b[2Jred" in shown
    assert "sorry\\x1b[2J" in shown
    assert "lo\\x1b[2Jss" in shown
