"""Notices by a real server to a real receiver: signed, versioned, tried and sent again (FL-D07, FL-C22)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import standardwebhooks
from support import forked
from support.live_server import Json, LiveServer, error_of, named, new_host, serve
from support.postgres import private_postgres
from support.waiting import eventually
from support.webhook_receiver import ReceivedNotice, Receiver, receiving

from corral.client.webhooks import BadSignature, verify
from corral.wire.webhooks import Notice

CORRAL = str(Path(sys.executable).parent / "corral")
# Unmistakably fake.
VALUE = "canary-NOT-A-REAL-SECRET-0123"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def hooked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with ExitStack() as stack:
        url = None
        if request.param == "postgres":
            url = stack.enter_context(private_postgres().fresh())
        home = tmp_path_factory.mktemp("home")
        yield stack.enter_context(serve(home, database=url, webhook_allow="127.0.0.0/8"))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def _add(live: LiveServer, receiver: Receiver, **more: Any) -> Json:
    body = {"name": named("hook"), "url": receiver.url, **more}
    made: Json = live.ok("POST", "/v1/webhooks", body)
    return made


def _of_run(run: str) -> Callable[[list[ReceivedNotice]], bool]:
    return lambda came: any(c.json["run"]["id"] == run for c in came)


def _deliveries(live: LiveServer, hook: Json, **where: Any) -> list[Json]:
    found: list[Json] = live.ok("GET", f"/v1/webhooks/{hook['name']}/deliveries", params=where)["items"]
    return found


def test_a_run_that_ends_is_told_signed_and_in_the_published_form(
    hooked: LiveServer, receiver: Receiver
) -> None:
    """FL-C22, FL-D07."""
    hook = _add(hooked, receiver, events=["run.*"])
    worker = new_host(hooked)
    lease = worker.run(name="told", labels={"team": "vision"})
    lease.ok("POST", "finish", {})

    # They come in no particular order.
    came = receiver.until(lambda all_: len(all_) >= 3)

    by_type = {c.json["type"]: c for c in came}
    assert set(by_type) == {"run.submitted", "run.started", "run.succeeded"}
    last = by_type["run.succeeded"]
    body = verify(last.body, last.headers, hook["secret"])
    assert verify(last.body, last.headers, hook["secret"]) == last.json
    jsonschema_rs.validate(Notice.model_json_schema(), body)
    assert body["version"] == 1
    run: Any = body["run"]
    assert (run["id"], run["name"], run["state"]) == (lease.run_id, "told", "succeeded")
    assert (run["labels"], run["host"]) == ({"team": "vision"}, worker.name)
    assert (
        by_type["run.submitted"].json["number"] < by_type["run.started"].json["number"] < last.json["number"]
    )
    with pytest.raises(BadSignature):
        verify(last.body + b" ", last.headers, hook["secret"])
    eventually(
        lambda: [d["state"] for d in _deliveries(hooked, hook)] == ["delivered"] * 3, "three deliveries"
    )
    ids = {d["id"] for d in _deliveries(hooked, hook)}
    assert ids == {c.headers["webhook-id"] for c in came}


def test_what_is_not_received_is_tried_again_given_up_and_sent_again_by_hand(
    hooked: LiveServer, receiver: Receiver
) -> None:
    """FL-D07."""
    receiver.status = 503
    hook = _add(hooked, receiver, events=["run.cancelled"])
    run = hooked.submit()
    hooked.ok("POST", f"/v1/runs/{run}/cancel", {})
    try:
        tries = 0
        while _deliveries(hooked, hook, state="dead") == []:
            # Each wait is over at once: nobody waits a day.
            hooked.clock.ahead_s += 50_000
            eventually(lambda tries=tries: len(receiver.came) > tries, "another try")  # type: ignore[misc]
            tries = len(receiver.came)
            eventually(
                lambda tries=tries: _deliveries(hooked, hook)[0]["attempts"] >= tries,  # type: ignore[misc]
                "the try to be counted",
            )
    finally:
        hooked.clock.ahead_s = 0.0
    (dead,) = _deliveries(hooked, hook, state="dead")
    assert (dead["attempts"], dead["status"], dead["detail"]) == (11, 503, "it answered 503")
    assert len({c.headers["webhook-id"] for c in receiver.came}) == 1
    assert len({c.headers["webhook-timestamp"] for c in receiver.came}) > 5

    receiver.status = 204
    before = len(receiver.came)
    assert hooked.ok("POST", f"/v1/webhooks/{hook['name']}/replay", {"dead": True}) == {"count": 1}
    receiver.until(lambda came: len(came) > before)
    eventually(lambda: [d["state"] for d in _deliveries(hooked, hook)] == ["delivered"], "its delivery")
    body = {"deliveries": [dead["id"]]}
    assert hooked.ok("POST", f"/v1/webhooks/{hook['name']}/replay", body) == {"count": 1}
    receiver.until(lambda came: len(came) > before + 1)
    assert receiver.came[-1].headers["webhook-id"] == dead["id"]
    assert receiver.came[-1].body == receiver.came[0].body


def test_after_a_rotation_both_secrets_are_good_for_a_while(hooked: LiveServer, receiver: Receiver) -> None:
    """The receiver is the published library of Standard Webhooks."""
    hook = _add(hooked, receiver)
    path = f"/v1/webhooks/{hook['name']}"

    def goods(*secrets: str) -> list[bool]:
        before = len(receiver.came)
        hooked.ok("POST", f"{path}/test")
        came = receiver.until(lambda all_: len(all_) > before)[-1]
        return [_is_good(came, secret) for secret in secrets]

    rotated = hooked.ok("POST", f"{path}/rotate", {"keep_s": "10m"})
    old, new = hook["secret"], rotated["secret"]
    assert old != new
    assert rotated["old_secret_until"] == pytest.approx(time.time() + 600, abs=60)
    assert goods(old, new) == [True, True]
    try:
        hooked.clock.ahead_s = 700.0
        # Signed with the server's clock, which the library would find wrong.
        assert hooked.ok("GET", path)["old_secret_until"] is None
        hooked.ok("POST", f"{path}/test")
        assert receiver.came[-1].headers["webhook-signature"].count("v1,") == 1
    finally:
        hooked.clock.ahead_s = 0.0
    newest = hooked.ok("POST", f"{path}/rotate", {"keep_s": 0})["secret"]
    assert goods(old, new, newest) == [False, False, True]
    refused = hooked.call("POST", f"{path}/rotate", {"secret": "plain"})
    assert error_of(refused, 422, "invalid_input").message.startswith("the webhook's secret is not `whsec_`")
    error_of(hooked.call("POST", f"{path}/rotate", {"keep_s": "31d"}), 422, "invalid_input")
    audited = hooked.ok("GET", "/v1/audit", params={"target": f"webhook:{hook['name']}"})["items"]
    assert [one["action"] for one in audited if one["action"] == "webhook.rotate"] == ["webhook.rotate"] * 2
    stored = b"".join(file.read_bytes() for file in hooked.home.glob("corral.db*"))
    assert new.removeprefix("whsec_").encode() not in stored


def _is_good(came: ReceivedNotice, secret: str) -> bool:
    try:
        standardwebhooks.Webhook(secret).verify(came.body, came.headers)
    except standardwebhooks.WebhookVerificationError:
        return False
    return True


def test_a_paused_webhook_catches_up_or_skips(hooked: LiveServer, receiver: Receiver) -> None:
    hook = _add(hooked, receiver, events=["run.submitted"])
    path = f"/v1/webhooks/{hook['name']}"
    assert hooked.ok("POST", f"{path}/pause")["paused"]
    missed = hooked.submit()
    hooked.ok("POST", f"{path}/resume", {})
    receiver.until(_of_run(missed))

    hooked.ok("POST", f"{path}/pause")
    skipped = hooked.submit()
    assert not hooked.ok("POST", f"{path}/resume", {"skip": True})["paused"]
    later = hooked.submit()
    came = receiver.until(_of_run(later))

    assert skipped not in {c.json["run"]["id"] for c in came}


def test_a_webhook_of_a_project_hears_of_no_other(hooked: LiveServer, receiver: Receiver) -> None:
    project = named("p")
    _add(hooked, receiver, events=["run.submitted"], project=project)
    hooked.submit(project=named("other"))
    run = hooked.submit(project=project)

    came = receiver.until(_of_run(run))

    assert {c.json["run"]["project"] for c in came} == {project}


def test_a_chat_gets_a_message_of_its_own_form(hooked: LiveServer, receiver: Receiver) -> None:
    """FL-C15, FL-D07."""
    _add(hooked, receiver, format="slack", events=["run.cancelled"])
    run = hooked.submit(name="for-the-channel")
    hooked.ok("POST", f"/v1/runs/{run}/cancel", {"reason": "enough & <more>"})

    (came,) = receiver.until(lambda came: len(came) > 0)

    assert set(came.json) == {"text", "blocks"}
    assert "for-the-channel cancelled" in came.json["text"]
    assert "enough &amp; &lt;more&gt;" in came.json["text"]


def test_a_call_that_ends_is_told_signed_and_in_the_published_form(
    hooked: LiveServer, receiver: Receiver
) -> None:
    """RF-C05, RF-C21."""
    hook = _add(hooked, receiver, events=["call.*"])
    _add(hooked, receiver, events=["call.cancelled"], format="slack")
    spec = {"name": "told.f", "kind": "service", "service": {"entry": {"kind": "module"}}}
    # Its code is never run: no worker is there.
    hooked.ok("POST", "/v1/endpoints", {"name": "told.f", "spec": spec, "functions": {"f": {}}})
    ask = {"function": "f", "args": {"format": "plain1", "body": "AA==", "size": 1}}
    made = hooked.ok("POST", "/v1/calls", {"endpoint": "told.f", "calls": [ask]})
    call = made["calls"][0]["id"]
    hooked.ok("POST", f"/v1/calls/{call}/cancel")

    came = receiver.until(lambda came: len(came) > 1)

    (told,) = (c for c in came if "type" in c.json)
    body = verify(told.body, told.headers, hook["secret"])
    jsonschema_rs.validate(Notice.model_json_schema(), body)
    said: Any = body["call"]
    assert (body["type"], said["id"], said["endpoint"]) == ("call.cancelled", call, "told.f")
    (chat,) = (c for c in came if "blocks" in c.json)
    assert "told.f cancelled" in chat.json["text"]
    hooked.ok("DELETE", "/v1/endpoints/default/told.f")


def test_a_test_says_what_came_of_it(hooked: LiveServer, receiver: Receiver) -> None:
    hook = _add(hooked, receiver)
    path = f"/v1/webhooks/{hook['name']}/test"

    good = hooked.ok("POST", path)
    receiver.status = 500
    bad = hooked.ok("POST", path)

    assert (good["state"], good["status"], good["event"]) == ("delivered", 200, "webhook.test")
    assert (bad["state"], bad["status"]) == ("dead", 500)
    assert verify(receiver.came[0].body, receiver.came[0].headers, hook["secret"])["run"] is None
    jsonschema_rs.validate(Notice.model_json_schema(), receiver.came[0].json)


def test_a_secret_is_in_no_notice(hooked: LiveServer, receiver: Receiver) -> None:
    """FL-D13."""
    project = named("p")
    hooked.ok("PUT", f"/v1/projects/{project}/secrets/KEY", {"value": VALUE})
    _add(hooked, receiver, events=["run.failed"], project=project)
    lease = new_host(hooked).run(project=project, secrets=["KEY"])
    # As a worker that redacts nothing would report it.
    lease.call(
        "POST", "fail", {"reason": "code_error", "detail": f"cannot log in with {VALUE}", "exit_code": 1}
    )

    (came,) = receiver.until(_of_run(lease.run_id))

    assert VALUE.encode() not in came.body
    assert "[secret KEY]" in came.json["run"]["detail"]


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://user:opensesame@example.com/", "invalid_input"),
        ("ftp://example.com/", "invalid_input"),
        ("https://10.0.0.1/", "address_refused"),
        ("https://[::ffff:10.0.0.1]/", "address_refused"),
        ("https://[64:ff9b::a00:1]/", "address_refused"),
        ("https://169.254.169.254/latest/meta-data", "address_refused"),
        ("https://[fe80::1]/", "address_refused"),
    ],
)
def test_an_address_that_is_not_public_is_refused_at_once(url: str, code: str, hooked: LiveServer) -> None:
    """FL-D48."""
    answer = hooked.call("POST", "/v1/webhooks", {"name": named("hook"), "url": url})

    said = error_of(answer, 422, code)
    assert said.hint
    assert "opensesame" not in said.message


def test_loopback_is_refused_where_nobody_allowed_it(live: LiveServer, receiver: Receiver) -> None:
    """FL-D48: as a server comes."""
    for url in (receiver.url, receiver.url.replace("http:", "https:")):
        error_of(live.call("POST", "/v1/webhooks", {"name": "x", "url": url}), 422, "address_refused")

    assert receiver.came == []


def test_bad_requests_say_what_is_wrong(hooked: LiveServer, receiver: Receiver) -> None:
    name = _add(hooked, receiver)["name"]

    def refused(body: Json, status: int, code: str) -> str:
        return error_of(hooked.call("POST", "/v1/webhooks", body), status, code).message

    assert "already" in refused({"name": name, "url": receiver.url}, 409, "conflict")
    wrong = {"name": "n", "url": receiver.url, "events": ["run.exploded"]}
    assert "run.succeeded" in refused(wrong, 422, "invalid_input")
    assert "whsec_" in refused({"name": "n", "url": receiver.url, "secret": "short"}, 422, "invalid_input")
    for path in ("nobody", "w-bcdfghjkmnpq", "%2e%2e"):
        assert hooked.call("GET", f"/v1/webhooks/{path}").status_code == 404
    replay = f"/v1/webhooks/{name}/replay"
    error_of(hooked.call("POST", replay, {}), 422, "invalid_input")
    error_of(hooked.call("POST", replay, {"deliveries": ["x"]}), 422, "invalid_input")
    assert hooked.ok("POST", replay, {"deliveries": ["d-bcdfghjkmnpq"]}) == {"count": 0}
    missing = hooked.call("GET", f"/v1/webhooks/{name}/deliveries/d-bcdfghjkmnpq")
    error_of(missing, 404, "not_found")


def test_deliveries_come_in_pages(hooked: LiveServer, receiver: Receiver) -> None:
    """FL-D35."""
    hook = _add(hooked, receiver)
    for _ in range(5):
        hooked.ok("POST", f"/v1/webhooks/{hook['name']}/test")

    found: list[str] = []
    cursor: Json = {}
    while True:
        page = hooked.ok("GET", f"/v1/webhooks/{hook['name']}/deliveries", params={"limit": 2, **cursor})
        found += [d["id"] for d in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}

    assert found == [d["id"] for d in _deliveries(hooked, hook)]
    assert len(found) == 5
    shown = hooked.ok("GET", f"/v1/webhooks/{hook['name']}/deliveries/{found[0]}")
    assert shown["body"]["type"] == "webhook.test"


def _corral(live: LiveServer, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    given = more.pop("given", "")
    env = {**os.environ, "CORRAL_URL": live.url, "CORRAL_TOKEN": live.operator, **more}
    return forked.run(arguments, env, given=given)


def test_the_command_line_does_all_of_it(live: LiveServer, tmp_path: Path) -> None:
    with serve(tmp_path / "home", webhook_allow="127.0.0.0/8") as hooked, receiving() as receiver:
        key = "whsec_" + "a2V5" * 8
        added = _corral(
            hooked,
            "webhooks",
            "add",
            "ops",
            "-",
            "--secret-from-env",
            "HOOK_KEY",
            given=receiver.url,
            HOOK_KEY=key,
        )
        assert added.returncode == 0, added.stderr
        assert key not in added.stdout + added.stderr
        tested = _corral(hooked, "webhooks", "test", "ops")
        assert tested.stdout == "ops received it: 200\n", tested.stderr
        assert verify(receiver.came[0].body, receiver.came[0].headers, key)
        listed = json.loads(_corral(hooked, "webhooks", "ls", "--json").stdout)
        assert listed[0]["url"].endswith("/...")
        assert "run.succeeded" in _corral(hooked, "webhooks", "show", "ops").stdout
        receiver.status = 500
        failed = _corral(hooked, "webhooks", "test", "ops")
        assert (failed.returncode, "it answered 500" in failed.stderr) == (1, True)
        dead = json.loads(
            _corral(hooked, "webhooks", "deliveries", "ops", "--state", "dead", "--json").stdout
        )
        assert len(dead) == 1
        assert "webhook.test" in _corral(hooked, "webhooks", "show", "ops", dead[0]["id"]).stdout
        receiver.status = 200
        assert "1 delivery is sent again" in _corral(hooked, "webhooks", "replay", "ops", "--dead").stdout
        assert _corral(hooked, "webhooks", "replay", "ops").returncode == 2
        assert "paused" in _corral(hooked, "webhooks", "pause", "ops").stdout
        assert "sends again" in _corral(hooked, "webhooks", "resume", "ops", "--skip").stdout
        assert "removed" in _corral(hooked, "webhooks", "rm", "ops").stdout
        assert "no webhooks" in _corral(hooked, "webhooks", "ls").stderr
        bad = _corral(hooked, "webhooks", "add", "ops", receiver.url, "--events", "run.exploded")
        assert (bad.returncode, "run.succeeded" in bad.stderr) == (1, True)
        actions = [e["action"] for e in hooked.ok("GET", "/v1/audit", params={"action": "webhook"})["items"]]
        assert actions[::-1] == [
            f"webhook.{verb}" for verb in ("add", "test", "test", "replay", "pause", "resume", "remove")
        ]


def test_neither_the_address_nor_the_secret_is_stored_in_clear(
    hooked: LiveServer, receiver: Receiver
) -> None:
    """FL-D13: the path of a chat's address is a secret too."""
    part = "T0-NOT-A-REAL-PATH-4711"
    path = f"{receiver.url}/services/{part}"
    hook = hooked.ok("POST", "/v1/webhooks", {"name": named("hook"), "url": path})
    hooked.ok("POST", f"/v1/webhooks/{hook['name']}/test")
    stored = b"".join(p.read_bytes() for p in hooked.home.rglob("*") if p.is_file())
    listed = hooked.call("GET", "/v1/webhooks").content + hooked.call("GET", "/v1/audit?limit=1000").content

    for text in (part, str(hook["secret"]).removeprefix("whsec_")):
        assert text.encode() not in stored + listed
