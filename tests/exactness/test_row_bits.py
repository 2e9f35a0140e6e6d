"""Claims about bits: a verification computes each row as a single step does, whatever rows are beside it."""

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
PLAIN = ["q8_0", "q3_k", "q5_k", "q6_k", "iq4_xs"]  # repacked for AMX alone
SHAPES = {
    "7m": PRESETS["7m"],
    "7m-moe": replace(
        PRESETS["7m"], n_layer=4, n_ff=0, n_expert=8, n_expert_used=2, n_ff_expert=256, n_ff_shared=256, tied=False
    ),
}
SHAPES["7m-next"] = replace(SHAPES["7m-moe"], rope_sections=(), next=True)
REPACKED = ["q4_0", "iq4_nl", "q4_k", "q2_k"]  # on x86: 8 rows of the weights interleaved
REPACKED_SHAPES = {  # every matrix has rows by the eight, of whole superblocks
    "dense": replace(SHAPES["7m"], n_layer=4, linear_v_heads=8, n_ff=512),
    "experts": replace(SHAPES["7m-moe"], linear_v_heads=8),
    # two matrices have 24 rows: fewer than are multiplied at once, and more than the least
    "thin": replace(SHAPES["7m"], n_layer=4, linear_v_heads=24, n_ff=512),
    # Q8_0 has a kernel for short rows and one for rows from 768 elements on
    "long": replace(SHAPES["7m"], n_layer=4, linear_v_heads=8, n_ff=1024),
}
# of experts, all are used: with a choice, rounding would change it, and with it the logits
VALUE_SHAPES = {
    **{name: shape for name, shape in REPACKED_SHAPES.items() if name != "experts"},
    "all-experts": replace(REPACKED_SHAPES["experts"], n_expert=3, n_expert_used=3),
}
SIZES = list(range(2, 10))  # of verifications, one after the other
SHORT, LONG = 230, 1000  # 44 tokens go on past 256 cells, or 1024: where more is read, and a chunk of sums ends
TOKENS = random.Random(0).choices(range(256), k=1100)

NewModel = Callable[[str, str], Model]
Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewModel]:
    """A model of random weights: one of SHAPES or of the presets, and a type."""
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


def after(context: Context, n_prompt: int, sizes: list[int]) -> Logits:
    """Logits of the tokens that follow a prompt, taken in verifications of these sizes."""
    context.clear()
    context.prefill(TOKENS[:n_prompt])
    rows = []
    for size in sizes:
        rows.append(context.verify(TOKENS[context.n_past : context.n_past + size]))
    return np.concatenate(rows)


def same_bits(one: Logits, other: Logits) -> bool:
    return one.tobytes() == other.tobytes()


def assert_rows_do_not_matter(model: Model, n_prompt: int, sizes: list[int], **options: Any) -> None:
    n = sum(sizes)
    with Context(model, n_ctx=n_prompt + n, draft_tokens=max(sizes) - 1, **options) as context:
        assert same_bits(after(context, n_prompt, sizes), after(context, n_prompt, [1] * n))


@pytest.mark.parametrize("preset", ["tiny", "tiny-moe", "tiny-next"])
@pytest.mark.parametrize("weight_type", EXACT)
def test_rows_of_a_verification_have_the_bits_of_single_steps(model: NewModel, preset: str, weight_type: str) -> None:
    assert_rows_do_not_matter(model(preset, weight_type), SHORT, SIZES, n_threads=1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weight_type", ["q8_0", "q4_0", *SUPERBLOCKS])
def test_so_have_rows_of_a_model_whose_rows_are_whole_superblocks(
    model: NewModel, shape: str, weight_type: str
) -> None:
    assert_rows_do_not_matter(model(shape, weight_type), SHORT, SIZES, n_threads=1)


@pytest.mark.parametrize("shape", REPACKED_SHAPES)
@pytest.mark.parametrize("weight_type", [*EXACT, *SUPERBLOCKS])
def test_so_have_rows_of_every_number_to_65(model: NewModel, shape: str, weight_type: str) -> None:
    """Each after the same prompt, of which a few tokens are enough: it is the products with weights that differ. An
    expert has some of the rows, so that few numbers of theirs tell of many."""
    with Context(model(shape, weight_type), n_ctx=128, draft_tokens=64, n_threads=1) as context:
        alone = after(context, 2, [1] * 65)
        for n in range(2, 66) if shape == "dense" else (2, 3, 11, 16, 29, 40, 52, 64, 65):
            assert same_bits(after(context, 2, [n]), alone[:n]), n


@pytest.mark.parametrize(
    ("shape", "weight_type"),
    [
        *((shape, weight_type) for shape in VALUE_SHAPES for weight_type in [*REPACKED, *PLAIN]),
        *(("experts", weight_type) for weight_type in ("q4_k", "q5_k", "q8_0")),  # rounding changes few choices there
    ],
)
def test_weights_are_multiplied_as_their_values_in_f32_are(
    model: NewModel, tmp_path: Path, shape: str, weight_type: str
) -> None:
    """Activations are rounded to 8 bits. That costs 2 to 7% of the logits' norm with repacked weights, and up to 12%
    with others as these models have them. A bit, scale or place that is wrong costs more than half."""
    packed = model(shape, weight_type)
    rewrite(packed.path, tmp_path / "twin.gguf", weights="f32")
    with Model(tmp_path / "twin.gguf") as plain:
        found = []
        for one in (packed, plain):
            with Context(one, n_ctx=128, draft_tokens=4, n_threads=1) as context:
                found.append(after(context, 1, [1, 5]))
    differences = np.linalg.norm(found[0] - found[1], axis=1) / np.linalg.norm(found[1], axis=1)
    assert np.median(differences) < (0.1 if weight_type in REPACKED else 0.2)


@pytest.mark.parametrize("weight_type", ["f32", "f16"])
@pytest.mark.parametrize(
    ("flash_attn", "cache"),
    [("on", "f16"), ("on", "f32"), ("on", "bf16"), ("on", "q8_0"), ("off", "f16"), ("off", "f32"), ("off", "bf16")],
)
def test_a_long_context_changes_nothing_about_it(
    model: NewModel, weight_type: str, flash_attn: str, cache: str
) -> None:
    options = {"flash_attn": flash_attn, "type_k": cache, "type_v": cache, "n_threads": 1}
    assert_rows_do_not_matter(model("tiny", weight_type), LONG, SIZES, **options)


@pytest.mark.parametrize("weight_type", ["f16", "q8_0"])
def test_the_longest_verification_is_no_exception(model: NewModel, weight_type: str) -> None:
    assert_rows_do_not_matter(model("tiny", weight_type), LONG, [65], n_threads=1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weight_type", [*PLAIN, *REPACKED])
def test_nor_is_it_with_weights_whose_rows_come_in_any_number(model: NewModel, shape: str, weight_type: str) -> None:
    assert_rows_do_not_matter(model(shape, weight_type), SHORT, [65, 12, 33], n_threads=1)


@pytest.mark.parametrize("cache", ["f16", "bf16", "q8_0"])
def test_a_single_step_is_as_exact_as_a_prompt_over_any_cache(model: NewModel, cache: str) -> None:
    """Attention of few rows adds up in F32, as that of many does."""
    options: dict[str, Any] = {"flash_attn": "on", "type_k": cache, "type_v": cache}
    with Context(model("tiny", "f32"), n_ctx=1280, draft_tokens=0, n_threads=1, **options) as context:
        for n in (300, 700, 1100):
            context.clear()
            whole = context.prefill(TOKENS[:n])
            assert np.abs(after(context, n - 1, [1]) - whole).max() < 1e-5


@pytest.mark.parametrize("weight_type", ["f16", "q8_0"])
def test_neither_drafts_nor_the_number_of_threads_change_a_bit(model: NewModel, weight_type: str) -> None:
    found = []
    for draft_tokens, n_threads, sizes in ((3, 1, [1] * 9), (3, 2, [2, 3, 4]), (0, 2, [1] * 9)):
        with Context(model("tiny", weight_type), n_ctx=1280, draft_tokens=draft_tokens, n_threads=n_threads) as context:
            found.append(after(context, 1020, sizes))
    assert all(same_bits(logits, found[0]) for logits in found[1:])


@pytest.mark.parametrize("weight_type", EXACT)
@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_sequences_in_one_batch_have_the_bits_that_each_has_alone(
    model: NewModel, weight_type: str, flash_attn: str
) -> None:
    prompts = {0: TOKENS[:600], 1: TOKENS[100:1100]}
    options: dict[str, Any] = {"n_ctx": 1280, "n_seq_max": 2, "draft_tokens": 0, "flash_attn": flash_attn}
    with Context(model("tiny", weight_type), n_threads=1, **options) as context:
        alone = np.stack([context.prefill(prompt, seq) for seq, prompt in prompts.items()])
        together = context.prefill_batch({0: [5], 1: [6]})
        context.clear()
        assert same_bits(context.prefill_batch(prompts), alone)
        context.clear()
        for seq, prompt in prompts.items():
            context.prefill(prompt, seq)
        assert same_bits(together, np.stack([context.prefill([5], 0), context.prefill([6], 1)]))
