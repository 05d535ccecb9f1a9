"""The bundled environment: small sums, asked as "3+4=" and answered by the number and nothing else.

It is small enough that a model which knows nothing can find out by reward alone how it works. Three things
make that possible. Rows are drawn so that every answer is equally frequent: otherwise the first thing to be
learned is to always say the commonest. A wrong answer earns a little for its form. And that little is shared
by all attempts at a task that begin alike, so a group is better off trying different answers than agreeing on
a wrong one. With `partial = 0` nothing but the right answer counts.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}
Task = tuple[int, str, int]


def load_environment(
    largest: int = 4,
    operations: str = "+",
    count: int = 512,
    held_out: float = 0.0,
    partial: float = 0.5,
    seed: int = 0,
) -> dict[str, Any]:
    """`count` tasks with numbers from 0 to `largest`, drawn from `seed` with equally frequent answers.

    `held_out` is the share of the different tasks that are for evaluation only; at 0, evaluation asks every
    task once, those of training too. `partial` is the most that a wrong answer can earn.
    """
    _check(largest, operations, count, held_out, partial)
    tasks = [(a, sign, b) for sign in operations for a in range(largest + 1) for b in range(largest + 1)]
    trained, kept = _split(tasks, held_out, random.Random(f"split {seed}"))
    return {
        "rows": _drawn(trained, count, random.Random(f"rows {seed}")),
        "eval_rows": [_row(task) for task in kept or tasks],
        "reward": {"correct": correct, "begun": begun, "form": form},
        "weights": {"correct": 1.0, "begun": partial, "form": 0.4 * partial},
    }


def correct(completion: str, answer: str) -> bool:
    """The number, and nothing else."""
    return completion == answer


def begun(completion: str, answer: str) -> bool:
    """The number, and then something else."""
    return completion != answer and completion.startswith(answer)


def form(completions: Sequence[str], answer: str) -> list[float]:
    """Something that begins as a number but is another one, shared by those that begin alike.

    All of it for a number of the right length and nothing more, half of it otherwise.
    """
    alike = Counter(text[:1] for text in completions)
    return [_form(text, answer) / alike[text[:1]] for text in completions]


def _form(text: str, answer: str) -> float:
    if text.startswith(answer) or not text[:1] or text[0] not in "-0123456789":
        return 0.0
    return 1.0 if len(text) == len(answer) and text.lstrip("-").isdecimal() else 0.5


def _row(task: Task) -> dict[str, Any]:
    a, sign, b = task
    return {"prompt": f"{a}{sign}{b}=", "answer": str(OPERATIONS[sign](a, b))}


def _drawn(tasks: Sequence[Task], count: int, draw: random.Random) -> list[dict[str, Any]]:
    """`count` rows: answers take turns, in an order that is mixed anew each round; so do each one's tasks."""
    by_answer: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for task in tasks:
        row = _row(task)
        by_answer[row["answer"]].append(row)
    rows: list[dict[str, Any]] = []
    used: Counter[str] = Counter()
    for several in by_answer.values():
        draw.shuffle(several)
    while len(rows) < count:
        answers = sorted(by_answer)
        draw.shuffle(answers)
        for answer in answers:
            several = by_answer[answer]
            rows.append(several[used[answer] % len(several)])
            used[answer] += 1
    return rows[:count]


def _split(tasks: Sequence[Task], share: float, draw: random.Random) -> tuple[list[Task], list[Task]]:
    """Tasks to train on and tasks to hold out. One is held out only where training has another with its
    answer, so that nothing is asked whose answer was never heard."""
    shuffled = list(tasks)
    draw.shuffle(shuffled)
    left = Counter(_row(task)["answer"] for task in tasks)
    kept: list[Task] = []
    for task in shuffled:
        answer = _row(task)["answer"]
        if len(kept) < round(share * len(tasks)) and left[answer] > 1:
            kept.append(task)
            left[answer] -= 1
    return [task for task in tasks if task not in kept], sorted(kept)


def _check(largest: int, operations: str, count: int, held_out: float, partial: float) -> None:
    if not 1 <= largest <= 999:
        raise ValueError(f"largest is {largest}, not from 1 to 999")
    if not operations or not set(operations) <= set(OPERATIONS):
        raise ValueError(f"operations is {operations!r}, not made of {' '.join(OPERATIONS)}")
    if count < 1:
        raise ValueError(f"count is {count}, not 1 or more")
    if not 0 <= held_out < 1:
        raise ValueError(f"held_out is {held_out}, not from 0 to below 1")
    if not 0 <= partial < 1:
        raise ValueError(f"partial is {partial}, not from 0 to below 1: the right answer earns 1")
