"""Models of the Hugging Face hub: the part of LLM and AsyncLLM that is made from a name there."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping
from types import NoneType
from typing import Any, TypeVar

from pymtp.errors import InvalidRequestError
from pymtp.hub.names import read_name
from pymtp.hub.pull import pull
from pymtp.llm_options import find_adapters, read_keywords
from pymtp.model_options import NAMES as MODEL_OPTIONS
from pymtp.rope_options import NAMES as ROPE_OPTIONS
from pymtp.values import shown

T = TypeVar("T", bound="FromHub")


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
        find_adapters(keywords)
        name = read_name(repo_id)
        for what, own, asked in (("filename", name.wanted, filename), ("revision", name.revision, revision)):
            if asked is not None and not isinstance(asked, str):
                raise InvalidRequestError(f"{what}={shown(asked)} must be a text or None", what)
            if asked and own and asked != own:
                raise InvalidRequestError(f"{what}={shown(asked)}, but {repo_id} asks for {own}: ask once", what)
        if not isinstance(token, (str, bool, NoneType)):
            raise InvalidRequestError("token must be a text, True, False or None", "token")  # it is not shown
        if not isinstance(cache_dir, (str, os.PathLike, NoneType)):
            raise InvalidRequestError(f"cache_dir={shown(cache_dir)} must be a path or None", "cache_dir")
        name = name._replace(wanted=filename or name.wanted, revision=revision or name.revision)
        return make(pull(name, token=token, cache_dir=cache_dir), **keywords)  # type: ignore[no-any-return]
