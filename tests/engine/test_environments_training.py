"""Environments under real training: a tool that a model was shown is called, and the calls are trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jobs_for_tests as jobs

from corral.engine.environments import tools

TWICE = """
def twice(x: int) -> int:
    "Double."
    with open(CALLS, "a") as calls:
        calls.write(f"{x}\\n")
    return 2 * x


def load_environment(calls: str):
    global CALLS
    CALLS = calls
    return {"rows": [{"prompt": "2x4"}], "tools": [twice], "reward": reward}


def reward(completion, messages):
    return {"right": completion == "8", "short": 1 / len(completion or "."), "called": len(messages) > 2}
"""


def rows() -> list[dict[str, Any]]:
    scope: dict[str, Any] = {}
    exec(TWICE, scope)
    call = '<tool_call>{"name": "twice", "arguments": {"x": 4}}</tool_call>'
    talk = [
        {"role": "user", "content": "2x4"},
        {"role": "assistant", "content": call},
        {"role": "tool", "name": "twice", "content": "8"},
        {"role": "assistant", "content": "8"},
    ]
    return [{"messages": talk, "tools": [tools.schema(scope["twice"])]}] * 8


def test_a_tool_using_environment_trains_and_its_tool_is_called(tmp_path: Path) -> None:
    """MT-D38: shown how to call it by SFT, the model calls it in GRPO, and a step is taken on that."""
    shown, tried = tmp_path / "shown", tmp_path / "tried"
    shown.mkdir()
    tried.mkdir()
    (shown / "talk.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    table = {
        "recipe": "sft",
        "data": "talk.jsonl",
        "steps": 40,
        "batch_size": 1,
        "learning_rate": 1e-3,
        "schedule": "constant",
        "max_length": 512,
    }
    jobs.here(jobs.write(shown, {"model": "corral/tiny", "seed": 3, "train": table}))
    calls = tried / "calls"
    jobs.here(
        jobs.grpo(
            tried,
            source=TWICE,
            environment_params={"calls": str(calls)},
            adapter=str(shown / "output" / "adapter"),
            steps=2,
            prompts_per_step=1,
            max_length=512,
            learning_rate=1e-4,
            grpo={"group_size": 4, "max_completion": 80},
        )
    )

    history = json.loads((tried / "output" / "metrics.json").read_bytes())["history"]
    assert len(history) == 2
    assert history[0]["reward/tool_calls"] > 0
    assert "4" in calls.read_text().split()
    # Some attempts differ from others, or there would be nothing to learn; the first step did learn.
    assert history[0]["grad_norm"] > 0
