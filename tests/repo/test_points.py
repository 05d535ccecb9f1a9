"""docs/reference/points.md: each point that was learned from others has a test, or a reason why not."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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
}
IDS = [f"{kind}{number:02d}" for kind, last in LAST.items() for number in range(1, last + 1)]
_ROW = re.compile(r"^\| ((?:MT|EN|FL|RF)-[CD]\d\d) \| (.*) \| (.*) \|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[a-z_/0-9]+\.py)(?:::(test_[A-Za-z0-9_]+))?`")
_REASON = re.compile(r"(Does not apply|No test|Not supported|Later, [a-zA-Z ]+): \S.+")


def rows() -> list[tuple[str, str, str]]:
    return [(row[0], row[1], row[2]) for row in _ROW.findall(PAGE.read_text(encoding="utf-8"))]


def cites(path: Path, point: str) -> bool:
    """As `MT-D13`, or as `mt_d13` in the name of a test."""
    text = path.read_text(encoding="utf-8").lower()
    return (
        point.lower() in text or re.search(rf"_{point.lower().replace('-', '_')}(?![0-9])", text) is not None
    )


def test_every_point_has_one_row_in_order() -> None:
    assert [point for point, _, _ in rows()] == IDS


def test_no_row_is_empty() -> None:
    for point, what, where in rows():
        assert what.strip(), point
        assert _TEST.search(where) or _REASON.fullmatch(where), (
            f"{point}: neither a test nor a reason: {where}"
        )


def test_what_is_called_tested_is_cited_by_that_test_or_names_it() -> None:
    wrong = []
    for point, _, where in rows():
        for file, name in _TEST.findall(where):
            path = ROOT / file
            if not path.is_file():
                wrong.append(f"{point}: there is no {file}")
            elif name and not re.search(rf"^ *(async )?def {name}\(", path.read_text("utf-8"), re.MULTILINE):
                wrong.append(f"{point}: {file} has no {name}")
            elif not name and not cites(path, point):
                wrong.append(f"{point}: {file} does not cite it")
    assert wrong == []


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
