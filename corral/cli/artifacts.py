"""List, fetch, verify, pin and remove artifacts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.bars import byte_bar
from corral.cli.options import AsJson, Limit, OnlyProject, command_group
from corral.client.corral import Corral
from corral.client.files.download import download, mark_fetched
from corral.domain.errors import Conflict
from corral.domain.ids import is_id
from corral.wire.artifacts import ArtifactPage, ArtifactView

app = command_group(__doc__)

Artifact = Annotated[
    str,
    typer.Argument(
        help="Artifact id, or a run (id, prefix or `latest`) whose result is meant.",
        autocompletion=complete.artifacts_or_runs,
    ),
]


def _find(corral: Corral, given: str) -> tuple[str, Path]:
    """The artifact's id, and the folder to fetch it into when none is named."""
    if is_id(given, "a"):
        return given, Path(given)
    run = corral.runs.get(given)
    if run.artifact_id is None:
        raise Conflict(
            f"run {run.id} is {run.state} and has no result",
            hint=f"See `corral show {run.id}`; `corral artifacts ls --run {run.id}` lists its checkpoints"
            f"{', with metrics and samples under record/' if run.spec.train is not None else ''}.",
        )
    return run.artifact_id, Path(f"{run.name}-{run.id}")


@app.command("ls")
def list_artifacts(
    project: OnlyProject = None,
    run: Annotated[str | None, typer.Option(help="Only what this run made, checkpoints included.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List artifacts, the newest first."""
    with connect() as corral:
        page = _of_run(corral, run) if run else corral.artifacts.page(project=project, limit=limit)
    columns = ("ARTIFACT", "KIND", "RUN", "STEP", "METRIC", "FILES", "SIZE", "KEPT", "AGE")
    rows, more = map(_row, page.items), page.next and f"({len(page.items)} shown; --limit shows more)"
    render.show_list(page.items, columns, rows, as_json=as_json, empty="no artifacts", footer=more)


def _of_run(corral: Corral, run: str) -> ArtifactPage:
    run_id = corral.runs.resolve(run)
    made = [*corral.runs.artifacts(run_id).items, *corral.runs.checkpoints(run_id).items]
    return ArtifactPage(items=list({artifact.id: artifact for artifact in made}.values()))


def _row(item: ArtifactView) -> tuple[render.Cell, ...]:
    return (
        item.id,
        item.kind,
        item.run_id,
        item.step,
        render.number(item.metric) if item.metric is not None else None,
        item.files,
        render.size(item.bytes),
        "pinned" if item.pinned else None,
        render.age(item.created_at),
    )


@app.command()
def get(
    artifact: Artifact,
    target: Annotated[
        Path | None,
        typer.Argument(help="New or empty folder; ./NAME-RUN by default, ./ARTIFACT for an artifact's id."),
    ] = None,
) -> None:
    """Fetch an artifact into a folder; every file is checked against its digest.

    The folder is marked, so that the next submit does not ship it as code.
    """
    with connect() as corral:
        artifact_id, usual = _find(corral, artifact)
        found = corral.artifacts.get(artifact_id)
        folder = target or usual
        with byte_bar() as bar:
            bar.step(f"fetching {artifact_id}")
            tree = download(
                corral.artifacts, artifact_id, corral.source(found.project), folder, progress=bar.moved
            )
        mark_fetched(folder, artifact_id)
    what = f"{render.count(len(tree.files), 'file')}, {render.size(tree.total_bytes)}"
    render.say(f"{folder}{os.sep}: {what}; every file matches its digest")


@app.command()
def verify(artifact: Artifact, as_json: AsJson = False) -> None:
    """Re-hash an artifact's files on the server; exit 1 if one is damaged or missing."""
    with connect() as corral:
        answer = corral.artifacts.verify(_find(corral, artifact)[0])
    if as_json:
        render.show_json(answer)
    else:
        for problem in answer.problems:
            render.say(problem)
        bad = render.count(len(answer.problems), "problem")
        verdict = bad if answer.problems else "all match their digests"
        files = render.count(answer.files, "file")
        render.say(f"{answer.artifact_id}: {files}, {render.size(answer.bytes)}: {verdict}")
    if answer.problems:
        raise typer.Exit(1)


@app.command()
def pin(artifact: Artifact) -> None:
    """Keep an artifact whatever the retention rules say."""
    with connect() as corral:
        render.say(f"{corral.artifacts.pin(_find(corral, artifact)[0]).id} is pinned")


@app.command()
def unpin(artifact: Artifact) -> None:
    """Leave an artifact to the retention rules again."""
    with connect() as corral:
        render.say(f"{corral.artifacts.unpin(_find(corral, artifact)[0]).id} is no longer pinned")


@app.command()
def rm(artifact: Annotated[str, typer.Argument(help="Artifact id.")]) -> None:
    """Remove an artifact; files that nothing else names are deleted later."""
    with connect() as corral:
        corral.artifacts.delete(artifact)
    render.say(f"{artifact} is removed")
