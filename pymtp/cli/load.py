"""Options for loading a model, and the `LLM` that is made from them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pymtp.cli.model_file import model_file, show_note
from pymtp.cli.options import (
    AllThreads,
    Cache,
    CacheType,
    Ctx,
    Drafts,
    DraftVocab,
    LayersOrAuto,
    ModelName,
    Tap,
    TemplateFile,
    TemplateVariables,
    Threads,
)
from pymtp.cli.placing import OPTIONS, PlacementOptions
from pymtp.cli.screen import loading_status, show_draft_warnings
from pymtp.context.options import check_draft_vocab
from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.load import check_prefix, load, missing_head_note
from pymtp.options import check_files, read_keywords

# option of the command line, by the name of the same option in Python
_OPTIONS = {
    **OPTIONS,
    "n_ctx": "--ctx",
    "n_seq_max": "--n-seq-max",
    "n_gpu_layers": "--gpu-layers",
    "n_threads": "--threads",
    "all_threads": "--all-threads",
    "type_k": "--cache-type",
    "type_v": "--cache-type",
    "draft_tokens": "--draft-tokens",
    "draft_vocab": "--draft-vocab",
    "tap": "--tap",
    "cache_bytes": "--cache",
    "temperature": "--temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
    "seed": "--seed",
    "presence_penalty": "--presence-penalty",
    "frequency_penalty": "--frequency-penalty",
    "repetition_penalty": "--repeat-penalty",
    "penalty_last_n": "--repeat-last-n",
    "max_tokens": "--max-tokens",
    "chat_template": "--chat-template-file",
    "chat_template_kwargs": "--chat-template-kwargs",
}
_KEYWORD = re.compile(rf"\b({'|'.join(_OPTIONS)})=")


def read_draft_tokens(drafts: str) -> int | Literal["auto"]:
    """Parse the value of --draft-tokens: a number or "auto". Raises InvalidRequestError for any other."""
    try:
        return "auto" if drafts == "auto" else int(drafts)
    except ValueError as error:
        raise InvalidRequestError(f'--draft-tokens {drafts!r} must be a whole number or "auto"') from error


def read_draft_vocab(tokens: str) -> int | Literal["auto", "all"]:
    """Parse the value of --draft-vocab: a number, "auto" or "all". Raises InvalidRequestError for any other."""
    try:
        vocabulary = tokens if tokens in ("auto", "all") else int(tokens)
    except ValueError as error:
        raise InvalidRequestError(f'--draft-vocab {tokens!r} must be a whole number, "auto" or "all"') from error
    with option_names():
        check_draft_vocab(vocabulary)
    return vocabulary  # type: ignore[return-value]


def read_gpu_layers(layers: str) -> int | Literal["auto"]:
    """Parse the value of --gpu-layers: a number or "auto". Raises InvalidRequestError for any other."""
    try:
        return "auto" if layers == "auto" else int(layers)
    except ValueError as error:
        raise InvalidRequestError(f'--gpu-layers {layers!r} must be a whole number or "auto"') from error


def read_json(variables: str) -> object:
    """Parse the value of --chat-template-kwargs. Raises InvalidRequestError if it is not JSON."""
    try:
        return json.loads(variables)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f'--chat-template-kwargs {variables!r:.200} must be JSON such as {{"enable_thinking": false}}: {error}'
        ) from error


@contextmanager
def option_names() -> Iterator[None]:
    """Replace Python's names of options in an InvalidRequestError that the block raises: "n_ctx=1" → "--ctx 1"."""
    try:
        yield
    except InvalidRequestError as error:
        error.args = (_KEYWORD.sub(lambda match: f"{_OPTIONS[match[1]]} ", str(error)),)
        raise


@dataclass(frozen=True)
class LoadOptions(PlacementOptions):
    """Options of all commands that load a model for inference."""

    model: ModelName = None
    draft_tokens: Drafts = "auto"
    draft_vocab: DraftVocab = "auto"
    tap: Tap = "auto"
    ctx: Ctx = 8192
    gpu_layers: LayersOrAuto = "-1"
    threads: Threads = None
    all_threads: AllThreads = False
    cache_type: CacheType = "f16"
    cache: Cache = None
    chat_template_file: TemplateFile = None
    chat_template_kwargs: TemplateVariables = None

    def keywords(self, n_seq_max: int = 1) -> dict[str, Any]:
        """Return the options as keywords of LLM. Raises InvalidRequestError for values that are invalid for any model.

        Raises ModelLoadError for a head or adapters that do not exist.
        """
        keywords: dict[str, Any] = {
            "n_ctx": self.ctx,
            "n_seq_max": n_seq_max,
            "n_gpu_layers": read_gpu_layers(self.gpu_layers),
            "n_threads": self.threads,
            "all_threads": self.all_threads,
            "type_k": self.cache_type,
            "type_v": self.cache_type,
            "draft_tokens": read_draft_tokens(self.draft_tokens),
            "draft_vocab": read_draft_vocab(self.draft_vocab),
            "tap": self.tap,
            "cache_bytes": None if self.cache is None else self.cache * 2**20,
        }
        if self.chat_template_file is not None:
            keywords["chat_template"] = self.chat_template_file
        if self.chat_template_kwargs is not None:
            keywords["chat_template_kwargs"] = read_json(self.chat_template_kwargs)
        with option_names():
            checked = read_keywords(
                {**keywords, **self.model_options(), **self.rope_options(), "offload_kqv": self.kv_offload}
            )
            check_files(checked)
        return checked

    def llm(self, n_seq_max: int = 1, prefix: Path | None = None) -> LLM:
        """Load the model, or the shipped model if none is named, and the prefix file if one is given.

        Shows notes and warnings on stderr. Raises the errors of pymtp.load.load.
        """
        keywords = self.keywords(n_seq_max)
        check_prefix(prefix)  # already here, so that an invalid prefix file is found before a download
        file, keywords = model_file(self.model, keywords)
        name = file.name if file else "the shipped model"
        with option_names(), loading_status(name):
            llm = load(file, keywords, prefix)
        show_draft_warnings()
        if note := missing_head_note(llm, self.model, keywords):
            show_note(note)
        return llm
