"""Random texts of many scripts for comparing tokenizers, equal for a seed in every version of Python."""

from __future__ import annotations

from random import Random
from unicodedata import normalize

# Letters, marks, digits and unassigned characters of these ranges; no letter newer than Unicode 15
SCRIPTS = {
    "Latin": "\u0041-\u005a\u0061-\u007a\u00c0-\u017f\u0300-\u0345",
    "Latin, phonetic": "\u0061-\u007a\u0250-\u02af\u02b0-\u02ff\u0300-\u036f",
    "Greek": "\u0370-\u03ff\u1f00-\u1fff\u0300-\u0345",
    "Cyrillic": "\u0400-\u052f\u0483-\u0489\u0300-\u0306",
    "Armenian": "\u0530-\u058f",
    "Hebrew": "\u0590-\u05ff\ufb1d-\ufb4f",
    "Arabic": "\u0600-\u06ff\u0750-\u077f\ufb50-\ufbc1\ufe70-\ufeff",
    "Syriac": "\u0700-\u074f",
    "Devanagari": "\u0900-\u097f",
    "Bengali": "\u0980-\u09ff",
    "Gurmukhi": "\u0a00-\u0a7f",
    "Gujarati": "\u0a80-\u0aff",
    "Tamil": "\u0b80-\u0bff",
    "Telugu": "\u0c00-\u0c7f",
    "Kannada": "\u0c80-\u0cff",
    "Malayalam": "\u0d00-\u0d7f",
    "Sinhala": "\u0d80-\u0dff",
    "Thai": "\u0e00-\u0e5b",
    "Lao": "\u0e80-\u0eff",
    "Tibetan": "\u0f00-\u0fd9",
    "Burmese": "\u1000-\u109f",
    "Georgian": "\u10a0-\u10ff",
    "Hangul": "\u1100-\u11ff\uac00-\ud7a3\ua960-\ua97c\ud7b0-\ud7fb",
    "Ethiopic": "\u1200-\u139f",
    "Khmer": "\u1780-\u17f9",
    "Mongolian": "\u1800-\u18aa",
    "Balinese": "\u1b00-\u1b7f",
    "Kana": "\u3040-\u30ff\uff66-\uff9f",
    "Han": "\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufad9\U00020000-\U0002a6d0\U0002f800-\U0002fa1d",
}
_ACCENTED = "àáâãäåçèéêëìíîïñòóôõöùúûüýÿāăąćčďđēěğīłńňőřśşšťūůűźżž"
_VIETNAMESE = "ăâđêôơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ"
_VOICED = "がぎぐげござじずぜぞだばぱびぴゔガギグゲゴヴ"
_LOOKALIKES = (
    "\u212a\u212b\u2126\u037e\u0387\u1fef\u2000\u2001\u2329\u232a\u0340\u0341\u0343\u0344\u0374\u0958\u09dc\ufb1d"
)
_SPACES = (
    " ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\r", "\u00a0",
    "\u3000", "\u2028", "\u0085", "\x0b", "\x1c",
)  # fmt: skip
_EMOJI = "😀🐍👩👨👧👦💻🏽🏳🌈❤🔥🇩🇻1️⃣"
_JOINERS = ("\u200d", "\ufe0f", "\u20e3", "\u200b", "\u200c", "")
_CODE = (
    "def f(x):\n    return x", "for (int i = 0; i < n; ++i) {", "\tif err != nil {\n", "a['b']", "x='s'", "0x1F", "''",
    "I'Ll DON'T we'VE", '<div class="a">', "$HOME/*.py", "1_000.5e-3", "// —", "λ->x", "==!=>=", "...", "'s", "'\u017f",
    " '", "'re're",
)  # fmt: skip
_DIGITS = "0123456789\u0660\u0661२३४๔\uff15⅓²Ⅷ①"
_SPECIAL = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<|vision_pad|>", "<|im_start", "|>", "<", "<<think>>", "</think", "<|IM_END|>",
)  # fmt: skip
_MARKS = (
    "\u0301\u0300\u0302\u0308\u0323\u0327\u0338\u0345\u0316\u05b0\u064b\u093c\u0e38\u0f71\u3099\u09fe\u1df6\U0001d165"
)


def texts(n: int, seed: int) -> list[str]:
    """Make n texts of one to six parts each. About half of them are not in NFC."""
    rng = Random(seed)
    return ["".join(_part(rng) for _ in range(rng.randrange(1, 7))) for _ in range(n)]


def _part(rng: Random) -> str:
    match rng.randrange(12):
        case 0 | 1 | 2 | 3:
            script = SCRIPTS[rng.choice(sorted(SCRIPTS))]
            return " ".join(_word(rng, script) for _ in range(rng.randrange(1, 4)))
        case 4:
            word = "".join(
                rng.choices(rng.choice((_ACCENTED, _VIETNAMESE, _VOICED, "한글각값꿈")) + "abt", k=rng.randrange(1, 9))
            )
            return normalize(rng.choice(("NFC", "NFD")), word)
        case 5:
            return rng.choice("aeou한가アש\u0627>") + "".join(rng.choices(_MARKS, k=rng.randrange(1, 4)))
        case 6:
            return rng.choice(_LOOKALIKES) + rng.choice(("", "a", "\u0301"))
        case 7:
            return "".join(rng.choices(_SPACES, k=rng.randrange(1, 5)))
        case 8:
            return "".join(rng.choice(_EMOJI) + rng.choice(_JOINERS) for _ in range(rng.randrange(1, 6)))
        case 9:
            return rng.choice(_CODE)
        case 10:
            return "".join(rng.choices(_DIGITS + ".,-", k=rng.randrange(1, 8)))
        case _:
            return rng.choice(_SPECIAL) + rng.choice(("", "", "\u0338", "\u0301", "\n", " "))


def _word(rng: Random, script: str) -> str:
    letters = []
    for _ in range(rng.randrange(1, 9)):
        at = 3 * rng.randrange(len(script) // 3)
        letters.append(chr(rng.randrange(ord(script[at]), ord(script[at + 2]) + 1)))
    return "".join(letters)
