"""Twenty defects that the tests must notice, so that cheaper tests are not weaker ones.

    python -m tests.repo.mutations [--root CLONE] [NUMBER ...]

Each is made in a copy of the clone, and the tests that it names must fail there, and pass without it. A place
is found by its text anywhere below `corral/`, so that files may move. Of tests that moved, both places are
named.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".cache", "site", "*_cache", "__pycache__", ".hypothesis")


@dataclass(frozen=True)
class Mutation:
    what: str
    old: str
    new: str
    # Of those in one tuple the first whose file is there.
    tests: tuple[tuple[str, ...], ...]
    # The same, as the place was before it was rewritten.
    before: tuple[str, str] | None = None

    def form(self, text: str) -> tuple[str, str] | None:
        """What to replace in a file with this text, and by what; None if it is not the place."""
        forms = [(self.old, self.new), *([self.before] if self.before else [])]
        return next((form for form in forms if text.count(form[0]) == 1), None)


MUTATIONS = (
    Mutation(
        "no server is an ordinary error",
        "_leave(EXIT_UNREACHABLE if isinstance(error, ServerUnreachable) else EXIT_ERROR)",
        "_leave(EXIT_ERROR)",
        (
            (
                "tests/acceptance/test_run_files.py::test_no_server_is_exit_3",
                "tests/acceptance/test_bad_input.py::test_no_server_is_exit_3",
            ),
        ),
    ),
    Mutation(
        "an error has no hint",
        '    if error.hint:\n        _tell(f"hint',
        '    if not error.hint:\n        _tell(f"hint',
        (
            (
                "tests/acceptance/test_run_files.py::test_a_faulty_run_file_is_refused_at_its_place[syntax]",
                "tests/acceptance/test_bad_input.py::test_a_faulty_run_file_is_refused_at_its_place[syntax]",
            ),
        ),
        before=("    if error.hint:\n        typer.echo(", "    if not error.hint:\n        typer.echo("),
    ),
    Mutation(
        "a mistyped key is not told from the nearest",
        "near = difflib.get_close_matches(word, list(known), 1, alike)",
        "near = difflib.get_close_matches(word, list(known), 1, 1.0)",
        (
            (
                "tests/acceptance/test_run_files.py::test_a_faulty_run_file_is_refused_at_its_place[top]",
                "tests/acceptance/test_bad_input.py::test_a_faulty_run_file_is_refused_at_its_place[top]",
            ),
        ),
        before=("_known_keys(model, location), 1, 0.5)", "_known_keys(model, location), 1, 1.0)"),
    ),
    Mutation(
        "a FIFO in a code folder is passed over",
        "self.refuse(path, f\"is {_KINDS.get(kind, 'neither a file nor a folder')}\")",
        "pass",
        (
            (
                "tests/acceptance/test_run_folders.py::test_a_code_folder_with_such_an_entry_is_refused_by_name[fifo]",
                "tests/acceptance/test_bad_input.py::test_a_code_folder_with_such_an_entry_is_refused_by_name[fifo]",
            ),
        ),
    ),
    Mutation(
        "a wall limit is an ordinary failure",
        "WALL_LIMIT = 124\n",
        "WALL_LIMIT = 1\n",
        (
            (
                "tests/acceptance/test_run_programs.py::test_a_wall_limit_ends_it_with_124",
                "tests/acceptance/test_bad_input.py::test_a_wall_limit_ends_it_with_124",
            ),
        ),
    ),
    Mutation(
        "what a run forked away is left to itself",
        "        kill_group(os.getpgid(pid))\n        os.kill(pid, signal.SIGKILL)\n",
        "        os.kill(pid, 0)\n",
        (
            (
                "tests/acceptance/test_run_programs.py::test_what_a_program_forked_away_ends_with_it",
                "tests/acceptance/test_bad_input.py::test_what_a_program_forked_away_ends_with_it",
            ),
        ),
    ),
    Mutation(
        "any epoch may write",
        "    if lease.epoch != epoch:\n",
        "    if lease.epoch < 0:\n",
        (("tests/api/test_auth.py::test_another_epoch_is_refused_by_every_call_of_a_lease",),),
    ),
    Mutation(
        "a lease that another has claimed is taken up again",
        "        and rank.epoch == lease.epoch\n        and (alone or run.state in ",
        "        and (alone or run.state not in ",
        (("tests/fleet/test_partition.py",),),
        before=(
            "        and run.epoch == lease.epoch\n        and run.state in ",
            "        and run.state not in ",
        ),
    ),
    Mutation(
        "the sweeper judges as soon as it can see",
        "        if seen_s >= self.policy.lease_s:\n",
        "        if seen_s >= 0.0:\n",
        (("tests/unit/test_sweep_window.py",),),
    ),
    Mutation(
        "a lost host costs a run nothing",
        "    Reason.HOST_LOST: Budget.INFRASTRUCTURE,\n",
        "    Reason.HOST_LOST: Budget.FREE,\n",
        (("tests/model/test_api_sqlite.py",),),
    ),
    Mutation(
        "an outcome that is sent again is another outcome",
        "    if lease.outcome_digest != body:\n",
        "    if lease.outcome_digest == body:\n",
        (("tests/model/test_api_postgres.py",), ("tests/api/test_replays.py",)),
    ),
    Mutation(
        "the low priorities come first",
        "heads.append((-priority, usage[project], not first(shape), head, lane))",
        "heads.append((priority, usage[project], not first(shape), head, lane))",
        (("tests/unit/test_fair_share.py",),),
        before=(
            "heads.append((-priority, usage[project], head, lane))",
            "heads.append((priority, usage[project], head, lane))",
        ),
    ),
    Mutation(
        "calls of low priority come first",
        "ORDER BY priority DESC, ready_at, id LIMIT :limit;",
        "ORDER BY priority, ready_at, id LIMIT :limit;",
        (("tests/contract/test_store_calls.py",),),
    ),
    Mutation(
        "what a failed unit announced is heard with the next one",
        "        except BaseException as error:\n            session.tx.take_announced()\n",
        "        except BaseException as error:\n",
        (("tests/contract/test_store_units.py",),),
    ),
    Mutation(
        "a join token lets in whoever comes second",
        '    if host is None or not hmac.compare_digest(token.used_by or "", by):\n',
        "    if host is None:\n",
        (("tests/api/test_enrolment.py",),),
    ),
    Mutation(
        "a server is trusted whatever its certificate",
        "        if hmac.compare_digest(pin_of(one), pin):\n",
        "        if one:\n",
        (("tests/api/test_tls.py",),),
    ),
    Mutation(
        "a notice is signed without its body",
        'f"{message_id}.{at}.".encode() + body, hashlib.sha256)',
        'f"{message_id}.{at}.".encode(), hashlib.sha256)',
        (("tests/unit/test_webhook_rules.py",), ("tests/api/test_webhooks.py",)),
    ),
    Mutation(
        "training changes no weights",
        "        norm = self._optimizer.step(learning_rate, clip=clip)\n",
        "        norm = self._optimizer.step(0.0 * learning_rate, clip=clip)\n",
        (
            (
                "tests/acceptance/test_training.py::test_a_run_file_with_a_train_table_trains",
                "tests/acceptance/test_train.py::test_a_run_file_with_a_train_table_trains",
            ),
        ),
    ),
    Mutation(
        "a page shows what is not printed",
        'render.say(f"corral is up at ',
        'render.say(f"corral runs at ',
        (("tests/docs/test_pages.py", "tests/docs/test_docs.py"),),
        before=('typer.echo(f"corral is up at ', 'typer.echo(f"corral runs at '),
    ),
    Mutation(
        "a page does not say what the command says",
        "Shown in the run's events.",
        "Shown in the run's history.",
        (("tests/docs/test_docs.py::test_the_generated_pages_are_up_to_date",),),
    ),
)


def place_of(mutation: Mutation, root: Path) -> Path:
    """The one file that has its text once."""
    files = [path for suffix in ("py", "sql") for path in (root / "corral").rglob(f"*.{suffix}")]
    found = [path for path in files if mutation.form(path.read_text(encoding="utf-8")) is not None]
    if len(found) != 1:
        raise SystemExit(f"{mutation.what}: the text is in {[str(path) for path in found]}, not in one place")
    return found[0]


def copy(root: Path, to: Path) -> Path:
    """A clone with an environment of its own, in which `corral` is this copy. Its interpreter."""
    shutil.copytree(root, to, ignore=_LEFT_OUT, symlinks=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", to / ".venv"], check=True)
    python = to / ".venv" / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(to / ".venv")}))
    libraries = [path for path in sys.path if path.endswith("-packages")]
    # By path files: the libraries' own path files, which would name the original, are not read then.
    (site / "a_corral.pth").write_text(f"{to}\n")
    (site / "z_libraries.pth").write_text("".join(f"{path}\n" for path in libraries))
    script = to / ".venv" / "bin" / "corral"
    script.write_text(f"#!{python}\nfrom corral.cli.main import main\n\nmain()\n")
    script.chmod(0o755)
    return python


def tests_of(mutation: Mutation, root: Path) -> list[str]:
    return [
        next(name for name in names if (root / name.partition("::")[0]).is_file()) for names in mutation.tests
    ]


def is_caught(mutation: Mutation, root: Path, python: Path) -> bool:
    """By each of the tests that it names."""
    path = place_of(mutation, root)
    for name in tests_of(mutation, root):
        if _fails(name, root, python):
            raise SystemExit(f"{name} fails without the defect too")
    before = path.read_text(encoding="utf-8")
    form = mutation.form(before)
    assert form is not None
    path.write_text(before.replace(*form), encoding="utf-8")
    try:
        return all(_fails(name, root, python) for name in tests_of(mutation, root))
    finally:
        path.write_text(before, encoding="utf-8")


def _fails(name: str, root: Path, python: Path) -> bool:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("CORRAL_", "PYTEST_"))}
    command = [str(python), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", name]
    done = subprocess.run(
        command, cwd=root, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    # Not 2 to 5: those are a broken test run, not a failed test.
    if done.returncode not in (0, 1):
        raise SystemExit(f"{name} could not be run:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.returncode == 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the clone; its interpreter must run this")
    parser.add_argument("numbers", nargs="*", type=int, help="which of them; all if none is named")
    asked = parser.parse_args()
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        root = Path(folder) / "clone"
        python = copy(asked.root.resolve(), root)
        for number, mutation in enumerate(MUTATIONS, 1):
            if asked.numbers and number not in asked.numbers:
                continue
            caught = is_caught(mutation, root, python)
            survived += not caught
            print(f"{'caught' if caught else 'SURVIVED'}  {number:2}  {mutation.what}", flush=True)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
