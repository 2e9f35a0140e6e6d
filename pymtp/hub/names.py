"""Parse names of models on the hub.

Examples: `hf:owner/name`, `hf:owner/name:Q4_K_M`, `hf:owner/name@revision:*Q4_K_M*.gguf`, `hf:owner/name:Q4_K_M+Q8_0`.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pymtp.errors import InvalidRequestError
from pymtp.validation import HUB_PREFIX, shown

_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_PAGE = re.compile(  # the page of a repository, or of a file in it
    r"/(?!(?:api|blog|collections|datasets|docs|learn|models|organizations|papers|spaces|tasks)/)(?P<repo>[\w.-]+/[\w.-]+)"
    r"(:(?P<filename>[^/]+)|/(blob|resolve|raw|tree)/(?P<revision>refs/pr/\d+|[^/]+)(/(?P<file>.+))?)?/?",
    re.ASCII,
)
_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^:\s]+))?(:(?P<filename>\S.*))?", re.ASCII)


class HubName(NamedTuple):
    """A model on the hub.

    repo: "owner/name".
    filename: a quantization such as "Q4_K_M", the name of a file, or a pattern such as "*Q4_K_M*.gguf"; None for
        the one that `selection.choose_model` chooses.
    revision: a branch, a tag or a commit; None for the main branch.
    head_filename: the same as `filename` for a separate head; None for the one that `heads.find_head` finds.
    """

    repo: str
    filename: str | None = None
    revision: str | None = None
    head_filename: str | None = None


def hub_name_hint(text: str) -> str:
    """Suggest a name on the hub, for a message about a file that does not exist; "" if `text` is not like a name."""
    if text[: len(HUB_PREFIX)].lower() == HUB_PREFIX:  # "HF:"
        name = text[len(HUB_PREFIX) :]
    elif "://" in text:
        name = _name_of_url(text)
    elif text.lower().startswith(tuple(f"{host}/" for host in _HOSTS)):
        name = _name_of_url(f"https://{text}")
    else:
        name = "" if text.endswith(".gguf") else text
    return f"; a model of the hub is {HUB_PREFIX}{name}" if _NAME.fullmatch(name) and name.isprintable() else ""


def _name_of_url(text: str) -> str:
    """Convert the URL of a page of the hub to a name without "hf:"; "" for a URL of another site."""
    try:
        url = urlsplit(text)
        known = url.hostname in (*_HOSTS, urlsplit(os.environ.get("HF_ENDPOINT", "")).hostname)
    except ValueError:  # wrong brackets, for example
        return ""
    page = _PAGE.fullmatch(url.path) if known and url.hostname else None
    if page is None:
        return ""
    revision, filename = unquote(page["revision"] or "main"), unquote(page["filename"] or page["file"] or "")
    if ":" in revision:  # a name cannot hold such a revision
        return ""
    return page["repo"] + (f"@{revision}" if revision != "main" else "") + (f":{filename}" if filename else "")


def read_name(text: str) -> HubName:
    """Parse a name such as "hf:owner/name@main:Q4_K_M"; the "hf:" is optional.

    Raises InvalidRequestError for any other string.
    """
    parts = _NAME.fullmatch(text.removeprefix(HUB_PREFIX)) if isinstance(text, str) else None
    if parts is None:
        raise InvalidRequestError(
            f"{shown(text)} is not the name of a model on the hub: it must be like hf:owner/name, "
            "hf:owner/name:Q4_K_M, hf:owner/name:FILE.gguf, hf:owner/name@REVISION:Q4_K_M or, with another head, "
            "hf:owner/name:Q4_K_M+Q8_0"
        )
    filename, head_filename = split_filename(parts["filename"])
    return HubName(parts["repo"], filename, parts["revision"], head_filename)


def split_filename(text: str | None) -> tuple[str | None, str | None]:
    """Split MODEL+HEAD, the part of a name after the colon, at the last "+"; None for a missing part.

    Raises InvalidRequestError for a "+" without a head.
    """
    model, plus, head = (text or "").rpartition("+")
    if plus and not head:
        raise InvalidRequestError(f"{shown(text)} names no head after its +: it must be like Q4_K_M+Q8_0")
    return (model or None, head) if plus else (head or None, None)
