"""Reading a manifest: what it stands for, and everything that is wrong with it, each with its line."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.client.corral import Corral
from corral.client.manifests.apply import Declaration, ManifestSpec
from corral.client.manifests.read import ParsedManifest, load
from corral.client.manifests.sync import check
from corral.client.submit.prepare import ProgressListener, RunPreparer
from corral.client.submit.run_file import expand
from corral.client.submit.run_file import load as load_run
from corral.client.submit.toml_lines import TomlLines, parse_place
from corral.domain.errors import InvalidInput
from corral.wire.spec.run_file import RunSpec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.toml").write_text('argv = ["train"]\ncode = "."\npriority = 2\n')
    return tmp_path


def read(folder: Path, text: str, *, project: str = "default") -> ParsedManifest:
    (folder / "fleet.toml").write_text(dedent(text).lstrip("\n"))
    return load(folder / "fleet.toml", project=project)


def problems(folder: Path, text: str) -> list[tuple[int | None, str, str]]:
    return [(found.line, found.key, found.message) for found in read(folder, text).problems]


def test_defaults_are_under_every_run_and_tables_are_merged(folder: Path) -> None:
    loaded = read(
        folder,
        """
        name = "nightly"
        project = "vision"
        [defaults]
        argv = ["train"]
        priority = 1
        resources = { min_ram = "1GiB", min_cores = 2 }
        [runs.a]
        [runs.b]
        priority = 5
        resources.min_cores = 4
        """,
    )

    assert loaded.problems == []
    assert (loaded.name, loaded.project) == ("nightly", "vision")
    a, b = (run.run_file for run in loaded.runs)
    assert (a.name, a.project, a.priority, a.resources.min_cores) == ("a", "vision", 1, 2)
    assert (b.priority, b.resources.min_cores, b.resources.min_ram) == (5, 4, 1 << 30)


def test_both_forms_of_runs_say_the_same(folder: Path) -> None:
    by_name = read(folder, '[runs.a]\nargv = ["x"]\n[runs.b]\nargv = ["y"]\n').runs
    listed = read(folder, '[[runs]]\nname = "a"\nargv = ["x"]\n[[runs]]\nname = "b"\nargv = ["y"]\n').runs

    assert [run.run_file for run in by_name] == [run.run_file for run in listed]


def test_the_file_and_the_settings_give_what_is_left_out(folder: Path) -> None:
    loaded = read(folder, '[runs.a]\nargv = ["x"]\n', project="lab")

    assert (loaded.name, loaded.project, loaded.runs[0].run_file.project) == ("fleet", "lab", "lab")


def test_a_run_file_is_taken_with_what_stands_beside_it_over_it(folder: Path) -> None:
    loaded = read(
        folder,
        """
        [defaults]
        inputs.rows = "rows.jsonl"
        [runs.a]
        file = "runs/a.toml"
        priority = 9
        """,
    )

    (run,) = loaded.runs
    assert (run.run_file.name, run.run_file.argv, run.run_file.priority) == ("a", ["train"], 9)
    assert run.base_dir == folder / "runs"
    # Each path starts from the file that it stands in.
    assert run.run_file.code == "."
    assert run.run_file.inputs == {"rows": str(folder / "rows.jsonl")}


def test_of_the_defaults_a_training_run_takes_no_command(folder: Path) -> None:
    loaded = read(
        folder,
        """
        [defaults]
        argv = ["train"]
        params.lr = 1
        [runs.a]
        [runs.b]
        model = "corral/tiny"
        train = { recipe = "sft", data = "rows.jsonl", steps = 2 }
        """,
    )

    assert loaded.problems == []
    assert [run.run_file.kind for run in loaded.runs] == ["command", "train"]


def test_seeds_and_sweeps_are_groups_by_their_name(folder: Path) -> None:
    loaded = read(
        folder,
        """
        [defaults]
        argv = ["x", "{params.lr}"]
        params.lr = 1
        [runs.one]
        [runs.seeds]
        seeds = [1, 2]
        [runs.grid]
        group = "all"
        sweep.lr = [1, 2, 3]
        """,
    )

    assert [(run.name, run.group, len(expand(run.run_file))) for run in loaded.runs] == [
        ("one", None, 1),
        ("seeds", "seeds", 2),
        ("grid", "all", 3),
    ]


def test_every_problem_is_told_at_once_with_its_line(folder: Path) -> None:
    found = problems(
        folder,
        """
        nmae = "x"
        [defaults]
        priorty = 3
        [hosts.box]
        slotz = 2
        ram = "many"
        [runs.a]
        argv = []
        [runs.b]
        argv = ["x"]
        resources.gpus = -1
        wall_limit = "soon"
        [runs.c]
        file = "nowhere.toml"
        """,
    )

    assert sorted((line, key) for line, key, _ in found if line) == [
        (1, "nmae"),
        (3, "defaults.priorty"),
        (5, "hosts.box.slotz"),
        (6, "hosts.box.ram"),
        (8, "runs.a.argv"),
        (11, "runs.b.resources.gpus"),
        (12, "runs.b.wall_limit"),
        (14, "runs.c.file"),
    ]
    assert all(line for line, _, _ in found)
    said = {key: message for _, key, message in found}
    assert "did you mean `name`" in said["nmae"]
    assert "did you mean `priority`" in said["defaults.priorty"]
    assert "did you mean `slots`" in said["hosts.box.slotz"]


@pytest.mark.parametrize(
    ("text", "line", "key", "said"),
    [
        ("", None, "runs", "declares neither runs nor hosts"),
        ("runs = 3\n", 1, "runs", "is not a table"),
        ("runs = [3]\n", 1, "runs[0]", "is not a table"),
        ("hosts = 3\n", 1, "hosts", "is not a table"),
        ('[[runs]]\nargv = ["x"]\n', 1, "runs[0].name", "is required"),
        ('[runs.a]\nargv = ["x"]\nname = "b"\n', 3, "runs.a.name", "is 'b'"),
        ('[runs.a]\nargv = ["x"]\nproject = "other"\n', 3, "runs.a.project", "all runs of this manifest"),
        ('[runs.a]\nargv = ["x"]\ngroup = 3\n', 3, "runs.a.group", "is not a name"),
        ("[runs.a]\nfile = 3\n", 2, "runs.a.file", "is not the path"),
        ('[runs.a]\nargv = ["x"]\nschedule.cron = "0 3 * * *"\n', 3, "runs.a.schedule", "has no place"),
        ('[runs.a]\nfiel = "x"\n', 2, "runs.a.fiel", "did you mean `file`"),
        ('[runs.a]\nargv = ["x"]\nseeds = [1, 1]\n', 3, "runs.a.seeds", "twice"),
        ('name = "a b"\n[runs.a]\nargv = ["x"]\n', 1, "name", "is not a name"),
        ('["runs"."a"]\nargv = ["x"]\npriority = "high"\n', 3, "runs.a.priority", "whole number"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, text: str, line: int | None, key: str, said: str) -> None:
    found = problems(folder, text)

    assert (line, key) in [(at, place) for at, place, _ in found], found
    assert any(said in message for _, _, message in found), found


def test_a_run_that_has_no_place_here_is_told_its_other_faults_too(folder: Path) -> None:
    """The first of them was told, and the next only when that was corrected."""
    found = problems(
        folder,
        """
        [[runs]]
        argv = ["x"]
        priorty = 2
        [[runs]]
        name = "b"
        argv = ["x"]
        project = "other"
        schedule = {cron = "0 3 * * *"}
        wall_limt = 3
        [[runs]]
        name = "c"
        file = "nowhere.toml"
        priority = "high"
        """,
    )

    assert sorted((line, key) for line, key, _ in found) == [
        (1, "runs[0].name"),
        (3, "runs[0].priorty"),
        (7, "runs[1].project"),
        (8, "runs[1].schedule"),
        (9, "runs[1].wall_limt"),
        (12, "runs[2].file"),
        (13, "runs[2].priority"),
    ]


def test_a_run_that_waits_for_one_with_a_fault_is_not_at_fault_itself(folder: Path) -> None:
    """It was said to name no run of the manifest."""
    text = '[runs.a]\nargv = ["x"]\nprioriti = 3\n[runs.b]\nargv = ["x"]\nafter = ["a"]\n'

    assert [key for _, key, _ in problems(folder, text)] == ["runs.a.prioriti"]


def test_everything_that_a_run_names_and_is_not_there_is_told_at_once(folder: Path) -> None:
    """`corral manifest plan` named one missing file, and the next when that was corrected."""
    text = """
        [runs.a]
        argv = ["x"]
        code = "nowhere"
        params_schema = "nope.json"
        inputs = {one = "no1", two = "no2"}
        [runs.b]
        model = "corral/tiny"
        [runs.b.train]
        recipe = "sft"
        data = "no.jsonl"
        eval_data = "none.jsonl"
        """
    loaded = read(folder, text)
    with Corral("http://127.0.0.1:9", None) as nobody, pytest.raises(InvalidInput) as caught:
        check(loaded, RunPreparer(nobody, folder, {}, ProgressListener()))

    assert sorted(field.path.partition(" ")[2] for field in caught.value.fields) == [
        "runs.a.code",
        "runs.a.inputs.one",
        "runs.a.inputs.two",
        "runs.a.params_schema",
        "runs.b.train.data",
        "runs.b.train.eval_data",
    ]


def test_a_name_that_is_there_twice_is_named_with_both_lines(folder: Path) -> None:
    text = '[[runs]]\nname = "a"\nargv = ["x"]\n\n[[runs]]\nname = "a"\nargv = ["y"]\n'

    assert problems(folder, text) == [
        (6, "runs[1].name", "is 'a', as in line 1: names in a manifest are unique")
    ]


@pytest.mark.parametrize(
    "text", ["[runs.a\n", "[runs.a]\n[runs.a]\n", "name = 1\nname = 2\n", "a = [\n", "x = " + "[" * 5000]
)
def test_what_is_no_toml_is_refused_with_the_place(folder: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match=r"TOML|deeply"):
        read(folder, text)


def test_a_manifest_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(folder / "nowhere.toml", project="default")


def test_a_fault_of_a_run_file_is_told_at_its_own_line(folder: Path) -> None:
    (folder / "runs" / "a.toml").write_text('argv = ["x"]\n\npriority = "high"\n')

    (found,) = read(folder, '[runs.a]\nfile = "runs/a.toml"\n').problems

    assert (found.file, found.line, found.key) == ("runs/a.toml", 3, "priority")


def test_the_same_work_under_two_names_is_refused() -> None:
    same = [
        RunSpec.model_validate({"name": name, "argv": ["x"], "priority": n}) for n, name in enumerate("ab")
    ]

    runs = [ManifestSpec(spec, place=f"runs.{spec.name}") for spec in same]

    with pytest.raises(InvalidInput, match=r"runs\.b.*same work as runs\.a"):
        Declaration("default", "fleet", runs=runs, hosts={})


def test_lines_are_found_through_all_that_toml_can_be() -> None:
    text = dedent(
        '''
        a = 1 # [not.a.table]
        "b c" = """
        [nor.this]
        x = 2
        """
        [t."q.r"]
        list = [
          "[x]", # ]
          { k = 1 },
        ]
        after = 3
        [[arr]]
        n = 1
        [arr.sub]
        m = 2
        [[arr]]
        d.e.f = """one""" # "
        g = \'\'\'[z]\'\'\'
        '''
    ).lstrip("\n")
    lines = TomlLines(text)

    wanted = {"a": 1, "t": 6, "arr[0].n": 13, "arr[0].sub.m": 15, "arr[1].d.e.f": 17, "arr[1].g": 18}
    assert {key: lines.line(parse_place(key)) for key in wanted} == {**wanted, "t": None}
    assert lines.line(("b c",)) == 2
    assert lines.line(("t", "q.r", "after")) == 11
    # What is not there is told at what is around it.
    assert lines.line(("arr", 1, "nothing")) == 16
    assert lines.line(("nor",)) is None


@given(st.text())
def test_no_text_is_too_odd_to_look_for_lines_in(text: str) -> None:
    found = TomlLines(text).line(("a", 0, "b"))

    assert found is None or 1 <= found <= len(text.splitlines())


def test_a_project_under_defaults_is_told_where_it_belongs(folder: Path) -> None:
    """HOUR4-17: the message did not say what to do."""
    ((_, key, said),) = problems(folder, '[defaults]\nproject = "lab"\n[runs.a]\nargv = ["x"]\n')
    assert key == "runs.a.project"
    assert 'write project = "lab" once, at the top of the manifest' in said


def test_a_manifest_and_a_run_file_are_told_apart(folder: Path) -> None:
    """HOUR4-17: each key was unknown to the other command."""
    with pytest.raises(InvalidInput, match="is a run file, and no manifest") as caught:
        load(folder / "runs" / "a.toml", project="default")
    assert "corral submit" in caught.value.hint
    (folder / "fleet.toml").write_text('[hosts.tower]\n[runs.a]\nargv = ["x"]\n')
    with pytest.raises(InvalidInput, match="is a manifest, and no run file") as caught:
        load_run(folder / "fleet.toml")
    assert "corral manifest apply" in caught.value.hint
