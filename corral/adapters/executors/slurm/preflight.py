"""What must hold before a job can be launched, each with what to do if it does not."""

from __future__ import annotations

from collections.abc import Sequence

from corral.adapters.executors.slurm.errors import plain
from corral.adapters.executors.slurm.models import SlurmOptions
from corral.adapters.executors.slurm.scripts import quoted
from corral.domain.placements.orders import PreflightCheck

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun", "flock")


def preflight_script(options: SlurmOptions, flags: Sequence[str]) -> str:
    """Each check prints its name, its exit code and its words. A job is tried with --test-only: Slurm says
    whether it would take it, and does not."""
    partition = quoted(options.partition) if options.partition else ""
    folder = quoted(options.folder)
    tried = " ".join(quoted(flag) for flag in flags)
    return f"""\
told() {{ printf '%s\\037%s\\037%s\\036' "$1" "$2" "$3"; }}
preflight() {{
missing=
for name in {" ".join(COMMANDS)}; do command -v "$name" >/dev/null || missing="$missing $name"; done
told commands "${{#missing}}" "$missing"
said=$(scontrol ping 2>&1) && case $said in *UP*) :;; *) false;; esac; reached=$?
told controller $reached "$said"
# A check makes nothing that stays: a folder that is not there yet is tried where a launch would make it.
near={folder}
while [ ! -e "$near" ] && [ "$near" != "${{near%/*}}" ]; do near=${{near%/*}}; near=${{near:-/}}; done
said=$(umask 077; mktemp -d "$near/.check.XXXXXX" 2>&1); code=$?
[ $code = 0 ] && rmdir "$said" && [ ! -e {folder} ] && said=absent
told folder $code "$said"
# Without it the others would wait long, and say the same.
[ "$reached" = 0 ] || return 0
said=$(scontrol --oneliner show partition {partition} 2>&1); told partition $? "$said"
said=$(sbatch --test-only {tried} --wrap=true </dev/null 2>&1); told job $? "$said"
said=$(scontrol show config 2>&1 | grep '^KillWait'); told grace $? "$said"
said=$(sacct --noheader --jobs=1 2>&1); told accounting $? "$said"
}}
preflight
"""


def read_checks(text: str, options: SlurmOptions) -> list[PreflightCheck]:
    answers = {}
    for record in text.split("\x1e"):
        name, *rest = record.split("\x1f")
        if len(rest) == 2:
            answers[name.strip()] = (rest[0] == "0", rest[1].strip())
    return [_CHECKS[name](*answer, options) for name, answer in answers.items() if name in _CHECKS]


def unreachable_check(error: Exception, options: SlurmOptions) -> PreflightCheck:
    command = " ".join([*options.command_prefix, "sh -c true"])
    fix = f"make `{command}` work for the user of the control plane, without a question"
    return PreflightCheck("reach", False, str(error), fix)


def _commands(ok: bool, words: str, options: SlurmOptions) -> PreflightCheck:
    where = " ".join(options.command_prefix) or "the control plane"
    if ok:
        return PreflightCheck("commands", True, f"{', '.join(COMMANDS)} are there")
    fix = f"on {where}: apt-get install slurm-client util-linux; or set the command prefix to a login node"
    return PreflightCheck("commands", False, f"not found: {words}", fix)


def _controller(ok: bool, words: str, options: SlurmOptions) -> PreflightCheck:
    fix = "" if ok else "start slurmctld, or correct SLURM_CONF, until `scontrol ping` says UP"
    return PreflightCheck("controller", ok, plain(words), fix)


def _folder(ok: bool, words: str, options: SlurmOptions) -> PreflightCheck:
    if ok and words == "absent":
        return PreflightCheck(
            "folder", True, f"{options.folder} is not there yet and can be made; all nodes must see it"
        )
    if ok:
        return PreflightCheck("folder", True, f"{options.folder} can be written to; all nodes must see it")
    fix = f"make {options.folder} on a file system that all nodes share, owned by the user who submits"
    return PreflightCheck("folder", False, words, fix)


def _partition(ok: bool, words: str, options: SlurmOptions) -> PreflightCheck:
    name = options.partition or "the default partition"
    if not ok:
        fix = "choose one of `sinfo --summarize` for the executor"
        return PreflightCheck("partition", False, f"{name}: {plain(words)}", fix)
    rows = [dict(word.split("=", 1) for word in row.split() if "=" in word) for row in words.splitlines()]
    chosen = [row for row in rows if options.partition or row.get("Default") == "YES"]
    if not chosen:
        fix = "set the executor's partition to one of `sinfo --summarize`"
        return PreflightCheck("partition", False, "there is no default partition", fix)
    state = chosen[0].get("State", "unknown")
    shown = f"{chosen[0].get('PartitionName')} is {state}, at most {chosen[0].get('MaxTime')} a job"
    fix = f"scontrol update PartitionName={chosen[0].get('PartitionName')} State=UP, or choose another"
    return PreflightCheck("partition", state == "UP", shown, "" if state == "UP" else fix)


def _job(ok: bool, words: str, options: SlurmOptions) -> PreflightCheck:
    allowed = "`sacctmgr show associations user=$USER` lists what is allowed"
    fix = f"correct the executor's partition, account, qos or flags; {allowed}"
    return PreflightCheck("job", ok, plain(words) if words else "Slurm would take a job", "" if ok else fix)


def _grace(ok: bool, words: str, options: SlurmOptions) -> PreflightCheck:
    """Not needed for a launch, but whoever checkpoints should know."""
    waits = words.partition("=")[2].strip() or "an unknown time"
    return PreflightCheck("grace", True, f"a cancelled worker has {waits} (KillWait) to make a checkpoint")


def _accounting(ok: bool, words: str, options: SlurmOptions) -> PreflightCheck:
    """Not needed: the queue tells for a while, and what jobs write in the folder for good."""
    detail = (
        "sacct tells how old jobs ended" if ok else f"no sacct ({plain(words)}): the folder tells instead"
    )
    return PreflightCheck("accounting", True, detail)


_CHECKS = {
    "commands": _commands,
    "controller": _controller,
    "folder": _folder,
    "partition": _partition,
    "job": _job,
    "grace": _grace,
    "accounting": _accounting,
}
