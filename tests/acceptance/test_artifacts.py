"""What runs leave, and what is made of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.installation import Installation


def test_what_a_run_leaves_can_be_read_in_every_way(corral: Installation, tmp_path: Path) -> None:
    """FL-C09, MT-C13."""
    code = (
        "import json, os, pathlib\n"
        "pathlib.Path(os.environ['CORRAL_OUTPUT_DIR'], 'model.txt').write_text('weights')\n"
        "with open(os.environ['CORRAL_EVENTS'], 'a') as events:\n"
        "    for step in range(5):\n"
        "        events.write(json.dumps({'metrics': {'loss': 1 / (step + 1)}, 'step': step}) + '\\n')\n"
        "print('line one'); print('line two')\n"
    )
    done = corral.python(code)
    assert done.returncode == 0, done.stderr
    assert "artifact a-" in done.stderr

    run = json.loads(corral.ok("show", "latest", "--json"))
    assert corral.ok("logs", run["id"], "--tail", "1") == "line two\n"
    assert [json.loads(line)["text"] for line in corral.ok("logs", run["id"], "--json").splitlines()][:2] == [
        "line one",
        "line two",
    ]
    assert corral("logs", "-f", run["id"][:8]).stdout == "line one\nline two\n"
    assert "█" in corral.ok("metrics", run["id"])
    assert len(corral.ok("metrics", run["id"], "--json").splitlines()) == 5
    assert "succeeded" in corral.ok("show", run["id"])
    assert corral.ok("events", run["id"]).count("\n") >= 3
    assert corral.ok("why", run["id"])
    target = tmp_path / "got"
    said = corral.ok("artifacts", "get", run["id"], str(target))
    assert said == f"{target}/: 1 file, 7 B; every file matches its digest\n"
    assert (target / "model.txt").read_text() == "weights"
    assert "all match their digests" in corral.ok("artifacts", "verify", run["artifact_id"])
    assert "is pinned" in corral.ok("artifacts", "pin", run["artifact_id"])


def test_a_result_is_the_input_of_the_next_run(corral: Installation, tmp_path: Path) -> None:
    write = (
        "import os, pathlib; pathlib.Path(os.environ['CORRAL_OUTPUT_DIR'], 'a.txt').write_text('passed on')"
    )
    assert corral.python(write, "--name", "first").returncode == 0
    first = json.loads(corral.ok("ls", "--name", "first", "--json"))[0]["id"]
    path = tmp_path / "run.toml"
    read = "import os, pathlib; print(pathlib.Path(os.environ['CORRAL_INPUT_DIR'], 'x', 'a.txt').read_text())"
    path.write_text(
        f'argv = {json.dumps([sys.executable, "-c", read])}\n[inputs]\nx = {{ run = "{first}" }}\n'
    )

    assert corral("submit", str(path), "--follow").stdout == "passed on\n"
