"""Slurm's commands, here or through a prefix, and their answers as values."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from corral.adapters.executors.slurm import scripts
from corral.adapters.executors.slurm.errors import means_gone, refused_or_unreachable, unreachable
from corral.adapters.executors.slurm.models import QueuedJob, SlurmHandle, SlurmNode, SlurmOptions
from corral.domain.placements.orders import LaunchOrder

_MIB = 1 << 20
_NODES = "sinfo --Node --noheader {partition} --format='%N|%c|%m|%G|%f'"


class ShellAnswer(NamedTuple):
    code: int
    out: str
    err: str


class Observed(NamedTuple):
    """What the queue and the accounting say, and the lines that each job wrote, by key and file."""

    queue: Sequence[QueuedJob]
    history: Sequence[QueuedJob]
    files: Mapping[str, Mapping[str, Sequence[str]]]


class SlurmApi:
    """A program of the shell for each request, over standard input: what it holds is in no argument, and
    `ssh` leaves it as it is."""

    def __init__(self, options: SlurmOptions) -> None:
        self._options = options

    def launch(self, order: LaunchOrder, flags: Sequence[str]) -> SlurmHandle:
        answer = self.run(scripts.launch_script(self._options, order, flags))
        if answer.code == scripts.REFUSED:
            raise refused_or_unreachable(answer.err)
        job_id = answer.out.strip()
        if answer.code != 0 or not job_id.isdigit():
            raise unreachable(answer.err or answer.out)
        return SlurmHandle(job_id, order.key)

    def observe(self, handles: Sequence[SlurmHandle]) -> Observed:
        parts: dict[str, list[str]] = {}
        current: list[str] = []
        for line in self._ask(scripts.observe_script(self._options, handles)).splitlines():
            if line in (scripts.QUEUE_MARK, scripts.STEPS_MARK, scripts.HISTORY_MARK):
                current = parts.setdefault(line, [])
            else:
                current.append(line)
        return Observed(
            read_queue(parts.get(scripts.QUEUE_MARK, ())),
            read_history(parts.get(scripts.HISTORY_MARK, ())),
            read_files(parts.get(scripts.STEPS_MARK, ())),
        )

    def launched(self) -> Sequence[QueuedJob]:
        return read_queue(self._ask(scripts.launched_script()).splitlines())

    def cancel(self, handle: SlurmHandle) -> None:
        answer = self.run(scripts.cancel_script(self._options, handle))
        if answer.code != 0 and not means_gone(answer.err):
            raise unreachable(answer.err)

    def logs(self, handle: SlurmHandle, rank: int, most_bytes: int) -> str:
        return self._ask(scripts.logs_script(self._options, handle, rank, most_bytes))

    def nodes(self) -> Sequence[SlurmNode]:
        chosen = f"--partition={self._options.partition}" if self._options.partition else ""
        said = self._ask(_NODES.format(partition=scripts.quoted(chosen) if chosen else ""))
        return read_nodes(said.splitlines())

    def _ask(self, script: str) -> str:
        answer = self.run(script)
        if answer.code != 0:
            raise unreachable(answer.err or answer.out)
        return answer.out

    def run(self, script: str) -> ShellAnswer:
        """What a program gave, whatever its exit code; ExecutorUnreachable if it could not run."""
        command = [*self._options.command_prefix, "sh"]
        try:
            done = subprocess.run(
                command,
                input=script.encode(),
                capture_output=True,
                timeout=self._options.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise unreachable(f"no answer within {self._options.timeout_s:g} s") from None
        except OSError as error:
            raise unreachable(f"{command[0]}: {error.strerror}") from error
        return ShellAnswer(done.returncode, _text(done.stdout), _text(done.stderr))


def read_queue(lines: Sequence[str]) -> list[QueuedJob]:
    found = []
    for line in lines:
        fields = [word.strip() for word in line.split("|")]
        if len(fields) < 7 or not fields[0].isdigit():
            continue
        job_id, index, name, state, status, reason, nodes = fields[:7]
        found.append(
            QueuedJob(job_id, _number(index), name, state, _number(status), _said(reason), _said(nodes))
        )
    return found


def read_history(lines: Sequence[str]) -> list[QueuedJob]:
    """Lines of sacct: `12_3|name|CANCELLED by 1000|0:9|None|n[0-1]`."""
    found = []
    for line in lines:
        fields = line.split("|")
        number = re.fullmatch(r"(\d+)(?:_(\d+))?", fields[0])
        if number is None or len(fields) < 6:
            continue
        code, _, killed_by = fields[3].partition(":")
        status = (int(code) << 8) | int(killed_by) if code.isdigit() and killed_by.isdigit() else None
        state = fields[2].split(" ")[0]
        index = _number(number[2] or "")
        found.append(
            QueuedJob(number[1], index, fields[1], state, status, _said(fields[4]), _said(fields[5]))
        )
    return found


def read_files(lines: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Lines of grep: `KEY/FILE:TEXT`."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in lines:
        place, _, text = line.partition(":")
        key, _, file = place.partition("/")
        found.setdefault(key, {}).setdefault(file, []).append(text)
    return found


def read_nodes(lines: Sequence[str]) -> list[SlurmNode]:
    """Each once, in however many partitions it is."""
    found = {}
    for line in lines:
        name, cores, megabytes, gres, features = line.split("|")
        # `4000+` where kinds are told together.
        ram = int(megabytes.rstrip("+")) * _MIB
        found[name] = SlurmNode(
            name, int(cores.rstrip("+")), ram, _said(gres), tuple(_said(features).split(","))
        )
    return list(found.values())


def _number(word: str) -> int | None:
    return int(word) if word.isdigit() else None


def _said(word: str) -> str:
    """Slurm's ways to say nothing."""
    return "" if word in ("(null)", "None", "N/A", "None assigned") else word


def _text(said: bytes) -> str:
    return said.decode("utf-8", "replace")
