"""Tests of the checks of the prefix cache: short runs of tools/checks/prefixes.py and soak_prefixes.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import prefixes
import pytest
import random_faults
import soak_prefixes
import soak_requests
from makers.demo_corpus import held_out_prompts
from soak_prefixes import Phase

from pymtp.context.context import Context
from pymtp.model.model import Model
from pymtp.prefix_cache.eviction import EvictionPolicy
from pymtp.prefix_cache.store import PrefixStore

SMALL = {"n_ctx": 300, "n_seq_max": 2, "draft_tokens": 2}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


def played(model: Model, seeds: range, monkeypatch: pytest.MonkeyPatch) -> prefixes.CacheGameResults:
    monkeypatch.setattr(prefixes, "REQUESTS", 8)
    found = prefixes.CacheGameResults("shipped")
    texts = [model.tokenize(text) for text in held_out_prompts(4, 2000)]
    for seed in seeds:
        prefixes.Game(model, texts, seed, found).play()
    return found


def test_cached_prompts_generate_the_same_tokens(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run prompts by steps and by threads, with prefixes from sequences, from host memory and from files."""
    found = played(model, range(2), monkeypatch)
    assert not found.differences
    assert found.tokens > 100
    assert found.logprobs > 25
    assert found.compared
    assert found.files
    assert all(found.kept[name] for name in ("hits", "found", "copied", "loaded", "saved", "evicted"))


def test_check_finds_a_wrong_state(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    load_state = Context.load_state

    def empty(self: Context, seq: int, tokens: Any, state: Any) -> None:
        other = np.array(state)
        other[64:] //= 2
        load_state(self, seq, tokens, other)

    monkeypatch.setattr(Context, "load_state", empty)
    found = played(model, range(1), monkeypatch)
    assert found.differing_tokens > 5
    assert "seed " in found.differences[0]


def test_check_finds_bytes_above_the_limit(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def more(self: EvictionPolicy, need: int, *_: object) -> bool:
        if self.limit:  # the limit of the cold LLM is 0
            self.limit = 10**9
        return need <= self.limit

    monkeypatch.setattr(EvictionPolicy, "make_room", more)
    monkeypatch.setattr(prefixes, "BUDGETS", (1.5,))
    found = played(model, range(1), monkeypatch)
    assert any("are kept" in words for words in found.differences)


def test_soak_accounts_for_failed_requests_with_shared_prefixes(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_faults, "FAULTS", 0.01)
    monkeypatch.setattr(soak_requests, "SAMPLES", 10)
    *phases, differences = soak_prefixes.soak_prefixes(model, 40, phases=2, **SMALL)
    assert differences == []
    for phase in phases:
        assert isinstance(phase, Phase)
        assert phase.wrong == ""
        assert not phase.exceeded
    assert phases[-1].figures.hits
    assert phases[-1].faults


def test_soak_finds_a_pin_that_is_never_released(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = PrefixStore.pin

    def keep(self: PrefixStore, reader: Any, node: Any) -> None:
        if node is not None:
            pin(self, reader, node)

    monkeypatch.setattr(PrefixStore, "pin", keep)
    phase, *_ = soak_prefixes.soak_prefixes(model, 40, phases=1, **SMALL)
    assert isinstance(phase, Phase)
    assert "pinned" in phase.wrong
