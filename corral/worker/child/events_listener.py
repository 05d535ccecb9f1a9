"""Passes on what a child writes to its events file."""

from __future__ import annotations

import threading
from typing import assert_never

from corral.worker.child import events_file as events
from corral.worker.report.checkpoints import CheckpointUploader
from corral.worker.report.recorder import Recorder

EVERY_S = 0.1
MAX_LAST_METRICS = 1_024


class EventsListener:
    """A thread that looks at the file ten times a second, until it is ended."""

    def __init__(self, file: events.EventsFile, recorder: Recorder, checkpoints: CheckpointUploader) -> None:
        self._file = file
        self._recorder = recorder
        self._checkpoints = checkpoints
        self._bad = 0
        self._ended = threading.Event()
        self.last_metrics: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="corral-events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Read what is left, and stop. Call it when the child is gone."""
        self._ended.set()
        self._thread.join()
        for event in self._file.read_rest():
            self._take(event)
        if self._bad > 1:
            self._recorder.say(f"{self._bad} entries in CORRAL_EVENTS were not understood")
        self._recorder.flush()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            for event in self._file.read():
                self._take(event)
            self._recorder.tick()

    def _take(self, event: events.Event) -> None:
        self._recorder.active()
        match event:
            case events.ProgressEvent(values):
                self._recorder.progress(values)
            case events.MetricEvent(name, value, step):
                if name in self.last_metrics or len(self.last_metrics) < MAX_LAST_METRICS:
                    self.last_metrics[name] = value
                self._recorder.metric(name, value, step)
            case events.NoteEvent(text):
                self._recorder.note(text)
            case events.CheckpointEvent():
                # A run that resumes here does not tell its earlier metrics again: they go first.
                self._recorder.flush()
                self._checkpoints.announce(event)
            case events.BadEvent(why):
                self._bad += 1
                if self._bad == 1:
                    self._recorder.say(f"an entry in CORRAL_EVENTS was not understood: {why}")
            case _:
                assert_never(event)
