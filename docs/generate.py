"""Writes the pages of the reference that follow from the code; with --check it only says which are stale.

    python docs/generate.py [--check]
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import corral
from corral.adapters.sql.sqlite import SqliteStore
from corral.bootstrap import build_services
from corral.cli.main import app
from corral.domain.errors import CorralError
from corral.server.app import Server
from corral.server.errors import STATUS
from corral.settings import Settings
from corral.wire.spec import RunFile
from typer.main import get_command

HERE = Path(__file__).resolve().parent
REFERENCE = HERE / "reference"
MADE = "<!-- Made by docs/generate.py; change the code or that script, then run `make docs`. -->\n\n"

RUN_FILE_KEYS: Mapping[str, str] = {
    "name": "What it is called in lists; a group takes this name too.",
    "project": "Which project it belongs to. `CORRAL_PROJECT` when left out.",
    "kind": "What sort of run it is; there is one so far.",
    "argv": "The command, as a list. `{params.x}`, `{seed}` and `{run_id}` are filled in; other braces stay.",
    "params": "Named values for the command; the child reads them in `CORRAL_SPEC` too.",
    "env": "Plain environment variables. Names that begin with `CORRAL_` are refused.",
    "secrets": "Names of secrets of the project; the child gets each as an environment variable.",
    "resources": "What a host must have.",
    "resources.gpus": "How many GPUs. The child sees only its own.",
    "resources.gpu": "Models, any of which will do; part of the name is enough: `[\"H100\", \"A100\"]`.",
    "resources.min_vram": "Memory of each GPU.",
    "resources.min_ram": "The host's memory.",
    "resources.min_cores": "The host's physical cores.",
    "resources.min_disk": "The disk that the worker keeps its data on.",
    "resources.min_compute_capability": "Of each GPU, as `\"8.0\"`.",
    "resources.os": "The operating system.",
    "resources.arch": "The processor.",
    "resources.labels": "Labels that the host must carry, all of them.",
    "resources.hosts": "Only these hosts, by name.",
    "retries": "How often it is tried again, by cause.",
    "retries.infrastructure": "After a lost host, a preemption or a stall.",
    "retries.memory": "After running out of memory.",
    "retries.code": "After an error of its own: a non-zero exit, bad data, refused output, a failed build.",
    "keep": "Which checkpoints stay.",
    "keep.latest": "This many of the newest.",
    "keep.best": "This many of the best by their metric.",
    "keep.metric": "Whether a small or a large metric is good.",
    "wall_limit": "How long it may run, over all attempts. Then it is stopped and has failed.",
    "stall_limit": "How long it may go without output, metric or progress before it is tried elsewhere.",
    "grace": "How long it has between SIGTERM and SIGKILL.",
    "priority": "Higher goes first.",
    "labels": "Your own words for it; `corral ls --label KEY=VALUE` finds them.",
    "code": "A folder to ship; the command starts in it. `.gitignore` and `.corralignore` are honoured.",
    "environment": "The Python that it runs in; the host's own when left out.",
    "environment.host": "Take whatever Python the host has.",
    "environment.python": "The version to build with; that of `corral` itself when left out.",
    "environment.requirements": "As pip takes them: a list, or the path of a requirements file.",
    "environment.find_links": "A folder of wheels beside the index.",
    "inputs": "What it reads, by name; each appears as `CORRAL_INPUT_DIR/NAME`.",
    "inputs.NAME": "A path of a file or folder, or one of the three below.",
    "inputs.NAME.path": "A file or folder on this machine.",
    "inputs.NAME.artifact": "An artifact's id.",
    "inputs.NAME.run": "A run (id, prefix or `latest`) whose result is meant.",
    "seeds": "One run for each.",
    "sweep": "Lists of values for params; one run for each combination.",
}

SETTINGS: Mapping[str, str] = {
    "home": "Where the server and the worker of this machine keep their data.",
    "url": "The server to talk to, when it is not the one of this machine.",
    "token": "The token to show it; otherwise the one that `corral up` wrote is used.",
    "project": "The project of runs and secrets that name none.",
    "host": "The address that the server listens on.",
    "port": "The port that the server listens on; 0 picks a free one.",
    "database": "A `postgresql://` address; SQLite under `CORRAL_HOME` when left out.",
    "lease_s": "After this many seconds without a sign from its worker, a run is given to another.",
    "first_beat_s": "A lease whose worker has not called within this time is taken back.",
    "max_body_bytes": "The largest request that is not an upload.",
    "max_blob_bytes": "The largest single file.",
    "min_free_bytes": "Uploads stop while the disk has less than this.",
    "log_quota_bytes": "The most output that is kept of one attempt.",
    "log_retention_s": "How long logs and metrics of ended runs stay.",
    "upload_retention_s": "How long an unfinished upload can be taken up again.",
    "blob_grace_s": "How long a file that nothing names any more stays.",
    "user_pin_s": "How long a file that was uploaded stays before something names it.",
    "worker_name": "What this machine's worker is called; the host name when left out.",
    "worker_slots": "How many runs it takes at once; one per core or GPU when left out.",
    "worker_labels": "Its labels, with commas between.",
}


def run_file_page() -> str:
    schema = RunFile.model_json_schema()
    rows = list(_keys(schema, schema, ""))
    described = {key for key, _ in rows}
    _same("RUN_FILE_KEYS", set(RUN_FILE_KEYS), described)
    table = "\n".join(
        f"| `{key}` | {_type(schema, part)} | {_default(part)} | {RUN_FILE_KEYS[key]} |" for key, part in rows
    )
    return (
        "# Run file\n\n" + MADE + "A run file is TOML. Unknown keys are refused, with the nearest known name. "
        "Sizes are numbers of bytes or text such as `\"24GiB\"` and `\"500MB\"`; durations are seconds or text "
        "such as `\"90s\"`, `\"15m\"`, `\"2h\"`, `\"1d\"`. Paths start from the folder that the file is in. "
        "Names are letters, digits, `.`, `_` and `-`, at most 64. [How to write one](../howto/run-file.md) "
        "shows them in use.\n\n"
        "| key | type | default | meaning |\n|---|---|---|---|\n" + table + "\n\n"
        "## Completion in editors\n\n"
        "`corral schema` prints the JSON Schema. Editors that use Taplo (VS Code with \"Even Better TOML\", "
        "Helix, Zed) complete and check a run file that begins with `#:schema ./run.schema.json`:\n\n"
        "```console\n$ corral schema > run.schema.json\n```\n\n"
        "## From the command line\n\n"
        "`--set KEY=VALUE` sets any key, at any depth. The value is read as TOML; what is not TOML is text.\n\n"
        "```toml title=\"run.toml\"\nname = \"hello\"\nargv = [\"echo\", \"{params.word}\"]\n\n"
        "[params]\nword = \"hello\"\n```\n\n"
        "```console\n$ corral submit run.toml --follow --set params.word=goodbye --set 'resources.min_ram=1GiB'\n"
        "goodbye\n...\n```\n"
    )


def _keys(root: Mapping[str, Any], schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, part in schema["properties"].items():
        key = f"{prefix}{name}"
        yield key, part
        inner = _resolved(root, part)
        if "properties" in inner:
            yield from _keys(root, inner, f"{key}.")
        elif name == "inputs":
            item = inner["additionalProperties"]
            yield f"{key}.NAME", item
            table = next(_resolved(root, option) for option in item["anyOf"] if "$ref" in option)
            yield from _keys(root, table, f"{key}.NAME.")


def _resolved(root: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = root["$defs"][part["$ref"].rsplit("/", 1)[1]] if "$ref" in part else part
    return found


def _type(root: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    part = {**part, **_resolved(root, part)}
    if "properties" in part:
        return "table"
    if "anyOf" in part:
        options = [_type(root, option) for option in part["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(options))
    if "enum" in part or "const" in part:
        values = part.get("enum", [part.get("const")])
        return " or ".join(f'`"{value}"`' for value in values)
    kind = part.get("type")
    if kind == "array":
        return f"list of {_type(root, part['items'])}"
    if kind == "object":
        patterns = list(part.get("patternProperties", {}).values())
        return f"table of {_type(root, patterns[0] if patterns else part['additionalProperties'])}"
    words = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false"}
    return words[kind] + _bounds(part) if kind else "any"


def _bounds(part: Mapping[str, Any]) -> str:
    low, high = part.get("minimum"), part.get("maximum")
    if low is None or high is None:
        return ""
    return f", {low:g} to {high:g}" if isinstance(low, float) else f", {low} to {high}"


def _default(part: Mapping[str, Any]) -> str:
    if "default" not in part:
        return "needed" if part.get("type") == "array" else ""
    value = part["default"]
    if value is None or value == {} or value == [] or isinstance(value, dict):
        return ""
    return f"`{value!r}`".replace("'", '"').replace("True", "true").replace("False", "false")


def configuration_page() -> str:
    _same("SETTINGS", set(SETTINGS), set(Settings.model_fields))
    rows = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, "") else f"`{field.default}`"
        rows.append(f"| `CORRAL_{name.upper()}` | {default} | {SETTINGS[name]} |")
    return (
        "# Configuration\n\n" + MADE + "Nothing needs to be set. Every setting is an environment variable; "
        "a wrong one is named at the start. The server and the worker take theirs when `corral up` starts "
        "them, so a change needs `corral down` and `corral up`.\n\n"
        "| variable | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "`NO_COLOR` turns colours off. uv, which builds environments, reads its own variables "
        "(`UV_DEFAULT_INDEX`, `UV_INDEX`, ...).\n\n"
        "## What is kept where\n\nUnder `CORRAL_HOME`:\n\n"
        "| path | what |\n|---|---|\n"
        "| `corral.db` | the queue and everything that is known of runs; SQLite |\n"
        "| `blobs/` | the bytes of artifacts, each file once, named by its SHA-256 |\n"
        "| `segments/` | logs and metrics |\n"
        "| `key` | what secrets are encrypted with; without it they cannot be read |\n"
        "| `operator.token` | the token that the CLI of this machine uses; mode 0600 |\n"
        "| `server.json` | where the server listens |\n"
        "| `worker/` | the worker's identity, its runs' folders, its cache, the environments that it built |\n"
        "| `logs/server.log`, `logs/worker.log` | what they have to say |\n\n"
        "To move or save everything, run `corral down` and copy the folder.\n"
    )


def cli_page() -> str:
    parts = ["# Command line\n\n", MADE, "`corral COMMAND --help` prints the same. ", "How commands end: ",
             "[exit codes](exit-codes.md).\n"]
    for words in _commands():
        text = _help(words)
        parts.append(f"\n## `{' '.join(['corral', *words])}`\n\n```text\n{text}\n```\n")
    return "".join(parts)


def _commands() -> Iterator[list[str]]:
    yield []
    root: Any = get_command(app)
    for name in root.commands:
        _, command, _ = root.resolve_command(None, [name])
        inner = getattr(command, "commands", None)
        if inner:
            yield from ([name, verb] for verb in inner)
        else:
            yield [name]


def _help(words: list[str]) -> str:
    script = "from corral.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *words, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "LANG": "C.UTF-8"},
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def errors_page() -> str:
    for module in pkgutil.walk_packages(corral.__path__, "corral."):
        if not module.name.endswith("__main__") and ".migrations" not in module.name:
            importlib.import_module(module.name)
    rows = []
    for kind in sorted(_subclasses(CorralError), key=lambda kind: kind.code):
        meaning = " ".join((kind.__doc__ or "").split())
        status = STATUS.get(kind.code)
        hint = kind.hint if isinstance(kind.hint, str) else ""
        rows.append(f"| `{kind.code}` | {status or ''} | {meaning} | {hint} |")
    return (
        "# Errors\n\n" + MADE + "Every error has one shape, on the command line and over HTTP: a stable code, "
        "what is wrong, what to do next, and the fields that are wrong, if any.\n\n"
        "```json\n"
        '{"code": "not_found", "message": "there is no run \'r-bcdf\'", "hint": "Check the id ...", "fields": []}\n'
        "```\n\n"
        "The command line prints `error:` and the message, then `hint:`. `corral --debug COMMAND` prints the "
        "traceback as well. Those with an HTTP status can come from the server; the others arise in the "
        "client or the worker. A hint is often made for the case at hand; the one here is the general one.\n\n"
        "| code | HTTP | meaning | hint |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def _subclasses(kind: type[CorralError]) -> Iterator[type[CorralError]]:
    for below in kind.__subclasses__():
        if "code" in vars(below):
            yield below
        yield from _subclasses(below)


def http_page() -> str:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        services = build_services(settings, SqliteStore(settings.home / "corral.db"))
        schema = Server(services).api.openapi()
    rows = []
    for path, calls in schema["paths"].items():
        for method, call in calls.items():
            about = (call.get("description") or call.get("summary") or "").split("\n\n")[0]
            rows.append(f"| `{method.upper()} {path}` | {' '.join(about.split())} |")
    return (
        "# HTTP API\n\n" + MADE + "JSON over HTTP, under `/v1`. The whole of it, with every model, is the "
        "OpenAPI document at `/v1/openapi.json`. Calls carry `Authorization: Bearer TOKEN`; only "
        "`/v1/health` needs none. Lists are pages: give `next` of one as `cursor` of the next call. Errors "
        "have [one shape](errors.md).\n\n"
        "```console\n"
        "$ corral run --quiet -- echo hello\nhello\n"
        "$ url=$(python3 -c 'import json, os; print(json.load(open(os.path.expanduser(\"~/.corral/server.json\")))[\"url\"])')\n"
        "$ curl -s $url/v1/health\n"
        '{"ok":true,"version":"...","api":"v1","detail":""}\n'
        "$ curl -s -H \"Authorization: Bearer $(cat ~/.corral/operator.token)\" \"$url/v1/runs?limit=1\" | python3 -m json.tool\n"
        "...\n"
        '            "state": "succeeded",\n'
        "...\n"
        "```\n\n"
        "Those under `/v1/leases` and `/v1/claims` are the worker's: each carries the epoch of its lease, and "
        "one that is not the newest changes nothing.\n\n"
        "| call | |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def _same(what: str, described: set[str], real: set[str]) -> None:
    if described != real:
        raise SystemExit(
            f"docs/generate.py: {what} lacks {sorted(real - described)} and has {sorted(described - real)} too many"
        )


PAGES = {
    "run-file.md": run_file_page,
    "configuration.md": configuration_page,
    "cli.md": cli_page,
    "errors.md": errors_page,
    "http-api.md": http_page,
}


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    stale = []
    for name, make in PAGES.items():
        path, text = REFERENCE / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and stale:
        sys.stderr.write(f"docs/reference: {', '.join(stale)} are stale; run `python docs/generate.py`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
