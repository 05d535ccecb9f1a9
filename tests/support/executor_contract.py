"""What every executor holds, whatever cluster is behind it: the suite, and the harness that it runs over.

A test file of an adapter writes a harness and a fixture, and takes the suite over by a class of its own:

    @pytest.fixture
    def cluster() -> Iterator[ExecutorHarness]:
        made = MyHarness(...)
        yield made
        made.clean()

    class TestMyExecutor(ExecutorContract): ...

Workers are stood in for by scripts of the shell. They run as real processes of this machine, which are found
by their arguments and their environment, so that what the cluster says is compared with what is there.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import (
    LaunchOrder,
    RankSighting,
    SightCause,
    Sighting,
    SightState,
)
from corral.ports.executor import Executor, ExecutorUnreachable, LaunchRefused
from support.waiting import eventually

# More than there are nodes. Cases to which the number does not matter have fewer: each is a real process.
RANKS = 4
KEY_VARIABLE = "CONTRACT_KEY"
MIB = 1 << 20
# Which rank it is, and its token, in each form that the port allows.
WHO = (
    "rank=${CORRAL_PLACED_RANK:-${SLURM_PROCID:-$JOB_COMPLETION_INDEX}}; "
    'if [ -d "$CORRAL_PLACED_TOKENS" ]; then token=$(cat "$CORRAL_PLACED_TOKENS/$rank"); '
    'else token=$(sed -n "$((rank + 1))p" "$CORRAL_PLACED_TOKENS"); fi; '
)
SAYS_WHO = WHO + 'echo "up $rank $(printf %s "$token" | sha256sum | cut -c1-64)"; '
# Until told to end. With a child, as a worker has; some clusters end that first, and tell the worker then.
UNTIL_TERM = "sleep 600 & wait; while :; do sleep 1; done"
STAYS = SAYS_WHO + "trap 'echo asked to end; exit 0' TERM; " + UNTIL_TERM
HOG = SAYS_WHO + 'exec python3 -c "import time; held = bytearray(400_000_000); time.sleep(600)"'


class LiveProcess(NamedTuple):
    pid: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]


class ForeignWork(NamedTuple):
    """Something on the cluster that is not ours."""

    runs: Callable[[], bool]
    end: Callable[[], None]


class ExecutorHarness(ABC):
    """What an adapter's tests supply. `lacks` names each method of these that its cluster cannot have, with
    the reason: the case is skipped with that line. `grace` stands for a warning before the end."""

    lacks: Mapping[str, str] = {}

    def __init__(self) -> None:
        # Another test that runs at the same time has another.
        self.installation = f"test-{secrets.token_hex(4)}"

    @abstractmethod
    def executor(self) -> Executor:
        """A new adapter, as a new process of the control plane would make."""

    @abstractmethod
    def clean(self) -> None:
        """Ends all that a test may have left."""

    @abstractmethod
    def listing(self, handle: str) -> str:
        """All that anybody may read on the cluster about a launch: its object, script and environment."""

    @abstractmethod
    def foreign(self) -> ForeignWork:
        """Work that somebody else started, which looks as much like ours as it can, and runs."""

    @abstractmethod
    def impossible(self, key: str) -> LaunchOrder:
        """An order that this cluster could never take."""

    @abstractmethod
    def broken(self) -> tuple[Executor, str]:
        """An executor with something missing, and a word of what its check must say."""

    @abstractmethod
    def away(self) -> AbstractContextManager[None]:
        """While it lasts, the cluster answers nothing. What runs there goes on."""

    @abstractmethod
    def losing_a_reply(self) -> AbstractContextManager[None]:
        """While it lasts, the cluster carries launches out, and the answers are lost."""

    @abstractmethod
    def dies_in_launch(self, order: LaunchOrder) -> None:
        """A process of its own launches, and is killed when the cluster has taken the order in."""

    @abstractmethod
    def full(self) -> AbstractContextManager[None]:
        """While it lasts, others hold what the cluster has, and a new order of two ranks must wait."""

    def crowded(self, key: str) -> LaunchOrder | None:
        """An elastic order of which all ranks but one have room on the empty cluster; None if its room has
        no end."""
        return None

    def requests(self) -> int | None:
        """How many requests or commands the executors have made; None if that cannot be counted."""
        return None

    def out_of_memory(self, key: str) -> LaunchOrder:
        """One rank that takes far more memory than it asked for."""
        return self.order(key, 1, HOG, need=Requirements(min_cores=1, min_ram_bytes=64 * MIB))

    def key(self) -> str:
        return f"p-{secrets.token_hex(6)}"

    def order(self, key: str, ranks: int, script: str, **changes: Any) -> LaunchOrder:
        """`ranks` workers that each run `script`."""
        made = LaunchOrder(
            key=key,
            installation=self.installation,
            run_id=f"r-{key}",
            run_name='Über /alles: a run\'s name, with "quotes" and $signs',
            project="default",
            ranks=ranks,
            min_ranks=ranks,
            need=Requirements(min_cores=1, min_ram_bytes=64 * MIB),
            command=("sh", "-c", script, marker(key)),
            environ={KEY_VARIABLE: key, "CONTRACT_ODD": 'it\'s "odd"; $HOME `x` \\ é'},
            tokens=tuple(f"corral_run_{secrets.token_hex(16)}" for _ in range(ranks)),
            grace_s=5.0,
        )
        return made._replace(**changes)

    def workers(self, key: str) -> list[LiveProcess]:
        """The processes of ranks that are really there."""
        return [found for found in self.processes(key) if _is_worker(found, key)]

    def processes(self, key: str) -> list[LiveProcess]:
        """All that is really there of a launch: its ranks, their children, and what watches over them."""
        return [found for found in _processes() if found.environ.get(KEY_VARIABLE) == key]

    def kill_rank(self, key: str, rank: int, number: signal.Signals = signal.SIGKILL) -> None:
        """The worker dies first, and then what it started, which not every cluster finds by itself."""

        def workers() -> list[LiveProcess]:
            return [worker for worker in self.workers(key) if rank_of(worker) == rank]

        # A cluster may call it running before its process is what it will be.
        eventually(lambda: len(workers()) == 1, lambda: f"one process of rank {rank}, not {workers()}")
        [found] = workers()
        children = [child.pid for child in self.processes(key) if _parent(child.pid) == found.pid]
        os.kill(found.pid, number)
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def need(self, method: str) -> None:
        """Skips the test where the cluster cannot do this."""
        if reason := self.lacks.get(method):
            pytest.skip(reason)


def marker(key: str) -> str:
    return f"contract-of-{key}"


def rank_of(worker: LiveProcess) -> int:
    names = ("CORRAL_PLACED_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")
    return next(int(worker.environ[name]) for name in names if worker.environ.get(name))


def only_these_run(cluster: ExecutorHarness, key: str, ranks: Sequence[int]) -> None:
    """A shell that is about to start a program is there twice for a moment; a second cohort stays."""

    def look() -> bool:
        return sorted(rank_of(worker) for worker in cluster.workers(key)) == list(ranks)

    eventually(look, lambda: f"a worker each for {ranks}, and no other: {cluster.workers(key)}")


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _is_worker(process: LiveProcess, key: str) -> bool:
    return len(process.argv) == 4 and process.argv[1] == "-c" and process.argv[3] == marker(key)


def _processes() -> list[LiveProcess]:
    found = (_process(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [process for process in found if process is not None]


def _process(pid: int) -> LiveProcess | None:
    """None if it is gone, or a zombie: that runs no more."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
        environ = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return None
    return LiveProcess(pid, tuple(argv), dict(pair.partition("=")[::2] for pair in environ)) if argv else None


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return None


def sighted(executor: Executor, handle: str, holds: Callable[[Sighting], bool], what: str) -> Sighting:
    """The sighting, when it is as it must be."""
    last: list[Sighting | None] = [None]

    def look() -> Sighting | None:
        found = executor.observe([handle]).get(handle)
        last[0] = found
        return found if found is not None and holds(found) else None

    return eventually(look, lambda: f"{what}; the last sighting is {last[0]}")


def all_are(state: SightState) -> Callable[[Sighting], bool]:
    return lambda found: all(rank.state is state for rank in found.ranks)


def has_ended(found: Sighting) -> bool:
    return found.ended


def running(cluster: ExecutorHarness, executor: Executor, order: LaunchOrder) -> str:
    """The handle of a launch whose ranks all run, in truth and by the cluster's word."""
    handle = executor.launch(order)
    eventually(lambda: len(cluster.workers(order.key)) == order.ranks, "all ranks to be there")
    sighted(executor, handle, all_are(SightState.RUNNING), "all ranks to be seen running")
    return handle


def nothing_is_left(cluster: ExecutorHarness, key: str) -> None:
    eventually(lambda: not cluster.processes(key), lambda: f"nothing to be left: {cluster.processes(key)}")


def rank_seen(found: Sighting, rank: int) -> RankSighting:
    return next(seen for seen in found.ranks if seen.rank == rank)


def said(executor: Executor, handle: str, rank: int, words: str) -> str:
    """What a rank wrote, once these words are in it."""

    def look() -> str | None:
        text = executor.logs(handle, rank, most_bytes=100_000)
        return text if words in text else None

    return eventually(look, lambda: f"{words!r} in {executor.logs(handle, rank, most_bytes=100_000)!r}")


class ExecutorContract:
    """The suite."""

    def test_each_rank_runs_with_its_own_number_and_token(self, cluster: ExecutorHarness) -> None:
        """DL-C08, DL-C11, DL-C15, DL-D24, DL-D26: the real command, number, token and environment."""
        executor = cluster.executor()
        order = cluster.order(cluster.key(), RANKS, SAYS_WHO + 'echo "$CONTRACT_ODD"; exec sleep 600')
        handle = executor.launch(order)

        for rank, token in enumerate(order.tokens):
            text = said(executor, handle, rank, order.environ["CONTRACT_ODD"])
            assert f"up {rank} {digest(token)}" in text
        found = sighted(executor, handle, all_are(SightState.RUNNING), "all ranks to run")
        assert [seen.rank for seen in found.ranks] == list(range(RANKS))
        assert not found.ended

    def test_no_token_can_be_read_by_others(self, cluster: ExecutorHarness) -> None:
        """DL-D32: a token is in no argument, no environment and no listing of the cluster."""
        executor = cluster.executor()
        order = cluster.order(cluster.key(), 2, STAYS)
        handle = running(cluster, executor, order)

        shown = cluster.listing(handle)
        argv = " ".join(word for process in _processes() for word in process.argv)
        environ = " ".join(value for process in _processes() for value in process.environ.values())

        assert shown
        for token in order.tokens:
            assert token not in shown
            assert token not in argv
            assert token not in environ

    def test_work_that_ends_well_is_seen_to_have_succeeded(self, cluster: ExecutorHarness) -> None:
        """DL-C08, DL-D18."""
        executor = cluster.executor()
        handle = executor.launch(cluster.order(cluster.key(), 2, SAYS_WHO))

        found = sighted(executor, handle, has_ended, "the end")

        assert [seen.state for seen in found.ranks] == [SightState.SUCCEEDED] * 2
        assert [seen.exit_code for seen in found.ranks] == [0, 0]
        assert "up 1" in executor.logs(handle, 1, most_bytes=1000)

    def test_the_same_key_twice_is_one_launch(self, cluster: ExecutorHarness) -> None:
        """DL-D27, DL-D28."""
        order = cluster.order(cluster.key(), 2, STAYS)
        executor = cluster.executor()
        handle = executor.launch(order)

        assert executor.launch(order) == handle
        assert cluster.executor().launch(order) == handle

        eventually(lambda: len(cluster.workers(order.key)) == 2, "all ranks")
        assert cluster.executor().launch(order) == handle
        assert [(item.key, item.handle) for item in executor.launched(cluster.installation)] == [
            (order.key, handle)
        ]
        only_these_run(cluster, order.key, [0, 1])

    def test_the_same_key_after_the_end_starts_nothing(self, cluster: ExecutorHarness) -> None:
        """DL-D27: a late repetition of a launch that has ended already."""
        executor = cluster.executor()
        order = cluster.order(cluster.key(), 1, SAYS_WHO)
        handle = executor.launch(order)
        sighted(executor, handle, has_ended, "the end")

        assert cluster.executor().launch(order) == handle
        assert sighted(executor, handle, has_ended, "the end").ended
        assert executor.logs(handle, 0, most_bytes=10_000).count("up 0") == 1

    def test_two_who_launch_at_the_same_time_make_one_cohort(self, cluster: ExecutorHarness) -> None:
        """DL-D27: two processes of the control plane, one key."""
        order = cluster.order(cluster.key(), 2, STAYS)
        together = threading.Barrier(2)
        handles: list[str] = []

        def launch() -> None:
            executor = cluster.executor()
            together.wait()
            handles.append(executor.launch(order))

        threads = [threading.Thread(target=launch) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(handles) == 2
        assert len(set(handles)) == 1
        assert len(cluster.executor().launched(cluster.installation)) == 1
        only_these_run(cluster, order.key, [0, 1])

    def test_a_lost_reply_and_a_repetition_make_one_cohort(self, cluster: ExecutorHarness) -> None:
        """DL-D27."""
        cluster.need("losing_a_reply")
        order = cluster.order(cluster.key(), 2, STAYS)
        with cluster.losing_a_reply(), pytest.raises(ExecutorUnreachable):
            cluster.executor().launch(order)

        handle = cluster.executor().launch(order)

        eventually(lambda: len(cluster.workers(order.key)) == 2, "both ranks")
        listed = cluster.executor().launched(cluster.installation)
        assert [(item.key, item.handle) for item in listed] == [(order.key, handle)]
        only_these_run(cluster, order.key, [0, 1])

    def test_a_launcher_that_is_killed_leaves_one_cohort_that_is_found_again(
        self, cluster: ExecutorHarness
    ) -> None:
        """DL-C09, DL-D27, DL-D28: the control plane dies between the cluster's yes and its own note of it."""
        cluster.need("dies_in_launch")
        order = cluster.order(cluster.key(), 2, STAYS)
        cluster.dies_in_launch(order)

        executor = cluster.executor()
        listed = executor.launched(cluster.installation)
        handle = executor.launch(order)

        assert [(item.key, item.handle) for item in listed] == [(order.key, handle)]
        eventually(lambda: len(cluster.workers(order.key)) == 2, "both ranks")
        assert len(executor.launched(cluster.installation)) == 1

    def test_another_process_needs_nothing_but_the_handle(self, cluster: ExecutorHarness) -> None:
        """DL-C09, DL-D28: observe, logs and cancel after the launcher is gone."""
        launcher = cluster.executor()
        order = cluster.order(cluster.key(), 2, STAYS)
        handle = running(cluster, launcher, order)
        launcher.close()

        other = cluster.executor()
        assert all_are(SightState.RUNNING)(other.observe([handle])[handle])
        eventually(lambda: "up 1" in other.logs(handle, 1, most_bytes=1000), "its first words")
        other.cancel(handle)

        nothing_is_left(cluster, order.key)

    def test_a_killed_rank_is_told_from_the_others(self, cluster: ExecutorHarness) -> None:
        """DL-D14, DL-D18: the blame names the rank, with its signal; the others read what they are."""
        executor = cluster.executor()
        order = cluster.order(cluster.key(), 3, STAYS)
        handle = running(cluster, executor, order)

        cluster.kill_rank(order.key, 1)

        found = sighted(
            executor, handle, lambda seen: rank_seen(seen, 1).state is SightState.FAILED, "rank 1 to fail"
        )
        blamed = rank_seen(found, 1)
        assert (blamed.signal, blamed.exit_code) in ((9, None), (9, 137), (None, 137)), blamed
        assert blamed.cause in (SightCause.EXITED, SightCause.UNKNOWN)
        for rank in (0, 2):
            seen = rank_seen(found, rank)
            assert seen.state is SightState.RUNNING or seen.cause is SightCause.CANCELLED, seen

    def test_an_exit_code_is_the_real_one(self, cluster: ExecutorHarness) -> None:
        """DL-D14, DL-D18: one rank exits with 3, another well."""
        executor = cluster.executor()
        script = SAYS_WHO + 'if [ "$rank" = 1 ]; then echo "no such flag" >&2; exit 3; fi'
        # Elastic: a cluster may end the others of a gang that must be whole.
        handle = executor.launch(cluster.order(cluster.key(), 2, script, min_ranks=1))

        found = sighted(executor, handle, has_ended, "the end")

        blamed = rank_seen(found, 1)
        assert (blamed.state, blamed.cause, blamed.exit_code) == (SightState.FAILED, SightCause.EXITED, 3)
        assert rank_seen(found, 0).state is SightState.SUCCEEDED

    def test_the_last_words_of_a_worker_that_never_came_up(self, cluster: ExecutorHarness) -> None:
        """DL-C08, DL-D30: the end of what was written, of the rank that was asked for."""
        executor = cluster.executor()
        script = WHO + 'i=0; while [ $i -lt 200 ]; do echo "line $i of $rank"; i=$((i+1)); done; exit 7'
        handle = executor.launch(cluster.order(cluster.key(), 2, script))
        sighted(executor, handle, has_ended, "the end")

        text = said(executor, handle, 1, "line 199 of 1")
        short = executor.logs(handle, 1, most_bytes=100)

        assert "of 0" not in text
        assert "line 199 of 1" in short
        assert len(short.encode()) <= 100

    def test_out_of_memory_is_called_so(self, cluster: ExecutorHarness) -> None:
        """DL-D18."""
        cluster.need("out_of_memory")
        executor = cluster.executor()
        handle = executor.launch(cluster.out_of_memory(cluster.key()))

        found = sighted(executor, handle, has_ended, "the end")

        seen = rank_seen(found, 0)
        assert (seen.state, seen.cause) == (SightState.FAILED, SightCause.OUT_OF_MEMORY), seen

    def test_everything_ends_at_the_deadline(self, cluster: ExecutorHarness) -> None:
        """DL-C08, DL-C15."""
        executor = cluster.executor()
        order = cluster.order(cluster.key(), 2, STAYS, limit_s=2.0, grace_s=1.0)
        handle = executor.launch(order)

        found = sighted(executor, handle, has_ended, "the end")

        assert {seen.cause for seen in found.ranks} == {SightCause.DEADLINE}, found
        nothing_is_left(cluster, order.key)

    def test_cancel_ends_all_ranks_and_what_they_started(self, cluster: ExecutorHarness) -> None:
        """DL-C08, DL-D22: each hears SIGTERM first; nothing is left, and it is seen to have ended."""
        executor = cluster.executor()
        order = cluster.order(cluster.key(), 2, STAYS)
        handle = running(cluster, executor, order)

        executor.cancel(handle)

        nothing_is_left(cluster, order.key)
        eventually(
            lambda: (found := executor.observe([handle]).get(handle)) is None or found.ended,
            "its end to be seen",
        )
        assert [item for item in executor.launched(cluster.installation) if item.handle == handle] == []

    def test_a_cancelled_worker_has_time_for_a_checkpoint(self, cluster: ExecutorHarness) -> None:
        """DL-D32: SIGTERM reaches each rank, and none is killed before its grace is over."""
        cluster.need("grace")
        executor = cluster.executor()
        saves = "trap 'sleep 1.5; echo saved; exit 0' TERM; echo ready; " + UNTIL_TERM
        handle = executor.launch(cluster.order(cluster.key(), 2, SAYS_WHO + saves, grace_s=20.0))
        for rank in range(2):
            said(executor, handle, rank, "ready")

        executor.cancel(handle)

        for rank in range(2):
            said(executor, handle, rank, "saved")

    def test_cancel_during_the_start_leaves_nothing(self, cluster: ExecutorHarness) -> None:
        """DL-D22, DL-D27: and a repetition of the launch does not bring it back."""
        executor = cluster.executor()
        order = cluster.order(cluster.key(), RANKS, STAYS)
        handle = executor.launch(order)

        executor.cancel(handle)

        eventually(
            lambda: (found := executor.observe([handle]).get(handle)) is None or found.ended,
            "its end to be seen",
        )
        nothing_is_left(cluster, order.key)
        assert executor.launched(cluster.installation) == []

    def test_cancel_of_what_has_ended_or_never_was_is_no_error(self, cluster: ExecutorHarness) -> None:
        """DL-C08, DL-C15."""
        executor = cluster.executor()
        handle = executor.launch(cluster.order(cluster.key(), 1, SAYS_WHO))
        sighted(executor, handle, has_ended, "the end")

        executor.cancel(handle)
        executor.cancel(handle)
        executor.cancel(self.unknown_handle(handle))

        assert self.unknown_handle(handle) not in executor.observe([handle, self.unknown_handle(handle)])
        executor.logs(self.unknown_handle(handle), 0, most_bytes=100)

    def unknown_handle(self, handle: str) -> str:
        """One of the same form that nobody was given."""
        return "".join("7" if char.isdigit() else char for char in handle)

    def test_many_are_observed_with_one_request(self, cluster: ExecutorHarness) -> None:
        """DL-D29: as many requests for three launches as for one."""
        executor = cluster.executor()
        handles = [executor.launch(cluster.order(cluster.key(), 1, STAYS)) for _ in range(3)]
        for handle in handles:
            sighted(executor, handle, all_are(SightState.RUNNING), "all ranks to run")

        counts = []
        for asked in (handles[:1], handles):
            before = cluster.requests()
            found = executor.observe(asked)
            after = cluster.requests()
            assert set(found) == set(asked)
            counts.append(None if before is None or after is None else after - before)
        assert executor.observe([]) == {}

        assert counts[0] == counts[1]

    def test_what_is_launched_is_ours_and_has_not_ended(self, cluster: ExecutorHarness) -> None:
        """DL-D28: what a sweep of orphans sees."""
        executor = cluster.executor()
        stays = cluster.order(cluster.key(), 1, STAYS)
        other = cluster.order(cluster.key(), 1, STAYS, installation=f"{cluster.installation}x")
        ends = cluster.order(cluster.key(), 1, SAYS_WHO)
        handles = [executor.launch(order) for order in (stays, other, ends)]
        sighted(executor, handles[2], has_ended, "the end")

        listed = cluster.executor().launched(cluster.installation)
        executor.cancel(handles[1])

        assert [(item.key, item.handle) for item in listed] == [(stays.key, handles[0])]
        nothing_is_left(cluster, other.key)

    def test_work_of_others_is_never_touched(self, cluster: ExecutorHarness) -> None:
        """DL-C16: it is not listed, and it goes on when ours is cancelled."""
        cluster.need("foreign")
        work = cluster.foreign()
        try:
            executor = cluster.executor()
            order = cluster.order(cluster.key(), 1, STAYS)
            handle = running(cluster, executor, order)

            listed = executor.launched(cluster.installation)
            executor.cancel(handle)
            nothing_is_left(cluster, order.key)

            assert [item.handle for item in listed] == [handle]
            assert work.runs()
        finally:
            work.end()

    def test_what_can_never_fit_is_refused_with_the_reasons(self, cluster: ExecutorHarness) -> None:
        """DL-D25, DL-D32: beforehand by the executor, and by the cluster in its own words."""
        executor = cluster.executor()
        order = cluster.impossible(cluster.key())

        reasons = executor.refusals(order.need, order.ranks)
        with pytest.raises(LaunchRefused) as refused:
            executor.launch(order)

        assert reasons
        assert all(reasons)
        assert len(str(refused.value)) > len(order.key)
        assert executor.launched(cluster.installation) == []
        assert executor.refusals(cluster.order(order.key, 2, STAYS).need, 2) == []

    def test_what_must_wait_reads_waiting_with_the_schedulers_words(self, cluster: ExecutorHarness) -> None:
        """DL-D13, DL-D15: no rank of it runs, and none is said to."""
        cluster.need("full")
        executor = cluster.executor()
        order = cluster.order(cluster.key(), 2, STAYS)
        with cluster.full():
            handle = executor.launch(order)
            found = sighted(
                executor, handle, lambda seen: any(rank.detail for rank in seen.ranks), "a reason"
            )
            assert {seen.state for seen in found.ranks} == {SightState.WAITING}
            assert cluster.workers(order.key) == []
            assert not found.ended

        eventually(lambda: len(cluster.workers(order.key)) == 2, "all ranks, when there is room")

    def test_a_cluster_that_is_away_is_unreachable_and_works_again(self, cluster: ExecutorHarness) -> None:
        """DL-D29: nothing is said to have ended because nobody answered."""
        cluster.need("away")
        executor = cluster.executor()
        order = cluster.order(cluster.key(), 1, STAYS)
        handle = running(cluster, executor, order)
        late = cluster.order(cluster.key(), 1, STAYS)

        with cluster.away():
            calls: Sequence[Callable[[], object]] = (
                lambda: executor.observe([handle]),
                lambda: executor.launch(late),
                lambda: executor.launched(cluster.installation),
                lambda: executor.cancel(handle),
            )
            for call in calls:
                with pytest.raises(ExecutorUnreachable):
                    call()
            assert not all(check.ok for check in executor.preflight())

        sighted(executor, handle, all_are(SightState.RUNNING), "the rank that went on")
        assert executor.launch(late)
        eventually(lambda: len(cluster.workers(late.key)) == 1, "the rank of the second launch")

    def test_preflight_finds_all_that_is_needed(self, cluster: ExecutorHarness) -> None:
        """DL-C10, DL-D32."""
        checks = cluster.executor().preflight()

        assert checks
        assert [check for check in checks if not check.ok] == []
        assert all(check.name and check.detail for check in checks)

    def test_preflight_names_what_is_missing_and_what_to_do(self, cluster: ExecutorHarness) -> None:
        """DL-C10, DL-D21, DL-D32."""
        executor, word = cluster.broken()

        wrong = [check for check in executor.preflight() if not check.ok]

        assert wrong
        assert any(word in f"{check.name} {check.detail}" for check in wrong)
        assert all(check.fix for check in wrong)

    def test_the_kinds_of_machines_are_told(self, cluster: ExecutorHarness) -> None:
        """DL-C10, DL-D25: what is not known is None, never zero by default."""
        found = cluster.executor().capacities()

        assert found
        assert sum(kind.machines or 0 for kind in found) >= 1
        assert any(kind.cores for kind in found)

    def test_an_elastic_launch_starts_with_what_there_is_room_for_and_grows(
        self, cluster: ExecutorHarness
    ) -> None:
        """DL-D13, DL-D31: not all or nothing; the last rank waits with a reason, until another is gone."""
        executor = cluster.executor()
        order = cluster.crowded(cluster.key())
        if order is None:
            pytest.skip("the room of this cluster has no end")
        handle = executor.launch(order)
        found = sighted(
            executor,
            handle,
            lambda seen: [one.state for one in seen.ranks].count(SightState.RUNNING) == order.ranks - 1,
            "all but one to run",
        )
        (late,) = (one for one in found.ranks if one.state is not SightState.RUNNING)
        assert late.state is SightState.WAITING
        assert not found.ended

        cluster.kill_rank(order.key, (late.rank + 1) % order.ranks)

        sighted(
            executor,
            handle,
            lambda seen: rank_seen(seen, late.rank).state is SightState.RUNNING,
            "the one that had to wait",
        )
        executor.cancel(handle)
        nothing_is_left(cluster, order.key)

    def test_an_elastic_launch_loses_a_rank_and_goes_on(self, cluster: ExecutorHarness) -> None:
        """DL-D14, DL-D31: the others run on, whatever becomes of one."""
        executor = cluster.executor()
        order = cluster.order(cluster.key(), 3, STAYS, min_ranks=2)
        handle = running(cluster, executor, order)

        cluster.kill_rank(order.key, 1)

        found = sighted(
            executor, handle, lambda seen: rank_seen(seen, 1).state is SightState.FAILED, "rank 1 to fail"
        )
        assert not found.ended
        assert {rank_seen(found, rank).state for rank in (0, 2)} == {SightState.RUNNING}
        only_these_run(cluster, order.key, [0, 2])
        executor.cancel(handle)
        nothing_is_left(cluster, order.key)
