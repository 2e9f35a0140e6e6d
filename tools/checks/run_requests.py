"""Ways to run random requests on an LLM: by steps of the engine, one after the other, and from threads and a loop."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from random_requests import Outcome, RequestSpec, describe_error, outcome

from pymtp import LLM, AsyncLLM, PymtpError
from pymtp.engine.request import Request, Waiter
from pymtp.engine.scheduler import MAX_UNREAD_PIECES
from pymtp.sampling import TokenLogprobs

MOMENT = 0.002  # seconds per step, for threads
CANCELS = 0.002  # share of requests of threads before which all running ones are cancelled

Outcomes = dict[tuple[int, int], Outcome]  # by request number and completion


def by_steps(llm: LLM, specs: Sequence[RequestSpec], numbers: random.Random) -> Outcomes:
    """Run the engine step by step, so that `numbers` decides on everything."""
    with held_thread(llm):
        return _run_steps(llm, specs, numbers)


@contextmanager
def held_thread(llm: LLM) -> Iterator[None]:
    """Keep the engine's thread in a call: after a play of threads, it would take steps beside those of this thread."""
    held, release = threading.Event(), threading.Event()
    keeper = threading.Thread(target=llm._engine_thread.call, args=(lambda: (held.set(), release.wait()),))
    keeper.start()
    held.wait()
    try:
        yield
    finally:
        release.set()
        keeper.join()


def _run_steps(llm: LLM, specs: Sequence[RequestSpec], numbers: random.Random) -> Outcomes:
    coming = list(specs)
    asked: dict[int, list[Request]] = {}
    for step in range(1_000_000):
        while coming and coming[0].arrival_step <= step:
            spec = coming.pop(0)
            asked[spec.number] = llm._submit(
                [spec.given],
                spec.params,
                Waiter(),
                priority=spec.priority,
                max_unread=MAX_UNREAD_PIECES if spec.call == "stream" else None,
                branch_points=[spec.branch_points] if spec.branch_points else (),
            )
        for spec in specs:
            for request in asked.get(spec.number, ()):
                if spec.cancel_after is not None and len(request.tokens) >= spec.cancel_after:
                    llm._engine.cancel(request)
                if numbers.random() < 0.8:  # otherwise, its reader is slow
                    request.unread.clear()
        llm._engine.step()
        if not coming and all(request.ended for requests in asked.values() for request in requests):
            break
    return {(n, i): outcome(request) for n, requests in asked.items() for i, request in enumerate(requests)}


def one_by_one(llm: LLM, specs: Sequence[RequestSpec], numbers: random.Random) -> Outcomes:
    """Run each request after the one before it has ended."""
    found: Outcomes = {}
    for spec in specs:
        found |= by_steps(llm, [replace(spec, arrival_step=0)], numbers)
    return found


def by_threads(llm: LLM, specs: Sequence[RequestSpec], numbers: random.Random, *, loop: bool = True) -> Outcomes:
    """Make the requests from threads at once, and from the coroutines of an event loop.

    Streams are closed or dropped, tasks are cancelled, now and then all requests are. Requests whose caller was told
    nothing are not in the result: those of dropped streams and of cancelled tasks.
    """
    found: Outcomes = {}
    parts: list[list[RequestSpec]] = [[] for _ in range(4)]
    for spec in specs:
        numbers.choice(parts).append(spec)
    in_loop = parts.pop() if loop else []
    threads = [threading.Thread(target=_work, args=(llm, part, numbers.getrandbits(64), found)) for part in parts]
    for thread in threads:
        thread.start()
    asyncio.run(_loop(llm, in_loop, found))
    for thread in threads:
        thread.join()
    return found


def _work(llm: LLM, part: list[RequestSpec], seed: int, found: Outcomes) -> None:
    """Make requests one after the other, or several prompts in a list."""
    numbers = random.Random(seed)
    while part:
        group = [part.pop(0)]
        while group[0].call == "list" and len(group) < 6 and part and part[0].call == "list":
            group.append(part.pop(0))
        time.sleep(MOMENT * (group[0].arrival_step % 10))
        if numbers.random() < CANCELS:
            llm.cancel()
        if group[0].call == "stream":
            _read(llm, group[0], numbers, found)
        else:
            _generate(llm, group, found)


def _generate(llm: LLM, group: Sequence[RequestSpec], found: Outcomes) -> None:
    prompts, params = [spec.given for spec in group], [spec.params for spec in group]
    try:
        _keep(group, llm.generate(prompts, params, priority=group[0].priority), found)
    except PymtpError as error:
        _keep(group, error.completions, found)


def _keep(group: Sequence[RequestSpec], done: Sequence[Any], found: Outcomes) -> None:
    for spec, one in zip(group, done, strict=True):
        if isinstance(one, PymtpError):  # the tokens before an error are not returned
            failed = Outcome([], "", "failed", None, describe_error(one))
            found.update({(spec.number, i): failed for i in range(spec.params.n)})
        else:
            found.update({(spec.number, i): outcome(completion) for i, completion in enumerate((one, *one.others))})


def _read(llm: LLM, spec: RequestSpec, numbers: random.Random, found: Outcomes) -> None:
    tokens, error = 0, ""
    stream = llm.stream(spec.given, spec.params, priority=spec.priority)
    try:
        for piece in stream:
            tokens += len(piece.token_ids)
            time.sleep(numbers.choice((0.0, 0.0, 0.0, 0.005)))
            if spec.cancel_after is not None and tokens >= spec.cancel_after:
                if numbers.random() < 0.5:
                    return  # the stream is dropped
                stream.close()
                break
    except PymtpError as raised:
        error = describe_error(raised)
    done = outcome(stream.completion)
    found[spec.number, 0] = replace(done, reason="failed", error=error) if error else done


async def _loop(llm: LLM, part: Sequence[RequestSpec], found: Outcomes) -> None:
    async with AsyncLLM(llm) as shared:

        async def ask(spec: RequestSpec) -> None:
            await asyncio.sleep(MOMENT * spec.arrival_step)
            longest = None if spec.cancel_after is None else MOMENT * spec.cancel_after
            call = _pieces if spec.call == "stream" else _whole
            with suppress(TimeoutError):  # the task was cancelled
                await asyncio.wait_for(call(shared, spec, found), longest)

        await asyncio.gather(*(ask(spec) for spec in part))


async def _whole(llm: AsyncLLM, spec: RequestSpec, found: Outcomes) -> None:
    try:
        _keep([spec], [await llm.generate(spec.given, spec.params, priority=spec.priority)], found)
    except PymtpError as error:
        _keep([spec], [error], found)


async def _pieces(llm: AsyncLLM, spec: RequestSpec, found: Outcomes) -> None:
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] | None = None if spec.params.logprobs is None else []
    error = ""
    try:
        async for piece in llm.stream(spec.given, spec.params, priority=spec.priority):
            tokens += piece.token_ids
            if logprobs is not None:
                logprobs += piece.logprobs or []
    except PymtpError as raised:
        error = describe_error(raised)
    # pieces do not give the finish reason: they are compared as a beginning
    found[spec.number, 0] = Outcome(tokens, "", "failed" if error else "pieces", logprobs, error)
