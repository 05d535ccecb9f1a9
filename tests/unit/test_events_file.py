"""The child's own words: whatever it writes, nothing breaks and nothing unsendable gets through."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.secrets.redact import SecretValues
from corral.wire.leases import BeatRequest
from corral.wire.logs import EventBatch, MetricRecord
from corral.worker.child.events_file import (
    LINE_MAX_BYTES,
    BadEvent,
    CheckpointEvent,
    Event,
    EventsFile,
    MetricEvent,
    NoteEvent,
    ProgressEvent,
    parse,
)


def plain(text: str) -> str:
    return text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_each_kind_of_line_is_understood() -> None:
    def said(line: str) -> list[object]:
        return list(parse(line.encode(), plain))

    assert said('{"progress": {"epoch": 1}}') == [ProgressEvent({"epoch": 1})]
    assert said('{"step": 5, "total": 10}') == [ProgressEvent({"step": 5, "total": 10})]
    assert said('{"note": "hello"}') == [NoteEvent("hello")]
    assert said('{"checkpoint": "ck/1", "step": 7, "metric": 0.5}') == [
        CheckpointEvent("ck/1", 7, 0.5),
        ProgressEvent({"step": 7}),
    ]
    assert said('{"metrics": {"loss": 1.5, "lr": 1}, "step": 3}') == [
        MetricEvent("loss", 1.5, 3),
        MetricEvent("lr", 1.0, 3),
        ProgressEvent({"step": 3}),
    ]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", '"high"', "null", "true", "[1]"])
def test_a_metric_that_is_no_number_is_noted_and_not_sent(value: str) -> None:
    found = list(parse(b'{"metrics": {"loss": %s, "acc": 0.5}}' % value.encode(), plain))

    assert isinstance(found[0], BadEvent)
    assert found[1] == MetricEvent("acc", 0.5, None)


@pytest.mark.parametrize(
    "line", ["", "nonsense", "[]", "{}", '{"other": 1}', '{"step": "x"}', "1", "[" * 99_999]
)
def test_a_bad_line_is_only_bad(line: str) -> None:
    assert [type(event) for event in parse(line.encode(), plain)] == [BadEvent]


def test_secrets_are_taken_out_of_every_text() -> None:
    clean = SecretValues({"KEY": "correct-horse"}).redact_text
    line = json.dumps(
        {
            "note": "it is correct-horse",
            "progress": {"correct-horse": ["correct-horse"]},
            "metrics": {"correct-horse": 1},
        }
    )

    found = repr(list(parse(line.encode(), clean)))

    assert "correct-horse" not in found
    assert found.count("[secret KEY]") == 4


def test_a_file_is_followed_as_it_grows(path: Path) -> None:
    file = EventsFile(path, plain)
    assert list(file.read()) == []
    path.write_text('{"note": "one"}\n{"no')
    assert list(file.read()) == [NoteEvent("one")]
    with path.open("a") as out:
        out.write('te": "two"}\n')
    assert list(file.read()) == [NoteEvent("two")]
    assert list(file.read()) == []


def test_the_last_line_needs_no_newline(path: Path) -> None:
    file = EventsFile(path, plain)
    path.write_text('{"note": "end"}')

    assert list(file.read()) == []
    assert list(file.read_rest()) == [NoteEvent("end")]


def test_a_file_that_was_begun_anew_is_read_anew(path: Path) -> None:
    file = EventsFile(path, plain)
    path.write_text('{"note": "a long first line"}\n')
    list(file.read())
    path.write_text('{"note": "new"}\n')

    assert list(file.read()) == [NoteEvent("new")]


def test_a_line_without_end_is_skipped_and_the_next_is_read(path: Path) -> None:
    file = EventsFile(path, plain)
    path.write_bytes(b"x" * (3 * LINE_MAX_BYTES) + b'\n{"note": "after"}\n')

    found = list(file.read())

    assert [type(event) for event in found] == [BadEvent, NoteEvent]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=12,
)
keys = st.sampled_from(["progress", "step", "total", "metrics", "note", "checkpoint", "metric"])


@given(st.dictionaries(keys, json_values, max_size=7))
def test_whatever_is_said_can_be_sent(said: dict[str, object]) -> None:
    for event in parse(json.dumps(said).encode(), plain):
        assert isinstance(event, Event)
        match event:
            case ProgressEvent(values):
                BeatRequest(progress=values).model_dump_json()
            case MetricEvent(name, value, step):
                record = MetricRecord(at=0, name=name, value=value, step=step)
                EventBatch(seq=1, metrics=[record]).model_dump_json()
            case NoteEvent(text):
                EventBatch(seq=1, notes=[text]).model_dump_json()
            case CheckpointEvent() | BadEvent():
                pass


@given(st.binary(max_size=300))
def test_any_bytes_are_survived(line: bytes) -> None:
    found = list(parse(line.replace(b"\n", b""), plain))

    assert all(isinstance(event, Event) for event in found)


@pytest.mark.parametrize("what", ["a pipe", "a link to a device", "a link to a file"])
def test_what_is_no_regular_file_is_not_read_and_said_once(path: Path, what: str) -> None:
    """SEC-08: opening a pipe waits for a writer, and a device has no end."""
    (path.parent / "other").write_text('{"note": "not the run\'s"}\n')
    if what == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if what == "a link to a device" else path.parent / "other")
    file = EventsFile(path, plain)

    assert [type(event) for event in file.read()] == [BadEvent]
    assert list(file.read()) == []
    assert list(file.read_rest()) == []


def test_a_file_of_holes_is_read_in_bounded_pieces(path: Path) -> None:
    """SEC-08: each look and the last one come to an end."""
    path.touch()
    os.truncate(path, 1 << 42)
    file = EventsFile(path, plain)

    assert [event.why for event in file.read() if isinstance(event, BadEvent)] == [
        f"a line of more than {LINE_MAX_BYTES} bytes"
    ]
    last = list(file.read_rest())[-1]
    assert isinstance(last, BadEvent)
    assert "written faster than they can be read" in last.why
