"""Every page of the documentation is done, top to bottom, as a reader would do it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.postgres import private_postgres

from corral.client.manifests.read import load as load_manifest
from corral.client.submit.run_file import load, parse
from docs.pages import Command, Save, Step, blocks, missing, steps

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
# The longest take half a minute of one core, which a busy machine may not give them at once.
PATIENCE_S = 600
# These start, stop or kill what the others share.
_ALONE = ("corral up", "corral down", "kill ")
NOT_RUN = {
    "installing takes the network; the tests run from such an installation",
    "the demo and the tests are run by make itself",
    "it needs two terminals",
    "it needs a fresh machine",
    "it changes your shell's start-up file",
    "it needs a server of your own",
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Reader:
    """A user with a home of his own; `corral` keeps its data in there."""

    home: Path
    extra: Mapping[str, str]

    @property
    def environ(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
        return kept | {
            "HOME": str(self.home),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]]),
            "XDG_CACHE_HOME": kept.get("XDG_CACHE_HOME", str(ROOT / ".cache")),
            "CORRAL_PORT": "0",
            "CORRAL_WORKER_NAME": "laptop",
            # Beats every second: what a page waits for comes soon.
            "CORRAL_LEASE_S": "8",
            "NO_COLOR": "1",
            "TERM": "dumb",
            # Two threads fight for the cores that the tests share, and are far slower than one.
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **self.extra,
        }

    def corral(self, *arguments: str) -> None:
        subprocess.run(["corral", *arguments], env=self.environ, check=True, capture_output=True, timeout=60)


@contextmanager
def reader(home: Path, extra: Mapping[str, str]) -> Iterator[Reader]:
    home.mkdir()
    made = Reader(home, extra)
    try:
        yield made
    finally:
        made.corral("down", "--timeout", "5")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with reader(tmp_path_factory.mktemp("docs") / "home", {}) as made:
        made.corral("up", "--detach")
        yield made


# GPUs as the library for them would tell of, where there are none.
GPUS = {"PYTHONPATH": str(ROOT / "tests" / "fleet" / "stand_ins"), "STAND_IN_GPUS": "2"}


@contextmanager
def extras_for(page: Path) -> Iterator[dict[str, str]]:
    if page.stem != "postgres":
        yield GPUS if page == DOCS / "tutorial" / "functions.md" else {}
        return
    with private_postgres() as server, server.fresh(template="template1") as url:
        yield {"DATABASE_URL": url}


def is_alone(todo: list[Step]) -> bool:
    return any(word in step.text for step in todo if isinstance(step, Command) for word in _ALONE)


@pytest.mark.timeout(PATIENCE_S + 30)
@pytest.mark.parametrize("page", [page for page in PAGES if steps(page)], ids=name_of)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """EN-C13: among them a training loop of the reader's own."""
    todo = steps(page)
    if not is_alone(todo):
        follow_page(page, todo, request.getfixturevalue("shared"), tmp_path)
        return
    with extras_for(page) as extra, reader(tmp_path / "home", extra) as own:
        follow_page(page, todo, own, tmp_path)


def follow_page(page: Path, todo: list[Step], user: Reader, folder: Path) -> None:
    """All in one shell, so that variables and folders last; each step's output is kept apart."""
    work, notes = folder / "work", folder / "notes"
    work.mkdir()
    notes.mkdir()
    script = "\n".join(_script(number, step, notes) for number, step in enumerate(todo))
    subprocess.run(
        ["bash", "-c", script],
        cwd=work,
        env=user.environ,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    for number, step in enumerate(todo):
        if isinstance(step, Command):
            _check(page, step, notes / f"{number}")


def _script(number: int, step: Step, notes: Path) -> str:
    note = notes / f"{number}"
    if isinstance(step, Save):
        note.write_text(step.text, encoding="utf-8")
        return f"mkdir -p \"$(dirname '{step.name}')\" && cp '{note}' '{step.name}'"
    run = f"{{ {step.text}\n}} >'{note}.out' 2>&1"
    return f"{run}; code=$?; echo $code >'{note}.code'; [ $code = {step.expect} ] || exit"


def _check(page: Path, step: Command, note: Path) -> None:
    place = f"{name_of(page)}:{step.line}: {step.text}"
    printed = note.with_suffix(".out").read_text(encoding="utf-8", errors="replace")
    code = int(note.with_suffix(".code").read_text())
    assert code == step.expect, f"{place}\nexit code {code}, not {step.expect}; it printed:\n{printed}"
    lost = missing(step.shown, printed)
    assert lost is None, f"{place}\ndid not print\n{lost}\nbut\n{printed}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_toml_block_is_a_run_file_or_a_part_of_one(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.title == "fleet.toml":
            (tmp_path / "fleet.toml").write_text(block.text)
            assert load_manifest(tmp_path / "fleet.toml", project="default").problems == []
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
