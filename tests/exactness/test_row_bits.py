"""Tests of verification bits: each row has the bits of a single step, whichever rows are decoded beside it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.bits import ROWS_ALONE
from makers.gguf_variants import rewrite
from makers.make_model import make_model
from makers.model_shapes import PRESETS
from numpy.typing import NDArray

from pymtp import Model
from pymtp.context.context import Context

pytestmark = pytest.mark.skipif(not ROWS_ALONE, reason="the kernels of other processors go by the number of rows")

EXACT = ["f32", "f16", "bf16", "q8_0", "q4_0", "iq4_nl"]
SUPERBLOCKS = ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"]
PLAIN = ["q8_0", "q3_k", "q5_k", "q6_k", "iq4_xs"]  # weight types that are repacked only for AMX
SMALL = replace(PRESETS["7m"], n_layer=4, n_vocab=512)
SHAPES = {
    "7m": SMALL,
    "7m-moe": replace(SMALL, n_ff=0, n_expert=8, n_expert_used=2, n_ff_expert=256, n_ff_shared=256, tied=False),
    # heads that are shorter than a vector, or not a multiple of it
    **{
        f"heads of {n}": replace(PRESETS["tiny"], head_dim=n, n_rot=n, rope_sections=(n // 2, 0, 0)) for n in (4, 8, 24)
    },
}
SHAPES["7m-next"] = replace(SHAPES["7m-moe"], rope_sections=(), next=True)
REPACKED = ["q4_0", "iq4_nl", "q4_k", "q2_k"]  # weight types that are repacked on x86, with 8 rows interleaved
REPACKED_SHAPES = {  # every matrix has a multiple of 8 rows, of whole superblocks
    "dense": replace(SMALL, linear_v_heads=8, n_ff=512),
    "experts": replace(SHAPES["7m-moe"], linear_v_heads=8),
    # two matrices have 24 rows: fewer than a kernel multiplies at once, but more than it needs
    "thin": replace(SMALL, linear_v_heads=24, n_ff=512),
    # Q8_0 has a kernel for short rows and one for rows from 768 elements on
    "long": replace(SMALL, linear_v_heads=8, n_ff=1024),
}
# all experts are used: rounding could change a choice of experts, and with it the logits
VALUE_SHAPES = {
    **{name: shape for name, shape in REPACKED_SHAPES.items() if name != "experts"},
    "all-experts": replace(REPACKED_SHAPES["experts"], n_expert=3, n_expert_used=3),
}
FEW = (2, 3, 11, 16, 29, 40, 47, 49, 52, 64, 65)
SIZES = list(range(2, 10))  # numbers of rows of consecutive verifications
# lengths of prompts: the 44 tokens of SIZES then pass 256 cells, where more cells are read, or 512, where a chunk ends
SHORT, LONG = 230, 490
TOKENS = random.Random(0).choices(range(256), k=600)

NewModel = Callable[[str, str], Model]
Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewModel]:
    """Return a function that makes a model of random weights: one of SHAPES or of the presets, and a weight type."""
    made: dict[tuple[str, str], Model] = {}

    def make(preset: str, weight_type: str) -> Model:
        key = (preset, weight_type)
        if key not in made:
            path: Path = tmp_path_factory.mktemp("models") / f"{preset}-{weight_type}.gguf"
            make_model({**SHAPES, **REPACKED_SHAPES, **VALUE_SHAPES}.get(preset, preset), path, weight_type=weight_type)
            made[key] = Model(path)
        return made[key]

    yield make
    for one in made.values():
        one.close()


def logits_after(context: Context, n_prompt: int, sizes: list[int]) -> Logits:
    """Return the logits of the tokens after a prompt, computed in verifications of these sizes."""
    context.clear()
    context.prefill(TOKENS[:n_prompt])
    return verified(context, 0, sizes)


def verified(context: Context, seq: int, sizes: list[int]) -> Logits:
    """Return the logits of a sequence's next tokens, computed in verifications of these sizes."""
    rows = []
    for size in sizes:
        n_past = len(context.tokens(seq))
        rows.append(context.verify(TOKENS[n_past : n_past + size], seq))
    return np.concatenate(rows)


def same_bits(one: Logits, other: Logits) -> bool:
    return one.tobytes() == other.tobytes()


def assert_rows_do_not_matter(model: Model, n_prompt: int, sizes: list[int], **options: Any) -> None:
    n = sum(sizes)
    n_ctx = 2 * (n_prompt + n)
    with Context(model, n_ctx=n_ctx, n_seq_max=2, draft_tokens=max(sizes) - 1, **options) as context:
        context.prefill(TOKENS[:n_prompt])
        context.copy(0, 1)  # a second prefill would take longer than all verifications
        assert same_bits(verified(context, 0, sizes), verified(context, 1, [1] * n))


@pytest.mark.parametrize("preset", ["tiny", "tiny-moe", "tiny-next"])
@pytest.mark.parametrize("weight_type", EXACT)
def test_verification_rows_have_the_bits_of_single_steps(model: NewModel, preset: str, weight_type: str) -> None:
    assert_rows_do_not_matter(model(preset, weight_type), SHORT, SIZES, n_threads=1)


@pytest.mark.parametrize(
    ("shape", "weight_type"),
    [
        *((shape, weight_type) for shape in ("7m", "7m-moe") for weight_type in ["q8_0", "q4_0", *SUPERBLOCKS]),
        ("7m-next", "q8_0"),  # its matrices are multiplied as those of the others
        ("7m-next", "q4_k"),
    ],
)
def test_verification_rows_have_the_same_bits_with_whole_superblocks(
    model: NewModel, shape: str, weight_type: str
) -> None:
    assert_rows_do_not_matter(model(shape, weight_type), SHORT, SIZES, n_threads=1)


@pytest.mark.parametrize(
    ("shape", "weight_type"),
    [
        *((shape, weight_type) for shape in ("dense", "experts", "thin") for weight_type in [*EXACT, *SUPERBLOCKS]),
        ("long", "q8_0"),
    ],
)
def test_verification_rows_have_the_same_bits_for_1_to_65_rows(model: NewModel, shape: str, weight_type: str) -> None:
    # Each verification follows the same short prompt: the products with weights are under test, not attention.
    # Tiles have at most 32 rows, so that the numbers up to 33 leave each remainder; a few larger ones have more tiles.
    # With experts, a few numbers of rows are enough: each expert gets only some of the rows
    with Context(model(shape, weight_type), n_ctx=128, draft_tokens=64, n_threads=1, n_ubatch=65) as context:
        alone = logits_after(context, 2, [1] * 65)
        for n in (
            (*range(2, 34), 40, 47, 48, 49, 63, 64, 65) if shape == "dense" else (2, 3, 11, 16, 29, 40, 52, 64, 65)
        ):
            assert same_bits(logits_after(context, 2, [n]), alone[:n]), n


@pytest.mark.parametrize(
    ("shape", "weight_type"),
    [
        *((shape, weight_type) for shape in ("dense", "all-experts") for weight_type in [*REPACKED, *PLAIN]),
        *(("thin", weight_type) for weight_type in REPACKED),
        ("long", "q8_0"),
        *(
            ("experts", weight_type) for weight_type in ("q4_k", "q5_k", "q8_0")
        ),  # with these types, rounding changes few choices of experts
    ],
)
def test_quantized_weights_multiply_as_their_f32_values(
    model: NewModel, tmp_path: Path, shape: str, weight_type: str
) -> None:
    """Activations are rounded to 8 bits.

    That costs 2 to 7% of the logits' norm with repacked weights, and up to 12% with the other types here. A wrong bit,
    scale or position costs more than half.
    """
    packed = model(shape, weight_type)
    rewrite(packed.path, tmp_path / "twin.gguf", weights="f32")
    with Model(tmp_path / "twin.gguf") as plain:
        found = []
        for one in (packed, plain):
            with Context(one, n_ctx=128, draft_tokens=4, n_threads=1, n_ubatch=8) as context:
                found.append(logits_after(context, 1, [1, 5]))
    differences = np.linalg.norm(found[0] - found[1], axis=1) / np.linalg.norm(found[1], axis=1)
    assert np.median(differences) < (0.1 if weight_type in REPACKED else 0.2)


@pytest.mark.parametrize("weight_type", ["f32", "f16"])
@pytest.mark.parametrize(
    ("flash_attn", "cache"),
    [("on", "f16"), ("on", "f32"), ("on", "bf16"), ("on", "q8_0"), ("off", "f16"), ("off", "f32"), ("off", "bf16")],
)
def test_verification_rows_have_the_same_bits_in_a_long_context(
    model: NewModel, weight_type: str, flash_attn: str, cache: str
) -> None:
    options = {"flash_attn": flash_attn, "type_k": cache, "type_v": cache, "n_threads": 1}
    assert_rows_do_not_matter(model("tiny", weight_type), LONG, SIZES, **options)


@pytest.mark.parametrize("head_dim", [4, 8, 24])
def test_rows_have_the_same_bits_with_heads_of_any_size(model: NewModel, head_dim: int) -> None:
    assert_rows_do_not_matter(model(f"heads of {head_dim}", "f32"), SHORT, SIZES, flash_attn="on", n_threads=1)


@pytest.mark.parametrize("weight_type", ["f16", "q8_0"])
def test_longest_verification_has_the_same_bits(model: NewModel, weight_type: str) -> None:
    assert_rows_do_not_matter(model("tiny", weight_type), LONG, [65], n_threads=1)


@pytest.mark.parametrize("shape", ["7m", "7m-moe"])
@pytest.mark.parametrize("weight_type", [*PLAIN, *REPACKED])
def test_longest_verification_has_the_same_bits_with_any_number_of_weight_rows(
    model: NewModel, shape: str, weight_type: str
) -> None:
    assert_rows_do_not_matter(model(shape, weight_type), SHORT, [65, 12, 33], n_threads=1)


@pytest.mark.parametrize("cache", ["f16", "bf16", "q8_0"])
def test_single_step_is_as_exact_as_a_prefill_with_any_cache(model: NewModel, cache: str) -> None:
    """Attention of a few rows sums in F32, like attention of many rows."""
    options: dict[str, Any] = {"flash_attn": "on", "type_k": cache, "type_v": cache}
    with Context(model("tiny", "f32"), n_ctx=640, draft_tokens=0, n_threads=1, **options) as context:
        for n in (300, 500, 600):
            context.clear()
            whole = context.prefill(TOKENS[:n])
            assert np.abs(logits_after(context, n - 1, [1]) - whole).max() < 1e-5


@pytest.mark.parametrize("weight_type", ["f16", "q8_0"])
def test_bits_do_not_depend_on_drafts_and_threads(model: NewModel, weight_type: str) -> None:
    found = []
    for draft_tokens, n_threads, sizes in ((3, 1, [1] * 9), (3, 2, [2, 3, 4]), (0, 2, [1] * 9)):
        with Context(model("tiny", weight_type), n_ctx=640, draft_tokens=draft_tokens, n_threads=n_threads) as context:
            found.append(logits_after(context, 508, sizes))
    assert all(same_bits(logits, found[0]) for logits in found[1:])


@pytest.mark.parametrize("weight_type", EXACT)
@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_batched_sequences_have_the_bits_of_single_ones(model: NewModel, weight_type: str, flash_attn: str) -> None:
    prompts = {0: TOKENS[:300], 1: TOKENS[100:600]}
    options: dict[str, Any] = {"n_ctx": 2 * 768, "n_seq_max": 2, "draft_tokens": 0, "flash_attn": flash_attn}
    with Context(model("tiny", weight_type), n_threads=1, **options) as context:
        alone = np.stack([context.prefill(prompt, seq) for seq, prompt in prompts.items()])
        together = context.prefill_batch({0: [5], 1: [6]})
        context.clear()
        assert same_bits(context.prefill_batch(prompts), alone)
        context.clear()
        for seq, prompt in prompts.items():
            context.prefill(prompt, seq)
        assert same_bits(together, np.stack([context.prefill([5], 0), context.prefill([6], 1)]))
