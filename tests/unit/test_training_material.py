"""Model, data, environment and adapter of a training run, as they are found on the user's machine."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from corral.client.submit.run_file import RunVariant, build
from corral.client.training import dataset
from corral.client.training import model_hub as hub
from corral.client.training.material import BUNDLED, MaterialReader, TrainingMaterial
from corral.domain.errors import InvalidInput

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HOME": "/nowhere"}
CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
CHAT = '{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}\n'
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "chat.jsonl").write_text(CHAT * 3)
    return tmp_path


def gather(folder: Path, *, environ: Mapping[str, str] = OFFLINE, **given: Any) -> TrainingMaterial:
    table = {"recipe": "sft", "data": "chat.jsonl", **given.pop("train", {})}
    made = build({"model": "corral/tiny", **given, "train": table}, what="run.toml")
    return MaterialReader(made, folder, environ).pin()


def refused(folder: Path, **given: Any) -> tuple[str, str]:
    with pytest.raises(InvalidInput) as caught:
        gather(folder, **given)
    return caught.value.fields[0].path, caught.value.message


def model_folder(path: Path, **config: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (path / "model.safetensors").write_bytes(b"x")
    return path


def adapter_folder(path: Path, base: str) -> Path:
    path.mkdir(parents=True)
    (path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    return path


def test_files_become_inputs_of_their_names(folder: Path) -> None:
    (folder / "more.jsonl").write_text('{"text": "x"}\n')
    (folder / "env").mkdir()
    (folder / "env" / "environment.py").write_text("def load_environment(): ...\n")

    found = gather(folder, train={"eval_data": "more.jsonl", "environment": "env"})

    assert {name: given.path for name, given in found.inputs.items()} == {
        "data": str(folder / "chat.jsonl"),
        "eval_data": str(folder / "more.jsonl"),
        "environment": str(folder / "env"),
    }
    assert found.data is not None
    assert found.data.rows == 3


def test_a_bundled_environment_stays_a_name(folder: Path) -> None:
    assert set(gather(folder, train={"environment": "arithmetic"}).inputs) == {"data"}


def test_every_bundled_environment_is_in_the_engine() -> None:
    engine = Path(hub.__file__).parents[2] / "engine" / "environments"

    assert [name for name in BUNDLED if not (engine / f"{name}.py").is_file()] == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("arithmatic", "did you mean the bundled `arithmetic`?"),
        ("chess", "bundled are: arithmetic"),
        ("./chess.py", "does not exist"),
        ("chat.jsonl", "is not a Python file"),
    ],
)
def test_an_environment_that_is_not_there_is_named(name: str, message: str, folder: Path) -> None:
    place, said = refused(folder, train={"environment": name})

    assert place == "train.environment"
    assert message in said


@pytest.mark.parametrize(
    ("text", "params", "place", "message"),
    [
        ("def load_env():\n    ...\n", {}, "train.environment", "did you mean `load_env`?"),
        ("rows = []\n", {}, "train.environment", "env.py has no function load_environment"),
        ("async def load_environment(): ...\n", {}, "train.environment", "is async"),
        (
            "def load_environment(level=1): ...\n",
            {"levle": 2},
            "train.environment_params",
            "does not take levle; did you mean `level`?",
        ),
        ("def load_environment(level): ...\n", {}, "train.environment_params", "needs level"),
    ],
)
def test_an_environment_that_cannot_be_loaded_is_refused_at_submit(
    text: str, params: dict[str, Any], place: str, message: str, folder: Path
) -> None:
    """NEW-12: what the host would refuse is refused before anything is sent."""
    (folder / "env.py").write_text(text)

    found = refused(folder, train={"environment": "env.py", "environment_params": params})

    assert found[0] == place
    assert message in found[1]


@pytest.mark.parametrize(
    "text",
    [
        "from elsewhere import load_environment\n",
        "from elsewhere import *\n",
        "try:\n    import fast as load_environment\nexcept ImportError:\n    load_environment = dict\n",
        "import functools\n\n@functools.cache\ndef load_environment(*given): ...\n",
        "def load_environment(level, **more): ...\n",
    ],
)
def test_an_environment_that_may_be_right_is_left_to_the_host(text: str, folder: Path) -> None:
    (folder / "env.py").write_text(text)

    assert (
        "environment"
        in gather(
            folder,
            train={"environment": "env.py", "environment_params": {"other": 1}},
            sweep={"train.environment_params.level": [1, 2]},
        ).inputs
    )


def test_params_of_a_bundled_environment_are_checked_at_submit(folder: Path) -> None:
    """NEW-12: the bundled one is a file like others."""
    params = {"largets": 3}

    place, said = refused(folder, train={"environment": "arithmetic", "environment_params": params})

    assert place == "train.environment_params"
    assert "did you mean `largest`?" in said


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
            "rename `conversations` to `messages`, and in each of them `from` to `role` (human becomes user",
        ),
        ({"messages": [{"from": "human", "value": "2+2?"}]}, "is a message of ShareGPT's form"),
        ({"instruction": "add", "input": "2+2", "output": "4"}, "it is Alpaca's form"),
        ({"messages": [{"role": "bot", "content": "4"}]}, "not 'bot'; write 'assistant'"),
        ({"messages": [{"role": "user", "content": ""}]}, "`messages[0].content` is empty"),
    ],
)
def test_the_form_of_rows_is_checked_at_submit(row: object, message: str, folder: Path) -> None:
    """NEW-12: by the rules of the engine. NEW-29: a foreign form is told wholly; equal faults are one line,
    and nobody is told to skip all rows."""
    (folder / "chat.jsonl").write_text(f"{json.dumps(row)}\n" * 40)

    with pytest.raises(InvalidInput) as caught:
        gather(folder)

    assert caught.value.fields[0].path == "train.data"
    assert message in caught.value.message
    assert caught.value.message.count("chat.jsonl:") == 1
    assert "chat.jsonl:1 and 39 more rows: " in caught.value.message
    assert "skip" not in caught.value.hint


def test_rows_of_two_forms_and_held_out_files_are_refused_at_submit(folder: Path) -> None:
    """NEW-12: what is wrong with the data as a whole is known here too."""
    (folder / "data").mkdir()
    (folder / "data" / "a.jsonl").write_text(CHAT)
    (folder / "data" / "b.jsonl").write_text('{"text": "a"}\n')
    assert "of several formats" in refused(folder, train={"data": "data"})[1]

    (folder / "data" / "b.jsonl").rename(folder / "data" / "test.jsonl")
    assert "looks held out" in refused(folder, train={"data": "data"})[1]


def test_rows_of_a_parquet_file_are_checked_at_submit(folder: Path) -> None:
    """NEW-12: where pyarrow is there to read them."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["a", ""]}), folder / "a.parquet")

    assert "a.parquet row 2: `text` is empty" in refused(folder, train={"data": "a.parquet"})[1]
    found = gather(folder, train={"data": "a.parquet", "bad_rows": "skip"})
    assert found.data is not None
    assert found.data.rows == 1


def test_an_environment_with_a_syntax_error_is_refused_with_its_line(folder: Path) -> None:
    (folder / "env.py").write_text("def load_environment():\n    return (\n")

    place, said = refused(folder, train={"environment": "env.py"})

    assert place == "train.environment"
    assert "env.py, line 2" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("\n\n", "has no rows"),
        ('{"text": "a"}\n{"text": "b"\n', "chat.jsonl:2: not JSON: Expecting ',' delimiter at column 13"),
        ('{"text": "a"}\n\n[1]\n', "chat.jsonl:3: a row must be an object, not a list"),
        ('{"text": "a"}\n{"text": "\udcff"}\n', "chat.jsonl:2: not UTF-8"),
        ('{"text": "a"}\n' + '{"a":' * 100_000, "chat.jsonl:2: not JSON that can be read: nested too deeply"),
        ('{"text": "a"}\n{"n": ' + "9" * 9999 + "}", "chat.jsonl:2: not JSON that can be read"),
    ],
)
def test_the_first_bad_line_is_named(text: str, message: str, folder: Path) -> None:
    (folder / "chat.jsonl").write_bytes(text.encode("utf-8", "surrogateescape"))

    place, said = refused(folder)

    assert place == "train.data"
    assert message in said


def test_bad_lines_are_counted_where_they_are_to_be_skipped(folder: Path) -> None:
    (folder / "chat.jsonl").write_text('{"text": "a"}\nnonsense\n{"text": "b"}\n')

    found = gather(folder, train={"bad_rows": "skip"})

    assert found.data is not None
    assert found.data.rows == 2
    assert found.notes == ("train.data: 1 rows cannot be used and are skipped",)


def test_a_file_of_bad_lines_alone_is_refused_even_then(folder: Path) -> None:
    (folder / "chat.jsonl").write_text("nonsense\n")

    assert "1 of 1 rows cannot be used" in refused(folder, train={"bad_rows": "skip"})[1]


def test_one_row_cannot_be_divided(folder: Path) -> None:
    (folder / "chat.jsonl").write_text('{"text": "a"}\n')

    assert gather(folder).data is not None
    assert refused(folder, train={"eval_fraction": 0.1})[0] == "train.eval_fraction"


def test_data_that_is_missing_is_named(folder: Path) -> None:
    place, said = refused(folder, train={"data": "nowhere.jsonl"})

    assert place == "train.data"
    assert "does not exist" in said


@pytest.mark.parametrize(
    ("name", "data", "rows"),
    [
        ("a.json", b'[{"text": "a"}, {"text": "b"}]', 2),
        ("a.json", b'{"text": "a"}\n{"text": "b"}\n', 2),
        ("a.jsonl", b'[{"text": "a"},\n {"text": "b"}]', 2),
        ("data", b'{"text": "a"}\n', 1),
        ("a.ndjson", b'\xef\xbb\xbf{"text": "a"}\r\n', 1),
    ],
)
def test_other_forms_of_data_are_seen_too(name: str, data: bytes, rows: int | None, folder: Path) -> None:
    (folder / name).write_bytes(data)

    assert dataset.look(folder / name, place="x", recipe="sft", skip_bad=False).rows == rows


def test_a_folder_of_files_is_added_up(folder: Path) -> None:
    (folder / "data").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (folder / "data" / name).write_text('{"text": "four"}\n')

    found = dataset.look(folder / "data", place="x", recipe="sft", skip_bad=False)

    assert (found.rows, found.text_bytes, found.longest_bytes) == (2, 8, 4)


@pytest.mark.parametrize(
    ("name", "data"), [("a.parquet", b"PAR1..."), ("a.json", b"[1, 2"), ("a.txt", b'{"text": "a"}\n')]
)
def test_a_file_that_is_cut_short_or_of_no_use_is_refused(name: str, data: bytes, folder: Path) -> None:
    (folder / name).write_bytes(data)

    with pytest.raises(InvalidInput):
        dataset.look(folder / name, place="x", recipe="sft", skip_bad=False)


def test_the_rest_of_a_very_large_file_is_counted_and_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "READ_BYTES", 100)
    (folder / "chat.jsonl").write_text('{"text": "0123456789"}\n' * 100)

    found = dataset.look(folder / "chat.jsonl", place="x", recipe="sft", skip_bad=False)

    assert (found.rows, found.text_bytes) == (100, 1000)


def test_a_model_on_this_machine_is_shipped_and_its_shape_is_known(folder: Path) -> None:
    model_folder(folder / "mine")

    found = gather(folder, model="./mine")

    assert found.inputs["model"].path == str(folder / "mine")
    assert found.model.facts is not None
    assert found.model.facts.layers == 2


def test_the_shape_of_ones_own_model_is_heeded(folder: Path) -> None:
    model_folder(folder / "mine")

    place, said = refused(folder, model="mine", train={"max_length": 1024})

    assert place == "train.max_length"
    assert "context" in said


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda path: None, "is not a folder"),
        (lambda path: path.mkdir(), "holds no config.json"),
        (lambda path: (model_folder(path) / "model.safetensors").unlink(), "no safetensors"),
        (lambda path: model_folder(path, num_experts=8), "mixture of experts"),
        (lambda path: (model_folder(path) / "config.json").write_text("{"), "cannot be read"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(broken: Any, message: str, folder: Path) -> None:
    broken(folder / "mine")

    place, said = refused(folder, model="./mine")

    assert place == "model"
    assert message in said


def test_a_name_that_can_be_no_model_is_refused(folder: Path) -> None:
    assert refused(folder, model="a/b/c")[0] == "model"


@pytest.mark.parametrize(
    ("given", "meant"), [("corral/tinny", "corral/tiny"), ("smollm2-135", "smollm2-135m")]
)
def test_a_name_that_is_nearly_a_listed_one_is_asked_about(given: str, meant: str, folder: Path) -> None:
    place, message = refused(folder, model=given, environ={"HF_ENDPOINT": "http://127.0.0.1:1"})

    assert place == "model"
    assert f"did you mean `{meant}`?" in message


def test_an_adapter_is_a_folder_an_artifact_or_a_run(folder: Path) -> None:
    adapter_folder(folder / "mine" / "adapter", "corral/tiny")

    assert gather(folder, train={"adapter": "mine"}).inputs["adapter"].path == str(folder / "mine")
    assert gather(folder, train={"adapter": "a-bcdfghjkmnpq"}).inputs["adapter"].artifact == "a-bcdfghjkmnpq"
    assert gather(folder, train={"adapter": "latest"}).inputs["adapter"].run == "latest"


@pytest.mark.parametrize(
    ("base", "message"),
    [("smollm2-135m", "was made for smollm2-135m"), ("Qwen/Qwen3-0.6B", "was made for Qwen/Qwen3-0.6B")],
)
def test_an_adapter_of_another_model_is_refused(base: str, message: str, folder: Path) -> None:
    adapter_folder(folder / "mine", base)

    place, said = refused(folder, train={"adapter": "mine"})

    assert place == "train.adapter"
    assert message in said


def test_a_folder_that_is_no_adapter_is_refused(folder: Path) -> None:
    (folder / "mine").mkdir()

    assert "adapter_config.json" in refused(folder, train={"adapter": "mine"})[1]
    assert "does not exist" in refused(folder, train={"adapter": "./nowhere"})[1]


@pytest.mark.parametrize("key", ["train.data", "train.environment", "train.adapter"])
def test_files_are_not_swept(key: str, folder: Path) -> None:
    assert key in refused(folder, sweep={key: ["a", "b"]})[1]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One with two commits: `first` is a tag of its own, `main` the newer."""
    made = tmp_path / "repository"
    (made / "sums").mkdir(parents=True)
    git(made, "init", "--quiet", "--initial-branch", "main")
    for level in (1, 2):
        (made / "sums" / "environment.py").write_text(f"def load_environment(level={level}): ...\n")
        git(made, "add", ".")
        git(made, "commit", "--quiet", "-m", f"level {level}")
        if level == 1:
            git(made, "tag", "-a", "first", "-m", "the first")
    return made


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("reference", "commit", "level"), [("@main", "HEAD", 2), ("", "HEAD", 2), ("@first", "HEAD~1", 1)]
)
def test_an_environment_by_git_reference_is_pinned_and_shipped(
    reference: str, commit: str, level: int, repository: Path, folder: Path
) -> None:
    """MT-C41, MT-D21: what moves in the repository later does not change the run."""
    environ = {**OFFLINE, "XDG_CACHE_HOME": str(folder / "cache"), "PATH": os.environ["PATH"]}
    source = f"git+file://{repository}{reference}#sums"
    made = build(
        {"model": "corral/tiny", "train": {"recipe": "sft", "data": "chat.jsonl", "environment": source}},
        what="x",
    )

    found = MaterialReader(made, folder, environ).pin()

    path = Path(found.inputs["environment"].path or "")
    assert f"level={level}" in (path / "environment.py").read_text()
    train = found.train(made, RunVariant({}, None))
    assert train.environment == f"git+file://{repository}@{git(repository, 'rev-parse', commit)}#sums"
    again = build(
        {
            **made.model_dump(exclude_unset=True),
            "train": {**(made.train or {}), "environment": train.environment},
        },
        what="x",
    )
    # The pinned form needs the repository no more: it was kept.
    repository.rename(folder / "gone")
    assert MaterialReader(again, folder, environ).pin().inputs == found.inputs


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("git+http://example.org/a", "is neither of git+https"),
        ("git+ext::sh -c true", "is neither of git+https"),
        ("git+https://ada:secret@example.org/a@main", "holds a name or a password"),
        ("git+file:///a@--upload-pack=true", "is not the address of a repository"),
        ("git+file:///a@main#../b", "is not the address of a repository"),
        ("git+file:///nowhere@main", "cannot be fetched"),
        ("git+file://REPOSITORY@missing", "has no branch or tag missing"),
        ("git+file://REPOSITORY@main#absent", "has no absent at"),
        ("git+file://REPOSITORY@main", "is not a Python file"),
    ],
)
def test_a_git_reference_that_leads_nowhere_is_refused_at_submit(
    source: str, message: str, repository: Path, folder: Path
) -> None:
    environ = {**OFFLINE, "XDG_CACHE_HOME": str(folder / "cache"), "PATH": os.environ["PATH"]}

    place, said = refused(
        folder, environ=environ, train={"environment": source.replace("REPOSITORY", str(repository))}
    )

    assert place == "train.environment"
    assert message in said
    assert "secret" not in said


class _Hub(BaseHTTPRequestHandler):
    """Answers as the model hub does."""

    answers: ClassVar[dict[str, tuple[int, dict[str, str], Any]]] = {}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, headers, body = self.answers.get(self.path, (404, {}, {"error": "Not found"}))
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def hub_at() -> Iterator[dict[str, str]]:
    _Hub.answers.clear()
    _Hub.asked.clear()
    with HTTPServer(("127.0.0.1", 0), _Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": "/nowhere"}
        server.shutdown()
        thread.join()


def test_a_model_of_the_hub_is_pinned_to_its_commit(folder: Path, hub_at: dict[str, str]) -> None:
    """MT-C49."""
    _Hub.answers["/api/models/some/model/revision/main"] = (200, {}, {"sha": COMMIT})
    _Hub.answers[f"/some/model/resolve/{COMMIT}/config.json"] = (200, {}, CONFIG)

    found = gather(folder, model="some/model", environ=hub_at)

    assert found.model.revision == COMMIT
    assert found.model.facts is not None
    assert found.model.facts.hidden == 64


def test_a_listed_model_is_pinned_by_its_full_name(folder: Path, hub_at: dict[str, str]) -> None:
    _Hub.answers["/api/models/Qwen/Qwen3-0.6B/revision/main"] = (200, {}, {"sha": COMMIT})

    assert gather(folder, model="qwen3-0.6b", environ=hub_at).model.revision == COMMIT


@pytest.mark.parametrize(
    ("said", "size"),
    [
        ({"parameters": {"BF16": 1000, "F32": 10}, "total": 1010}, 2040),
        ({"parameters": {"BF16": 1000, "Q4_ODD": 10}}, None),
        ({"parameters": {"BF16": -1}}, None),
        ({"parameters": {"BF16": 1e30}}, None),
        ({"parameters": {"BF16": 1 << 62}}, None),
        ({}, None),
        ("much", None),
    ],
)
def test_the_hub_says_how_large_a_models_weights_are(
    said: object, size: int | None, folder: Path, hub_at: dict[str, str]
) -> None:
    """MT-D18, on the disk's side: what the hub does not say follows from the model's shape, in 16 bits."""
    answer = {"sha": COMMIT, "safetensors": said}
    _Hub.answers["/api/models/some/model/revision/main"] = (200, {}, answer)
    _Hub.answers[f"/some/model/resolve/{COMMIT}/config.json"] = (200, {}, CONFIG)

    model = gather(folder, model="some/model", environ=hub_at).model

    assert model.facts is not None
    assert model.disk_bytes == (size or 2 * model.facts.params)


def test_a_model_needs_room_where_it_must_be_brought_to_the_host(folder: Path) -> None:
    """A folder is shipped as it is; what is built in takes nothing; of an unknown one nothing is known."""
    made = model_folder(folder / "own")
    files = sum(path.stat().st_size for path in made.iterdir())

    assert gather(folder, model="./own").model.disk_bytes == files
    assert gather(folder).model.disk_bytes is None
    assert gather(folder, model="some/unknown").model.disk_bytes is None


def test_what_is_built_in_is_not_looked_up(folder: Path, hub_at: dict[str, str]) -> None:
    gather(folder, environ=hub_at)

    assert _Hub.asked == []


@pytest.mark.parametrize("status", [404, 401])
def test_a_model_that_the_hub_does_not_have_is_refused(
    status: int, folder: Path, hub_at: dict[str, str]
) -> None:
    _Hub.answers["/api/models/some/model/revision/main"] = (status, {"X-Error-Code": "RepoNotFound"}, {})

    place, said = refused(folder, model="some/model", environ=hub_at)

    assert place == "model"
    assert "which the model hub does not have" in said


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [(401, {"X-Error-Code": "GatedRepo"}, {}), (403, {}, {}), (200, {}, {"sha": COMMIT, "gated": "manual"})],
)
def test_a_gated_model_is_told_before_a_machine_is_taken(
    status: int, headers: dict[str, str], body: dict[str, str], folder: Path, hub_at: dict[str, str]
) -> None:
    _Hub.answers["/api/models/some/model/revision/main"] = (status, headers, body)

    (note,) = gather(folder, model="some/model", environ=hub_at).notes

    assert "is gated" in note
    assert "corral secrets set HF_TOKEN" in note


@pytest.mark.parametrize("answer", [(500, {}, {}), (200, {}, []), (200, {}, {"sha": "../x"})])
def test_a_hub_that_does_not_answer_well_stops_nobody(
    answer: tuple[int, dict[str, str], Any], folder: Path, hub_at: dict[str, str]
) -> None:
    _Hub.answers["/api/models/some/model/revision/main"] = answer

    assert gather(folder, model="some/model", environ=hub_at).model.revision is None


def test_without_the_hub_what_was_fetched_before_is_known(folder: Path) -> None:
    kept = folder / "hub" / "models--some--model"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text(COMMIT)
    model_folder(kept / "snapshots").rename(kept / COMMIT)
    (kept / "snapshots").mkdir()
    (kept / COMMIT).rename(kept / "snapshots" / COMMIT)

    found = gather(folder, model="some/model", environ={"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)})

    assert found.model.revision == COMMIT
    assert found.model.facts is not None
