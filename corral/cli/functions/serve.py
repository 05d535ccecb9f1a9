"""`corral fn serve`: an app's functions as drafts, for as long as somebody works on them."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.functions.app_file import File
from corral.cli.functions.deploy import deploy_all, file_name
from corral.cli.functions.drafts import draft_of
from corral.cli.functions.watch import EndpointWatch
from corral.client.corral import Corral
from corral.domain.errors import CorralError, NotFound, ServerUnreachable

_WATCH_S = 0.5


def serve(file: File) -> None:
    """Serve an app for as long as this runs, and again whenever its files change.

    Its endpoints are named `dev.APP.FUNCTION`: what is deployed of the app stays as it is. Schedules do not
    call them. What the functions print is shown, and each call when it has ended.
    """
    stamps: dict[Path, float] = {}
    names: set[tuple[str, str]] = set()
    with connect() as corral:
        watches: dict[str, EndpointWatch] = {}
        try:
            while True:
                now = _stamps(Path(file.partition("::")[0]))
                if now != stamps:
                    stamps = now
                    names |= _serve_once(file)
                _show_new(corral, watches, names)
                time.sleep(_WATCH_S)
        except KeyboardInterrupt:
            _remove(corral, names)


def _remove(corral: Corral, names: set[tuple[str, str]]) -> None:
    for project, name in sorted(names):
        # Somebody else may have removed it.
        with suppress(NotFound):
            corral.endpoints.remove(project, name)
    removed = ", ".join(name for _, name in sorted(names))
    render.note(f"\nstopped serving{f'; removed {removed}' if removed else ''}")


def _show_new(corral: Corral, watches: dict[str, EndpointWatch], names: set[tuple[str, str]]) -> None:
    try:
        for project, name in sorted(names):
            if name not in watches:
                watches[name] = EndpointWatch(corral, project)
                watches[name].skip_earlier([name])
            watches[name].show_output(name)
            watches[name].show_calls(name)
    except ServerUnreachable:
        # It is looked again soon; what was said meanwhile is kept.
        return


def _stamps(file: Path) -> dict[Path, float]:
    found = file.resolve().parent.rglob("*.py")
    return {path: path.stat().st_mtime for path in found if ".venv" not in path.parts}


def _serve_once(file: str) -> set[tuple[str, str]]:
    try:
        views, gone = deploy_all(file, 0, draft_of)
    except CorralError as error:
        # What served before goes on.
        render.note(f"error: {error.message}")
        return set()
    for view in views:
        render.say(f"serving {view.name} version {view.versions[0].version}")
        for function in view.functions.values():
            if function.path:
                render.say(f"  {function.method} /v1/web/{view.project}/{view.name}{function.path}")
    for name in gone:
        render.say(f"stopped {name}; {file_name(file)} has it no more")
    return {(view.project, view.name) for view in views}
