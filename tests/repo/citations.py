"""Which ids the tests cite. Only the docstring of a test itself counts: there the id stands beside what is
asserted, and a file that says of itself what it is about shows nothing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache

from repo.sources import ROOT

_ID = re.compile(r"\b(?:(?:MT|EN|FL|RF|DL)-[CD]|(?:SEC|DEF|NEW|STO|FNX)-)\d\d\b")


@cache
def cited() -> Mapping[str, frozenset[str]]:
    """For each id the tests that cite it, as pytest calls them: `tests/unit/test_x.py::test_y`."""
    found: dict[str, set[str]] = defaultdict(set)
    tests = ROOT / "tests"
    # A suite that several files run, each over a cluster of its own, is written once.
    for path in sorted([*tests.rglob("test_*.py"), *tests.glob("support/*_contract.py")]):
        file = path.relative_to(ROOT).as_posix()
        for name, docstring in _tests(ast.parse(path.read_text(encoding="utf-8"))):
            for one in _ID.findall(docstring):
                found[one].add(f"{file}::{name}")
    return {one: frozenset(tests) for one, tests in found.items()}


def _tests(tree: ast.Module) -> Iterator[tuple[str, str]]:
    suites = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in [*tree.body, *(part for suite in suites for part in suite.body)]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name, ast.get_docstring(node) or ""
