"""The method `from_pretrained` of LLM and AsyncLLM, which loads a model of the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from types import NoneType
from typing import Any, TypeVar

from pymtp.errors import InvalidRequestError
from pymtp.hub.model_download import LocalFiles, download_headers, download_model, warn
from pymtp.hub.names import HubName, read_name, split_filename
from pymtp.hub.snapshot import Notify
from pymtp.options import OPTION_NAMES, LLMOptions, read_options
from pymtp.validation import shown

T = TypeVar("T", bound="HubMixin")


def fetch_model(
    name: HubName,
    options: LLMOptions,
    *,
    with_head: bool = True,
    with_projector: bool = True,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    notify: Notify = warn,
) -> LLMOptions:
    """Download a model with its head and its projector, and return the options with their paths.

    No head is downloaded if the options name one or ask for no drafts; no projector if the options say which one, or
    that there is none.

    with_head: False if no drafts are made.
    with_projector: False if chats have no images.

    Raises InvalidRequestError if two heads are given, and the errors of `download_model`.
    """
    with_head = _needs_head(name, options) and with_head
    files = download_model(
        name,
        with_head=with_head,
        with_projector=with_projector and options.mmproj is None,
        token=token,
        cache_dir=cache_dir,
        notify=notify,
    )
    return _with_files(options, files)


@contextmanager
def fetch_headers(name: HubName, options: LLMOptions, *, notify: Notify = warn) -> Iterator[LLMOptions]:
    """Do the same as `fetch_model`, but download only headers: see `download_headers`."""
    with_head, with_projector = _needs_head(name, options), options.mmproj is None
    with download_headers(name, with_head=with_head, with_projector=with_projector, notify=notify) as files:
        yield _with_files(options, files)


def _needs_head(name: HubName, options: LLMOptions) -> bool:
    """Tell whether a separate head of the repository would be used.

    Raises InvalidRequestError if both the options and the name give a head.
    """
    if options.head is not None and name.head_filename is not None:
        raise InvalidRequestError(
            f"two heads are given, head={shown(options.head)} and {name.head_filename} of {name.repo}: give one", "head"
        )
    return options.head is None and options.takes_head


def _with_files(options: LLMOptions, files: LocalFiles) -> LLMOptions:
    mmproj = options.mmproj if files.projector is None else files.projector
    return replace(options, model=files.model, head=files.head or options.head, mmproj=mmproj)


class HubMixin:
    """The class method `from_pretrained`, for a class whose constructor takes a model's path, options as keywords."""

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
            The projector that llama.cpp would find is downloaded too, unless mmproj=… names another one, or
            mmproj=False says that there are no images.
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
        made: Any = cls
        # the constructor of a subclass may have further keywords
        parameters = signature(cls).parameters.values()
        further = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY} - OPTION_NAMES
        own = {name: keywords.pop(name) for name in further & keywords.keys()}
        options = read_options(f"{cls.__name__}.from_pretrained()", None, keywords)
        options.check_machine()  # a download may take hours
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
        options = fetch_model(name, options, token=token, cache_dir=cache_dir)
        keywords |= {name: file for name in ("head", "mmproj") if (file := getattr(options, name)) is not None}
        read = {name: getattr(options, name) for name in keywords}  # an iterator among the keywords is exhausted
        return made(options.model, **read, **own)  # type: ignore[no-any-return]
