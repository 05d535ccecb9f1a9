"""The queue of calls from outside: every operation, who may use it, and what it refuses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import forked
from support.local_cluster import CLEAN
from support.waiting import eventually

import corral
from calls import functions_for_tests as pier
from calls.conftest import Scene
from corral.functions import backend
from corral.functions import serialize as codec
from corral.wire.tokens import TokenRequest

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def scene(one_host: Scene) -> Iterator[Scene]:
    one_host.use()
    yield one_host
    backend.set_backend(None)


class Http:
    """As any program speaks to the server, with nothing of Corral's."""

    def __init__(self, scene: Scene, token: str | None = None) -> None:
        self._url, self._token = scene.stack.url, token or scene.stack.token

    def __call__(self, method: str, path: str, body: object = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._token}"}
        return httpx.request(method, f"{self._url}/v1{path}", json=body, headers=headers, timeout=60)


def ask(*args: Any, endpoint: str = "pier.give_back", **more: Any) -> dict[str, Any]:
    form, data = codec.encode([list(args), {}])
    call = {
        "function": endpoint.rpartition(".")[2],
        "args": {"format": form, "body": codec.as_text(data), "size": len(data)},
        **more,
    }
    return {"endpoint": endpoint, "calls": [call]}


def test_every_operation_of_the_queue_over_http(scene: Scene, tmp_path: Path) -> None:
    """RF-C05, RF-C19, RF-C20, RF-D56, RF-D66: each that others have, and those they lack."""
    http = Http(scene)
    made = http("POST", "/calls", ask(1)).json()["calls"][0]
    assert http("GET", f"/calls/{made['id']}?wait_s=60").json()["state"] == "succeeded"
    waited = http("POST", "/calls", {**ask(2), "wait_s": 60}).json()["calls"][0]
    assert waited["state"] == "succeeded"
    assert codec.decode(waited["result"]["format"], codec.from_text(waited["result"]["body"])) == 2

    streamed = http("POST", "/calls", ask(str(tmp_path / "log"), 3, endpoint="pier.count")).json()["calls"][0]
    http("GET", f"/calls/{streamed['id']}?wait_s=60")
    assert [one["n"] for one in http("GET", f"/calls/{streamed['id']}/chunks").json()["chunks"]] == [1, 2, 3]

    failed = http("POST", "/calls", {**ask("Ada", endpoint="pier.fails"), "wait_s": 60}).json()["calls"][0]
    assert (failed["state"], failed["error"]["type"]) == ("failed", "Stranded")
    assert http("POST", f"/calls/{failed['id']}/retry").json()["state"] == "queued"
    eventually(lambda: http("GET", f"/calls/{failed['id']}").json()["state"] == "failed", "it to fail again")
    assert http("POST", f"/calls/{made['id']}/retry").status_code == 409

    slow = http("POST", "/calls", ask(str(tmp_path / "never"), endpoint="pier.waits_for")).json()["calls"][0]
    assert http("POST", f"/calls/{slow['id']}/cancel").json()["state"] == "cancelled"
    assert http("POST", f"/calls/{slow['id']}/cancel").status_code == 409
    listed = http("GET", "/calls?state=cancelled&limit=1000").json()["items"]
    assert slow["id"] in {one["id"] for one in listed}
    assert http("GET", "/health").json()["ok"]


def test_a_key_makes_a_call_once(scene: Scene) -> None:
    """RF-D36, RF-C36: and with other arguments it is refused."""
    http = Http(scene)

    first = http("POST", "/calls", ask(1, key="order-7")).json()["calls"][0]
    again = http("POST", "/calls", ask(1, key="order-7")).json()["calls"][0]

    assert first["id"] == again["id"]
    assert http("POST", "/calls", ask(2, key="order-7")).status_code == 409
    keyed = pier.give_back.with_options(key="order-8")
    assert keyed.spawn("x").id == keyed.spawn("x").id


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"serialization_format": "json"}, "serialization_format"),
        ({"create_new_instance": False}, "create_new_instance"),
        ({"function": "not there"}, "function"),
        ({"priority": 5000}, "priority"),
        ({"options": {"timeout_s": -1}}, "timeout_s"),
        ({"options": {"accelerate_downloads": True}}, "accelerate_downloads"),
        ({"args": {"format": "plain1"}}, "args"),
        ({"key": "a b"}, "key"),
    ],
)
def test_every_field_is_honoured_or_refused_by_its_name(scene: Scene, change: Any, place: str) -> None:
    """RF-D10."""
    asked = ask(1)
    asked["calls"][0] |= change

    answer = Http(scene)("POST", "/calls", asked)

    assert answer.status_code == 422
    assert any(place in one["path"] for one in answer.json()["fields"]), answer.text


def test_a_function_that_is_not_there_is_named(scene: Scene) -> None:
    """RF-D21, RF-C36."""
    asked = ask(1)
    asked["calls"][0]["function"] = "take_back"

    answer = Http(scene)("POST", "/calls", asked)

    assert "take_back" in answer.json()["message"]
    with pytest.raises(corral.FunctionError, match=r"pier.Harbour has no sink; it has: .*moor"):
        corral.function("pier.Harbour.sink")
    with pytest.raises(corral.FunctionError, match="is a class; name a method"):
        corral.function("pier.Harbour")
    with pytest.raises(corral.FunctionError, match="not here"):
        corral.function("pier.soon")(1)


def test_lines_come_while_the_call_runs_and_one_command_shows_them(scene: Scene, tmp_path: Path) -> None:
    """RF-D30, RF-D32, RF-C34: equal lines twice, each with its stream."""
    call = pier.waits_for.spawn(str(tmp_path / "it"))

    assert eventually(lambda: list(call.logs()), "the first line") == ["waiting"]
    assert call.state() == "assigned"

    (tmp_path / "it").write_text("")
    assert call.result(60) == "done"
    eventually(lambda: len(list(call.logs())) == 3, "the last line")
    env = {**CLEAN, "CORRAL_HOME": str(scene.stack.home)}
    said = forked.run(["calls", "logs", call.id], env)
    assert said.stdout.splitlines() == ["waiting", "there it is", "there it is"]


def test_code_gets_no_credential_and_reaches_no_other_project(scene: Scene) -> None:
    """RF-D59: it calls through its own instance, in the name of its own run."""
    environment, said = pier.looks_around.remote("elsewhere")

    secrets = {scene.stack.token, (scene.workers[0].data_dir / "token").read_text().strip()}
    assert [line for line in environment if any(secret in line for secret in secrets)] == []
    assert "may call nothing of elsewhere" in said


def test_sent_code_is_run_only_for_those_who_may(scene: Scene) -> None:
    """RF-D62."""
    client = scene.stack.client()
    host = client.tokens.create(TokenRequest(scope="host", name="nobody")).token
    other = client.tokens.create(TokenRequest(scope="user", name="eve", project="elsewhere")).token

    assert Http(scene, "wrong")("POST", "/calls", ask(1)).status_code == 401
    assert Http(scene, host)("POST", "/calls", ask(1)).status_code == 403
    assert Http(scene, other)("POST", "/calls", ask(1)).status_code in (403, 404)
    for token in ("wrong", host):
        assert Http(scene, token)("POST", "/endpoints", {}).status_code in (401, 403)
    mine = pier.give_back.spawn("secret")
    mine.result(60)
    assert Http(scene, other)("GET", f"/calls/{mine.id}").status_code == 404


def test_a_gpu_is_of_those_that_were_asked_for_and_is_on_record(scene: Scene) -> None:
    """RF-D52: of two kinds that are named the one that is there; of a kind that is not there none."""
    app = corral.App("cards")
    wanted = app.function(name="either", gpu=["A100", "H100"])(lambda: os.environ["CUDA_VISIBLE_DEVICES"])
    absent = app.function(name="neither", gpu=["A100"])(lambda: None)
    client = scene.stack.client()

    call = wanted.spawn()
    shown = call.result(60)
    (claimed,) = [
        event
        for event in client.runs.events(client.calls.get(call.id).run or "").items
        if event.type == "claim"
    ]
    assert claimed.data["gpus"] == [f"{shown}: NVIDIA H100"]

    waiting = absent.spawn()
    run = eventually(
        lambda: next((one for one in client.runs.page().items if one.name == "live.cards.neither"), None),
        "an instance of it to be wanted",
    )
    assert run.state == "queued"
    assert any("A100" in reason for host in client.runs.why(run.id).hosts for reason in host.reasons)
    waiting.cancel()


def test_the_record_of_a_call_says_where_and_how_long_it_ran(scene: Scene) -> None:
    call = pier.makes.spawn(1000)
    call.result(60)
    client = scene.stack.client()

    view = client.calls.get(call.id)

    assert view.run is not None
    assert view.ran_s > 0
    assert client.runs.get(view.run).host in {host.name for host in client.hosts.all()}
