"""The GGUF files of published repositories, their contents, and the expected result for each request.

Filenames are from 2026; comments give their sources. Long lists of quantizations are shortened, kinds of files are not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from helpers.hub import HEAD as HEAD_TENSORS
from helpers.hub import HEAD_ALONE, TRUNK, gguf

# contents of a file
WHOLE, BARE, ABSENT, HEAD = "trunk and head", "trunk", "trunk, and a head that is announced", "head"
REDUCED, MMPROJ, IMATRIX, DFLASH, EAGLE, LORA = "d2t head", "mmproj", "imatrix", "dflash", "eagle3", "adapter"
NO_GGUF = "no GGUF"


class Ask(NamedTuple):
    """A request to a repository, and its expected result.

    wanted: the part of the name after the colon. model, head: the expected files. error: words of the expected error.
    """

    wanted: str | None
    model: str = ""
    head: str | None = None
    error: str = ""


class Listing(NamedTuple):
    repo: str
    files: dict[str, list[str]]  # by contents
    asks: Sequence[Ask]
    architecture: str = "qwen35"

    def contents(self) -> dict[str, bytes]:
        """Return small files with these names and realistic headers."""
        return {path: _content(path, kind, self.architecture) for kind, paths in self.files.items() for path in paths}


def typed(pattern: str, types: str) -> list[str]:
    """Return filenames: the pattern with each type instead of {}."""
    return [pattern.format(kind) for kind in types.split()]


def parts(pattern: str, n: int) -> list[str]:
    return [f"{pattern}-{i:05}-of-{n:05}.gguf" for i in range(1, n + 1)]


def _content(path: str, kind: str, architecture: str) -> bytes:
    part = re.search(r"-(\d{5})-of-(\d{5})\.gguf$", path)
    first, last = (part is None or part[1] == "00001"), (part is None or part[1] == part[2])
    trunk, head = TRUNK if first else TRUNK[:1], HEAD_TENSORS if last else []
    n_tokens, weights = (20, 20_000) if first else (0, 20_000)

    def file(tensors: Sequence[str], *, announced: bool, weights: int = weights) -> bytes:
        return gguf(
            head=announced and first, architecture=architecture, tensors=tensors, n_tokens=n_tokens, weights=weights
        )

    if kind == WHOLE:
        return file([*trunk, *head], announced=True)
    if kind in (BARE, ABSENT):
        return file(trunk, announced=kind == ABSENT)
    if kind in (HEAD, REDUCED):
        of_head = HEAD_ALONE if part is None else HEAD_TENSORS if last else ["token_embd.weight"]
        return file([*of_head, *(["d2t"] if kind == REDUCED else [])], announced=True, weights=2_000)
    if kind == NO_GGUF:
        return b"text"
    said = {MMPROJ: ("clip", "mmproj"), IMATRIX: ("", "imatrix"), LORA: (architecture, "adapter")}.get(
        kind, (kind, "model")
    )
    return gguf(head=False, architecture=said[0], kind=said[1], tensors=["some.weight"], n_tokens=0, weights=1_000)


LISTINGS = [
    # revision 0669b986, as scripts of three projects on GitHub pin it
    Listing(
        "ggml-org/Qwen3.8-27B-GGUF",
        {
            BARE: typed("Qwen3.8-27B-{}.gguf", "BF16 Q4_K_M Q8_0"),
            HEAD: typed("mtp-Qwen3.8-27B-{}.gguf", "Q4_0 Q8_0"),
            MMPROJ: typed("mmproj-Qwen3.8-27B-{}.gguf", "BF16 Q8_0"),
            NO_GGUF: ["README.md", ".gitattributes"],
        },
        [
            Ask(None, "Qwen3.8-27B-Q4_K_M.gguf", "mtp-Qwen3.8-27B-Q4_0.gguf"),
            Ask("Q4_K_M", "Qwen3.8-27B-Q4_K_M.gguf", "mtp-Qwen3.8-27B-Q4_0.gguf"),
            Ask("Q8_0", "Qwen3.8-27B-Q8_0.gguf", "mtp-Qwen3.8-27B-Q8_0.gguf"),
            Ask("bf16", "Qwen3.8-27B-BF16.gguf", "mtp-Qwen3.8-27B-Q8_0.gguf"),
            Ask("Qwen3.8-27B-Q8_0.gguf", "Qwen3.8-27B-Q8_0.gguf", "mtp-Qwen3.8-27B-Q8_0.gguf"),
            Ask("*Q4_K*", "Qwen3.8-27B-Q4_K_M.gguf", "mtp-Qwen3.8-27B-Q4_0.gguf"),
            Ask("Q4_K_M+Q8_0", "Qwen3.8-27B-Q4_K_M.gguf", "mtp-Qwen3.8-27B-Q8_0.gguf"),
            Ask("Q8_0+mtp-Qwen3.8-27B-Q4_0.gguf", "Qwen3.8-27B-Q8_0.gguf", "mtp-Qwen3.8-27B-Q4_0.gguf"),
            Ask("+*Q8*", "Qwen3.8-27B-Q4_K_M.gguf", "mtp-Qwen3.8-27B-Q8_0.gguf"),
            Ask(
                "Q4_0", error="no GGUF model for 'Q4_0': mtp-Qwen3.8-27B-Q4_0.gguf is a multi-token.*Qwen3.8-27B-Q4_K_M"
            ),
            Ask(
                "mtp-Qwen3.8-27B-Q8_0.gguf", error="is a multi-token-prediction head without its model; models by their"
            ),
            Ask("mmproj-Qwen3.8-27B-Q8_0.gguf", error="is an image projector; models by their names: Qwen3.8-27B-BF16"),
            Ask(
                "Q6_K", error="no GGUF file for 'Q6_K'; there are: Qwen3.8-27B-BF16.gguf, .*to be named after a .: mtp-"
            ),
            Ask("Q4_K_M+Q6_K", error="has no head for 'Q6_K'; heads by their names: mtp-Qwen3.8-27B-Q4_0.gguf, mtp-"),
            Ask("Q4_K_M+BF16", error="has no head for 'BF16'; heads by their names: mtp-Qwen3.8-27B-Q4_0.gguf, mtp-"),
            Ask(
                "Q8_0+mmproj-Qwen3.8-27B-Q8_0.gguf",
                error="mmproj-Qwen3.8-27B-Q8_0.gguf is an image projector; heads by",
            ),
            Ask("Q4_K_M+mtp*", error="for 'mtp.' there are 2 heads, name one of them: mtp-Qwen3.8-27B-Q4_0.gguf, mtp-"),
        ],
    ),
    # a trimmed list in the tests of modelctl (GitHub), and another project's table of its types
    Listing(
        "unsloth/Qwen3.8-27B-GGUF",
        {
            WHOLE: [
                *parts("BF16/Qwen3.8-27B-BF16", 2),
                *typed(
                    "Qwen3.8-27B-{}.gguf",
                    "Q4_0 Q8_0 UD-IQ1_S UD-Q2_K_XL UD-Q3_K_XL UD-IQ4_XS UD-Q4_K_S UD-Q4_K_M UD-Q4_K_XL UD-Q6_K",
                ),
            ],
            HEAD: ["MTP/mtp-Qwen3.8-27B-Q4_0.gguf"],
            MMPROJ: ["mmproj-BF16.gguf", "mmproj-F16.gguf"],
            NO_GGUF: ["imatrix_unsloth.gguf_file", "README.md"],
        },
        [
            Ask(None, "Qwen3.8-27B-UD-Q4_K_M.gguf"),
            Ask("Q4_0", "Qwen3.8-27B-Q4_0.gguf"),
            Ask("UD-Q4_K_XL", "Qwen3.8-27B-UD-Q4_K_XL.gguf"),
            Ask("Q4_K_XL", "Qwen3.8-27B-UD-Q4_K_XL.gguf"),
            Ask("BF16", "BF16/Qwen3.8-27B-BF16-00001-of-00002.gguf"),
            Ask("Qwen3.8-27B-Q4_0.gguf", "Qwen3.8-27B-Q4_0.gguf"),
            Ask("UD-Q4_K_XL+Q4_0", "Qwen3.8-27B-UD-Q4_K_XL.gguf", "MTP/mtp-Qwen3.8-27B-Q4_0.gguf"),
            Ask("Q4_0+MTP/*", "Qwen3.8-27B-Q4_0.gguf", "MTP/mtp-Qwen3.8-27B-Q4_0.gguf"),
            Ask("mtp-Qwen3.8-27B-Q4_0.gguf", error="MTP/mtp-.* is a multi-token-prediction head without its model"),
            Ask("mmproj-F16.gguf", error="is an image projector; models by their names: BF16/Qwen3.8"),
            Ask("F16", error="no GGUF model for 'F16': mmproj-F16.gguf is an image projector"),
        ],
    ),
    # files that scripts on GitHub fetch from it (UD-Q4_K_XL, mmproj-F16), and its card
    Listing(
        "unsloth/Qwen3.6-27B-MTP-GGUF",
        {
            WHOLE: [
                *parts("BF16/Qwen3.6-27B-BF16", 2),
                *typed("Qwen3.6-27B-{}.gguf", "IQ4_XS Q4_0 Q4_K_M Q5_K_M Q8_0 UD-IQ3_XXS UD-Q4_K_XL UD-Q8_K_XL"),
            ],
            MMPROJ: ["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"],
            NO_GGUF: ["imatrix_unsloth.gguf_file"],
        },
        [
            Ask(None, "Qwen3.6-27B-Q4_K_M.gguf"),
            Ask("UD-IQ3_XXS", "Qwen3.6-27B-UD-IQ3_XXS.gguf"),
            Ask("Q8_0", "Qwen3.6-27B-Q8_0.gguf"),
            Ask("*UD-Q8*", "Qwen3.6-27B-UD-Q8_K_XL.gguf"),
            Ask("Qwen3.6-27B-UD-Q4_K_XL.gguf", "Qwen3.6-27B-UD-Q4_K_XL.gguf"),
            Ask("Q8_0+Q4_0", error="no head for 'Q4_0'; Qwen3.6-27B-Q4_0.gguf is a model; heads by their names: none"),
        ],
    ),
    # an inventory of 2026-08-29 in a GitHub project, "Qwen3.6-35B-A3B - model card and GGUF inventory"
    Listing(
        "unsloth/Qwen3.6-35B-A3B-MTP-GGUF",
        {
            WHOLE: typed(
                "Qwen3.6-35B-A3B-{}.gguf",
                "MXFP4_MOE Q8_0 UD-IQ1_M UD-IQ3_S UD-IQ4_NL UD-IQ4_XS UD-Q3_K_M UD-Q4_K_M UD-Q4_K_S UD-Q4_K_XL UD-Q6_K",
            ),
            MMPROJ: ["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"],
            NO_GGUF: ["imatrix_unsloth.gguf_file"],
        },
        [
            Ask(None, "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf"),
            Ask("MXFP4_MOE", "Qwen3.6-35B-A3B-MXFP4_MOE.gguf"),
            Ask("IQ4_NL", "Qwen3.6-35B-A3B-UD-IQ4_NL.gguf"),
            Ask("Qwen3.6-35B-A3B-UD-Q4_K_S.gguf", "Qwen3.6-35B-A3B-UD-Q4_K_S.gguf"),
        ],
        "qwen35moe",
    ),
    # the same inventory: the same names as with heads
    Listing(
        "unsloth/Qwen3.6-35B-A3B-GGUF",
        {
            BARE: typed(
                "Qwen3.6-35B-A3B-{}.gguf",
                "MXFP4_MOE Q8_0 UD-IQ1_M UD-IQ4_NL UD-IQ4_NL_XL UD-Q4_K_M UD-Q4_K_XL UD-Q8_K_XL",
            ),
            MMPROJ: ["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"],
        },
        [
            Ask(None, "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf"),
            Ask("UD-IQ4_NL_XL", "Qwen3.6-35B-A3B-UD-IQ4_NL_XL.gguf"),
            Ask("IQ4_NL", "Qwen3.6-35B-A3B-UD-IQ4_NL.gguf"),
            Ask("Qwen3.6-35B-A3B-Q8_0.gguf", "Qwen3.6-35B-A3B-Q8_0.gguf"),
        ],
        "qwen35moe",
    ),
    # the same inventory
    Listing(
        "ggml-org/Qwen3.6-35B-A3B-GGUF",
        {
            BARE: typed("Qwen3.6-35B-A3B-{}.gguf", "BF16 Q4_K_M Q8_0"),
            DFLASH: typed("dflash-Qwen3.6-35B-A3B-{}.gguf", "BF16 Q8_0"),
            MMPROJ: typed("mmproj-Qwen3.6-35B-A3B-{}.gguf", "BF16 Q8_0"),
            HEAD: typed("mtp-Qwen3.6-35B-A3B-{}.gguf", "BF16 Q4_0 Q8_0"),
        },
        [
            Ask(None, "Qwen3.6-35B-A3B-Q4_K_M.gguf", "mtp-Qwen3.6-35B-A3B-Q4_0.gguf"),
            Ask("BF16", "Qwen3.6-35B-A3B-BF16.gguf", "mtp-Qwen3.6-35B-A3B-BF16.gguf"),
            Ask("Q8_0", "Qwen3.6-35B-A3B-Q8_0.gguf", "mtp-Qwen3.6-35B-A3B-Q8_0.gguf"),
            Ask("Qwen3.6-35B-A3B-Q4_K_M.gguf+BF16", "Qwen3.6-35B-A3B-Q4_K_M.gguf", "mtp-Qwen3.6-35B-A3B-BF16.gguf"),
            Ask("dflash-Qwen3.6-35B-A3B-Q8_0.gguf", error="is a drafter of another kind; models by their names"),
            Ask(
                "Q8_0+dflash*Q8_0*",
                error="no head for .*; dflash-.* is a drafter of another kind; heads by their names",
            ),
        ],
        "qwen35moe",
    ),
    # the same inventory: integrated heads, names that say it
    Listing(
        "ggml-org/Qwen3.6-35B-A3B-MTP-GGUF",
        {
            WHOLE: typed("Qwen3.6-35B-A3B-MTP-{}.gguf", "BF16 Q8_0"),
            MMPROJ: ["mmproj-Qwen3.6-35B-A3B-Q8_0.gguf"],
        },
        [
            Ask(None, "Qwen3.6-35B-A3B-MTP-Q8_0.gguf"),
            Ask("BF16", "Qwen3.6-35B-A3B-MTP-BF16.gguf"),
            Ask("Q8_0", "Qwen3.6-35B-A3B-MTP-Q8_0.gguf"),
            Ask("*MTP-Q8_0.gguf", "Qwen3.6-35B-A3B-MTP-Q8_0.gguf"),
        ],
        "qwen35moe",
    ),
    # the same inventory: heads apart, an imatrix in GGUF
    Listing(
        "bartowski/Qwen_Qwen3.6-35B-A3B-GGUF",
        {
            BARE: typed(
                "Qwen_Qwen3.6-35B-A3B-{}.gguf",
                "IQ2_M IQ3_XXS IQ4_NL IQ4_XS Q2_K Q2_K_L Q4_0 Q4_1 Q4_K_L Q4_K_M Q6_K Q8_0",
            ),
            IMATRIX: ["Qwen_Qwen3.6-35B-A3B-imatrix.gguf"],
            MMPROJ: typed("mmproj-Qwen_Qwen3.6-35B-A3B-{}.gguf", "bf16 f16"),
            HEAD: typed("mtp-Qwen_Qwen3.6-35B-A3B-{}.gguf", "Q4_0 Q8_0"),
        },
        [
            Ask(None, "Qwen_Qwen3.6-35B-A3B-Q4_K_M.gguf", "mtp-Qwen_Qwen3.6-35B-A3B-Q4_0.gguf"),
            Ask("Q4_0", "Qwen_Qwen3.6-35B-A3B-Q4_0.gguf", "mtp-Qwen_Qwen3.6-35B-A3B-Q4_0.gguf"),
            Ask("Q2_K", "Qwen_Qwen3.6-35B-A3B-Q2_K.gguf", "mtp-Qwen_Qwen3.6-35B-A3B-Q4_0.gguf"),
            Ask("IQ4_NL", "Qwen_Qwen3.6-35B-A3B-IQ4_NL.gguf", "mtp-Qwen_Qwen3.6-35B-A3B-Q4_0.gguf"),
            Ask("Q6_K", "Qwen_Qwen3.6-35B-A3B-Q6_K.gguf", "mtp-Qwen_Qwen3.6-35B-A3B-Q4_0.gguf"),
            Ask("Q8_0", "Qwen_Qwen3.6-35B-A3B-Q8_0.gguf", "mtp-Qwen_Qwen3.6-35B-A3B-Q8_0.gguf"),
            Ask("Qwen_Qwen3.6-35B-A3B-imatrix.gguf", error="is an importance matrix; models by their names"),
            Ask("bf16", error="no GGUF model for 'bf16': mmproj-.*bf16.gguf is an image projector"),
        ],
        "qwen35moe",
    ),
    # revision 5a7da681, as projects on GitHub name its files; its models have heads
    Listing(
        "lmstudio-community/Qwen3.8-27B-GGUF",
        {
            WHOLE: typed("Qwen3.8-27B-{}.gguf", "Q4_K_M Q6_K Q8_0"),
            MMPROJ: ["mmproj-Qwen3.8-27B-BF16.gguf"],
        },
        [
            Ask(None, "Qwen3.8-27B-Q4_K_M.gguf"),
            Ask("Q6_K", "Qwen3.8-27B-Q6_K.gguf"),
            Ask("qwen3.8-27b-q8_0.gguf", "Qwen3.8-27B-Q8_0.gguf"),
            Ask(
                "Q5_K_M",
                error="no GGUF file for 'Q5_K_M'; there are: Qwen3.8-27B-Q4_K_M.gguf, Qwen3.8-27B-Q6_K.gguf, Q",
            ),
        ],
    ),
    # GGUF-Tool-Suite's readme (Qwen3.5-0.8B-THIREUS-BF16-SPECIAL_TENSOR-00001-of-00321.gguf): a tensor a file
    Listing(
        "Thireus/Qwen3.5-0.8B-THIREUS-BF16-SPECIAL_SPLIT",
        {
            BARE: parts("Qwen3.5-0.8B-THIREUS-BF16-SPECIAL_TENSOR", 21),
            NO_GGUF: ["tensors.map", "tensors.map.sig", "README.md"],
        },
        [
            Ask(None, "Qwen3.5-0.8B-THIREUS-BF16-SPECIAL_TENSOR-00001-of-00021.gguf"),
            Ask("BF16", "Qwen3.5-0.8B-THIREUS-BF16-SPECIAL_TENSOR-00001-of-00021.gguf"),
            Ask("*00007*", "Qwen3.5-0.8B-THIREUS-BF16-SPECIAL_TENSOR-00001-of-00021.gguf"),
        ],
    ),
    # Thireus's collection "mtp-qwen38-27b-thireus-special-split" (GGUF-Tool-Suite issue 91): only the head, in splits
    Listing(
        "Thireus/mtp-Qwen3.8-27B-THIREUS-BF16-SPECIAL_SPLIT",
        {HEAD: parts("mtp-Qwen3.8-27B-THIREUS-BF16-SPECIAL_TENSOR", 19), NO_GGUF: ["tensors.map"]},
        [
            Ask(
                None,
                error="has no GGUF model: mtp-.*00001-of-00019.gguf is a multi-token-prediction head.*head= or --head",
            ),
            Ask("BF16", error="has no GGUF model for 'BF16': mtp-.* is a multi-token-prediction head.*head= or --head"),
            Ask("mtp-Qwen3.8-27B-THIREUS-BF16-SPECIAL_TENSOR-00001-of-00019.gguf", error="is a multi-token-prediction"),
        ],
    ),
    # scripts on GitHub that fetch both files (MODEL_FILE, DRAFT_FILE, MMPROJ_FILE), and the card's list of types
    Listing(
        "HauhauCS/Qwen3.8-27B-Uncensored-HauhauCS-Aggressive-MTP-GGUF",
        {
            WHOLE: typed(
                "Qwen3.8-27B-Uncensored-HauhauCS-Aggressive-{}.gguf", "Q8_K_P Q6_K_P Q4_K_P IQ4_XS IQ3_M IQ2_M"
            ),
            REDUCED: ["Qwen3.8-27B-Uncensored-HauhauCS-Aggressive-FastMTP-32K.gguf"],
            MMPROJ: ["mmproj-Qwen3.8-27B-Uncensored-HauhauCS-Aggressive-BF16.gguf"],
        },
        [
            Ask(None, "Qwen3.8-27B-Uncensored-HauhauCS-Aggressive-IQ4_XS.gguf"),
            Ask("Q4_K_P", "Qwen3.8-27B-Uncensored-HauhauCS-Aggressive-Q4_K_P.gguf"),
            Ask(
                "Q8_K_P+*FastMTP-32K*",
                "Qwen3.8-27B-Uncensored-HauhauCS-Aggressive-Q8_K_P.gguf",
                "Qwen3.8-27B-Uncensored-HauhauCS-Aggressive-FastMTP-32K.gguf",
            ),
            Ask(
                "*FastMTP*",
                error="FastMTP-32K.gguf is a multi-token-prediction head without its model; models by their",
            ),
        ],
    ),
    # made up after the last one, with models that have no heads: one for part of the vocabulary comes by its name alone
    Listing(
        "someone/Qwen3.8-27B-FastMTP",
        {BARE: typed("Qwen3.8-27B-{}.gguf", "Q4_K_M Q8_0"), REDUCED: ["Qwen3.8-27B-FastMTP-32K.gguf"]},
        [
            Ask(None, "Qwen3.8-27B-Q4_K_M.gguf"),
            Ask("Q8_0", "Qwen3.8-27B-Q8_0.gguf"),
            Ask("Q8_0+Qwen3.8-27B-FastMTP-32K.gguf", "Qwen3.8-27B-Q8_0.gguf", "Qwen3.8-27B-FastMTP-32K.gguf"),
        ],
    ),
    # IST-DASLab/GSQ issue 11, and scripts on GitHub that name the files: "-mtp" at the end of whole models
    Listing(
        "ISTA-DASLab/Qwen3.8-27B-GSQ-RCO-GGUF",
        {
            BARE: typed("Qwen3.8-27B-GSQ-RCO-{}.gguf", "IQ2_S IQ3_S IQ3_XXS"),
            WHOLE: typed("Qwen3.8-27B-GSQ-RCO-{}-mtp.gguf", "IQ2_S IQ2_XS IQ3_S IQ3_XXS"),
            MMPROJ: ["mmproj-Qwen3.8-27B-BF16.gguf"],
            NO_GGUF: ["tensor-allocation/Qwen3.8-27B-GSQ-RCO-IQ3_S-mtp.rco-allocation.txt"],
        },
        [
            Ask("IQ3_S", "Qwen3.8-27B-GSQ-RCO-IQ3_S-mtp.gguf"),
            Ask("Qwen3.8-27B-GSQ-RCO-IQ3_S.gguf", "Qwen3.8-27B-GSQ-RCO-IQ3_S.gguf"),
            Ask("Qwen3.8-27B-GSQ-RCO-IQ3_S-mtp.gguf", "Qwen3.8-27B-GSQ-RCO-IQ3_S-mtp.gguf"),
            Ask(None, error="there are 4 models, name one of them: Qwen3.8-27B-GSQ-RCO-IQ2_S-mtp.gguf, "),
        ],
    ),
    # the inventory above (lym00, a4lg "...-MTP-ONLY-Q4_K_M.gguf"): heads alone, which their names do not say
    Listing(
        "lym00/Qwen3.6-35B-A3B-MTP-ONLY-GGUF",
        {HEAD: ["Qwen3.6-35B-A3B-MTP-q4_0.gguf", "Qwen3.6-35B-A3B-MTP-ONLY-Q4_K_M.gguf"]},
        [
            Ask(None, error="has no GGUF model: Qwen3.6-35B-A3B-MTP-ONLY-Q4_K_M.gguf is a multi-token-prediction head"),
            Ask(
                "Q4_0", error="no GGUF model for 'Q4_0': Qwen3.6-35B-A3B-MTP-q4_0.gguf is a multi-token-prediction head"
            ),
            Ask("Qwen3.6-35B-A3B-MTP-q4_0.gguf", error="is a multi-token-prediction head without its model"),
        ],
        "qwen35moe",
    ),
    # the same inventory: a folder and two shards a type, heads inside, imatrix.gguf
    Listing(
        "AesSedai/Qwen3.6-35B-A3B-GGUF",
        {
            WHOLE: [
                path
                for kind in ("IQ3_S", "IQ4_XS", "Q4_K_M", "Q6_K")
                for path in parts(f"{kind}/Qwen3.6-35B-A3B-{kind}", 2)
            ],
            IMATRIX: ["imatrix.gguf"],
            MMPROJ: typed("mmproj-Qwen3.6-35B-A3B-{}.gguf", "BF16 F16 F32"),
        },
        [
            Ask(None, "Q4_K_M/Qwen3.6-35B-A3B-Q4_K_M-00001-of-00002.gguf"),
            Ask("IQ3_S", "IQ3_S/Qwen3.6-35B-A3B-IQ3_S-00001-of-00002.gguf"),
            Ask("Qwen3.6-35B-A3B-Q6_K-00002-of-00002.gguf", "Q6_K/Qwen3.6-35B-A3B-Q6_K-00001-of-00002.gguf"),
        ],
        "qwen35moe",
    ),
    # the same inventory: one type has a head, and its name says so
    Listing(
        "Bahushruth/Qwen3.6-35B-A3B-abliterated-v4-GGUF",
        {
            BARE: typed("Qwen3.6-35B-A3B-abliterated-v4-{}.gguf", "BF16 Q8_0 Q4_K_M IQ4_XS Q2_K"),
            WHOLE: ["Qwen3.6-35B-A3B-abliterated-v4-BF16-MTP.gguf"],
        },
        [
            Ask(None, "Qwen3.6-35B-A3B-abliterated-v4-Q4_K_M.gguf"),  # and not 71 GB in place of 21
            Ask("BF16", "Qwen3.6-35B-A3B-abliterated-v4-BF16-MTP.gguf"),
            Ask("Q2_K", "Qwen3.6-35B-A3B-abliterated-v4-Q2_K.gguf"),
            Ask("Qwen3.6-35B-A3B-abliterated-v4-BF16.gguf", "Qwen3.6-35B-A3B-abliterated-v4-BF16.gguf"),
        ],
        "qwen35moe",
    ),
    # the same inventory: types that have no names of their own
    Listing(
        "SC117/Qwen3.6-35B-A3B-uncensored-heretic-Native-MTP-Preserved-APEX-GGUF",
        {
            WHOLE: typed(
                "Qwen3.6-35B-A3B-uncensored-heretic-Native-MTP-Preserved-APEX-{}.gguf",
                "I-Quality I-Balanced I-Compact I-MINI",
            )
        },
        [
            Ask(None, error="without a quantization there are 4 models, name one of them: .*APEX-I-Balanced.gguf, "),
            Ask("I-Compact", "Qwen3.6-35B-A3B-uncensored-heretic-Native-MTP-Preserved-APEX-I-Compact.gguf"),
            Ask("*MINI*", "Qwen3.6-35B-A3B-uncensored-heretic-Native-MTP-Preserved-APEX-I-MINI.gguf"),
        ],
        "qwen35moe",
    ),
    # pages of localweights and GazTrab: the only file, with MTP, IMAT and nextn in its name
    Listing(
        "localweights/Qwen3.6-27B-MTP-IMAT-IQ4_XS-Q8nextn-GGUF",
        {WHOLE: ["Qwen3.6-27B-MTP-IMAT-IQ4_XS-Q8nextn.gguf"], NO_GGUF: ["README.md"]},
        [
            Ask(None, "Qwen3.6-27B-MTP-IMAT-IQ4_XS-Q8nextn.gguf"),
            Ask("IQ4_XS", "Qwen3.6-27B-MTP-IMAT-IQ4_XS-Q8nextn.gguf"),
            Ask("Qwen3.6-27B-MTP-IMAT-IQ4_XS-Q8nextn.gguf", "Qwen3.6-27B-MTP-IMAT-IQ4_XS-Q8nextn.gguf"),
        ],
    ),
    # froggeric's card: names that end in -mtp, an mmproj in the middle of the list
    Listing(
        "froggeric/Qwen3.6-27B-MTP-GGUF",
        {
            WHOLE: typed("Qwen3.6-27B-{}-mtp.gguf", "IQ2_M Q4_K_M Q5_K_M Q8_0"),
            MMPROJ: ["mmproj-Qwen3.6-27B-f16.gguf"],
            NO_GGUF: ["chat_template.jinja"],
        },
        [
            Ask(None, "Qwen3.6-27B-Q4_K_M-mtp.gguf"),
            Ask("Q5_K_M", "Qwen3.6-27B-Q5_K_M-mtp.gguf"),
            Ask("Qwen3.6-27B-IQ2_M-mtp.gguf", "Qwen3.6-27B-IQ2_M-mtp.gguf"),
        ],
    ),
    # unsloth's 397B-A17B: splits in folders by type (paths that projects on GitHub name), with a head in splits as
    # unslothai/unsloth PR 7411 reads them
    Listing(
        "unsloth/Qwen3.5-397B-A17B-GGUF",
        {
            BARE: [
                *parts("UD-Q4_K_XL/Qwen3.5-397B-A17B-UD-Q4_K_XL", 6),
                *parts("Q8_0/Qwen3.5-397B-A17B-Q8_0", 10),
                *parts("UD-IQ1_M/Qwen3.5-397B-A17B-UD-IQ1_M", 3),
            ],
            HEAD: [
                *parts("MTP/mtp-Qwen3.5-397B-A17B-Q8_0", 2),
                "MTP/mtp-Qwen3.5-397B-A17B-Q4_0.gguf",
            ],
            MMPROJ: ["mmproj-F16.gguf"],
        },
        [
            Ask(
                None,
                "UD-Q4_K_XL/Qwen3.5-397B-A17B-UD-Q4_K_XL-00001-of-00006.gguf",
                "MTP/mtp-Qwen3.5-397B-A17B-Q4_0.gguf",
            ),
            Ask(
                "Q8_0",
                "Q8_0/Qwen3.5-397B-A17B-Q8_0-00001-of-00010.gguf",
                "MTP/mtp-Qwen3.5-397B-A17B-Q8_0-00001-of-00002.gguf",
            ),
            Ask(
                "UD-IQ1_M+Q8_0",
                "UD-IQ1_M/Qwen3.5-397B-A17B-UD-IQ1_M-00001-of-00003.gguf",
                "MTP/mtp-Qwen3.5-397B-A17B-Q8_0-00001-of-00002.gguf",
            ),
            Ask("mtp-Qwen3.5-397B-A17B-Q8_0-00002-of-00002.gguf", error="is a multi-token-prediction head without its"),
        ],
        "qwen35moe",
    ),
    # names as a GitHub project's tests have them (mtp-SuperQwen…, .imatrix.gguf); the head is announced and absent
    Listing(
        "someone/SuperQwen3.8-27b-abliterated-GGUF",
        {
            ABSENT: typed("SuperQwen3.8-27b-abliterated-{}.gguf", "Q4_K_M Q6_K"),
            HEAD: ["mtp-SuperQwen3.8-27b-abliterated-Q4_0.gguf"],
            IMATRIX: ["SuperQwen3.8-27b-abliterated.imatrix.gguf"],
            EAGLE: ["eagle3-SuperQwen3.8-27b-Q8_0.gguf"],
            DFLASH: ["Qwen3.8-27B-DFlash2-Q4_K_M.gguf"],
            LORA: ["lora/SuperQwen3.8-27b-Q4_K_M-lora.gguf"],
        },
        [
            Ask(None, "SuperQwen3.8-27b-abliterated-Q4_K_M.gguf", "mtp-SuperQwen3.8-27b-abliterated-Q4_0.gguf"),
            Ask("Q4_K_M", "SuperQwen3.8-27b-abliterated-Q4_K_M.gguf", "mtp-SuperQwen3.8-27b-abliterated-Q4_0.gguf"),
            Ask("Q6_K", "SuperQwen3.8-27b-abliterated-Q6_K.gguf", "mtp-SuperQwen3.8-27b-abliterated-Q4_0.gguf"),
            Ask(
                "Qwen3.8-27B-DFlash2-Q4_K_M.gguf",
                error="is a drafter of another kind; models by their names: SuperQwen",
            ),
            Ask(
                "Q8_0",
                error="no GGUF model for 'Q8_0': eagle3-.* is a drafter of another kind; models by their names: ",
            ),
            Ask("SuperQwen3.8-27b-Q4_K_M-lora.gguf", error="lora/.* is an adapter; models by their names: SuperQwen"),
        ],
    ),
]
