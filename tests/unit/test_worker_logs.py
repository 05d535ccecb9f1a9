"""The pump: order, redaction, cuts between characters, and a quota, whatever the child prints."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.secrets.redact import SecretValues
from corral.wire.logs import LogRecord
from corral.worker.child.output import RECORD_MAX_BYTES, LineCutter, LinePiece, OutputPump
from corral.worker.report.recorder import Recorder
from corral.worker.report.spool import Spool

NO_SECRETS = SecretValues({})


class Pipes:
    """Two pipes and the pump that reads them."""

    def __init__(
        self, folder: Path, *, secrets: SecretValues = NO_SECRETS, quota_bytes: int = 1 << 30
    ) -> None:
        self.spool = Spool(folder)
        self.out_read, self.out = os.pipe()
        self.err_read, self.err = os.pipe()
        self.recorder = Recorder(self.spool)
        self.pump = OutputPump(
            {self.out_read: "stdout", self.err_read: "stderr"},
            self.recorder,
            secrets=secrets,
            quota_bytes=quota_bytes,
        )
        self.pump.start()

    def finish(self) -> list[LogRecord]:
        os.close(self.out)
        os.close(self.err)
        self.pump.drain(30)
        os.close(self.out_read)
        os.close(self.err_read)
        return self.records()

    def records(self) -> list[LogRecord]:
        found: list[LogRecord] = []
        seq = 1
        while (batch := self.spool.get(seq)) is not None:
            found += batch.logs
            seq += 1
        return found


def text_of(records: list[LogRecord], stream: str) -> str:
    return "".join(r.text + ("" if r.partial else "\n") for r in records if r.stream == stream)


@pytest.fixture
def pipes(tmp_path: Path) -> Pipes:
    return Pipes(tmp_path / "spool")


def test_lines_of_each_stream_arrive_in_their_order(pipes: Pipes) -> None:
    for n in range(100):
        os.write(pipes.out, f"out {n}\n".encode())
        os.write(pipes.err, f"err {n}\n".encode())

    records = pipes.finish()

    assert text_of(records, "stdout") == "".join(f"out {n}\n" for n in range(100))
    assert text_of(records, "stderr") == "".join(f"err {n}\n" for n in range(100))


def test_the_first_line_is_spooled_while_the_child_still_runs(pipes: Pipes) -> None:
    os.write(pipes.out, b"hello\n")

    assert pipes.spool.wait_for(1, timeout_s=120)

    assert [r.text for r in pipes.records()] == ["hello"]
    pipes.finish()


def test_a_prompt_without_a_newline_is_shown_and_closed_later(pipes: Pipes) -> None:
    os.write(pipes.out, b"loading")
    assert pipes.spool.wait_for(1, timeout_s=120)
    os.write(pipes.out, b" done\n")

    records = pipes.finish()

    assert records[0].partial
    assert text_of(records, "stdout") == "loading done\n"


def test_a_secret_split_over_two_writes_is_hidden(tmp_path: Path) -> None:
    pipes = Pipes(tmp_path / "spool", secrets=SecretValues({"TOKEN": "hunter2-hunter2"}))
    os.write(pipes.out, b"the token is hunter2-")
    assert not pipes.spool.wait_for(99, timeout_s=0.4)
    os.write(pipes.out, b"hunter2, you see\n")

    records = pipes.finish()

    assert text_of(records, "stdout") == "the token is [secret TOKEN], you see\n"


def test_binary_output_becomes_text_that_can_be_sent(pipes: Pipes) -> None:
    os.write(pipes.out, bytes(range(256)) * 4)

    records = pipes.finish()

    assert "\0" in text_of(records, "stdout")
    assert "\ufffd" in text_of(records, "stdout")


def test_a_line_without_end_is_cut_and_takes_no_memory(pipes: Pipes) -> None:
    size = 32 << 20
    writer = threading.Thread(target=write_all, args=(pipes.out, b"x" * (1 << 20), size))
    tracemalloc.start()
    writer.start()
    writer.join()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    records = pipes.finish()

    assert peak < 8 << 20
    assert max(len(r.text) for r in records) <= RECORD_MAX_BYTES
    assert sum(len(r.text) for r in records) == size
    assert [r.partial for r in records[:-1]] == [True] * (len(records) - 1)


def test_beyond_the_quota_only_the_end_is_kept_and_the_gap_is_named(tmp_path: Path) -> None:
    pipes = Pipes(tmp_path / "spool", quota_bytes=100_000)
    writer = threading.Thread(target=write_all, args=(pipes.out, b"0123456789abcde\n" * 64, 4 << 20))
    writer.start()
    writer.join()
    os.write(pipes.out, b"the last words\n")

    records = pipes.finish()

    said = [r.text for r in records if r.stream == "corral"]
    assert len(said) == 1
    assert "log quota used up, 100000 bytes" in said[0]
    assert records[-1].text == "the last words"
    stored = sum(path.stat().st_size for path in (tmp_path / "spool").iterdir())
    assert stored < 1_500_000


def test_the_last_lines_of_stderr_are_kept_for_the_report(tmp_path: Path) -> None:
    pipes = Pipes(tmp_path / "spool", secrets=SecretValues({"KEY": "correct-horse"}))
    os.write(pipes.err, b"".join(b"line %d\n" % n for n in range(50)) + b"ValueError: correct-horse\n")

    pipes.finish()

    lines = pipes.pump.last_errors().splitlines()
    assert len(lines) == 20
    assert lines[-1] == "ValueError: [secret KEY]"


def write_all(fd: int, block: bytes, size: int) -> None:
    for _ in range(size // len(block)):
        view = memoryview(block)
        while view:
            view = view[os.write(fd, view) :]


def chunked(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    for start, end in pairwise(places):
        yield data[start:end]


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_however_the_stream_is_cut_its_bytes_come_out_again(data: bytes, cuts: list[int]) -> None:
    cutter = LineCutter()
    pieces: list[LinePiece] = []
    for chunk in chunked(data, cuts):
        pieces += cutter.feed(chunk)
    pieces += cutter.end()

    joined = b"".join(piece.data + (b"" if piece.partial else b"\n") for piece in pieces)

    assert joined == data + (b"\n" if data and not data.endswith(b"\n") else b"")


@given(st.text(alphabet="aé€😀", min_size=1, max_size=40))
def test_a_long_line_is_never_cut_inside_a_character(text: str) -> None:
    cutter = LineCutter()
    line = text * (2 * RECORD_MAX_BYTES // len(text.encode()) + 2)

    pieces = [*cutter.feed(line.encode()), *cutter.end()]

    assert "".join(piece.data.decode() for piece in pieces) == line
    assert len(pieces) >= 3
    assert all(len(piece.data) <= RECORD_MAX_BYTES for piece in pieces)


def test_the_last_errors_begin_with_a_whole_line(pipes: Pipes) -> None:
    """ATK-17: the server would not find the rest of a secret whose beginning is cut off."""
    value = "another-FAKE-secret-value-0043"
    line = "x" * (1020 - len(value)) + value
    os.write(pipes.err, f"{line}\n".encode() * 30)
    pipes.finish()

    assert set(pipes.pump.last_errors().splitlines()) == {line}
