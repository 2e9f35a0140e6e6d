"""What names of files say: whether one is asked for, its quantization, and whether it is a model at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from pymtp.hub.files import HubModel, listed

# llama.cpp takes "mtp-" for a head; folders MTP/ are unsloth's, FastMTP HauhauCS's
_HEAD = re.compile(r"(^|/)(mtp|nextn)[-_./]|fastmtp", re.IGNORECASE)
_MAY_BE_HEAD = re.compile(r"mtp|nextn", re.IGNORECASE)
_OTHER = re.compile(r"mmproj|imatrix|(^|[^a-z0-9])((dflash|dspark|eagle)\d*|lora)([^a-z0-9]|$)", re.IGNORECASE)
_TYPE = re.compile(r"(?<![a-z0-9])(?:I?Q|TQ|BF|FP?|MXFP|NVFP)(?P<bits>\d+)(?:_[a-z0-9]+)*(?![a-z0-9_])", re.IGNORECASE)


def names_head(path: str) -> bool:
    """Tell whether a path says of its file that it is a head without its model."""
    return _HEAD.search(path) is not None


def may_name_head(path: str) -> bool:
    """Tell whether a path says that there is a head, alone or within a model."""
    return _MAY_BE_HEAD.search(path) is not None


def names_model(path: str) -> bool:
    """Tell whether a path says of its file nothing else than that it is a model."""
    return not names_head(path) and _OTHER.search(path) is None


def weight_type(path: str) -> tuple[str, int]:
    """Find the type of a file's weights in its name, and the bits of a weight: "Q4_K_M", 4. "", 0 without a type."""
    found = list(_TYPE.finditer(base(path)))
    return (found[-1][0].upper(), int(found[-1]["bits"])) if found else ("", 0)


def without_type(path: str) -> str:
    """Cut the type of weights and the folders off a path: what is left is the same for all of a model's types."""
    kind, _ = weight_type(path)
    return base(path).upper().replace(kind, "") if kind else base(path).upper()


def matching(found: Sequence[HubModel], wanted: str) -> list[HubModel]:
    """Find what is asked for by a pattern, the name of a file, or a quantization. A whole path means one file, whatever
    others have its name."""
    exact = [model for model in found if any(part.path.lower() == wanted.lower() for part in model.parts)]
    return exact or [model for model in found if _matches(model, wanted)]


def _matches(model: HubModel, wanted: str) -> bool:
    if any(sign in wanted for sign in "*?["):
        pattern = wanted.lower()
        return any(
            fnmatchcase(name, pattern) for part in model.parts for name in (part.path.lower(), base(part.path).lower())
        )
    if wanted.lower().endswith(".gguf"):
        return any(wanted.lower() in (part.path.lower(), base(part.path).lower()) for part in model.parts)
    return has_type(model, wanted)


def has_type(model: HubModel, tag: str) -> bool:
    """Tell whether a quantization stands in the name for itself: Q4_K is not in Q4_K_M, nor Q4_0 in IQ4_0."""
    return re.search(rf"(?<![a-z0-9]){re.escape(tag)}(?![a-z0-9_])", model.name, re.IGNORECASE) is not None


def base(path: str) -> str:
    """Cut the folders off a path."""
    return path.rsplit("/", 1)[-1]


def choices(found: Sequence[HubModel]) -> str:
    """List what may be asked for, for a message: models, and heads apart from them."""
    models = [model.name for model in found if names_model(model.name)]
    heads = [model.name for model in found if names_head(model.name)]
    return listed(models) + (f"; heads, to be named after a +: {listed(heads)}" if heads else "")
