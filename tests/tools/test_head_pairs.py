"""Tests of unfit heads: a pair is refused, or generates the model's tokens, and never ends the process."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import head_pairs
import pytest
from head_pairs import try_pairs, write_tokens
from pair_recipes import RECIPES, Base, Pair, make_bases, make_pair

from pymtp import LLM, PymtpError

N = 40


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    return make_bases(tmp_path_factory.mktemp("bases"))


def read(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}


def test_unfit_pairs_are_refused_or_generate_the_model_s_tokens(tmp_path: Path) -> None:
    each = list(try_pairs(0, iter(range(N)), tmp_path))
    assert [finding for one in each for finding in one.findings] == []
    counts = Counter(worked=sum(one.worked for one in each), refused=sum(one.refused for one in each))
    assert counts["worked"] + counts["refused"] == N
    assert min(counts.values()) > N / 10


def test_pairs_of_a_model_and_its_own_head_are_not_refused(bases: list[Base], tmp_path: Path) -> None:
    for base in bases:
        (tmp_path / "mtp.gguf").write_bytes(base.head.read_bytes())
        write_tokens(base.trunk, tmp_path / "mtp.gguf")


def test_pairs_of_a_seed_are_reproducible_and_of_every_kind(bases: list[Base], tmp_path: Path) -> None:
    kinds = set()
    for index in range(20):
        found = []
        for name in "ab":
            (place := tmp_path / f"{index}{name}").mkdir()
            pair = make_pair(86, index, bases, place)
            found.append((pair.damage, read(place)))
        assert found[0] == found[1]
        kinds.add(pair.damage[0].split(",")[0])
    assert kinds == {recipe.__name__ for recipe in RECIPES}


def ends_the_process(llm: LLM) -> list[int]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def fails(llm: LLM) -> PymtpError:
    return PymtpError("the head gives NaN")


def writes_another_text(llm: LLM) -> list[int]:
    return [llm.context.draft_tokens]


@pytest.mark.parametrize(
    ("broken", "what"),
    [(ends_the_process, "SIGKILL"), (fails, "an exception"), (writes_another_text, "an exception")],
)
def test_check_finds_a_pair_whose_head_changes_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[LLM], object], what: str
) -> None:
    sound = head_pairs._tokens_of
    monkeypatch.setattr(head_pairs, "_tokens_of", lambda llm: broken(llm) if llm.model.mtp else sound(llm))
    monkeypatch.setattr(head_pairs, "make_pair", lambda seed, index, bases, place: sound_pair(bases[0], place))
    (one,) = try_pairs(0, iter([0]), tmp_path)
    assert [finding.what for finding in one.findings] == [what]


def sound_pair(base: Base, place: Path) -> Pair:
    head = place / "mtp.gguf"
    head.write_bytes(base.head.read_bytes())
    return Pair(base.trunk, head, ["sound"])
