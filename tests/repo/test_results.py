"""What was measured names the commit at which it was, so that `python -m bench stale` can say what is old."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from repo.sources import ROOT

sys.path.insert(0, str(ROOT))

from bench.commits import MEASURED, measured_at, stale
from bench.engine import table

RESULTS = ROOT / "bench" / "results"
# Measured before this rule. Whoever measures one anew takes it off the list; nothing is ever added.
MEASURED_BEFORE = {
    *("beats.json", "beats.md", "cycles.json", "cycles.md", "deep_queue.json", "deep_queue.md"),
    *("eligibility.json", "eligibility.md", "engine.json", "engine.md"),
    *("functions.json", "functions.md", "help.json", "help.md", "manifest.json", "manifest.md"),
    *("memory.json", "memory.md", "polling.json", "polling.md", "simulation.json", "simulation.md"),
    *("start.json", "start.md", "summary.md", "upload.json", "upload.md"),
}
_COMMIT = re.compile(r"[0-9a-f]{7,40}\+?")
_NAMED = re.compile(r"measured at commit (\S+?)(?=[.:;,]|\s|$)", re.IGNORECASE)


def _names_its_commit(path: Path) -> bool:
    if path.suffix == ".json":
        found = measured_at(json.loads(path.read_text(encoding="utf-8")))
    else:
        found = set(_NAMED.findall(path.read_text(encoding="utf-8")))
    return bool(found) and all(commit is not None and _COMMIT.fullmatch(commit) for commit in found)


def test_every_file_of_results_names_its_commit() -> None:
    """DEF-11."""
    files = [path for path in RESULTS.rglob("*") if path.is_file()]

    assert {path.name for path in files if not _names_its_commit(path)} == MEASURED_BEFORE


def test_a_table_whose_code_has_changed_since_is_listed(tmp_path: Path) -> None:
    """DEF-11: by the history of what it measures; a path of that code that is gone would hide its changes."""
    assert [path for paths in MEASURED.values() for path in paths if not (ROOT / path).exists()] == []
    oldest, newest = _commits()
    # The others: with files that are not committed, at a commit that is not here, at an unknown one.
    kept = {"beats": oldest, "help": f"{newest}+", "cycles": "0123456789", "start": None}
    for name, commit in kept.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"commit": commit}))

    found = {name: why for name, _, why in stale(tmp_path).rows}

    for name in ("beats", "help"):
        assert "of what it measures have changed" in found[name]
    assert not found["beats"].startswith("0 ")
    assert found["cycles"] == "its commit is not in this history"
    assert found["start"] == "its commit is not known"
    assert found["upload"] == "never measured"


def _commits() -> tuple[str, str]:
    """The first and the last of this history."""
    log = ["git", "rev-list", "--abbrev-commit", "--first-parent", "HEAD"]
    done = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False)
    found = done.stdout.split()
    if len(found) < 2:
        pytest.skip("there is no history here")
    return found[-1], found[0]


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """Some parts of the engine's table, and later another one, measured at another commit."""
    new, kept = tmp_path / "new", tmp_path / "kept"
    machine = {"gpu": "a GPU", "torch": "2", "transformers": "5"}
    first = {"machine": machine, "check": [], "sft": [], "commit": {"check": "1234567", "sft": "1234567"}}
    then = {"machine": machine, "decode": [], "commit": {"decode": "89abcde+"}}
    swept = [{"what": "a setting", "commit": "89abcde+"}]
    for folder, part in ((kept, first), (new, then | {"sweep": swept})):
        folder.mkdir()
        (folder / "engine.json").write_text(json.dumps(part))
    table.merge(new, kept)
    table.write(kept)
    return kept


def test_all_that_the_engine_writes_names_its_commits(merged: Path) -> None:
    assert {path.name for path in merged.iterdir() if _names_its_commit(path)} == {
        "engine.json",
        "engine.md",
        "engine-forecast-runs.json",
    }
    assert "measured at commit 1234567: check, sft" in (merged / "engine.md").read_text()


def test_a_part_whose_commit_nobody_knows_is_told(merged: Path) -> None:
    """DEF-11."""
    kept = json.loads((merged / "engine.json").read_text())
    del kept["commit"]["sft"]
    (merged / "engine.json").write_text(json.dumps(kept))

    table.merge(merged, merged)
    table.write(merged)

    assert not _names_its_commit(merged / "engine.json")
    assert not _names_its_commit(merged / "engine.md")
    assert ["engine", "", "its commit is not known"] in list(stale(merged).rows)
