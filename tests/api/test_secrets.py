"""Promise 9: a secret's value reaches no log, event, error, file or table in clear, nor as base64."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from support.installation import Completed, Installation
from support.live_server import LiveServer, error_of, fresh, named, new_host, record, serve, sha

from corral.core.log_redaction import BegunSecrets
from corral.domain.ids import LeaseId
from corral.domain.secrets.redact import HeldBytes
from corral.wire.errors import ErrorBody

# Unmistakably fake. The first could be a name; the second needs quoting wherever it is written.
CANARY = "canary-NOT-A-REAL-SECRET-0042"
QUOTED = 'canary "quoted"\\not/a+real=secret\u00fc 0043'

TALK = """
import base64, json, os, sys, time
for value in (os.environ["CANARY"], os.environ["QUOTED"]):
    print("in one piece:", value)
    print("as json:", json.dumps({"token": value}), "as repr:", repr(value))
    sys.stdout.write("split: " + value[:9]); sys.stdout.flush(); time.sleep(0.4)
    sys.stdout.write(value[9:] + "\\n"); sys.stdout.flush()
    for pad in ("", "a", "ab"):
        print("base64:", base64.b64encode((pad + value + " and more").encode()).decode())
    print("on stderr", value, file=sys.stderr)
    print("x" * 70000 + value + "y" * 70000)
    with open(os.environ["CORRAL_EVENTS"], "a") as events:
        for said in (
            {"note": "a note with " + value},
            {"metric": value, "value": 1.0},
            {"metrics": {value: 2.0}},
            {"progress": {"what": value, value: 1}},
            {"checkpoint": value, "step": 1},
            {value: value},
        ):
            events.write(json.dumps(said) + "\\n")
        events.write(value + " is not even json\\n")
time.sleep(1)
raise RuntimeError("cannot log in with " + os.environ["CANARY"] + " nor " + os.environ["QUOTED"])
"""
LEAK = """
import base64, os, pathlib
out = pathlib.Path(os.environ["CORRAL_OUTPUT_DIR"])
value = os.environ["CANARY"]
{write}
"""
LEAKS = {
    "in a file": "(out / 'model.bin').write_bytes(bytes(3_000_000) + value.encode() + bytes(100))",
    "as base64": "(out / 'model.b64').write_text(base64.b64encode(('x' + value).encode()).decode())",
    "as a name": "(out / f'{value}.txt').write_text('nothing')",
    "as a folder": "(out / value).mkdir(); (out / value / 'f').write_text('nothing')",
    "across a block": "(out / 'm').write_bytes(bytes((1 << 20) - 5) + value.encode())",
}
CHECKPOINT = """
import json, os, pathlib, time
folder = pathlib.Path(os.environ["CORRAL_CHECKPOINT_DIR"]) / "step-1"
folder.mkdir(parents=True)
(folder / "weights").write_text(os.environ["CANARY"])
with open(os.environ["CORRAL_EVENTS"], "a") as events:
    events.write(json.dumps({"checkpoint": str(folder), "step": 1, "metric": 0.5}) + "\\n")
time.sleep(1)
"""


def _needles() -> dict[str, bytes]:
    """Every form that must be found nowhere; base64 without the characters that its neighbours decide."""
    found: dict[str, bytes] = {}
    for value in (CANARY, QUOTED):
        raw = value.encode()
        found[f"{value} in clear"] = raw
        found[f"{value} as JSON"] = json.dumps(value)[1:-1].encode()
        for pad in range(3):
            encoded = base64.b64encode(b"\0" * pad + raw)
            found[f"{value} as base64 at {pad}"] = encoded[4 * bool(pad) : (pad + len(raw)) // 3 * 4]
    return found


def _exposed(where: str, data: bytes) -> list[str]:
    return [f"{where}: {what}" for what, needle in _needles().items() if needle in data]


@dataclass
class RecordedInstallation(Installation):
    """With everything that the CLI ever said about it."""

    said: list[str] = field(default_factory=list)

    def __call__(self, *arguments: str, given: str = "") -> Completed:
        done = super().__call__(*arguments, given=given)
        self.said += [done.stdout, done.stderr]
        return done

    def python(self, code: str, *options: str) -> Completed:
        return super().python(code, "--secret", "CANARY", "--secret", "QUOTED", *options)

    def latest(self) -> dict[str, Any]:
        return self.show()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedInstallation]:
    made = RecordedInstallation(tmp_path_factory.mktemp("home"), {"CORRAL_LEASE_S": "30"})
    made.up()
    for name, value in (("CANARY", CANARY), ("QUOTED", QUOTED)):
        assert made("secrets", "set", name, given=value).returncode == 0
    yield made
    made.down()


def test_what_a_run_says_is_redacted_on_every_way_out(machine: RecordedInstallation) -> None:
    """FL-D13, RF-C37: printed whole, split, encoded, in events, and as its last words."""
    done = machine.python(TALK)

    assert done.returncode == 1, done.stderr
    assert "in one piece: [secret CANARY]" in done.stdout
    assert "split: [secret CANARY]" in done.stdout
    assert "cannot log in with [secret CANARY] nor [secret QUOTED]" in done.stderr
    assert _exposed("followed output", (done.stdout + done.stderr).encode()) == []


@pytest.mark.parametrize("what", LEAKS)
def test_an_output_that_holds_a_secret_is_refused(what: str, machine: RecordedInstallation) -> None:
    done = machine.python(LEAK.format(write=LEAKS[what]))

    assert done.returncode != 0, done.stdout
    run = machine.latest()
    assert (run["state"], run["artifact_id"]) == ("failed", None)
    assert "CANARY" in str(run["detail"])


def test_a_checkpoint_that_holds_a_secret_is_refused(machine: RecordedInstallation) -> None:
    done = machine.python(CHECKPOINT)

    listed = json.loads(machine("artifacts", "ls", "--run", "latest", "--json").stdout)
    assert listed == []
    assert "CANARY" in done.stderr + done.stdout + machine("events", "latest").stdout


PLACES = {
    "argv": ("--", "echo", f"token={CANARY}"),
    "argv quoted": ("--", "echo", QUOTED),
    "argv base64": ("--", "echo", base64.b64encode(f"a{CANARY}".encode()).decode()),
    "env": ("--env", f"PLAIN={CANARY}", "--", "true"),
    "params": ("--set", f'params.key="{CANARY}"', "--", "true"),
    "name": ("--name", CANARY, "--", "true"),
    "labels": ("--label", f"team={CANARY}", "--", "true"),
    "label's key": ("--label", f"{CANARY}=x", "--", "true"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_run_that_names_a_secrets_value_is_refused_at_submit(
    place: str, machine: RecordedInstallation
) -> None:
    before = len(json.loads(machine("ls", "--all", "--json").stdout))

    done = machine("run", *PLACES[place])

    assert done.returncode == 1
    assert "contains the value of the secret" in done.stderr
    assert "hint: Name the secret in `secrets`" in done.stderr
    assert len(json.loads(machine("ls", "--all", "--json").stdout)) == before


def test_a_cancel_reason_that_holds_a_secret_is_refused(machine: RecordedInstallation) -> None:
    run = machine("run", "--detach", "--", sys.executable, "-c", "import time; time.sleep(60)").stdout.strip()

    assert "contains the value of the secret" in machine("cancel", run, "--reason", CANARY).stderr

    assert machine("cancel", run).returncode == 0


def test_afterwards_no_file_of_the_home_holds_a_secret(machine: RecordedInstallation) -> None:
    """Database and its log, segments, blobs, logs of both processes, spool and workspaces. Runs last."""
    found: list[str] = []
    names: list[str] = []
    for path in machine.home.rglob("*"):
        names.append(str(path))
        if path.is_file():
            found += _exposed(str(path), path.read_bytes())

    assert found == []
    assert _exposed("names of files", "\n".join(names).encode()) == []


def test_afterwards_no_answer_of_the_api_holds_a_secret(machine: RecordedInstallation) -> None:
    url = json.loads((machine.home / "server.json").read_text())["url"]
    token = (machine.home / "operator.token").read_text().strip()
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        runs = client.get("/v1/runs", params={"limit": 1000}).json()["items"]
        assert len(runs) >= len(LEAKS) + 2
        paths = ["/v1/runs", "/v1/events?limit=1000", "/v1/hosts", "/v1/artifacts", "/v1/metrics"]
        paths += ["/v1/projects/default/secrets", "/v1/tokens"]
        for run in runs:
            verbs = ("", "/events", "/logs", "/metrics", "/artifacts", "/checkpoints", "/why")
            paths += [f"/v1/runs/{run['id']}{verb}" for verb in verbs]
        found = [line for path in paths for line in _exposed(path, client.get(path).content)]

    assert found == []


def test_afterwards_the_cli_has_never_said_a_secret(machine: RecordedInstallation) -> None:
    talked = json.loads(machine("ls", "--all", "--json").stdout)[-1]["id"]
    for verb in ("show", "logs", "events", "metrics"):
        assert machine(verb, talked).returncode == 0

    assert _exposed("the CLI's output", "\n".join(machine.said).encode()) == []


def test_a_group_and_a_request_id_are_searched_too(live: LiveServer) -> None:
    project = named("p")
    live.ok("PUT", f"/v1/projects/{project}/secrets/CANARY", {"value": CANARY})
    run = {"argv": ["true"], "project": project}
    for body in (
        {"request_id": fresh(), "runs": [run], "group": CANARY},
        {"request_id": CANARY, "runs": [run]},
        {"request_id": fresh(), "runs": [{**run, "argv": [CANARY]}], "dry_run": True},
    ):
        error = error_of(live.call("POST", "/v1/runs", body), 422, "secret_exposed")
        assert CANARY not in error.model_dump_json()


def test_what_a_worker_reports_is_stored_without_any_secret_of_the_project(live: LiveServer) -> None:
    """Also of a run that does not name it: the worker never had the value, and cannot take it out."""
    project = named("p")
    worker = new_host(live)
    before = worker.run(project=project)
    live.ok("PUT", f"/v1/projects/{project}/secrets/CANARY", {"value": CANARY})
    live.ok("PUT", f"/v1/projects/{project}/secrets/QUOTED", {"value": QUOTED})
    both = f"cannot log in with {CANARY} nor {QUOTED}"
    batch = {
        "seq": 1,
        "logs": [{"at": 1.0, "stream": "stderr", "text": both}],
        "metrics": [{"at": 1.0, "name": CANARY, "value": 1.0}],
        "notes": [both],
        "progress": {"what": both, CANARY: [QUOTED]},
    }
    before.ok("POST", "events", batch)
    before.ok("POST", "beat", {"progress": {"what": both}})
    failure = {"reason": "code_error", "detail": f"the command ended with exit code 1\n{both}", "ran_s": 1}
    first = before.ok("POST", "fail", failure)
    assert before.ok("POST", "fail", failure) == first
    stopping = worker.run(project=project)
    stopping.ok("POST", "stopped", {"reason": "released", "detail": both, "ran_s": 1})
    finished = worker.claim()
    finished.ok("POST", "finish", {"metrics": {CANARY: 1.0}, "ran_s": 1})

    shown = [
        live.call("GET", f"/v1/runs/{lease.run_id}{part}").content
        for lease in (before, stopping)
        for part in ("", "/events", "/logs", "/metrics")
    ]
    assert b"log in with [secret CANARY] nor [secret QUOTED]" in shown[0]
    assert all(b"[secret CANARY]" in text for text in shown[1:3])
    stored = [path.read_bytes() for path in live.home.rglob("*") if path.is_file()]
    assert _exposed("the answers", b"".join(shown)) + _exposed("the home", b"".join(stored)) == []


def _piece(text: str, stream: str = "stdout", *, partial: bool = True) -> dict[str, Any]:
    return {"at": 1.0, "stream": stream, "text": text, "partial": partial}


def test_a_secret_in_pieces_is_taken_out_of_the_pieces(live: LiveServer) -> None:
    """ATK-16: a line that comes in several records, in one batch or in several, by two streams at once; text
    that only begins like a secret is all there in the end, also where a batch is sent twice."""
    project = named("project")
    lease = new_host(live).run(project=project)
    live.ok("PUT", f"/v1/projects/{project}/secrets/CANARY", {"value": CANARY})
    first = [_piece("A:" + CANARY[:9]), _piece(CANARY[9:]), _piece(" B:" + CANARY[:9])]
    batches: list[dict[str, Any]] = [
        {"seq": 1, "logs": [*first, _piece("E:" + CANARY[:3], "stderr")]},
        {"seq": 2, "logs": [_piece(CANARY[9:20]), _piece(CANARY[3:], "stderr", partial=False)]},
        {"seq": 3, "logs": [_piece(CANARY[20:] + " C:" + "x" * 65_000 + CANARY[:1])]},
        {"seq": 3, "logs": [_piece("the same batch, again")]},
        {"seq": 4, "logs": [_piece("onical", partial=False), _piece(CANARY[:5], partial=False)]},
    ]

    for batch in batches:
        lease.ok("POST", "events", batch)

    items = live.ok("GET", f"/v1/runs/{lease.run_id}/logs")["items"]
    said = {
        stream: "".join(item["text"] for item in items if item["stream"] == stream)
        for stream in ("stdout", "stderr")
    }
    assert said["stderr"] == "E:[secret CANARY]"
    assert said["stdout"] == "A:[secret CANARY] B:[secret CANARY] C:" + "x" * 65_000 + "conical" + CANARY[:5]
    assert len(live.services.log_writer.begun_secrets) == 0


def test_what_may_begin_a_secret_is_dropped_with_its_lease(live: LiveServer) -> None:
    """ATK-16: what is held in memory is bounded, and ends with its lease."""
    project = named("project")
    lease = new_host(live).run(project=project)
    live.ok("PUT", f"/v1/projects/{project}/secrets/CANARY", {"value": CANARY})
    held = live.services.log_writer.begun_secrets
    lease.ok("POST", "events", {"seq": 1, "logs": [_piece(CANARY[:9])]})
    assert len(held) == 1

    lease.ok("POST", "stopped", {"reason": "cancelled", "detail": ""})

    assert len(held) == 0
    few = BegunSecrets(most_bytes=20)
    for lease_id in ("a", "b", "c"):
        few.keep(LeaseId(lease_id), 1, {"stdout": HeldBytes(b"0123456789")})
    assert [bool(few.before(LeaseId(lease_id), 2)) for lease_id in ("a", "b", "c")] == [False, True, True]
    assert few.before(LeaseId("c"), 3) == {}


def test_a_users_manifest_is_searched_too(live: LiveServer) -> None:
    """Names of files and `meta` are stored as they are."""
    project, data = named("p"), b"content"
    live.ok("PUT", f"/v1/projects/{project}/secrets/CANARY", {"value": CANARY})
    live.ok("PUT", f"/v1/projects/{project}/blobs/{sha(data)}", content=data)
    for body in (
        {"kind": "code", "files": [record(f"keys/{CANARY}.txt", data)]},
        {"kind": "code", "files": [record("f", data)], "meta": {"note": CANARY}},
    ):
        answer = live.call("POST", f"/v1/projects/{project}/artifacts", body)
        assert error_of(answer, 422, "secret_exposed")


def test_a_users_file_that_holds_a_secret_is_refused(live: LiveServer) -> None:
    """FL-D13: a `.env` that slipped into the code would be stored and shown as it is."""
    project = named("p")
    data = b"x" * 3_000_000 + f"TOKEN={CANARY}\n".encode()
    live.ok("PUT", f"/v1/projects/{project}/blobs/{sha(data)}", content=data)
    body = {"kind": "code", "files": [record(".env", data)]}
    live.ok("PUT", f"/v1/projects/{project}/secrets/CANARY", {"value": CANARY})

    error = error_of(live.call("POST", f"/v1/projects/{project}/artifacts", body), 422, "secret_exposed")

    assert "'.env'" in error.message
    assert "CANARY" in error.message
    assert CANARY not in error.model_dump_json()


def test_a_refused_value_is_not_echoed(live: LiveServer) -> None:
    """The answer to a request that holds a secret in the wrong place may end in a log."""
    bad = [
        live.call("PUT", "/v1/projects/default/secrets/A", {"valu": CANARY}),
        live.call("PUT", "/v1/projects/default/secrets/A", {"value": [CANARY]}),
        live.call("PUT", "/v1/projects/default/secrets/A", {"value": CANARY * 5000}),
        live.call("PUT", "/v1/projects/default/secrets/A", {"value": CANARY + "\0"}),
        live.call("POST", "/v1/runs", {"request_id": "x", "runs": [{"argv": CANARY}]}),
    ]

    assert {answer.status_code for answer in bad} == {422}
    assert not any(CANARY in answer.text for answer in bad)


def test_secrets_are_encrypted_with_a_key_outside_the_database(live: LiveServer) -> None:
    """FL-D40, FL-C15, FL-C25, MT-D10."""
    live.ok("PUT", "/v1/projects/sealed/secrets/CANARY", {"value": CANARY})
    stored = b"".join(path.read_bytes() for path in live.home.glob("corral.db*"))

    assert b"sealed" in stored
    assert _exposed("the database", stored) == []
    assert (live.home / "key").read_bytes() not in stored


def test_a_run_gets_its_secrets_after_the_server_was_started_anew(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """MT-D10: the one that ran on meanwhile, and the one that waited."""
    home = tmp_path_factory.mktemp("restarted")
    with serve(home) as first:
        first.ok("PUT", "/v1/projects/default/secrets/CANARY", {"value": CANARY})
        host = new_host(first)
        held = host.run(secrets=["CANARY"])
        waits = first.submit(host=host.name, secrets=["CANARY"])
    with serve(home) as second:
        host = replace(host, live=second)
        begun = host.claim()
        assert begun.run_id == waits
        for lease in (replace(held, worker=host), begun):
            assert lease.ok("POST", "secrets")["values"] == {"CANARY": CANARY}


def test_another_key_is_a_clear_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("rekeyed")
    with serve(home) as first:
        first.ok("PUT", "/v1/projects/default/secrets/CANARY", {"value": CANARY})
    (home / "key").write_bytes(bytes(32))
    with serve(home) as second:
        answer = second.call("POST", "/v1/runs", {"request_id": fresh(), "runs": [{"argv": ["true"]}]})
        body = ErrorBody.model_validate_json(answer.content)
        assert (body.code, answer.status_code) == ("key_problem", 409)
        assert "encrypted with another key" in body.message
        assert "Restore the key file" in body.hint


def test_a_list_of_secrets_says_which_are_too_short_to_be_hidden(live: LiveServer) -> None:
    project = named("p")
    live.ok("PUT", f"/v1/projects/{project}/secrets/LONG", {"value": CANARY})
    live.ok("PUT", f"/v1/projects/{project}/secrets/PIN", {"value": "short"})
    found = live.ok("GET", f"/v1/projects/{project}/secrets")["items"]
    assert {item["name"]: item["redacted"] for item in found} == {"LONG": True, "PIN": False}
