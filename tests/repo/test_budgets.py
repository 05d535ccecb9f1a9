"""How long things may be: a hard stop, far above what is meant to be usual. RF-D67."""

from __future__ import annotations

import ast

from repo.sources import modules

MODULE_LINES = 800
INIT_LINES = 45
FUNCTION_LINES = 80


def test_no_module_is_too_long() -> None:
    """MT-D53, RF-D67."""
    assert [f"{m}: {m.lines}" for m in modules() if m.lines > MODULE_LINES] == []


def test_an_init_holds_a_docstring_and_exports() -> None:
    assert [f"{m}: {m.lines}" for m in modules() if m.is_package and m.lines > INIT_LINES] == []


def test_no_function_is_too_long() -> None:
    """MT-C55, RF-D67."""
    found = [
        f"{module}.{node.name}: {length}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]

    assert found == []
