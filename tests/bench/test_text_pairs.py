"""Tests of text pairs: those made from Python's library, and those of a file."""

from __future__ import annotations

import ast
import difflib
import json
from pathlib import Path
from random import Random

import pytest

from pymtp import LLM, InvalidRequestError
from pymtp.bench.library_pairs import MIXED, VARIANTS, library_pairs
from pymtp.bench.older_release import older_release
from pymtp.bench.text_pairs import TextPair, TokenPair, kinds_of, predicted_share, predicted_shares, read_pairs

LINE = {"kind": "code", "prompt": "def f():", "text": " return 1"}


@pytest.fixture(scope="module")
def pairs() -> list[TextPair]:
    return library_pairs()


def test_library_pairs_are_the_same_in_each_run(pairs: list[TextPair]) -> None:
    assert library_pairs() == pairs


def test_library_pairs_have_four_texts_of_each_kind_and_eight_of_prose(pairs: list[TextPair]) -> None:
    kinds = [p.kind for p in pairs]
    assert {kind: kinds.count(kind) for kind in kinds_of(pairs)} == {
        **dict.fromkeys(("rewrite", "quote", "json", "tools"), VARIANTS),
        "prose": 2 * VARIANTS,
    }
    assert set(MIXED) == set(kinds)
    assert len({p.prompt for p in pairs}) == len({p.text for p in pairs}) == len(pairs)


def test_library_texts_have_a_few_hundred_to_2500_tokens(pairs: list[TextPair], llm: LLM) -> None:
    for p in pairs:
        assert 300 <= len(TokenPair.of(llm.model, p).text) <= 2500, p.kind


def test_library_texts_repeat_their_prompts_except_prose(pairs: list[TextPair], llm: LLM) -> None:
    shares = predicted_shares(TokenPair.of(llm.model, p) for p in pairs)
    assert shares["rewrite"] > 0.6
    assert shares["quote"] > 0.7
    assert min(shares["json"], shares["tools"]) > 0.3
    assert shares["prose"] < 0.02


def test_prose_repeats_no_eight_words(pairs: list[TextPair]) -> None:
    prose = [p for p in pairs if p.kind == "prose"]
    paragraphs = [part.split() for p in prose for part in (p.prompt + p.text).split("\n\n")]
    rows = [{tuple(words[i : i + 8]) for i in range(len(words) - 7)} for words in paragraphs]
    assert sum(map(len, rows)) == len(set.union(*rows)) > 3000


def test_older_release_parses_and_differs_in_a_part_of_its_lines(pairs: list[TextPair]) -> None:
    for p in pairs:
        if p.kind == "rewrite":
            new = p.text.removesuffix("```\n")
            old = p.prompt.split("```python\n")[1].split("```")[0]
            ast.parse(old)
            ast.parse(new)
            kept = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False).ratio()
            assert 0.6 < kept < 0.95


def test_older_release_lacks_branches_comments_and_parts_of_docstrings() -> None:
    source = '''\
import a
import b

def measure(values, limit=3):
    """Return a sum.

    And more.
    """
    # a comment
    if not values:
        return 0
    total = sum(values[:limit])
    return total
'''
    older = [older_release(source, Random(seed)) for seed in range(20)]
    for old in older:
        ast.parse(old)
        assert old.startswith("import b\nimport a\n")
        assert "def mea(" in old
        assert "val" in old.replace("values", "") or "limit_value" in old
    for part in ("And more", "a comment", "return 0", "limit=3"):
        assert 0 < sum(part in old for old in older) < 20, part


def test_tool_calls_and_json_of_the_library_are_well_formed(pairs: list[TextPair]) -> None:
    for p in pairs:
        if p.kind == "json":
            assert len(json.loads(p.text.removesuffix("```\n"))) > 10
        if p.kind == "tools":
            assert p.text.count("<tool_call>\n<function=replace_line>\n") == p.text.count("</tool_call>") > 10


def test_predicted_share_counts_tokens_after_an_earlier_occurrence() -> None:
    prompt = list(range(20))
    assert predicted_share(prompt, [100, *range(20)]) == 12 / 21
    assert predicted_share(prompt, [100, *range(9), 50, *range(10, 20)]) == 3 / 21
    assert predicted_share([1], [1] * 20) == 12 / 20
    assert predicted_share([1] * 20, [2]) == 0


def test_pairs_of_a_file_are_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps(LINE) + "\n\n" + json.dumps(LINE | {"prompt": "class A:", "kind": "b"}) + "\n")
    pairs = read_pairs(file)
    assert pairs == [TextPair(**LINE), TextPair("b", "class A:", " return 1")]
    assert kinds_of(pairs) == ("code", "b")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it must be an object with kind, prompt, text, not list"),
        ('{"kind": "a", "prompt": "b"}', "with kind, prompt, text, not kind, prompt"),
        (json.dumps(LINE | {"more": 1}), "not kind, prompt, text, more"),
        (json.dumps(LINE | {"text": 5}), "text must be a string that is not empty"),
        (json.dumps(LINE | {"text": " "}), "text must be a string that is not empty"),
        (json.dumps(LINE), "an earlier line has the same prompt"),
    ],
    ids=lambda part: str(part)[:30],
)
def test_wrong_line_is_refused_with_its_number(line: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps(LINE) + "\n\n" + line)
    with pytest.raises(InvalidRequestError, match=r"x\.jsonl, line 3: ") as refused:
        read_pairs(file)
    assert words in str(refused.value)


def test_file_without_lines_or_that_cannot_be_read_is_refused(tmp_path: Path, llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"cannot read texts from .*No such file"):
        read_pairs(tmp_path / "none")
    (tmp_path / "x").write_text("\n")
    with pytest.raises(InvalidRequestError, match="has no lines like"):
        read_pairs(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"\xff")
    with pytest.raises(InvalidRequestError, match="it is not text in UTF-8"):
        read_pairs(tmp_path / "x")
    with pytest.raises(InvalidRequestError, match="must have at least 2 tokens"):
        TokenPair.of(llm.model, TextPair("a", "b", "c"))
