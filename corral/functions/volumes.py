"""`corral.Volume("name")`: a folder that outlives the calls which use it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corral.functions.backend import VolumeFile, backend

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


class Volume:
    """Named files, kept as versions. Nothing that a function writes is kept before `commit`.

    Inside a function that names it in `volumes`, `path` is a folder with its files. Elsewhere `put`, `get`,
    `ls` and `rm` work on the newest version.
    """

    def __init__(self, name: str, *, project: str | None = None) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a volume: letters, digits, `.`, `_` and `-`")
        self.name = name
        self.project = project

    def __repr__(self) -> str:
        return f"corral.Volume({self.name!r})"

    @property
    def path(self) -> Path:
        """The folder: of this instance, or, called plainly, one of this process with the newest version."""
        return Path(self._do("path")["path"])

    def commit(self) -> int:
        """Keep what is in the folder now, as a new version, and give its number.

        What others committed since the folder was last brought up to date is merged; files that both changed
        raise VolumeConflict, and nothing is kept.
        """
        return int(self._do("commit")["version"])

    def reload(self, *, discard: bool = False) -> int:
        """Bring what others committed into the folder, and give the version's number.

        What was changed here and not committed stays; where the new version changed the same files,
        VolumeConflict is raised, unless `discard` gives the own changes up.
        """
        return int(self._do("reload", discard=discard)["version"])

    def put(self, source: str | Path, target: str = "/") -> int:
        """Send a file or a folder into the volume, and give the new version's number."""
        return int(self._do("put", source=str(source), target=target)["version"])

    def get(self, path: str, target: str | Path) -> None:
        """Fetch a file or a folder of the newest version, to a place that is not there yet."""
        self._do("get", path=path, target=str(target))

    def ls(self, path: str = "/") -> list[VolumeFile]:
        """The files of the newest version below a path."""
        found: list[VolumeFile] = self._do("ls", path=path)["files"]
        return found

    def rm(self, path: str) -> int:
        """Take a file or a folder out, and give the new version's number."""
        return int(self._do("rm", path=path)["version"])

    def _do(self, what: str, **given: Any) -> dict[str, Any]:
        return backend().volume(self.name, self.project, what, given)


def mounts(volumes: Mapping[str, Volume]) -> tuple[tuple[str, str], ...]:
    """Folder and volume, as they are stored: `/data` and `data` are the same folder."""
    found: dict[str, str] = {}
    if not isinstance(volumes, Mapping):
        raise TypeError(
            f"volumes says which folder is which volume: {{'data': corral.Volume('notes')}}, not {volumes!r}"
        )
    for folder, volume in volumes.items():
        if not isinstance(volume, Volume):
            raise TypeError(f"volumes[{folder!r}] must be a corral.Volume, not {volume!r}")
        name = folder.strip("/")
        if not _NAME.fullmatch(name):
            raise ValueError(f"volumes: {folder!r} is no folder's name; write it as 'data'")
        if volume.name in found.values():
            raise ValueError(f"volumes: {volume.name} stands there twice")
        found[name] = volume.name
    return tuple(sorted(found.items()))
