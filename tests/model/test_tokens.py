"""Tests of tokens: with Qwen's own vocabulary they equal the tokens of Hugging Face's tokenizer.

tests/reference/tokens.json has a hash of the tokens of each text, written by tools/checks/tokens.py golden.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from unicodedata import is_normalized

import numpy as np
import pytest
from makers.real_vocab import write_model
from makers.texts import SCRIPTS, texts

from pymtp.model.model import Model

GOLDEN = Path(__file__).parent.parent / "reference" / "tokens.json"
N_TEXTS, SEED = 3000, 34
DIGITS = 8  # hexadecimal digits of a hash of a text's tokens


def digest_of_texts(made: Sequence[str]) -> str:
    return sha256("\0".join(made).encode()).hexdigest()


def digest_of_tokens(tokens: Sequence[int]) -> str:
    return sha256(np.array(tokens, "<i4").tobytes()).hexdigest()[:DIGITS]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Load a model with Qwen's vocabulary of 151,669 tokens."""
    path = tmp_path_factory.mktemp("models") / "qwen.gguf"
    write_model(path)
    with Model(path, vocab_only=True) as model:
        yield model
    path.unlink()


def test_tokens_of_many_scripts_match_hugging_faces_tokenizer(qwen: Model) -> None:
    golden, made = json.loads(GOLDEN.read_text(encoding="utf-8")), texts(N_TEXTS, SEED)
    assert len(SCRIPTS) >= 25
    assert sum(not is_normalized("NFC", text) for text in made) > N_TEXTS / 3
    assert digest_of_texts(made) == golden["texts"], "the texts are not the texts that Hugging Face's tokenizer had"
    wanted = [golden["tokens"][i : i + DIGITS] for i in range(0, N_TEXTS * DIGITS, DIGITS)]
    different = [a for a, digest in zip(made, wanted, strict=True) if digest_of_tokens(qwen.tokenize(a)) != digest]
    assert not different


def test_detokenize_returns_the_text_in_nfc(qwen: Model) -> None:
    for text in texts(500, SEED):
        assert qwen.detokenize(qwen.tokenize(text), special=True) == qwen.normalized(text)
