"""Requests come and go; what one gets depends on itself, and nothing is left behind."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from families_for_tests import texts, tokens_of, warm

from corral.engine.data.sequences import Completion, Example, SamplingParams, SamplingRequest
from corral.engine.engine import Engine
from corral.engine.model.decoder import Decoder
from corral.engine.sampling import decode
from corral.engine.sampling.kv_cache import SPARE, KvCache
from corral.engine.sampling.next_token import draw
from corral.engine.sampling.sampler import Sampler
from corral.engine.training import losses
from corral.recipes.train_tables import Lora

CONTEXT = 320


def made(method: Lora | None) -> Engine:
    engine = Engine.load("corral/tiny", lora=method, device="cpu")
    warm(engine.loaded.model)
    return engine


@pytest.fixture(scope="module")
def shared() -> Engine:
    """Its weights are never changed."""
    return made(Lora(rank=4))


@pytest.fixture
def sampler(shared: Engine) -> Iterator[Sampler]:
    """Nothing may be left when a test ends."""
    shared._sampler = None
    sampler = shared.sampler(rows=12, context=CONTEXT)
    yield sampler
    assert_empty(sampler)


def assert_empty(sampler: Sampler) -> None:
    pages = sampler._pages
    assert sampler.pending == 0
    assert not any(pages.uses)
    assert sorted(pages.free) == [page for page in range(len(pages.uses)) if page != SPARE]


def finish(sampler: Sampler) -> dict[int, Completion]:
    done: dict[int, Completion] = {}
    while sampler.pending:
        for completion in sampler.step():
            assert completion.key not in done
            done[completion.key] = completion
    return done


def answer(sampler: Sampler, tokens: Sequence[int], params: SamplingParams) -> Completion:
    sampler.submit(SamplingRequest(0, tokens, params))
    return finish(sampler)[0]


def free_text(engine: Engine) -> tuple[list[int], list[int]]:
    """A prompt, and what is drawn after it with seed 5 and nothing to stop it."""
    prompt = tokens_of(20, 1)
    engine._sampler = None
    return prompt, answer(engine.sampler(rows=1, context=CONTEXT), prompt, SamplingParams(60, seed=5)).tokens


# -- what a request gets ---------------------------------------------------------------------------------


def test_a_seed_gives_the_same_tokens_whatever_is_in_the_batch(sampler: Sampler) -> None:
    prompt = tokens_of(64, 2)
    params = SamplingParams(max_tokens=30, temperature=0.9, seed=77)
    right = answer(sampler, prompt, params)
    others = random.Random(0)
    for crowd in (3, 11, 30):
        for key in range(1, crowd):
            length = others.choice([1, 20, 64, 100])
            top_p, top_k = [(1.0, 9), (0.9, 0), (1.0, 0)][key % 3]
            like = SamplingParams(1 + key, 0.3 * (key % 4), top_p, top_k, seed=key)
            sampler.submit(SamplingRequest(key, prompt if key % 4 == 0 else tokens_of(length, key), like))
            if key == crowd // 2:
                sampler.submit(SamplingRequest(0, prompt, params))
        found = finish(sampler)[0]
        assert found.tokens == right.tokens
        assert found.logprobs == pytest.approx(right.logprobs, rel=1e-5, abs=1e-5)


def test_each_token_is_drawn_with_the_noise_of_its_own_place(shared: Engine, sampler: Sampler) -> None:
    """Noise that is used twice would make a sequence repeat itself."""
    prompt = tokens_of(62, 11)
    found = answer(sampler, prompt, SamplingParams(10, 1.2, seed=9)).tokens
    with torch.no_grad():
        logits = shared.loaded.model(torch.tensor([[*prompt, *found]])).logits[0, 61:71]
    places = torch.arange(62, 72)
    right, _ = draw(logits, torch.full((10,), 1.2), torch.full((10,), 9), places, torch.arange(264))
    assert found == right.tolist()


def test_other_seeds_give_other_tokens(sampler: Sampler) -> None:
    prompt = tokens_of(30, 3)
    for seed in range(12):
        sampler.submit(SamplingRequest(seed, prompt, SamplingParams(max_tokens=12, seed=seed)))
    assert len({tuple(completion.tokens) for completion in finish(sampler).values()}) == 12


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.9, 20)], ids=["free", "limited"])
def test_its_logprobs_are_the_trainers(
    shared: Engine, sampler: Sampler, temperature: float, top_p: float, top_k: int
) -> None:
    """EN-C08, EN-D03: of the same distribution, before top-k and top-p."""
    prompts = [tokens_of(length, length) for length in (1, 63, 64, 65, 130, 130)]
    for key, prompt in enumerate(prompts):
        sampler.submit(SamplingRequest(key, prompt, SamplingParams(40, temperature, top_p, top_k, seed=key)))
    done = finish(sampler)
    whole = [Example([*prompt, *done[key].tokens], {}) for key, prompt in enumerate(prompts)]
    for key, theirs in enumerate(shared.logprobs(whole, temperature=temperature or 1.0)):
        assert theirs[len(prompts[key]) :] == pytest.approx(done[key].logprobs, rel=1e-5, abs=1e-5)


def test_top_k_of_one_is_the_most_likely_token(sampler: Sampler) -> None:
    prompt = tokens_of(9, 9)
    greedy = answer(sampler, prompt, SamplingParams(20, 0.0))
    assert answer(sampler, prompt, SamplingParams(20, 1.5, top_k=1)).tokens == greedy.tokens
    assert answer(sampler, prompt, SamplingParams(20, 1.5, top_p=1e-9)).tokens == greedy.tokens


# -- when it ends ----------------------------------------------------------------------------------------


def test_it_ends_after_so_many_tokens(sampler: Sampler) -> None:
    for count in (1, 2, 17):
        found = answer(sampler, tokens_of(5, 5), SamplingParams(count))
        assert (len(found.tokens), len(found.logprobs), found.reason) == (count, count, "length")


@pytest.mark.parametrize("where", [0, 1, 30, 59])
def test_it_ends_with_a_stop_token_which_is_part_of_it(shared: Engine, where: int) -> None:
    prompt, free = free_text(shared)
    assert shared._sampler is not None
    token = free[where]
    params = SamplingParams(60, seed=5, stop_tokens=(token, 9999))
    found = answer(shared._sampler, prompt, params)
    assert found.tokens == free[: free.index(token) + 1]
    assert found.reason == "stop"
    assert_empty(shared._sampler)


def test_any_number_of_stop_tokens_is_heeded(shared: Engine) -> None:
    prompt, free = free_text(shared)
    assert shared._sampler is not None
    others = tuple(token for token in range(264) if token not in free)[:20]
    found = answer(shared._sampler, prompt, SamplingParams(60, seed=5, stop_tokens=(*others, free[10])))
    assert found.tokens == free[: free.index(free[10]) + 1]


def greedy_model(text: str, prompt: Sequence[int]) -> Engine:
    """A model that, after this prompt, says this text and then goes on with something."""
    engine = made(None)
    tokens = [*prompt, *text.encode(), *b" and so on"]
    ce = [0.0] * len(prompt) + [1 / 20] * (len(tokens) - len(prompt))
    for _ in range(60):
        step = engine.forward_backward([Example(tokens, {"ce": ce})], losses.cross_entropy())
        engine.optim_step(3e-3)
        if step.read()["loss"] < 0.01:
            break
    return engine


def test_a_stop_string_may_begin_and_end_inside_tokens_and_characters() -> None:
    """Each token is a byte here, so every stop string is split, and é and € are split inside."""
    prompt = list(b"Q: ")
    text = "le café coûte 3€ ou\n\n4"
    sampler = greedy_model(text, prompt).sampler(rows=4, context=128)
    for stop, said in {
        "café": "le café",
        "3€": "le café coûte 3€",
        "\n\n": "le café coûte 3€ ou\n\n",
        "l": "l",
    }.items():
        found = answer(sampler, prompt, SamplingParams(40, 0.0, stop=("never said", stop)))
        assert bytes(found.tokens).decode() == said
        assert found.reason == "stop"
    found = answer(sampler, prompt, SamplingParams(len(text.encode()), 0.0, stop=("cafe", "3 €")))
    assert (bytes(found.tokens).decode(), found.reason) == (text, "length")
    assert_empty(sampler)


def test_a_stop_on_the_last_token_is_a_stop(shared: Engine) -> None:
    prompt, free = free_text(shared)
    assert shared._sampler is not None
    last = free.index(free[20])
    found = answer(shared._sampler, prompt, SamplingParams(last + 1, seed=5, stop_tokens=(free[20],)))
    assert found.reason == "stop"


def test_looking_only_every_16_steps_changes_nothing(shared: Engine, sampler: Sampler) -> None:
    """As on a GPU: a sequence ends in the middle of a run, by its limit, a stop token or a stop string."""
    _, free = free_text(shared)
    shared._sampler = sampler
    letter = next(chr(token) for token in free[5:] if 32 < token < 127)
    requests = [
        SamplingRequest(0, tokens_of(20, 1), SamplingParams(60, seed=5)),
        SamplingRequest(1, tokens_of(20, 1), SamplingParams(60, seed=5, stop_tokens=(free[21],))),
        SamplingRequest(2, tokens_of(20, 1), SamplingParams(60, seed=5, stop=(letter,))),
        SamplingRequest(3, tokens_of(63, 2), SamplingParams(1, seed=6)),
        SamplingRequest(4, tokens_of(64, 3), SamplingParams(64, seed=7, top_k=40)),
        SamplingRequest(5, tokens_of(127, 4), SamplingParams(3, 0.0)),
        SamplingRequest(
            6, tokens_of(20, 1), SamplingParams(40, seed=5, stop_tokens=(*range(500, 512), free[30]))
        ),
    ]
    for request in requests:
        sampler.submit(request)
    right = finish(sampler)

    assert isinstance(shared._decoder, Decoder)
    sampler._batch = decode.DecodeBatch(shared._decoder, sampler._pages, 12, KvCache.needed(CONTEXT), 16)
    for request in requests:
        sampler.submit(request)
    found = finish(sampler)

    for key, completion in right.items():
        assert found[key].tokens == completion.tokens
        assert found[key].reason == completion.reason
        assert found[key].logprobs == pytest.approx(completion.logprobs, rel=1e-5, abs=1e-5)


def test_rows_that_stand_for_nobody_disturb_nobody(shared: Engine, sampler: Sampler) -> None:
    """As on a GPU, where a batch is filled up to the next size that has a graph."""
    prompt = tokens_of(70, 8)
    right = answer(sampler, prompt, SamplingParams(2, seed=3))
    sampler.submit(SamplingRequest(0, prompt, SamplingParams(2, seed=3)))
    with torch.no_grad():
        sampler._admit()
        (row,) = sampler._running
        batch = sampler._batch
        batch._write([decode.SequenceState(row.request, row.tokens[-1], row.length, 1, row.pages)], 5)
        batch._step(5, False)
    assert batch._drawn[0, :5].tolist() == [right.tokens[1], -1, -1, -1, -1]
    sampler.abort(0)


# -- what is refused -------------------------------------------------------------------------------------


def test_what_does_not_fit_the_context_is_refused_before_it_runs(sampler: Sampler) -> None:
    with pytest.raises(ValueError, match=f"301 tokens and 20 to sample do not fit the {CONTEXT}"):
        sampler.submit(SamplingRequest(0, tokens_of(301, 0), SamplingParams(20)))
    assert len(answer(sampler, tokens_of(300, 0), SamplingParams(20)).tokens) == 20


@pytest.mark.parametrize(
    ("tokens", "params", "message"),
    [([], SamplingParams(4), "at least one token"), ([1], SamplingParams(0), "max_tokens")],
    ids=["an empty prompt", "nothing to sample"],
)
def test_a_request_that_makes_no_sense_is_refused(
    sampler: Sampler, tokens: list[int], params: SamplingParams, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sampler.submit(SamplingRequest(0, tokens, params))


# -- pages and rows --------------------------------------------------------------------------------------


def test_a_group_holds_the_whole_pages_of_its_prompt_once(sampler: Sampler) -> None:
    for key in range(6):
        sampler.submit(SamplingRequest(key, tokens_of(130, 4), SamplingParams(20, seed=key)))
    sampler.step()
    used = sum(uses > 0 for uses in sampler._pages.uses)
    assert used == 2 + 6  # 130 + 20 tokens are three pages, of which two are the prompt's alone
    finish(sampler)


def test_what_is_aborted_gives_nothing_and_frees_its_pages_while_others_go_on(sampler: Sampler) -> None:
    prompt = tokens_of(100, 6)
    right = answer(sampler, prompt, SamplingParams(25, seed=1))
    for key in range(20):  # more than rows: the last ones wait
        sampler.submit(SamplingRequest(key, prompt, SamplingParams(25, seed=key)))
    for _ in range(5):
        sampler.step()
    for key in (0, 3, 4, 11, 15, 19):
        sampler.abort(key)
    sampler.abort(1234)
    assert sampler.pending == 14
    done = finish(sampler)
    assert sorted(done) == [key for key in range(20) if key not in (0, 3, 4, 11, 15, 19)]
    assert done[1].tokens == right.tokens


def test_pages_are_used_again_without_a_trace(sampler: Sampler) -> None:
    prompt = tokens_of(40, 7)
    right = answer(sampler, prompt, SamplingParams(50, seed=2)).tokens
    for key in range(40):
        sampler.submit(SamplingRequest(key, tokens_of(150, 900 + key), SamplingParams(1 + key, seed=key)))
    finish(sampler)
    assert answer(sampler, prompt, SamplingParams(50, seed=2)).tokens == right


def test_when_pages_are_short_requests_wait_for_them(shared: Engine, sampler: Sampler) -> None:
    """Rows are free here, pages are not."""
    right = {}
    for key in range(6):
        right[key] = answer(sampler, tokens_of(100, key), SamplingParams(30, seed=key)).tokens
    hidden = [sampler._pages.free.pop() for _ in range(len(sampler._pages.free) - 7)]
    for key in range(6):
        sampler.submit(SamplingRequest(key, tokens_of(100, key), SamplingParams(30, seed=key)))
    done = finish(sampler)
    sampler._pages.free += hidden
    assert {key: completion.tokens for key, completion in done.items()} == right


def test_a_sampler_that_is_asked_for_more_keeps_what_it_had(shared: Engine) -> None:
    shared._sampler = None
    shared.sampler(rows=2, context=3000)
    larger = shared.sampler(rows=4, context=100)
    assert larger.holds(4, 3000)
    assert shared.sampler(rows=3, context=2500) is larger


def test_a_sampler_with_requests_in_it_is_not_thrown_away(shared: Engine) -> None:
    shared._sampler = None
    sampler = shared.sampler(rows=1, context=64)
    sampler.submit(SamplingRequest(0, [1, 2], SamplingParams(3)))
    with pytest.raises(RuntimeError, match="not ended"):
        shared.sampler(rows=2, context=64)
    finish(sampler)


# -- the engine's own call -------------------------------------------------------------------------------


def test_sample_answers_in_order_and_counts_the_seed_up(shared: Engine) -> None:
    prompts = [tokens_of(10, 1), tokens_of(30, 2), tokens_of(10, 1)]
    shared._sampler = None
    found = shared.sample(prompts, SamplingParams(12, seed=40))
    sampler = shared.sampler(rows=1, context=64)
    for number, (prompt, completion) in enumerate(zip(prompts, found, strict=True)):
        assert completion.tokens == answer(sampler, prompt, SamplingParams(12, seed=40 + number)).tokens
    assert found[0].tokens != found[2].tokens


def test_a_short_sample_does_not_set_aside_memory_for_a_large_batch(shared: Engine) -> None:
    """For smollm2-135m, 256 sequences of 2048 tokens are 24 GB."""
    shared._sampler = None
    shared.sample([tokens_of(10, 1)], SamplingParams(3))
    assert shared._sampler is not None
    pages = shared._sampler._pages
    shared._sampler = None
    assert pages.keys.nbytes + pages.values.nbytes < 64e6


# -- weights that change ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Lora(rank=4), None], ids=["lora", "full"])
def test_after_a_step_the_new_weights_are_sampled_from(method: Lora | None) -> None:
    engine = made(method)
    sampler = engine.sampler(rows=2, context=64)
    prompt = tokens_of(10, 3)
    before = answer(sampler, prompt, SamplingParams(12, 0.0))
    for _ in range(3):
        engine.forward_backward(texts(40, 40), losses.cross_entropy())
        engine.optim_step(3e-2)

    after = answer(sampler, prompt, SamplingParams(12, 0.0))

    row = torch.tensor([prompt])
    theirs = copy.deepcopy(engine.loaded.model).generate(
        row, attention_mask=torch.ones_like(row), max_new_tokens=12, do_sample=False, eos_token_id=None
    )
    assert after.tokens == theirs[0, 10:].tolist()
    assert after.tokens != before.tokens
    (trained,) = engine.logprobs([Example([*prompt, *after.tokens], {})])
    assert trained[10:] == pytest.approx(after.logprobs, rel=1e-5, abs=1e-5)


def test_weights_may_not_change_under_a_running_sequence() -> None:
    engine = made(Lora(rank=4))
    sampler = engine.sampler(rows=2, context=64)
    sampler.submit(SamplingRequest(0, tokens_of(10, 3), SamplingParams(12)))
    sampler.step()
    engine.forward_backward(texts(40), losses.cross_entropy())
    before = {name: p.detach().clone() for name, p in engine.loaded.model.named_parameters()}

    with pytest.raises(RuntimeError, match="weights changed while sequences were being sampled"):
        engine.optim_step(1e-2)

    # Otherwise trainer and sampler would be of different weights from here on.
    assert all(torch.equal(p, before[name]) for name, p in engine.loaded.model.named_parameters())
    sampler.abort(0)
    engine.optim_step(1e-2)


def test_the_cache_holds_what_sequences_usually_have_and_a_longer_one_too(shared: Engine) -> None:
    """DEF-09: the cache is sized by need. Where longer ones leave too few pages, fewer run at once."""
    shared._sampler = None
    sampler = shared.sampler(rows=4, context=CONTEXT, usual=64)
    assert len(sampler._pages.uses) == max(4, KvCache.needed(CONTEXT)) + 1
    for key in range(4):
        sampler.submit(SamplingRequest(key, [1] * 200, SamplingParams(max_tokens=100, seed=key)))

    done = finish(sampler)

    assert sorted(done) == [0, 1, 2, 3]
    assert_empty(sampler)
    alone = shared.sampler(rows=8, context=CONTEXT)
    assert alone is not sampler
    assert len(alone._pages.uses) == 8 * KvCache.needed(CONTEXT) + 1
    shared._sampler = None
