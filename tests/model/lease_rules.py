"""What a worker does with a lease, and what is refused to one that lost it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from model.base import SECRET, Base, digest
from model.model import Lease
from model.tables import PAYS

pick = st.integers(0, 60)
REASONS = sorted(set(PAYS) - {"poison"})


class LeaseRules(Base):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def _has_usable(self) -> bool:
        return bool(self.usable())

    def _pick(self, which: int) -> Lease:
        found = self.usable()
        return found[which % len(found)]

    @precondition(_has_usable)
    @rule(which=pick, active=st.sampled_from([0, 0, 20, None]))
    def beat(self, which: int, active: float | None) -> None:
        lease = self._pick(which)
        answer = self.lease_call(lease, "POST", "beat", {"active_s_ago": active}).body
        assert answer["action"] == self.model.beat(lease, self.now, active)

    @precondition(_has_usable)
    @rule(which=pick, lines=st.integers(0, 3), notes=st.integers(0, 1))
    def send_events(self, which: int, lines: int, notes: int) -> None:
        """In order they are kept, again they are dropped, too early they are refused."""
        lease = self._pick(which)
        body = self._batch(lease, lease.seq + 1, lines, notes)
        deaths = self.world.deaths
        answer = self.lease_call(lease, "POST", "events", body).body
        assert answer["next_seq"] == lease.seq + 2
        assert answer["accepted"] or self.world.deaths > deaths
        self.model.touch(lease, self.now)
        lease.seq += 1
        lease.active_at = self.now
        if lease.rank == 0:
            lease.run.logs += [(lease.attempt, record["text"]) for record in body["logs"]]
        for _ in range(notes):
            lease.run.note("note")
        again = self.lease_call(lease, "POST", "events", body).body
        assert again == {"accepted": False, "next_seq": lease.seq + 1}
        early = self._batch(lease, lease.seq + 2, lines, notes)
        assert self.lease_call(lease, "POST", "events", early, status=409).code == "sequence_gap"

    def _batch(self, lease: Lease, seq: int, lines: int, notes: int) -> dict[str, Any]:
        text = [f"{lease.id} {seq} {n} {'x' * 60}" for n in range(lines)]
        at = self.now + lease.host.skew_s
        return {
            "seq": seq,
            "logs": [{"at": at, "stream": "stdout", "text": line} for line in text],
            "metrics": [{"at": at, "name": "loss", "value": float(seq)}],
            "notes": ["a note"] * notes,
        }

    @precondition(_has_usable)
    @rule(which=pick, content=st.integers(0, 2), kind=st.sampled_from(["artifacts", "checkpoints"]))
    def upload_and_commit(self, which: int, content: int, kind: str) -> None:
        lease = self._pick(which)
        data = f"bytes {content}".encode()
        self.lease_call(lease, "PUT", f"blobs/{digest(data)}", data, status=201)
        self.model.touch(lease, self.now)
        self.steps += 1
        body = self._manifest(kind, data, self.steps)
        answer = self.lease_call(lease, "POST", kind, body, status=201).body
        assert (answer["run_id"], answer["epoch"]) == (lease.run.id, lease.epoch)
        lease.run.note("artifact")
        if kind == "artifacts":
            lease.outputs.append(answer["id"])
        assert self.lease_call(lease, "POST", kind, body, status=201).body["id"] == answer["id"]

    def _manifest(self, kind: str, data: bytes, step: int) -> dict[str, Any]:
        file = {"path": "out/file.bin", "sha256": digest(data), "size": len(data)}
        return {"kind": kind.removesuffix("s").replace("artifact", "output"), "files": [file], "step": step}

    @precondition(_has_usable)
    @rule(which=pick, key=st.sampled_from(["a", "b/c"]))
    def use_objects_and_secrets(self, which: int, key: str) -> None:
        lease = self._pick(which)
        wanted = {"KEY": SECRET} if lease.run.project == "alpha" else {}
        assert self.lease_call(lease, "POST", "secrets").body == {"values": wanted}
        self.model.touch(lease, self.now)
        body = f"object of {lease.id}".encode()
        self.lease_call(lease, "PUT", f"objects/{key}", body)
        assert self.lease_call(lease, "GET", f"objects/{key}").body == body
        assert key in self.lease_call(lease, "GET", "objects").body["keys"]

    @precondition(_has_usable)
    @rule(which=pick, output=st.integers(0, 3), ran_s=st.sampled_from([0, 10]))
    def finish(self, which: int, output: int, ran_s: int) -> None:
        lease = self._pick(which)
        artifact = lease.outputs[output % len(lease.outputs)] if output and lease.outputs else None
        self._end(lease, "finish", {"artifact_id": artifact, "ran_s": ran_s})

    @precondition(_has_usable)
    @rule(
        which=pick,
        kind=st.sampled_from(["fail", "fail", "stopped"]),
        reason=st.sampled_from(REASONS),
        ran_s=st.sampled_from([0, 10, 50]),
    )
    def fail_or_stop(self, which: int, kind: str, reason: str, ran_s: int) -> None:
        self._end(self._pick(which), kind, {"reason": reason, "ran_s": ran_s, "detail": "the model"})

    def _end(self, lease: Lease, kind: str, body: dict[str, Any]) -> None:
        answer = self.lease_call(lease, "POST", kind, body).body
        lease.outcome = (kind, body, answer)
        assert answer == self.model.end(lease, kind, body, self.now)

    @precondition(lambda self: any(x.outcome for x in self.dead()))
    @rule(which=pick)
    def replay_an_outcome(self, which: int) -> None:
        """Promise 4: the same body has the same answer for ever; any other is refused (FL-D30)."""
        closed = [lease for lease in self.dead() if lease.outcome]
        lease = closed[which % len(closed)]
        assert lease.outcome is not None
        kind, body, answer = lease.outcome
        assert self.lease_call(lease, "POST", kind, body).body == answer
        other = {**body, "ran_s": body["ran_s"] + 1}
        assert self.lease_call(lease, "POST", kind, other, status=409).code == "already_final"

    @precondition(lambda self: self.dead())
    @rule(which=pick)
    def a_lost_lease_changes_nothing(self, which: int) -> None:
        """Promise 2 (FL-D29, FL-D38, FL-D41): no beat, event, blob, artifact, object, secret or outcome."""
        found = self.dead()
        lease = found[which % len(found)]
        said = self.lease_call(lease, "POST", "beat", {}).body["action"]
        assert said == self.model.beat(lease, self.now, None) == "lost"
        self._refused(lease, lease.epoch)
        late = {"ran_s": 999, "reason": "code_error"}
        status = 409 if lease.outcome else 410
        self.lease_call(lease, "POST", "fail", late, status=status)

    @precondition(_has_usable)
    @rule(which=pick, off=st.sampled_from([-1, 1]))
    def nobody_else_may_write(self, which: int, off: int) -> None:
        """Not with another epoch, not another host, not files that were never uploaded (FL-D31)."""
        lease = self._pick(which)
        self._refused(lease, lease.epoch + off)
        self.lease_call(lease, "POST", "finish", {"ran_s": 1}, status=410, epoch=lease.epoch + off)
        beat = self.lease_call(lease, "POST", "beat", {}, epoch=lease.epoch + off).body
        assert beat["action"] == "lost"
        other = next(host for host in self.model.hosts if host is not lease.host and not host.revoked)
        self.call("POST", f"leases/{lease.id}/beat?epoch={lease.epoch}", {}, status=404, host=other)
        # Refused as a whole, its taking up of a lease that ran out included.
        body = self._manifest("artifacts", b"never uploaded", 0)
        assert self.lease_call(lease, "POST", "artifacts", body, status=409).code == "blob_missing"

    def _refused(self, lease: Lease, epoch: int) -> None:
        data = b"late bytes"
        blob, manifest = f"blobs/{digest(data)}", self._manifest("artifacts", b"bytes 0", 1)
        batch = self._batch(lease, lease.seq + 1, 1, 1)
        checkpoint = self._manifest("checkpoints", b"bytes 0", 1)
        for method, path, body in (
            ("POST", "events", batch),
            ("PUT", blob, data),
            ("POST", "blobs/query", {"blobs": [digest(data)]}),
            ("POST", "artifacts", manifest),
            ("POST", "checkpoints", checkpoint),
            ("PUT", "objects/late", b"late"),
            ("GET", "objects/late", None),
            ("GET", "objects", None),
            ("POST", "secrets", None),
        ):
            reply = self.lease_call(lease, method, path, body, status=410, epoch=epoch)
            assert reply.code == "lease_lost"
