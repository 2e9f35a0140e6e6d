"""Tests of images against transformers: the encoder's rows, the trunk's logits after images, and the head's drafts.

tests/reference/make_golden_images.py made the golden outputs, in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from makers import image_oracle
from makers.next_oracle import weights_sha256
from numpy.typing import NDArray

from pymtp.context.context import Context
from pymtp.model.model import Model
from pymtp.model.projector import Projector

GOLDEN = np.load(Path(__file__).parent.parent / "reference" / "golden_images.npz")
BOUND = 2e-3  # on the error of rows, and of logits after the golden rows
# The encoder computes GELU and attention with numbers of half precision; the model carries their errors on, and how far
# depends on its weights.
ENCODED_BOUND = 5e-2
STEPS = 3
EXACT: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "type_k": "f32", "type_v": "f32", "flash_attn": "off"}


@pytest.fixture(scope="module")
def mmproj(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_oracle.make_image_oracle(tmp_path_factory.mktemp("models") / "mmproj.gguf")


@pytest.fixture(scope="module")
def projector(mmproj: Path, shipped_f32: Model) -> Iterator[Projector]:
    projector = Projector(shipped_f32, mmproj, n_threads=1, min_tokens=image_oracle.MIN_TOKENS)
    yield projector
    projector.close()


def prefill(context: Context, prompt: str, projector: Projector | None = None) -> NDArray[np.float32]:
    """Prefill a prompt, and return the logits of the tokens after its last image.

    projector: encodes the images; None takes the golden rows.
    """
    rows = {}
    for name in image_oracle.pictures(prompt):
        image = image_oracle.number(name)
        context.add_image(image, *image_oracle.GRIDS[name])
        golden = GOLDEN[f"{name}.rows"]
        rows[image] = golden if projector is None else projector.encode(image_oracle.picture(name))
    n = len(GOLDEN[f"{prompt}.logits"])
    return context.prefill_logits(image_oracle.tokens(prompt, context.model.tokenize), images=rows)[-n:]


def head_logits(context: Context, prompt: str) -> NDArray[np.float32]:
    """Return logits of shape (3, n_vocab): three chained draft steps after a prompt, fed with the golden drafts."""
    drafts = [int(draft) for draft in GOLDEN[f"{prompt}.{context.tap}.drafts"]]
    return np.stack([context.draft(token) for token in [int(GOLDEN[f"{prompt}.next"]), *drafts][:STEPS]])


def assert_same(logits: NDArray[np.float32], golden: NDArray[np.float32], bound: float = BOUND) -> None:
    assert np.abs(logits - golden).max() <= bound
    best = np.sort(golden, axis=-1)
    clear = best[..., -1] - best[..., -2] > bound
    assert np.array_equal(logits.argmax(-1)[clear], golden.argmax(-1)[clear])


def test_golden_outputs_belong_to_the_compared_model_and_projector(demo: Path, mmproj: Path) -> None:
    assert weights_sha256(demo) == str(GOLDEN["model_sha256"])
    assert weights_sha256(mmproj) == str(GOLDEN["mmproj_sha256"])


@pytest.mark.parametrize("name", image_oracle.SIZES)
def test_projector_encodes_images_as_transformers_does(projector: Projector, name: str) -> None:
    image = image_oracle.picture(name)
    height, width, _ = image.shape
    assert projector.grid(width, height) == image_oracle.GRIDS[name]
    assert np.abs(projector.encode(image) - GOLDEN[f"{name}.rows"]).max() <= BOUND


@pytest.mark.parametrize("prompt", image_oracle.PROMPTS)
def test_logits_after_images_are_those_of_transformers(shipped_f32: Model, prompt: str) -> None:
    with Context(shipped_f32, **EXACT, draft_tokens=0, max_outputs=64) as context:
        assert_same(prefill(context, prompt), GOLDEN[f"{prompt}.logits"])


@pytest.mark.parametrize("tap", ["post_norm", "pre_norm"])
@pytest.mark.parametrize("prompt", image_oracle.PROMPTS)
def test_head_drafts_after_images_as_the_reference_does(shipped_f32: Model, prompt: str, tap: str) -> None:
    with Context(shipped_f32, **EXACT, draft_tokens=STEPS, tap=tap, draft_vocab="all", max_outputs=64) as context:
        prefill(context, prompt)
        assert_same(head_logits(context, prompt), GOLDEN[f"{prompt}.{tap}.logits"])


@pytest.mark.parametrize("prompt", image_oracle.PROMPTS)
def test_encoded_images_lead_to_the_logits_and_drafts_of_the_reference(
    shipped_f32: Model, projector: Projector, prompt: str
) -> None:
    with Context(shipped_f32, **EXACT, draft_tokens=STEPS, draft_vocab="all", max_outputs=64) as context:
        assert_same(prefill(context, prompt, projector), GOLDEN[f"{prompt}.logits"], ENCODED_BOUND)
        assert_same(head_logits(context, prompt), GOLDEN[f"{prompt}.{context.tap}.logits"], ENCODED_BOUND)
