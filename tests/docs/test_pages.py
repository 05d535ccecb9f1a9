"""Every page of the documentation is done, top to bottom, as a reader would do it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import slurm_cluster
from support.postgres import private_postgres

from docs.pages import DOCS, PAGES, Command, Step, name_of, steps
from docs.reader import GPUS, PATIENCE_S, Reader, check_page, reader

# These start, stop or kill what the others share.
_ALONE = ("corral up", "corral down", "kill ")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with reader(tmp_path_factory.mktemp("docs") / "home", {}) as made:
        made.corral("up", "--detach")
        yield made


@contextmanager
def extras_for(page: Path) -> Iterator[dict[str, str]]:
    if page.stem == "from-one-machine-to-a-cluster":
        slurm = slurm_cluster.slurm_cluster()
        yield {"SLURM_CONF": slurm.environment()["SLURM_CONF"]}
        slurm.cancel_all()
        return
    if page.stem != "postgres":
        yield GPUS if page == DOCS / "tutorial" / "functions.md" else {}
        return
    with private_postgres().fresh(template="template1") as url:
        yield {"DATABASE_URL": url}


def is_alone(todo: list[Step]) -> bool:
    return any(word in step.text for step in todo if isinstance(step, Command) for word in _ALONE)


@pytest.mark.timeout(PATIENCE_S + 30)
@pytest.mark.parametrize("page", [page for page in PAGES if steps(page)], ids=name_of)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """EN-C13: among them a training loop of the reader's own."""
    todo = steps(page)
    if not is_alone(todo):
        check_page(page, todo, request.getfixturevalue("shared"), tmp_path)
        return
    with extras_for(page) as extra, reader(tmp_path / "home", extra) as own:
        check_page(page, todo, own, tmp_path)
