"""Tests of an LLM with a projector: chats with images, alone and in company, cached, and saved to files."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from conftest import make_llm
from helpers.images import picture
from makers.make_mmproj import make_mmproj

from pymtp import (
    LLM,
    AsyncLLM,
    CancelledError,
    ClosedError,
    Completion,
    ContextFullError,
    InvalidRequestError,
    ModelLoadError,
    SamplingParams,
)
from pymtp.chat import Chat
from pymtp.engine import embedder
from pymtp.prefix_cache.file import PrefixFile

GREEDY = SamplingParams(12, temperature=0.0, ignore_eos=True)
# Whatever it sees, the model writes one greedy text; log-probabilities at this temperature depend on the pictures.
SAMPLED = SamplingParams(12, temperature=3.0, top_k=0, top_p=1.0, min_p=0.0, seed=1, ignore_eos=True, logprobs=0)
TEXTS = "Describe: ", "def f(x):\n"


@pytest.fixture(scope="module")
def mmproj(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a projector of random weights for the shipped model: a token for 32 x 32 pixels."""
    return make_mmproj("demo", tmp_path_factory.mktemp("models") / "mmproj-demo.gguf")


@pytest.fixture(scope="module")
def seeing(mmproj: Path) -> Iterator[LLM]:
    with make_llm(mmproj=mmproj, n_seq_max=2) as llm:
        yield llm


def image(seed: int) -> dict[str, Any]:
    return {"type": "image", "image": picture(seed, 160, 96)}


def logprobs(done: Completion) -> list[float]:
    assert done.logprobs is not None
    return [one.logprob for one in done.logprobs]


def same(done: Completion) -> Any:
    """Return what equals the log-probabilities of the same tokens after the same prompt; graphs differ by rounding."""
    return pytest.approx(logprobs(done), abs=1e-4)


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


ABOUT_TWO = [user(TEXTS[0], image(0), TEXTS[1], image(1), "A long question, whose words say what is to be done.")]


def test_sources_of_one_picture_give_one_text(seeing: LLM, tmp_path: Path) -> None:
    pillow = PIL.Image.fromarray(picture(0, 160, 96))
    pillow.save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    sources = [picture(0, 160, 96), pillow, data, tmp_path / "a.png", str(tmp_path / "a.png")]

    def chat(source: Any) -> list[dict[str, Any]]:
        return [user(TEXTS[0], {"type": "image", "image": source}, TEXTS[1])]

    first, *others = [seeing.chat(chat(source), SAMPLED) for source in sources]
    streamed = seeing.stream_chat(chat(str(tmp_path / "a.png")), SAMPLED)
    assert "".join(piece.text for piece in streamed) == first.text
    for other in (*others, streamed.completion):
        assert logprobs(other) == same(first)
    for pixels in (255 - picture(0, 160, 96), picture(1, 160, 96)):
        assert logprobs(seeing.chat(chat(pixels), SAMPLED)) != same(first)


def test_image_counts_as_prompt_tokens_and_changes_the_probabilities(seeing: LLM) -> None:
    one, two = (seeing.chat([user(TEXTS[0], image(seed), TEXTS[1])], GREEDY, logprobs=0) for seed in (2, 3))
    assert one.stats.prompt_tokens - seeing.chat([user(*TEXTS)], GREEDY).stats.prompt_tokens > 5 * 3
    assert one.logprobs != two.logprobs


def test_second_turn_encodes_nothing_and_prefills_only_new_tokens(mmproj: Path) -> None:
    with make_llm(mmproj=mmproj) as llm:
        assert llm._images is not None
        first = llm.chat(ABOUT_TWO, GREEDY)
        turn = [*ABOUT_TWO, {"role": "assistant", "content": first.content}, user("And now?")]
        encoded = llm._images.n_encoded
        second = llm.chat(turn, GREEDY)
        assert llm._images.n_encoded == encoded == 2
        assert second.stats.prompt_tokens - second.stats.cached_tokens < 64


@pytest.mark.parametrize("options", [{"draft_tokens": 0}, {"draft_tokens": 7}, {"n_ubatch": 16}], ids=str)
def test_text_about_images_depends_neither_on_drafts_nor_on_where_the_prompt_is_cut(
    seeing: LLM, mmproj: Path, options: dict[str, int]
) -> None:
    with make_llm(mmproj=mmproj, cache_prompt=False, **options) as llm:
        assert llm.chat(ABOUT_TWO, GREEDY).token_ids == seeing.chat(ABOUT_TWO, GREEDY).token_ids
        assert logprobs(llm.chat(ABOUT_TWO, SAMPLED)) == same(seeing.chat(ABOUT_TWO, SAMPLED))


def test_requests_with_and_without_images_do_not_change_each_other(seeing: LLM) -> None:
    chats = [Chat(ABOUT_TWO), Chat([user("No image.")]), Chat([user(image(1), TEXTS[1])]), Chat([user("None.")])]
    alone = [seeing.generate(chat, SAMPLED) for chat in chats]
    together = seeing.generate(chats, replace(SAMPLED, cache_prompt=False))
    for one, other in zip(together, alone, strict=True):
        assert (one.token_ids, logprobs(one)) == (other.token_ids, same(other))
    swapped = [user(TEXTS[0], image(1), TEXTS[1], image(0), "A long question, whose words say what is to be done.")]
    assert logprobs(seeing.chat(swapped, SAMPLED)) != same(alone[0])


def test_several_completions_share_the_encoded_images(mmproj: Path) -> None:
    with make_llm(mmproj=mmproj, n_seq_max=2, cache_prompt=False) as llm:
        assert llm._images is not None
        first = llm.chat(ABOUT_TWO, replace(SAMPLED, n=2))
        assert llm._images.n_encoded == 2
        for i, one in enumerate((first, *first.others)):
            other = llm.chat(ABOUT_TWO, replace(SAMPLED, seed=1 + i))
            assert (one.token_ids, logprobs(one)) == (other.token_ids, same(other))


def test_saved_prefix_names_its_images_and_continues_in_another_llm(mmproj: Path, tmp_path: Path) -> None:
    path = tmp_path / "images.prefix"
    with make_llm(mmproj=mmproj) as llm:
        wanted = llm.chat(ABOUT_TWO, SAMPLED)
        n = llm.save_prefix(ABOUT_TWO, path)
    with PrefixFile(path, None) as file:
        assert [(one.nx, one.ny) for one in file.images] == [(5, 3), (5, 3)]
        assert len(file.tokens) == n
    with make_llm(mmproj=mmproj) as llm:
        llm.chat([user(image(7), "another image comes first")], GREEDY)
        assert llm.load_prefix(path) == n
        again = llm.chat(ABOUT_TWO, SAMPLED)
        assert again.stats.cached_tokens == n
        assert logprobs(again) == same(wanted)
        assert again.prompt_token_ids != wanted.prompt_token_ids  # the images have other numbers


def test_async_llm_sees_images_and_saves_them(seeing: LLM, mmproj: Path, tmp_path: Path) -> None:
    chats = ABOUT_TWO, [user(image(0), TEXTS[1])]

    async def chat() -> tuple[list[Completion], int]:
        async with AsyncLLM(seeing.model, mmproj=mmproj, n_ctx=1024, n_threads=1, draft_tokens=3, n_seq_max=2) as llm:
            found = await asyncio.gather(*(llm.chat(messages, SAMPLED) for messages in chats))
            return found, await llm.save_prefix(ABOUT_TWO, tmp_path / "a.prefix")

    found, n = asyncio.run(chat())
    for done, messages in zip(found, chats, strict=True):
        assert logprobs(done) == same(seeing.chat(messages, SAMPLED))
    assert seeing.load_prefix(tmp_path / "a.prefix") == n


def test_prefix_with_the_path_of_an_image_is_saved_and_an_early_cancel_ends_that(
    mmproj: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PIL.Image.fromarray(picture(0, 160, 96)).save(tmp_path / "a.png")
    chat = [user({"type": "image", "image": str(tmp_path / "a.png")}, "A question.")]
    with make_llm(mmproj=mmproj) as llm:
        assert llm.save_prefix(chat, tmp_path / "a.prefix") > 15
        open_saver = llm._prefix_files.open_saver
        monkeypatch.setattr(llm._prefix_files, "open_saver", lambda *given: (llm.cancel(), open_saver(*given))[1])
        with pytest.raises(CancelledError):
            llm.save_prefix(chat, tmp_path / "b.prefix")


def test_prefix_that_ends_with_an_image_holds_it(mmproj: Path, tmp_path: Path) -> None:
    with make_llm(mmproj=mmproj) as llm:
        llm.save_prefix([user(TEXTS[0], image(0))], tmp_path / "a.prefix")
        with PrefixFile(tmp_path / "a.prefix", None) as file:
            assert [token for token in file.tokens if token < 0] == [-1] * 15
        longer = llm.chat([user(TEXTS[0], image(0), "And a question after it.")], GREEDY)
        assert longer.stats.cached_tokens >= len(file.tokens)


def test_saved_prefix_with_images_needs_its_projector_and_one_of_text_needs_none(mmproj: Path, tmp_path: Path) -> None:
    other = make_mmproj("demo", tmp_path / "mmproj-other.gguf", seed=9)
    with make_llm(mmproj=mmproj) as llm:
        llm.save_prefix(ABOUT_TWO, tmp_path / "images.prefix")
        llm.save_prefix("A text.", tmp_path / "text.prefix")
    with make_llm() as llm:
        llm.load_prefix(tmp_path / "text.prefix")
        with pytest.raises(InvalidRequestError, match="has images, which need the projector"):
            llm.load_prefix(tmp_path / "images.prefix")
    with make_llm(mmproj=other) as llm:
        llm.load_prefix(tmp_path / "text.prefix")
        with pytest.raises(InvalidRequestError, match="another projector"):
            llm.load_prefix(tmp_path / "images.prefix")


def test_bad_images_are_refused_and_the_llm_stays_usable(seeing: LLM, tmp_path: Path) -> None:
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for source, reason in (
        (tmp_path / "cut.png", "a PNG image cannot be decoded"),
        (str(tmp_path / "none.png"), "cannot read the image"),
        (picture(0, 4000, 4), "image"),
    ):
        with pytest.raises(InvalidRequestError, match=reason):
            seeing.chat([user({"type": "image", "image": source})], GREEDY)
    with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
        seeing.generate([1, -1, 2], GREEDY)
    with pytest.raises(InvalidRequestError, match="without images"):
        seeing.chat(ABOUT_TWO, GREEDY, prompt_logprobs=1)
    assert seeing.chat([user(image(0))], GREEDY).token_ids


def test_prompt_that_is_too_long_is_refused_before_its_images_are_encoded(mmproj: Path) -> None:
    with make_llm(mmproj=mmproj, n_ctx=256) as llm:
        assert llm._images is not None
        with pytest.raises(ContextFullError, match="n_ctx is 256"):
            llm.chat([user({"type": "image", "image": picture(0, 640, 640)})], GREEDY)
        assert llm._images.n_encoded == 0


class HeldProjector:
    """Lets the projector of an LLM compute nothing in its turns, until it is released."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        assert llm._images is not None
        projector = llm._images.projector
        advance = projector.advance
        self.begun, self.released = threading.Event(), threading.Event()

        def held(seconds: float) -> Any:
            self.begun.set()
            return advance(seconds) if self.released.wait(0.001) else None

        monkeypatch.setattr(projector, "advance", held)

    async def wait(self) -> None:
        while not self.begun.is_set():
            await asyncio.sleep(0.001)


def test_cancel_ends_a_request_whose_images_are_being_encoded(mmproj: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with make_llm(mmproj=mmproj) as llm:
        assert llm._images is not None
        held = HeldProjector(llm, monkeypatch)
        threading.Thread(target=lambda: (held.begun.wait(), llm.cancel())).start()
        done = llm.chat(ABOUT_TWO, GREEDY)
        assert (done.finish_reason, done.token_ids, llm._images.n_encoded) == ("cancelled", [], 0)
        held.released.set()
        assert llm.chat(ABOUT_TWO, GREEDY).finish_reason != "cancelled"


def test_completions_of_one_prompt_share_its_encoded_images(mmproj: Path) -> None:
    with make_llm(mmproj=mmproj, n_seq_max=2) as llm:
        assert llm._images is not None
        llm.chat(ABOUT_TWO, SamplingParams(4, n=2, cache_prompt=False))
        assert llm._images.n_encoded == 2


def test_text_does_not_wait_for_images_that_are_encoded(mmproj: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with AsyncLLM(mmproj=mmproj, n_ctx=1024, n_seq_max=2, n_threads=1, draft_tokens=3) as llm:
            encoding = HeldProjector(llm.llm, monkeypatch)
            chats = [asyncio.create_task(llm.chat([user(image(seed), "a")], GREEDY)) for seed in range(3)]
            await encoding.wait()
            text = await llm.generate("def f(x):", GREEDY)
            assert len(text.token_ids) == 12
            assert not any(chat.done() for chat in chats)
            encoding.released.set()
            assert all(chat.token_ids for chat in await asyncio.gather(*chats))

    asyncio.run(run())


def test_abandoned_chat_ends_the_encoding_of_its_images(mmproj: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with AsyncLLM(mmproj=mmproj, n_ctx=2048, n_threads=1, draft_tokens=3) as llm:
            assert llm.llm._images is not None
            encoding = HeldProjector(llm.llm, monkeypatch)
            chat = asyncio.create_task(llm.chat([user(*[image(seed) for seed in range(4)], "a")], GREEDY))
            await encoding.wait()
            chat.cancel()
            with pytest.raises(asyncio.CancelledError):
                await chat
            while not llm.llm._engine.idle:
                await asyncio.sleep(0.001)
            encoding.released.set()
            assert (await llm.chat([user(image(9), "a")], GREEDY)).token_ids
            assert llm.llm._images.n_encoded == 1

    asyncio.run(run())


def test_closing_an_async_llm_while_it_encodes_leaves_the_llm_usable(
    mmproj: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(llm: LLM) -> None:
        encoding = HeldProjector(llm, monkeypatch)
        shared = AsyncLLM(llm)
        chat = asyncio.create_task(shared.chat([user(image(0), image(1), "a")], GREEDY))
        await encoding.wait()
        await shared.close()
        assert (await chat).finish_reason == "cancelled"
        encoding.released.set()
        assert llm._images is not None
        assert llm.chat([user(image(2), "a")], GREEDY).token_ids
        assert llm._images.n_encoded == 1

    with make_llm(mmproj=mmproj) as llm:
        asyncio.run(run(llm))


def test_stream_begins_before_its_images_are_encoded(mmproj: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with make_llm(mmproj=mmproj) as llm:
        held = HeldProjector(llm, monkeypatch)
        stream = llm.stream_chat(ABOUT_TWO, GREEDY)
        assert held.begun.wait(60)
        held.released.set()
        assert sum(len(piece.token_ids) for piece in stream) == 12
        assert stream.completion.stats.time_to_first_token > stream.completion.stats.queue_seconds


def test_call_between_steps_counts_as_other_work(mmproj: Path) -> None:
    with make_llm(mmproj=mmproj) as llm:
        llm._engine_thread.call(lambda: time.sleep(0.01))
        assert llm._engine_thread.call(lambda: llm._engine._other_seconds) >= 0.01


def test_embedding_keeps_the_rows_of_an_image_until_they_are_computed(
    seeing: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, refs, alive = seeing._embedder, list[weakref.ref[Any]](), list[bool]()
    rows_of, compute = own._rows, own._compute

    def rows(*given: Any) -> Any:
        found = rows_of(*given).copy()  # the encoder keeps its own
        refs.append(weakref.ref(found))
        return found

    monkeypatch.setattr(own, "_rows", rows)
    monkeypatch.setattr(own, "_compute", lambda *given: (alive.append(refs[0]() is not None), compute(*given))[1])
    prompt = seeing.chat_prompts.prompt(Chat([user(image(0), "x = 1\n" * 99)]))
    own.embed(prompt.tokens, "mean", images=seeing._embedding_images(prompt))
    assert (alive[0], alive[-1]) == (True, False)


def test_embedding_without_memory_is_refused_before_its_images_are_encoded(
    mmproj: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_llm(mmproj=mmproj, n_ctx=4096) as llm:
        assert llm._images is not None
        prompt = llm.chat_prompts.prompt(Chat([user(image(0), "x = 1\n" * 600)]))
        assert len(prompt.tokens) > embedder.MIN_CTX
        images = llm._embedding_images(prompt)
        monkeypatch.setattr(embedder, "free_host_memory", lambda: 2**20)
        with pytest.raises(ContextFullError, match="give a shorter prompt"):
            llm._embedder.embed(prompt.tokens, "mean", images=images)
        assert llm._images.n_encoded == 0


def test_memory_of_a_short_context_counts_for_the_longer_one_in_its_place(
    mmproj: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_llm(mmproj=mmproj, n_ctx=4096) as llm:
        prompt = llm.chat_prompts.prompt(Chat([user(image(0), "x = 1\n" * 600)]))
        llm.embed("a")
        (short,), needed = llm._embedder.memory, embedder.least_memory
        monkeypatch.setattr(embedder, "free_host_memory", lambda: 2**30 - (short.total if llm._embedder.memory else 0))
        monkeypatch.setattr(embedder, "least_memory", lambda *given: (needed(*given), 2**30)[1])
        llm._embedder.embed(prompt.tokens, "mean", images=llm._embedding_images(prompt))


def test_close_ends_an_embedding_whose_image_is_being_encoded(mmproj: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make_llm(mmproj=mmproj)
    held, errors = HeldProjector(llm, monkeypatch), list[Exception]()
    prompt = llm.chat_prompts.prompt(Chat([user(image(0), "a")]))

    def embed() -> None:
        try:
            llm._embedder.embed(prompt.tokens, "mean", images=llm._embedding_images(prompt))
        except ClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=embed)
    thread.start()
    assert held.begun.wait(60)
    llm.close()
    thread.join()
    assert len(errors) == 1


def test_close_waits_for_a_request_whose_images_are_being_encoded(
    mmproj: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm(mmproj=mmproj)
    held = HeldProjector(llm, monkeypatch)
    done = []
    thread = threading.Thread(target=lambda: done.append(llm.chat(ABOUT_TWO, GREEDY)))
    thread.start()
    assert held.begun.wait(60)
    closing = threading.Thread(target=llm.close)
    closing.start()
    held.released.set()
    thread.join()
    closing.join()
    assert len(done[0].token_ids) == 12


def test_image_tokens_have_bounds(mmproj: Path) -> None:
    with make_llm(mmproj=mmproj, image_max_tokens=8) as llm:
        tokens = llm.chat([user(image(0))], GREEDY).prompt_token_ids
        assert 0 < tokens.count(-1) <= 8


def test_projector_of_another_model_or_no_projector_is_refused(
    new_llm: Callable[..., LLM], demo: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match="no such projector"):
        new_llm(mmproj=tmp_path / "none.gguf")
    with pytest.raises(ModelLoadError, match=demo.name):
        new_llm(mmproj=demo)
    with pytest.raises(ModelLoadError, match="wide"):
        new_llm(mmproj=make_mmproj("tiny", tmp_path / "wide.gguf"))


def test_closed_llm_closes_its_projector(mmproj: Path) -> None:
    llm = make_llm(mmproj=mmproj)
    assert llm.sees_images
    assert llm.mmproj == str(mmproj)
    llm.close()
    assert llm._images is not None
    assert llm._images.projector._handle.closed  # type: ignore[attr-defined]
