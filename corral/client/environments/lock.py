"""Resolves a run's requirements once, at submit, into pins that every host installs alike.

The lock fits every platform (hosts differ from the client) and names no index: a host fetches from
its own (`UV_DEFAULT_INDEX` and `UV_INDEX` are honoured; uv does not read pip's configuration).
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corral.client.environments.installer import Installer, Progress, silent
from corral.client.submit.run_file import path_from, wrong_field
from corral.domain.errors import CorralError, InvalidInput
from corral.domain.paths import printable
from corral.domain.runs.pins import check_pins
from corral.wire.spec.run_file import BuiltEnvironment
from corral.wire.spec.tables import EnvironmentFile

RESOLVE_TIMEOUT_S = 300.0

_PYTHON = re.compile(r"3\.\d{1,2}(\.\d{1,2})?")
# Constraint and requirement files are read here, on the client, so they need not reach a host.
_ALLOWED_OPTION = re.compile(r"(-r|-c|--requirements?|--constraints?|--hash)\b")
_LOCAL = re.compile(r"(-e\s|\.{0,2}/|[A-Za-z]:\\|file:|[\w.\[\],-]+\s*@\s*(file:|\.{0,2}/))")


class ResolveFailed(CorralError):
    """uv could not turn the requirements into a lock; the message holds its words."""

    code = "resolve_failed"
    hint = "Read uv's words above, then correct the requirements."


class InvalidRequirement(ResolveFailed):
    code = "invalid_requirement"
    hint = 'Write requirements as pip does, for example "numpy==2.2.*".'


class PackageNotFound(ResolveFailed):
    code = "package_not_found"
    hint = "Check the name and version; for an index of your own, set UV_INDEX here and on the hosts."


class RequirementsConflict(ResolveFailed):
    code = "requirements_conflict"
    hint = "Loosen one of the requirements named above."


class IndexUnreachable(ResolveFailed):
    code = "index_unreachable"
    hint = "Check the network, or set UV_DEFAULT_INDEX to an index that this machine reaches."


@dataclass(frozen=True)
class Lock:
    """Exact pins for one Python. The digest is always computed, so nobody can claim another lock's."""

    text: str
    python: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        # Also on the host, where it becomes part of a path and an argument of uv's.
        if not _PYTHON.fullmatch(self.python):
            raise InvalidRequirement(
                f"environment.python is {self.python!r}, not a version", hint='Write it as "3.11".'
            )
        text = _canonical(self.text)
        identity = f"corral-lock-1\n{self.python}\n{text}"
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "digest", hashlib.sha256(identity.encode()).hexdigest())


# The first that fits wins: a missing package is also reported as "no solution".
_KINDS: tuple[tuple[re.Pattern[str], type[ResolveFailed]], ...] = (
    (re.compile(r"^error: .*(Couldn't parse|Failed to parse|[Ii]nvalid|Expected)"), InvalidRequirement),
    (re.compile(r"Failed to fetch|error sending request|Could not connect"), IndexUnreachable),
    (re.compile(r"was not found|not found at|no versions? of|were not found"), PackageNotFound),
    (re.compile(r"No solution found"), RequirementsConflict),
)


def resolve(
    requirements: Sequence[str],
    *,
    python: str,
    env: Mapping[str, str],
    progress: Progress = silent,
    find_links: Sequence[Path] = (),
    no_index: bool = False,
    folder: Path | None = None,
    uv: Path | None = None,
    timeout_s: float = RESOLVE_TIMEOUT_S,
) -> Lock:
    """Pin `requirements` (lines of a requirements file) and all they need.

    `find_links` are folders of wheels to look in besides the index, or instead of it with `no_index`; the
    hosts need them as well.
    `folder` is where `-r` and `-c` lines look for their files.
    """
    empty = Lock("", python)
    if not _canonical("\n".join(requirements)):
        return empty
    _refuse_options(requirements)
    with tempfile.TemporaryDirectory(prefix="corral-lock-") as scratch:
        output = Path(scratch) / "lock.txt"
        source = Path(scratch) / "requirements.in"
        source.write_text(_absolute_files(requirements, folder or Path.cwd()), encoding="utf-8")
        finished = Installer(env, uv).run(
            _compile_arguments(source, output, python=python, find_links=find_links, no_index=no_index),
            cwd=folder or Path.cwd(),
            progress=progress,
            timeout_s=timeout_s,
        )
        if finished.status != 0:
            raise _failure(finished.words)
        lock = Lock(output.read_text(encoding="utf-8"), python)
    if (local := next(filter(_LOCAL.match, lock.text.splitlines()), None)) is not None:
        raise _local(local)
    try:
        check_pins(lock.text)
    except InvalidInput as error:
        raise InvalidRequirement(error.message, hint=error.hint) from error
    return lock


def build_environment(
    wanted: EnvironmentFile, base_dir: Path, environ: Mapping[str, str], *, progress: Progress
) -> BuiltEnvironment:
    """What `[environment]` of a run file stands for; `environ` is handed to uv. Relative paths start from
    `base_dir`."""
    python = wanted.python or f"{sys.version_info.major}.{sys.version_info.minor}"
    wheels = wanted.find_links or wanted.wheels
    links = path_from(base_dir, wheels) if wheels else None
    lines, folder = _requirements(wanted.requirements, base_dir)
    progress("resolving requirements")
    lock = resolve(
        lines,
        python=python,
        env=environ,
        progress=progress,
        find_links=[links] if links else [],
        no_index=wanted.wheels is not None,
        folder=folder,
    )
    return BuiltEnvironment(
        python=lock.python,
        lock=lock.text,
        digest=lock.digest,
        find_links=str(links) if links else None,
        no_index=wanted.wheels is not None,
    )


def _requirements(given: list[str] | str, base_dir: Path) -> tuple[list[str], Path]:
    """The lines, and the folder that `-r` lines among them start from."""
    if not isinstance(given, str):
        return given, base_dir
    path = path_from(base_dir, given)
    try:
        return path.read_text(encoding="utf-8-sig").splitlines(), path.parent
    except (OSError, UnicodeDecodeError) as error:
        raise wrong_field("environment.requirements", f"{printable(str(path))}: {error}") from error


def _compile_arguments(
    source: Path, output: Path, *, python: str, find_links: Sequence[Path], no_index: bool
) -> list[str | Path]:
    links = [part for folder in find_links for part in ("--find-links", folder.absolute())]
    return [
        *("pip", "compile", source, "--output-file", output),
        *("--universal", "--generate-hashes"),
        # As on the hosts: what has no wheel would run its own code there to become one.
        "--no-build",
        *("--no-header", "--no-annotate", "--no-emit-index-annotation"),
        *("--no-emit-index-url", "--no-emit-find-links", "--no-emit-build-options"),
        # This interpreter only runs build scripts; saying so spares a search through PATH.
        *("--python", sys.executable, "--python-version", python),
        *links,
        *(["--no-index"] if no_index else []),
    ]


def _canonical(text: str) -> str:
    lines = (line.rstrip() for line in text.splitlines())
    kept = [line for line in lines if line and not line.lstrip().startswith("#")]
    return "".join(f"{line}\n" for line in kept)


def _absolute_files(requirements: Sequence[str], folder: Path) -> str:
    option = re.compile(r"^(\s*(?:-r|-c|--requirements?|--constraints?)[\s=]+)(?!\w+://)(\S.*?)\s*$")
    lines = (line for entry in requirements for line in entry.splitlines())
    return "".join(
        option.sub(lambda found: f"{found[1]}{(folder / found[2]).absolute()}", line) + "\n" for line in lines
    )


def _refuse_options(requirements: Sequence[str]) -> None:
    for line in (line.strip() for entry in requirements for line in entry.splitlines()):
        if line.startswith(("-e", "--editable")):
            raise _local(line)
        if line.startswith("-") and not _ALLOWED_OPTION.match(line):
            raise InvalidRequirement(
                f"the requirement line {line.split()[0]!r} is an option, and options do not reach the hosts",
                hint="Remove it; set UV_DEFAULT_INDEX or UV_INDEX here and on the hosts instead.",
            )


def _local(line: str) -> InvalidRequirement:
    return InvalidRequirement(
        f"the requirement {line!r} is a path on this machine, which a host cannot see",
        hint="Name a published package, or let the run's own code carry the folder.",
    )


def _failure(words: str) -> ResolveFailed:
    kind = next((kind for pattern, kind in _KINDS if pattern.search(words)), ResolveFailed)
    return kind(f"the requirements cannot be resolved: {words}")
