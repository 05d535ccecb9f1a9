"""Finds an environment's code, runs its `load_environment`, and says with file and line what is wrong.

This runs inside the environment's process: nothing of the user's is imported anywhere else.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from corral.engine.environments import calling, flash, verifiers
from corral.engine.environments.native import NativeEnvironment
from corral.engine.environments.protocol import EnvironmentProblem
from corral.engine.environments.sessions import EnvironmentAdapter

BUNDLED = ("arithmetic",)
FILE = "environment.py"
ENTRY = "load_environment"


def find(source: str, base: Path) -> str:
    """The name of a bundled environment as it is, anything else as the path of its file."""
    if source in BUNDLED:
        return source
    path = base / source
    if path.is_dir():
        path = path / FILE
        if not path.is_file():
            raise EnvironmentProblem(
                f"the environment folder {path.parent} has no {FILE}",
                hint=f"Add a {FILE} with a function {ENTRY}(**params).",
            )
    if path.is_file() and path.suffix == ".py":
        return str(path.resolve())
    problem = (
        f"{path} is not a .py file" if path.is_file() else f"there is no environment {source!r} at {path}"
    )
    raise EnvironmentProblem(
        problem + calling.nearest(source, BUNDLED),
        hint=f"Give a .py file, a folder with {FILE}, or a bundled name: {', '.join(BUNDLED)}.",
    )


def load(source: str, params: Mapping[str, Any]) -> EnvironmentAdapter:
    """The environment of a source that `find` gave."""
    if source in BUNDLED:
        module = importlib.import_module(f"corral.engine.environments.{source}")
        folder = Path(str(module.__file__)).parent
    else:
        folder = Path(source).parent
        module = _import_file(Path(source))
    entry = getattr(module, ENTRY, None)
    if not callable(entry):
        raise EnvironmentProblem(
            f"{module.__file__}: has no function {ENTRY}{calling.nearest(ENTRY, vars(module))}",
            hint=f"Define {ENTRY}(**params) that returns a dict or an object with `rows` and `reward`.",
        )
    _check_params(entry, params)
    try:
        given = entry(**params)
        if inspect.iscoroutine(given):
            given.close()
            raise EnvironmentProblem(
                f"{calling.where(entry)}{ENTRY}() is async; make it an ordinary function"
            )
        return adapt(given, name=source if source in BUNDLED else Path(source).stem, folder=folder)
    except EnvironmentProblem:
        raise
    except Exception as error:
        raise EnvironmentProblem(
            f"{_place(error, folder)}{ENTRY}() failed: {calling.last_line(error)}", _beside(error, folder)
        ) from error


def adapt(given: object, *, name: str, folder: Path) -> EnvironmentAdapter:
    """Whichever form the environment has, as the engine's."""
    if given is None:
        raise EnvironmentProblem(
            f"{ENTRY}() returned None", hint="Return a dict or an object with `rows` and `reward`."
        )
    if flash.is_one(given):
        return flash.FlashEnvironment(given, name=name, folder=folder)
    if verifiers.is_trl(given):
        return NativeEnvironment(verifiers.of_trl(given), name=name, folder=folder)
    if verifiers.is_one(given):
        return verifiers.VerifiersEnvironment(given, name=name, folder=folder)
    return NativeEnvironment(given, name=name, folder=folder)


def _import_file(path: Path) -> ModuleType:
    """Import the file as a module of its own name, with its folder on the path for what lies beside it."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise EnvironmentProblem(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise EnvironmentProblem(f"{error.filename}:{error.lineno}: {error.msg}") from None
    except ImportError as error:
        hint = f"Add {error.name!r} to the run's [environment] requirements." if error.name else ""
        raise EnvironmentProblem(f"{_place(error, path.parent)}{calling.last_line(error)}", hint) from error
    except (Exception, SystemExit) as error:
        raise EnvironmentProblem(
            f"{_place(error, path.parent)}the file failed to load: {calling.last_line(error)}",
            _beside(error, path.parent),
        ) from error
    return module


def _check_params(entry: Callable[..., Any], params: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(entry)
        signature.bind(**params)
    except ValueError:
        return
    except TypeError as error:
        names = list(signature.parameters)
        wrong = next((name for name in params if name not in names), "")
        takes = f"It takes: {', '.join(names)}." if names else "It takes no parameters."
        raise EnvironmentProblem(
            f"{calling.where(entry)}{ENTRY}() does not take these environment_params: {error}"
            f"{calling.nearest(wrong, names)}",
            hint=takes,
        ) from None


def _beside(error: BaseException, folder: Path) -> str:
    """A hint where a file was opened by a path that starts from the folder of the environment."""
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, str):
        return ""
    if Path(error.filename).is_absolute() or not (folder / error.filename).exists():
        return ""
    return (
        f"The code runs in another folder: open `Path(__file__).parent / {error.filename!r}`, "
        f"which lies beside the environment."
    )


def _place(error: BaseException, folder: Path) -> str:
    """'file.py:12: ' of the deepest line in the user's folder that the error passed through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(folder)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
