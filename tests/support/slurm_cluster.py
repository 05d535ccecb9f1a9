"""A real Slurm of three nodes on this machine, with daemons, ports and folders of its own.

Each node has four CPUs, 4 GB and two GPUs (device files without a card behind them). Three partitions:
`open` takes jobs, `closed` refuses them, and jobs in `spare` are requeued when `open` needs their nodes.
There are no control groups: a job that takes too much memory is killed and reads FAILED 0:9, with the
reason in its output, where a cluster with control groups would say OUT_OF_MEMORY.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from support.waiting import eventually

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel", "sinfo", "srun")
# Daemons live where the PATH of an ordinary user does not lead.
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
NODES = ("n0", "n1", "n2")
GPUS_OF_A_NODE = 2
_STOP_S = 10.0
# The memory device: it can be opened by anybody and it holds nothing.
_NULL_DEVICE = os.makedev(1, 3)

_CONF = """\
ClusterName=corral
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
MessageTimeout=2
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,requeue_delay=1
SlurmdParameters=config_overrides
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=30
MinJobAge=300
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs=4 RealMemory=4000 Gres=gpu:{gpus}
PartitionName=DEFAULT Nodes={nodes} MaxTime=60 DefaultTime=10
PartitionName=open Default=YES State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=closed State=INACTIVE PriorityTier=10 PreemptMode=OFF
PartitionName=spare State=UP PriorityTier=1 PreemptMode=REQUEUE
"""


def missing() -> str:
    """Why there is no Slurm here, and how to get it; empty where there is one."""
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if absent:
        install = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
        return f"Slurm is not installed ({', '.join(absent)} not found); install it with: {install}"
    if os.geteuid() != 0:
        return "Slurm's daemons need root to run jobs; run the tests as root"
    return ""


@dataclass(frozen=True)
class EndedJob:
    """A line of jobcomp/filetxt: how a job ended."""

    job_id: str
    state: str
    exit_code: int
    signal: int
    fields: Mapping[str, str]


class SlurmCluster:
    """munged, slurmctld and three slurmd, and the commands that speak to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._conf = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._write_configuration()

    def environment(self) -> dict[str, str]:
        """What a program needs to speak to this Slurm and to no other."""
        mine = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return {**mine, "SLURM_CONF": str(self._conf), "PATH": _PATH}

    def start(self) -> None:
        try:
            self._start_munge()
            self.start_controller()
            for node in NODES:
                self.start_node(node)
            eventually(self._all_idle, lambda: f"three idle nodes; {self._said()}")
        except BaseException:
            self.stop()
            raise

    @property
    def is_whole(self) -> bool:
        """Whether all of it runs and answers."""
        ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
        return not ended and "UP" in self.run("scontrol", "ping", check=False)

    def stop(self) -> None:
        """End all jobs, then every daemon that was started, by its process id."""
        if "slurmctld" in self._daemons and self._alive("slurmctld"):
            self.cancel_all()
        for name in reversed(list(self._daemons)):
            self._end(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str, check: bool = True, cwd: Path | None = None) -> str:
        """What a command of Slurm prints; with `check`, a failure is an AssertionError with its words."""
        done = subprocess.run(
            command, env=self.environment(), cwd=cwd, capture_output=True, text=True, timeout=60, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout if check else done.stdout + done.stderr

    def sbatch(self, script: str, *options: str) -> str:
        """The id of a job that runs `script`."""
        output = str(self.folder / "job-%j.out")
        return self.run("sbatch", "--parsable", "-o", output, *options, "--wrap", script).strip()

    def output(self, job_id: str) -> str:
        path = self.folder / f"job-{job_id}.out"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def show(self, job_id: str) -> dict[str, str]:
        """`scontrol show job`, as long as the controller remembers the job."""
        words = self.run("scontrol", "--oneliner", "show", "job", job_id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, job_id: str) -> str:
        return self.show(job_id)["JobState"]

    def wait_for(self, job_id: str, *states: str) -> dict[str, str]:
        """What is shown of a job when it is in one of `states`."""

        def look() -> dict[str, str] | None:
            shown = self.show(job_id)
            return shown if shown["JobState"] in states else None

        return eventually(
            look, lambda: f"job {job_id} to be {' or '.join(states)}; it is {self.show(job_id)}"
        )

    def ended(self, job_id: str) -> EndedJob:
        """What jobcomp/filetxt keeps of the end of a job, after the controller forgot it too."""
        return eventually(lambda: self._ended(job_id), f"a line about job {job_id} in jobcomp.txt")

    def cancel_all(self) -> None:
        for job_id in self.run("squeue", "--noheader", "-o", "%A").split():
            self.run("scancel", job_id, check=False)
        eventually(lambda: not self.run("squeue", "--noheader").strip(), "an empty queue")

    def lose_node(self, node: str) -> None:
        """The node's daemon dies, and its jobs with it, as when a machine loses power."""
        self._end(f"slurmd-{node}", with_signal=signal.SIGKILL)
        for pid in self._processes_of(node):
            _kill(pid)
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def restore_node(self, node: str) -> None:
        self.start_node(node)
        self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        eventually(self._all_idle, "three idle nodes")

    def start_controller(self) -> None:
        self._spawn("slurmctld", "slurmctld", "-D", "-i")
        eventually(lambda: "UP" in self.run("scontrol", "ping", check=False), self._said)

    def stop_controller(self) -> None:
        """Jobs go on without it, and commands fail until it is started again."""
        self._end("slurmctld")

    def forget_jobs(self) -> None:
        """As when a job is older than MinJobAge; numbers begin anew."""
        self.stop_controller()
        for path in (self.folder / "state").glob("job_state*"):
            path.unlink()
        self.start_controller()
        eventually(self._all_idle, "three idle nodes")

    def start_node(self, node: str) -> None:
        (self.folder / f"spool.{node}").mkdir(exist_ok=True)
        self._spawn(f"slurmd-{node}", "slurmd", "-D", "-N", node)

    def _write_configuration(self) -> None:
        (self.folder / "state").mkdir()
        for number in range(GPUS_OF_A_NODE):
            os.mknod(self.folder / f"nvidia{number}", stat.S_IFCHR | 0o666, _NULL_DEVICE)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        nodes = f"{NODES[0][0]}[0-{len(NODES) - 1}]"
        controller_port, *ports = _free_ports(1 + len(NODES))
        self._conf.write_text(
            _CONF.format(
                host=socket.gethostname(),
                folder=self.folder,
                controller_port=controller_port,
                nodes=nodes,
                ports=f"[{','.join(map(str, ports))}]",
                gpus=GPUS_OF_A_NODE,
            ),
            encoding="utf-8",
        )
        devices = f"{self.folder}/nvidia[0-{GPUS_OF_A_NODE - 1}]"
        (self.folder / "gres.conf").write_text(
            f"NodeName={nodes} Name=gpu File={devices}\n", encoding="utf-8"
        )

    def _start_munge(self) -> None:
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
        files |= {"log-file": "munged.log", "seed-file": "munged.seed"}
        places = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self._spawn("munged", "munged", "--force", "--foreground", *places)
        eventually((self.folder / "munge.socket").exists, lambda: f"munged's socket; {self._said()}")

    def _spawn(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                command,
                env=self.environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _end(self, name: str, *, with_signal: signal.Signals = signal.SIGTERM) -> None:
        daemon = self._daemons.pop(name)
        daemon.send_signal(with_signal)
        try:
            daemon.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _alive(self, name: str) -> bool:
        return self._daemons[name].poll() is None

    def _all_idle(self) -> bool:
        for name, daemon in self._daemons.items():
            assert daemon.poll() is None, f"{name} ended with {daemon.returncode}: {self._said()}"
        shown = self.run("sinfo", "--noheader", "--Node", "-p", "open", "-o", "%N %T", check=False).split()
        return shown == [word for node in NODES for word in (node, "idle")]

    def _processes_of(self, node: str) -> list[int]:
        """What jobs run on a node, each after the slurmstepd that would report its end."""
        ours, on_node = f"SLURM_CONF={self._conf}", f"SLURMD_NODENAME={node}"
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        jobs = [pid for pid in pids if {ours, on_node} <= _variables(pid)]
        steps = {parent for pid in jobs if ours in _variables(parent := _parent(pid))}
        return [*(steps - set(jobs)), *jobs]

    def _said(self) -> str:
        """The last words of every daemon."""
        logs = sorted(self.folder.glob("*.out"))
        return " | ".join(f"{log.name}: {log.read_text(errors='replace')[-500:]}" for log in logs)

    def _ended(self, job_id: str) -> EndedJob | None:
        path = self.folder / "jobcomp.txt"
        if not path.exists():
            return None
        for line in reversed(path.read_text(encoding="utf-8").splitlines()):
            fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if fields.get("JobId") == job_id:
                code, _, number = fields["ExitCode"].partition(":")
                return EndedJob(job_id, fields["JobState"], int(code), int(number), fields)
        return None


def _free_ports(count: int) -> Sequence[int]:
    """Ports that nobody listens on; all are held until all are chosen, so that none comes twice."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = sorted(sock.getsockname()[1] for sock in held)
    for sock in held:
        sock.close()
    return ports


def _variables(pid: int) -> frozenset[str]:
    """The environment that a process was started with; empty when it is gone."""
    try:
        return frozenset(Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0"))
    except OSError:
        return frozenset()


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@cache
def _shared() -> SlurmCluster:
    cluster = SlurmCluster(Path(tempfile.mkdtemp(prefix="corral-slurm-")))
    cluster.start()
    return cluster


def slurm_cluster() -> SlurmCluster:
    """The Slurm of this process, started when it is first asked for; skips the test where there is none."""
    if reason := missing():
        pytest.skip(reason)
    if not _shared().is_whole:
        # Minutes may lie between two files that use it; what ended it meanwhile is nothing to these tests.
        _shared().stop()
        _shared.cache_clear()
    return _shared()


def stop() -> None:
    """At the end of the tests of this process."""
    if _shared.cache_info().currsize:
        _shared().stop()
        _shared.cache_clear()
