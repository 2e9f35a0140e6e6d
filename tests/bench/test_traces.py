"""Tests of traces: they are reproducible, and their lengths do not depend on the tokens that a model generates."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymtp.bench.traces import (
    AGENTS,
    ALONE,
    AT_ONCE,
    CHAT,
    DISK,
    DOCUMENT,
    FOUR,
    MESSAGES,
    NAMES,
    OPENED,
    PREFIXES,
    Trace,
    TraceHistory,
    TraceRequest,
    TraceVocabulary,
    make,
    unseen,
)
from pymtp.model.model import Model

VOCAB = TraceVocabulary(range(100, 4000), (1, 2, 3), (1, 4, 3), (5, 3))


def played(trace: Trace) -> tuple[list[list[int]], list[list[int]]]:
    """Return the prompts and answers of a trace. The answers are made up, and have no tokens in common."""
    history, prompts, answers = TraceHistory(), list[list[int]](), list[list[int]]()
    for i, request in enumerate(trace.requests):
        prompts.append(history.prompt(request))
        answers.append([10_000 + i] * request.tokens)
        history.add(request, prompts[-1], answers[-1])
    return prompts, answers


@pytest.mark.parametrize("name", NAMES)
def test_trace_is_reproducible(name: str) -> None:
    trace = make(name, VOCAB)
    assert trace == make(name, VOCAB)
    assert trace.name == name
    prompts, answers = played(trace)
    assert all(prompts)
    assert trace.max_length == max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    assert len(trace.waves) == (1 if name == AT_ONCE else len(trace.requests))


def test_chat_trace_drops_thinking_and_adds_200_tokens_per_turn() -> None:
    trace = make(CHAT, VOCAB)
    prompts, answers = played(trace)
    assert len(prompts) == 20
    for i in range(1, 20):
        before, now, answer = prompts[i - 1], prompts[i], answers[i - 1]
        branch_point = trace.requests[i - 1].branch_point
        assert branch_point == len(before) - OPENED
        assert now[:branch_point] == before[:branch_point]
        assert now[branch_point] != before[branch_point]
        assert now.count(answer[0]) == 80
        assert len(answer) == 140
        assert len(now) - len(before) == 80 + len(VOCAB.end) + 120
    assert unseen(prompts, answers)[1:] == [80 + 120 + len(VOCAB.end) + OPENED] * 19


def test_agents_trace_shares_a_system_prompt_and_keeps_all_earlier_tokens() -> None:
    trace = make(AGENTS, VOCAB)
    prompts, answers = played(trace)
    new = unseen(prompts, answers)
    assert len(prompts) == 24
    for run in range(3):
        of_run = range(8 * run, 8 * run + 8)
        assert prompts[of_run[0]][:1500] == prompts[0][:1500]
        for i in of_run[1:]:
            assert prompts[i][: len(prompts[i - 1]) + 40] == prompts[i - 1] + answers[i - 1]
            assert new[i] == len(VOCAB.end) + 150
    assert new[0] == 1560
    assert max(new[8], new[16]) < 60


def test_branch_point_is_the_position_where_the_next_prompt_of_a_chat_differs() -> None:
    for name in NAMES:
        trace = make(name, VOCAB)
        prompts, _ = played(trace)
        for request, prompt in zip(trace.requests, prompts, strict=True):
            chat = name in (CHAT, AGENTS, DOCUMENT, MESSAGES)
            assert request.branch_point == (None if not chat else len(prompt) - (OPENED if name == CHAT else 0))


def test_four_requests_share_2000_tokens_and_each_has_48_more() -> None:
    for name in (FOUR, AT_ONCE):
        prompts, answers = played(make(name, VOCAB))
        assert [len(prompt) for prompt in prompts] == [2048] * 4
        assert unseen(prompts, answers)[1:] == [48] * 3
    assert make(FOUR, VOCAB).requests == make(AT_ONCE, VOCAB).requests


def test_questions_of_the_document_trace_share_the_document() -> None:
    prompts, answers = played(make(DOCUMENT, VOCAB))
    assert len(prompts) == 6
    assert all(new <= 40 for new in unseen(prompts, answers)[1:])
    assert all(prompt[:3000] == prompts[0][:3000] for prompt in prompts)


@pytest.mark.parametrize("name", [PREFIXES, MESSAGES])
def test_prefixes_trace_has_200_requests_over_12_prefixes_with_zipf_frequencies(name: str) -> None:
    trace = make(name, VOCAB)
    prompts, _ = played(trace)
    assert trace.prefixes == (12, 2000)
    times: dict[tuple[int, ...], int] = {}
    for prompt in prompts:
        assert 2000 < len(prompt) < 2200
        times[tuple(prompt[:2000])] = times.get(tuple(prompt[:2000]), 0) + 1
    assert (len(prompts), len(times)) == (200, 12)
    often = sorted(times.values())
    assert sum(often[-6:]) > 140  # Zipf's law says 158 of 200
    assert len({tuple(prompt[2000:]) for prompt in prompts}) == 200


def test_prompts_of_the_alone_trace_share_no_prefix() -> None:
    prompts, answers = played(make(ALONE, VOCAB))
    assert unseen(prompts, answers) == [len(prompt) for prompt in prompts] == [1024] * 16


def test_disk_trace_has_8192_tokens_in_a_prefix_file_and_16_more() -> None:
    trace = make(DISK, VOCAB)
    assert trace.prefixes == (1, 8192)
    assert [len(prompt) for prompt in played(trace)[0]] == [8208]


def test_scale_multiplies_lengths_and_a_shortened_trace_has_whole_waves() -> None:
    small = TraceVocabulary(VOCAB.plain, VOCAB.user, VOCAB.assistant, VOCAB.end, 0.1)
    assert [len(prompt) for prompt in played(make(FOUR, small))[0]] == [205] * 4
    assert len(make(CHAT, small).first(3).requests) == 3
    assert len(make(AT_ONCE, small).first(3).requests) == 4  # a wave is never split
    assert make(PREFIXES, small).first(5).prefixes == (12, 200)


def test_traces_use_no_control_or_end_tokens_of_the_model(demo: Path) -> None:
    with Model(demo, vocab_only=True) as model:
        vocab = TraceVocabulary.of(model)
        assert len(set(vocab.plain)) == len(vocab.plain) > 1000
        assert not {*vocab.user, *vocab.assistant, *vocab.end} & set(vocab.plain)
        assert all(model.token_bytes(token) and not model.ends_generation(token) for token in vocab.plain)
        assert list(vocab.end) == model.tokenize("<|im_end|>\n")


def test_unseen_is_the_number_of_tokens_after_the_longest_shared_prefix() -> None:
    assert unseen([[1, 2], [1, 2, 3, 4], [1, 2, 3, 5], [1, 2]], [[3], [], [], []]) == [2, 1, 1, 0]


def test_prompt_continues_the_last_prompt_of_its_text() -> None:
    history = TraceHistory()
    first = TraceRequest(0, 0, None, (1, 2, 3), 2)
    history.add(first, history.prompt(first), [7, 8])
    history.add(TraceRequest(1, 0, None, (9,), 1), [9], [9])
    assert history.prompt(TraceRequest(0, 2, 1, (4,), 1)) == [1, 2, 8, 4]
    assert history.prompt(TraceRequest(0, 3, None, (), 1)) == [1, 2, 3]
