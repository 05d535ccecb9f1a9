"""A list of models that the operator closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.live_server import LiveServer, error_of, fresh, named, serve

TRAIN = {"recipe": "sft", "data": "chat.jsonl"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(tmp_path_factory.mktemp("home"), models="corral/tiny, Qwen/Qwen3-*") as server:
        yield server


def spec(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "train": TRAIN, "resources": {"hosts": ["nobody"]}, **more}


def asked(*runs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"request_id": fresh(), "runs": list(runs), **more}


@pytest.mark.parametrize("model", ["corral/tiny", "Qwen/Qwen3-0.6B", "qwen/qwen3-1.7b"])
def test_a_model_on_the_list_is_trained(model: str, live: LiveServer) -> None:
    (made,) = live.ok("POST", "/v1/runs", asked(spec(model)))["ids"]

    assert live.ok("GET", f"/v1/runs/{made}")["spec"]["model"] == model


def test_a_model_that_is_not_on_the_list_is_refused_at_submit(live: LiveServer) -> None:
    """promises.md, parts that nobody has built: a model list that can be closed by policy."""
    other = spec("meta-llama/Llama-3-8B")
    tries = [
        ("/v1/runs", asked(spec("corral/tiny"), other)),
        ("/v1/runs", asked(other, dry_run=True)),
        ("/v1/schedules", {"name": named("s"), "schedule": {"every": 60}, "runs": [other]}),
    ]
    for path, body in tries:
        said = error_of(live.call("POST", path, body), 422, "invalid_input")
        assert "meta-llama/Llama-3-8B, which is not on this server's list" in said.message
        assert said.hint.endswith("On the list: corral/tiny, Qwen/Qwen3-*.")


def test_a_folder_that_is_called_like_a_model_on_the_list_is_refused(live: LiveServer) -> None:
    """What is sent along may be called anything."""
    body = asked(spec("corral/tiny", inputs={"model": "a-bcdfghjkmnpq"}))

    said = error_of(live.call("POST", "/v1/runs", body), 422, "invalid_input")

    assert "a folder that is sent along" in said.message


def test_a_command_trains_nothing_and_is_let_in(live: LiveServer) -> None:
    assert live.ok("GET", f"/v1/runs/{live.submit()}")["state"] == "queued"
