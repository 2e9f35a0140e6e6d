"""Tests of images on a GPU: the encoder's rows, logits and drafts after images, and texts about images.

The golden outputs are those of test_image_oracle.py. See test_gpu.py for the bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.devices import GPUS, LAVAPIPE, ON_CPU
from helpers.images import picture
from makers import image_oracle
from makers.make_mmproj import make_mmproj

from pymtp import LLM, Model, SamplingParams
from pymtp.context.context import Context
from pymtp.model.projector import Projector

LAYERS = 0 if ON_CPU else -1

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS and not ON_CPU, reason="needs a GPU")]

GOLDEN = np.load(Path(__file__).parent.parent / "reference" / "golden_images.npz")
BOUND = 5e-2  # the weights of the encoder are F32, and products take them with the mantissa of a half
NAMES = list(image_oracle.SIZES)[:1] if LAVAPIPE else list(image_oracle.SIZES)
PROMPTS = list(image_oracle.PROMPTS)[:1] if LAVAPIPE else list(image_oracle.PROMPTS)


@pytest.fixture(scope="module")
def model(demo_f32: Path) -> Iterator[Model]:
    with Model(demo_f32, n_gpu_layers=LAYERS) as model:
        yield model


@pytest.fixture(scope="module")
def projector(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Projector]:
    file = image_oracle.make_image_oracle(tmp_path_factory.mktemp("models") / "mmproj.gguf")
    projector = Projector(model, file, n_threads=1, min_tokens=image_oracle.MIN_TOKENS)
    yield projector
    projector.close()


@pytest.mark.parametrize("name", NAMES)
def test_projector_encodes_images_as_transformers_does(projector: Projector, name: str) -> None:
    assert np.abs(projector.encode(image_oracle.picture(name)) - GOLDEN[f"{name}.rows"]).max() <= BOUND


@pytest.mark.parametrize("prompt", PROMPTS)
def test_encoded_images_lead_to_the_logits_and_drafts_of_the_reference(
    model: Model, projector: Projector, prompt: str
) -> None:
    with Context(model, n_ctx=256, n_threads=1, draft_tokens=3, draft_vocab="all", max_outputs=64) as context:
        rows = {}
        for name in image_oracle.pictures(prompt):
            context.add_image(image_oracle.number(name), *image_oracle.GRIDS[name])
            rows[image_oracle.number(name)] = projector.encode(image_oracle.picture(name))
        golden = GOLDEN[f"{prompt}.logits"]
        logits = context.prefill_logits(image_oracle.tokens(prompt, model.tokenize), images=rows)[-len(golden) :]
        assert np.abs(logits - golden).max() <= BOUND
        drafts = [int(GOLDEN[f"{prompt}.next"]), *map(int, GOLDEN[f"{prompt}.{context.tap}.drafts"])][:3]
        found = np.stack([context.draft(token).copy() for token in drafts])
        assert np.abs(found - GOLDEN[f"{prompt}.{context.tap}.logits"]).max() <= BOUND


def test_image_is_read_once_and_leads_to_one_text(model: Model, tmp_path: Path) -> None:
    file = make_mmproj("demo", tmp_path / "mmproj.gguf")
    part = {"type": "image", "image": picture(0, 96, 64)}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "def f(x):\n"}]}]
    params = SamplingParams(4 if LAVAPIPE else 30, temperature=0.0, ignore_eos=True)
    texts = []
    for cache in (True, False):
        with LLM(model, mmproj=file, n_ctx=512, n_threads=1, draft_tokens=3, cache_prompt=cache) as llm:
            assert llm._images is not None
            texts += [llm.chat(messages, params).token_ids for _ in range(2)]
            assert llm._images.n_encoded == (1 if cache else 2)
    assert texts == [texts[0]] * 4
