"""The real Slurm of the tests, as the contract of executors wants it: with faults that can be switched on."""

from __future__ import annotations

import pickle
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from corral.adapters.executors.slurm import SlurmExecutor, SlurmOptions
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import LaunchOrder
from support.executor_contract import STAYS, ExecutorHarness, ForeignWork
from support.slurm_cluster import NODES, SlurmCluster
from support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
# In place of sbatch: it submits, and then the answer is lost, or whoever asked is killed.
_SBATCH = """\
#!/bin/sh
{real} "$@" >{folder}/answer 2>&1
code=$?
if [ -e {folder}/die ]; then rm {folder}/die; kill -9 0; fi
if [ -e {folder}/lose ]; then
  echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
  exit 1
fi
[ $code = 0 ] || exec >&2
cat {folder}/answer
exit $code
"""
# Stands before each command, where a user would have `ssh login-node`.
_PREFIX = """\
#!/bin/sh
echo >>{folder}/requests
{exports}
exec "$@"
"""
_LAUNCH = """\
import pickle, sys
from corral.adapters.executors.slurm import SlurmExecutor
options, order = pickle.loads(bytes.fromhex(sys.stdin.read()))
SlurmExecutor(options).launch(order)
"""


def processes_in(folder: Path) -> list[int]:
    """What has a folder as its own."""
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdigit() and (path / "cwd").readlink() == folder:
                found.append(int(path.name))
    return found


class SlurmHarness(ExecutorHarness):
    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        super().__init__()
        self.slurm = slurm
        self._folder = folder
        self.options = SlurmOptions(
            folder=str(folder / "shared"), command_prefix=(self._program("prefix", _PREFIX),)
        )
        self._program("bin/sbatch", _SBATCH)

    def executor(self) -> SlurmExecutor:
        return SlurmExecutor(self.options)

    def clean(self) -> None:
        self.slurm.cancel_all()

    def requests(self) -> int | None:
        return len((self._folder / "requests").read_text().splitlines())

    def job_id(self, handle: str) -> str:
        return handle.partition(":")[0]

    def listing(self, handle: str) -> str:
        job = self.job_id(handle)
        script = self.slurm.run("scontrol", "write", "batch_script", job, "-")
        return (
            self.slurm.run("scontrol", "show", "job", job) + script + self.slurm.run("squeue", "-o", "%all")
        )

    def foreign(self) -> ForeignWork:
        name = f"corral.{self.installation}-2.p-0"
        job = self.slurm.sbatch("sleep 600", f"--job-name={name}", f"--comment={self.installation}")
        self.slurm.wait_for(job, "RUNNING")
        return ForeignWork(
            runs=lambda: self.slurm.state(job) == "RUNNING", end=lambda: print(self.slurm.run("scancel", job))
        )

    def impossible(self, key: str) -> LaunchOrder:
        return self.order(key, 1, STAYS, need=Requirements(gpus=3))

    def crowded(self, key: str) -> LaunchOrder:
        return self.order(key, len(NODES) + 1, STAYS, min_ranks=2, need=Requirements(gpus=2))

    def broken(self) -> tuple[SlurmExecutor, str]:
        return SlurmExecutor(replace(self.options, partition="nowhere")), "nowhere"

    @contextmanager
    def away(self) -> Iterator[None]:
        self.slurm.stop_controller()
        try:
            yield
        finally:
            self.slurm.start_controller()

    @contextmanager
    def losing_a_reply(self) -> Iterator[None]:
        flag = self._folder / "lose"
        flag.touch()
        yield
        flag.unlink()

    def dies_in_launch(self, order: LaunchOrder) -> None:
        (self._folder / "die").touch()
        done = subprocess.run(
            [sys.executable, "-c", _LAUNCH],
            input=pickle.dumps((self.options, order)).hex(),
            text=True,
            cwd=ROOT,
            start_new_session=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == -9, done.stderr

    @contextmanager
    def full(self) -> Iterator[None]:
        job = self.slurm.sbatch("sleep 600", f"-N{len(NODES)}", "--exclusive")
        self.slurm.wait_for(job, "RUNNING")
        yield
        self.slurm.run("scancel", job)
        eventually(lambda: self.slurm.state(job) == "CANCELLED", "the other's job to end")

    @contextmanager
    def holding(self, node: str) -> Iterator[None]:
        """While it lasts, somebody else has all of a node."""
        job = self.slurm.sbatch("sleep 600", "-w", node, "--exclusive")
        self.slurm.wait_for(job, "RUNNING")
        yield
        self.slurm.run("scancel", job)

    def _program(self, name: str, text: str) -> str:
        """A script that speaks to the tests' Slurm, with our sbatch before the real one."""
        environment = self.slurm.environment()
        own = {"SLURM_CONF": environment["SLURM_CONF"], "PATH": f"{self._folder}/bin:{environment['PATH']}"}
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            text.format(
                folder=shlex.quote(str(self._folder)),
                real=shutil.which("sbatch", path=environment["PATH"]),
                exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in own.items()),
            )
        )
        path.chmod(0o755)
        return str(path)
