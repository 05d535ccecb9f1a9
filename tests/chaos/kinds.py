"""The runs that are submitted while things die, and what may become of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from support.local_cluster import FINAL_STATES, printed, python, result

from corral.client.corral import Corral
from corral.wire.runs import RunDetail
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import Replicas, RetryBudgets

LINES = 2000
STEPS = 5
SIGABRT, SIGKILL = 6, 9

SIGN = """
(O / 'who').write_text(' '.join(env[f'CORRAL_{what}'] for what in ('RUN_ID', 'ATTEMPT', 'LEASE_ID')))
"""
QUICK = "print('quick')" + SIGN
# For about a second, so that many batches are on their way when the server dies.
CHATTY = f"for n in range({LINES}): print(n, flush=True); n % 50 or time.sleep(0.025)" + SIGN
SLEEPER = "print('asleep', flush=True); time.sleep(1.5); print('awake')" + SIGN
FORKER = (
    """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(600)
    os._exit(0)
os.wait()
print('forked')
"""
    + SIGN
)
RESUMER = (
    f"""
first = 0
if 'CORRAL_RESUME_DIR' in env:
    first = int(pathlib.Path(env['CORRAL_RESUME_DIR'], 'step').read_text())
for step in range(first + 1, {STEPS} + 1):
    time.sleep(0.3)
    folder = pathlib.Path(env['CORRAL_CHECKPOINT_DIR'], str(step))
    folder.mkdir()
    (folder / 'step').write_text(str(step))
    say(checkpoint=str(folder), step=step)
    print('step', step, flush=True)
(O / 'steps').write_text(f'{{first}} {STEPS}')
"""
    + SIGN
)
# All ranks of an attempt, or none: each waits a while, so that some die while others live.
GANG = "print('rank', env['RANK'], 'of', env['WORLD_SIZE'], flush=True); time.sleep(0.5)" + SIGN
FAILER = "print('failing'); sys.exit(3)"
ABORTER = "print('aborting', flush=True); os.kill(os.getpid(), signal.SIGABRT); time.sleep(60)"


@dataclass(frozen=True)
class Kind:
    code: str
    # What stdout of the accepted attempt must be, given the run's result.
    said: Callable[[dict[str, bytes]], list[str]]
    exit_code: int = 0
    signal: int | None = None
    ranks: int = 1

    @property
    def succeeds(self) -> bool:
        return self.exit_code == 0 and self.signal is None

    def spec(self, name: str) -> RunSpec:
        """Budgets so large that no kill uses them up; a run that fails by itself does so at once."""
        retries = RetryBudgets(infrastructure=1000, code=1000 if self.succeeds else 0)
        ranks = Replicas(min=self.ranks, max=self.ranks)
        return python(self.code, name=name, retries=retries, replicas=ranks)


def _steps(files: dict[str, bytes]) -> list[str]:
    first = int(files["steps"].split()[0])
    return [f"step {step}" for step in range(first + 1, STEPS + 1)]


KINDS = {
    "quick": Kind(QUICK, lambda _: ["quick"]),
    "chatty": Kind(CHATTY, lambda _: [str(n) for n in range(LINES)]),
    "sleeper": Kind(SLEEPER, lambda _: ["asleep", "awake"]),
    "forker": Kind(FORKER, lambda _: ["forked"]),
    "resumer": Kind(RESUMER, _steps),
    "gang": Kind(GANG, lambda _: ["rank 0 of 3"], ranks=3),
    "failer": Kind(FAILER, lambda _: ["failing"], exit_code=3),
    "aborter": Kind(ABORTER, lambda _: ["aborting"], signal=SIGABRT),
}


def check_run(corral: Corral, run_id: str, *, was_killed: bool) -> list[str]:
    """What is wrong with a run that has ended, and with how it came to that."""
    run = corral.runs.get(run_id)
    found = wrong_with(corral, run, was_killed=was_killed)
    events = corral.runs.events(run_id, limit=1000).items
    ends = [event.type for event in events if event.data.get("state") in FINAL_STATES]
    epochs = [event.data["epoch"] for event in events if event.type == "claim"]
    if len(ends) != 1:
        found.append(f"it ended {len(ends)} times: {ends}")
    ranks = KINDS[run.name].ranks
    if epochs != [ranks * n for n in range(1, len(epochs) + 1)]:
        found.append(f"its epochs were {epochs}")
    return [f"{run.name} {run_id}: {what}" for what in found]


def wrong_with(corral: Corral, run: RunDetail, *, was_killed: bool) -> list[str]:
    """Everything about a run's end that its kind and the kills do not allow."""
    kind = KINDS[run.name]
    if kind.succeeds:
        return _wrong_success(corral, run, kind)
    told = (run.state, run.reason, run.exit_code, run.signal)
    own = ("failed", "code_error", kind.exit_code if kind.signal is None else None, kind.signal)
    if told == own:
        said = printed(corral, run.id, run.attempt)
        return [] if said == kind.said({}) else [f"it said {said}"]
    if was_killed and told[:2] == ("failed", "unknown") and run.signal == SIGKILL:
        return []
    return [f"it is {told}: {run.detail}"]


def _wrong_success(corral: Corral, run: RunDetail, kind: Kind) -> list[str]:
    if run.state != "succeeded" or run.artifact_id is None:
        return [f"it is {run.state} ({run.reason}: {run.detail}) with artifact {run.artifact_id}"]
    found = []
    rank, *others = run.attempts[-1].ranks
    if any(other.state != "done" for other in others) or len(others) + 1 != kind.ranks:
        found.append(f"its ranks are {[other.state for other in others]}")
    made = corral.artifacts.get(run.artifact_id)
    if (made.run_id, made.attempt, made.epoch) != (run.id, run.attempt, rank.epoch):
        found.append(f"its artifact was made by {made.run_id} {made.attempt} {made.epoch}")
    files = result(corral, run)
    if files.pop("who") != f"{run.id} {run.attempt} {rank.lease_id}".encode():
        found.append(f"its artifact holds {files}")
    said = printed(corral, run.id, run.attempt)
    if said != kind.said(files):
        found.append(f"attempt {run.attempt} said {len(said)} lines: {said[:3]} ... {said[-3:]}")
    return found
