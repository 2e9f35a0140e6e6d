"""Facts from the names of GGUF files: the quantization, the kind of file, and matches for a user's pattern."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from pymtp.hub.files import HubModel, join_names

# llama.cpp knows heads by "mtp-"; unsloth publishes them in folders MTP/, HauhauCS as FastMTP
_HEAD = re.compile(r"(^|/)(mtp|nextn)[-_./]|fastmtp", re.IGNORECASE)
_MENTIONS_HEAD = re.compile(r"mtp|nextn", re.IGNORECASE)
_OTHER = re.compile(r"mmproj|imatrix|(^|[^a-z0-9])((dflash|dspark|eagle)\d*|lora)([^a-z0-9]|$)", re.IGNORECASE)
_TAG = re.compile(r"(?<![a-z0-9])(?:I?Q|TQ|BF|FP?|MXFP|NVFP)(?P<bits>\d+)(?:_[a-z0-9]+)*(?![a-z0-9_])", re.IGNORECASE)


def is_head_name(path: str) -> bool:
    """Tell whether the path is that of a head without its model."""
    return _HEAD.search(path) is not None


def mentions_head(path: str) -> bool:
    """Tell whether the path mentions a head, alone or inside a model."""
    return _MENTIONS_HEAD.search(path) is not None


def is_projector_name(path: str) -> bool:
    """Tell whether the file is named like a projector of images: mmproj-….gguf."""
    return "mmproj" in base_name(path).lower()


def is_model_name(path: str) -> bool:
    """Tell whether the path can be that of a model: it names no head and no other kind of file."""
    return not is_head_name(path) and _OTHER.search(path) is None


def quantization(path: str) -> tuple[str, int]:
    """Return the quantization in a file's name, and the bits of a weight: "Q4_K_M", 4. "", 0 if there is none."""
    tags = list(_TAG.finditer(base_name(path)))
    return (tags[-1][0].upper(), int(tags[-1]["bits"])) if tags else ("", 0)


def without_quantization(path: str) -> str:
    """Remove the folders and the quantization from a path: the rest is equal for all quantizations of a model."""
    tag, _ = quantization(path)
    return base_name(path).upper().replace(tag, "") if tag else base_name(path).upper()


def matching_models(candidates: Sequence[HubModel], filename: str) -> list[HubModel]:
    """Find the models for a pattern, the name of a file, or a quantization.

    A full path matches only that file, even if other folders have a file of the same name.
    """
    exact = [model for model in candidates if any(part.path.lower() == filename.lower() for part in model.parts)]
    return exact or [model for model in candidates if _matches(model, filename)]


def _matches(model: HubModel, filename: str) -> bool:
    if any(sign in filename for sign in "*?["):
        pattern = filename.lower()
        return any(
            fnmatchcase(name, pattern)
            for part in model.parts
            for name in (part.path.lower(), base_name(part.path).lower())
        )
    if filename.lower().endswith(".gguf"):
        return any(filename.lower() in (part.path.lower(), base_name(part.path).lower()) for part in model.parts)
    return has_quantization(model, filename)


def has_quantization(model: HubModel, tag: str) -> bool:
    """Tell whether the model's name has this quantization as a word: Q4_K is not in Q4_K_M, nor Q4_0 in IQ4_0."""
    return re.search(rf"(?<![a-z0-9]){re.escape(tag)}(?![a-z0-9_])", model.name, re.IGNORECASE) is not None


def base_name(path: str) -> str:
    """Remove the folders from a path."""
    return path.rsplit("/", 1)[-1]


def describe_choices(candidates: Sequence[HubModel]) -> str:
    """List the models, and the heads after them, for a message."""
    models = [model.name for model in candidates if is_model_name(model.name)]
    heads = [model.name for model in candidates if is_head_name(model.name)]
    return join_names(models) + (f"; heads, to be named after a +: {join_names(heads)}" if heads else "")
