"""What every SegmentStore promises. An adapter is done when its name is among the params."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.adapters.blobs.segments import DirectorySegments
from corral.core.logs import LOG, Cursor, read_lines, segment_key
from corral.domain.artifacts import Segment
from corral.domain.errors import InvalidInput, StoreUnavailable
from corral.domain.ids import new_run_id
from corral.ports.blobs import SegmentStore

KEY = "r-bcdfghjkmnpq/1-0-logs-0"


@pytest.fixture(params=["directory"])
def segments(request: pytest.FixtureRequest, tmp_path: Path) -> SegmentStore:
    makers: dict[str, Callable[[], SegmentStore]] = {"directory": lambda: DirectorySegments(tmp_path)}
    return makers[request.param]()


def test_what_was_appended_is_read_back(segments: SegmentStore) -> None:
    segments.append(KEY, 0, b"one\n")
    segments.append(KEY, 4, b"two\n")

    assert segments.read(KEY, 0, 100) == b"one\ntwo\n"
    assert segments.read(KEY, 4, 2) == b"tw"
    assert segments.read(KEY, 8, 10) == b""


def test_what_a_crash_left_behind_the_committed_length_is_cut(segments: SegmentStore) -> None:
    """FL-D23: a torn last line never stays."""
    segments.append(KEY, 0, b"one\n")
    segments.append(KEY, 4, b"a torn and uncommitted li")

    segments.append(KEY, 4, b"two\n")

    assert segments.read(KEY, 0, 100) == b"one\ntwo\n"


def test_a_first_append_can_be_repeated(segments: SegmentStore) -> None:
    segments.append(KEY, 0, b"a longer first try")
    segments.append(KEY, 0, b"")
    segments.append(KEY, 0, b"again")

    assert segments.read(KEY, 0, 100) == b"again"


def test_a_segment_that_lost_committed_bytes_is_never_filled_with_a_hole(segments: SegmentStore) -> None:
    with pytest.raises(StoreUnavailable, match="has 0 bytes, 4 were committed"):
        segments.append(KEY, 4, b"two\n")

    segments.append(KEY, 0, b"one")
    with pytest.raises(StoreUnavailable, match="has 3 bytes, 4 were committed"):
        segments.append(KEY, 4, b"two\n")
    assert segments.read(KEY, 0, 100) == b"one"


def test_an_absent_segment_is_a_key_error(segments: SegmentStore) -> None:
    with pytest.raises(KeyError):
        segments.read(KEY, 0, 1)
    segments.delete(KEY)


def test_segments_of_one_run_are_deleted_one_by_one(segments: SegmentStore) -> None:
    other = "r-bcdfghjkmnpq/1-0-metrics-12"
    segments.append(KEY, 0, b"logs")
    segments.append(other, 0, b"metrics")

    segments.delete(KEY)

    with pytest.raises(KeyError):
        segments.read(KEY, 0, 1)
    assert segments.read(other, 0, 10) == b"metrics"
    segments.delete(other)
    segments.append(KEY, 0, b"new")
    assert segments.read(KEY, 0, 10) == b"new"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "r-1",
        "../1-0-logs-0",
        "r-1/../1-0-logs-0",
        "/etc/1-0-logs-0",
        "r-1/1-0-logs-0\n",
        "r-1/1-0-LOGS-0",
    ],
)
def test_a_key_of_another_form_is_refused_by_every_entry(segments: SegmentStore, key: str) -> None:
    """FL-D21, FL-D22: parts that are joined cannot be mistaken for one another, nor leave the store."""
    with pytest.raises(InvalidInput):
        segments.append(key, 0, b"x")
    with pytest.raises(InvalidInput):
        segments.read(key, 0, 1)
    with pytest.raises(InvalidInput):
        segments.delete(key)


def test_output_that_the_disk_has_lost_is_said_to_be_lost(tmp_path: Path) -> None:
    """STO-11: the row says more bytes than the file has; reading it says so instead of printing nothing."""
    store = DirectorySegments(tmp_path)
    lines = [json.dumps([1.0, "stdout", False, text]).encode() + b"\n" for text in ("kept", "gone")]
    segment = Segment(new_run_id(), 1, 0, LOG, 0, sum(map(len, lines)), 2, 1.0)
    store.append(segment_key(segment), 0, lines[0])

    first, last = read_lines([segment], store, Cursor(), limit=10)

    assert first.record[3] == "kept"
    assert last.record[1] == "corral"
    assert f"{len(lines[1])} bytes of the output are lost here" in last.record[3]
    assert list(read_lines([segment], store, last.after, limit=10)) == []
