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
from corral.functions.packaging import sources
from corral.functions.packaging.package import PICKLE_FILE, CodeTooLarge, pack


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    # Not numpy, which cannot be loaded twice.
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_package(folder: Path, name: str, text: str = "") -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text)


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


def distribution(folder: Path, name: str, module: str) -> None:
    """As an installer puts it there."""
    write_package(folder, module)
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{module}/__init__.py,,\n{info.name}/METADATA,,\n")


@pytest.mark.parametrize("folder", ["overlay/lib/python3/site-packages", "modules/dist-packages"])
def test_what_lies_in_a_folder_of_packages_of_another_python_is_installed(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """HOUR-02: `.pth` files and PYTHONPATH lead to packages of an overlay or of an HPC module."""
    packages = tmp_path_factory.mktemp("python") / folder
    write_package(packages, "arrays", "import inner_part\n")
    write(packages, inner_part="")
    monkeypatch.syspath_prepend(str(packages))
    write(project, overlaid=APP + "import arrays\n@app.function()\ndef f(): ...\n")

    assert set(pack(load("overlaid").f.member).files) == {"overlaid.py"}


def test_what_a_distribution_lists_is_installed_wherever_it_lies(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOUR-02: `pip install --target`; a module of yours beside it travels."""
    folder = tmp_path_factory.mktemp("target")
    distribution(folder, "many-arrays", "arrays")
    write(folder, mine="")
    monkeypatch.syspath_prepend(str(folder))
    write(project, targeted=APP + "import arrays, mine\n@app.function()\ndef f(): ...\n")

    assert set(pack(load("targeted").f.member).files) == {"targeted.py", "mine.py"}


def test_what_a_requirement_names_never_travels(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOUR-02: a checkout on the path; by the name of the requirement, or by what it is known to bring."""
    installed = tmp_path_factory.mktemp("python") / "site-packages"
    distribution(installed, "learn-kit", "klearn")
    checkout = tmp_path_factory.mktemp("checkout")
    write_package(checkout, "num_like")
    write_package(checkout, "klearn")
    write(checkout, own_tools="")
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend(str(checkout))
    write(
        project,
        named=APP.replace('"demo"', '"demo", python=["Num-Like[fast]==2.*", "learn_kit>=1"]')
        + "import num_like, klearn, own_tools\n@app.function()\ndef f(): ...\n",
    )

    assert set(pack(load("named").f.member).files) == {"named.py", "own_tools.py"}
    assert check(load("named").f.member) == []


def test_more_than_travels_unasked_is_refused_with_its_name(project: Path) -> None:
    """HOUR-02."""
    write(project, huge_app=APP + "@app.function()\ndef f():\n    import huge\n", huge="")
    with (project / "huge.py").open("r+b") as file:
        file.truncate((64 << 20) + 1)
    member = load("huge_app").f.member

    with pytest.raises(CodeTooLarge, match="most are of huge"):
        pack(member)
    (found,) = check(member)
    assert (found.level, "64 MiB" in found.message) == ("error", True)


def test_a_file_is_read_once_for_all_of_its_functions(project: Path) -> None:
    """HOUR-02: nine functions of one file took eleven minutes."""
    many = "".join(f"@app.function()\ndef f{n}(): ...\n" for n in range(9))
    write(project, nine=APP + "import of_nine\n" + many, of_nine="import json\n")
    members = list(load("nine").app.members.values())
    before = sources._read.cache_info().misses

    assert [check(one) for one in members] == [[]] * 9

    assert sources._read.cache_info().misses - before == 2


def test_what_a_requirement_may_bring_is_no_error(project: Path) -> None:
    """HOUR-05: it need not be installed here; where the names differ, that is said."""
    write(
        project,
        hour=APP.replace('"demo"', '"demo", python=["humanize-x", "scikit-x"]')
        + "@app.function()\ndef f():\n    import humanize_x\n    import sklearn_x\n",
    )

    (found,) = check(load("hour").f.member)

    assert (found.level, found.where) == ("warning", "hour.py:6")
    assert "imports sklearn_x" in found.message
    assert "scikit-x" in found.message


def test_an_import_within_a_function_is_that_function_s_own(project: Path) -> None:
    """HOUR-05: also where it is a module of yours that imports what is missing."""
    write(
        project,
        blamed=APP
        + "@app.function()\ndef f():\n    import lacking_one\n    import uses_other\n"
        + "@app.function()\ndef g(): ...\n",
        uses_other="import lacking_two\n",
    )
    module = load("blamed")

    assert {one.where for one in check(module.f.member)} == {"blamed.py:5", "uses_other.py:1"}
    assert check(module.g.member) == []
    assert "uses_other.py" in pack(module.g.member).files, "g may call f"


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


def test_the_check_names_what_would_be_missing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        project,
        lacking=APP
        + "import not_installed_anywhere\nimport numpy\nPATH = '/home/me/data'\n"
        + "@app.function()\ndef f(): ...\n",
    )
    name = "not_installed_anywhere"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))

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
