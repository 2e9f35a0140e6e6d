"""Normalization of text before tokenization: Qwen's tokenizers use Unicode's form C (NFC), llama.cpp has none.

Hugging Face's `tokenizers` first splits off the special tokens in a text. It converts the text between them to NFC with
the tables of Unicode 9 (measured with tokenizers 0.23.3): it neither composes nor moves combining marks that were added
in later versions of Unicode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from unicodedata import is_normalized, normalize

# Values of tokenizer.ggml.pre for vocabularies whose tokenizer.json has the NFC normalizer: Qwen 1.5 to 3 and
# Qwen3-Next have the first value, Qwen3.5 and later models the second.
NFC_PRE_TOKENIZERS = ("qwen2", "qwen35")

# Characters added in Unicode 10 to 18 that NFC composes, decomposes or reorders. "tools/checks/tokens.py later" prints
# them.
LATER = (
    "5C8-5C9 7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1AF0 1DF6-1DFA A82C 105C9 105E4 10D24-10D27 "
    "10D69-10D6D 10EAB-10EAC 10ECB-10ECF 10EF0-10EFB 10EFD-10EFF 10F46-10F50 10F82-10F85 11070 1133B 11383 11385 "
    "1138E 11391 113B8 113BB 113C2 113C5 113C7-113C9 113CE-113D0 1145E 11839-1183A 11930 11938 1193D-1193E 11943 "
    "119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97 11F41-11F42 1611E-16129 1612F 16D67-16D6A 16FF0-16FF1 "
    "1D127-1D128 1D250-1D252 1D25B-1D25C 1D25F 1D280-1D281 1E08F 1E130-1E136 1E2AE 1E2EC-1E2EF 1E4EC-1E4EF "
    "1E5EE-1E5EF 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5"
)
_LATER = frozenset(
    chr(c)
    for first, _, last in (span.partition("-") for span in LATER.split())
    for c in range(int(first, 16), int(last or first, 16) + 1)
)
_AT_LATER = re.compile(f"([{''.join(_LATER)}])")


class Normalizer:
    """The NFC normalization of a vocabulary, which leaves special tokens alone. Safe to use from any thread."""

    def __init__(self, special_tokens: Iterable[str]) -> None:
        """
        Prepare the normalization.

        special_tokens: the special tokens, as they are written in a text.
        """
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._at_special = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    def normalized(self, text: str) -> str:
        """Return `text` in NFC, with its special tokens unchanged.

        A combining mark after a special token stays separate: NFC of the whole text could join it with the token's ">".
        """
        if is_normalized("NFC", text):  # then each of its parts is NFC, too
            return text
        parts = self._at_special.split(text)
        parts[::2] = map(_nfc, parts[::2])
        return "".join(parts)


def _nfc(text: str) -> str:
    if _LATER.isdisjoint(text):  # takes a tenth of the time of the split below
        return normalize("NFC", text)
    parts = _AT_LATER.split(text)
    parts[::2] = [normalize("NFC", part) for part in parts[::2]]
    return "".join(parts)
