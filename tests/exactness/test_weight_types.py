"""Tests of the types of weights that people download: their bits depend on nothing beside, and their values are right.

test_row_bits.py and test_prompt_cuts.py test the other types, and all that does not depend on the type.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from helpers.bits import ROWS_ALONE
from makers.gguf_variants import rewrite
from makers.make_model import make_model
from makers.model_shapes import PRESETS

from pymtp import Model
from pymtp.context.context import Context

pytestmark = pytest.mark.skipif(not ROWS_ALONE, reason="the kernels of other processors go by the number of rows")

# the matrices of a model have the types in turns
CODEBOOKS = ["iq1_s+iq1_m", "iq2_xxs+iq2_xs+iq2_s", "iq3_xxs+iq3_s"]
OTHERS = ["q4_1+q5_0+q5_1", "tq1_0+tq2_0+mxfp4", "q1_0+q2_0", "nvfp4"]
MIXES = ["ud-iq2_xxs", "ud-q2_k_xl", "ud-iq3_xxs"]
# every matrix has whole superblocks and a multiple of 8 rows; experts have dense matrices beside them
DENSE = replace(PRESETS["7m"], n_layer=4, n_vocab=320, linear_v_heads=4, n_ff=256)
EXPERTS = replace(DENSE, n_ff=0, n_expert=4, n_expert_used=2, n_ff_expert=256, n_ff_shared=256, tied=False)
SHAPES = {
    "experts": EXPERTS,
    # rounding could change a choice of experts; a head would only take time to convert
    "all-experts": replace(EXPERTS, head=False, n_expert=2),
}
TOKENS = random.Random(0).choices(range(256), k=80)  # more than the 65 rows up to which few rows have their own kernels
NEXT = [3, 1, 4, 1, 5]

NewModel = Callable[[str, str], Model]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewModel]:
    """Return a function that makes a model of random weights: one of SHAPES, and a type or mix of weights."""
    made: dict[tuple[str, str], Model] = {}

    def make(shape: str, weights: str) -> Model:
        if (shape, weights) not in made:
            path = tmp_path_factory.mktemp("models") / f"{shape}-{weights}.gguf"
            make_model(SHAPES[shape], path, weight_type=weights)
            made[shape, weights] = Model(path)
        return made[shape, weights]

    yield make
    for one in made.values():
        one.close()


def verified(context: Context, sizes: list[int]) -> bytes:
    """Return the bits of the rows after two tokens, computed in verifications of these sizes."""
    context.clear()
    context.prefill(TOKENS[:2])
    pieces = pairwise(accumulate(sizes, initial=2))
    return b"".join(context.verify(TOKENS[begin:end]).tobytes() for begin, end in pieces)


def prefilled(context: Context, ends: list[int]) -> bytes:
    """Return the bits of the last row of a prompt in pieces, of the head's cache, and of some further rows."""
    context.clear()
    for begin, end in zip([0, *ends], ends, strict=False):
        logits = context.prefill(TOKENS[begin:end])
    return bytes(logits.tobytes() + context.inspect.head_state() + context.verify(NEXT).tobytes())


@pytest.mark.parametrize("weights", [*CODEBOOKS, *OTHERS, *MIXES])
def test_rows_of_all_types_have_the_same_bits_whichever_rows_are_beside_them(model: NewModel, weights: str) -> None:
    with Context(model("experts", weights), n_ctx=128, draft_tokens=64, n_threads=1) as context:
        together = verified(context, [65])
        assert verified(context, [1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17]) == together
        assert verified(context, [16, 33, 16]) == together


@pytest.mark.parametrize("weights", [*CODEBOOKS, *OTHERS, *MIXES])
def test_cut_prompts_of_all_types_have_the_bits_of_the_whole_prompt(model: NewModel, weights: str) -> None:
    with Context(model("experts", weights), n_ctx=128, draft_tokens=7, n_threads=1) as context:
        assert prefilled(context, [1, 40, 80]) == prefilled(context, [80])


@pytest.mark.parametrize("weights", [*CODEBOOKS, *OTHERS])
def test_weights_of_all_types_multiply_as_their_f32_values(model: NewModel, tmp_path: Path, weights: str) -> None:
    """Activations are rounded to 8 bits. That costs up to 9% of the logits' norm here, and a wrong type over half."""
    packed = model("all-experts", weights)
    rewrite(packed.path, tmp_path / "twin.gguf", weights="f32")
    with Model(tmp_path / "twin.gguf") as plain:
        found = []
        for one in (packed, plain):
            with Context(one, n_ctx=64, draft_tokens=0, n_threads=1) as context:
                context.prefill(TOKENS[:1])
                found.append(np.stack([context.verify(TOKENS[i : i + 1])[0] for i in range(1, 6)]))
    differences = np.linalg.norm(found[0] - found[1], axis=1) / np.linalg.norm(found[1], axis=1)
    assert np.median(differences) < 0.15


def test_signs_of_nvfp4_scales_are_ignored_as_in_llama_cpp(model: NewModel, tmp_path: Path) -> None:
    packed, signed = model("experts", "nvfp4"), tmp_path / "signed.gguf"
    shutil.copy(packed.path, signed)
    for tensor in GGUFReader(signed, "r+").tensors:
        if tensor.tensor_type == GGMLQuantizationType.NVFP4:
            tensor.data.reshape(-1, 36)[:, :4] |= 0x80  # blocks of 4 scales and 32 bytes of values
    found = []
    with Model(signed) as other:
        for one in (packed, other):
            with Context(one, n_ctx=16, draft_tokens=0, n_threads=1) as context:
                found.append(context.prefill(TOKENS[:4]).tobytes())
    assert found[0] == found[1]
