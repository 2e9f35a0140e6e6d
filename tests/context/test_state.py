"""Tests of saved states in host memory: a sequence that loads a state continues with the same bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.contexts import EACH, EXACT, context, some_tokens
from helpers.moments import (
    BOTH_MODES,
    CACHES,
    MOMENTS,
    after_a_prompt,
    after_plain_rounds,
    continue_text,
    each_model_and_cache_type,
    each_model_or_cache_type,
    head_kv,
    prefill_and_sample,
    without_drafts,
)
from helpers.saved import load, load_into, random_pieces, save
from makers.head_file import read_tensor, write_pair
from makers.make_model import make_model

from pymtp import CancelledError, InvalidRequestError, SamplingParams, build_info
from pymtp.context.context import Context
from pymtp.context.state import Bytes
from pymtp.model.model import Model
from pymtp.sampling import Sampler

ODD = 300  # the token whose embedding is NaN, in the model nan_head
ALL_CACHES = CACHES | {"q4_0": {"type_k": "q4_0", "type_v": "q4_0"}, "bf16": {"type_k": "bf16", "type_v": "bf16"}}


@each_model_and_cache_type(ALL_CACHES)
def test_loaded_state_continues_bit_for_bit(model: Model, caches: dict[str, Any], mode: str) -> None:
    with (
        context(model, mode, **caches) as other,
        context(model, mode, n_seq_max=4, **caches) as c,
        context(model, mode, n_seq_max=2, **(caches | {"n_ctx": 512})) as third,
    ):
        c.prefill(some_tokens(model, 60, seed=1), 3)  # another prompt, which the load must overwrite
        c.prefill(some_tokens(model, 20, seed=2), 2)
        for seed, moment in enumerate(MOMENTS):
            other.clear()
            wanted = continue_text(other, 0, without_drafts(moment)(other, 0))
            c.clear(1)
            token = moment(c, 1)
            saved = save(c, 1, seed)
            assert c.inspect.head_rows(1) == c.tokens_held(1)
            assert continue_text(c, load_into(c, 3, saved), token) == wanted, moment
            assert continue_text(third, load_into(third, 1, saved), token) == wanted, moment
            assert continue_text(c, 1, token) == wanted, moment
            assert continue_text(c, load_into(c, 0, saved), token) == wanted, moment
        assert c.tokens(2) == some_tokens(model, 20, seed=2)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("model", "mode"), [("dense", "fused"), ("moe", "host-copy"), ("qwen3next", "fused")], indirect=["model"]
)
def test_texts_continued_from_checkpoints_match_texts_of_their_own_context(model: Model, mode: str, seed: int) -> None:
    """Grow a tree of texts: each starts at a checkpoint of an earlier text, with K and V of any text that has them."""
    pick = random.Random(seed)
    with (
        context(model, mode, n_seq_max=3, **EXACT) as c,
        context(model, mode, **EXACT) as other,
    ):
        cells: dict[tuple[int, ...], Bytes] = {}  # K and V of a token, by the text that ends with the token
        checkpoints: list[tuple[list[tuple[str, list[int]]], Bytes]] = [([], np.empty(0, dtype=np.uint8))]

        def go(c: Context, seq: int, step: tuple[str, list[int]]) -> bytes:
            what, tokens = step
            if what == "verify":
                last = c.verify(tokens, seq)
                c.rewind(c.tokens_held(seq) - 1, seq)
                return last.tobytes()
            return c.prefill(tokens, seq).tobytes()

        def text_of(steps: list[tuple[str, list[int]]]) -> list[int]:
            return [token for what, tokens in steps for token in (tokens[:-1] if what == "verify" else tokens)]

        for _ in range(25):
            seq = pick.randrange(3)
            steps, state = pick.choice(checkpoints)
            text = text_of(steps)
            if text and c.tokens(seq)[: len(text)] == text and pick.random() < 0.7:
                c.state.keep_cells(len(text), seq)
            else:
                c.clear(seq)
                donors = [s for s in range(3) if s != seq and c.tokens(s)[: len(text)] == text]
                for first, n in random_pieces(len(text), pick.random()) if text else []:
                    if donors and pick.random() < 0.5:
                        c.state.copy_cells(pick.choice(donors), seq, first, n)
                    else:
                        c.state.load_cells(seq, first, [cells[tuple(text[: i + 1])] for i in range(first, first + n)])
            if text:
                c.state.load(seq, text, state)
            for _ in range(pick.randint(1, 3)):
                step = (
                    pick.choice(["prefill", "verify"]) if text else "prefill",
                    pick.choices(range(500), k=pick.randint(2, 4)),
                )
                last = go(c, seq, step)
                steps = [*steps, step]
                other.clear()
                assert [go(other, 0, one) for one in steps][-1] == last
                text = text_of(steps)
                assert c.tokens(seq) == text
                if pick.random() < 0.5:
                    checkpoints.append((steps, c.state.save(seq)))
            for i, row in enumerate(c.state.save_cells(seq, 0, len(text))):
                cells.setdefault(tuple(text[: i + 1]), row[None])


@each_model_or_cache_type(ALL_CACHES)
def test_saved_cells_do_not_depend_on_sequence_or_range(model: Model, caches: dict[str, Any]) -> None:
    tokens = some_tokens(model, 300)
    with context(model, n_seq_max=3, **caches) as c:
        (memory,) = c.memory()
        assert c.state.cell_bytes == (memory.kv + memory.head_kv) / (c.n_ctx * c.n_seq_max)
        c.prefill(tokens, 0)
        c.prefill(some_tokens(model, 9), 1)
        c.prefill(tokens, 2)
        whole = c.state.save_cells(0, 0, 300)
        assert whole.shape == (300, c.state.cell_bytes)
        assert len({row.tobytes() for row in whole}) == 300
        for seq in (0, 2):
            for first, n in ((0, 1), (1, 255), (255, 2), (299, 1), (300, 0), (17, 270)):
                np.testing.assert_array_equal(c.state.save_cells(seq, first, n), whole[first : first + n])
        assert c.counters.saved_bytes == (300 + 2 * (1 + 255 + 2 + 1 + 270)) * c.state.cell_bytes


@each_model_or_cache_type(ALL_CACHES)
def test_long_state_is_saved_and_loaded_unchanged(model: Model, caches: dict[str, Any]) -> None:
    with context(model, n_seq_max=3, **caches) as c:
        c.prefill(some_tokens(model, 700))
        tokens, cells, state = c.tokens(), c.state.save_cells(0, 0, 700), c.state.save()
        c.state.load_cells(1, 0, [cells])
        c.state.load(1, tokens, state)
        c.state.copy_cells(0, 2, 0, 300)
        c.state.copy_cells(1, 2, 300, 400)
        c.state.load(2, tokens, state)
        c.state.keep_cells(650, 0)
        c.state.copy_cells(1, 0, 650, 50)
        c.state.load(0, tokens, state)
        for seq in range(3):
            np.testing.assert_array_equal(c.state.save_cells(seq, 0, 700), cells)
            np.testing.assert_array_equal(c.state.save(seq), state)


@EACH
def test_transposed_v_cache_is_saved_like_any_other(model: Model) -> None:
    """Compare only the first attention layer: the layers before it do not depend on flash attention."""
    rows = []
    for flash_attn in ("on", "off"):
        with context(model, flash_attn=flash_attn, draft_tokens=0) as c:
            c.prefill(some_tokens(model, 300))
            n_layers = model.n_layer // int(model.metadata[f"{model.architecture}.full_attention_interval"])
            rows.append(c.state.save_cells(0, 0, 300)[:, : c.state.cell_bytes // n_layers])
    np.testing.assert_array_equal(*rows)


def test_head_catches_up_before_a_state_is_saved(dense: Model) -> None:
    with context(dense) as c, context(dense) as other:
        for one in (c, other):
            after_plain_rounds(one, 0)
        assert c.inspect.head_rows() < c.tokens_held()
        c.state.save_cells(0, 0, 0)
        assert c.inspect.head_rows() == c.tokens_held()
        assert head_kv(c, 0) == head_kv(other, 0)


@BOTH_MODES
def test_loaded_state_samples_the_first_token(dense: Model, mode: str) -> None:
    with context(dense, mode, n_seq_max=3) as c:
        token = prefill_and_sample(c, 0)
        saved = save(c, 0)
        tokens, pieces, _ = saved
        without = c.state.save(0, logits=False)
        c.prefill(some_tokens(dense, 30), 2)
        assert len(saved[2]) - len(without) == 4 * dense.n_vocab
        assert c.first_token(load_into(c, 1, saved)) == token
        assert c.first_token(load_into(c, 0, save(c, 1))) == token
        with pytest.raises(InvalidRequestError, match="was not in the last prefill"):
            c.first_token(load_into(c, 1, (tokens, pieces, without)))


@EACH
def test_saved_state_holds_one_recurrent_state_and_the_replay_rows(model: Model) -> None:
    with context(model) as c, context(model, draft_tokens=0) as plain:
        plain.prefill(some_tokens(model, 40))
        one = len(plain.state.save(logits=False))
        row = 4 * model.n_embd  # bytes of the hidden state for the head
        after_a_prompt(c, 0)
        assert len(c.state.save(logits=False)) == one + row
        c.verify([1, 2, 3, 4])
        sizes = []
        for n in (4, 3):
            if n < 4:
                c.clear()
                after_a_prompt(c, 0)
                c.verify([1, 2, 3, 4])
                c.rewind(c.tokens_held() - 4 + n)
            sizes.append(len(c.state.save()) - one - row)
        assert sizes[0] * 3 == sizes[1] * 4 > 0


@EACH
def test_state_is_saved_and_loaded_without_drafts(model: Model) -> None:
    with context(model, draft_tokens=0, n_seq_max=2) as c:
        token = prefill_and_sample(c, 0)
        c.verify([token])
        load(c, 1, save(c, 0))
        np.testing.assert_array_equal(c.verify([9], 1), c.verify([9], 0))
        np.testing.assert_array_equal(c.prefill([1, 2, 3], 1), c.prefill([1, 2, 3], 0))


def test_draft_vocab_includes_the_tokens_of_a_loaded_state(dense: Model) -> None:
    last = dense.n_vocab - 1
    with context(dense, draft_vocab=128) as c, context(dense, draft_vocab=128) as other:
        c.prefill([last] * 30)
        for one in (c, other):
            one.set_sampling(Sampler(SamplingParams()))
        saved = save(c, 0)
        load(other, 0, saved)
        wanted = c.draft_chain(5, 3)
        assert c.drafts_over(last)
        assert other.draft_chain(5, 3) == wanted
        assert other.drafts_over(last)


def test_cell_options_name_the_kernels(tmp_path: Path) -> None:
    info = build_info()
    kernels = {}
    for weight_type in ("f32", "q4_0"):  # q4_0 weights are repacked
        make_model("7m", tmp_path / "model.gguf", weight_type=weight_type)
        with Model(tmp_path / "model.gguf") as model, context(model) as c:
            kernels[weight_type] = c.state.cell_options["kernels"]
        assert set(info["cpu_features"]) <= set(kernels[weight_type].split())
        assert info["compiler"] in kernels[weight_type]
    buffers = {name: text.split("; ")[0].split(", ") for name, text in kernels.items()}
    assert [one.split(" ")[1] for one in buffers["f32"]] == ["CPU"]
    assert len(buffers["q4_0"]) == (2 if "AVX2" in info["cpu_features"] else 1)


def test_state_bytes_are_counted(dense: Model) -> None:
    with context(dense, n_seq_max=3) as c:
        prefill_and_sample(c, 0)
        tokens, pieces, state = saved = save(c, 0)
        size = len(state) + sum(map(np.size, pieces))
        assert c.counters.saved_bytes == size
        load(c, 1, saved)
        assert c.counters.loaded_bytes == size
        assert c.counters.sequence_bytes == 0
        c.state.copy_cells(0, 2, 0, len(tokens))
        assert c.counters.sequence_bytes == len(tokens) * c.state.cell_bytes


@pytest.fixture(scope="module")
def nan_head(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Load the shipped model with a head whose K and V of one token are NaN."""
    embeddings = read_tensor(demo, "token_embd.weight")
    embeddings[ODD] = np.nan
    files = write_pair(demo, tmp_path_factory.mktemp("odd"), tensors={"token_embd.weight": embeddings})
    with Model(files[0], head=files[1]) as model:
        yield model


def _prefill_over_staged(c: Context, odd: list[int]) -> None:
    c.prefill(odd, 1)
    c.state.load_cells(0, 0, [c.state.save_cells(1, 0, len(odd))])
    c.prefill(odd)
    assert len(draft(c)) < 3


def _keep(c: Context, odd: list[int]) -> None:
    c.prefill(odd)
    assert len(draft(c)) < 3
    c.state.keep_cells(len(odd))


def _keep_and_load(c: Context, odd: list[int]) -> None:
    c.prefill(odd)
    assert len(draft(c)) < 3
    state = c.state.save()
    c.state.keep_cells(len(odd))
    c.state.load(0, odd, state)


def _copy_and_load(c: Context, odd: list[int]) -> None:
    c.prefill(odd, 1)
    assert len(draft(c, 1)) < 3
    state = c.state.save(1)
    c.state.copy_cells(1, 0, 0, len(odd))
    c.state.load(0, odd, state)


def _save_and_load(c: Context, odd: list[int]) -> None:
    c.prefill(odd, 1)
    assert len(draft(c, 1)) < 3
    c.state.load_cells(0, 0, [c.state.save_cells(1, 0, len(odd))])
    c.state.load(0, odd, c.state.save(1))


def _cancel(c: Context, odd: list[int]) -> None:
    c.prefill(odd)
    assert len(draft(c)) < 3
    c.cancel()
    with pytest.raises(CancelledError):
        c.prefill([7])
    c.cancel(False)


def draft(c: Context, seq: int = 0) -> list[int]:
    c.set_sampling(Sampler(SamplingParams()), seq)
    return c.draft_chain(5, 3, seq)[0]


SPOILS = [_prefill_over_staged, _keep, _keep_and_load, _copy_and_load, _save_and_load, _cancel]


@pytest.mark.parametrize("spoil", SPOILS)
def test_nan_in_the_heads_cells_is_gone_after_clear(
    nan_head: Model, spoil: Callable[[Context, list[int]], None]
) -> None:
    odd = [7] * 20 + [ODD] + [7] * 9
    with context(nan_head, n_ctx=512, n_seq_max=2, flash_attn="off") as c:
        c.prefill([7] * 5)
        expected = draft(c)
        assert len(expected) == 3
        c.clear()
        spoil(c, odd)
        c.clear(0)
        c.prefill([7] * 5)
        assert draft(c) == expected
