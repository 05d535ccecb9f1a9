"""`corral.train` is what the docs tell a user to import, and `import corral` does not load it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from corral import train

DOCS = Path(__file__).parents[2] / "docs"
IMPORT = re.compile(r"^from (corral\.(?:engine|recipes|train)\S*) import (.+)$", re.MULTILINE)


def test_the_docs_import_from_corral_train_only_what_it_exports() -> None:
    found = [line for page in DOCS.rglob("*.md") for line in IMPORT.findall(page.read_text("utf-8"))]

    assert found
    assert {module for module, _ in found} == {"corral.train"}
    assert {name for _, names in found for name in names.split(", ")} <= set(train.__all__)
    assert all(hasattr(train, name) for name in train.__all__)


def test_import_corral_does_not_load_torch() -> None:
    script = "import sys, corral; print('torch' in sys.modules, 'corral.train' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "False"]
