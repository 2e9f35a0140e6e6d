"""Tests of requests with images, over a scripted context: their rows, their cached prefixes, and their memory."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from helpers.engines import EngineHarness
from helpers.images import ScriptedProjector, SeeingContext, image, rows_of

from pymtp.chat import Chat
from pymtp.chat.prompt import CacheKey, ChatPrompt
from pymtp.engine import request
from pymtp.engine.image_encoder import NO_IMAGES, ImageEncoder, PromptImages
from pymtp.engine.prefix_files import common_prefix
from pymtp.engine.request import Request
from pymtp.errors import NativeError
from pymtp.images import Image
from pymtp.prefix_cache.checkpoints import TAIL_TOKENS

CACHE_BYTES = 10**6


def text(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(50), k=n)


class SeeingHarness(EngineHarness):
    """An engine whose context sees images. layers: the turns that an image takes."""

    def __init__(self, *, image_bytes: int = 10**6, layers: int = 1, **keywords: Any) -> None:
        self.projector = ScriptedProjector(layers, self.after_layer)
        self.encoder = ImageEncoder(self.projector, image_bytes, clock=lambda: self.seeing.clock())
        super().__init__(context_type=SeeingContext, images=self.encoder, **keywords)

    def after_layer(self) -> None:
        self.seeing.now += 1.0

    @property
    def seeing(self) -> SeeingContext:
        assert isinstance(self.context, SeeingContext)
        return self.context

    def see(self, seed: int, width: int = 56, height: int = 40) -> tuple[Image, list[int]]:
        """Return an image, and its tokens: 7 x 5 of them."""
        seen = image(seed, width, height)
        token, n = self.encoder.place(seen)
        self.seeing.rows[token] = rows_of(seen.pixels())
        return seen, [token] * n

    def submit_images(
        self,
        *parts: list[int] | tuple[Image, list[int]],
        max_tokens: int = 10,
        key: CacheKey | None = ("", ""),
        **keywords: Any,
    ) -> Request:
        """Submit a prompt of texts and images. It is expected again."""
        prompt, images = list[int](), dict[int, Image]()
        for part in parts:
            tokens = part if isinstance(part, list) else part[1]
            prompt += tokens
            if isinstance(part, tuple):
                images[tokens[0]] = part[0]
        seen = PromptImages(images, key)
        return self.submit(prompt, max_tokens, images=seen, branch_points=(len(prompt),), **keywords)

    def submit_image(self, before: list[int], seed: int, after: list[int], max_tokens: int = 10) -> Request:
        """Submit a prompt with an image of 7 x 5 tokens, between two texts. It is expected again."""
        return self.submit_images(before, self.see(seed), after, max_tokens=max_tokens)

    def prefilled(self) -> int:
        return self.engine.figures().read


def test_each_chunk_of_a_prompt_gets_the_rows_of_its_images() -> None:
    harness = SeeingHarness(n_ubatch=16)
    large, small = harness.see(0, 32, 40), harness.see(1, 8, 24)
    harness.submit_images(text(0, 30), large, text(1, 2), small, text(2, 20))
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
    first = harness.submit_image(text(0, 40), 0, text(1, 40))
    harness.run()
    before = harness.prefilled()
    harness.submit_image(text(0, 40), 0, [*text(1, 40), *first.tokens, *text(2, 20)])
    harness.run()
    harness.check()
    assert harness.prefilled() - before == 1 + 20


def test_image_of_an_evicted_sequence_is_restored_from_host_memory() -> None:
    harness = SeeingHarness(cache_bytes=CACHE_BYTES)
    first = harness.submit_image(text(0, 200), 0, text(1, 40))
    harness.run()
    harness.submit(text(5, 300))
    harness.run()
    before = harness.prefilled()
    harness.submit_image(text(0, 200), 0, [*text(1, 40), *first.tokens, *text(2, 20)])
    harness.run()
    harness.check()
    assert harness.prefilled() - before == 10 + 20
    assert harness.engine.figures().prefixes.loaded == 200 + 35 + 40


def test_prompts_share_no_tokens_of_different_images() -> None:
    harness = SeeingHarness(cache_bytes=CACHE_BYTES, n_seq_max=2)
    for seed in (0, 1):
        harness.submit_image(text(0, 100), seed, text(1, 40))
        harness.run()
    harness.check()
    assert harness.requests[1].cached_tokens <= 100


def test_restarted_request_gets_its_images_again_and_an_ended_one_keeps_none() -> None:
    harness = SeeingHarness(cache_prompt=False)
    request = harness.submit_image(text(0, 40), 0, text(1, 40), 30)
    while len(request.tokens) < 5:
        harness.engine.step()
    harness.engine.runner.restart(request)
    harness.run()
    harness.check()
    assert len(request.tokens) == 30
    assert request.images is NO_IMAGES


def test_images_beside_each_other_stay_apart() -> None:
    harness = SeeingHarness(cache_bytes=CACHE_BYTES, n_seq_max=3)
    for seed in (0, 1, 0):
        harness.submit_image(text(0, 20), seed, text(seed, 40), 30)
    harness.run()
    harness.check()


def test_kept_rows_take_room_from_cached_prefixes() -> None:
    harness = SeeingHarness(cache_bytes=CACHE_BYTES)
    harness.submit_image(text(0, 20), 0, text(1, 20))
    harness.run()
    assert harness.encoder.nbytes == 35 * 4 * 4
    assert harness.engine.prefix_cache.store.eviction.limit == CACHE_BYTES - harness.encoder.nbytes


def test_image_is_encoded_when_the_prefill_comes_to_it_and_its_rows_are_left_behind() -> None:
    harness = SeeingHarness(n_ubatch=16, image_bytes=0)
    request = harness.submit_images(text(0, 40), harness.see(0), text(1, 30), harness.see(1), text(2, 5))
    held = []
    while request.decode_state is None:
        harness.engine.step()
        assert len(harness.projector.begun) <= (request.n_prefilled >= 32) + (request.n_prefilled >= 96)
        held.append(len(request.image_jobs))
    assert max(held) == 1
    harness.run()
    harness.check()
    assert not request.image_jobs
    assert len(harness.projector.encoded) == 2


@pytest.mark.parametrize("cache_bytes", [0, CACHE_BYTES])
def test_images_of_a_cached_prompt_are_not_encoded_again_however_many_they_are(cache_bytes: int) -> None:
    harness = SeeingHarness(cache_bytes=cache_bytes, image_bytes=600, n_ctx=1024)  # rows of one image
    seen = [harness.see(seed) for seed in range(5)]
    first = harness.submit_images(text(0, 20), *seen, text(1, 20))
    harness.run()
    harness.submit_images(text(0, 20), *seen, [*text(1, 20), *first.tokens, *text(2, 20)])
    harness.run()
    harness.check()
    assert len(harness.projector.encoded) == 5


def test_requests_beside_decode_while_an_image_is_encoded() -> None:
    harness = SeeingHarness(n_seq_max=2, layers=50)
    beside = harness.submit(text(5, 20), 100)
    while not beside.tokens:
        harness.engine.step()
    seeing = harness.submit_image(text(0, 20), 0, text(1, 20))
    n_before = len(beside.tokens)
    while not seeing.tokens:
        harness.engine.step()
    assert len(beside.tokens) - n_before >= 20
    harness.run()
    harness.check()


def test_other_work_takes_as_long_as_the_encoder() -> None:
    seconds = [0.0]
    projector = ScriptedProjector(1000, lambda: seconds.__setitem__(0, seconds[0] + 0.1))
    encoder = ImageEncoder(projector, 0, clock=lambda: seconds[0])
    job = encoder.request(image(0), None)
    while not projector.begun:
        encoder.turn(None)
    others, begun = 0.0, seconds[0]
    for _ in range(1000):
        seconds[0] += 0.01
        others += 0.01
        encoder.turn(0.01)
    assert 0.9 < (seconds[0] - begun - others) / others < 1.1
    encoder.leave(job)


def test_request_that_ends_gives_its_image_up_and_the_next_is_encoded() -> None:
    harness = SeeingHarness(n_seq_max=2, layers=500)
    first = harness.submit_image(text(0, 20), 0, text(1, 20))
    second = harness.submit_image(text(3, 20), 1, text(1, 20))
    after_layer = harness.projector.after_layer

    def cancel() -> None:
        harness.projector.after_layer = after_layer
        harness.engine.cancel(first)

    harness.projector.after_layer = cancel
    harness.run()
    assert first.finish_reason == "cancelled"
    assert len(second.tokens) == 10
    assert len(harness.projector.begun) == 2
    assert len(harness.projector.encoded) == 1
    harness.engine.step()
    assert harness.engine.idle


def test_request_that_waits_for_its_image_gives_its_sequence_to_others() -> None:
    harness = SeeingHarness(n_seq_max=2, layers=300)
    seeing = [harness.submit_image(text(seed, 20), seed, text(9, 20)) for seed in range(3)]
    texts = [harness.submit(text(7 + i, 20), 5) for i in range(3)]
    while not all(one.ended for one in texts):
        harness.engine.step()
    assert len(harness.projector.encoded) <= 1
    harness.run()
    harness.check()
    assert all(len(one.tokens) == 10 for one in seeing)
    assert len(harness.projector.begun) == 3


def test_waiting_requests_that_are_cancelled_leave_their_images() -> None:
    harness = SeeingHarness(n_seq_max=1, layers=100_000)
    seeing = [harness.submit_image(text(seed, 20), seed, text(9, 20)) for seed in range(3)]
    for _ in range(30):
        harness.engine.step()
    for one in seeing:
        harness.engine.cancel(one)
    harness.engine.step()
    harness.engine.step()
    assert harness.engine.idle
    assert not harness.encoder.busy
    assert all(one.finish_reason == "cancelled" for one in seeing)


def test_shared_beginning_of_a_later_prompt_discards_no_image_in_progress() -> None:
    harness = SeeingHarness(n_seq_max=2, n_ubatch=256, layers=300)
    first = harness.submit_images(text(0, 400), harness.see(0), text(1, 20), key=None)
    while not harness.projector.begun:
        harness.engine.step()
    harness.submit_images(text(0, 400), text(2, 30))
    harness.engine.step()
    assert first.n_prefilled == 400  # a chunk that ends before the image
    harness.run()
    harness.check()
    assert len(harness.projector.begun) == 1


def test_no_more_requests_wait_for_images_without_a_sequence_than_there_are_sequences() -> None:
    harness = SeeingHarness(n_seq_max=1, layers=20)
    for seed in range(5):
        harness.submit_image(text(seed, 20), seed, text(9, 20))
    most = 0
    while not all(one.ended for one in harness.requests):
        harness.engine.step()
        most = max(most, sum(one.waits_for_images and one.seq is None for one in harness.requests))
    assert most == 1
    harness.check()


def test_engine_is_busy_until_an_image_that_no_request_has_is_encoded() -> None:
    harness = SeeingHarness(layers=3)
    assert harness.engine.idle
    job = harness.encoder.request(image(0), None)
    while not harness.engine.idle:
        harness.engine.step()
    assert job.done


def test_pieces_are_handed_over_before_an_image_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "HANDOVER_SECONDS", 1e9)
    harness = SeeingHarness(n_seq_max=2, layers=50)
    stream = harness.submit(text(5, 20), 100, max_unread=1000)
    while not stream.tokens:
        harness.engine.step()
    order: list[str] = []
    stream.waiter.notify = lambda: order.append("piece")  # type: ignore[method-assign]
    harness.projector.after_layer = lambda: (order.append("layer"), harness.after_layer())
    harness.submit_image(text(0, 20), 0, text(1, 20))
    while order.count("layer") < 5:
        harness.engine.step()
    assert order.index("piece") < order.index("layer")
    assert order.count("piece") >= 5


def test_rows_are_left_when_the_prompt_is_prefilled() -> None:
    harness = SeeingHarness(image_bytes=0)
    request = harness.submit_image(text(0, 20), 0, text(1, 2), 30)
    while not request.tokens:
        harness.engine.step()
    assert not request.image_jobs
    harness.run()
    harness.check()


def test_requests_that_see_one_image_encode_it_once() -> None:
    harness = SeeingHarness(n_seq_max=3, layers=3)
    for seed in range(3):
        harness.submit_image(text(seed, 20), 7, text(1, 20))
    harness.run()
    harness.check()
    assert len(harness.projector.begun) == 1


def test_image_that_cannot_be_encoded_fails_its_requests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = SeeingHarness(n_seq_max=3)
    begin, bad = harness.projector.begin, image(0, 56, 40).pixels()

    def refuse(pixels: Any) -> None:
        if np.array_equal(pixels, bad):
            raise NativeError("the values are not finite")
        begin(pixels)

    monkeypatch.setattr(harness.projector, "begin", refuse)
    failed = [harness.submit_image(text(seed, 20), 0, text(1, 20)) for seed in range(2)]
    fine = harness.submit_image(text(9, 20), 1, text(1, 20))
    harness.run()
    assert [str(request.error) for request in failed] == ["the values are not finite"] * 2
    assert len(fine.tokens) == 10


@pytest.mark.parametrize(("n_after", "n_saved"), [(1, 51), (4, 51), (30, 50 + 30 - TAIL_TOKENS)])
def test_common_prefix_ends_behind_its_last_image(n_after: int, n_saved: int) -> None:
    class Prompts:
        def prompt(self, chat: Chat) -> ChatPrompt:
            last = len(chat.messages[-1]["content"])
            return ChatPrompt([*text(0, 30), *[-1] * 20, *text(1, n_after), last], (), images={-1: image()})

    saved = common_prefix(Prompts(), Chat([{"role": "user", "content": [{"type": "text", "text": "a"}]}]))  # type: ignore[arg-type]
    assert len(saved.tokens) == n_saved
    assert saved.images == {-1: image()}
