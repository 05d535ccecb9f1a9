"""docs/reference/points.md: each point that was learned from others has a test, or a reason why not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from repo.citations import cited
from repo.sources import ROOT

PAGE = ROOT / "docs" / "reference" / "points.md"
LAST = {
    "MT-C": 57,
    "MT-D": 54,
    "EN-C": 31,
    "EN-D": 21,
    "FL-C": 30,
    "FL-D": 48,
    "RF-C": 40,
    "RF-D": 71,
    "DL-C": 29,
    "DL-D": 47,
}
IDS = [f"{kind}{number:02d}" for kind, last in LAST.items() for number in range(1, last + 1)]
LATER = {
    "rented machines",
    "serving",
    "preferences and distillation",
    "a server for Tinker clients",
    "a server for OpenAI clients",
    "environments of others",
    "functions",
    "DiLoCo",
    "pages",
    "tools around it",
}
Row = tuple[str, str, str]
_ROW = re.compile(r"^\| ((?:MT|EN|FL|RF|DL)-[CD]\d\d) \| (.*) \| (.*) \|$", re.MULTILINE)
_NAMED = re.compile(r"`(tests/[^`]*)`")
_LATER = re.compile(r"Later, ([a-zA-Z ]+): \S.+")
_NOT = re.compile(r"Not, because \S.+")


def rows() -> list[Row]:
    return [(row[0], row[1], row[2]) for row in _ROW.findall(PAGE.read_text(encoding="utf-8"))]


def faults(page: Sequence[Row], citing: Mapping[str, frozenset[str]]) -> list[str]:
    """What is wrong with each row: it names tests that cite its id, or says "later" or why not."""
    return [f"{row[0]}: {fault}" for row in page for fault in _faults(row, citing.get(row[0], frozenset()))]


def _faults(row: Row, citing: frozenset[str]) -> list[str]:
    _, what, where = row
    if not what.strip():
        return ["it says nothing"]
    named = _NAMED.findall(where)
    files = {test.partition("::")[0] for test in citing}
    if named:
        return [
            f"{test} does not cite it in the docstring of a test"
            for test in named
            if test not in citing | files
        ]
    later = _LATER.fullmatch(where)
    if later and later[1] not in LATER:
        return [f"there is no part that is called {later[1]}"]
    return [] if later or _NOT.fullmatch(where) else [f"neither a test nor a reason: {where}"]


def test_every_point_has_one_row_in_order() -> None:
    assert [point for point, _, _ in rows()] == IDS


def test_each_row_names_tests_that_cite_its_id_or_a_reason() -> None:
    assert faults(rows(), cited()) == []


@pytest.mark.parametrize(
    ("where", "fault"),
    [
        ("`tests/unit/test_a.py::test_one`", None),
        ("`tests/unit/test_a.py`", None),
        ("`tests/unit/test_a.py::test_one`; the rest is absent", None),
        ("Later, serving: nothing is served yet", None),
        ("Not, because nobody is charged", None),
        ("`tests/unit/test_a.py::test_two`", "test_two does not cite it"),
        ("`tests/unit/test_b.py`", "test_b.py does not cite it"),
        ("`tests/unit/test_a.py::test_one`, `tests/support/waiting.py`", "waiting.py does not cite it"),
        ("Later, some day: nothing", "there is no part that is called some day"),
        ("Later, serving:", "neither a test nor a reason"),
        ("No test: a habit", "neither a test nor a reason"),
        ("the tutorials", "neither a test nor a reason"),
        ("", "neither a test nor a reason"),
    ],
)
def test_a_row_that_shows_nothing_is_refused(where: str, fault: str | None) -> None:
    citing = {
        "MT-C01": frozenset({"tests/unit/test_a.py::test_one"}),
        "MT-C02": frozenset({"tests/unit/test_a.py::test_two", "tests/unit/test_b.py::test_three"}),
    }

    found = faults([("MT-C01", "a point", where)], citing)

    assert len(found) == (fault is not None)
    assert (fault or "") in "".join(found)


def test_no_test_cites_a_point_that_there_is_not() -> None:
    points = {one for one in cited() if one[:4] in {kind[:4] for kind in LAST}}

    assert points - {*IDS} == set()


def test_no_part_calls_itself_mcp() -> None:
    """MT-D40: a stock client of that protocol could not use it."""
    sources = [*(ROOT / "corral").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]

    found = [path for path in sources if re.search(r"\bMCP\b", path.read_text("utf-8"), re.IGNORECASE)]

    assert [path for path in found if path != PAGE] == []


def test_nothing_that_is_no_longer_maintained_is_needed() -> None:
    """EN-D18."""
    assert "torchtune" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for path in (ROOT / "corral").rglob("*.py"):
        assert "import torchtune" not in path.read_text(encoding="utf-8")
