"""Compares pymtp's tokens with those of Hugging Face's tokenizer of Qwen3.5, for random texts in many scripts.

    python tools/checks/tokens.py compare --texts 400000  prints the texts whose tokens differ, and counts them
    python tools/checks/tokens.py golden                  writes tests/reference/tokens.json, which a test reads
    python tools/checks/tokens.py later                   prints LATER of pymtp/model/normalization.py

Needs the package tokenizers, `later` also unicodedata2. The vocabulary is that of makers/real_vocab.py.
The tokenizer is built as transformers builds it (models/qwen3_5/tokenization_qwen3_5.py): NFC, the regular expression
below, byte-level BPE. Added tokens are matched in the text as it is given (tokenizer.json: "normalized": false).
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import tokenizers
import typer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "model"))

from makers.real_vocab import ADDED, FIRST_ADDED, N_VOCAB, read_vocab, write_model
from makers.texts import texts
from test_tokens import GOLDEN, N_TEXTS, SEED, digest_of_texts, digest_of_tokens

from pymtp.model.model import Model

# PRETOKENIZE_REGEX of transformers' tokenization_qwen3_5.py; llama.cpp has it beside LLAMA_VOCAB_PRE_TYPE_QWEN35
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

app = typer.Typer(add_completion=False, help=__doc__)


def make_tokenizer() -> Tokenizer:
    """Build Hugging Face's tokenizer."""
    keys = {key.name: key.values for key in read_vocab().keys}
    tokens = [token.decode() for token in keys[b"tokenizer.ggml.tokens"][:FIRST_ADDED]]
    merges = [tuple(merge.decode().split(" ")) for merge in keys[b"tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=control) for text, control in ADDED])
    assert tokenizer.get_vocab_size() == N_VOCAB
    return tokenizer


@app.command()
def compare(
    n: Annotated[int, typer.Option("--texts", help="How many texts.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Another seed makes other texts.")] = 0,
) -> None:
    """Compare the tokens of random texts; exit with status 1 if any differ."""
    tokenizer, n_different = make_tokenizer(), 0
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "model.gguf")
        with Model(Path(folder) / "model.gguf", vocab_only=True) as model:
            for text in texts(n, seed):
                theirs, ours = tokenizer.encode(text).ids, model.tokenize(text)
                if theirs != ours:
                    n_different += 1
                    print(f"{text!a}: {theirs}, pymtp {ours}")
    print(f"{n_different} of {n} texts have other tokens")
    raise typer.Exit(1 if n_different else 0)


@app.command()
def golden() -> None:
    """Write the reference tokens for tests/model/test_tokens.py."""
    made, tokenizer = texts(N_TEXTS, SEED), make_tokenizer()
    found = {
        "made_by": f"tools/checks/tokens.py with tokenizers {tokenizers.__version__}",
        "texts": digest_of_texts(made),
        "tokens": "".join(digest_of_tokens(tokenizer.encode(text).ids) for text in made),
    }
    GOLDEN.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


@app.command()
def later() -> None:
    """Print the characters that NFC changes by the newest tables, but not by those of `tokenizers`."""
    codes = sorted(_later())
    starts = [0, *(i for i, (a, b) in enumerate(pairwise(codes), 1) if b != a + 1), len(codes)]
    runs = [codes[a:b] for a, b in pairwise(starts)]
    print(" ".join(f"{run[0]:X}" if len(run) == 1 else f"{run[0]:X}-{run[-1]:X}" for run in runs))


def _later() -> set[int]:
    import unicodedata2

    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    found: set[int] = set()
    for char in (chr(n) for n in range(sys.maxunicode + 1) if not 0xD800 <= n < 0xE000):
        # a mark moves behind one of a lower class or before one of a higher; only U+0345 has class 240
        moves = any(nfc(text) != text for text in (f"a{char}\u0316", f"a\u0345{char}", char))
        if unicodedata2.combining(char) and not moves and char != "\u0345":
            found.add(ord(char))
        parts = unicodedata2.decomposition(char).split()
        if parts and parts[0][0] != "<" and nfd(char) == char:
            found.add(ord(char))
            found |= {int(part, 16) for part in parts[1:] if not unicodedata2.combining(chr(int(part, 16)))}
    return found


if __name__ == "__main__":
    app()
