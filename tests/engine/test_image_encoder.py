"""Tests of the encoder of images: tokens, the cache of rows, and what prompts are refused."""

from __future__ import annotations

import threading

import pytest
from helpers.images import ScriptedProjector, image, picture

from pymtp import InvalidRequestError
from pymtp.chat.prompt import ChatPrompt
from pymtp.engine import image_encoder
from pymtp.engine.image_encoder import ImageEncoder
from pymtp.images import Image

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


def test_image_is_encoded_once_for_each_key(encoder: ImageEncoder, projector: ScriptedProjector) -> None:
    for _ in range(2):
        rows = encoder.encode({-1: image(0)}, KEY)[-1].rows
        assert rows.shape == (20, 4)
        encoder.encode({-1: image(0)}, OTHER)
    assert len(projector.encoded) == encoder.n_encoded == 2


def test_rows_without_a_key_are_neither_looked_up_nor_kept(encoder: ImageEncoder) -> None:
    encoder.encode({-1: image(0)}, KEY)
    encoder.encode({-1: image(0)}, None)
    encoder.encode({-1: image(1)}, None)
    assert (encoder.n_encoded, encoder.nbytes) == (3, 320)


def test_least_recently_used_rows_make_room_for_new_ones(encoder: ImageEncoder) -> None:
    for seed in (0, 1, 2, 0, 3):  # three fit
        encoder.encode({-1: image(seed)}, KEY)
    assert (encoder.n_encoded, encoder.nbytes) == (4, 960)
    encoder.encode({-1: image(0)}, KEY)
    assert encoder.n_encoded == 4
    encoder.encode({-1: image(1)}, KEY)
    assert encoder.n_encoded == 5


def test_rows_larger_than_the_cache_are_not_kept(projector: ScriptedProjector) -> None:
    encoder = ImageEncoder(projector, 400)
    encoder.encode({-1: image(0)}, KEY)
    for _ in range(2):
        encoder.encode({-2: image(1, 80, 32)}, KEY)
    assert (encoder.n_encoded, encoder.nbytes) == (3, 320)
    encoder.encode({-1: image(0)}, KEY)
    assert encoder.n_encoded == 3


def test_threads_that_need_one_image_encode_it_once(encoder: ImageEncoder, projector: ScriptedProjector) -> None:
    with projector.lock:
        threads = [threading.Thread(target=encoder.encode, args=({-1: image(0)}, KEY)) for _ in range(4)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert encoder.n_encoded == 1


def test_cancelled_prompt_encodes_no_further_image(encoder: ImageEncoder) -> None:
    answers = iter([False, True])
    encoded = encoder.encode({-1: image(0), -2: image(1)}, KEY, lambda: next(answers))
    assert list(encoded) == [-1]


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
