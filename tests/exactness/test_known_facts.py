"""Tests of known pitfalls of multi-token prediction: each test name says one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pymtp import LLM, InvalidRequestError, SamplingParams
from pymtp.context.context import Context
from pymtp.model.model import Model

PROMPT = "def median(numbers):"


def continue_from(context: Context, tokens: list[int], n: int) -> list[int]:
    """Return n tokens of greedy plain decoding after the context's own tokens and `tokens`."""
    logits = context.prefill(tokens)
    out = [int(logits.argmax())]
    while len(out) < n:
        out.append(int(context.verify(out[-1:])[0].argmax()))
    return out


def test_head_cache_holds_every_prompt_token(llm: LLM) -> None:
    tokens = llm.model.tokenize(PROMPT * 20)
    llm.context.clear()
    llm.context.prefill(tokens)
    assert llm.context.inspect.head_rows() == llm.context.n_past == len(tokens)


def test_drafts_depend_on_the_whole_prompt(llm: LLM) -> None:
    # With the same last hidden state, the head drafts other tokens if its cache lacks the prompt
    tokens = llm.model.tokenize(PROMPT)
    logits = {}
    for fault in ("none", "empty_head"):
        llm.context.clear()
        llm.context.inspect.break_on_purpose(fault)
        llm.context.prefill(tokens)
        logits[fault] = llm.context.draft(5)
    llm.context.inspect.break_on_purpose("none")
    assert np.abs(logits["none"] - logits["empty_head"]).max() > 0.1


@pytest.mark.parametrize("batch", [(16, 8), (16, 16), (64, 16), (9, 5)], ids=str)
def test_tokens_keep_their_hidden_states_across_batch_borders(
    new_llm: Callable[..., LLM], demo_f32: Path, batch: tuple[int, int]
) -> None:
    # A row that is lost or doubled at a border would change the drafts
    exact = {"type_k": "f32", "type_v": "f32", "flash_attn": "off"}
    whole, pieces = (
        new_llm(demo_f32, **exact),
        new_llm(demo_f32, n_batch=batch[0], n_ubatch=batch[1], **exact),
    )
    tokens = whole.model.tokenize(PROMPT * 3)
    for llm in (whole, pieces):
        llm.context.prefill(tokens)
    np.testing.assert_allclose(pieces.context.draft(7), whole.context.draft(7), atol=1e-3)
    np.testing.assert_allclose(pieces.context.draft(9), whole.context.draft(9), atol=1e-3)


def test_hidden_state_before_the_first_token_is_zero_also_after_clear(llm: LLM) -> None:
    first = []
    for _ in range(2):
        llm.context.clear()
        llm.context.prefill([17])
        first.append(llm.context.draft(3))
        llm.context.verify([3, 4])
    np.testing.assert_array_equal(first[0], first[1])


def test_prompt_prefilled_in_two_calls_drafts_like_one_call(new_llm: Callable[..., LLM], demo_f32: Path) -> None:
    llm = new_llm(demo_f32, type_k="f32", type_v="f32", flash_attn="off")
    tokens = llm.model.tokenize(PROMPT * 6)
    llm.context.prefill(tokens)
    at_once = [llm.context.draft(t) for t in (5, 6)]
    llm.context.clear()
    llm.context.prefill(tokens[:11])
    llm.context.draft(tokens[11])  # a draft that is not verified is dropped by the next call
    llm.context.prefill(tokens[11:20])
    llm.context.verify(tokens[20:22])
    llm.context.prefill(tokens[22:])
    for token, logits in zip((5, 6), at_once, strict=True):
        np.testing.assert_allclose(llm.context.draft(token), logits, atol=1e-3)


def test_rewound_context_continues_as_if_nothing_was_drafted(new_llm: Callable[..., LLM], demo_f32: Path) -> None:
    llm = new_llm(demo_f32, draft_tokens=8, type_k="f32", type_v="f32", flash_attn="off")
    context, tokens = llm.context, llm.model.tokenize(PROMPT)
    expected = continue_from(context, tokens, 11)
    for n_drafts in range(1, 9):
        for n_kept in range(n_drafts + 1):
            context.clear()
            context.prefill(tokens)
            context.verify([*expected[: n_kept + 1], *[0] * (n_drafts - n_kept)])
            context.rewind(len(tokens) + n_kept + 1)
            rest = [int(context.verify([expected[n_kept + 1]])[0].argmax())]
            assert rest == [expected[n_kept + 2]]


def test_only_tokens_of_the_last_verification_can_be_rewound(llm: LLM) -> None:
    llm.context.clear()
    llm.context.prefill([5, 6, 7])
    with pytest.raises(InvalidRequestError, match="only 0 can be taken back"):
        llm.context.rewind(2)
    llm.context.verify([1, 2, 3])
    with pytest.raises(InvalidRequestError, match="only 2 can be taken back"):
        llm.context.rewind(3)
    llm.context.rewind(4)
    with pytest.raises(InvalidRequestError, match="only 0 can be taken back"):
        llm.context.rewind(3)
    llm.context.verify([2, 3])
    llm.context.draft(4)
    with pytest.raises(InvalidRequestError, match="only 0 can be taken back"):
        llm.context.rewind(5)
    assert llm.context.n_past == 6


def end_inside_windows(llm: LLM, params: SamplingParams) -> None:
    """Check that the context ends where the text was cut, and continues like a fresh context."""
    completion = llm.generate(PROMPT, params)
    ids = completion.prompt_token_ids + completion.token_ids
    assert llm.context.n_past == len(ids) - 1
    went_on = continue_from(llm.context, ids[-1:], 12)
    drafted = int(llm.context.draft(went_on[-1]).argmax())
    llm.context.clear()
    assert continue_from(llm.context, ids, 12) == went_on
    assert int(llm.context.draft(went_on[-1]).argmax()) == drafted


@pytest.mark.parametrize("max_tokens", range(1, 13))
def test_max_tokens_inside_accepted_drafts_cuts_the_caches_there(llm: LLM, max_tokens: int) -> None:
    end_inside_windows(llm, SamplingParams(max_tokens=max_tokens))
    assert len(llm.generate(PROMPT, SamplingParams(max_tokens=max_tokens)).token_ids) == max_tokens


@pytest.mark.parametrize("at", range(2, 13))
def test_stop_string_inside_accepted_drafts_cuts_the_caches_there(llm: LLM, at: int) -> None:
    full = llm.generate(PROMPT, SamplingParams(max_tokens=40))
    text = llm.model.detokenize(full.token_ids[:at])
    stop = text[-3:]
    completion = llm.generate(PROMPT, SamplingParams(max_tokens=40, stop=stop))
    assert completion.finish_reason == "stop"
    assert completion.text == full.text[: full.text.index(stop)]
    assert full.token_ids[: len(completion.token_ids)] == completion.token_ids
    end_inside_windows(llm, SamplingParams(max_tokens=40, stop=stop))


@pytest.mark.parametrize("at", range(1, 13))
def test_eos_inside_accepted_drafts_cuts_the_caches_there(llm: LLM, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the token at one position of the first rounds the end token."""
    full = llm.generate(PROMPT, SamplingParams(max_tokens=40))
    end = full.token_ids[at]
    monkeypatch.setattr(Model, "ends_generation", lambda _self, token: token == end)
    completion = llm.generate(PROMPT, SamplingParams(max_tokens=40))
    cut = full.token_ids.index(end) + 1
    assert completion.finish_reason == "stop"
    assert completion.token_ids == full.token_ids[:cut]
    assert completion.text == llm.model.detokenize(full.token_ids[: cut - 1])
    end_inside_windows(llm, SamplingParams(max_tokens=40))


def test_ignore_eos_continues_after_the_end_token(llm: LLM) -> None:
    # the demo model ends its completions after the closing fence of a code block
    asked = "<|im_start|>user\nWrite a function f: Return x.<|im_end|>\n<|im_start|>assistant\n"
    prompt = asked + "```python\ndef f(x):\n    return x\n```"
    done = llm.generate(prompt, SamplingParams(max_tokens=20))
    assert done.finish_reason == "stop"
    assert llm.model.ends_generation(done.token_ids[-1])
    assert "<|" not in done.text
    assert llm.generate(prompt, SamplingParams(max_tokens=20, ignore_eos=True)).finish_reason == "length"


def test_full_context_ends_the_text_with_length(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(n_ctx=256)
    prompt = llm.model.tokenize(PROMPT * 80)[:240]
    completion = llm.generate(prompt, SamplingParams(max_tokens=None, ignore_eos=True))
    assert completion.finish_reason == "length"
    assert len(completion.token_ids) == 256 - 240 + 1


def test_auto_tap_is_read_from_the_file(demo: Path, tmp_path: Path, new_llm: Callable[..., LLM]) -> None:
    from makers.gguf_variants import rewrite

    for said, expected in ((None, "post_norm"), ("pre_norm", "pre_norm")):
        path = tmp_path / f"{said}.gguf"
        rewrite(demo, path, metadata={"qwen35.nextn_tap": said})
        assert new_llm(path).context.tap == expected
    assert new_llm(path, tap="post_norm").context.tap == "post_norm"
