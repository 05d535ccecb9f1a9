"""Reads a manifest: every run merged with the defaults, and everything that is wrong, each with its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from corral.client.runs import LATEST
from corral.client.submit.run_file import MANIFEST_KEYS, is_group, parse_toml, path_from, read_text
from corral.client.submit.toml_lines import TomlLines, parse_place
from corral.domain.errors import CorralError, FieldError, InvalidInput
from corral.domain.ids import is_name
from corral.domain.paths import printable
from corral.errors import WHOLE
from corral.wire.base import did_you_mean, explain, validated
from corral.wire.hosts import HostTable
from corral.wire.manifests import ManifestFile
from corral.wire.spec.run_file import RunFile

# Keys of a run file that name files, which start from the folder of the file that they stand in.
_PATHS = (
    ("code",),
    ("params_schema",),
    ("params_from",),
    ("environment", "requirements"),
    ("environment", "find_links"),
    ("train", "data"),
    ("train", "eval_data"),
    ("train", "environment"),
    ("train", "adapter"),
)
# What a run does is one or the other; of the defaults only what goes with it is taken.
_COMMAND = ("argv", "params", "params_schema", "params_from")
_TRAINING = ("train", "model")
# The name of a run that has none, while the rest of it is checked.
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class ManifestProblem:
    """`key` as it is written in the file; `line` where it is known."""

    file: str
    line: int | None
    key: str
    message: str

    def field(self) -> FieldError:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return FieldError(f"{place} {self.key}", self.message)


@dataclass(frozen=True)
class ManifestSource:
    """A file that was read, to tell the lines of what is wrong with it."""

    name: str
    lines: TomlLines

    def problem(self, key: str, message: str) -> ManifestProblem:
        return ManifestProblem(self.name, self.lines.line(parse_place(key)), key, message)


@dataclass(frozen=True)
class ManifestRunTable:
    """One table of `runs`; it may stand for many. `base_dir` is what its paths start from."""

    name: str
    place: str
    group: str | None
    run_file: RunFile
    base_dir: Path
    source: ManifestSource | None = None


@dataclass
class ParsedManifest:
    """What could be read. With problems it is not to be applied."""

    name: str
    project: str
    source: ManifestSource
    runs: list[ManifestRunTable] = field(default_factory=list)
    hosts: dict[str, HostTable] = field(default_factory=dict)
    problems: list[ManifestProblem] = field(default_factory=list)
    # The manifest and the run files that it names.
    files: set[Path] = field(default_factory=set)
    # Of all its runs, also of those that could not be read.
    names: set[str] = field(default_factory=set)

    def add(self, problem: ManifestProblem) -> None:
        # What is wrong with the defaults is wrong with every run, and told once.
        if problem not in self.problems:
            self.problems.append(problem)

    def refuse(self, run: ManifestRunTable, error: CorralError) -> None:
        """What was found wrong with a run after it was read."""
        for found in error.fields or (FieldError(WHOLE, error.message),):
            self.add(self.located(run.place, run.source, found))

    def located(self, place: str, source: ManifestSource | None, found: FieldError) -> ManifestProblem:
        """Where the key really stands: in the run's own table, in its file, or in the defaults."""
        lines, below = self.source.lines, parse_place(found.path)
        own = lines.depth((*parse_place(place), *below)) - len(parse_place(place))
        if source is not None and source.lines.depth(below) > max(own, 0):
            return source.problem(found.path, found.message)
        if lines.depth(("defaults", *below)) - 1 > max(own, 0):
            return self.source.problem(f"defaults.{found.path}", found.message)
        key = place if found.path == WHOLE else f"{place}.{found.path}"
        # Keys of a manifest alone, which the run file's own check does not know.
        return self.source.problem(key, found.message + did_you_mean(found.path, ("file", "group"), 0.7))

    def placed(self, found: FieldError) -> FieldError:
        """With its place in the files, where the server named a run of this manifest."""
        for run in sorted(self.runs, key=lambda one: len(one.name), reverse=True):
            if found.path.startswith(f"runs.{run.name}."):
                below = found.path.removeprefix(f"runs.{run.name}.")
                return self.located(run.place, run.source, FieldError(below, found.message)).field()
        return found

    def placed_error(self, error: InvalidInput) -> InvalidInput:
        """The same, with places in the files for all that the server named."""
        fields = [self.placed(found) for found in error.fields]
        if fields == [*error.fields]:
            return error
        lines = "; ".join(f"{found.path} {found.message}" for found in fields[:20])
        return InvalidInput(f"{self.source.name} cannot be applied: {lines}", hint=error.hint, fields=fields)

    def in_order(self) -> list[str]:
        """Names of runs, those that others wait for first. Adds a problem for a name that is not there."""
        known = {run.name: run for run in self.runs}
        before: dict[str, set[str]] = {name: set() for name in known}
        for name, run in known.items():
            for one in run.run_file.after:
                if one.run in known:
                    before[name].add(one.run)
                elif one.run not in self.names and not one.run.startswith("r-") and one.run != LATEST:
                    message = f"names {one.run}, which is no run of this manifest"
                    message += did_you_mean(one.run, known)
                    self.add(self.source.problem(f"{run.place}.after", message))
        try:
            return list(TopologicalSorter(before).static_order())
        except CycleError as error:
            around = " after ".join(reversed(error.args[1]))
            place = known[error.args[1][0]].place
            self.add(self.source.problem(f"{place}.after", f"goes round in a circle: {around}"))
            return []

    def check(self) -> None:
        """InvalidInput with every problem, if there is one."""
        if self.problems:
            fields = [problem.field() for problem in self.problems]
            lines = "; ".join(f"{f.path} {f.message}" for f in fields[:20])
            raise InvalidInput(
                f"{self.source.name} is not valid: {lines}",
                hint="Nothing was changed. Correct what is named; `corral manifest plan` checks it again.",
                fields=fields,
            )


def load(path: Path, *, project: str) -> ParsedManifest:
    """InvalidInput where it is not TOML at all; all else that is wrong is in `problems`."""
    text = read_text(path, what="a manifest; docs/reference/manifest.md shows one")
    shown = printable(str(path))
    table = parse_toml(text, what=shown)
    if not table.keys() & MANIFEST_KEYS and table.keys() & {"argv", "train"}:
        raise InvalidInput(
            f"{shown} is a run file, and no manifest",
            hint=f'Say `corral submit {shown}`, or name it in a manifest: [[runs]] file = "{path.name}".',
        )
    loaded = ParsedManifest(path.name.removesuffix(".toml"), project, ManifestSource(shown, TomlLines(text)))
    loaded.files.add(path.absolute())
    top = {key: value for key, value in table.items() if key not in ("runs", "hosts")}
    try:
        read = ManifestFile.model_validate(top)
    except ValidationError as error:
        for found in explain(ManifestFile, error, what=shown).fields:
            loaded.add(loaded.source.problem(found.path, found.message))
    else:
        loaded.name, loaded.project = read.name or loaded.name, top.get("project", project)
    if not is_name(loaded.name):
        message = "is missing, and the file's own name is not fit for one (letters, digits, `.`, `_`, `-`)"
        loaded.add(loaded.source.problem("name", message))
    _hosts(loaded, table.get("hosts", {}))
    defaults = table.get("defaults", {})
    reader = _RunTables(loaded, path.absolute().parent, defaults if isinstance(defaults, dict) else {})
    reader.read(table.get("runs", []))
    loaded.in_order()
    if not table.get("runs") and not table.get("hosts"):
        hint = "declares neither runs nor hosts; `corral manifest delete` forgets a manifest"
        loaded.add(ManifestProblem(shown, None, "runs", hint))
    return loaded


def _hosts(loaded: ParsedManifest, hosts: Any) -> None:
    if not isinstance(hosts, dict):
        loaded.add(loaded.source.problem("hosts", "is not a table; write `[hosts.NAME]`"))
        return
    for name, table in hosts.items():
        place = f"hosts.{name}"
        if not is_name(name) or not isinstance(table, dict):
            loaded.add(loaded.source.problem(place, "is not a host's name with a table: `[hosts.NAME]`"))
            continue
        try:
            loaded.hosts[name] = validated(HostTable, table, what=place, under=place)
        except InvalidInput as error:
            for found in error.fields:
                loaded.add(loaded.source.problem(found.path, found.message))


@dataclass
class _RunTables:
    loaded: ParsedManifest
    base_dir: Path
    defaults: Mapping[str, Any]
    seen: dict[str, str] = field(default_factory=dict)

    def read(self, runs: Any) -> None:
        if not isinstance(runs, dict | list):
            self._wrong("runs", "is not a table; write `[[runs]]`, or `[runs.NAME]`")
            return
        for place, table in self._tables(runs):
            if not isinstance(table, dict):
                self._wrong(place, "is not a table with the keys of a run file")
                continue
            self._run(place, table)

    def _tables(self, runs: dict[str, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
        if isinstance(runs, list):
            yield from ((f"runs[{index}]", table) for index, table in enumerate(runs))
            return
        for name, table in runs.items():
            if isinstance(table, dict) and table.get("name", name) != name:
                self._wrong(f"runs.{name}.name", f"is {table['name']!r}, and the table is called {name!r}")
                self.loaded.names.add(str(table["name"]))
            yield f"runs.{name}", {**table, "name": name} if isinstance(table, dict) else table

    def _run(self, place: str, own: dict[str, Any]) -> None:
        own = dict(own)
        file, group = own.pop("file", None), self._group(place, own)
        under, base_dir, source = self._under(place, file)
        table = self._whole(own, under or {}, is_apart=file is not None)
        # What is wrong with the one does not keep the others from being told.
        is_placed = self._belongs_here(place, table)
        name = table["name"] if isinstance(table.get("name"), str) else _UNKNOWN
        table = {**table, "name": name, "project": self.loaded.project}
        table.pop("schedule", None)
        try:
            run_file = RunFile.model_validate(table)
        except ValidationError as error:
            for found in explain(RunFile, error, what=place).fields:
                # Of a run whose file cannot be read, more than stands here is not known.
                if under is not None or parse_place(found.path)[0] in own:
                    self.loaded.add(self.loaded.located(place, source, found))
            return
        if under is None or not is_placed:
            return
        chosen = group or (run_file.name if is_group(run_file) else None)
        self.loaded.runs.append(ManifestRunTable(run_file.name, place, chosen, run_file, base_dir, source))

    def _group(self, place: str, own: dict[str, Any]) -> str | None:
        group = own.pop("group", self.defaults.get("group"))
        if group is None or (isinstance(group, str) and is_name(group)):
            return group
        self._wrong(f"{place}.group", "is not a name")
        return None

    def _whole(self, own: dict[str, Any], under: dict[str, Any], *, is_apart: bool) -> dict[str, Any]:
        """The run's own keys over those of its file, if it is apart, and over the defaults."""
        defaults = {key: value for key, value in self.defaults.items() if key != "group"}
        if is_apart:
            # Paths that stand here start from here, and not from where the other file is.
            own, defaults = _rooted(own, self.base_dir), _rooted(defaults, self.base_dir)
        work = {**under, **own}
        other = _COMMAND if "train" in work else _TRAINING if "argv" in work else ()
        defaults = {key: value for key, value in defaults.items() if key not in other}
        return _merged(_merged(defaults, under), own)

    def _belongs_here(self, place: str, table: Mapping[str, Any]) -> bool:
        """Whether it has a name of its own and the manifest's project, and none of a schedule."""
        is_unscheduled = "schedule" not in table
        if not is_unscheduled:
            self._wrong(f"{place}.schedule", "has no place in a manifest; `corral submit` makes a schedule")
        is_own = self._is_own_project(place, table)
        if not isinstance(table.get("name"), str):
            self._wrong(f"{place}.name", "is required: what the run is called")
            return False
        self.loaded.names.add(table["name"])
        return self._is_new(place, table["name"]) and is_own and is_unscheduled

    def _under(self, place: str, file: object) -> tuple[dict[str, Any] | None, Path, ManifestSource | None]:
        """What the run file says that `file` names; None where it cannot be read."""
        if file is None:
            return {}, self.base_dir, None
        if not isinstance(file, str):
            self._wrong(f"{place}.file", "is not the path of a run file")
            return None, self.base_dir, None
        path = path_from(self.base_dir, file)
        self.loaded.files.add(path)
        shown = printable(file)
        try:
            text = read_text(path, what="a run file")
            return parse_toml(text, what=shown), path.parent, ManifestSource(shown, TomlLines(text))
        except InvalidInput as error:
            self._wrong(f"{place}.file", error.message)
            return None, self.base_dir, None

    def _is_own_project(self, place: str, table: Mapping[str, Any]) -> bool:
        given = table.get("project", self.loaded.project)
        if given == self.loaded.project:
            return True
        said = f"is {given!r}; all runs of this manifest are of {self.loaded.project}"
        self._wrong(f"{place}.project", f'{said}: write project = "{given}" once, at the top of the manifest')
        return False

    def _is_new(self, place: str, name: str) -> bool:
        first = self.seen.setdefault(name, place)
        if first == place:
            return True
        line = self.loaded.source.lines.line(parse_place(first))
        self._wrong(f"{place}.name", f"is {name!r}, as in line {line}: names in a manifest are unique")
        return False

    def _wrong(self, key: str, message: str) -> None:
        self.loaded.add(self.loaded.source.problem(key, message))


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; anything else is replaced as a whole."""
    made = dict(under)
    for key, value in over.items():
        below = made.get(key)
        made[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return made


def _rooted(table: Mapping[str, Any], base_dir: Path) -> dict[str, Any]:
    """The same with every path made absolute."""
    made = dict(table)
    for first, *rest in _PATHS:
        value = made.get(first)
        if not rest and isinstance(value, str):
            made[first] = str(path_from(base_dir, value))
        elif rest and isinstance(value, dict) and isinstance(inner := value.get(rest[0]), str):
            path = path_from(base_dir, inner)
            # A bundled environment or a run is named by a word, not by a path.
            if first != "train" or path.exists():
                made[first] = {**value, rest[0]: str(path)}
    if isinstance(inputs := made.get("inputs"), dict):
        made["inputs"] = {name: _rooted_input(given, base_dir) for name, given in inputs.items()}
    if isinstance(model := made.get("model"), str) and model.startswith((".", "~")):
        made["model"] = str(path_from(base_dir, model))
    return made


def _rooted_input(given: Any, base_dir: Path) -> Any:
    if isinstance(given, str):
        return str(path_from(base_dir, given))
    is_local = isinstance(given, dict) and not {"artifact", "run"} & set(given)
    if is_local and isinstance(path := given.get("path"), str):
        return {**given, "path": str(path_from(base_dir, path))}
    return given
