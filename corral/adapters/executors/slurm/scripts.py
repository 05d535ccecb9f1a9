"""The programs of the shell that are sent to where Slurm's commands are, and those that a job runs.

Each is one function that is called in its last line: one that arrives in part does nothing.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from corral.adapters.executors.slurm.models import SlurmHandle, SlurmOptions, job_name
from corral.domain.placements.orders import RANK, TOKENS, LaunchOrder

# Fields of squeue, each up to its width.
_QUEUE = "ArrayJobID:20|,ArrayTaskID:20|,Name:200|,State:30|,exit_code:20|,Reason:200|,NodeList:500|"
_HISTORY = "JobID,JobName,State,ExitCode,Reason,NodeList"
QUEUE_MARK = "== queue"
HISTORY_MARK = "== history"
STEPS_MARK = "== steps"
# Written by the script of a job between the lines of its srun.
RANKS_WORD = "corral: ranks"
JOB_WORD = "corral: job"
DEADLINE_WORD = "corral: deadline"
FINISHED_WORD = "corral: finished"
# Of a launch that sbatch refused; its words are on standard error.
REFUSED = 3
# What srun tells of tasks, and what the script tells of itself.
_TOLD = "^corral: |_task_start|launching StepId|exit notification|: tasks* [0-9]|aborted|termination|error:"
_LEAST_MB = 1
# Where runs are not isolated, they may lay links and pipes there: neither is followed or waited for.
_IS_PLAIN = '[ -f "$file" ] && [ ! -L "$file" ]'
_MOST_TOLD_BYTES = 32 << 20
# Through what lies there a run could submit jobs of its own, which nothing keeps from other runs' tokens.
_SOCKETS = "/run/munge:/run/slurm:/run/slurmctld:/run/slurmd"
# What a job gets of the environment of whoever submits it. That may hold secrets.
_EXPORTED = "PATH,HOME,USER,LOGNAME,SHELL,LANG"


def launch_script(options: SlurmOptions, order: LaunchOrder, flags: Sequence[str]) -> str:
    """Prints the number of the job, the same whenever it is asked again.

    The lock is for two who ask at the same time. Whoever is killed after sbatch took the job leaves no note
    of its number: the name finds it while Slurm remembers it, and the job itself writes it down at its start.
    """
    folder, name = _folder(options, order.key), job_name(order)
    files = {"ranks": f"{RANKS_WORD} {order.ranks}\n"}
    files |= {"tokens": "".join(f"{token}\n" for token in order.tokens)}
    files |= {"rank.sh": rank_script(order), "job.sh": job_script(options, order, folder)}
    if order.limit_s is not None:
        files["deadline.sh"] = deadline_script(order)
    written = "\n".join(f"printf %s {quoted(text)} >{file} || exit 1" for file, text in files.items())
    return f"""\
launch() {{
umask 077
mkdir -p {quoted(folder)} && cd {quoted(folder)} || exit 1
exec 9>lock && flock -w 30 9 ||
  {{ echo "another launch of the same order has not ended" >&2; exit 1; }}
if [ ! -s job ]; then
  found=$(squeue --me --states=all --noheader --name={quoted(name)} --format=%F) || exit 1
  if [ -z "$found" ]; then
    {_remove_old(options)}
    {written}
    found=$(sbatch --parsable {_joined(flags)} job.sh </dev/null 9>&-) || exit {REFUSED}
  fi
  echo "$found" | sed 's/;.*//' | sort -n | head -n 1 >job.part && mv job.part job || exit 1
fi
cat job
}}
launch
"""


def job_script(options: SlurmOptions, order: LaunchOrder, folder: str) -> str:
    """What the job runs on its first node. A job that Slurm starts a second time would be a second cohort
    with the tokens of the first: it ends at once."""
    cpus = order.need.min_cores or 1
    elastic = order.min_ranks < order.ranks
    tail = "-$SLURM_ARRAY_TASK_ID" if elastic else ""
    return f"""\
#!/bin/sh
cd {quoted(folder)} && mkdir "started{tail}" || exit 1
job=${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}
# The number of one element of an array may be that of the whole.
self=$job${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}
echo "$job" >"job.part{tail}" && mv "job.part{tail}" job
echo "{JOB_WORD} $job" >"step{tail}"
{_watch_of_deadline(order, tail)}\
srun --verbose --wait=0 --kill-on-bad-exit=0 --cpus-per-task={cpus} --export=ALL \\
  --label{_image(options, order)} sh rank.sh </dev/null >>"step{tail}" 2>&1
code=$?
echo "{FINISHED_WORD} $code" >>"step{tail}"
touch ended
{":" if elastic else "rm -f tokens"}
{"kill -- -$watch" if order.limit_s is not None else ":"}
exit $code
"""


def _image(options: SlurmOptions, order: LaunchOrder) -> str:
    if order.image is None or options.image_flag is None:
        return ""
    return f" {quoted(options.image_flag.format(image=order.image))}"


def rank_script(order: LaunchOrder) -> str:
    """What each rank runs, in its own folder. It becomes the worker, so that signals and exit codes are the
    worker's own."""
    exports = "".join(f"export {name}={quoted(value)}\n" for name, value in order.environ.items())
    return f"""\
export {TOKENS}="$PWD/tokens"
export {RANK}="${{SLURM_ARRAY_TASK_ID:-$SLURM_PROCID}}"
# The tokens of all launches lie there.
export CORRAL_HIDE="${{PWD%/*}}:{_SOCKETS}${{CORRAL_HIDE:+:$CORRAL_HIDE}}"
# What Slurm itself says of the step goes elsewhere, and is not to be mistaken for a worker's words.
exec >>"rank-${RANK}.out" 2>&1
{exports}exec {_joined(order.command)}
"""


def deadline_script(order: LaunchOrder) -> str:
    """Slurm counts in minutes and looks twice in one: the job keeps the time itself, to the second."""
    return f"""\
sleep {order.limit_s:.3f}
echo "{DEADLINE_WORD}" >>"$2"
scancel --signal=TERM "$1"
sleep {order.grace_s:.3f}
scancel "$1"
"""


def _watch_of_deadline(order: LaunchOrder, tail: str) -> str:
    """In a session of its own, so that it and its sleep can be ended together."""
    if order.limit_s is None:
        return ""
    return f"""\
setsid sh deadline.sh "$self" "step{tail}" </dev/null >/dev/null 2>&1 &
watch=$!
"""


def sbatch_flags(options: SlurmOptions, order: LaunchOrder, gpus: Sequence[str]) -> list[str]:
    """One job with a task per rank, or an array of jobs with one task each where fewer may start."""
    cpus = order.need.min_cores or 1
    elastic = order.min_ranks < order.ranks
    flags = [f"--job-name={job_name(order)}", f"--comment={_comment(order)}", "--output=job.out"]
    flags += ["--open-mode=append", f"--export={_EXPORTED}", f"--cpus-per-task={cpus}"]
    # A requeued job would run again with tokens that have ended; Corral launches anew instead.
    flags.append("--no-requeue")
    flags += ["--ntasks=1", f"--array=0-{order.ranks - 1}"] if elastic else [f"--ntasks={order.ranks}"]
    if order.need.min_ram_bytes is not None:
        megabytes = math.ceil(order.need.min_ram_bytes / cpus / (1 << 20))
        flags.append(f"--mem-per-cpu={max(megabytes, _LEAST_MB)}M")
    if order.need.min_disk_bytes is not None:
        flags.append(f"--tmp={math.ceil(order.need.min_disk_bytes / (1 << 20))}M")
    if order.limit_s is not None:
        flags.append(f"--time={math.ceil(order.limit_s / 60)}")
    else:
        # Where the partition's own limit ends it, the workers hear of it in time.
        flags.append(f"--signal=TERM@{math.ceil(order.grace_s)}")
    return [*flags, *gpus, *common_flags(options)]


def common_flags(options: SlurmOptions) -> list[str]:
    """What is the same for every job of this executor."""
    named = {"partition": options.partition, "account": options.account, "qos": options.qos}
    return [*(f"--{name}={value}" for name, value in named.items() if value is not None), *options.flags]


def observe_script(options: SlurmOptions, handles: Sequence[SlurmHandle]) -> str:
    """The queue with what has ended lately, and what jobs have written down. sacct is asked only for what
    the queue has forgotten."""
    root, ids = quoted(options.folder), " ".join(handle.job_id for handle in handles)
    files = " ".join(f"{handle.key}/ranks {handle.key}/step*" for handle in handles)
    return f"""\
observe() {{
echo "{QUEUE_MARK}"
queue=$(squeue --me --states=all --array --noheader --Format={quoted(_QUEUE)}) || exit 1
printf '%s\\n' "$queue" | grep '|corral[.]'
cd {root} 2>/dev/null || return 0
echo "{STEPS_MARK}"
set --
for file in {files}; do
  {_IS_PLAIN} && set -- "$@" "$file"
done
[ $# = 0 ] || grep -sHE {quoted(_TOLD)} "$@" | head -c {_MOST_TOLD_BYTES}
echo "{HISTORY_MARK}"
known=" $(printf '%s\\n' "$queue" | cut -d'|' -f1 | tr -s ' \\n' '  ') "
missing=
for id in {ids}; do
  case $known in *" $id "*) ;; *) missing="$missing,$id" ;; esac
done
[ -z "$missing" ] ||
  sacct --noheader --parsable2 --allocations --jobs="${{missing#,}}" --format={_HISTORY} 2>/dev/null
return 0
}}
observe
"""


def launched_script() -> str:
    return f"""\
launched() {{
queue=$(squeue --me --noheader --Format={quoted(_QUEUE)}) || exit 1
printf '%s\\n' "$queue" | grep '|corral[.]'
return 0
}}
launched
"""


def cancel_script(options: SlurmOptions, handle: SlurmHandle) -> str:
    """By the name that the queue has for the number, so that no other job which got the number is hit."""
    folder = quoted(_folder(options, handle.key))
    return f"""\
cancel() {{
queue=$(squeue --me --noheader --states=all --format='%F %j') || exit 1
name=$(printf '%s\\n' "$queue" | grep -E {quoted(_named(handle))} | head -n 1 | cut -d' ' -f2)
[ -d {folder} ] && touch {folder}/ended && rm -f {folder}/tokens
[ -n "$name" ] || return 0
scancel --name="$name" {handle.job_id}
}}
cancel
"""


def logs_script(options: SlurmOptions, handle: SlurmHandle, rank: int, most_bytes: int) -> str:
    """Of a job that could not start its ranks: what its script said."""
    folder = quoted(_folder(options, handle.key))
    return f"""\
logs() {{
cd {folder} 2>/dev/null || return 0
for file in rank-{rank}.out step-{rank} step job.out; do
  [ -s "$file" ] && {_IS_PLAIN} && tail -c {most_bytes} "$file" && return 0
done
return 0
}}
logs
"""


def _named(handle: SlurmHandle) -> str:
    return rf"^{handle.job_id} corral[.][A-Za-z0-9_-]+[.]{handle.key}$"


def _remove_old(options: SlurmOptions) -> str:
    root = quoted(options.folder)
    return (
        f"find {root} -mindepth 2 -maxdepth 2 -name ended -mtime +{options.keep_days} "
        "-exec sh -c 'rm -rf \"${1%/ended}\"' sh {} \\;"
    )


def _comment(order: LaunchOrder) -> str:
    """For people who look at the queue."""
    kept = "".join(char for char in f"{order.project}/{order.run_name}" if char.isalnum() or char in "._-/ ")
    return f"corral {order.run_id} {kept.encode('ascii', 'ignore').decode()[:60]}"


def _folder(options: SlurmOptions, key: str) -> str:
    return f"{options.folder}/{key}"


def quoted(text: str) -> str:
    return shlex.quote(text)


def _joined(words: Sequence[str]) -> str:
    return shlex.join(words)
