"""Claims about traces: the same each time, of the shape that is said, whatever the model writes."""

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
    Ask,
    Texts,
    Trace,
    Words,
    make,
    unseen,
)
from pymtp.model.model import Model

WORDS = Words(range(100, 4000), (1, 2, 3), (1, 4, 3), (5, 3))


def played(trace: Trace) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and answers, where each answer has tokens of its own."""
    texts, prompts, answers = Texts(), list[list[int]](), list[list[int]]()
    for i, ask in enumerate(trace.asks):
        prompts.append(texts.prompt(ask))
        answers.append([10_000 + i] * ask.tokens)
        texts.answered(ask, prompts[-1], answers[-1])
    return prompts, answers


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_is_the_same_each_time(name: str) -> None:
    trace = make(name, WORDS)
    assert trace == make(name, WORDS)
    assert trace.name == name
    prompts, answers = played(trace)
    assert all(prompts)
    assert trace.room == max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    assert len(trace.waves) == (1 if name == AT_ONCE else len(trace.asks))


def test_a_chat_drops_its_thinking_and_brings_200_tokens_a_turn() -> None:
    trace = make(CHAT, WORDS)
    prompts, answers = played(trace)
    assert len(prompts) == 20
    for i in range(1, 20):
        before, now, answer = prompts[i - 1], prompts[i], answers[i - 1]
        mark = trace.asks[i - 1].mark
        assert mark == len(before) - OPENED
        assert now[:mark] == before[:mark]
        assert now[mark] != before[mark]
        assert now.count(answer[0]) == 80
        assert len(answer) == 140
        assert len(now) - len(before) == 80 + len(WORDS.end) + 120
    assert unseen(prompts, answers)[1:] == [80 + 120 + len(WORDS.end) + OPENED] * 19


def test_agents_share_a_long_system_prompt_and_drop_nothing() -> None:
    trace = make(AGENTS, WORDS)
    prompts, answers = played(trace)
    new = unseen(prompts, answers)
    assert len(prompts) == 24
    for run in range(3):
        of_run = range(8 * run, 8 * run + 8)
        assert prompts[of_run[0]][:1500] == prompts[0][:1500]
        for i in of_run[1:]:
            assert prompts[i][: len(prompts[i - 1]) + 40] == prompts[i - 1] + answers[i - 1]
            assert new[i] == len(WORDS.end) + 150
    assert new[0] == 1560
    assert max(new[8], new[16]) < 60


def test_a_mark_is_where_the_next_prompt_of_a_chat_parts() -> None:
    for name in NAMES:
        trace = make(name, WORDS)
        prompts, _ = played(trace)
        for ask, prompt in zip(trace.asks, prompts, strict=True):
            chat = name in (CHAT, AGENTS, DOCUMENT, MESSAGES)
            assert ask.mark == (None if not chat else len(prompt) - (OPENED if name == CHAT else 0))


def test_four_requests_share_2000_tokens_and_have_48_of_their_own() -> None:
    for name in (FOUR, AT_ONCE):
        prompts, answers = played(make(name, WORDS))
        assert [len(prompt) for prompt in prompts] == [2048] * 4
        assert unseen(prompts, answers)[1:] == [48] * 3
    assert make(FOUR, WORDS).asks == make(AT_ONCE, WORDS).asks


def test_questions_about_a_document_part_after_it() -> None:
    prompts, answers = played(make(DOCUMENT, WORDS))
    assert len(prompts) == 6
    assert all(new <= 40 for new in unseen(prompts, answers)[1:])
    assert all(prompt[:3000] == prompts[0][:3000] for prompt in prompts)


@pytest.mark.parametrize("name", [PREFIXES, MESSAGES])
def test_200_requests_are_over_12_prefixes_of_which_some_come_often(name: str) -> None:
    trace = make(name, WORDS)
    prompts, _ = played(trace)
    assert trace.prefixes == (12, 2000)
    times: dict[tuple[int, ...], int] = {}
    for prompt in prompts:
        assert 2000 < len(prompt) < 2200
        times[tuple(prompt[:2000])] = times.get(tuple(prompt[:2000]), 0) + 1
    assert (len(prompts), len(times)) == (200, 12)
    often = sorted(times.values())
    assert sum(often[-6:]) > 140  # of 200: Zipf's law says 158
    assert len({tuple(prompt[2000:]) for prompt in prompts}) == 200


def test_prompts_that_share_nothing_are_all_new() -> None:
    prompts, answers = played(make(ALONE, WORDS))
    assert unseen(prompts, answers) == [len(prompt) for prompt in prompts] == [1024] * 16


def test_a_document_on_disk_has_8192_tokens_and_the_prompt_16_more() -> None:
    trace = make(DISK, WORDS)
    assert trace.prefixes == (1, 8192)
    assert [len(prompt) for prompt in played(trace)[0]] == [8208]


def test_lengths_scale_and_a_trace_may_be_begun_only() -> None:
    small = Words(WORDS.plain, WORDS.user, WORDS.assistant, WORDS.end, 0.1)
    assert [len(prompt) for prompt in played(make(FOUR, small))[0]] == [205] * 4
    assert len(make(CHAT, small).begun(3).asks) == 3
    assert len(make(AT_ONCE, small).begun(3).asks) == 4  # a wave is not torn apart
    assert make(PREFIXES, small).begun(5).prefixes == (12, 200)


def test_words_of_a_model_are_no_control_tokens_and_end_nothing(demo: Path) -> None:
    with Model(demo, vocab_only=True) as model:
        words = Words.of(model)
        assert len(set(words.plain)) == len(words.plain) > 1000
        assert not {*words.user, *words.assistant, *words.end} & set(words.plain)
        assert all(model.token_bytes(token) and not model.ends_generation(token) for token in words.plain)
        assert list(words.end) == model.tokenize("<|im_end|>\n")


def test_unseen_counts_what_no_prompt_with_its_answer_begins_with() -> None:
    assert unseen([[1, 2], [1, 2, 3, 4], [1, 2, 3, 5], [1, 2]], [[3], [], [], []]) == [2, 1, 1, 0]


def test_a_prompt_goes_on_from_the_last_of_its_text() -> None:
    texts = Texts()
    first = Ask(0, 0, None, (1, 2, 3), 2)
    texts.answered(first, texts.prompt(first), [7, 8])
    texts.answered(Ask(1, 0, None, (9,), 1), [9], [9])
    assert texts.prompt(Ask(0, 2, 1, (4,), 1)) == [1, 2, 8, 4]
    assert texts.prompt(Ask(0, 3, None, (), 1)) == [1, 2, 3]
