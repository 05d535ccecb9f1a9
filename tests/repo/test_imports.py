"""Who imports what. The layers themselves are import-linter's; see pyproject.toml."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter

import pytest

from repo.sources import ROOT, Module, imports, modules

HEAVY = ("torch", "kubernetes", "sqlalchemy", "alembic", "fastapi", "uvicorn", "psycopg", "cryptography")


def test_no_module_imports_itself_by_way_of_others() -> None:
    names = {module.name for module in modules()}
    graph = {
        module.name: {found for name in imports(module) if (found := _known(name, names))}
        for module in modules()
    }

    # A CycleError names the modules.
    assert len(list(TopologicalSorter(graph).static_order())) == len(names)


def _known(name: str, names: set[str]) -> str | None:
    return name if name in names else parent if (parent := name.rpartition(".")[0]) in names else None


def test_the_domain_needs_only_the_standard_library() -> None:
    allowed = sys.stdlib_module_names | {"corral"}
    domain = [module for module in modules() if module.name.startswith("corral.domain")]

    foreign = {f"{m}: {name}" for m in domain for name in imports(m) if name.split(".")[0] not in allowed}
    ours = {
        f"{m}: {name}"
        for m in domain
        for name in imports(m)
        if name.startswith("corral.") and not name.startswith(("corral.domain.", "corral.errors."))
    }

    assert foreign | ours == set()


@pytest.mark.parametrize(
    "name", ["corral.client.corral", "corral.wire.spec.run_file", "corral.cli.main", "corral.cli.runs.submit"]
)
def test_a_light_part_loads_nothing_heavy(name: str) -> None:
    """MT-C06."""
    script = f"import sys, {name}; print([m for m in {HEAVY!r} if m in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=os.sep
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "unwanted"),
    [
        (
            "corral.server.__main__",
            ("rich", "pygments", "httpx._main", "alembic", "sqlalchemy", "psycopg", "cryptography", "torch"),
        ),
        ("corral.worker.__main__", ("rich", "pygments", "httpx._main", "cryptography", "fastapi", "uvicorn")),
    ],
)
def test_a_process_that_runs_for_long_loads_nothing_that_it_never_uses(
    name: str, unwanted: tuple[str, ...]
) -> None:
    """DEF-10: an idle `corral up` stays below 150 MB; `bench/memory.py` measures it."""
    script = f"import sys, {name}; print([m for m in {unwanted!r} if sys.modules.get(m)])"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=os.sep
    )

    assert done.stdout.strip() == "[]"


# The engine is a child of its own, whose entry points read what the child contract gives them.
READERS = (
    "corral.settings",
    "corral.engine.__main__",
    "corral.engine.environments.worker",
    "corral.instance.main",
    "corral.rank",
    # It runs on a node, and hands on what Ray gave it.
    "corral.adapters.executors.ray.rank_actor",
    # A process of its own, which takes over the variables that it is told.
    "corral.adapters.executors.ray.driver",
    # The first process of a container, which has what AWS gave it and nothing of Corral's yet.
    "corral.worker.on_sagemaker",
)


def test_only_settings_reads_the_environment() -> None:
    readers = {
        f"{module}:{getattr(node, 'lineno', '?')}"
        for module in modules()
        if module.name not in READERS
        for node in ast.walk(module.tree)
        if _reads_environment(node)
    }

    assert readers == set()


def _reads_environment(node: ast.AST) -> bool:
    names = ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv")
    if isinstance(node, ast.Attribute):
        return node.attr in names and isinstance(node.value, ast.Name) and node.value.id == "os"
    return (
        isinstance(node, ast.ImportFrom) and node.module == "os" and any(a.name in names for a in node.names)
    )


def test_every_package_is_under_a_contract() -> None:
    """MT-D54."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    text = str(contracts)

    parts = {module.name.split(".")[1] for module in modules() if module.name != "corral"}

    assert {part for part in parts if f"corral.{part}" not in text} == set()


def _packages_without_docstring() -> list[Module]:
    return [module for module in modules() if not ast.get_docstring(module.tree)]


def test_every_module_says_what_it_is() -> None:
    assert [str(module) for module in _packages_without_docstring()] == []
