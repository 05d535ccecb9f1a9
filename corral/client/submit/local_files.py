"""What a run takes along from this machine: its code and its inputs, read and known by their content."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from corral.client.files.ignore import FETCHED, Ignore
from corral.client.files.tree import Tree, scan, scan_file
from corral.client.submit.problems import ProblemList
from corral.client.submit.run_file import path_from, wrong_field
from corral.domain.paths import printable
from corral.wire.spec.run_file import RunFile

Once = Callable[[object, Callable[[], Any]], Any]
# Uploads are known by what they are and what they hold.
Key = tuple[Literal["code", "input"], str]
# Of words that look like files, so many are named.
_NAMED = 3
# Programs whose first argument is a script of the user's own.
_INTERPRETER = re.compile(r"(python|bash|sh|zsh|node|perl|ruby|torchrun)[\d.]*")
_SCRIPTS = frozenset({".py", ".sh", ".js", ".pl", ".rb"})


@dataclass(frozen=True)
class LocalFiles:
    """Something local that the run needs: its files, and the folder they are below."""

    what: str
    root: Path
    tree: Tree


@dataclass(frozen=True)
class FileReader:
    """`base_dir` is what relative paths start from. `declaring` are files that say what is to be run: they
    are no part of the code that they name. `once` remembers what was read."""

    base_dir: Path
    declaring: frozenset[Path]
    once: Once
    step: Callable[[str], None]

    def code(self, run_file: RunFile) -> LocalFiles | None:
        if run_file.code is None:
            return None
        root = path_from(self.base_dir, run_file.code)
        return self.code_in(root)

    def code_in(self, root: Path) -> LocalFiles:
        found: LocalFiles = self.once(("code", root), partial(self._read_code, root))
        return found

    def inputs(self, run_file: RunFile) -> dict[str, LocalFiles]:
        # An environment is code, with the litter that lies beside code.
        is_code = {"environment"} if run_file.train is not None else set()
        found: dict[str, LocalFiles] = {}
        problems = ProblemList()
        for name, given in run_file.inputs.items():
            path = given if isinstance(given, str) else given.local
            if path is not None:
                place = path_from(self.base_dir, path)
                key = ("input", place, name, name in is_code)
                ignore = self._ignore(place) if name in is_code else None
                read = partial(self.once, key, partial(self.input, name, path, ignore))
                if (source := problems.collect(read)) is not None:
                    found[name] = source
        problems.check(f"the run {run_file.name}")
        return found

    def input(self, name: str, given: str, ignore: Ignore | None = None) -> LocalFiles:
        path = path_from(self.base_dir, given)
        self.step(f"reading input {name} in {printable(str(path))}")
        if path.is_dir():
            return LocalFiles(f"input {name}", path, scan(path, ignore=ignore))
        if not path.is_file():
            raise wrong_field(f"inputs.{name}", f"{printable(str(path))} is neither a file nor a folder")
        # A link given by name is meant: what it leads to is read, under the name that was given.
        return LocalFiles(f"input {name}", path.parent, scan_file(path))

    def _read_code(self, root: Path) -> LocalFiles:
        self.step(f"reading code in {printable(str(root))}")
        if not root.is_dir():
            raise wrong_field("code", f"{printable(str(root))} is not a folder")
        return LocalFiles("code", root, scan(root, ignore=self._ignore(root)))

    def _ignore(self, root: Path) -> Ignore:
        places = {place for file in self.declaring for place in (file, file.resolve())}
        roots = {root, root.resolve()}
        inside = {p.relative_to(r).as_posix() for p in places for r in roots if p.is_relative_to(r)}
        return Ignore(files=frozenset(inside))


def code_notes(run_file: RunFile, code: LocalFiles | None, base_dir: Path) -> Iterator[str]:
    """What people should know of the code that is shipped, or is not."""
    for folder in code.tree.fetched if code else ():
        yield f"{folder}/ is not shipped: it was fetched from a server ({folder}/{FETCHED} says so)"
    for folder in code.tree.homes if code else ():
        yield f"{folder}/ is not shipped: a server, a host or a backup of Corral keeps its keys there"
    if code is None and (words := local_words(run_file.argv, base_dir)):
        named = ", ".join(words[:_NAMED])
        yield f'{named} lies here, but no code is shipped with the run: add code = "."'


def local_words(argv: Sequence[str], folder: Path) -> list[str]:
    """Words of a command that name files of the folder, by paths that start from it."""
    found = [word for index, word in enumerate(argv) if _is_local(word, folder, is_program=index == 0)]
    for flag, module in itertools.pairwise(argv):
        if flag == "-m" and _is_module(module, folder):
            found.append(module)
    return found


def missing_script(argv: Sequence[str], folder: Path) -> str | None:
    """The script that an interpreter is to run, where its path leads to none from the folder."""
    if not argv or not _INTERPRETER.fullmatch(PurePosixPath(argv[0]).name) or len(argv) < 2:
        return None
    script = argv[1]
    path = PurePosixPath(script)
    if path.suffix not in _SCRIPTS or path.is_absolute() or len(script) > 1024 or "\0" in script:
        return None
    return None if (folder / path).exists() else script


def _is_local(word: str, folder: Path, *, is_program: bool) -> bool:
    # A program's bare name is looked for elsewhere, as shells do.
    if (
        not word
        or word.startswith("-")
        or len(word) > 1024
        or "\0" in word
        or (is_program and "/" not in word)
    ):
        return False
    path = PurePosixPath(word)
    if path.is_absolute() or ".." in path.parts:
        return False
    try:
        return (folder / path).is_file()
    except OSError:
        return False


def _is_module(name: str, folder: Path) -> bool:
    first = name.partition(".")[0]
    if not first.isidentifier():
        return False
    return (folder / f"{first}.py").is_file() or (folder / first).is_dir()
