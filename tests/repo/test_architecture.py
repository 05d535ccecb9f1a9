"""The map of the house: names, folders, and docs/architecture.md."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from repo.sources import ROOT, modules

# About twenty: what one sees at a glance.
FOLDER_ENTRIES = 25
# Nobody looks for a feature in these.
UNREAD = ("__pycache__", "__init__.py", "__init__.pyi", "py.typed")
ARCHITECTURE = ROOT / "docs" / "architecture.md"


def test_no_two_public_classes_share_a_name() -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module.name)

    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_no_folder_shows_too_much() -> None:
    found = [ROOT / "corral", *(ROOT / "corral").rglob("*")]
    folders = [path for path in found if path.is_dir() and path.name not in UNREAD]
    entries = {
        str(folder.relative_to(ROOT)): len([one for one in folder.iterdir() if one.name not in UNREAD])
        for folder in folders
    }

    assert {folder: count for folder, count in entries.items() if count > FOLDER_ENTRIES} == {}


def test_every_package_says_what_belongs_there() -> None:
    silent = [m.name for m in modules() if m.is_package and not ast.get_docstring(m.tree)]

    assert silent == []


def test_the_architecture_names_every_package() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    packages = {str(m.path.parent.relative_to(ROOT / "corral")) for m in modules() if m.is_package} - {"."}

    assert [name for name in sorted(packages) if f"`{name}/`" not in text] == []


def test_every_path_in_the_architecture_exists() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+(?:\.py|\.sql|\.md|\.toml|/))`", text)

    assert len(named) > 60
    assert [name for name in named if not _exists(name)] == []


def _exists(name: str) -> bool:
    return any((base / name).exists() for base in (ROOT, ROOT / "corral", Path(ARCHITECTURE).parent))
