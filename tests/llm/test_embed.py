"""Tests of LLM.embed: final hidden states, pooled and scaled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pymtp import LLM, AsyncLLM, ClosedError, InvalidRequestError, SamplingParams
from pymtp.chat import Chat
from pymtp.context.context import Context
from pymtp.engine import embedder
from pymtp.engine.embedder import CHUNK
from pymtp.errors import CancelledError, ContextFullError

LONG = "x = [1, 2, 3]\n" * 60


@pytest.mark.parametrize("n_tokens", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_embedding_is_the_normed_hidden_state_of_the_model(llm: LLM, n_tokens: int) -> None:
    tokens = llm.model.tokenize(LONG)[:n_tokens]
    context = Context(llm.model, n_ctx=1024, n_batch=256, n_ubatch=256, draft_tokens=0, embeddings=True)
    context.prefill(tokens)
    rows = context.embeddings().astype(np.float64)
    context.close()
    for pooling, vector in (("last", rows[-1]), ("mean", rows.mean(axis=0))):
        found = llm.embed(tokens, pooling=pooling)  # type: ignore[arg-type] # a literal
        assert (found.shape, found.dtype) == ((llm.model.n_embd,), np.float32)
        np.testing.assert_allclose(found, vector / np.linalg.norm(vector), atol=1e-6)


def test_embedding_has_the_same_bits_alone_and_beside_requests(llm: LLM) -> None:
    alone = llm.embed([LONG, "import os"])
    params = SamplingParams(max_tokens=200, ignore_eos=True)  # goes on while both embeddings are computed
    text = llm.generate("def f(", params).text
    with ThreadPoolExecutor(3) as threads:
        generated = threads.submit(llm.generate, "def f(", params)
        beside = [threads.submit(llm.embed, [LONG, "import os"]) for _ in range(2)]
        assert all(np.array_equal(one.result(), alone) for one in beside)
        assert generated.result().text == text


def test_llm_with_a_number_of_drafts_from_text_embeds(new_llm: Callable[..., LLM], llm: LLM) -> None:
    drafting = new_llm(draft_tokens="auto", draft_text=5)
    assert np.array_equal(drafting.embed("x = [1, 2]"), llm.embed("x = [1, 2]"))


def test_list_of_prompts_gives_a_row_each(llm: LLM) -> None:
    found = llm.embed(["a", llm.model.tokenize("b"), "a"])
    assert found.shape == (3, llm.model.n_embd)
    assert np.array_equal(found[0], found[2])
    assert not np.array_equal(found[0], found[1])
    assert np.array_equal(found[1], llm.embed("b"))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_async_llm_embeds_the_same(llm: LLM) -> None:
    async def embed() -> NDArray[np.float32]:
        async with AsyncLLM(llm) as async_llm:
            return await async_llm.embed(["a", "b"], pooling="mean")

    assert np.array_equal(asyncio.run(embed()), llm.embed(["a", "b"], pooling="mean"))


def test_cancel_ends_a_running_embedding_and_no_later_one(llm: LLM) -> None:
    with pytest.raises(CancelledError):
        llm._embedder.embed([7], "last", cancelled=llm.cancel)  # type: ignore[arg-type] # returns no true value
    assert llm.embed([7]).any()


def test_cancelled_embedding_does_not_wait_for_the_prompt_of_another_thread(llm: LLM) -> None:
    with ThreadPoolExecutor(1) as threads, llm._embedder._lock:
        one = threads.submit(llm._embedder.embed, [7], "last", lambda: True)
        with pytest.raises(CancelledError):
            one.result(60)


def test_cancel_ends_the_embeddings_of_all_prompts(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[list[int]] = []

    def prefill(self: Context, tokens: list[int], seq: int = 0) -> None:
        computed.append(tokens)
        original(self, tokens, seq)
        llm.cancel()

    original = Context.prefill
    monkeypatch.setattr(Context, "prefill", prefill)
    with pytest.raises(CancelledError):
        llm.embed([[5], [6], [7]])
    assert computed == [[5]]


def test_cancelled_task_ends_its_embeddings(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def embed(tokens: list[int], pooling: str, cancelled: Callable[[], bool]) -> None:
        begun.set()
        while not cancelled():
            time.sleep(0.001)
        ended.set()
        raise CancelledError("cancelled")

    async def leave() -> None:
        async with AsyncLLM(llm) as async_llm:
            task = asyncio.ensure_future(async_llm.embed(["a"] * 9))
            await asyncio.to_thread(begun.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(ended.wait, 30)

    monkeypatch.setattr(llm._embedder, "embed", embed)
    asyncio.run(leave())


def test_wrong_prompts_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        llm.embed("")
    with pytest.raises(InvalidRequestError, match="not a chat"):
        llm.embed(Chat([{"role": "user", "content": "a"}]))
    with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
        llm.embed([10**6])
    with pytest.raises(InvalidRequestError, match="last or mean"):
        llm.embed("a", pooling="cls")  # type: ignore[arg-type]
    with pytest.raises(ContextFullError):
        llm.embed([1] * (llm.context.n_ctx + 1))


def test_context_of_embeddings_is_made_beside_the_steps_of_the_engine(
    new_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = []
    monkeypatch.setattr(
        embedder, "Context", lambda *a, **b: makers.append(threading.current_thread()) or Context(*a, **b)
    )
    llm = new_llm(n_ctx=4096)
    for n_tokens, n_contexts in ((9, 1), (embedder.MIN_CTX, 1), (embedder.MIN_CTX + 1, 2), (9, 2)):
        llm.embed([7] * n_tokens)
        assert makers == [threading.current_thread()] * n_contexts


def test_prompt_without_memory_is_refused_and_others_work(
    new_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = new_llm(n_ctx=4096)
    vector = llm.embed("a")
    with monkeypatch.context() as patch:
        patch.setattr(embedder, "free_host_memory", lambda: 2**20)
        with pytest.raises(ContextFullError, match="give a shorter prompt"):
            llm.embed([7] * 4000)
    assert not llm._embedder.memory
    assert np.array_equal(llm.embed("a"), vector)


def test_memory_of_embeddings_has_no_weights_and_adds_up(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(n_ctx=256)
    before = llm.context.memory()
    assert embedder.add_memory(before, llm._embedder.memory) == before
    llm.embed("a")
    (own,) = llm._embedder.memory
    assert own.kv <= before[0].kv, "as long as a slot at most"
    (both,) = embedder.add_memory(before, [own])
    assert own.kv > 0
    assert own.weights == 0
    assert both.total == before[0].total + own.total


def test_handler_within_embed_is_refused(llm: LLM) -> None:
    def handler() -> bool:
        with pytest.raises(InvalidRequestError, match="handler"):
            llm.embed("b")
        return True

    with pytest.raises(CancelledError):
        llm._embedder.embed([7], "last", cancelled=handler)


def test_close_while_the_context_is_made_frees_it(new_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(*given: Any, **named: Any) -> Context:
        made.append(Context(*given, **named))
        llm.close()
        return made[0]

    monkeypatch.setattr(embedder, "Context", make)
    llm = new_llm(n_ctx=256)
    with pytest.raises(ClosedError):
        llm.embed("a")
    assert made[0].closed


def test_closed_llm_embeds_nothing(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(n_ctx=256)
    llm.embed("a")
    llm.close()
    with pytest.raises(ClosedError):
        llm.embed("a")
