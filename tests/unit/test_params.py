"""Parameters checked before anything is queued (FL-C12): by a JSON Schema, and by scripts' own parsers."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from corral.client.submit import script_parser
from corral.client.submit.params import ParamChecks
from corral.domain.errors import InvalidInput
from corral.wire.spec.identity import identity_of
from corral.wire.spec.run_file import RunFile, RunSpec

SCHEMA = {
    "type": "object",
    "properties": {
        "lr": {"type": "number", "exclusiveMinimum": 0},
        "steps": {"type": "integer"},
        "tag": {"type": "string"},
        "either": {"anyOf": [{"$ref": "#/$defs/rate"}, {"type": "string"}]},
        "free": {},
    },
    "$defs": {"rate": {"type": "number"}},
    "required": ["lr"],
    "additionalProperties": False,
}
BASE = """
import argparse
def main():
    p = argparse.ArgumentParser()
    p.add_argument("--learning-rate", "-l", type=float, default=0.1)
    p.add_argument("--steps", type=int, required=True)
    p.add_argument("--opt", choices=["sgd", "adam"])
    p.add_argument("--amp", action="store_true")
    p.add_argument("--tag")
    a = p.parse_args()
    open("worked", "w").write("the work began")
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "train.py").write_text(BASE)
    return tmp_path


def checks(folder: Path, **table: Any) -> ParamChecks:
    run_file = RunFile.model_validate({"argv": ["python", "train.py"], **table})
    return ParamChecks(run_file, folder, os.environ)


def problems(folder: Path, params: dict[str, Any], **table: Any) -> dict[str, str]:
    with pytest.raises(InvalidInput) as refused:
        checks(folder, params=params, **table).checked([params])
    return {field.path: field.message for field in refused.value.fields}


def by_schema(folder: Path, params: dict[str, Any]) -> dict[str, str]:
    return problems(folder, params, params_schema="schema.json")


def test_a_mistyped_parameter_is_named_with_the_nearest(folder: Path) -> None:
    found = by_schema(folder, {"lr": 0.1, "stpes": 3})

    assert found == {"params.stpes": "is not a parameter of the schema; did you mean `steps`?"}


def test_wrong_types_bounds_and_what_is_missing_are_all_named(folder: Path) -> None:
    found = by_schema(folder, {"steps": "3", "tag": 1})

    assert set(found) == {"params", "params.steps", "params.tag"}
    assert "lr" in found["params"]
    assert "0" in by_schema(folder, {"lr": 0})["params.lr"]


@pytest.mark.parametrize(
    ("name", "value", "form"),
    [
        ("lr", 1.0, 1),
        ("lr", 1, 1),
        ("lr", 0.5, 0.5),
        ("steps", 2.0, 2),
        ("either", 3.0, 3),
        ("either", "3.0", "3.0"),
        ("free", 1.0, 1.0),
        ("tag", "1.0", "1.0"),
        ("lr", 1e300, 1e300),
    ],
)
def test_numbers_have_one_form_where_the_schema_says_number(
    folder: Path, name: str, value: Any, form: Any
) -> None:
    """FL-D32. Defaults are not filled in."""
    params = {"lr": 0.1, name: value}

    (made,) = checks(folder, params=params, params_schema="schema.json").checked([params])

    assert made == {"lr": 0.1, name: form}
    assert type(made[name]) is type(form)


def test_1_and_1_0_are_the_same_run_where_the_schema_says_number_and_else_not(folder: Path) -> None:
    """FL-D32."""

    def identities(name: str, **table: Any) -> set[str]:
        found: set[str] = set()
        for value in (1, 1.0):
            params = {"lr": 0.1, name: value}
            (made,) = checks(folder, params=params, **table).checked([params])
            found.add(identity_of(RunSpec.model_validate({"argv": ["x"], "params": made})))
        return found

    assert len(identities("lr", params_schema="schema.json")) == 1
    assert len(identities("free", params_schema="schema.json")) == 2
    assert len(identities("lr")) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("[1]", "is no object"),
        ('{"type": "nonsense"}', "is not a JSON Schema"),
        ('{"$ref": "http://127.0.0.1:9/x.json"}', "not fetched from elsewhere"),
    ],
)
def test_a_schema_that_is_none_is_refused(folder: Path, text: str, said: str) -> None:
    (folder / "schema.json").write_text(text)

    assert said in by_schema(folder, {"lr": 1})["params_schema"]


def test_a_schema_that_is_not_there_is_named(folder: Path) -> None:
    assert "nowhere.json" in problems(folder, {}, params_schema="nowhere.json")["params_schema"]


ARGV = ["python", "train.py", "--learning-rate", "{params.lr}", "--steps", "{params.steps}"]


def by_script(folder: Path, params: dict[str, Any], argv: list[str] | None = None) -> dict[str, str]:
    return problems(folder, params, params_from="train.py", argv=argv or ARGV)


def test_a_script_is_asked_without_its_work_being_done(folder: Path) -> None:
    made = checks(folder, params_from="train.py", argv=ARGV, params={"lr": 1.0, "steps": 3})

    assert made.checked([{"lr": 1.0, "steps": 3}]) == [{"lr": 1, "steps": 3}]
    assert not (folder / "worked").exists()
    assert made.notes == []


def test_every_wrong_value_is_named_with_what_the_script_takes(folder: Path) -> None:
    """FL-C12: not only when training starts."""
    params = {"lr": "fast", "steps": 2.5, "opt": "adma", "stpes": 1}

    found = by_script(folder, params)

    assert found == {
        "params.lr": "is 'fast'; --learning-rate takes a number",
        "params.steps": "is '2.5'; --steps takes an integer",
        "params.opt": "is 'adma'; --opt takes one of sgd, adam; did you mean `adam`?",
        "params.stpes": "is not an argument of train.py; did you mean `steps`?",
    }


def test_the_command_line_is_checked_too(folder: Path) -> None:
    argv = ["python", "train.py", "--learning-rat", "1", "--stepz", "{params.steps}"]

    # The beginning of a flag is taken for it, as argparse does.
    with pytest.raises(InvalidInput) as refused:
        checks(folder, params={"steps": 1}, params_from="train.py", argv=argv).checked([{"steps": 1}])
    assert [field.message for field in refused.value.fields] == [
        "has --stepz, which train.py does not take; did you mean `--steps`?",
        'lacks --steps, which train.py requires: add "--steps", "{params.steps}"',
    ]


def test_a_flag_without_a_value_is_given_none(folder: Path) -> None:
    argv = [*ARGV, "--amp={params.amp}"]

    found = by_script(folder, {"lr": 1, "steps": 1, "amp": True}, argv)

    assert found == {"params.amp": "is given to --amp, which takes no value"}


def test_a_parameter_that_the_command_does_not_use_is_told(folder: Path) -> None:
    made = checks(folder, argv=ARGV, params={"lr": 1, "steps": 1, "tag": "x"})

    assert made.notes == ["params.tag is not in argv; the command finds it in CORRAL_SPEC alone"]


def read(folder: Path, text: str, limit_s: float = 30) -> script_parser.ScriptParser:
    (folder / "train.py").write_text(text)
    return script_parser.read(folder / "train.py", os.environ, limit_s=limit_s)


def kinds(parser: script_parser.ScriptParser) -> dict[str, str]:
    return {argument.dest: argument.kind for argument in parser.known(()) if argument.dest != "help"}


def test_groups_parents_and_type_functions_are_read(folder: Path) -> None:
    parser = read(
        folder,
        """
import argparse, pathlib
parent = argparse.ArgumentParser(add_help=False)
parent.add_argument("--base", type=int)
p = argparse.ArgumentParser(parents=[parent])
g = p.add_argument_group("optim")
g.add_argument("--lr", type=float)
x = p.add_mutually_exclusive_group(required=True)
x.add_argument("--a", action="store_true")
x.add_argument("--b", nargs="+", choices=range(3), type=int)
p.add_argument("--out", type=pathlib.Path)
p.add_argument("--made", type=lambda text: text.upper(), choices=["A"])
p.add_argument("data", nargs=2)
p.parse_args()
""",
    )

    assert kinds(parser) == {
        **{"base": "int", "lr": "float", "a": "str", "b": "int", "out": "other", "made": "other"},
        "data": "str",
    }
    b = next(argument for argument in parser.arguments if argument.dest == "b")
    assert (b.nargs, b.choices) == ("+", (0, 1, 2))
    assert parser.note == ""


def test_the_arguments_of_a_subcommand_count_when_it_is_called(folder: Path) -> None:
    text = """
import argparse
p = argparse.ArgumentParser()
s = p.add_subparsers(dest="what", required=True)
fit = s.add_parser("fit"); fit.add_argument("--lr", type=float, required=True)
test = s.add_parser("test"); test.add_argument("--split")
p.parse_args()
"""
    (folder / "train.py").write_text(text)
    argv = ["python", "train.py", "fit", "--lr", "{params.lr}"]
    checks(folder, params_from="train.py", argv=argv, params={"lr": 1}).checked([{"lr": 1}])

    assert "params.split" in by_script(folder, {"split": "x", "lr": 1}, argv)


def test_a_script_that_parses_when_it_is_imported_is_read(folder: Path) -> None:
    (folder / "options.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--lr', type=float)\na = p.parse_args()\n"
    )

    assert kinds(read(folder, "import options\n")) == {"lr": "float"}


def test_a_script_that_prints_and_starts_others_is_read_and_leaves_nobody(folder: Path) -> None:
    parser = read(
        folder,
        """
import argparse, subprocess, sys
print("x" * 100_000); print("y" * 100_000, file=sys.stderr)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("pid", "w").write(str(child.pid))
p = argparse.ArgumentParser(); p.add_argument("--lr", type=float); p.parse_args()
""",
    )

    assert kinds(parser) == {"lr": "float"}
    assert gone(int((folder / "pid").read_text()))


def gone(pid: int) -> bool:
    give_up_at = time.monotonic() + 10
    while time.monotonic() < give_up_at:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_a_script_that_never_parses_is_killed_and_its_text_is_read(folder: Path) -> None:
    parser = read(
        folder,
        """
import argparse, os, time
open("pid", "w").write(str(os.getpid()))
while True: time.sleep(1)
p = argparse.ArgumentParser(); p.add_argument("--lr", type=float); p.parse_args()
""",
        limit_s=1.5,
    )

    assert kinds(parser) == {"lr": "float"}
    assert "within 1.5 s" in parser.note
    assert gone(int((folder / "pid").read_text()))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("import a_library_that_is_not_here", "ModuleNotFoundError"),
        ("raise RuntimeError('no GPU')", "RuntimeError: no GPU"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import os; os._exit(7)", "code 7"),
    ],
)
def test_a_script_that_fails_before_it_parses_is_read_from_its_text(
    folder: Path, line: str, why: str
) -> None:
    parser = read(folder, f"{line}\n{BASE}")

    assert kinds(parser) == {
        "learning_rate": "float",
        "steps": "int",
        "opt": "str",
        "amp": "str",
        "tag": "str",
    }
    assert why in parser.note
    assert not parser.partial
    steps = next(argument for argument in parser.arguments if argument.dest == "steps")
    assert steps.required


def test_arguments_that_cannot_be_read_from_the_text_leave_the_rest_open(folder: Path) -> None:
    text = """
import a_library_that_is_not_here
import argparse
p = argparse.ArgumentParser()
p.add_argument("--steps", type=int)
for name in ("a", "b"): p.add_argument("--" + name)
p.parse_args()
"""
    (folder / "train.py").write_text(text)
    argv = ["python", "train.py", "--steps", "{params.steps}", "--a", "1"]

    made = checks(folder, params_from="train.py", argv=argv, params={"steps": 1, "b": 1})

    assert made.checked([{"steps": 1, "b": 1}]) == [{"steps": 1, "b": 1}]
    assert "params.steps" in by_script(folder, {"steps": "x", "b": 1}, argv)


def test_a_parser_that_leaves_the_rest_to_another_does_not_refuse_it(folder: Path) -> None:
    text = """
import argparse
p = argparse.ArgumentParser(); p.add_argument("--lr", type=float)
known, rest = p.parse_known_args()
"""
    (folder / "train.py").write_text(text)
    argv = ["python", "train.py", "--lr", "{params.lr}", "--more", "1"]

    assert set(by_script(folder, {"lr": "x", "more": 1}, argv)) == {"params.lr"}


@pytest.mark.parametrize("text", ["print('no parser')\n", "def broken(:\n"])
def test_a_script_without_a_parser_is_refused(folder: Path, text: str) -> None:
    (folder / "train.py").write_text(text)

    assert "no argparse parser" in by_script(folder, {"lr": 1})["params_from"]


def test_positional_arguments_must_be_there(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\n"
        "p.add_argument('--n', type=int)\np.parse_args()\n"
    )

    assert "lacks data" in by_script(folder, {}, ["python", "train.py", "--n", "3"])["argv"]
    fine = checks(folder, params_from="train.py", argv=["python", "train.py", "--n", "3", "rows.jsonl"])
    assert fine.checked([{}]) == [{}]
