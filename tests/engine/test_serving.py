"""A trained model answers OpenAI's own client, in the form that it was trained in."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs_for_tests import environ, run, sft
from support.waiting import eventually
from tokenizers_for_tests import byte_pairs

from corral.engine.data.prompt_form import PromptForm
from corral.engine.data.sequences import SamplingRequest
from corral.engine.engine import Engine
from corral.engine.eval_and_sample import answer
from corral.engine.model import bytes_tokenizer
from corral.engine.serving.generation import GenerationLoop
from corral.engine.serving.model import ServedModel
from corral.engine.serving.server import MAX_BODY_BYTES, ModelServer
from corral.engine.serving.text import AnswerText
from corral.recipes.train import parse
from corral.recipes.train_tables import Lora

KEY = "a-key-for-tests-alone"
CONTEXT = 256
TOKENIZER = bytes_tokenizer.build(CONTEXT)
PAIRS = byte_pairs()


def url_of(server: ModelServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


@contextmanager
def served(form: PromptForm, **about: Any) -> Iterator[ModelServer]:
    train = parse("corral/tiny", {"recipe": "sft", "data": "rows.jsonl", **about})
    engine = Engine.load("corral/tiny", lora=Lora(rank=4), device="cpu")
    model = ServedModel("tiny", engine, train, form, rows=4, context=CONTEXT)
    server = ModelServer(("127.0.0.1", 0), model, KEY)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with served(PromptForm.CHAT) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ModelServer) -> Iterator[openai.OpenAI]:
    # Every answer is checked against the types that OpenAI publishes.
    with openai.OpenAI(
        base_url=f"{url_of(server)}/v1", api_key=KEY, max_retries=0, _strict_response_validation=True
    ) as made:
        yield made


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def post(server: ModelServer, path: str, body: Any, key: str = KEY) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    return httpx.post(url_of(server) + path, content=content, headers=headers, timeout=60, trust_env=False)


# -- answers ----------------------------------------------------------------------------------------------


def test_a_greedy_answer_is_the_one_that_sampling_gives(server: ModelServer, client: openai.OpenAI) -> None:
    """Token by token: the same template, and the same marks that end it."""
    engine = Engine.load("corral/tiny", lora=Lora(rank=4), device="cpu")
    prompt = engine.loaded.tokenizer.apply_chat_template(user("one, two"), add_generation_prompt=True)[
        "input_ids"
    ]
    [wanted] = answer(engine, [prompt], {"max_tokens": 24, "temperature": 0.0, "seed": 0})

    said = client.chat.completions.create(
        model="tiny", messages=user("one, two"), temperature=0, max_tokens=24, logprobs=True
    )

    [choice] = said.choices
    assert choice.message.content == wanted["completion"]
    assert choice.finish_reason == wanted["reason"]
    assert said.usage is not None
    assert (said.usage.prompt_tokens, said.usage.completion_tokens) == (len(prompt), wanted["tokens"])
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(one.token for one in choice.logprobs.content) == choice.message.content


def test_a_stream_says_the_same_in_pieces(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": user("abc"), "seed": 5, "max_tokens": 30, "n": 2}
    whole = client.chat.completions.create(**asked)

    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )

    for choice in whole.choices:
        mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert mine[0].delta.role == "assistant"
        assert "".join(one.delta.content or "" for one in mine) == choice.message.content
        assert [one.finish_reason for one in mine if one.finish_reason] == [choice.finish_reason]
    assert chunks[-1].usage == whole.usage
    assert len(chunks) > 4


async def _async_answer(server: ModelServer) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url_of(server)}/v1", api_key=KEY, max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=user("abc"), seed=5, max_tokens=30, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def test_the_asynchronous_client_gets_the_same_answer(server: ModelServer, client: openai.OpenAI) -> None:
    said = client.chat.completions.create(model="tiny", messages=user("abc"), seed=5, max_tokens=30)

    assert asyncio.run(_async_answer(server)) == said.choices[0].message.content


def test_a_seed_gives_the_same_choices_again_and_each_choice_differs(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": user("go"), "n": 4, "max_tokens": 12}

    def choices(seed: int) -> list[str | None]:
        return [c.message.content for c in client.chat.completions.create(**asked, seed=seed).choices]

    first = choices(1)
    assert choices(1) == first
    assert choices(2) != first
    assert len(set(first)) > 1


def test_many_at_once_get_each_its_own_answer(client: openai.OpenAI) -> None:
    """More than the rows of the sampler: some wait, and nobody hears what another was told."""

    def ask(number: int) -> str | None:
        said = client.chat.completions.create(
            model="tiny", messages=user(f"number {number}"), seed=number, max_tokens=10
        )
        return said.choices[0].message.content

    alone = [ask(number) for number in range(12)]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(ask, range(12)))

    assert together == alone
    assert len(set(alone)) > 6


def test_completions_take_texts_and_tokens(server: ModelServer, client: openai.OpenAI) -> None:
    said = client.completions.create(
        model="tiny", prompt=["ab", "ab"], n=2, seed=1, max_tokens=8, logprobs=0, temperature=1
    )
    of_tokens = client.completions.create(
        model="tiny", prompt=list(b"ab"), n=2, seed=1, max_tokens=8, temperature=1
    )

    assert [choice.index for choice in said.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in said.choices[:2]] == [choice.text for choice in of_tokens.choices]
    assert said.usage is not None
    assert said.usage.prompt_tokens == 4
    first = said.choices[0]
    assert first.logprobs is not None
    assert "".join(first.logprobs.tokens or []) == first.text


def test_a_stop_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": user("go"), "seed": 3, "max_tokens": 40}
    free = client.chat.completions.create(**asked).choices[0].message.content or ""
    stop = free[3:5]

    [choice] = client.chat.completions.create(**asked, stop=[stop, "never said"]).choices

    assert choice.message.content == free[: free.index(stop)]
    assert choice.finish_reason == "stop"


def test_a_model_of_plain_text_is_asked_in_plain_text() -> None:
    """As `corral sample` asks it: the template would be something that it never saw."""
    with (
        served(PromptForm.TEXT) as plain,
        openai.OpenAI(base_url=f"{url_of(plain)}/v1", api_key=KEY) as client,
    ):
        asked: dict[str, Any] = {"model": "tiny", "seed": 4, "temperature": 1, "max_tokens": 9}
        chat = client.chat.completions.create(messages=user("1+2="), **asked)
        text = client.completions.create(prompt="1+2=", **asked)

    assert chat.choices[0].message.content == text.choices[0].text
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == 4


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "corral"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


# -- text that comes in pieces -----------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [TOKENIZER, PAIRS], ids=["bytes", "pairs"])
@given(text=st.text(max_size=20), stop=st.text(min_size=1, max_size=3), cuts=st.lists(st.integers(1, 4)))
@settings(max_examples=60, deadline=None)
def test_pieces_make_up_the_text_up_to_the_stop(
    tokenizer: Any, text: str, stop: str, cuts: list[int]
) -> None:
    """Whole characters alone are told, and never a part of a stop."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    told, answered, rest = AnswerText(tokenizer, [stop]), [], list(tokens)
    for cut in [*cuts, len(tokens)]:
        answered.append(told.push(rest[:cut]))
        rest = rest[cut:]
    answered.append(told.end())

    whole = tokenizer.decode(tokens)
    assert "".join(answered) == whole.partition(stop)[0]
    assert told.stopped == (stop in whole)


def test_a_character_of_several_tokens_is_told_when_it_is_whole() -> None:
    told = AnswerText(TOKENIZER, [])
    first, *rest = "é!".encode()

    assert told.push([first]) == ""
    assert told.push(rest) == "é!"


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": "other"}, "model"),
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]}, "messages[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": CONTEXT}, "messages"),
        ({"max_completion_tokens": True}, "max_completion_tokens"),
        ({"messages": [{"role": "user", "content": "x" * CONTEXT}]}, "messages"),
        ({"n": 1000}, "n"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"seed": 1 << 70}, "seed"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_its_name(
    server: ModelServer, changes: dict[str, Any], param: str
) -> None:
    answered = post(server, "/v1/chat/completions", {"model": "tiny", "messages": user("x"), **changes})

    assert answered.status_code in (400, 404)
    error = answered.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b"[1]", b"\xff"])
def test_a_body_that_is_no_request_is_refused(server: ModelServer, body: bytes) -> None:
    assert post(server, "/v1/completions", body).status_code == 400
    assert post(server, "/v1/completions", {"model": "tiny", "prompt": [1 << 40]}).status_code == 400


def test_nothing_is_told_without_the_key(server: ModelServer) -> None:
    answers = [post(server, "/v1/completions", {}, key="other"), httpx.get(f"{url_of(server)}/v1/models")]

    assert [one.status_code for one in answers] == [401, 401]
    assert httpx.get(f"{url_of(server)}/health").json() == {"status": "ok", "pending": 0}


def test_a_body_that_is_too_large_is_not_read(server: ModelServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=30) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n"
        connection.sendall(head.encode())
        answered = b"".join(iter(lambda: connection.recv(65536), b""))

    assert answered.startswith(b"HTTP/1.1 413")


# -- what goes wrong ---------------------------------------------------------------------------------------


@contextmanager
def another_loop(server: ModelServer, sampler: Any) -> Iterator[GenerationLoop]:
    usual, server.model.loop = server.model.loop, GenerationLoop(sampler)
    try:
        yield server.model.loop
    finally:
        server.model.loop, broken = usual, server.model.loop
        broken.close()


class _EndlessSampler:
    """Says a letter at each step to whoever has not gone."""

    def __init__(self) -> None:
        self.said: dict[int, list[int]] = {}

    @property
    def pending(self) -> int:
        return len(self.said)

    def submit(self, request: SamplingRequest) -> None:
        self.said[request.key] = []

    def abort(self, key: int) -> None:
        del self.said[key]

    def step(self) -> list[object]:
        time.sleep(0.01)
        for tokens in self.said.values():
            tokens.append(97)
        return []

    def under_way(self) -> list[tuple[int, list[int], list[float]]]:
        return [(key, tokens, [0.0] * len(tokens)) for key, tokens in self.said.items()]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_is_written_for_no_longer(server: ModelServer, stream: bool) -> None:
    """No row of the sampler is lost to somebody who does not read."""
    body = json.dumps({"model": "tiny", "messages": user("x"), "stream": stream, "n": 2})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    with another_loop(server, _EndlessSampler()) as loop:
        with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=30) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            eventually(lambda: loop.pending == 2, "both choices are being written")
            if stream:
                assert connection.recv(20).startswith(b"HTTP/1.1 200")

        eventually(lambda: loop.pending == 0, "nothing is written any more")


class _BrokenSampler:
    pending = 1

    def submit(self, request: object) -> None:
        pass

    def step(self) -> list[object]:
        raise RuntimeError("the device is gone")


def test_a_server_that_ends_hangs_up_on_those_who_still_listen() -> None:
    with served(PromptForm.CHAT) as ending, another_loop(ending, _EndlessSampler()):
        connection = socket.create_connection(("127.0.0.1", ending.server_address[1]), timeout=30)
        body = json.dumps({"model": "tiny", "prompt": "x", "stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        assert connection.recv(20).startswith(b"HTTP/1.1 200")

    with connection:
        rest = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"the server is stopping" in rest


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_model_that_fails_says_so_to_all_and_is_no_longer_healthy(server: ModelServer) -> None:
    """Nobody waits for ever for an answer that cannot come."""
    with another_loop(server, _BrokenSampler()):
        asked = {"model": "tiny", "prompt": "x"}
        answers = [post(server, "/v1/completions", asked) for _ in range(2)]
        health = httpx.get(f"{url_of(server)}/health")

    assert [one.status_code for one in answers] == [503, 503]
    assert "the device is gone" in answers[0].json()["error"]["message"]
    assert health.status_code == 503


# -- as a program ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    done = run(sft(folder, steps=2))
    assert done.returncode == 0, done.stderr
    return folder / "output"


@contextmanager
def program(trained: Path, folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "corral.engine", "serve", str(trained), *more]
    process = subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ()
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_output_of_a_run_is_served_until_it_is_stopped(trained: Path, tmp_path: Path) -> None:
    with program(trained, tmp_path, "--port", "0", "--name", "sums") as process:
        assert process.stdout is not None
        said = ""
        while "model     " not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        found = re.search(r"base_url  (\S+)\napi_key   (\S+)", said)
        assert found is not None
        with openai.OpenAI(base_url=found[1], api_key=found[2], max_retries=0) as client:
            answered = client.chat.completions.create(model="sums", messages=user("1+2="), max_tokens=4)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)

    assert answered.choices[0].finish_reason in ("stop", "length")
    assert rest.endswith("stopped\n")
    assert process.returncode == 0


def test_what_cannot_be_served_is_said_before_a_model_is_loaded(trained: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("abc")
    for more, words in (
        (("--context", "1"), "serve.context must be"),
        (("--token-file", str(tmp_path / "none")), "cannot be read"),
        (("--token-file", str(short)), "holds no API key"),
    ):
        with program(trained, tmp_path, *more) as process:
            said, _ = process.communicate(timeout=120)
        assert words in said
        assert process.returncode == 2
