"""Checks the params of a run that is submitted again with others, by what travelled with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from corral.client.corral import Corral
from corral.client.files.blobs import BlobSource
from corral.client.submit import script_parser
from corral.client.submit.params import ParamChecker, SchemaChecker, ScriptChecker, checked_params
from corral.domain.errors import CorralError
from corral.wire.base import did_you_mean
from corral.wire.spec.run_file import RunSpec

# The text of a file of the run's code; None if it is not there.
ReadCode = Callable[[str], str | None]


def in_folder(folder: Path) -> ReadCode:
    def read(path: str) -> str | None:
        try:
            return (folder / path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return None

    return read


def in_artifact(corral: Corral, spec: RunSpec) -> ReadCode:
    def read(path: str) -> str | None:
        if spec.code is None:
            return None
        try:
            files = corral.artifacts.tree(spec.code).files
            digest = next((file.digest for file in files if file.path == path), None)
            source = BlobSource.of_project(corral.transport, spec.project)
            return None if digest is None else source.whole(digest).decode("utf-8-sig")
        except (CorralError, UnicodeDecodeError):
            # Code that is no longer kept: then nothing can be checked here.
            return None

    return read


def with_checked_params(before: RunSpec, after: RunSpec, read: ReadCode) -> tuple[RunSpec, list[str]]:
    """The changed spec, its numbers in one form, and what people should know of its params.

    InvalidInput as `params_from` and `params_schema` of its run file would have it. The script is read and
    not run: the code of a run may be anybody's.
    """
    if after.params == before.params:
        return after, []
    checkers = list(_checkers(after, read))
    if not checkers:
        return after, list(_new_names(before, after))
    (params,) = checked_params(checkers, [after.params])
    return after.model_copy(update={"params": params}), []


def _checkers(spec: RunSpec, read: ReadCode) -> Iterator[ParamChecker]:
    if spec.params_schema is not None and (text := read(spec.params_schema)) is not None:
        yield SchemaChecker.parse(text, spec.params_schema)
    if spec.params_from is not None and (text := read(spec.params_from)) is not None:
        parser = script_parser.from_text(text, Path(spec.params_from).name)
        if parser is not None:
            yield ScriptChecker(parser, spec.argv)


def _new_names(before: RunSpec, after: RunSpec) -> Iterator[str]:
    for name in after.params:
        if name not in before.params:
            near = did_you_mean(name, before.params)
            yield f"params.{name} is new: the run has no param of that name{near}"
