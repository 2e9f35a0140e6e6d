"""Tests of requests with images, over a scripted context: their rows, their cached prefixes, and their memory."""

from __future__ import annotations

import random

import pytest
from helpers.engines import EngineHarness
from helpers.images import ScriptedProjector, SeeingContext, image

from pymtp.chat import Chat
from pymtp.chat.prompt import ChatPrompt
from pymtp.engine.image_encoder import ImageEncoder
from pymtp.engine.prefix_files import common_prefix
from pymtp.engine.request import NO_IMAGES, Request
from pymtp.prefix_cache.checkpoints import TAIL_TOKENS

CACHE_BYTES = 10**6


def text(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(50), k=n)


class SeeingHarness(EngineHarness):
    """An engine whose context sees images."""

    def __init__(self, **keywords: int) -> None:
        super().__init__(context_type=SeeingContext, **keywords)

    @property
    def seeing(self) -> SeeingContext:
        assert isinstance(self.context, SeeingContext)
        return self.context

    def submit_image(self, before: list[int], token: int, after: list[int], max_tokens: int = 10) -> Request:
        """Submit a prompt with an image of 7 x 5 tokens, between two texts. It is expected again."""
        encoded, prompt = self.seeing.encoded(token, 7, 5), [*before, *[token] * 35, *after]
        return self.submit(prompt, max_tokens, images={token: encoded}, branch_points=(len(prompt),))

    def prefilled(self) -> int:
        return self.engine.figures().read


def test_each_chunk_of_a_prompt_gets_the_rows_of_its_images() -> None:
    harness = SeeingHarness(n_ubatch=16)
    images = {-1: harness.seeing.encoded(-1, 4, 5), -2: harness.seeing.encoded(-2, 1, 3)}
    prompt = [*text(0, 30), *[-1] * 20, *text(1, 2), *[-2] * 3, *text(2, 20)]
    harness.submit(prompt, images=images)
    harness.run()
    harness.check()
    assert [given for given in harness.seeing.given if given] == [{-1}, {-1}, {-1, -2}]
    assert harness.seeing.grids == {-1: (4, 5), -2: (1, 3)}


def test_prompts_without_images_get_none() -> None:
    harness = SeeingHarness()
    harness.submit(text(0, 30))
    harness.run()
    assert not any(harness.seeing.given)
    assert not harness.seeing.grids


@pytest.mark.parametrize("cache_bytes", [0, CACHE_BYTES])
def test_second_turn_about_an_image_prefills_only_new_tokens(cache_bytes: int) -> None:
    harness = SeeingHarness(cache_bytes=cache_bytes)
    first = harness.submit_image(text(0, 40), -1, text(1, 40))
    harness.run()
    before = harness.prefilled()
    harness.submit_image(text(0, 40), -1, [*text(1, 40), *first.tokens, *text(2, 20)])
    harness.run()
    harness.check()
    assert harness.prefilled() - before == 1 + 20


def test_image_of_an_evicted_sequence_is_restored_from_host_memory() -> None:
    harness = SeeingHarness(cache_bytes=CACHE_BYTES)
    first = harness.submit_image(text(0, 200), -1, text(1, 40))
    harness.run()
    harness.submit(text(5, 300))
    harness.run()
    before = harness.prefilled()
    harness.submit_image(text(0, 200), -1, [*text(1, 40), *first.tokens, *text(2, 20)])
    harness.run()
    harness.check()
    assert harness.prefilled() - before == 10 + 20
    assert harness.engine.figures().prefixes.loaded == 200 + 35 + 40


def test_prompts_share_no_tokens_of_different_images() -> None:
    harness = SeeingHarness(cache_bytes=CACHE_BYTES, n_seq_max=2)
    for token in (-1, -2):
        harness.submit_image(text(0, 100), token, text(1, 40))
        harness.run()
    harness.check()
    assert harness.requests[1].cached_tokens <= 100


def test_restarted_request_gets_its_images_again_and_an_ended_one_keeps_none() -> None:
    harness = SeeingHarness(cache_prompt=False)
    request = harness.submit_image(text(0, 40), -1, text(1, 40), 30)
    while len(request.tokens) < 5:
        harness.engine.step()
    harness.engine.runner.restart(request)
    harness.run()
    harness.check()
    assert len(request.tokens) == 30
    assert request.images is NO_IMAGES


def test_images_beside_each_other_stay_apart() -> None:
    harness = SeeingHarness(cache_bytes=CACHE_BYTES, n_seq_max=3)
    for token in (-1, -2, -1):
        harness.submit_image(text(0, 20), token, text(-token, 40), 30)
    harness.run()
    harness.check()


def test_kept_rows_take_room_from_cached_prefixes() -> None:
    encoder = ImageEncoder(ScriptedProjector(), CACHE_BYTES // 4)
    harness = EngineHarness(context_type=SeeingContext, cache_bytes=CACHE_BYTES, images=encoder)
    seen = image()
    token, n = encoder.place(seen)
    images = encoder.encode({token: seen}, ("", ""))
    assert isinstance(harness.context, SeeingContext)
    harness.context.rows[token] = images[token].rows
    harness.submit([*text(0, 20), *[token] * n, *text(1, 20)], images=images)
    harness.run()
    assert encoder.nbytes == 20 * 4 * 4
    assert harness.engine.prefix_cache.store.eviction.limit == CACHE_BYTES - encoder.nbytes


@pytest.mark.parametrize(("n_after", "n_saved"), [(1, 51), (4, 51), (30, 50 + 30 - TAIL_TOKENS)])
def test_common_prefix_ends_behind_its_last_image(n_after: int, n_saved: int) -> None:
    class Prompts:
        def prompt(self, chat: Chat) -> ChatPrompt:
            last = len(chat.messages[-1]["content"])
            return ChatPrompt([*text(0, 30), *[-1] * 20, *text(1, n_after), last], (), images={-1: image()})

    saved = common_prefix(Prompts(), Chat([{"role": "user", "content": [{"type": "text", "text": "a"}]}]))  # type: ignore[arg-type]
    assert len(saved.tokens) == n_saved
    assert saved.images == {-1: image()}
