"""Functions with volumes, as users write them."""

from __future__ import annotations

import os
from pathlib import Path

import corral

app = corral.App("vols")
notes = corral.Volume("notes")


@app.function(volumes={"/data": notes}, concurrency=4, max_instances=1)
def write(name: str, text: str, *, discard: bool = False) -> int:
    if discard:
        notes.reload(discard=True)
    path = notes.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return notes.commit()


@app.function(volumes={"data": notes}, max_instances=1)
def other(name: str, text: str | None, *, reload: bool = True) -> list[str]:
    """In an instance of its own, with a folder of its own."""
    if reload:
        notes.reload()
    if text is not None:
        (notes.path / name).write_text(text)
        notes.commit()
    return sorted(path.relative_to(notes.path).as_posix() for path in notes.path.rglob("*") if path.is_file())


@app.function(volumes={"data": notes})
def leaks() -> str:
    (notes.path / "leak.txt").write_text(os.environ["DEPLOY_KEY"])
    try:
        notes.commit()
    except corral.FunctionError as error:
        return str(error)
    finally:
        (notes.path / "leak.txt").unlink()
    return "committed"


@app.function()
def without() -> str:
    try:
        return str(notes.path)
    except corral.FunctionError as error:
        return str(error)


@app.function(volumes={"data": notes})
def folder() -> bool:
    return Path(os.environ["CORRAL_VOLUME_DIR"], "data") == notes.path


@app.cls(volumes={"data": notes})
class Reader:
    @corral.enter()
    def load(self) -> None:
        self.text = (notes.path / "model.txt").read_text()
        self.there = folder.remote()

    @corral.method()
    def read(self) -> tuple[str, bool]:
        return self.text, self.there
