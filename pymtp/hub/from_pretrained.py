"""The method `from_pretrained` of LLM and AsyncLLM, which loads a model of the Hugging Face hub."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

from pymtp.errors import InvalidRequestError
from pymtp.hub.model_download import LocalFiles, download_headers, download_model, warn
from pymtp.hub.names import HubName, read_name, split_filename
from pymtp.hub.snapshot import Notify
from pymtp.model.options import MODEL_OPTION_NAMES
from pymtp.model.rope import ROPE_OPTION_NAMES
from pymtp.options import check_files, read_keywords
from pymtp.validation import shown

T = TypeVar("T", bound="HubMixin")


def fetch_model(
    name: HubName,
    keywords: Mapping[str, Any],
    *,
    with_head: bool = True,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    notify: Notify = warn,
) -> tuple[Path, dict[str, Any]]:
    """Download a model with its head: return the model's path, and the keywords with the head's path.

    No head is downloaded if the keywords name one or ask for no drafts.

    keywords: some or all keywords of LLM. with_head: False if no drafts are made.

    Raises InvalidRequestError if two heads are given, and the errors of `download_model`.
    """
    with_head = _needs_head(name, keywords) and with_head
    files = download_model(name, with_head=with_head, token=token, cache_dir=cache_dir, notify=notify)
    return _add_head(keywords, files)


@contextmanager
def fetch_headers(
    name: HubName, keywords: Mapping[str, Any], *, notify: Notify = warn
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Do the same as `fetch_model`, but download only headers: see `download_headers`."""
    with download_headers(name, with_head=_needs_head(name, keywords), notify=notify) as files:
        yield _add_head(keywords, files)


def _needs_head(name: HubName, keywords: Mapping[str, Any]) -> bool:
    """Tell whether a separate head of the repository would be used.

    Raises InvalidRequestError if both the keywords and the name give a head.
    """
    head = keywords.get("head")
    if head is not None and name.head_filename is not None:
        raise InvalidRequestError(
            f"two heads are given, head={shown(head)} and {name.head_filename} of {name.repo}: give one", "head"
        )
    return head is None and _loads_head(keywords)


def _add_head(keywords: Mapping[str, Any], files: LocalFiles) -> tuple[Path, dict[str, Any]]:
    return files.model, {**keywords, **({} if files.head is None else {"head": str(files.head)})}


def _loads_head(keywords: Mapping[str, Any]) -> bool:
    """Tell whether an LLM loads a head: to draft, or because adapters change it. See `fitting_model`."""
    return keywords.get("draft_tokens", "auto") != 0 or bool(keywords.get("lora"))


class HubMixin:
    """The class method `from_pretrained`, for a class whose constructor takes a model's path first."""

    @classmethod
    def _parameters(cls) -> Collection[str]:
        """Return the names of the constructor's keywords."""
        parameters = inspect.signature(cls).parameters.values()
        return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]

    @classmethod
    def _read(cls, keywords: Mapping[str, Any], *, here: bool = True) -> dict[str, Any]:
        """Check keywords before a download: see `read_keywords`.

        Raises TypeError for keywords that the constructor does not take.
        """
        if unknown := set(keywords) - {*cls._parameters(), *MODEL_OPTION_NAMES, *ROPE_OPTION_NAMES}:
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
        """Load a model of the Hugging Face hub, and download it first if it is not in the hub's cache.

        Shows a progress bar on stderr, and resumes a download that was interrupted. Needs the package huggingface-hub.

        repo_id: "owner/name".
        filename: a pattern such as "*Q4_K_M*.gguf", a quantization such as "Q4_K_M", or a file. None for Q4_K_M, or
            the nearest one to it, in the order of `hub.selection.PREFERRED`. Of several matching files, those with a
            multi-token-prediction head are preferred; a model without a head causes a warning. All parts of a split
            file are downloaded.
        head_filename: the same for a separate head. None for the model's own head, or, if it has none, the head that
            llama.cpp would find in the repository. No head is downloaded with draft_tokens=0 or head=….
        revision: a branch, a tag or a commit. None for the main branch.
        token: for private and gated repositories. None for HF_TOKEN or the token of `hf auth login`, False for no
            token.
        cache_dir: the folder of the cache; None for the cache of huggingface_hub, HF_HUB_CACHE. Only cached files are
            used with HF_HUB_OFFLINE=1, and, with a warning, if the hub cannot be reached.
        keywords: further arguments of the constructor.

        Raises InvalidRequestError if the package is missing or cannot read its environment variables, for an invalid
        name or token, for two different values of one argument, and if several models match;
        ModelLoadError for a repository, revision or file that does not exist or is not accessible, and for a failed
        download; a message about a missing file lists the files of the repository. Also the errors of the constructor.
        """
        make: Any = cls
        keywords = cls._read(keywords)
        check_files(keywords)
        name = read_name(repo_id)
        for argument, value in (("filename", filename), ("head_filename", head_filename), ("revision", revision)):
            if value is not None and not isinstance(value, str):
                raise InvalidRequestError(f"{argument}={shown(value)} must be a string or None", argument)
        filename, head = split_filename(filename)
        for argument, in_name, value in (
            ("filename", name.filename, filename),
            ("filename", name.head_filename, head),
            ("head_filename", name.head_filename or head, head_filename),
            ("revision", name.revision, revision),
        ):
            if value and in_name and value != in_name:
                raise InvalidRequestError(
                    f"{argument}={shown(value)}, but {repo_id} asks for {in_name}: give one of them", argument
                )
        if not isinstance(token, (str, bool, NoneType)):
            # the message does not show the value, which may be a secret
            raise InvalidRequestError("token must be a string, True, False or None", "token")
        if not isinstance(cache_dir, (str, os.PathLike, NoneType)):
            raise InvalidRequestError(f"cache_dir={shown(cache_dir)} must be a path or None", "cache_dir")
        name = HubName(
            name.repo,
            filename or name.filename,
            revision or name.revision,
            head_filename or head or name.head_filename,
        )
        model, keywords = fetch_model(name, keywords, token=token, cache_dir=cache_dir)
        return make(model, **keywords)  # type: ignore[no-any-return]
