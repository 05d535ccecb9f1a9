"""The `corral` command. Imports little: a command's module is loaded when that command is called."""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from corral.cli.display.visible import visible
from corral.cli.help_words import in_words
from corral.domain.errors import CorralError, ServerUnreachable
from corral.errors import WHOLE
from corral.version import __version__

EXIT_ERROR = 1
EXIT_UNREACHABLE = 3

EPILOG = (
    "Exit codes: 0 done; 1 an error, or a run failed without a code of its own; 2 wrong usage; "
    "3 the server cannot be reached; 124 a run met its time limit; 126 a run's program cannot be executed; "
    "127 it was not found; 130 Ctrl-C; 143 a run was cancelled; "
    "128+N a run's program was killed by signal N; else the program's own code."
)


@dataclass(frozen=True)
class _Command:
    """`function` is the command in its module; None takes the module's app, a group of commands."""

    name: str
    module: str
    help: str
    function: str | None = None
    settings: dict[str, Any] | None = None


def _one(name: str, module: str, help: str, *, function: str | None = None, **settings: Any) -> _Command:
    return _Command(name, module, help, function or name, settings)


_COMMANDS = (
    _one("up", "server.up", "Start the server and a worker on this machine."),
    _one("down", "server.down", "Stop the worker and the server of this machine."),
    _Command(
        "service", "server.service", "Start this machine's server with the machine, and again when it dies."
    ),
    _one("status", "server.status", "Say what runs on this machine."),
    # What follows the program's name is the program's: `corral run ls -la` needs no `--`.
    _one(
        "run", "runs.run", "Run a command and follow it; exit with its code.", allow_interspersed_args=False
    ),
    _one("submit", "runs.submit", "Submit a run file."),
    _one("ls", "runs.ls", "List runs, the newest first."),
    _one("show", "runs.show", "Show everything about a run."),
    _one("logs", "runs.logs", "Print a run's output."),
    _one("metrics", "runs.metrics", "Show a run's metrics."),
    _one("events", "runs.events", "Show what happened to a run, in order."),
    _one("why", "runs.why", "Say which hosts could take a run, and why the others cannot."),
    _one("estimate", "training.estimate", "Say what a training run will need and cost, machine by machine."),
    _one(
        "eval",
        "training.eval",
        "Measure what a training run has learned: before and after.",
        function="evaluate",
    ),
    _one("sample", "training.sample", "Ask the model that a run trained, and the one before it."),
    _Command("forecast", "training.forecast", "Compare forecasts with what runs really took."),
    _one("models", "training.models", "List the models that are known by a short name."),
    _one("gpus", "training.gpus", "List the cards that an estimate knows, with list prices."),
    _one("cancel", "runs.cancel", "Cancel runs; their workers stop them at once."),
    _one("requeue", "runs.requeue", "Run something that has ended once more."),
    _one("hold", "runs.hold", "Keep runs that wait from starting."),
    _one("release", "runs.hold", "Let runs go that were held."),
    _one("rm", "runs.rm", "Remove runs that have ended."),
    _Command("groups", "groups", "List and show groups of runs."),
    _Command("schedules", "schedules", "Make runs by the clock: add, list, pause, remove."),
    _Command("manifest", "manifests", "Declare hosts and runs in one file: plan it, apply it."),
    _Command("fn", "functions.fn", "Run, serve and deploy functions."),
    _Command("calls", "functions.calls", "List, show, retry and cancel calls."),
    _Command("volumes", "volumes", "List, show, fill, fetch and remove volumes."),
    _Command("artifacts", "artifacts", "List, fetch, verify, pin and remove artifacts."),
    _Command("hosts", "hosts.hosts", "List, show, drain, resume, revoke and remove hosts."),
    _Command("host", "hosts.host", "Make this machine a host of a server elsewhere."),
    _Command(
        "executors", "executors", "Add, check, list and remove executors: clusters that bring up workers."
    ),
    _Command("secrets", "secrets", "Set, list and remove secrets."),
    _Command("webhooks", "webhooks", "Add, test, pause and remove webhooks, and send again."),
    _Command("tokens", "tokens", "Create, list and revoke tokens; let hosts join."),
    _Command("quotas", "quotas", "Set, list and remove what projects may use."),
    _one("usage", "usage", "Show slot and GPU hours by project, in a calendar month (UTC)."),
    _Command("audit", "audit", "Show and verify who did what."),
    _one(
        "disk",
        "server.disk",
        "Say what takes space on the server: by project, by kind, and by run; and what can go.",
    ),
    _one("backup", "server.backup", "Copy this machine's installation into a folder; it may run meanwhile."),
    _one("restore", "server.backup", "Put a backup in place as this machine's installation."),
    _one("fsck", "server.fsck", "Re-hash and cross-check everything that the server stores."),
    _one("schema", "runs.schema", "Print the JSON Schema of a run file, for editors."),
)


# Other words for a command that people type, and that `--help` does not list.
_ALIASES = {"token": "tokens"}


class LazyGroup(TyperGroup):
    """Lists commands by their name and one line of help; the one that is called is loaded then."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._lazy = {command.name: command for command in _COMMANDS}
        for command in _COMMANDS:
            self.commands[command.name] = TyperCommand(name=command.name, help=command.help)

    # Any: Typer carries its own copy of click from one version on, and takes click's before.
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args:
            args = [_ALIASES.get(args[0], args[0]), *args[1:]]
        if args and args[0] in self._lazy:
            self.commands[args[0]] = _load(self._lazy.pop(args[0]))
        return super().resolve_command(ctx, args)


def _load(command: _Command) -> Any:
    # What is loaded stays: to look through it for what can be freed takes a tenth of the time of loading.
    gc.disable()
    module = importlib.import_module(f"corral.cli.{command.module}")
    gc.freeze()
    gc.enable()
    if command.function is None:
        loaded: Any = get_command(module.app)
        loaded.name = command.name
        return in_words(loaded)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(command.name, context_settings=command.settings)(getattr(module, command.function))
    return in_words(get_command(alone))


app = typer.Typer(
    name="corral",
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    # Panels cost a third of the time in which the help must be there.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=EPILOG,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"corral {__version__}")
        raise typer.Exit


@app.callback()
def corral(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Round up the machines you have and train models on them as if they were one.

    `corral up --detach` starts it here; `corral run -- python train.py` runs something.
    """


def main() -> None:
    """The one place that turns our errors into text and an exit code."""
    try:
        app(prog_name="corral")
    except CorralError as error:
        if _debug(sys.argv[1:]):
            raise
        print_error(error)
        _leave(EXIT_UNREACHABLE if isinstance(error, ServerUnreachable) else EXIT_ERROR)
    except ValueError as error:
        refused = None if _debug(sys.argv[1:]) else _refused(error)
        if refused is None:
            raise
        print_error(refused)
        _leave(EXIT_ERROR)
    except KeyboardInterrupt:
        _leave(130)
    except BrokenPipeError:
        _leave(EXIT_ERROR)
    except SystemExit as ending:
        _leave(ending.code if isinstance(ending.code, int) else EXIT_ERROR if ending.code else 0)


def _refused(error: ValueError) -> CorralError | None:
    """What a model of the wire says of the options of a command, in our words; None of any other error."""
    # Loaded by the command that made the model; for `--help` they would take too long.
    pydantic, base = sys.modules.get("pydantic"), sys.modules.get("corral.wire.base")
    if pydantic is None or base is None or not isinstance(error, pydantic.ValidationError):
        return None
    hint = "Correct the options; `--help` says what the command takes."
    found: CorralError = base.explain(base.Strict, error, what="what was asked for", hint=hint)
    return found


def print_error(error: CorralError) -> None:
    # One field is in the message already; several are easier to read below each other.
    several = error.fields if len(error.fields) > 1 else ()
    _tell(f"error: {_head(error) + ':' if several else error.message}")
    width = max((len(field.path) for field in several if field.path != WHOLE), default=0)
    for field in several:
        _tell(
            f"  {field.message}"
            if field.path == WHOLE
            else f"  {field.path + ':':<{width + 1}} {field.message}"
        )
    if error.hint:
        _tell(f"hint: {error.hint}")


def _tell(text: str) -> None:
    # What an error quotes may have come from anybody. `render` would take too long to load for `--help`.
    typer.echo(visible(text), err=True)


def _head(error: CorralError) -> str:
    """The message without the list of fields that it ends in."""
    first = error.fields[0]
    head, found, _ = error.message.partition(first.message)
    kept = head.rstrip(" :`").removesuffix(first.path).rstrip(" :`") if found else ""
    return kept or error.message


def _debug(arguments: list[str]) -> bool:
    return "--debug" in itertools.takewhile(lambda text: text.startswith("-"), arguments)


def _leave(code: int) -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output is gone; the flush at exit must not complain about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
