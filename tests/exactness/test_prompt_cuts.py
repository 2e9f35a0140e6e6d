"""Tests of cuts in prompts: the bits do not depend on the pieces, nor on whether tokens were prefilled or generated."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from conftest import make_llm
from helpers.bits import ROWS_ALONE
from makers.make_model import make_model
from makers.model_shapes import PRESETS

from pymtp import Model, SamplingParams
from pymtp.context.context import Context

pytestmark = pytest.mark.skipif(not ROWS_ALONE, reason="the kernels of other processors go by the number of rows")

WEIGHTS = ["f32", "f16", "bf16", "q8_0", "q4_0", "iq4_nl", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"]
SHAPES = {  # every matrix has whole superblocks and a multiple of 8 rows, so that it is repacked as in large models
    # Q8_0 has a kernel for rows from 768 elements on
    "dense": replace(PRESETS["7m"], n_layer=4, n_vocab=512, linear_v_heads=8, n_ff=1024),
    "experts": replace(
        PRESETS["7m"],
        n_layer=4,
        n_vocab=512,
        n_ff=0,
        n_expert=8,
        n_expert_used=2,
        n_ff_expert=256,
        n_ff_shared=256,
        tied=False,
        linear_v_heads=8,
    ),
}
N = 540  # tokens of a prompt: more than the 512 of a launch, and than 256 cells, from where more of the cache is read
IN_LAUNCHES = ("f32", "f16", "q8_0", "q4_0", "q4_k")  # weight types of each kind of kernel, for prompts of N tokens
FEW = 270  # tokens of a prompt of more than 256 cells, for launches of 128
LONG = 600  # tokens of a prompt of more than 512 cells, where a partial sum of attention ends
NEXT = [3, 1, 4, 1, 5, 9, 2, 6]

NewModel = Callable[[str, str], Model]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewModel]:
    """Return a function that makes a model of random weights: one of SHAPES or of the presets, and a weight type."""
    made: dict[tuple[str, str], Model] = {}

    def make(shape: str, weight_type: str) -> Model:
        key = (shape, weight_type)
        if key not in made:
            path = tmp_path_factory.mktemp("models") / f"{shape}-{weight_type}.gguf"
            make_model(SHAPES.get(shape, shape), path, weight_type=weight_type)
            made[key] = Model(path)
        return made[key]

    yield make
    for one in made.values():
        one.close()


def new_context(model: Model, n: int = N, **options: Any) -> Context:
    return Context(model, **({"n_ctx": n + 64, "draft_tokens": 7, "n_threads": 1} | options))


def some_tokens(n: int) -> list[int]:
    return random.Random(n).choices(range(256), k=n)


def some_cuts(rng: random.Random, n: int) -> list[int]:
    """Return the ends of random pieces of n tokens: a few pieces of any length, some of one or two tokens."""
    ends = set(rng.sample(range(1, n - 2), rng.choice([1, 1, 2, 4])))
    ends |= {end + rng.choice([1, 2]) for end in rng.sample(sorted(ends), 1)}
    return [*sorted(ends), n]


def prefill_pieces(context: Context, tokens: list[int], ends: list[int]) -> bytes:
    """Prefill tokens in pieces that end at `ends`, and return the bits of the last logits."""
    context.clear()
    for begin, end in zip([0, *ends], ends, strict=False):
        logits = context.prefill(tokens[begin:end])
    return logits.tobytes()


def cache_bits(context: Context) -> tuple[bytes, bytes]:
    """Return the bits of the caches' contents.

    These are the head's K and V, and the logits of further tokens, which see all K, V and states of the target.
    """
    return context.inspect.head_state(), context.verify(NEXT).tobytes()


def generate_some(context: Context, rng: random.Random, tokens: list[int]) -> bytes:
    """Run a round that accepts up to 8 of the tokens and rejects drafts; return the bits of the last logits."""
    n_accepted = min(rng.randint(1, 8), len(tokens))
    rejected = rng.choices(range(256), k=rng.randint(0, 8 - n_accepted))
    n_past = context.n_past
    logits = context.verify([*tokens[:n_accepted], *rejected])
    context.rewind(n_past + n_accepted)
    return logits[n_accepted - 1].tobytes()


def assert_cuts_do_not_matter(context: Context, n: int, seed: str) -> None:
    tokens = some_tokens(n)
    wanted = prefill_pieces(context, tokens, [n]), *cache_bits(context)
    ends = some_cuts(random.Random(seed), n)
    assert (prefill_pieces(context, tokens, ends), *cache_bits(context)) == wanted, ends


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weight_type", WEIGHTS)
def test_prefill_in_pieces_has_the_bits_of_one_piece(model: NewModel, shape: str, weight_type: str) -> None:
    n, n_ubatch = (N, 512) if shape == "dense" and weight_type in IN_LAUNCHES else (FEW, 128)
    with new_context(model(shape, weight_type), n, n_ubatch=n_ubatch) as context:
        assert_cuts_do_not_matter(context, n, f"{shape} {weight_type}")


@pytest.mark.parametrize(
    ("shape", "weight_type"),
    [
        *(("tiny", weight_type) for weight_type in ("f32", "f16", "bf16", "q8_0", "q4_0")),
        *((shape, weight_type) for shape in ("tiny-moe", "tiny-next") for weight_type in ("f32", "q8_0")),
    ],
)
def test_prefill_in_pieces_has_the_same_bits_without_repacked_weights(
    model: NewModel, shape: str, weight_type: str
) -> None:
    with new_context(model(shape, weight_type), LONG) as context:
        assert_cuts_do_not_matter(context, LONG, f"{shape} {weight_type}")


@pytest.mark.parametrize(
    ("shape", "weight_type", "options"),
    [
        ("tiny", "f32", {"flash_attn": "off"}),
        ("tiny", "f32", {"flash_attn": "off", "type_k": "f32", "type_v": "f32"}),
        ("tiny", "f32", {"flash_attn": "on", "type_k": "f32", "type_v": "f32"}),
        ("tiny", "f32", {"flash_attn": "on", "type_k": "bf16", "type_v": "bf16"}),
        ("tiny", "f32", {"flash_attn": "on", "type_k": "q8_0", "type_v": "q8_0"}),
        ("tiny", "f32", {"flash_attn": "on", "type_k": "q4_0", "type_v": "f16"}),
        ("dense", "q4_0", {"n_threads": 2}),
        ("dense", "q4_0", {"n_ubatch": 48}),
    ],
    ids=str,
)
def test_prefill_in_pieces_has_the_same_bits_with_any_cache_and_attention(
    model: NewModel, shape: str, weight_type: str, options: dict[str, Any]
) -> None:
    with new_context(model(shape, weight_type), LONG, **options) as context:
        assert_cuts_do_not_matter(context, LONG, f"{weight_type} {options}")


@pytest.mark.parametrize("weight_type", ["f32", "q4_0"])
def test_prefill_bits_do_not_depend_on_ubatch_size_and_threads(model: NewModel, weight_type: str) -> None:
    tokens, found = some_tokens(N), set()
    for n_ubatch, n_threads in ((512, 1), (512, 3), (64, 2), (9, 1)):
        with new_context(model("dense", weight_type), n_ubatch=n_ubatch, n_threads=n_threads) as context:
            found.add((prefill_pieces(context, tokens, [N]), *cache_bits(context)))
    assert len(found) == 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weight_type", WEIGHTS)
def test_generated_tokens_leave_the_bits_of_prefilled_tokens(model: NewModel, shape: str, weight_type: str) -> None:
    # A chat turn is generated in rounds with rejected drafts; a later prompt with the same text is prefilled
    n_prompt, n_written, tokens, rng = 230, 275, some_tokens(330), random.Random(1)
    with new_context(model(shape, weight_type), 330, n_ubatch=128) as context:
        written = prefill_pieces(context, tokens, [n_written])
        wanted = context.prefill(tokens[n_written:]).tobytes(), *cache_bits(context)
        prefill_pieces(context, tokens, [n_prompt])
        while context.n_past < n_written:
            last = generate_some(context, rng, tokens[context.n_past : n_written])
        assert last == written
        assert (context.prefill(tokens[n_written:]).tobytes(), *cache_bits(context)) == wanted


@pytest.mark.parametrize(
    ("shape", "weight_type"), [("dense", "f16"), ("dense", "q4_k"), ("experts", "q4_0"), ("shipped", "q8_0")]
)
def test_second_chat_turn_is_the_same_with_and_without_the_prefix_cache(
    model: NewModel, shape: str, weight_type: str
) -> None:
    turns = []
    for options in ({}, {"cache_prompt": False}, {"cache_prompt": False, "n_ubatch": 32}):
        with make_llm(None if shape == "shipped" else model(shape, weight_type), **options) as llm:
            asked = SamplingParams(40, temperature=0.9, seed=3, ignore_eos=True, logprobs=2)
            first = llm.generate(some_tokens(250), asked).token_ids
            second = llm.generate([*some_tokens(250), *first, *some_tokens(100)], asked)
            assert (second.stats.cached_tokens > 0) == (not options)
            turns.append((first, second.token_ids, second.logprobs, second.stats.accepted))
    assert turns[1:] == turns[:-1]
