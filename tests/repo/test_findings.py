"""tests/repo/findings.txt: what was found wrong once has a test that cites it, or a reason why not."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from repo.citations import cited
from repo.sources import ROOT

LIST = ROOT / "tests" / "repo" / "findings.txt"
_LINE = re.compile(r"([A-Z]{3})-(\d\d)(?: to \1-(\d\d)| (not, because \S.+))?")


def wanted(text: str) -> dict[str, str | None]:
    """Each id with the reason why no test cites it, if there is one."""
    found: dict[str, str | None] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"neither an id, a range nor a reason: {line}")
        kind, first, last, reason = match.groups()
        for number in range(int(first), int(last or first) + 1):
            found[f"{kind}-{number:02d}"] = reason
    return found


def uncited(text: str, citing: Mapping[str, frozenset[str]]) -> list[str]:
    return [one for one, reason in wanted(text).items() if reason is None and one not in citing]


def test_every_finding_is_cited_by_a_test_or_says_why_not() -> None:
    assert uncited(LIST.read_text(encoding="utf-8"), cited()) == []


def test_the_list_has_all_that_was_found() -> None:
    found = wanted(LIST.read_text(encoding="utf-8"))

    counts = {
        kind: sum(one.startswith(kind) for one in found) for kind in ("SEC", "DEF", "NEW", "STO", "FNX")
    }
    assert counts == {"SEC": 22, "DEF": 11, "NEW": 33, "STO": 13, "FNX": 6}


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("SEC-01", []),
        ("SEC-01 to SEC-02", ["SEC-02"]),
        ("SEC-02", ["SEC-02"]),
        ("SEC-02 not, because it is a habit", []),
        ("SEC-01 to SEC-03\nSEC-02 not, because it is a habit", ["SEC-03"]),
    ],
)
def test_an_id_that_nothing_cites_is_named(text: str, missing: list[str]) -> None:
    assert uncited(text, {"SEC-01": frozenset({"tests/unit/test_a.py::test_one"})}) == missing


@pytest.mark.parametrize("text", ["SEC-2", "SEC-02 later", "SEC-02 not, because ", "SEC-01 to STO-02"])
def test_a_line_that_is_no_finding_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither an id, a range nor a reason"):
        wanted(text)
