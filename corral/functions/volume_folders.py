"""Volumes in a program that is no instance: on the server, and as folders of this process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from corral.client.corral import Corral
from corral.client.volumes import volumes
from corral.client.volumes.folder import VolumeFolder
from corral.functions.backend import VolumeFile


class LocalVolumes:
    """Folders are made when they are asked for, and go when the process ends."""

    def __init__(self) -> None:
        self._folders: dict[tuple[str, str], VolumeFolder] = {}
        self._lock = threading.Lock()

    def do(self, corral: Corral, project: str, name: str, what: str, given: dict[str, Any]) -> dict[str, Any]:
        remote = corral.volumes.remote(project, name)
        match what:
            case "put":
                made = volumes.put(remote, Path(given["source"]).expanduser(), given["target"])
                return {"version": made.version}
            case "get":
                volumes.get(remote, given["path"], Path(given["target"]).expanduser())
                return {}
            case "rm":
                return {"version": volumes.remove(remote, given["path"]).version}
            case "ls":
                found = volumes.below(remote.tree(remote.head()), given["path"])
                return {"files": [VolumeFile(one.path, one.size, one.digest) for one in found.files]}
        folder = self._folder(remote, project, name)
        if what == "path":
            return {"path": str(folder.root)}
        return {"version": folder.commit() if what == "commit" else folder.reload(discard=given["discard"])}

    def _folder(self, remote: volumes.RemoteVolume, project: str, name: str) -> VolumeFolder:
        with self._lock:
            found = self._folders.get((project, name))
            if found is None:
                scratch = tempfile.mkdtemp(prefix="corral-volume-")
                atexit.register(shutil.rmtree, scratch, ignore_errors=True)
                found = VolumeFolder(Path(scratch, name), remote)
                found.fill()
                self._folders[project, name] = found
            return found
