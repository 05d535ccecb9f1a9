"""Writes the parts of the reference that follow from the code: what stands between `<!-- made -->` and
`<!-- end -->` in each page. With --check it only says which pages are stale.

    python docs/generate.py [--check]
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import corral
from corral.bootstrap.server import build_services
from corral.cli.main import app
from corral.domain.errors import CorralError
from corral.domain.webhooks.deliveries import TYPES
from corral.errors import FunctionError
from corral.functions import decorator_options
from corral.functions.decorator_options import ClassOptions, FunctionOptions
from corral.recipes import diloco
from corral.recipes.schema import fields_of, nested
from corral.recipes.train import json_schema
from corral.recipes.train_tables import Train
from corral.server.app import ControlPlane
from corral.server.errors import STATUS
from corral.settings import Settings
from corral.store.sqlite.store import SqliteStore
from corral.wire.hosts import HostTable
from corral.wire.manifests import ManifestFile
from corral.wire.spec.run_file import RunFile
from corral.wire.webhooks import Notice
from typer.main import get_command

REFERENCE = Path(__file__).resolve().parent / "reference"
_MADE = re.compile(r"(?<=<!-- made -->\n).*(?=<!-- end -->)", re.DOTALL)

# Written as numbers or as text with a unit, which the schema cannot tell.
UNITS: Mapping[str, str] = {
    **dict.fromkeys(("resources.min_vram", "resources.min_ram", "resources.min_disk"), "size"),
    **dict.fromkeys(("hosts.NAME.ram", "hosts.NAME.disk", "hosts.NAME.vram"), "size"),
    **dict.fromkeys(("wall_limit", "stall_limit", "grace", "resources.prefer_for"), "duration"),
}

SETTINGS: Mapping[str, str] = {
    "home": "Where the server and the worker of this machine keep their data.",
    "url": "The server to talk to, when it is not the one of this machine.",
    "token": "The token to show it; otherwise the one that `corral up` wrote is used.",
    "plain_http": "`allow`: tokens may travel in clear, over `http://`, to another machine.",
    "project": "The project of what names none; the one that the token is bound to, or else `default`.",
    "host": "The address that the server listens on.",
    "port": "The port that the server listens on; 0 picks a free one.",
    "database": "A `postgresql://` address; SQLite under `CORRAL_HOME` when left out.",
    "ca": "The authority behind the server's certificate, a PEM file; a token with a pin needs none.",
    "tls": "`auto`: TLS unless the server listens on this machine alone; or `on`, or `off` (behind a proxy).",
    "tls_names": "More names and addresses for the certificate that the server makes, with commas between.",
    "tls_cert": "A certificate of your own, a PEM file; read again when it changes.",
    "tls_key": "The key of that certificate.",
    "tls_ca": "The authority behind that certificate, if other machines do not trust it anyway.",
    "tls_clients": "`require`: hosts must show the client certificate that they got when they enrolled.",
    "tls_leaf_s": "How long a certificate lasts that the server makes; it is replaced when a third is left.",
    "host_token_s": "How long a host's credential lasts; its worker replaces it when a third is left.",
    "rotation_overlap_s": "For how long a replaced credential still works.",
    "lease_s": "After this many seconds without a sign from its worker, a run is given to another.",
    "first_beat_s": "A lease whose worker has not called within this time is taken back.",
    "rate": "How many calls per second one token may make; 0 is without limit.",
    "rate_burst": "How many it may make at once after a rest.",
    "wrong_token_rate": "How many wrong tokens per second an address may show; sixty times as many at once.",
    "open_rate": "How many calls without a token per second an address may make; ten times as many at once.",
    "head_s": "How many seconds a caller has from connecting until the head of its request is whole.",
    "waiting_per_address": "How many connections of one address may wait to send a request.",
    "body_idle_s": "How many seconds a caller may send nothing of a body that it has begun.",
    "body_rate": "How many bytes a second of a body must come, over a minute; 0 is any.",
    "public_body_s": "How many seconds a body may take in all that comes without a token.",
    "public_body_bytes": "The largest body that comes without a token.",
    "public_bodies": "How many bodies without a token may come at once from one address to one endpoint.",
    "max_body_bytes": "The largest request that is not an upload.",
    "max_blob_bytes": "The largest single file.",
    "min_free_bytes": "Uploads stop, and the server is not well, while its disk has less than this.",
    "patience_s": "How long results, streams and `--follow` wait for a server that is away, in seconds.",
    "storage_url": "The bucket that files are stored in, as `s3://bucket/prefix` "
    "([how](../howto/storage.md)); a folder in `CORRAL_HOME` when left out.",
    "storage_endpoint": "Where a store is that speaks S3 and is not Amazon's, as `https://s3.example.org`.",
    "hand_over": "Whether large payloads of clients on the same machine are moved, not sent: `on` or `off`.",
    "gpu_check": "`off`: GPUs count though the worker has not started CUDA on them.",
    "isolation": "`auto`: runs are kept from this host's files and each other's where the host allows it; "
    "`require`: the worker does not start where it does not; or `off`.",
    "hide": "More folders that isolated runs must not see, with colons between: `~/.ssh:~/.aws`.",
    "writable": "More folders that isolated runs may write to, with colons between: `/scratch:/data`.",
    "log_quota_bytes": "The most output that is kept of one run, all its attempts together.",
    "log_retention_s": "How long logs and metrics of ended runs stay.",
    "upload_retention_s": "How long an unfinished upload can be taken up again.",
    "blob_grace_s": "How long a file that nothing names any more stays.",
    "user_pin_s": "How long a file that was uploaded stays before something names it.",
    "webhook_allow": "Networks, as `10.0.0.0/8`, that webhooks may reach though they are not public.",
    "ageing_s": "A waiting run gains one point of priority per so many seconds; never when left out.",
    "reserve_after_s": "After so long next in line without fitting, a run has a host kept for it.",
    "models": "Models that may be trained, as `corral/tiny,Qwen/*`; any when left out.",
    "preemption": "`off`: no run is asked to make room for one of higher priority.",
    "placed_tokens": "Of a worker that an executor brought up: the file or folder with its tokens.",
    "placed_rank": "Which of them is its own.",
    "placed_ca": "The certificate of the authority that it trusts, as PEM.",
    "worker_name": "What this machine's worker is called; the host name when left out.",
    "worker_slots": "How many runs it takes at once; one per core or GPU when left out.",
    "worker_labels": "Its labels, with commas between.",
    "worker_address": "Where ranks elsewhere reach those here; its address towards the server when left out.",
}


TRAIN = """## The `[train]` table

It makes a run of kind `train`. Beside it stands `model`, and `argv` has no place. Files that it names are
shipped. Where `resources.gpus` is left out, the run takes a GPU if a living host has one that it fits, and
the forecast fills in `resources.min_vram`. [All its keys](training.md).

"""


def run_file_keys() -> str:
    schema = RunFile.model_json_schema()
    return _key_table(schema, schema, "") + TRAIN + DILOCO + "".join(_diloco_keys())


DILOCO = """## The `[diloco]` table

How the `replicas` of a `[train]` meet: `train.steps` are those of each replica, each takes batches of its
own, and after every `inner_steps` all agree on common weights by way of `store`.
[How it is used](../howto/diloco.md).

"""


def _diloco_keys() -> Iterator[str]:
    schema = diloco.json_schema()
    lines = [
        f"| `{key}` | {_type(schema, part)} | {_default(part)} | {part['description']} |"
        for key, part in _keys(schema, schema, "")
        if "properties" not in part
    ]
    yield _table("| key | type | default | meaning |", lines)


MANIFEST = """## A run

Every key of a [run file](run-file.md), and `file` and `group`. `after` names runs of the same manifest, or
runs by their ids.

## A host

"""


def manifest_keys() -> str:
    schema = ManifestFile.model_json_schema()
    of_host = HostTable.model_json_schema()
    return _key_table(schema, schema, "") + MANIFEST + _key_table(of_host, of_host, "hosts.NAME.")


def train_keys() -> str:
    return _train_table(Train, json_schema())


def _train_table(kind: type, schema: Mapping[str, Any]) -> str:
    """The keys of one table, then those of each table in it under a heading of its own."""
    lines, below = [], ""
    for name, spec, tp in fields_of(kind):
        part = {**schema["properties"][name], "needed": name in schema.get("required", ())}
        if inner := nested(tp):
            below += f"## `[train.{name}]`\n\n{part['description']}\n" + _train_table(inner, part)
            continue
        only = spec.metadata.get("only", "")
        words = (f"`{name}`", only, _type(schema, part), _default(part), part["description"])
        lines.append(f"| {' | '.join(words)} |")
    return _table("| key | recipe | type | default | meaning |", lines) + below


def _key_table(root: Mapping[str, Any], schema: Mapping[str, Any], prefix: str) -> str:
    lines = [
        f"| `{key}` | {UNITS.get(key) or _type(root, part)} | {_default(part)} | {part['description']} |"
        for key, part in _keys(root, schema, prefix)
    ]
    return _table("| key | type | default | meaning |", lines)


def _keys(root: Mapping[str, Any], schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, part in schema["properties"].items():
        key = f"{prefix}{name}"
        yield key, {**part, "needed": name in schema.get("required", ())}
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
        scalars = {"true or false", "integer", "number", "text"}
        return "value" if set(options) == scalars else " or ".join(dict.fromkeys(options))
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
    low = part.get("minimum", part.get("exclusiveMinimum"))
    high = part.get("maximum", part.get("exclusiveMaximum"))
    if low is None or high is None:
        return ""
    above = "above " if "exclusiveMinimum" in part else ""
    below = "below " if "exclusiveMaximum" in part else ""
    return f", {above}{_plain(low)} to {below}{_plain(high)}"


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


def _default(part: Mapping[str, Any]) -> str:
    if part.get("needed"):
        return "needed"
    value = part.get("default")
    if value is None or value == {} or value == [] or isinstance(value, dict):
        return ""
    return f"`{value!r}`".replace("'", '"').replace("True", "true").replace("False", "false")


def configuration() -> str:
    _same("SETTINGS", set(SETTINGS), set(Settings.model_fields))
    lines = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, "") else f"`{field.default}`"
        lines.append(f"| `CORRAL_{name.upper()}` | {default} | {SETTINGS[name]} |")
    return _table("| variable | default | meaning |", lines)


def commands() -> str:
    return "".join(_command(words, command) for words, command in _commands())


# Any: Typer carries its own copy of click from one version on, and takes click's before.
def _commands() -> Iterator[tuple[str, Any]]:
    root: Any = get_command(app)
    for name in list(root.commands):
        _, command, _ = root.resolve_command(None, [name])
        yield from _inside(name, command)


def _inside(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if not inner:
        yield words, command
    for verb, found in (inner or {}).items():
        yield from _inside(f"{words} {verb}", found)


def _command(words: str, command: Any) -> str:
    params = [param for param in command.params if param.name != "help"]
    arguments = [param for param in params if param.param_type_name == "argument"]
    options = [param for param in params if param.param_type_name == "option"]
    usage = " ".join(["corral", words, *(["[OPTIONS]"] if options else []), *map(_metavar, arguments)])
    rows = [f"| `{_metavar(param).strip('[]')}` | {param.help or ''} |" for param in arguments]
    rows += [f"| `{_spelled(param)}` | {param.help or ''}{_preset(param)} |" for param in options]
    table = "\n| | |\n|---|---|\n" + "\n".join(rows) + "\n" if rows else ""
    return f"\n## {words}\n\n```text\n{usage}\n```\n\n{command.help.strip()}\n{table}"


def _metavar(param: Any) -> str:
    name = param.metavar or param.name.upper()
    if param.metavar:
        return str(name)
    name = f"{name}..." if param.nargs == -1 else name
    return str(name) if param.required else f"[{name}]"


def _spelled(param: Any) -> str:
    names = ", ".join(sorted(param.opts, key=len, reverse=True))
    if param.is_flag:
        return names
    return f"{names} {param.name.upper()}"


def _preset(param: Any) -> str:
    if param.is_flag or param.default in (None, "", 0) or callable(param.default):
        return ""
    return f" Default: `{getattr(param.default, 'value', param.default)}`."


def errors() -> str:
    for module in pkgutil.walk_packages(corral.__path__, "corral."):
        if not module.name.endswith("__main__") and ".migrations" not in module.name:
            importlib.import_module(module.name)
    lines = []
    for kind in sorted(_subclasses(CorralError), key=lambda kind: kind.code):
        meaning = " ".join((kind.__doc__ or "").split())
        lines.append(f"| `{kind.code}` | {STATUS.get(kind.code, '')} | {meaning} | {kind.hint} |")
    return _table("| code | HTTP | meaning | hint |", lines)


def _subclasses(kind: type[CorralError]) -> Iterator[type[CorralError]]:
    for below in kind.__subclasses__():
        if "code" in vars(below):
            yield below
        yield from _subclasses(below)


def calls() -> str:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        services = build_services(settings, SqliteStore(settings.home / "corral.db"))
        schema = ControlPlane(services).api.openapi()
    lines = []
    for path, methods in schema["paths"].items():
        for method, call in methods.items():
            about = (call.get("description") or "").split("\n\n")[0]
            lines.append(f"| `{method.upper()} {path}` | {' '.join(about.split())} |")
    return _table("| call | meaning |", lines)


def notices() -> str:
    types = _table("| type | when |", [f"| `{kind}` | {when} |" for kind, when in TYPES.items()])
    schema = json.dumps(Notice.model_json_schema(), indent=2)
    return f"{types}```json\n{schema}\n```\n\n"


ERRORS = """## Errors

A call raises what the function raises, or one of these, which are `corral.FunctionError`s:
"""


def functions() -> str:
    tree = ast.parse(inspect.getsource(decorator_options))
    kinds = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    lines = [
        f"| `{name}` | {_types(kind)} | {words} |"
        for table in (ClassOptions, FunctionOptions)
        for name, kind, words in _documented(kinds[table.__name__])
    ]
    errors = [
        f"| `corral.{kind.__name__}` | {' '.join((kind.__doc__ or '').split())} |"
        for kind in sorted(FunctionError.__subclasses__(), key=lambda kind: kind.__name__)
    ]
    return _table("| option | type | meaning |", lines) + ERRORS + _table("| error | meaning |", errors)


def _types(annotation: str) -> str:
    return " or ".join(f"`{one}`" for one in annotation.split(" | ") if one != "None")


def _documented(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """The annotated names of a class, each with the text below it."""
    for found, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(found, ast.AnnAssign) and isinstance(below, ast.Expr):
            text = " ".join(ast.literal_eval(below.value).split())
            yield ast.unparse(found.target), ast.unparse(found.annotation), text


def _table(head: str, lines: list[str]) -> str:
    rule = re.sub(r" [a-zA-Z]* ", "---", head)
    return "\n".join(["", head, rule, *lines, "", ""])


def _same(what: str, described: set[str], real: set[str]) -> None:
    if described != real:
        lacks, stale = sorted(real - described), sorted(described - real)
        raise SystemExit(f"docs/generate.py: {what} lacks {lacks} and has {stale} too many")


PAGES = {
    "run-file.md": run_file_keys,
    "manifest.md": manifest_keys,
    "training.md": train_keys,
    "configuration.md": configuration,
    "cli.md": commands,
    "errors.md": errors,
    "http-api.md": calls,
    "webhooks.md": notices,
    "functions.md": functions,
}


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    stale = []
    for name, make in PAGES.items():
        path, made = REFERENCE / name, make()
        before = path.read_text(encoding="utf-8")
        after = _MADE.sub(lambda _, text=made: text, before)
        if before == after:
            continue
        stale.append(name)
        if not check:
            path.write_text(after, encoding="utf-8")
    if check and stale:
        sys.stderr.write(f"docs/reference: {', '.join(stale)} are stale; run `python docs/generate.py`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
