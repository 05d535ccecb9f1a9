"""List, show, fill, fetch and remove volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.bars import byte_bar
from corral.cli.options import AsJson, OnlyProject, command_group, project_or_own
from corral.cli.runs.bulk import Yes, ask
from corral.client.files.download import mark_fetched
from corral.client.volumes import volumes
from corral.domain.errors import NotFound
from corral.wire.volumes import VolumeDetail, VolumeVersionView

app = command_group(__doc__)

Name = Annotated[str, typer.Argument(help="A volume's name.", autocompletion=complete.volumes)]
Project = Annotated[str | None, typer.Option(help="Project; CORRAL_PROJECT or `default`.")]
Version = Annotated[int | None, typer.Option(min=1, help="This version instead of the newest.")]


@app.command("ls")
def list_volumes(project: OnlyProject = None, as_json: AsJson = False) -> None:
    """List volumes."""
    with connect() as corral:
        found = list(corral.volumes.all(project))
    rows = [
        (one.name, one.project, one.head, one.files, render.size(one.bytes), render.age(one.changed_at))
        for one in found
    ]
    columns = ("VOLUME", "PROJECT", "VERSION", "FILES", "SIZE", "CHANGED")
    empty = "no volumes; `corral volumes put NAME FOLDER` makes one"
    render.show_list(found, columns, rows, as_json=as_json, empty=empty)


@app.command("show")
def show(name: Name, project: Project = None, version: Version = None, as_json: AsJson = False) -> None:
    """Show the files of a volume's newest version, and which versions are kept."""
    with connect() as corral:
        view = corral.volumes.get(project_or_own(project), name)
        if as_json:
            render.show_json(view)
            return
        chosen = _chosen(view, version)
        tree = corral.volumes.remote(view.project, name).tree(chosen)
    rows = [
        (one.version, one.files, render.size(one.bytes), render.moment(one.created_at), one.created_by)
        for one in view.versions
    ]
    render.show_table(("VERSION", "FILES", "SIZE", "MADE", "BY"), rows, empty="nothing was committed yet")
    if tree.files:
        render.say()
        files = [(file.path, render.size(file.size), file.digest[:12]) for file in tree.files]
        render.show_table(("FILE", "SIZE", "SHA-256"), files, empty="")


@app.command("put")
def put(
    name: Name,
    source: Annotated[Path, typer.Argument(help="A file or a folder of this machine.")],
    target: Annotated[str, typer.Argument(help="Where in the volume; its top by default.")] = "/",
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Send a file or the files of a folder; what is there under the same names is replaced."""
    with connect() as corral, byte_bar() as bar:
        bar.step(f"sending {source}")
        remote = corral.volumes.remote(project_or_own(project), name)
        made = volumes.put(remote, source, target, progress=bar.moved)
    _tell(made, as_json=as_json)


@app.command("get")
def get(
    name: Name,
    path: Annotated[str, typer.Argument(help="A file or a folder in the volume; `/` for all.")] = "/",
    target: Annotated[
        Path | None, typer.Argument(help="A new place here; by default the name, in this folder.")
    ] = None,
    project: Project = None,
    version: Version = None,
) -> None:
    """Fetch a file or a folder; every file is checked against its digest."""
    with connect() as corral:
        view = corral.volumes.get(project_or_own(project), name)
        place = target or Path(path.strip("/").rpartition("/")[2] or name)
        remote = corral.volumes.remote(view.project, name)
        tree = volumes.get(remote, path, place, version=_chosen(view, version))
        if place.is_dir():
            mark_fetched(place, name)
    render.say(f"{place}: {render.count(len(tree.files), 'file')}, {render.size(tree.total_bytes)}")


@app.command("rm")
def remove(
    name: Name,
    path: Annotated[
        str | None, typer.Argument(help="A file or a folder in it; without it, the volume goes.")
    ] = None,
    project: Project = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove a file or a folder from a volume, or the volume with all its versions."""
    owner = project_or_own(project)
    with connect() as corral:
        if path is not None:
            _tell(volumes.remove(corral.volumes.remote(owner, name), path), as_json=as_json)
            return
        view = corral.volumes.get(owner, name)
        holds = f"{render.count(len(view.versions), 'version')}, {render.size(view.bytes)}"
        ask(f"remove the volume {name} for good ({holds})", yes=yes)
        corral.volumes.remove(owner, name)
    render.say(f"{name}: removed")


def _chosen(view: VolumeDetail, number: int | None) -> VolumeVersionView:
    wanted = view.head if number is None else number
    found = next((one for one in view.versions if one.version == wanted), None)
    if found is None and wanted:
        kept = ", ".join(str(one.version) for one in view.versions) or "none"
        raise NotFound(f"version {wanted} of {view.name} is not kept", hint=f"There are: {kept}.")
    return found or VolumeVersionView(volume=view.name, project=view.project, version=0)


def _tell(made: VolumeVersionView, *, as_json: bool) -> None:
    holds = f"{render.count(made.files, 'file')}, {render.size(made.bytes)}"
    render.show_line(made, f"{made.volume}: version {made.version}, {holds}", as_json=as_json)
