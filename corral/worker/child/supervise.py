"""Supervises a child from start to end: reads its output and events, carries out orders to stop."""

from __future__ import annotations

import time
from dataclasses import dataclass

from corral.worker.child.command import Exit
from corral.worker.child.events_file import EventsFile
from corral.worker.child.events_listener import EventsListener
from corral.worker.child.output import OutputPump
from corral.worker.child.system import Child
from corral.worker.child.verdict import ChildEnd
from corral.worker.heartbeat import Vitals
from corral.worker.instance.server import InstanceServer
from corral.worker.lease import LeaseControl, StopOrder
from corral.worker.prepare.preparation import PreparedCommand
from corral.worker.prepare.workspace import Workspace
from corral.worker.report.checkpoints import CheckpointUploader
from corral.worker.report.recorder import Recorder

LOOK_UP_S = 0.2
# Everything of the child is gone by then, so its pipes end at once, unless something escaped.
DRAIN_LIMIT_S = 10.0


@dataclass
class _Steering:
    """Does to a child what was ordered, once each: terminate, and kill after the grace."""

    child: Child
    control: LeaseControl
    recorder: Recorder
    kill_at: float | None = None
    killed: bool = False
    obeyed: StopOrder | None = None

    def look(self) -> None:
        if self.killed:
            return
        if self.control.lost or self.recorder.problem is not None:
            self._kill()
        elif self.kill_at is not None:
            if time.monotonic() >= self.kill_at:
                self.recorder.say("the command did not end in its grace time and is killed")
                self._kill()
        elif (order := self.control.stop_order()) is not None and self.child.outcome() is None:
            self.obeyed = order
            self.kill_at = time.monotonic() + order.grace_s
            self.recorder.say(f"stopping: {order.detail}")
            self.recorder.tick()
            self.child.terminate()

    def _kill(self) -> None:
        self.killed = True
        self.child.kill()


@dataclass(frozen=True)
class Supervision:
    workspace: Workspace
    control: LeaseControl
    recorder: Recorder
    vitals: Vitals
    checkpoints: CheckpointUploader
    serving: InstanceServer | None = None

    def run(self, prepared: PreparedCommand, *, quota_bytes: int) -> ChildEnd:
        """Start the child and see it through. OSError if this host cannot start any."""
        secrets = prepared.secrets
        began = time.monotonic()
        with Child(prepared.command) as child:
            pump = OutputPump(
                {child.stdout: "stdout", child.stderr: "stderr"},
                self.recorder,
                secrets=secrets,
                quota_bytes=quota_bytes,
                mark=None if self.serving is None else self.serving.mark,
            )
            file = EventsFile(self.workspace.events, secrets.redact_text)
            listener = EventsListener(file, self.recorder, self.checkpoints)
            self.vitals.active_at = lambda: self.recorder.active_at
            pump.start()
            listener.start()
            steering = _Steering(child, self.control, self.recorder)
            if self.serving is not None:
                self.serving.kill = child.kill
            found = self._see_through(child, steering)
            if self.serving is not None:
                self.serving.end()
            ran_s = time.monotonic() - began
            pump.drain(DRAIN_LIMIT_S)
            listener.end()
        problem = self.recorder.problem
        return ChildEnd(
            exit=found,
            ran_s=ran_s,
            obeyed=steering.obeyed,
            local_problem=None if problem is None else f"the disk could not take the run's log: {problem}",
            last_errors=pump.last_errors(),
            metrics=tuple(listener.last_metrics.items()),
        )

    def _see_through(self, child: Child, steering: _Steering) -> Exit:
        while (found := child.wait(LOOK_UP_S)) is None:
            self.vitals.pid = self.vitals.pid or child.pid
            steering.look()
        self.vitals.pid = None
        return found
