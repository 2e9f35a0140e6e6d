"""Tests of the encoder of images: tokens, the cache of rows, and what prompts are refused."""

from __future__ import annotations

import io
import threading
from concurrent.futures import wait
from typing import Any

import PIL.Image
import pytest
from helpers.images import ScriptedProjector, image, picture

from pymtp import InvalidRequestError, NativeError
from pymtp.chat.prompt import CacheKey, ChatPrompt
from pymtp.engine import image_encoder
from pymtp.engine.image_encoder import ImageEncoder
from pymtp.images import Image
from pymtp.native import process

KEY, OTHER = ("", ""), ("another owner", "")


@pytest.fixture
def projector() -> ScriptedProjector:
    return ScriptedProjector()


@pytest.fixture
def encoder(projector: ScriptedProjector) -> ImageEncoder:
    return ImageEncoder(projector, 1000)  # rows of an image take 320 bytes


def test_equal_images_have_one_token_and_different_ones_never(encoder: ImageEncoder) -> None:
    assert encoder.place(image(0)) == (-1, 20)
    assert encoder.place(image(1)) == (-2, 20)
    assert encoder.place(Image.read(picture(0))) == (-1, 20)
    assert encoder.token_of(image(0).digest, 4, 5) == -3
    assert encoder.token_of(image(0).digest, 5, 4) == -1


def test_token_of_a_forgotten_image_is_not_used_again(encoder: ImageEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_encoder, "MAX_TOKENS", 2)
    tokens = [encoder.place(image(seed))[0] for seed in (0, 1, 0, 2, 0, 1)]
    assert tokens == [-1, -2, -1, -3, -1, -4]


def encode(encoder: ImageEncoder, seed: int, key: CacheKey | None = KEY, width: int = 40) -> Any:
    """Encode an image in turns, and return its rows."""
    job = encoder.request(image(seed, width), key)
    while not job.done:
        encoder.turn(None)
    encoder.leave(job)
    assert not encoder.busy
    return job.rows


def slow_encoder() -> tuple[ImageEncoder, ScriptedProjector, list[float]]:
    """Return an encoder that has begun an image of 1,000 layers, each of which takes 0.1 s, and the time in a list."""
    seconds = [0.0]
    projector = ScriptedProjector(1000, lambda: seconds.__setitem__(0, seconds[0] + 0.1))
    encoder = ImageEncoder(projector, 0, clock=lambda: seconds[0])
    encoder.request(image(0), None)
    while projector.left in (0, 1000):
        encoder.turn(None)
    return encoder, projector, seconds


def test_image_is_encoded_once_for_each_key(encoder: ImageEncoder, projector: ScriptedProjector) -> None:
    for _ in range(2):
        assert encode(encoder, 0).shape == (20, 4)
        encode(encoder, 0, OTHER)
    assert len(projector.encoded) == encoder.n_encoded == 2


def test_rows_without_a_key_are_neither_looked_up_nor_kept(encoder: ImageEncoder) -> None:
    encode(encoder, 0)
    encode(encoder, 0, None)
    encode(encoder, 1, None)
    assert (encoder.n_encoded, encoder.nbytes) == (3, 320)


def test_least_recently_used_rows_make_room_for_new_ones(encoder: ImageEncoder) -> None:
    for seed in (0, 1, 2, 0, 3):  # three fit
        encode(encoder, seed)
    assert (encoder.n_encoded, encoder.nbytes) == (4, 960)
    encode(encoder, 0)
    assert encoder.n_encoded == 4
    encode(encoder, 1)
    assert encoder.n_encoded == 5


def test_rows_larger_than_the_cache_are_not_kept(projector: ScriptedProjector) -> None:
    encoder = ImageEncoder(projector, 400)
    encode(encoder, 0)
    for _ in range(2):
        encode(encoder, 1, KEY, 80)
    assert (encoder.n_encoded, encoder.nbytes) == (3, 320)
    encode(encoder, 0)
    assert encoder.n_encoded == 3


def test_all_who_wait_for_an_image_are_told_of_its_end(encoder: ImageEncoder) -> None:
    told: list[int] = []
    for i in range(2):
        encoder.request(image(0), KEY).on_done.append(lambda i=i: told.append(i))
    while encoder.busy:
        encoder.turn(None)
    assert told == [0, 1]


def test_jobs_for_one_image_share_its_rows_under_one_key_only(
    encoder: ImageEncoder, projector: ScriptedProjector
) -> None:
    jobs = [encoder.request(image(0), key) for key in (KEY, KEY, OTHER, None, None)]
    assert len(set(jobs)) == 4
    while encoder.busy:
        encoder.turn(None)
    assert all(job.done for job in jobs)
    assert len(projector.encoded) == 4


def test_image_that_nobody_waits_for_any_more_is_given_up() -> None:
    projector = ScriptedProjector(layers=10)
    encoder = ImageEncoder(projector, 1000)
    first, same, second = (encoder.request(image(seed), KEY) for seed in (0, 0, 1))
    while not projector.begun:
        encoder.turn(None)
    encoder.leave(first)
    encoder.turn(None)
    assert len(projector.begun) == 1  # one waits for it still
    encoder.leave(same)
    while not second.done:
        encoder.turn(None)
    assert len(projector.begun) == 2
    assert len(projector.encoded) == 1


def test_engine_waits_neither_for_the_copy_of_an_image_nor_for_the_end_of_its_preparation() -> None:
    projector, threads = ScriptedProjector(layers=10), list[threading.Thread]()
    begin, end = projector.begin, projector.end
    projector.begin = lambda pixels: threads.append(threading.current_thread()) or begin(pixels)  # type: ignore[method-assign]
    projector.end = lambda: threads.append(threading.current_thread()) or end()  # type: ignore[method-assign]
    encoder = ImageEncoder(projector, 1000)
    first, second = (encoder.request(image(seed), KEY) for seed in (0, 1))
    while projector.left in (0, 10):
        encoder.turn(None)
    encoder.leave(first)
    while not second.done:
        encoder.turn(None)
    assert len(threads) == 5  # each begins with the end of an image
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("closes", [False, True])
def test_image_that_is_given_up_before_its_preparation_is_not_prepared(
    projector: ScriptedProjector, encoder: ImageEncoder, closes: bool
) -> None:
    released = threading.Event()
    encoder._preparer.submit(released.wait, 60)
    job = encoder.request(image(0), KEY)
    encoder.turn(0.01)
    encoder.leave(job)
    encoder.close() if closes else encoder.turn(0.01)
    released.set()
    encoder._preparer.shutdown()
    assert not projector.begun


def test_fork_waits_until_an_image_was_given_up(encoder: ImageEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    released, ended = threading.Event(), list[bool]()
    monkeypatch.setattr(encoder.projector, "end", lambda: ended.append(True))
    encoder._preparer.submit(released.wait, 60)
    job = encoder.request(image(0), KEY)
    encoder.turn(0.01)
    encoder.leave(job)
    encoder.turn(0.01)
    monkeypatch.setattr(image_encoder, "wait", lambda futures, _: released.set() or wait(futures))
    process._wait_for_all()
    released.set()
    assert ended


def test_image_of_a_forked_parent_does_not_stand_in_the_way(
    projector: ScriptedProjector, encoder: ImageEncoder
) -> None:
    projector.begin(picture(1))
    encoder._after_fork_in_child()
    assert encode(encoder, 0) is not None


@pytest.mark.parametrize("error", [MemoryError(), NativeError("failed")])
@pytest.mark.parametrize("where", ["begin", "advance"])
def test_image_that_fails_leaves_the_projector_to_the_next(
    projector: ScriptedProjector, encoder: ImageEncoder, monkeypatch: pytest.MonkeyPatch, error: Exception, where: str
) -> None:
    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise error

    monkeypatch.setattr(projector, where, fail)
    job = encoder.request(image(0), KEY)
    while not job.done:
        encoder.turn(None)
    assert isinstance(job.error, NativeError)
    encoder.leave(job)
    assert encode(encoder, 1) is not None


def test_image_that_is_asked_for_again_goes_on(projector: ScriptedProjector) -> None:
    projector.layers = 10
    encoder = ImageEncoder(projector, 1000)
    job = encoder.request(image(0), KEY)
    while not projector.begun:
        encoder.turn(None)
    encoder.leave(job)
    again = encoder.request(image(0), KEY)
    while not again.done:
        encoder.turn(None)
    encoder.leave(again)
    assert len(projector.begun) == 1
    assert encoder.nbytes == 320


def test_image_of_a_request_with_a_lower_number_comes_first(projector: ScriptedProjector) -> None:
    encoder = ImageEncoder(projector, 1000)
    jobs = [encoder.request(image(seed), KEY, priority) for seed, priority in ((0, 5), (1, 5), (2, -1), (1, 0))]
    while encoder.busy:
        encoder.turn(None)
    expected = [image(seed).pixels().mean() for seed in (2, 1, 0)]
    assert projector.encoded == pytest.approx(expected)
    assert all(job.rows is not None for job in jobs)


def test_other_work_between_the_turns_is_waited_for_before_a_debt_is_forgiven() -> None:
    encoder, _, seconds = slow_encoder()
    begun, others = seconds[0], 0.0
    for _ in range(500):  # a call of another thread, then a step without work before the next call
        seconds[0] += 0.01
        others += 0.01
        encoder.turn(0.01)
        encoder.turn(None)
    assert (seconds[0] - begun - others) / others < 1.1


def test_turn_ends_when_something_else_is_to_be_done() -> None:
    encoder, projector, _ = slow_encoder()
    before = projector.left
    encoder.turn(30.0, lambda: projector.left < before - 2)
    assert projector.left == before - 3


def test_damaged_image_is_refused_where_it_is_placed_and_decoded_once(
    encoder: ImageEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, decoded = image(0), []
    pixels = Image.pixels
    monkeypatch.setattr(Image, "pixels", lambda self: decoded.append(self) or pixels(self))
    encoder.place(seen)
    encoder.place(seen)
    assert len(decoded) == 1
    buffer = io.BytesIO()
    PIL.Image.fromarray(picture(3)).save(buffer, "png")
    with pytest.raises(InvalidRequestError, match="decoded"):
        encoder.place(Image.read(buffer.getvalue()[:-600]))


def test_prompt_with_image_tokens_of_another_llm_is_refused(encoder: ImageEncoder) -> None:
    seen = image(0)
    encoder.check_prompt(ChatPrompt([1, *[-1] * 20, 2], (), images={-1: seen}))
    for tokens, images in (
        ([1, *[-2] * 20, 2], {-2: seen}),
        ([1, *[-1] * 19, 2], {-1: seen}),
        ([1, *[-1] * 20, *[-2] * 20, 2], {-1: seen}),
    ):
        with pytest.raises(InvalidRequestError, match="another LLM"):
            encoder.check_prompt(ChatPrompt(tokens, (), images=images))
    with pytest.raises(InvalidRequestError, match="ends with an image"):
        encoder.check_prompt(ChatPrompt([1, *[-1] * 20], (), images={-1: seen}))
