"""What the documentation says is valid: its blocks, its examples, its generated pages, its links."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from corral.client.manifests.read import load as load_manifest
from corral.client.submit.run_file import load, parse
from docs.pages import DOCS, PAGES, ROOT, blocks, name_of

MANIFESTS = ("fleet.toml", "prices.toml")
NOT_RUN = {
    "installing takes the network; the tests run from such an installation",
    "the demo and the tests are run by make itself",
    "it needs two terminals",
    "it needs a fresh machine",
    "it changes your shell's start-up file",
    "it needs a server of your own",
    "it needs a bucket of your own",
    "it needs a cluster",
    "it needs a Slurm of your own",
    "it needs an account",
    "it needs a machine with systemd",
    "it would remove what the other pages use",
}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_toml_block_is_a_run_file_or_a_part_of_one(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.title in MANIFESTS:
            (tmp_path / block.title).write_text(block.text)
            assert load_manifest(tmp_path / block.title, project="default").problems == []
        elif block.language == "toml" and block.expect == 0:
            parse(_whole(block.text), what=f"{name_of(page)}:{block.line}")


def _whole(text: str) -> str:
    """A part has no command, or no model to train or no recipe; one at the top makes it whole."""
    if "argv =" in text:
        return text
    has_model = text.startswith('model = "') or '\nmodel = "' in text
    if "[train" not in text and not has_model:
        return f'argv = ["true"]\n{text}'
    top = "" if has_model else 'model = "corral/tiny"\n'
    if "recipe =" in text:
        return top + text
    grpo = "[train.grpo]" in text or "[train.environment_params]" in text
    least = 'recipe = "grpo"\nenvironment = "arithmetic"\n' if grpo else 'recipe = "sft"\ndata = "x.jsonl"\n'
    if "[train]\n" in text:
        return top + text.replace("[train]\n", f"[train]\n{least}", 1)
    before, table, after = text.partition("[train.")
    return f"{top}{before}\n[train]\n{least}{table}{after}"


def test_what_is_not_run_has_a_known_reason() -> None:
    assert {block.not_run for page in PAGES for block in blocks(page) if block.not_run} <= NOT_RUN


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.toml")), ids=name_of)
def test_every_example_is_valid(path: Path) -> None:
    if path.name == "fleet.toml":
        assert load_manifest(path, project="default").problems == []
    elif not path.name.startswith("."):
        load(path)


def test_the_generated_pages_are_up_to_date() -> None:
    """MT-C57, FL-D28, RF-C25, RF-C39, RF-D50, RF-D64: pages say what the code says."""
    done = subprocess.run(
        [sys.executable, DOCS / "generate.py", "--check"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")

    assert [name_of(p) for p in DOCS.rglob("*.md") if str(p.relative_to(DOCS)) not in listed] == []


def test_the_site_builds_with_no_broken_link(tmp_path: Path) -> None:
    mkdocs = shutil.which("mkdocs", path=str(Path(sys.executable).parent))
    if mkdocs is None:
        pytest.skip("mkdocs is not installed; `make docs` installs it")
    done = subprocess.run(
        [mkdocs, "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_every_command_is_in_the_reference() -> None:
    """NEW-36: also those that are a level deeper, as `host service install`."""
    listed = set(re.findall(r"^corral ([a-z][a-z0-9 -]*?)(?: [\[A-Z].*)?$", _text_of_cli(), re.MULTILINE))

    assert {"host service install", "host enroll", "run", "tokens join"} <= listed
    assert "host service" not in listed


def _text_of_cli() -> str:
    return (DOCS / "reference" / "cli.md").read_text()


def test_the_docs_name_the_algorithm_that_runs() -> None:
    """DL-D11: rounds are synchronous; what is called decoupled is named as what it is not."""
    told = {page: " ".join(page.read_text(encoding="utf-8").split()) for page in PAGES}
    naming = {page.stem: text for page, text in told.items() if "Decoupled DiLoCo" in text}

    assert set(naming) == {"train-apart"}
    assert naming["train-apart"].count("Decoupled DiLoCo") == 1
    assert "It is not what DeepMind calls Decoupled DiLoCo" in naming["train-apart"]
    assert "**DiLoCo**, here in its synchronous form" in naming["train-apart"]
