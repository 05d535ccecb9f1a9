"""The bundled arithmetic environment."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from corral.engine.environments import loading
from corral.engine.environments.protocol import EnvironmentProblem, Split
from corral.engine.environments.sessions import EnvironmentAdapter, Session


def loaded(**params: Any) -> EnvironmentAdapter:
    return loading.load("arithmetic", params)


def rows(environment: EnvironmentAdapter, split: Split) -> list[tuple[str, str]]:
    found = [environment.row(split, index) for index in range(getattr(environment.description, split))]
    return [(row["prompt"], row["answer"]) for row in found]


def rewards(environment: EnvironmentAdapter, *texts: str, task: int = 0) -> list[float]:
    """What attempts at one task earn that say these texts."""

    async def go() -> list[float]:
        sessions = []
        for text in texts:
            session = Session("train", task, 0, environment.row("train", task))
            opening = await environment.start(session)
            session.messages = [*opening.messages, {"role": "assistant", "content": text}]
            session.opening = 1
            sessions.append(session)
        alone = [await environment.score(session) for session in sessions]
        together = await environment.group(sessions)
        return [round(a.reward + b.reward, 6) for a, b in zip(alone, together, strict=True)]

    return asyncio.run(go())


def task_with(environment: EnvironmentAdapter, answer: str) -> int:
    return [found for _, found in rows(environment, "train")].index(answer)


def test_tasks_are_sums_with_their_answers() -> None:
    environment = loaded(largest=12, operations="+-*")

    for prompt, answer in rows(environment, "train"):
        assert str(eval(prompt[:-1])) == answer


def test_each_answer_is_equally_frequent() -> None:
    counts = Counter(answer for _, answer in rows(loaded(count=900), "train"))

    assert counts == dict.fromkeys(map(str, range(9)), 100)


def test_rows_depend_on_the_seed_alone() -> None:
    assert rows(loaded(), "train") == rows(loaded(), "train")
    assert rows(loaded(), "train") != rows(loaded(seed=1), "train")
    assert loaded().description.fingerprint == loaded().description.fingerprint


def test_without_a_held_out_share_evaluation_asks_every_task_once() -> None:
    asked = [prompt for prompt, _ in rows(loaded(largest=3), "eval")]

    assert len(asked) == len(set(asked)) == 16


def test_held_out_tasks_are_not_trained_and_their_answers_are() -> None:
    environment = loaded(held_out=0.2)
    trained, kept = set(rows(environment, "train")), set(rows(environment, "eval"))

    assert len(kept) == 5
    assert not trained & kept
    assert {answer for _, answer in kept} <= {answer for _, answer in trained}


def test_only_the_right_answer_and_nothing_else_earns_1() -> None:
    environment = loaded()
    task = task_with(environment, "7")

    assert rewards(environment, "7", task=task) == [1.0]
    assert rewards(environment, "7!", task=task) == [0.5]
    assert rewards(environment, "3", task=task) == [0.2]
    assert rewards(environment, "3!", task=task) == [0.1]
    assert rewards(environment, "", "x", " 7", "!7", task=task) == [0.0] * 4


def test_wrong_answers_that_agree_share_what_they_earn() -> None:
    environment = loaded()
    task = task_with(environment, "7")

    assert rewards(environment, "3", "3", "3", "3", "5", "7", "7", task=task) == [0.05] * 4 + [0.2, 1.0, 1.0]


def test_without_partial_credit_only_the_right_answer_counts() -> None:
    environment = loaded(partial=0)
    task = task_with(environment, "7")

    assert rewards(environment, "3", "7!", "7", task=task) == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"largest": 0}, "largest is 0"),
        ({"operations": "/"}, "operations is '/'"),
        ({"count": 0}, "count is 0"),
        ({"held_out": 1.0}, r"held_out is 1\.0"),
        ({"partial": 1.0}, r"partial is 1\.0"),
        ({"digits": 2}, "does not take these environment_params"),
    ],
)
def test_parameters_that_make_no_sense_are_named(params: dict[str, Any], said: str) -> None:
    with pytest.raises(EnvironmentProblem, match=said):
        loaded(**params)
