"""Models of the Hugging Face hub: the part of LLM and AsyncLLM that is made from a name there."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

from pymtp.errors import InvalidRequestError
from pymtp.hub.names import HubName, read_name, read_wanted
from pymtp.hub.pull import Pulled, pull, warn
from pymtp.hub.source import Say
from pymtp.hub.stand_in import headers
from pymtp.model.options import NAMES as MODEL_OPTIONS
from pymtp.model.rope import NAMES as ROPE_OPTIONS
from pymtp.options import find_files, read_keywords
from pymtp.validation import shown

T = TypeVar("T", bound="FromHub")


def bring(
    name: HubName,
    keywords: Mapping[str, Any],
    *,
    with_head: bool = True,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    say: Say = warn,
) -> tuple[Path, dict[str, Any]]:
    """Bring a model, and the head that goes with it unless keywords name another or want no drafts. Return the model's
    path, and the keywords with the head's.

    keywords: of LLM, or some of them. with_head: False where nothing drafts.

    Raises InvalidRequestError where two heads are asked for, else as `pull`.
    """
    with_head = _comes(name, keywords) and with_head
    return _with(keywords, pull(name, with_head=with_head, token=token, cache_dir=cache_dir, say=say))


@contextmanager
def bring_headers(
    name: HubName, keywords: Mapping[str, Any], *, say: Say = warn
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """As `bring`, but of what is not in the cache only headers come, see `hub.stand_in.headers`."""
    with headers(name, with_head=_comes(name, keywords), say=say) as found:
        yield _with(keywords, found)


def _comes(name: HubName, keywords: Mapping[str, Any]) -> bool:
    """Tell whether a head of the repository is of use."""
    head = keywords.get("head")
    if head is not None and name.head is not None:
        raise InvalidRequestError(
            f"two heads are asked for, head={shown(head)} and {name.head} of {name.repo}: name one", "head"
        )
    return head is None and _takes_head(keywords)


def _with(keywords: Mapping[str, Any], found: Pulled) -> tuple[Path, dict[str, Any]]:
    return found.model, {**keywords, **({} if found.head is None else {"head": str(found.head)})}


def _takes_head(keywords: Mapping[str, Any]) -> bool:
    """Tell whether an LLM loads a head, as fit.fitting_model: for drafts, and for what adapters change in it."""
    return keywords.get("draft_tokens", "auto") != 0 or bool(keywords.get("lora"))


class FromHub:
    """What the method needs is a constructor that takes a model's path first."""

    @classmethod
    def _parameters(cls) -> Collection[str]:
        """Keywords of the constructor."""
        found = inspect.signature(cls).parameters.values()
        return [each.name for each in found if each.kind is each.KEYWORD_ONLY]

    @classmethod
    def _read(cls, keywords: Mapping[str, Any], *, here: bool = True) -> dict[str, Any]:
        """As `read_keywords`: told before a download, not after it. Raises TypeError for keywords that the constructor
        does not take."""
        if unknown := set(keywords) - {*cls._parameters(), *MODEL_OPTIONS, *ROPE_OPTIONS}:
            raise TypeError(f"{cls.__name__} got unexpected keywords: {', '.join(sorted(unknown))}")
        return read_keywords(keywords, here=here)

    @classmethod
    def from_pretrained(
        cls: type[T],
        repo_id: str,
        filename: str | None = None,
        *,
        head_filename: str | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        **keywords: Any,
    ) -> T:
        """Loads a model of the Hugging Face hub. Downloads it first where it is not in the hub's cache, with a bar on
        stderr; goes on with a download that was interrupted. Needs the package huggingface-hub.

        repo_id: "owner/name".
        filename: a pattern such as "*Q4_K_M*.gguf", a quantization such as "Q4_K_M", or a file. None for Q4_K_M, or
            what is nearest to it: hub/choose.py has the order. Of several that match, those with a
            multi-token-prediction head come first; a warning says where there is none. All parts of a split file come.
        head_filename: the same for a head in a file of its own. None for the model's own head, or, where it has none,
            the nearest of the repository, as llama.cpp finds it. No head comes with draft_tokens=0 or head=….
        revision: a branch, a tag or a commit. None for the main branch.
        token: for private and gated repositories. None for HF_TOKEN or the one of `hf auth login`, False for none.
        cache_dir: None for huggingface_hub's: HF_HUB_CACHE. With HF_HUB_OFFLINE=1 only what is there is taken; also
            where the hub cannot be reached, with a warning.
        keywords: of the constructor.

        Raises InvalidRequestError where the package is missing or cannot read its variables, for what is no name or no
        token, for two names of one thing, and where several models match;
        ModelLoadError for a repository, revision or file that is not there or may not be read, and where it cannot be
        downloaded: the message lists the files that there are. Else what the constructor raises.
        """
        make: Any = cls
        keywords = cls._read(keywords)
        find_files(keywords)
        name = read_name(repo_id)
        for what, given in (("filename", filename), ("head_filename", head_filename), ("revision", revision)):
            if given is not None and not isinstance(given, str):
                raise InvalidRequestError(f"{what}={shown(given)} must be a text or None", what)
        wanted, head = read_wanted(filename)
        for what, own, asked in (
            ("filename", name.wanted, wanted),
            ("filename", name.head, head),
            ("head_filename", name.head or head, head_filename),
            ("revision", name.revision, revision),
        ):
            if asked and own and asked != own:
                raise InvalidRequestError(f"{what}={shown(asked)}, but {repo_id} asks for {own}: ask once", what)
        if not isinstance(token, (str, bool, NoneType)):
            raise InvalidRequestError("token must be a text, True, False or None", "token")  # it is not shown
        if not isinstance(cache_dir, (str, os.PathLike, NoneType)):
            raise InvalidRequestError(f"cache_dir={shown(cache_dir)} must be a path or None", "cache_dir")
        name = HubName(name.repo, wanted or name.wanted, revision or name.revision, head_filename or head or name.head)
        model, keywords = bring(name, keywords, token=token, cache_dir=cache_dir)
        return make(model, **keywords)  # type: ignore[no-any-return]
