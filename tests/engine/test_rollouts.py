"""Rollouts: sampler and environment side by side, tokens kept as sampled (EN-C27, EN-D04, EN-D05)."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from corral.engine.data.chat import Renderer
from corral.engine.data.sequences import Completion, SamplingParams, SamplingRequest
from corral.engine.environments.process import EnvironmentProcess
from corral.engine.environments.protocol import EnvironmentDescription
from corral.engine.environments.transcript import SampledSequence
from corral.engine.model import bytes_tokenizer
from corral.engine.sampling.rollouts import (
    Episode,
    Rollouts,
    seed_of,
)
from corral.engine.training import advantages
from corral.recipes.train_tables import Grpo, Train

TOKENIZER = bytes_tokenizer.build(4096)
STOP = bytes_tokenizer.END_OF_TURN_ID
Say = Callable[[str, SamplingRequest], str | tuple[list[int], str]]


def encoded(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


@dataclass
class FakeSampler:
    """Says what it is told to, one request a step, and remembers what it was asked."""

    say: Say
    tokenizer: PreTrainedTokenizerBase = TOKENIZER
    asked: list[SamplingRequest] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    _waiting: list[SamplingRequest] = field(default_factory=list)

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def submit(self, request: SamplingRequest) -> None:
        self.asked.append(request)
        self._waiting.append(request)

    def step(self) -> list[Completion]:
        request = self._waiting.pop(0)
        said = self.say(str(self.tokenizer.decode(list(request.tokens))), request)
        tokens, reason = ([*encoded(said), STOP], "stop") if isinstance(said, str) else said
        if len(tokens) > request.params.max_tokens:
            tokens, reason = tokens[: request.params.max_tokens], "length"
        return [Completion(request.key, tokens, [-0.5] * len(tokens), reason)]

    def abort(self, key: int) -> None:
        self.aborted.append(key)
        self._waiting = [request for request in self._waiting if request.key != key]


def settings(**grpo: Any) -> Train:
    top: dict[str, Any] = {
        name: grpo.pop(name) for name in ("thinking", "system", "max_length") if name in grpo
    }
    plain = {"recipe": "grpo", "model": "corral/tiny", "environment": "x", "max_length": 512, **top}
    sampling: dict[str, Any] = {"group_size": 2, "max_completion": 64, **grpo}
    return Train(**plain, grpo=Grpo(**sampling))


@contextmanager
def environment(folder: Path, code: str, **options: Any) -> Iterator[EnvironmentProcess]:
    (folder / "environment.py").write_text(textwrap.dedent(code))
    with EnvironmentProcess(str(folder), **options) as running:
        yield running


def rolled(
    running: EnvironmentProcess,
    say: Say,
    tasks: Sequence[int] = (0,),
    *,
    tokenizer: PreTrainedTokenizerBase = TOKENIZER,
    step: int = 1,
    **grpo: Any,
) -> tuple[list[Episode], FakeSampler]:
    sampler = FakeSampler(say, tokenizer)
    rollouts = Rollouts(sampler, running, tokenizer, settings(**grpo), seed=3)
    return rollouts.run(tasks, step=step), sampler


SUMS = """
    def load_environment():
        rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(9)]
        return {"rows": rows, "eval_rows": rows[:2], "reward": reward}

    def reward(completion, answer):
        if completion == "raise":
            raise ValueError("no")
        return {"reward": completion == answer, "length": len(completion)}
"""


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentProcess]:
    with environment(tmp_path_factory.mktemp("sums"), SUMS) as running:
        yield running


def answer(prompt: str, request: SamplingRequest) -> str:
    return str(int(prompt.partition("+")[0][-1]) + 1)


# -- one turn -----------------------------------------------------------------------------------------


def test_each_task_is_attempted_by_a_group_in_order(sums: EnvironmentProcess) -> None:
    episodes, sampler = rolled(sums, answer, [4, 2], group_size=3)

    assert [(e.task, e.group, e.index) for e in episodes] == [
        *[(4, 0, i) for i in range(3)],
        *[(2, 1, i) for i in range(3)],
    ]
    assert [e.reward for e in episodes] == [1.0] * 6
    assert episodes[0].metrics == {"length": 1.0}
    assert [m["content"] for m in episodes[0].messages] == ["4+1=", "5"]
    # Equal prompts are sampled with one prefill.
    assert len({tuple(request.tokens) for request in sampler.asked}) == 2


def test_only_sampled_tokens_are_masked_in(sums: EnvironmentProcess) -> None:
    [episode, _], _ = rolled(sums, answer)
    [sample] = episode.samples
    prompt = Renderer(TOKENIZER).prompt([{"role": "user", "content": "0+1="}])

    assert sample.tokens == [*prompt, ord("1"), STOP]
    assert sample.mask == [0.0] * len(prompt) + [1.0, 1.0]
    assert sample.logprobs == [0.0] * len(prompt) + [-0.5, -0.5]
    assert (sample.prompt, sample.reason) == (len(prompt), "stop")


def test_seeds_depend_on_run_step_task_and_attempt_alone(sums: EnvironmentProcess) -> None:
    def seeds(tasks: list[int], step: int) -> list[int]:
        _, sampler = rolled(sums, answer, tasks, step=step)
        found: dict[str, list[int]] = {}
        for request in sampler.asked:
            found.setdefault(str(TOKENIZER.decode(list(request.tokens))), []).append(request.params.seed)
        return found[max(found)]

    assert seeds([5, 8], 1) == seeds([8], 1)
    assert len({*seeds([8], 1), *seeds([8], 2)}) == 4
    assert len(set(seeds([8, 8], 1))) == 4
    assert 0 <= seed_of(1, "a") < 2**63


def test_a_sample_that_hits_the_limit_is_marked(sums: EnvironmentProcess) -> None:
    episodes, _ = rolled(sums, lambda prompt, request: "x" * 9, max_completion=4)

    assert [
        (e.truncated, e.samples[0].reason, len(e.samples[0].tokens) - e.samples[0].prompt) for e in episodes
    ] == [(True, "length", 4)] * 2


def test_an_error_is_an_episode_without_a_reward(sums: EnvironmentProcess) -> None:
    said = iter(["raise", "1"])
    episodes, _ = rolled(sums, lambda prompt, request: next(said))

    assert [e.reward for e in episodes] == [None, 1.0]
    assert (episodes[0].kind, episodes[1].error) == ("raised", None)
    assert str(episodes[0].error).startswith("ValueError: no")


def test_a_prompt_without_room_for_an_answer_is_an_error_of_its_own(sums: EnvironmentProcess) -> None:
    episodes, sampler = rolled(sums, answer, max_length=10, max_completion=5)

    assert [e.kind for e in episodes] == ["too_long", "too_long"]
    assert "max_length is 10" in str(episodes[0].error)
    assert sampler.asked == []


def test_evaluation_takes_the_held_out_rows_greedily(sums: EnvironmentProcess) -> None:
    sampler = FakeSampler(answer)
    rollouts = Rollouts(sampler, sums, TOKENIZER, settings(), seed=3)
    greedy = replace(rollouts.params(), temperature=0.0)

    episodes = rollouts.run([0, 1], step=0, split="eval", group_size=1, params=greedy)

    assert [e.reward for e in episodes] == [1.0, 1.0]
    assert {request.params.temperature for request in sampler.asked} == {0.0}


def test_episodes_are_what_advantages_are_made_of(sums: EnvironmentProcess) -> None:
    said = iter(["1", "x"])
    episodes, _ = rolled(sums, lambda prompt, request: next(said))

    assert advantages.score(episodes, settings().grpo).mean == 0.5


def test_an_episode_can_be_kept_as_json(sums: EnvironmentProcess) -> None:
    [episode, _], _ = rolled(sums, answer)

    kept = json.loads(json.dumps(episode.row()))

    assert (
        Episode(**{**kept, "samples": [SampledSequence(**sample) for sample in kept["samples"]]}) == episode
    )


def test_a_group_is_compared_when_all_of_it_is_there(tmp_path: Path) -> None:
    code = """
        def load_environment():
            functions = {"own": own, "longest": longest}
            return {"rows": [{"prompt": "a"}], "reward": functions, "weights": {"longest": 10}}

        def own(completion):
            return 1 / (completion != "bad")

        def longest(completions):
            return [float(len(text) == max(map(len, completions))) for text in completions]
    """
    said = iter(["a", "bad", "aaa"])
    with environment(tmp_path, code) as running:
        episodes, _ = rolled(running, lambda prompt, request: next(said), group_size=3)

    assert [e.reward for e in episodes] == [1.0, None, 11.0]
    assert episodes[2].metrics == {"own": 1.0, "longest": 1.0}


# -- several turns ------------------------------------------------------------------------------------

COUNT = """
    import os, pathlib, time

    def load_environment(gate=""):
        rows = [{"prompt": f"task {n}"} for n in range(12)]
        step = lambda state, completion, turn, task: next_turn(completion, turn, task, gate)
        return {"rows": rows, "start": lambda task: {"n": 0}, "step": step, "reward": lambda turns: turns}

    def next_turn(completion, turn, task, gate):
        if gate and task["prompt"] == "task 0":
            # Nothing but the others' last turns opens the gate.
            while not os.path.exists(gate):
                time.sleep(0.01)
        if "crash" in completion:
            os._exit(1)
        return None if completion == "end" else f"turn {turn}"
"""


def three_turns(prompt: str, request: SamplingRequest) -> str:
    return "end" if "turn 2" in prompt else "more"


def test_a_history_is_continued_token_by_token(tmp_path: Path) -> None:
    """EN-C27: what was sampled is never made into tokens again."""
    with environment(tmp_path, COUNT) as running:
        [episode, _], sampler = rolled(running, three_turns)

    [sample] = episode.samples
    sampled = [str(TOKENIZER.decode([t])) for t, m in zip(sample.tokens, sample.mask, strict=True) if m]
    assert "".join(sampled) == "more<|im_end|>more<|im_end|>end<|im_end|>"
    for earlier, later in zip(sampler.asked[::2], sampler.asked[2::2], strict=False):
        assert list(later.tokens[: len(earlier.tokens)]) == list(earlier.tokens)
    assert (episode.turns, episode.reward, episode.breaks) == (3, 3.0, 0)


def test_a_text_that_would_be_cut_differently_keeps_its_tokens(tmp_path: Path) -> None:
    """A special mark written out byte by byte is one token when it is read again."""
    spelled = [*b"a<|im_start|>", STOP]

    def say(prompt: str, request: SamplingRequest) -> str | tuple[list[int], str]:
        return "end" if "turn 1" in prompt else (list(spelled), "stop")

    with environment(tmp_path, COUNT) as running:
        [episode, _], _ = rolled(running, say)

    [sample] = episode.samples
    assert sample.tokens[sample.prompt : sample.prompt + len(spelled)] == spelled
    assert episode.breaks == 0


FORGETFUL = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and not loop.last %}
{{- message.content.split('</think>')[-1] }}
{%- else %}{{- message.content }}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def test_a_template_that_drops_old_thinking_begins_a_new_sample(tmp_path: Path) -> None:
    """EN-D05: the model sees what it would be served, and the break is counted."""
    tokenizer = bytes_tokenizer.build(4096)
    tokenizer.chat_template = FORGETFUL

    def say(prompt: str, request: SamplingRequest) -> str:
        return "<think>hm</think>" + ("end" if "turn 1" in prompt else "more")

    with environment(tmp_path, COUNT) as running:
        [episode, _], sampler = rolled(running, say, tokenizer=tokenizer, thinking=True)

    assert (episode.breaks, len(episode.samples), episode.reward) == (1, 2, 2.0)
    assert "hm" not in str(tokenizer.decode(list(sampler.asked[-1].tokens)))
    assert [sum(sample.mask) > 0 for sample in episode.samples] == [True, True]
    # Thinking is kept apart from the answer that environments see.
    assert [m["content"] for m in episode.messages if m["role"] == "assistant"] == ["more", "end"]
    assert episode.messages[1]["reasoning_content"] == "hm"


def test_a_slow_environment_does_not_delay_the_others_next_turn(tmp_path: Path) -> None:
    """EN-D04: task 0 hangs until all other attempts have had their last turn."""
    gate = tmp_path / "gate"
    ended: list[str] = []

    def say(prompt: str, request: SamplingRequest) -> str:
        said = three_turns(prompt, request)
        if said == "end" and "task 0" not in prompt:
            ended.append(prompt)
        if len(ended) == 2 * 11:
            gate.touch()
        return said

    with environment(tmp_path, COUNT, params={"gate": str(gate)}, workers=3, deadline_s=30.0) as running:
        episodes, _ = rolled(running, say, range(12))
        failures = running.failures

    assert [e.reward for e in episodes] == [3.0] * 24
    assert failures == {}


def test_turns_are_bounded(tmp_path: Path) -> None:
    """EN-D04."""
    with environment(tmp_path, COUNT) as running:
        episodes, sampler = rolled(running, lambda prompt, request: "more", max_turns=5)
        assert Grpo().max_turns == 8

    assert {e.turns for e in episodes} == {5}
    assert len(sampler.asked) == 10


def test_a_conversation_that_outgrows_its_length_is_cut(tmp_path: Path) -> None:
    with environment(tmp_path, COUNT) as running:
        episodes, _ = rolled(running, lambda prompt, request: "more", max_length=90, max_completion=20)

    assert {e.truncated for e in episodes} == {True}
    assert {len(s.tokens) <= 90 for e in episodes for s in e.samples} == {True}
    assert all(e.reward is not None for e in episodes)


def test_a_crash_costs_one_attempt_of_many(tmp_path: Path) -> None:
    def say(prompt: str, request: SamplingRequest) -> str:
        return "crash" if "task 1<" in prompt and "turn 1" in prompt else three_turns(prompt, request)

    with environment(tmp_path, COUNT, workers=1) as running:
        episodes, _ = rolled(running, say, range(6))
        failures = running.failures

    assert [e.kind for e in episodes] == [None, None, "crashed", "crashed", *[None] * 8]
    assert [e.reward for e in episodes if e.kind is None] == [3.0] * 10
    assert failures == {"crashed": 2}


TOOLS = """
    calls = []

    def add(a: int, b: int) -> int:
        "Add two numbers."
        calls.append((a, b))
        return a + b

    def load_environment():
        rows = [{"prompt": "What is 40+2? Use the tool.", "answer": "42"}]
        return {"rows": rows, "tools": [add], "reward": reward}

    def reward(completion, answer, messages):
        return {"right": answer in completion, "called": any(m["role"] == "tool" for m in messages)}
"""


@pytest.mark.parametrize("template", [bytes_tokenizer.CHAT_TEMPLATE, FORGETFUL])
def test_a_tool_is_offered_called_and_answered(tmp_path: Path, template: str) -> None:
    """MT-D38. A template without a place for tools is told about them in the system message."""
    tokenizer = bytes_tokenizer.build(4096)
    tokenizer.chat_template = template

    def say(prompt: str, request: SamplingRequest) -> str:
        assert '"name": "add"' in prompt
        asks = '<tool_call>{"name": "add", "arguments": {"a": 40, "b": 2}}</tool_call>'
        return "It is 42." if "tool\n42" in prompt else asks

    with environment(tmp_path, TOOLS) as running:
        [episode, _], _ = rolled(running, say, tokenizer=tokenizer, max_length=2048, max_completion=100)

    assert [m["role"] for m in episode.messages] == ["user", "assistant", "tool", "assistant"]
    assert (episode.reward, episode.metrics["tool_calls"]) == (2.0, 1.0)
    [sample] = episode.samples
    said = str(tokenizer.decode([t for t, m in zip(sample.tokens, sample.mask, strict=True) if m]))
    assert said.startswith("<tool_call>")
    assert said.endswith("It is 42.<|im_end|>")
    assert "\n42" not in said


def test_sampling_params_are_the_runs() -> None:
    train = settings(temperature=0.7, top_p=0.9, top_k=5, stop=("###",), max_completion=9)

    class Nothing:
        pending = 0
        description = EnvironmentDescription("none", 1, 0)

    rollouts = Rollouts(FakeSampler(answer), Nothing(), TOKENIZER, train, seed=0)  # type: ignore[arg-type]

    assert rollouts.params() == SamplingParams(9, 0.7, 0.9, 5, 0, ("###",), (STOP,))
