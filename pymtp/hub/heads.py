"""Find the separate head for a model without one, in the way of llama.cpp's -hf.

See common/download.cpp, find_best_sibling: the nearest folder, then the same type of weights, then the nearest number
of bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.filenames import is_head_name, matching_models, mentions_head, quantization, without_quantization
from pymtp.hub.files import HubModel, join_names
from pymtp.hub.gguf_contents import HEAD, GgufContents, Inspect


def find_head(candidates: Sequence[HubModel], model: HubModel, inspect: Inspect) -> HubModel | None:
    """Find the head for a model: the first one, in the order of `rank`, with the model's architecture and width.

    A head for a part of the vocabulary is only used if the user names it, as in llama.cpp. Only files whose names
    mention a head are inspected. Files that llama.cpp would not find are only inspected if they are smaller than the
    model and are not named like another quantization of the model.
    """
    named = [file for file in candidates if is_head_name(file.name)]
    possible = [
        file
        for file in candidates
        if file not in named
        and mentions_head(file.name)
        and _size(file) < _size(model)
        and without_quantization(file.name) != without_quantization(model.name)
    ]
    model_contents = inspect(model)
    for group in (named, possible):
        for head in sorted(group, key=lambda file: rank(model, file)):
            with suppress(ModelLoadError):  # a damaged head is skipped here; `head_by_name` reports it
                if head == model or _mismatch(model_contents, contents := inspect(head)):
                    continue
                if contents.has_head and not contents.reduced:
                    return head
    return None


def head_by_name(
    candidates: Sequence[HubModel], model: HubModel, filename: str, inspect: Inspect, where: str
) -> HubModel:
    """Find the head that the user names by a quantization, a file or a pattern.

    where: the repository or its cache, for messages.

    Raises ModelLoadError if there is no such head, or if it is a head of another model; InvalidRequestError for several
    heads.
    """
    matches = [file for file in matching_models(candidates, filename) if file != model]
    heads = [file for file in matches if is_head_name(file.name) and inspect(file).kind == HEAD]
    heads = heads or [file for file in matches if inspect(file).kind == HEAD]
    if not heads:
        kind = f"; {matches[0].name} is {inspect(matches[0]).kind}" if len(matches) == 1 else ""
        named = [file.name for file in candidates if is_head_name(file.name)]
        raise ModelLoadError(f"{where} has no head for {filename!r}{kind}; heads by their names: {join_names(named)}")
    if len(heads) > 1:
        names = join_names([head.name for head in heads])
        raise InvalidRequestError(f"for {filename!r} there are {len(heads)} heads, name one of them: {names}")
    if mismatch := _mismatch(inspect(model), inspect(heads[0])):
        raise ModelLoadError(f"the head {heads[0].name} of {where} does not fit {model.name}: {mismatch}")
    return heads[0]


def _mismatch(model: GgufContents, head: GgufContents) -> str:
    """Say why a file cannot be the head of a model; "" if it can."""
    if head.kind != HEAD:
        return f"it is {head.kind}"
    if head.architecture != model.architecture:
        return f"its architecture is {head.architecture!r}, the model's {model.architecture!r}"
    if head.width and model.width and head.width != model.width:
        return f"its rows have {head.width} values, the model's {model.width}"
    return ""


def rank(model: HubModel, head: HubModel) -> tuple[bool, int, bool, int, str]:
    """Return a key that sorts heads, the best first.

    llama.cpp searches the model's folder and its parents. Heads in other folders, such as unsloth's MTP/, come last.
    """
    model_folders, head_folders = (path.split("/")[:-1] for path in (model.name, head.name))
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(model_folders, head_folders, strict=False)))
    (tag, bits), (head_tag, head_bits) = quantization(model.name), quantization(head.name)
    return shared < len(head_folders), -shared, head_tag != tag, abs(head_bits - bits), head.name


def _size(model: HubModel) -> int:
    return sum(part.size for part in model.parts)
