"""Names of models on the hub: `hf:owner/name`, `hf:owner/name:Q4_K_M`, `hf:owner/name@revision:*Q4_K_M*.gguf`,
`hf:owner/name:Q4_K_M+Q8_0`."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pymtp.errors import InvalidRequestError
from pymtp.validation import HUB_PREFIX, shown

_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_PAGE = re.compile(  # of a repository, or of a file in it
    r"/(?!(?:api|blog|collections|datasets|docs|learn|models|organizations|papers|spaces|tasks)/)(?P<repo>[\w.-]+/[\w.-]+)"
    r"(:(?P<wanted>[^/]+)|/(blob|resolve|raw|tree)/(?P<revision>refs/pr/\d+|[^/]+)(/(?P<file>.+))?)?/?",
    re.ASCII,
)
_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^:\s]+))?(:(?P<wanted>\S.*))?", re.ASCII)


class HubName(NamedTuple):
    """A model on the hub.

    repo: "owner/name".
    wanted: a quantization such as "Q4_K_M", the name of a file, or a pattern such as "*Q4_K_M*.gguf"; None for what
        choose.py prefers.
    revision: a branch, a tag or a commit; None for the main branch.
    head: the same as `wanted` of a head in a file of its own; None for that which companion.py finds.
    """

    repo: str
    wanted: str | None = None
    revision: str | None = None
    head: str | None = None


def would_be(text: str) -> str:
    """What a text that is no file may have meant, for a message; "" for what is no name."""
    if text[: len(HUB_PREFIX)].lower() == HUB_PREFIX:  # "HF:"
        name = text[len(HUB_PREFIX) :]
    elif "://" in text:
        name = _of_address(text)
    elif text.lower().startswith(tuple(f"{host}/" for host in _HOSTS)):
        name = _of_address(f"https://{text}")
    else:
        name = "" if text.endswith(".gguf") else text
    return f"; a model of the hub is {HUB_PREFIX}{name}" if _NAME.fullmatch(name) and name.isprintable() else ""


def _of_address(text: str) -> str:
    """The name, without "hf:", that an address in a browser stands for; "" for one of another site."""
    try:
        address = urlsplit(text)
        known = address.hostname in (*_HOSTS, urlsplit(os.environ.get("HF_ENDPOINT", "")).hostname)
    except ValueError:  # brackets, perhaps
        return ""
    page = _PAGE.fullmatch(address.path) if known and address.hostname else None
    if page is None:
        return ""
    revision, wanted = unquote(page["revision"] or "main"), unquote(page["wanted"] or page["file"] or "")
    if ":" in revision:  # no name says that
        return ""
    return page["repo"] + (f"@{revision}" if revision != "main" else "") + (f":{wanted}" if wanted else "")


def read_name(text: str) -> HubName:
    """ "hf:owner/name@main:Q4_K_M" in its parts; the "hf:" may be left out.

    Raises InvalidRequestError for what is no such name.
    """
    found = _NAME.fullmatch(text.removeprefix(HUB_PREFIX)) if isinstance(text, str) else None
    if found is None:
        raise InvalidRequestError(
            f"{shown(text)} is no name of a model on the hub: it must be like hf:owner/name, hf:owner/name:Q4_K_M, "
            "hf:owner/name:FILE.gguf, hf:owner/name@REVISION:Q4_K_M or, with another head, hf:owner/name:Q4_K_M+Q8_0"
        )
    wanted, head = read_wanted(found["wanted"])
    return HubName(found["repo"], wanted, found["revision"], head)


def read_wanted(text: str | None) -> tuple[str | None, str | None]:
    """Read what follows the colon of a name: a model, and after the last "+" a head; None for what is not named.

    Raises InvalidRequestError where a "+" names no head.
    """
    model, plus, head = (text or "").rpartition("+")
    if plus and not head:
        raise InvalidRequestError(f"{shown(text)} names no head after its +: it must be like Q4_K_M+Q8_0")
    return (model or None, head) if plus else (head or None, None)
