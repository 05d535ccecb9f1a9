"""Which tests go to which process: whole files, the longest first; of some files, test by test."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

TESTS = Path(__file__).resolve().parents[1]
# One process and in this order: the others read what the first has converted.
SMOLLM2 = ("engine/test_smollm2.py", "engine/test_greedy.py", "engine/test_learns.py")
# One process and in this order: they share a Ray.
RAY = ("contract/test_ray_executor.py", "acceptance/test_executors.py")
# One process: its second forking process imports the engine once for all of them.
TRAINING_PAGES = (
    "README",
    "howto/forecast-and-cost",
    "howto/own-training-loop",
    "howto/resume-a-training-run",
    "tutorial/train-grpo",
    "tutorial/train-sft",
    "tutorial/write-an-environment",
)
# So that all processes are busy to the end.
LONGEST = (
    "docs/test_pages.py",
    *RAY,
    *SMOLLM2,
    "acceptance/test_training.py",
    "acceptance/test_run_folders.py",
    "acceptance/test_run_programs.py",
    "engine/test_resume.py",
    "fleet",
    "acceptance",
    "durability",
    "model",
    "chaos",
    "calls",
    "api",
    "engine",
)
# Each test of these can go to any process: they share nothing but what every process has of its own.
APART = (
    "docs/test_pages.py",
    "fleet",
    "acceptance/test_hosts.py",
    "acceptance/test_outage.py",
    "acceptance/test_dependencies.py",
    "durability/test_powercut_server.py",
)


def _is_in(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}/")


def sort_longest_first(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        name = item.path.relative_to(TESTS).as_posix()
        return next((n for n, place in enumerate(LONGEST) if _is_in(name, place)), len(LONGEST))

    items.sort(key=rank)


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """One file, one process: its tests share fixtures, and some come in order."""

    def _split_scope(self, nodeid: str) -> str:
        name = nodeid.partition("::")[0].removeprefix("tests/")
        if name == "docs/test_pages.py" and any(f"{page}.md" in nodeid for page in TRAINING_PAGES):
            return "training pages"
        if any(_is_in(name, place) for place in APART):
            return nodeid
        if name in RAY:
            return "ray"
        return "smollm2" if name in SMOLLM2 else name
