"""Reading data: what is accepted, and how exactly what is not is named."""

from __future__ import annotations

import json
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.engine.data.rows import BadRows, RowSet, read
from corral.engine.errors import DataError
from corral.recipes.rows.formats import (
    ChatRow,
    CompletionRow,
    PairRow,
    Row,
    RowFormat,
    RowLocation,
    TaskRow,
    TextRow,
    TokensRow,
    parse,
)
from corral.recipes.rows.messages import RowError

USER = {"role": "user", "content": "2+2?"}
ANSWER = {"role": "assistant", "content": "4"}
CHAT = {"messages": [USER, ANSWER]}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}],
}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*rows: object, name: str = "data.jsonl", end: str = "\n", head: bytes = b"") -> Path:
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_bytes(head + "".join(line + end for line in lines).encode())
        return path

    return write


def one(row: object, recipe: str = "sft") -> Row:
    return parse(row, RowLocation("data.jsonl", 1), recipe)[1]


def refused(row: object, recipe: str = "sft") -> str:
    with pytest.raises(RowError) as caught:
        one(row, recipe)
    return str(caught.value)


# Files


def test_rows_know_their_line_whatever_stands_between_them(write: Write) -> None:
    path = write("", CHAT, "  ", CHAT, "", end="\r\n", head=b"\xef\xbb\xbf")
    rows = read(path, recipe="sft")
    assert [str(row.where) for row in rows] == [f"{path}:2", f"{path}:4"]
    assert rows.format is RowFormat.CHAT
    assert rows[-1] == rows[1]


def test_a_last_line_without_an_end_is_a_row(write: Write) -> None:
    path = write()
    path.write_bytes(json.dumps(CHAT).encode() + b"\n" + json.dumps(CHAT).encode())
    assert len(read(path, recipe="sft")) == 2


@pytest.mark.parametrize("name", ["data.json", "data.jsonl"])
def test_a_json_array_is_rows_too(write: Write, name: str) -> None:
    rows = read(write(json.dumps([CHAT, {"messages": [USER, CALL]}], indent=1), name=name), recipe="sft")
    assert [rows.where(i).line for i in range(2)] == [1, 2]
    assert str(rows.where(1)).endswith("row 2")
    assert isinstance(rows[0], ChatRow)


def test_json_lines_in_a_file_called_json_are_read(write: Write) -> None:
    assert len(read(write(CHAT, CHAT, name="data.json"), recipe="sft")) == 2


def test_parquet_gives_the_same_rows_as_jsonl(write: Write, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    given = [CHAT, {"messages": [USER, CALL, {"role": "tool", "content": "4"}, ANSWER], "id": 3}] * 700
    path = tmp_path / "data.parquet"
    parquet.write_table(arrow.Table.from_pylist(given), path, row_group_size=50)
    ours = read(path, recipe="sft")
    theirs = read(write(*given), recipe="sft")
    assert len(ours) == len(theirs) == 1400
    for mine, other in zip(ours, theirs, strict=True):
        assert isinstance(mine, ChatRow)
        assert isinstance(other, ChatRow)
        assert mine.messages == other.messages
    assert str(ours.where(2)) == f"{path} row 3"


def test_parquet_text_that_is_marked_as_bytes_is_text_and_other_bytes_are_refused(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "data.parquet"
    parquet.write_table(arrow.table({"text": ["ä".encode(), b"\xff"], "seen": [1.5, float("nan")]}), path)
    rows = read(path, recipe="sft", bad_rows="skip")
    assert [row.text for row in rows if isinstance(row, TextRow)] == ["ä"]
    assert "surrogate" in str(rows.problems[0])


def test_without_pyarrow_a_parquet_file_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EN-D09: the engine itself needs no pyarrow."""
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "data.parquet").write_bytes(b"PAR1....PAR1")
    with pytest.raises(DataError, match="pyarrow is not installed") as caught:
        read(tmp_path / "data.parquet", recipe="sft")
    assert "pip install pyarrow" in caught.value.hint


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "data.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match=r"data\.parquet cannot be read as Parquet"):
        read(tmp_path / "data.parquet", recipe="sft")


def test_a_folder_is_its_files_by_name(write: Write, tmp_path: Path) -> None:
    write({"text": "b"}, name="b.jsonl")
    write({"text": "a"}, {"text": "c"}, name="a.json")
    (tmp_path / ".hidden.jsonl").write_text("nonsense")
    (tmp_path / "README.md").write_text("nonsense")
    rows = read(tmp_path, recipe="sft")
    assert [row.text for row in rows if isinstance(row, TextRow)] == ["a", "c", "b"]
    assert [rows.where(i).line for i in range(3)] == [1, 2, 1]


def test_a_folder_that_mixes_training_and_held_out_files_is_refused(write: Write, tmp_path: Path) -> None:
    write(CHAT, name="train.jsonl")
    write(CHAT, name="test-00001.jsonl")
    with pytest.raises(DataError, match=r"test-00001\.jsonl, which looks held out") as caught:
        read(tmp_path, recipe="sft")
    assert "eval_data" in caught.value.hint


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: folder / "none.jsonl", "does not exist"),
        (lambda folder: folder, "holds no JSONL"),
        (lambda folder: _file(folder, "data.csv", b"a,b"), "is not JSONL, JSON or Parquet by its name"),
        (lambda folder: _file(folder, "data.jsonl", b""), "holds no rows"),
        (lambda folder: _file(folder, "data.jsonl", b"\n \r\n"), "holds no rows"),
        (lambda folder: _file(folder, "data.json", b"[]"), "holds no rows"),
        (lambda folder: _file(folder, "data.jsonl", "{}".encode("utf-16")), "is UTF-16"),
        (lambda folder: _file(folder, "data.json", b'[{"text": "a"},\n{"text" 1}]'), r"json:2: not JSON"),
        (
            lambda folder: _file(folder, "data.json", b'[{"text": "a"},\n{"text": "\xff"}]'),
            r"json:2: not UTF-8",
        ),
    ],
)
def test_data_that_is_none_is_named(tmp_path: Path, make: Callable[[Path], Path], said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        read(make(tmp_path), recipe="sft", bad_rows="skip")
    assert caught.value.hint


def _file(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def test_broken_lines_are_named_by_number_and_refused(write: Write) -> None:
    path = write(CHAT, '{"messages": [', CHAT, '{"text": NULL}', "[" * 5000)
    with pytest.raises(BadRows) as caught:
        read(path, recipe="sft")
    assert caught.value.total == 3
    assert [problem.where.line for problem in caught.value.problems] == [2, 4, 5]
    assert f"{path}:2: not JSON: Expecting value at column 15" in str(caught.value)
    assert "3 of 5 rows" in str(caught.value)
    assert 'bad_rows = "skip"' in caught.value.hint


def test_bad_rows_are_skipped_and_counted_where_asked(write: Write) -> None:
    rows = read(write(CHAT, "broken", *["also broken"] * 30, CHAT), recipe="sft", bad_rows="skip")
    assert [rows.where(i).line for i in range(len(rows))] == [1, 33]
    assert rows.skipped == 31
    assert [(problem.where.line, problem.more) for problem in rows.problems] == [(2, 30)]


def test_bad_rows_are_told_by_kind_as_the_user_calls_the_file(write: Write) -> None:
    """NEW-29: forty copies of one fault are one line; of many kinds ten are named."""
    path = write(CHAT, *["broken"] * 30, *({"text": number} for number in range(2)))
    with pytest.raises(BadRows) as caught:
        read(path, recipe="sft", called="data/mine.jsonl")
    first, *lines = str(caught.value).split("\n  ")
    assert first == "32 of 33 rows cannot be used:"
    assert lines[0].startswith("data/mine.jsonl:2 and 29 more rows: not JSON")
    assert lines[1:] == ["data/mine.jsonl:32 and 1 more row: `text` must be text, not a number"]
    with pytest.raises(BadRows, match=r"\n  folder/data\.jsonl:2 and 29 more rows: "):
        read(path.parent, recipe="sft", called="folder")
    with pytest.raises(DataError, match=r"^mine does not exist"):
        read(path.parent / "elsewhere", recipe="sft", called="mine")

    many = [json.dumps({"text": "x"}) + " " * number + "x" for number in range(30)]
    with pytest.raises(BadRows, match=r"\n  and 20 more$"):
        read(write(CHAT, *many), recipe="sft")


def test_if_every_row_is_bad_nothing_is_skipped_to(write: Write) -> None:
    with pytest.raises(BadRows, match="2 of 2 rows"):
        read(write("x", "y"), recipe="sft", bad_rows="skip")


def test_a_line_that_is_not_utf8_names_the_byte(write: Write) -> None:
    path = write(CHAT)
    path.write_bytes(path.read_bytes() + b'{"text": "\xe9"}\n')
    with pytest.raises(BadRows, match=r"data\.jsonl:2: not UTF-8: byte 0xe9 at column 11"):
        read(path, recipe="sft")


@pytest.mark.parametrize("policy", ["refuse", "skip"])
def test_mixed_formats_name_the_first_row_of_each(write: Write, policy: str) -> None:
    path = write(CHAT, CHAT, {"text": "a"}, {"prompt": "a", "completion": "b"})
    with pytest.raises(DataError, match="several formats") as caught:
        read(path, recipe="sft", bad_rows=policy)  # type: ignore[arg-type]
    assert f"chat (messages) first at {path}:1" in str(caught.value)
    assert f"text first at {path}:3" in str(caught.value)
    assert f"prompt and completion first at {path}:4" in str(caught.value)


def test_one_row_is_enough_and_copies_are_told(write: Write) -> None:
    assert read(write(CHAT), recipe="sft").notes == ["there is one row only"]
    assert read(write(CHAT, CHAT, {"messages": [USER, CALL]}), recipe="sft").notes == [
        "1 of 3 rows are exact copies of others"
    ]


def test_a_large_file_is_kept_as_offsets_only(write: Write) -> None:
    path = write()
    line = json.dumps({"text": "x" * 200}) + "\n"
    path.write_text(line * 30_000)
    tracemalloc.start()
    rows = read(path, recipe="sft")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rows) == 30_000
    assert rows.where(29_999).line == 30_000
    assert kept < path.stat().st_size / 3


def test_rows_can_be_read_from_several_threads(write: Write) -> None:
    rows = read(write(*({"text": f"row {i}"} for i in range(200))), recipe="sft")
    wrong: list[int] = []

    def check() -> None:
        for i in range(200):
            row = rows[i]
            if not isinstance(row, TextRow) or row.text != f"row {i}":
                wrong.append(i)

    threads = [threading.Thread(target=check) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_file_that_changes_under_the_reader_is_told(write: Write) -> None:
    path = write(CHAT, CHAT)
    rows = read(path, recipe="sft")
    with path.open("r+b") as file:
        file.write(b"x" * 10)
    with pytest.raises(DataError, match=r"data\.jsonl:1 was a row when the data was opened"):
        rows[0]


def test_a_subset_keeps_lines_and_order(write: Write) -> None:
    rows: RowSet = read(write(*({"text": f"row {i}"} for i in range(9))), recipe="sft")
    some = rows.subset([7, 2]).subset([1, 0])
    assert [some.where(i).line for i in range(2)] == [3, 8]
    assert some.key(0) == rows.key(2)


# Formats


def test_chat_rows_keep_what_templates_read() -> None:
    row = one(
        {
            "messages": [USER, {**CALL, "weight": 0}, {"role": "tool", "content": "", "name": "add"}, ANSWER],
            "tools": [{"type": "function", "function": {"name": "add"}}],
            "weight": 0.5,
        }
    )
    assert isinstance(row, ChatRow)
    assert row.trained == [3]
    assert row.weight == 0.5
    assert row.tools == ({"type": "function", "function": {"name": "add"}},)
    assert row.messages[1]["tool_calls"] == [{"function": {"name": "add", "arguments": {}}}]
    assert row.messages[1]["content"] == ""


def test_text_parts_are_joined_and_images_refused() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = one({"messages": [{"role": "user", "content": parts}, ANSWER]})
    assert isinstance(row, ChatRow)
    assert row.messages[0]["content"] == "ab"
    bad = {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}
    assert refused({"messages": [bad, ANSWER]}) == "`messages[0].content[0]` must be text, not 'image_url'"


def test_prompt_and_completion_may_be_text_or_messages() -> None:
    assert one({"prompt": "a", "completion": "b"}) == CompletionRow(RowLocation("data.jsonl", 1), "a", "b")
    row = one({"prompt": [USER, ANSWER, USER], "completion": [ANSWER]})
    assert isinstance(row, ChatRow)
    assert row.trained == [3]
    assert row == one({"prompt": [USER, ANSWER, USER], "completion": "4"})


def test_tokens_may_carry_a_weight_each() -> None:
    """EN-D21: weights per token."""
    row = one({"tokens": [5, 6, 7], "weights": [0, 0.5, 2], "weight": 3})
    assert row == TokensRow(RowLocation("data.jsonl", 1), (5, 6, 7), (0.0, 0.5, 2.0), 3.0)


def test_preference_pairs_are_read_in_three_spellings() -> None:
    """EN-C19: OpenAI's names too."""
    worse = {"role": "assistant", "content": "5"}
    rows = [
        one({"prompt": [USER], "chosen": [ANSWER], "rejected": [worse]}, "dpo"),
        one({"chosen": [USER, ANSWER], "rejected": [USER, worse]}, "dpo"),
        one(
            {"input": {"messages": [USER]}, "preferred_output": [ANSWER], "non_preferred_output": [worse]},
            "dpo",
        ),
    ]
    assert rows[0] == rows[1] == rows[2]
    assert isinstance(rows[0], PairRow)
    assert isinstance(rows[0].chosen, ChatRow)
    assert rows[0].chosen.trained == [1]
    text = one({"prompt": "a", "chosen": "b", "rejected": "c"}, "dpo")
    assert isinstance(text, PairRow)
    assert isinstance(text.chosen, CompletionRow)


@pytest.mark.parametrize("key", ["prompt", "question"])
def test_prompts_for_rl_keep_what_the_reward_needs(key: str) -> None:
    row = one({key: "2+2?", "answer": 4, "info": '{"level": 1}', "source": "x"}, "grpo")
    assert isinstance(row, TaskRow)
    assert (row.prompt, row.answer, row.info, row.fields) == ("2+2?", 4, {"level": 1}, {"source": "x"})
    assert isinstance(one({"messages": [USER], "reference": 1}, "grpo"), TaskRow)


def chat(*messages: object, **more: object) -> dict[str, object]:
    return {"messages": list(messages), **more}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (3, "a row must be an object, not a number"),
        ([], "a row must be an object, not a list"),
        ({}, "needs `messages`, `prompt` and `completion`, `text`, or `tokens`; this one holds nothing"),
        ({"conversations": []}, "it is ShareGPT's form: rename `conversations` to `messages`"),
        ({"prompt": "a"}, "this one holds `prompt`"),
        ({"chosen": [], "rejected": []}, "this one is a preference pair"),
        (chat(), "`messages` is empty"),
        ({"messages": "hello"}, "`messages` must be a list of messages, not text"),
        (chat("hello"), "`messages[0]` must be an object with role and content, not text"),
        (chat({"role": "bot", "content": "a"}), "`messages[0].role` must be one of system"),
        (chat({"content": "a"}), "not nothing"),
        (chat({"role": "user", "content": 3}), "`messages[0].content` must be text, not a number"),
        (chat({"role": "user", "content": ""}), "`messages[0].content` is empty"),
        (chat(USER, {"role": "assistant", "content": None}), "`messages[1].content` is empty"),
        (
            chat(USER, {"role": "assistant", "content": "", "tool_calls": []}),
            "`messages[1].content` is empty",
        ),
        (chat(USER), "there is no assistant message to train on"),
        (chat(USER, {**ANSWER, "weight": 0}), "every assistant message has weight 0"),
        (chat(USER, {**ANSWER, "weight": "1"}), "`messages[1].weight` must be a number, not text"),
        (chat(USER, {**ANSWER, "weight": True}), "`messages[1].weight` must be a number, not true"),
        (chat(USER, {**ANSWER, "weight": -1}), "must be a finite number from 0 on, not -1.0"),
        (chat(USER, {**ANSWER, "weight": 10**400}), "must be a finite number from 0 on, not inf"),
        (chat({**USER, "weight": 1}, ANSWER), "only assistant messages are trained"),
        (chat(USER, ANSWER, weight=0), "`weight` is 0"),
        (chat(USER, ANSWER, weight=float("nan")), "must be a finite number"),
        (chat(USER, ANSWER, tools={}), "`tools` must be a list of objects, not an object"),
        (chat(USER, ANSWER, tools="["), "`tools` is not JSON"),
        (chat(USER, {**CALL, "tool_calls": [{}]}), "`messages[1].tool_calls[0]` must name a function"),
        (chat(USER, {**CALL, "tool_calls": [{"name": "f", "arguments": "{"}]}), "arguments` is not JSON"),
        (
            chat(USER, {**CALL, "tool_calls": [{"name": "f", "arguments": "3"}]}),
            "must be an object, not a number",
        ),
        (chat({"role": "user", "content": "\ud800"}, ANSWER), "half of a surrogate pair"),
        ({"text": ""}, "`text` is empty"),
        ({"text": 3}, "`text` must be text, not a number"),
        ({"prompt": "a", "completion": ""}, "`completion` is empty"),
        ({"prompt": "a", "completion": [ANSWER]}, "give both alike"),
        ({"prompt": 3, "completion": "a"}, "`prompt` must be a text or a list of messages, not a number"),
        ({"tokens": [1]}, "at least two token ids"),
        ({"tokens": [1, -1]}, "whole numbers"),
        ({"tokens": [1, 2], "weights": [1]}, "a list of 2 numbers, one per token, not 1 weights"),
        ({"tokens": [1, 2], "weights": [1, 0]}, "all 0 after the first"),
    ],
)
def test_a_row_that_cannot_be_trained_names_the_value(row: object, said: str) -> None:
    """MT-D31: whatever the type of a value, a named field and what was expected."""
    assert said in refused(row)


@pytest.mark.parametrize(
    ("row", "recipe", "said"),
    [
        ({"text": "a"}, "grpo", "needs `prompt`, `messages` or `question`; this one holds `text`"),
        (CHAT, "grpo", "ends with an assistant message"),
        ({"prompt": ""}, "grpo", "`prompt` is empty"),
        ({"prompt": "a", "info": 3}, "grpo", "`info` must be an object"),
        (CHAT, "dpo", "needs `chosen` and `rejected`; this one is a chat"),
        ({"chosen": [USER, ANSWER], "rejected": [USER, ANSWER]}, "dpo", "the beginning of the other"),
        ({"chosen": "a", "rejected": "b"}, "dpo", "`prompt` must be text, not nothing"),
    ],
)
def test_a_row_of_another_recipe_is_refused(row: object, recipe: str, said: str) -> None:
    assert said in refused(row, recipe)
