"""From the `[environment]` of a run file to a locked environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from corral.client.environments.installer import Progress
from corral.client.environments.lock import resolve
from corral.client.submit.run_file import path_from, wrong_field
from corral.domain.paths import printable
from corral.wire.spec.run_file import BuiltEnvironment
from corral.wire.spec.tables import EnvironmentFile


def build_environment(
    wanted: EnvironmentFile, base_dir: Path, environ: Mapping[str, str], *, progress: Progress
) -> BuiltEnvironment:
    """Relative paths start from `base_dir`; `environ` is handed to uv."""
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
