"""The app in a user's file, and what its functions are run by."""

from __future__ import annotations

import traceback
from typing import Annotated

import typer

from corral.cli.connect import own_project
from corral.cli.display import render
from corral.cli.functions.user_line import raised_by_corral, user_frames
from corral.client.corral import Corral
from corral.client.environments.lock_cache import LockCache
from corral.domain.errors import CorralError, InvalidInput
from corral.errors import FunctionError
from corral.functions.app import App
from corral.functions.find_app import find_app
from corral.functions.http_backend import HttpBackend
from corral.functions.importing import CallWhileImporting
from corral.functions.member import Member
from corral.settings import read_settings

File = Annotated[str, typer.Argument(help="A file with an app: `demo.py`, or `demo.py::embed`.")]


def backend_of(corral: Corral) -> HttpBackend:
    settings = read_settings()
    return HttpBackend(corral, own_project(settings), locks=LockCache(settings.home / "locks"))


def load_app(text: str) -> tuple[list[App], Member | None]:
    try:
        return find_app(text)
    except CallWhileImporting as error:
        raise InvalidInput(error.message, hint="What it is to do as a program goes there.") from None
    except FunctionError as error:
        raise InvalidInput(str(error), hint=error.hint or "Name a Python file that makes an app.") from None
    except CorralError:
        raise
    except KeyboardInterrupt:
        render.note(
            f"corral: interrupted while {text.partition('::')[0]} was imported; nothing was submitted"
        )
        raise
    except Exception as error:  # noqa: BLE001 - the user's module may raise anything
        raise _not_imported(text.partition("::")[0], error) from None


def _not_imported(file: str, error: Exception) -> InvalidInput:
    """Of what Corral refuses, the user's line; of what the file raises itself, its own frames."""
    line = raised_by_corral(error)
    if line is not None:
        return InvalidInput(f"{line}: {error}", hint="Correct what is given there.")
    where = traceback.format_list(user_frames(error))
    if isinstance(error, SyntaxError):
        where += traceback.format_exception_only(error)[:-1]
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return InvalidInput(
        f"{file} cannot be imported: {type(error).__name__}: {message}\n{''.join(where)}".rstrip(),
        hint="Correct the file; it must import without an error.",
    )


def members_of(file: str) -> list[Member]:
    """Those of the app, or the one that is named."""
    apps, only = load_app(file)
    return [only] if only else [member for one in apps for member in one.members.values()]
