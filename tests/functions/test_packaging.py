"""What travels with a function."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from corral.functions.app import App
from corral.functions.check import check
from corral.functions.find_app import find_app
from corral.functions.packaging import PICKLE_FILE, pack


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


APP = 'import corral\napp = corral.App("demo")\n'


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_local_modules_travel_wherever_they_are_imported(project: Path) -> None:
    """RF-C13: at the top, in the body, relative, from a package, by a literal name."""
    write(
        project,
        main_app=APP
        + "import helper\nfrom pack import deep\n@app.function()\ndef f():\n    import inner\n"
        + "    import importlib\n    return importlib.import_module('by_name')\n",
        helper="import json\n",
        inner="",
        by_name="",
        unused="",
        pack__deep="from . import sibling\nfrom .other import x\n",
        pack__sibling="",
        pack__other="x = 1\n",
    )
    (project / "pack" / "__init__.py").write_text("")

    made = pack(load("main_app").f.member)

    assert set(made.files) == {
        "main_app.py",
        "helper.py",
        "inner.py",
        "by_name.py",
        "pack/__init__.py",
        "pack/deep.py",
        "pack/sibling.py",
        "pack/other.py",
    }
    assert made.entry == {"kind": "module", "module": "main_app", "qualname": "f", "is_class": False}


def test_a_module_of_another_folder_on_the_path_travels(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RF-D06."""
    other = tmp_path_factory.mktemp("other")
    monkeypatch.syspath_prepend(str(other))
    write(other, shared_tools="def g(): ...\n")
    write(project, uses_it=APP + "import shared_tools\n@app.function()\ndef f(): ...\n")

    assert "shared_tools.py" in pack(load("uses_it").f.member).files


def test_what_is_installed_does_not_travel(project: Path) -> None:
    write(project, with_numpy=APP + "import numpy\n@app.function()\ndef f(): ...\n")

    assert set(pack(load("with_numpy").f.member).files) == {"with_numpy.py"}


def test_what_cannot_be_imported_by_name_travels_by_value() -> None:
    """RF-D02, RF-D03: closures and lambdas."""
    app = App("by-value")
    y = 7
    made = pack(app.function()(lambda x: x + y).member)

    assert made.entry["kind"] == "pickle"
    assert set(made.files) == {PICKLE_FILE}


def test_a_method_s_class_may_span_lines(project: Path) -> None:
    """RF-D05."""
    write(
        project,
        long_class=APP
        + "class Base: ...\n@app.cls()\nclass Model(\n    Base,\n):\n    @corral.method()\n"
        + "    def f(self):\n        return 1\n",
    )

    made = pack(load("long_class").Model._corral_member)

    assert (made.entry["qualname"], made.entry["is_class"]) == ("Model", True)


def test_the_check_names_what_would_be_missing(project: Path) -> None:
    write(
        project,
        lacking=APP
        + "import not_installed_anywhere\nimport numpy\nPATH = '/home/me/data'\n"
        + "@app.function()\ndef f(): ...\n",
    )
    sys.modules["not_installed_anywhere"] = ModuleType("not_installed_anywhere")

    found = {(one.level, one.where): one.message for one in check(load("lacking").f.member)}

    assert "not_installed_anywhere" in found["error", "lacking.py:3"]
    assert "numpy" in found["warning", "lacking.py:4"]
    assert "/home/me/data" in found["warning", "lacking.py:5"]


def test_the_check_names_a_capture_that_cannot_be_pickled() -> None:
    app = App("locked")
    lock = threading.Lock()

    (found,) = check(app.function()(lambda: lock).member)

    assert found.level == "error"
    assert "lock" in found.message


def test_a_member_is_found_by_file_and_name(project: Path) -> None:
    write(project, found_app=APP + "@app.function()\ndef f(): ...\n")

    apps, member = find_app(f"{project / 'found_app.py'}::f")

    assert [app.name for app in apps] == ["demo"]
    assert member is not None
    assert member.endpoint == "demo.f"
