"""The environment's process: answers calls, one JSON object a line, on two pipes of its own.

Standard output becomes standard error, so whatever the user's code prints is in the log and never between the
answers. A thread reads the calls. When the engine is gone, by whatever end, that thread ends this process and
all that the user's code has started.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from corral.engine.environments import calling, loading
from corral.engine.environments.protocol import EnvironmentProblem, Message, plain
from corral.engine.environments.rewards import BadReward
from corral.engine.environments.sessions import EnvironmentAdapter, Session

# An answer longer than this is the environment's mistake, not something to hold in memory.
LONGEST = 16 * 1024 * 1024
# Attempts whose state is kept; one that fell out is made again from its conversation.
KEPT = 4096


class UnrepeatableAttempt(RuntimeError):
    """Going through an attempt again gave other answers than the model has seen."""


class Sessions:
    """The attempts under way. Any of them can be made again, so losing this process loses none of them."""

    def __init__(self, environment: EnvironmentAdapter) -> None:
        self._environment = environment
        self._kept: OrderedDict[str, Session] = OrderedDict()

    async def start(self, call: Mapping[str, Any]) -> dict[str, Any]:
        session = self._new(call)
        opening = await self._environment.start(session)
        session.messages = [dict(message) for message in opening.messages]
        session.opening = len(opening.messages)
        if self._environment.description.multi_turn:
            self._keep(call["episode"], session)
        return plain(opening)

    async def step(self, call: Mapping[str, Any]) -> dict[str, Any]:
        messages: list[Message] = call["messages"]
        session = await self._at(call, messages[:-1])
        # Out until it has gone well: a session that failed half-way is no good to continue.
        self._kept.pop(call["episode"], None)
        session.messages.append(messages[-1])
        reply = await self._environment.step(session)
        session.messages.extend(reply.messages)
        self._keep(call["episode"], session)
        return plain(reply)

    async def score(self, call: Mapping[str, Any]) -> dict[str, Any]:
        session = await self._at(call, call["messages"])
        scored = await self._environment.score(session)
        self._kept.pop(call["episode"], None)
        return plain(scored)

    async def group(self, call: Mapping[str, Any]) -> dict[str, Any]:
        sessions = []
        for messages in call["conversations"]:
            session = self._new(call)
            session.messages, session.opening = messages, call["opening"]
            sessions.append(session)
        scores = await self._environment.group(sessions)
        return {"scores": [plain(one) for one in scores]}

    def _new(self, call: Mapping[str, Any]) -> Session:
        row = self._environment.row(call["split"], call["task"])
        return Session(call["split"], call["task"], call["seed"], row)

    def _keep(self, episode: str, session: Session) -> None:
        self._kept[episode] = session
        self._kept.move_to_end(episode)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    async def _at(self, call: Mapping[str, Any], messages: list[Message]) -> Session:
        """The session after these messages: the one kept, or one made by going through them again."""
        session = self._kept.get(call["episode"])
        if session is not None and len(session.messages) == len(messages):
            return session
        if session is not None and len(session.messages) == len(messages) - 1:
            # An answer that was cut short is scored without a step.
            session.messages.append(messages[-1])
            return session
        session = self._new(call)
        if not self._environment.description.multi_turn:
            # Nothing has happened in a single turn that scoring could depend on.
            session.messages, session.opening = [dict(message) for message in messages], call["opening"]
            return session
        if not self._environment.description.repeatable:
            raise UnrepeatableAttempt(
                "the attempt's process was lost, and the environment says repeatable = False"
            )
        return await self._replayed(session, call["opening"], messages)

    async def _replayed(self, session: Session, opening: int, messages: list[Message]) -> Session:
        first = await self._environment.start(session)
        session.messages, session.opening = [dict(message) for message in first.messages], opening
        _check_replay(session.messages, messages[:opening])
        for message in messages[opening:]:
            if message["role"] != "assistant":
                continue
            _check_replay(session.messages, messages[: len(session.messages)])
            session.messages.append(message)
            if len(session.messages) == len(messages):
                break
            session.messages.extend((await self._environment.step(session)).messages)
        _check_replay(session.messages, messages)
        return session


def _check_replay(made: list[Message], seen: list[Message]) -> None:
    if [(m["role"], m["content"]) for m in made] != [(m["role"], m["content"]) for m in seen]:
        raise UnrepeatableAttempt(
            "the environment answered differently when the attempt was gone through again in another process;"
            " derive what is random from `seed`, or set `repeatable = False`"
        )


class EnvironmentServer:
    """Takes calls from one pipe and answers on the other, in order where the environment does not await."""

    def __init__(self, environment: EnvironmentAdapter, answers: int) -> None:
        sessions = Sessions(environment)
        self._operations = {
            "start": sessions.start,
            "step": sessions.step,
            "score": sessions.score,
            "group": sessions.group,
        }
        self._asynchronous = environment.description.asynchronous
        self._answers = answers
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, calls: asyncio.Queue[dict[str, Any]]) -> None:
        while True:
            call = await calls.get()
            if not self._asynchronous:
                await self._answer(call)
                continue
            task = asyncio.create_task(self._answer(call))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _answer(self, call: dict[str, Any]) -> None:
        # Without awaiting there is nothing to interrupt: the engine ends the process instead.
        limit = asyncio.timeout(call["deadline_s"] if self._asynchronous else None)
        answer: dict[str, Any]
        try:
            async with limit:
                answer = {"value": await self._operations[call["op"]](call)}
        except BadReward as error:
            answer = {"error": str(error), "kind": "bad_reward"}
        except UnrepeatableAttempt as error:
            answer = {"error": str(error), "kind": "unrepeatable"}
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises costs this call alone
            if limit.expired():
                answer = {"error": f"took longer than {call['deadline_s']:g} s", "kind": "deadline"}
            else:
                traceback.print_exc(limit=-5)
                answer = {"error": calling.described(error), "kind": "raised"}
        write(self._answers, {"id": call["id"], **answer})


def write(to: int, answer: dict[str, Any]) -> None:
    try:
        line = json.dumps(answer).encode() + b"\n"
        problem = (
            f"the answer has {len(line):,} bytes; {LONGEST:,} is the most" if len(line) > LONGEST else None
        )
    except (TypeError, ValueError) as error:
        problem = f"the answer cannot be written as JSON: {error}"
    if problem is not None:
        line = json.dumps({"id": answer.get("id"), "error": problem, "kind": "raised"}).encode() + b"\n"
    view = memoryview(line)
    # An engine that is gone wants no answer; the reading thread ends this process.
    with suppress(BrokenPipeError):
        while view:
            view = view[os.write(to, view) :]


def main(calls: int, answers: int) -> None:
    """Serve until the engine closes the pipe of calls. The first line in is what to load."""
    os.dup2(2, 1)
    os.set_inheritable(calls, False)
    os.set_inheritable(answers, False)
    source = os.fdopen(calls, "rb", buffering=1024 * 1024)
    setup = json.loads(source.readline())
    try:
        environment = loading.load(setup["source"], setup["params"])
    except EnvironmentProblem as problem:
        if problem.__cause__ is not None:
            traceback.print_exception(problem.__cause__)
        write(answers, {"id": 0, "problem": str(problem), "hint": problem.hint})
        return
    write(answers, {"id": 0, "value": plain(environment.description)})
    asyncio.run(_serve(EnvironmentServer(environment, answers), source))


async def _serve(server: EnvironmentServer, source: Any) -> None:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    threading.Thread(target=_read, args=(source, loop, queue), daemon=True).start()
    await server.run(queue)


def _read(source: Any, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[dict[str, Any]]) -> None:
    for line in source:
        loop.call_soon_threadsafe(queue.put_nowait, json.loads(line))
    # The engine has closed the pipe, or is gone; the main thread may be hanging in the user's code.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)
