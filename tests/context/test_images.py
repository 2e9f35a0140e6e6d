"""Tests of images in sequences: rows take the place of embeddings, and positions count on as M-RoPE says.

The rows are random numbers here; tests/reference compares rows, positions and drafts with transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from helpers.contexts import BOTH, DRAFTS, context, drafts, some_tokens, work
from numpy.typing import NDArray

from pymtp import InvalidRequestError
from pymtp.context.context import Context
from pymtp.model.model import Model
from pymtp.sampling import Sampler, SamplingParams

WIDE, TALL = -1, -2
GRIDS = {WIDE: (5, 3), TALL: (2, 4)}
Rows = Mapping[int, NDArray[np.float32]]


def image_rows(model: Model, seed: int = 0) -> dict[int, NDArray[np.float32]]:
    """Return random rows of each image in GRIDS, of the size of embeddings."""
    generator = np.random.default_rng(seed)
    return {
        token: generator.normal(0, 0.05, (nx * ny, model.n_embd)).astype(np.float32)
        for token, (nx, ny) in GRIDS.items()
    }


def seeing(model: Model, **options: Any) -> Context:
    """Return a context that knows the images in GRIDS."""
    made = context(model, **options)
    for token, grid in GRIDS.items():
        made.add_image(token, *grid)
    return made


def prompt_with_images(model: Model) -> list[int]:
    text = some_tokens(model, 40)
    return [*text[:7], *[WIDE] * 15, *text[7:20], *[TALL] * 8, *text[20:]]


def text_after(context: Context, logits: NDArray[np.float32], n: int = 12, seq: int = 0) -> list[int]:
    """Return n greedy tokens in rounds of DRAFTS drafts, or without drafts if the context has none."""
    context.set_sampling(Sampler(SamplingParams(temperature=0)), seq)
    written = [int(logits.argmax())]
    while len(written) < n:
        n_drafts = min(DRAFTS, context.draft_tokens)
        chain = context.draft_chain(written[-1], n_drafts, seq)[0] if n_drafts else []
        held = context.tokens_held(seq)
        sampled = context.verify_chain([written[-1], *chain], seq)
        context.rewind(held + len(sampled), seq)
        written += sampled
    return written[:n]


def embeddings_of(model: Model, tokens: Sequence[int]) -> NDArray[np.float32]:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    table = next(tensor for tensor in GGUFReader(model.path).tensors if tensor.name == "token_embd.weight")
    return np.ascontiguousarray(dequantize(table.data, table.tensor_type)[list(tokens)].astype(np.float32))


@BOTH
def test_an_image_of_one_token_equals_the_token_with_its_embedding(model: Model) -> None:
    text = some_tokens(model, 30)
    with context(model) as plain, context(model) as seen:
        seen.add_image(-1, 1, 1)
        expected = plain.prefill(text)
        replaced = [*text[:11], -1, *text[12:]]
        logits = seen.prefill(replaced, images={-1: embeddings_of(model, [text[11]])})
        assert logits.tobytes() == expected.tobytes()
        assert drafts(seen, int(logits.argmax())) == drafts(plain, int(expected.argmax()))
        assert text_after(seen, logits) == text_after(plain, expected)


def positions(runs: Sequence[tuple[int, int, int]], n: int) -> list[tuple[int, int, int]]:
    """Return time, row and column of n tokens. runs: the first token, columns and rows of each image"""
    result, at, next_position = [], 0, 0
    for first, nx, ny in runs:
        result += [(position,) * 3 for position in range(next_position, next_position + first - at)]
        next_position += first - at
        result += [(next_position, next_position + y, next_position + x) for y in range(ny) for x in range(nx)]
        next_position, at = next_position + max(nx, ny), first + nx * ny
    return result + [(position,) * 3 for position in range(next_position, next_position + n - at)]


@pytest.mark.parametrize("model", ["dense"], indirect=True)
def test_positions_are_those_of_m_rope(model: Model) -> None:
    prompt = prompt_with_images(model)
    with seeing(model) as seen:
        seen.prefill(prompt, images=image_rows(model))
        expected = positions([(7, 5, 3), (35, 2, 4)], len(prompt) + 3)
        assert [seen.inspect.rope_position(i) for i in range(len(prompt) + 3)] == expected


@BOTH
def test_bits_do_not_depend_on_where_a_prompt_with_images_is_cut(model: Model) -> None:
    prompt, rows = prompt_with_images(model), image_rows(model)
    with seeing(model) as whole:
        expected = whole.prefill(prompt, images=rows).tobytes()
        head = whole.inspect.head_state()
    with seeing(model, n_ubatch=8, n_batch=16) as small:
        assert small.prefill(prompt, images=rows).tobytes() == expected
    for cut in (1, 6, 7, 8, 14, 21, 22, 23, 36, 42, len(prompt) - 1):
        with seeing(model) as parts:
            parts.prefill(prompt[:cut], images=rows)
            assert parts.prefill(prompt[cut:], images=rows).tobytes() == expected, cut
            assert parts.inspect.head_state() == head, cut


@BOTH
def test_bits_do_not_depend_on_prompts_beside(model: Model) -> None:
    prompt, rows = prompt_with_images(model), image_rows(model)
    with seeing(model) as alone:
        expected = alone.prefill(prompt, images=rows).tobytes()
    with seeing(model, n_seq_max=3, n_ctx=3 * 256) as several:
        text = some_tokens(model, 90, seed=1)
        logits = several.prefill_batch({0: text, 1: prompt, 2: [*text[:3], *[TALL] * 8, *text[3:9]]}, rows)
        assert logits[1].tobytes() == expected


@BOTH
def test_drafts_after_images_leave_the_text_as_it_is(model: Model) -> None:
    prompt, rows = prompt_with_images(model), image_rows(model)
    with seeing(model) as drafting, seeing(model, draft_tokens=0) as plain:
        assert text_after(drafting, drafting.prefill(prompt, images=rows), 30) == text_after(
            plain, plain.prefill(prompt, images=rows), 30
        )


@BOTH
def test_the_head_drafts_the_same_by_steps_and_in_a_chain(model: Model) -> None:
    prompt, rows = prompt_with_images(model), image_rows(model)
    with seeing(model) as steps, seeing(model) as chain:
        token = int(steps.prefill(prompt, images=rows).argmax())
        chain.prefill(prompt, images=rows)
        chain.set_sampling(Sampler(SamplingParams(temperature=0)))
        drafted, probabilities = chain.draft_chain(token, DRAFTS)
        by_steps = []
        for given, draft in zip([token, *drafted], drafted, strict=False):
            logits = steps.draft(given)
            assert int(logits.argmax()) == draft
            likeliest = np.sort(logits)[-16:]  # those that a chain weighs a draft against
            by_steps.append(1 / float(np.exp(likeliest - likeliest[-1]).sum()))
        assert len(drafted) == DRAFTS
        np.testing.assert_allclose(probabilities, by_steps, rtol=1e-5)


@BOTH
def test_copied_moved_and_loaded_sequences_continue_alike(model: Model) -> None:
    prompt, rows = prompt_with_images(model), image_rows(model)
    options: dict[str, Any] = {"n_seq_max": 3, "n_ctx": 3 * 256}
    with seeing(model, **options) as first, seeing(model, **options) as second:
        logits = first.prefill(prompt, images=rows)
        first.copy(0, 1)
        cells, state = first.state.save_cells(0, 0, len(prompt)), first.state.save()
        expected = text_after(first, logits)
        assert text_after(first, logits, seq=1) == expected
        second.state.load_cells(2, 0, [cells])
        second.state.load(2, prompt, state)
        assert text_after(second, logits, seq=2) == expected
        at = [seen.inspect.rope_position(len(prompt), seq) for seen, seq in [(first, 0), (first, 1), (second, 2)]]
        assert at == [at[0]] * 3 != [(len(prompt),) * 3] * 3


@BOTH
def test_the_graph_of_an_image_has_the_nodes_of_text(model: Model) -> None:
    rows = image_rows(model)
    with seeing(model, trace=True) as seen, context(model, trace=True) as plain:
        seen.prefill([WIDE] * 15, images=rows)
        plain.prefill(some_tokens(model, 15))
        assert work(seen.inspect.trace()) == work(plain.inspect.trace())


@pytest.mark.parametrize("model", ["dense"], indirect=True)
def test_penalties_breakers_and_drafts_pass_over_images(model: Model) -> None:
    prompt, rows = prompt_with_images(model), image_rows(model)
    params = SamplingParams(
        seed=1,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        dry_multiplier=0.8,
        dry_allowed_length=1,
        penalty_last_n=-1,
    )
    texts = []
    for n_draft in (0, DRAFTS):
        with seeing(model, draft_tokens=n_draft, draft_vocab=256 if n_draft else "auto") as seen:
            seen.prefill(prompt, images=rows)
            seen.set_sampling(Sampler(params))
            written = [seen.first_token()]
            while len(written) < 16:
                chain = seen.draft_chain(written[-1], n_draft)[0] if n_draft else []
                held = seen.n_past
                sampled = seen.verify_chain([written[-1], *chain])
                seen.rewind(held + len(sampled))
                written += sampled
            texts.append(written[:16])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("model", ["dense"], indirect=True)
def test_wrong_images_are_refused_and_change_nothing(model: Model) -> None:
    text, rows = some_tokens(model, 9), image_rows(model)
    with seeing(model) as seen:
        for tokens, images, what in [
            ([*text, -3], rows, "no image"),
            ([*text, *[WIDE] * 15], {}, "rows of image -1 are missing"),
            ([*text, *[WIDE] * 14, 1], rows, "ends 1 tokens early"),
            ([*text, *[WIDE] * 3, *[TALL] * 8], rows, "ends 12 tokens early"),
            ([*text, *[WIDE] * 15], {WIDE: rows[WIDE][:14]}, "15 tokens, but 14 rows"),
            ([*text, *[WIDE] * 15], {-3: rows[WIDE]}, "no image -3"),
            ([*text, *[WIDE] * 15], {WIDE: rows[WIDE].astype(np.float64)}, "float32"),
            ([*text, *[WIDE] * 15], {WIDE: rows[WIDE][:, 1:]}, "shape"),
        ]:
            with pytest.raises(InvalidRequestError, match=what):
                seen.prefill(tokens, images=images)
            assert seen.n_past == 0
        for token, nx, ny, what in [
            (0, 1, 1, "negative"),
            (WIDE, 3, 5, "already"),
            (-9, 0, 4, "columns"),
            (-9, 2**31 - 1, 1, "columns"),
            (-9, 2**31, 1, "out of range"),
        ]:
            with pytest.raises(InvalidRequestError, match=what):
                seen.add_image(token, nx, ny)
        seen.prefill([*text, *[WIDE] * 10], images=rows)
        with pytest.raises(InvalidRequestError, match="ends 5 tokens early"):
            seen.verify([1])
        seen.prefill([*[WIDE] * 5, 1], images=rows)
        seen.verify([1])


def test_models_and_modes_without_images_refuse_them(dense: Model, qwen3next: Model) -> None:
    with context(qwen3next) as plain, pytest.raises(InvalidRequestError, match="no positions of images"):
        plain.add_image(-1, 2, 2)
    with context(dense, "host-copy") as copying, pytest.raises(InvalidRequestError, match="fused"):
        copying.add_image(-1, 2, 2)
