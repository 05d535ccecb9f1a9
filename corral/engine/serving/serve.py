"""`python -m corral.engine serve FOLDER`: the model of a run, served until it is stopped."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from corral.engine import inputs
from corral.engine.data.prompt_form import PromptForm
from corral.engine.engine import Engine
from corral.engine.eval_and_sample import WHICH, TrainedModel
from corral.engine.serving.model import ServedModel
from corral.engine.serving.server import ModelServer
from corral.engine.spec import InvalidSpec, JobSpec, with_defaults
from corral.engine.training.stop_signal import StopRequested

SERVE: Mapping[str, Any] = {
    "which": "last",
    "port": 8000,
    "token_file": None,
    "context": None,
    "rows": None,
}
_USUAL_CONTEXT = 4096
# Answers side by side: more than these gain little.
_MOST_ROWS_CPU, _MOST_ROWS_GPU = 16, 64
# Of the memory that is free, what the cache may have: the rest is for the computation.
_SHARE_GPU, _SHARE_RAM = 0.8, 0.25
_SHORTEST_TOKEN = 16


def serve_options(spec: JobSpec) -> dict[str, Any]:
    """The task's table, complete; before anything is loaded."""
    ask = with_defaults(spec.ask, SERVE, where="serve")
    if ask["which"] not in WHICH:
        raise InvalidSpec(f"serve.which is {ask['which']!r}", f"It can be {' or '.join(WHICH)}.")
    for key, least in (("context", 2), ("rows", 1), ("port", 0)):
        value = ask[key]
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise InvalidSpec(f"serve.{key} must be a whole number of at least {least}, not {value!r}")
    return ask


def serve(trained: TrainedModel, name: str, ask: Mapping[str, Any], form: PromptForm | None) -> None:
    """Returns when a stop was asked for; what is under way then is given up."""
    token = _token(ask["token_file"])
    context = _context(trained.engine, ask["context"])
    rows = _rows(trained.engine, ask["rows"], context)
    try:
        with trained.stop.interruptible():
            model = ServedModel(name, trained.engine, trained.train, form, rows=rows, context=context)
            _listen(model, ask["port"], token, trained, told=ask["token_file"] is None)
    except StopRequested:
        trained.events.say("stopped")


def _listen(model: ServedModel, port: int, token: str, trained: TrainedModel, *, told: bool) -> None:
    try:
        server = ModelServer(("127.0.0.1", port), model, token)
    except OSError as error:
        model.loop.close()
        raise InvalidSpec(
            f"port {port} of this machine cannot be listened on: {error.strerror}", "Name another: --port."
        ) from None
    except OverflowError:
        model.loop.close()
        raise InvalidSpec(f"there is no port {port}", "Name one from 1 to 65535.") from None
    try:
        trained.events.phase(f"serving {model.name}")
        trained.events.say(f"base_url  http://127.0.0.1:{server.server_address[1]}/v1")
        if told:
            trained.events.say(f"api_key   {token}")
        trained.events.say(f"model     {model.name}, {model.context} tokens of context")
        server.serve_forever()
    finally:
        server.server_close()


def _token(file: str | None) -> str:
    if file is None:
        return secrets.token_urlsafe(24)
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InvalidSpec(f"the file of the API key, {file}, cannot be read: {error}") from None
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidSpec(
            f"{file} holds no API key",
            f"Write at least {_SHORTEST_TOKEN} letters, digits and signs there, in one line.",
        )
    return token


def _context(engine: Engine, asked: int | None) -> int:
    facts = engine.loaded.facts
    most = facts.context if facts is not None else None
    if asked is not None and most is not None and asked > most:
        raise InvalidSpec(f"the model has {most} tokens of context, not {asked}", "Lower --context.")
    return asked or min(_USUAL_CONTEXT, most or _USUAL_CONTEXT)


def _rows(engine: Engine, asked: int | None, context: int) -> int:
    """As many as the memory holds, each with a whole context of its own."""
    if asked is not None:
        return asked
    facts, on_gpu = engine.loaded.facts, engine.device.type == "cuda"
    most = _MOST_ROWS_GPU if on_gpu else _MOST_ROWS_CPU
    if facts is None:
        return most
    size = torch.finfo(engine.loaded.model.dtype).bits // 8
    each = 2 * facts.layers * facts.kv_width * size * context
    free = torch.cuda.mem_get_info()[0] * _SHARE_GPU if on_gpu else (inputs.ram_bytes() or 0) * _SHARE_RAM
    return max(1, min(most, int(free // each)))
