"""Tests of saved prefixes: an LLM saves them to files, loads them, and generates the same text with them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from conftest import make_llm
from helpers.saved_prefixes import DOCUMENT, GREEDY, QUESTION, SAMPLED, SHORT, outputs
from helpers.scripts import run_code

from pymtp import InvalidRequestError, SamplingParams
from pymtp.chat import Chat
from pymtp.engine.request import Request, Waiter
from pymtp.prefix_cache.checkpoints import TAIL_TOKENS
from pymtp.prefix_cache.file import PrefixFile
from pymtp.prefix_cache.file_writer import PrefixWriter


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("n_seq_max", [1, 3])
def test_loaded_prefix_gives_the_same_logits_drafts_and_text_as_a_full_prefill(
    saved: Path, params: SamplingParams, n_seq_max: int
) -> None:
    prompts = [DOCUMENT + QUESTION, DOCUMENT, DOCUMENT + "\n", DOCUMENT[: len(DOCUMENT) // 2], QUESTION]
    with make_llm(draft_tokens=3, cache_prompt=False) as llm:
        wanted = outputs(llm, prompts, params)
    with make_llm(draft_tokens=3, n_seq_max=n_seq_max) as llm:
        n = llm.load_prefix(saved)
        assert n == len(llm.model.tokenize(DOCUMENT))
        assert outputs(llm, prompts, params) == wanted
        again = llm.generate([DOCUMENT, DOCUMENT + QUESTION], params)
        assert [c.stats.cached_tokens for c in again] >= [n, n - TAIL_TOKENS]


def test_loaded_prefix_is_not_prefilled_again(saved: Path) -> None:
    with make_llm() as llm:
        n = llm.load_prefix(saved)
        assert llm.figures().read == 0
        first = llm.generate(DOCUMENT + QUESTION, SHORT)  # the prompt and the saved one differ within a token
        assert first.stats.cached_tokens == n - TAIL_TOKENS
        assert llm.figures().read == first.stats.prompt_tokens - (n - TAIL_TOKENS)
    with make_llm() as llm:
        llm.load_prefix(saved)
        whole = llm.generate(DOCUMENT, SHORT)
        assert whole.stats.cached_tokens == whole.stats.prompt_tokens == n
        assert llm.figures().read == 0


def test_saved_prefix_loads_in_another_process(saved: Path) -> None:
    program = """if True:
        import sys
        from pymtp import LLM, SamplingParams
        with LLM(n_ctx=1024, n_threads=1) as llm:
            llm.load_prefix(sys.argv[1])
            found = llm.generate(sys.argv[2], SamplingParams(max_tokens=8))
            print(found.stats.cached_tokens, found.token_ids)
    """
    code, printed = run_code(program, [str(saved), DOCUMENT + QUESTION])
    assert code == 0, printed
    with make_llm(cache_prompt=False) as llm:
        n = len(llm.model.tokenize(DOCUMENT)) - TAIL_TOKENS
        assert printed.strip() == f"{n} {llm.generate(DOCUMENT + QUESTION, SHORT).token_ids}"


@pytest.mark.parametrize("keywords", [{"draft_tokens": 1}, {"n_ubatch": 32}, {"n_seq_max": 3}, {"n_ctx": 2048}])
def test_saved_prefix_loads_with_other_values_of_unrelated_options(saved: Path, keywords: dict[str, Any]) -> None:
    with make_llm(**keywords, cache_prompt=False) as llm:
        wanted = outputs(llm, [DOCUMENT + QUESTION, DOCUMENT], GREEDY)
    with make_llm(**keywords) as llm:
        llm.load_prefix(saved)
        found = outputs(llm, [DOCUMENT + QUESTION, DOCUMENT], GREEDY)
        assert found[0] == wanted[0]
        assert keywords.get("draft_tokens") is None or found == wanted


@pytest.mark.parametrize(("draft_tokens", "n"), [("auto", None), *((12, n) for n in (None, 1, 2, 71, 517))])
def test_saved_prefix_loads_in_an_llm_with_fewer_draft_tokens(path: Path, draft_tokens: Any, n: int | None) -> None:
    with make_llm(draft_tokens=1, cache_prompt=False) as llm:
        tokens = llm.model.tokenize(DOCUMENT)[:n]
        prompts = [tokens, [*tokens, 5, 6, 7], [*tokens[:-TAIL_TOKENS], 5]]
        wanted = outputs(llm, prompts, GREEDY)
    for read_before in (False, True):
        with make_llm(draft_tokens=draft_tokens) as llm:
            if read_before:
                llm.generate([tokens, [*tokens, 9]], SHORT)
            llm.save_prefix(tokens, path)
        with make_llm(draft_tokens=1) as llm:
            assert llm.load_prefix(path) == len(tokens)
            assert outputs(llm, prompts, GREEDY) == wanted
        path.unlink()


def test_saved_prefix_file_does_not_depend_on_other_requests(saved: Path, path: Path) -> None:
    with make_llm(n_seq_max=2) as llm:
        stream = llm.stream("import os\n", SamplingParams(max_tokens=200, ignore_eos=True))
        next(stream)
        for before in (None, DOCUMENT + QUESTION, DOCUMENT, DOCUMENT[:900]):
            if before is not None:
                llm.generate(before, SHORT)
            n = llm.figures().read
            llm.save_prefix(DOCUMENT, path)
            assert path.read_bytes() == saved.read_bytes()
            if before == DOCUMENT:
                assert llm.figures().read <= n + TAIL_TOKENS
        stream.close()
    for keywords in ({"cache_prompt": False}, {"cache_bytes": 0}, {"cache_bytes": 10**6}):
        with make_llm(**keywords) as llm:
            llm.generate(DOCUMENT + QUESTION, SHORT)
            llm.save_prefix(DOCUMENT, path)
            assert path.read_bytes() == saved.read_bytes()


def test_loaded_prefix_is_saved_again_without_a_prefill(saved: Path, path: Path) -> None:
    with make_llm() as llm:
        llm.load_prefix(saved)
        llm.save_prefix(DOCUMENT, path)
        assert llm.figures().read == 0
    assert path.read_bytes() == saved.read_bytes()


def test_save_prefix_runs_beside_other_requests(path: Path) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    with make_llm(n_seq_max=2, n_ubatch=32) as llm:
        wanted = llm.generate("import os\n", params)
        stream = llm.stream("import os\n", params)
        next(stream)
        assert llm.save_prefix(DOCUMENT + "2", path) > 0
        assert len(stream._request.tokens) > 4  # generated while the prompt was prefilled in pieces
        for _ in stream:
            pass
        assert stream.completion.token_ids == wanted.token_ids


def test_save_prefix_stores_the_state_of_each_checkpoint_itself(saved: Path, path: Path) -> None:
    with make_llm() as llm:
        tokens = llm._maker.prompt_tokens(DOCUMENT)
        llm.generate(tokens[: -TAIL_TOKENS // 2], SHORT)  # the state at the end of this shorter prompt is cached
        n = llm.figures().read
        llm.save_prefix(DOCUMENT, path)
        assert llm.figures().read > n + TAIL_TOKENS
    assert path.read_bytes() == saved.read_bytes()


@pytest.mark.parametrize("cache_bytes", [None, 0])
def test_requests_may_use_a_prompt_while_it_is_saved(
    cache_bytes: int | None, path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = PrefixWriter.write_cells
    with make_llm(n_seq_max=3) as llm:
        prompts = [DOCUMENT, DOCUMENT + QUESTION, DOCUMENT]
        wanted = [llm.generate(prompt, GREEDY).logprobs for prompt in prompts]
    with make_llm(n_seq_max=5, cache_bytes=cache_bytes) as llm:
        waiter = Waiter()
        asked = [
            Request(llm.model, llm._maker.prompt_tokens(prompt), GREEDY, waiter, priority=-1) for prompt in prompts
        ]
        left = list(asked)
        stream = llm.stream("import os\n", SamplingParams(max_tokens=100, ignore_eos=True))
        next(stream)

        def asks(self: PrefixWriter, cells: Any) -> None:
            write(self, cells)
            if left and self.n_cells > 60 * (4 - len(left)):
                llm._engine.submit(left.pop())

        monkeypatch.setattr("pymtp.prefix_cache.save.CHUNK_BYTES", 20 * llm.context.state.cell_bytes)
        monkeypatch.setattr(PrefixWriter, "write_cells", asks)
        llm.save_prefix(DOCUMENT, path)
        assert path.read_bytes() == saved.read_bytes()
        llm._engine_thread.wait(waiter, asked, lambda: not waiter.n_unfinished)
        assert [request.completion.logprobs for request in asked] == wanted
        stream.close()


def test_save_prefix_accepts_short_prompts_and_token_ids(path: Path) -> None:
    with make_llm() as llm:
        for n in (1, 2, TAIL_TOKENS, TAIL_TOKENS + 1, 300):
            tokens = random.Random(n).choices(range(llm.model.n_vocab), k=n)
            assert llm.save_prefix(tokens, path) == n
            wanted = llm.generate([*tokens, 5], GREEDY)
            with make_llm() as other:
                assert other.load_prefix(path) == n
                found = other.generate([*tokens, 5], GREEDY)
                assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
                assert found.stats.cached_tokens == n


# ── Chats ───────────────────────────────────────────────────────────────────────────────────────────────────────────

LONG_TEXT = "The river runs to the sea. " * 20
SYSTEM = {"role": "system", "content": LONG_TEXT}
USER = {"role": "user", "content": LONG_TEXT}
ASSISTANT = {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize(
    ("messages", "going_on"),
    [
        ([SYSTEM], [[SYSTEM, {"role": "user", "content": text}] for text in ("Why?", "\nThe", USER["content"])]),
        ([USER], [[USER], [{**USER, "content": f"{LONG_TEXT} Why?"}], [USER, ASSISTANT, {**USER, "content": "Why?"}]]),
        (Chat([SYSTEM, USER]), [[SYSTEM, USER, ASSISTANT, {**USER, "content": "Why?"}]]),
        ([USER, ASSISTANT], [[USER, ASSISTANT, {"role": "user", "content": text}] for text in ("Why?", "No.")]),
    ],
    ids=["system", "user", "both", "answered"],
)
def test_chats_after_saved_messages_prefill_only_new_tokens(
    path: Path, messages: Any, going_on: list[list[dict[str, str]]]
) -> None:
    with make_llm() as llm:
        n = llm.save_prefix(messages, path)
        assert n > len(llm.model.tokenize(LONG_TEXT)) - 2 * TAIL_TOKENS
    for chat in going_on:
        with make_llm() as llm:
            wanted = llm.chat(chat, GREEDY)
        with make_llm() as llm:
            assert llm.load_prefix(path) == n
            found = llm.chat(chat, GREEDY)
            assert found.stats.cached_tokens == n
            assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)


def test_saved_chat_is_reused_up_to_its_system_message_for_another_question(path: Path) -> None:
    with make_llm() as llm:
        llm.save_prefix([SYSTEM, {"role": "user", "content": LONG_TEXT}], path)
    with make_llm() as llm:
        llm.load_prefix(path)
        found = llm.chat([SYSTEM, {"role": "user", "content": "Why?"}], SHORT)
        assert found.stats.cached_tokens > len(llm.model.tokenize(LONG_TEXT)) - TAIL_TOKENS


# ── The budget ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_loaded_prefix_counts_once_in_cache_bytes(saved: Path) -> None:
    with PrefixFile(saved, None) as file:
        nbytes = file.nbytes
    with make_llm(cache_bytes=nbytes) as llm:
        for _ in range(2):
            llm.load_prefix(saved)
            assert llm.figures().prefixes.nbytes == nbytes
        llm.generate(DOCUMENT + QUESTION, SHORT)
        llm.load_prefix(saved)
        assert llm.figures().prefixes.nbytes == nbytes
    for cache_bytes in (0, nbytes - 1):
        with make_llm(cache_bytes=cache_bytes) as llm:
            for _ in range(2):
                with pytest.raises(
                    InvalidRequestError, match=f"needs {nbytes:,} bytes of host memory: cache_bytes is "
                ):
                    llm.load_prefix(saved)
            assert llm.figures().prefixes.nbytes == 0
            llm.generate(DOCUMENT + QUESTION, SHORT)
    with make_llm(cache_prompt=False) as llm, pytest.raises(InvalidRequestError, match="cache_prompt=False"):
        llm.load_prefix(saved)


def test_loaded_prefixes_and_cached_prompts_evict_each_other(saved: Path) -> None:
    with PrefixFile(saved, None) as file:
        nbytes = file.nbytes
    with make_llm(cache_bytes=nbytes + 1000) as llm:
        others = [f"# {i}\n" + DOCUMENT[:700] for i in range(3)]
        wanted = outputs(llm, [*others, DOCUMENT + QUESTION], GREEDY)[0]
        llm.load_prefix(saved)
        assert llm.generate(DOCUMENT + QUESTION, SHORT).stats.cached_tokens > 0
        for _ in range(3):
            assert outputs(llm, [*others, DOCUMENT + QUESTION], GREEDY)[0] == wanted
            assert llm.figures().prefixes.nbytes <= nbytes + 1000
