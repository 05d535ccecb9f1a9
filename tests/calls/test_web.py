"""Functions over HTTP: typed like their parameters, streamed where they give bit by bit."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.waiting import eventually

from calls import web_functions_for_tests as quay
from calls.conftest import Scene
from corral.functions import backend

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def web(one_host: Scene) -> Iterator[Any]:
    made = one_host.use()
    for member in quay.app.members.values():
        made.corral.endpoints.deploy(made.request(member, "default", live=False))
    headers = {"Authorization": f"Bearer {one_host.stack.token}"}
    with httpx.Client(
        base_url=f"{one_host.stack.url}/v1/web/default/", headers=headers, timeout=60
    ) as client:
        yield client
    backend.set_backend(None)


def test_a_body_becomes_a_model_and_a_model_becomes_a_body(web: httpx.Client) -> None:
    """RF-C03, RF-C33, RF-C35."""
    answer = web.post("quay.weigh/crates", json={"name": "tea", "kilos": [1, 2.5]})

    assert (answer.status_code, answer.json()) == (200, {"name": "tea", "total": 3.5})


def test_each_field_that_does_not_fit_is_named(web: httpx.Client) -> None:
    answer = web.post("quay.weigh/crates", json={"kilos": ["heavy"]})

    assert answer.status_code == 422
    assert {one["path"] for one in answer.json()["fields"]} == {"crate.name", "crate.kilos.0"}
    assert "pydantic.dev" not in answer.text
    assert web.get("quay.find/crates?number=three").status_code == 422
    assert web.get("quay.find/crates").json()["fields"] == [{"path": "number", "message": "is required"}]
    assert web.post("quay.weigh/crates", content=b"{").status_code == 422


def test_routes_of_two_functions_never_collide(web: httpx.Client) -> None:
    """RF-C04: each lies under its own function, so that one path may be both's."""
    assert web.get("quay.find/crates?number=3&fast=true").json() == [3, True]
    wrong = web.delete("quay.find/crates")
    # HOUR4-12: the path is there, and it is the method that is wrong.
    assert (wrong.status_code, wrong.json()["hint"]) == (405, "It takes GET.")
    assert (wrong.headers["Allow"], wrong.json()["code"]) == ("GET", "method_not_allowed")
    assert "/crates" in web.get("quay.find/crate").json()["hint"]


def test_parts_of_a_path_are_parameters_with_types(web: httpx.Client) -> None:
    """DEF-04: typed as the others are; and what the types of the function become in the answer."""
    answer = web.get("quay.ticket/tickets/5/red?since=2026-01-01T12:00:00")

    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "ticket": [5, "red"],
        "since": "2026-01-01T12:00:00",
        "day": "2026-01-02",
        "id": "00000000-0000-0000-0000-000000000005",
    }
    wrong = web.get("quay.ticket/tickets/five/green?since=soon")
    assert wrong.status_code == 422
    assert {one["path"] for one in wrong.json()["fields"]} == {"number", "flag", "since"}
    assert web.get("quay.ticket/tickets/5").status_code == 404
    assert web.post("quay.ticket/tickets/5/red").json()["hint"] == "It takes GET."
    put = web.put("quay.put_file/files/a/b%20c.txt", json={"sizes": [1, 2], "kind": "bytes"})
    assert put.json() == ["a/b c.txt", [1, 2], "bytes"]


def test_generators_stream_and_say_what_they_give(web: httpx.Client) -> None:
    with web.stream("GET", "quay.watch/boats?count=3") as answer:
        assert answer.headers["content-type"].startswith("application/jsonl")
        assert list(answer.iter_lines()) == ['{"boat": 0}', '{"boat": 1}', '{"boat": 2}']
    assert web.get("quay.speak/words").text == "all aboard"
    assert web.get("quay.watch/boats?count=0").text == ""
    assert web.get("quay.watch/boats?count=many").status_code == 422


def test_what_a_function_raises_is_an_error_of_the_gateway(web: httpx.Client) -> None:
    """Before the first piece with a status; after it the connection is broken off, and not ended."""
    answer = web.get("quay.sink/boats")
    assert answer.status_code == 502
    assert answer.json()["code"] == "bad_gateway"
    assert "OSError" in answer.json()["message"]
    with (
        pytest.raises(httpx.RemoteProtocolError),
        web.stream("GET", "quay.leak/boats") as broken,
    ):
        list(broken.iter_bytes())


def test_a_web_function_that_takes_too_long_is_told_with_its_call(web: httpx.Client) -> None:
    answer = web.get("quay.dawdle/boats")

    assert (answer.status_code, answer.json()["code"]) == (504, "gateway_timeout")
    assert "c-" in answer.json()["message"]


def test_status_and_bytes_of_its_own(web: httpx.Client) -> None:
    answer = web.get("quay.flag/boats?wanted=201")

    assert (answer.status_code, answer.content) == (201, b"\x00\x01")
    assert answer.headers["content-type"] == "application/octet-stream"


def test_a_large_answer_goes_through_the_store(web: httpx.Client) -> None:
    assert eventually(lambda: web.get("quay.large/boats").json(), "an answer") == ["boat"] * 50_000


def test_a_large_request_goes_through_the_store(web: httpx.Client) -> None:
    crate = {"name": "coal", "kilos": [1.5] * 200_000}

    answer = eventually(lambda: web.post("quay.weigh/crates", json=crate), "an answer")

    assert (answer.status_code, answer.json()) == (200, {"name": "coal", "total": 300_000.0})
    refused = web.post("quay.nothing/crates", json=crate)
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found")


def test_nobody_without_a_token(web: httpx.Client) -> None:
    """RF-D62."""
    assert httpx.get(f"{web.base_url}quay.find/crates?number=3").status_code == 401


@pytest.mark.parametrize("status", [100, 101, 150])
def test_a_status_that_ends_no_answer_is_not_passed_on(status: int, web: httpx.Client) -> None:
    """SEC-05: with status 100 and a length, what followed was taken for the next caller's answer."""
    answer = web.get(f"quay.flag/boats?wanted={status}")

    assert (answer.status_code, answer.json()["code"]) == (502, "bad_gateway")
    assert f"status {status}" in answer.json()["message"]
    assert web.get("quay.find/crates?number=3").json() == [3, False]


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_has_none(status: int, web: httpx.Client) -> None:
    """SEC-05."""
    answer = web.get(f"quay.flag/boats?wanted={status}")

    assert (answer.status_code, answer.content) == (status, b"")
    assert web.get("quay.find/crates?number=3").json() == [3, False]


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the peak of memory is in /proc")
@pytest.mark.parametrize("name", ["huge", "huge_bits"])
def test_large_answers_do_not_fill_the_memory(name: str, web: httpx.Client, one_host: Scene) -> None:
    """SEC-12: four requests for an answer of 200 MiB took the server from 213 to 1,878 MiB."""
    mebibytes = 48
    path = f"quay.{name}/boats?mebibytes={mebibytes}"
    assert one_host.stack.server is not None
    before = _peak_bytes(one_host.stack.server.pid, anew=True)

    with web.stream("GET", path) as answer:
        whole = hashlib.sha256()
        for piece in answer.iter_bytes():
            whole.update(piece)

    assert answer.status_code == 200
    assert whole.hexdigest() == hashlib.sha256(b"boat" * (mebibytes << 18)).hexdigest()
    # Of the answer alone, base64 and all, it was more than four times as much.
    assert _peak_bytes(one_host.stack.server.pid) - before < mebibytes << 20


def _peak_bytes(pid: int, *, anew: bool = False) -> int:
    process = Path(f"/proc/{pid}")
    if anew:
        (process / "clear_refs").write_text("5")
    found = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())
    assert found is not None
    return int(found[1]) << 10
