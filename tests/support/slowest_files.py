"""The ten files that took longest, at the end of a run; hooks for conftest.py."""

from __future__ import annotations

import os
from collections import Counter

import pytest

SHOWN = 10
SEEDS = ("CORRAL_CHAOS_SEED", "CORRAL_DILOCO_SEED", "CORRAL_FLEET_SEED", "CORRAL_MODEL_SEED")
_spent: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _spent[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if len(_spent) > SHOWN:
        whole = sum(_spent.values())
        terminalreporter.section(f"slowest {SHOWN} of {len(_spent)} files, which took {whole:.0f} s together")
        for name, seconds in _spent.most_common(SHOWN):
            terminalreporter.write_line(f"{seconds:7.1f} s  {name}")
    terminalreporter.write_line(f"replay with {' '.join(f'{seed}={os.environ[seed]}' for seed in SEEDS)}")
