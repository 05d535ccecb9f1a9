"""Sampling from any model of transformers: what generate() gives, whoever else is in the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from families_for_tests import Pair, texts, tokens_of
from models_for_tests import ALONE, KINDS, greedy, pair, plainly

from corral.engine.data.sequences import Completion, Example, SamplingParams, SamplingRequest
from corral.engine.sampling.generic_sampler import GenericSampler
from corral.engine.training import losses
from corral.recipes.train_tables import Lora

pytestmark = pytest.mark.filterwarnings(
    "ignore:fan_in_fan_out is set to False", "ignore:The following .*_pattern keys did not match"
)
LORA = Lora(rank=3)
MAMBA = ("mamba", {"state_size": 4, "expand": 2})
MINIMAX = (
    "minimax",
    {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
)
STRETCHED = KINDS["phi3: positions that stretch"]
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
# Two alike, and one that is continued beyond windows and to where positions stretch.
PROMPTS = [tokens_of(4, 1), tokens_of(11, 2), tokens_of(7, 3), tokens_of(7, 3), tokens_of(6, 4)]


def sampler_of(both: Pair, **how: Any) -> GenericSampler:
    found = both.engine.sampler(**how)
    assert isinstance(found, GenericSampler)
    return found


def run(sampler: GenericSampler, *requests: SamplingRequest) -> dict[int, Completion]:
    for request in requests:
        sampler.submit(request)
    found: dict[int, Completion] = {}
    while sampler.pending:
        found |= {completion.key: completion for completion in sampler.step()}
    return found


@pytest.mark.parametrize(
    "kind",
    [*(kind for kind in KINDS.values() if kind is not STRETCHED), *ALONE.values(), MAMBA, MINIMAX],
    ids=lambda kind: kind[0],
)
def test_greedy_tokens_are_those_of_generate_and_their_logprobs_the_trainers(kind: Any) -> None:
    """EN-D12."""
    both = pair(kind, None if kind is MAMBA else LORA)

    found = both.engine.sample(PROMPTS, GREEDY)

    assert [one.tokens for one in found] == [greedy(both.model, prompt, 12) for prompt in PROMPTS]
    assert {one.reason for one in found} == {"length"}
    whole = [Example(prompt + one.tokens, {}) for prompt, one in zip(PROMPTS, found, strict=True)]
    for one, trained in zip(found, both.engine.logprobs(whole), strict=True):
        assert one.logprobs == pytest.approx(trained[-12:], abs=1e-4)


def test_what_grows_past_the_limit_of_its_positions_goes_on_with_those_of_a_longer_sequence() -> None:
    """generate() of transformers 5.17 forgets the prompt there."""
    both = pair(STRETCHED, LORA)

    found = both.engine.sample(PROMPTS, GREEDY)

    assert [one.tokens for one in found] == [plainly(both.model, prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "kind",
    [
        KINDS["gemma3: windows, scaled embeddings"],
        KINDS["gpt2: learned positions, dropout"],
        STRETCHED,
        ALONE["qwen3_next: linear attention"],
        ALONE["bloom: attention of its own"],
    ],
    ids=lambda kind: kind[0],
)
def test_what_is_drawn_depends_on_the_seed_and_not_on_the_batch(kind: Any) -> None:
    both = pair(kind, LORA)
    requests = [
        SamplingRequest(key, prompt, SamplingParams(max_tokens=3 + 2 * key, temperature=1.3, seed=key * 10))
        for key, prompt in enumerate(PROMPTS)
    ]
    limited = [
        replace(request, key=key + 5, params=replace(request.params, top_k=7, top_p=0.8))
        for key, request in enumerate(requests)
    ]

    together = run(sampler_of(both), *requests, *limited)

    assert together[2].tokens != together[3].tokens  # equal prompts, other seeds
    for request in [*requests, *limited]:
        alone = run(sampler_of(both), request)[request.key]
        assert alone.tokens == together[request.key].tokens
        assert alone.logprobs == pytest.approx(together[request.key].logprobs, abs=2e-5)
        assert len(alone.tokens) == request.params.max_tokens


def test_a_batch_begins_when_the_last_has_ended_and_holds_no_more_than_its_rows() -> None:
    both = pair(KINDS["olmo2: norms behind"], LORA)
    sampler = sampler_of(both, rows=2)
    for key, prompt in enumerate(PROMPTS):
        sampler.submit(SamplingRequest(key, prompt, replace(GREEDY, max_tokens=4)))

    ends = []
    while sampler.pending:
        ends.append([one.key for one in sampler.step()])

    assert [keys for keys in ends if keys] == [[0, 1], [2, 3], [4]]


def test_those_who_ended_leave_and_the_others_go_on_as_before() -> None:
    both = pair(KINDS["gemma3: windows, scaled embeddings"], LORA)
    requests = [
        SamplingRequest(key, prompt, replace(GREEDY, max_tokens=(1, 12, 2, 3, 5)[key]))
        for key, prompt in enumerate(PROMPTS)
    ]

    found = run(sampler_of(both), *requests)

    for request in requests:
        count = request.params.max_tokens
        assert found[request.key].tokens == greedy(both.model, request.tokens, count)


def test_stop_tokens_and_stop_strings_end_a_sequence_and_are_part_of_it() -> None:
    both = pair(KINDS["gpt2: learned positions, dropout"], LORA)
    full = greedy(both.model, PROMPTS[0], 12)
    tokenizer = both.engine.loaded.tokenizer
    first = next(place for place, token in enumerate(full) if token not in full[:place] and place > 1)
    text = tokenizer.decode([full[first]])

    found = run(
        sampler_of(both),
        SamplingRequest(0, PROMPTS[0], replace(GREEDY, stop_tokens=(full[first],))),
        SamplingRequest(1, PROMPTS[0], replace(GREEDY, stop=(text,))),
        SamplingRequest(2, PROMPTS[0], GREEDY),
    )

    assert (found[0].tokens, found[0].reason) == (full[: first + 1], "stop")
    assert found[1].reason == "stop"
    assert text in tokenizer.decode(found[1].tokens)
    assert (found[2].tokens, found[2].reason) == (full, "length")


def test_an_aborted_request_gives_nothing_and_disturbs_nobody() -> None:
    both = pair(KINDS["olmo2: norms behind"], LORA)
    sampler = sampler_of(both, rows=4)
    for key, prompt in enumerate(PROMPTS):
        sampler.submit(SamplingRequest(key, prompt, GREEDY))
    sampler.step()

    sampler.abort(1)  # it runs
    sampler.abort(4)  # it waits
    found = run(sampler)

    assert sorted(found) == [0, 2, 3]
    assert found[2].tokens == greedy(both.model, PROMPTS[2], 12)


def test_all_may_be_aborted() -> None:
    sampler = sampler_of(pair(KINDS["olmo2: norms behind"], LORA))
    sampler.submit(SamplingRequest(0, PROMPTS[0], GREEDY))
    sampler.step()

    sampler.abort(0)

    assert (sampler.pending, sampler.step()) == (0, [])


def test_the_sampler_has_the_weights_as_they_are_and_not_while_they_change() -> None:
    both = pair(KINDS["gemma3: windows, scaled embeddings"], LORA)
    before = both.engine.sample(PROMPTS[:1], GREEDY)[0]
    both.engine.forward_backward(texts(20, 12), losses.cross_entropy())
    sampler = sampler_of(both)
    sampler.submit(SamplingRequest(0, PROMPTS[0], GREEDY))
    sampler.step()

    with pytest.raises(RuntimeError, match="weights changed"):
        both.engine.optim_step(0.5)
    run(sampler)
    both.engine.forward_backward(texts(20, 12), losses.cross_entropy())
    both.engine.optim_step(0.5)
    after = both.engine.sample(PROMPTS[:1], GREEDY)[0]

    assert after.logprobs != before.logprobs
    (trained,) = both.engine.logprobs([Example(PROMPTS[0] + after.tokens, {})])
    assert after.logprobs == pytest.approx(trained[-12:], abs=1e-4)


def test_logprobs_may_be_asked_for_while_sequences_are_sampled() -> None:
    both = pair(KINDS["gemma3: windows, scaled embeddings"], LORA)
    sampler = sampler_of(both)
    sampler.submit(SamplingRequest(0, PROMPTS[0], GREEDY))
    sampler.step()

    both.engine.logprobs([Example(PROMPTS[1], {}), Example(PROMPTS[2], {})])

    assert run(sampler)[0].tokens == greedy(both.model, PROMPTS[0], 12)


def test_no_more_is_asked_of_a_model_than_its_context_and_nothing_of_an_empty_prompt() -> None:
    both = pair(KINDS["gpt2: learned positions, dropout"], LORA)
    sampler = sampler_of(both)

    with pytest.raises(ValueError, match="do not fit the 256 tokens"):
        sampler.submit(SamplingRequest(0, tokens_of(250, 0), GREEDY))
    with pytest.raises(ValueError, match="at least one token"):
        sampler.submit(SamplingRequest(0, [], GREEDY))
    assert sampler.holds(16, 256)
    assert not sampler.holds(16, 257)


def test_a_prompt_that_many_share_is_read_once() -> None:
    both = pair(KINDS["olmo2: norms behind"], LORA)
    sampler = sampler_of(both)
    seen: list[torch.Size] = []
    body = both.engine.loaded.model.model

    def look(_module: Any, given: Any, named: Any) -> None:
        seen.append((named.get("input_ids") if "input_ids" in named else given[0]).shape)

    handle = body.register_forward_pre_hook(look, with_kwargs=True)
    found = run(
        sampler,
        *(SamplingRequest(key, PROMPTS[1], SamplingParams(max_tokens=2, seed=key)) for key in range(8)),
    )
    handle.remove()

    assert [tuple(shape) for shape in seen] == [(1, 11), (8, 1)]
    assert len({tuple(one.tokens) for one in found.values()}) > 1
