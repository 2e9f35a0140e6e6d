"""From options to a loaded `LLM`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pymtp.cli.model_file import model_file, tell
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
from pymtp.cli.placing import OPTIONS, Placing
from pymtp.cli.screen import loading, show_warnings_of_drafts
from pymtp.context.options import check_draft_vocab
from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.load import check_prefix, load, note_of_no_head
from pymtp.options import find_files, read_keywords

# by the names that Python knows them by
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
_NAMED = re.compile(rf"\b({'|'.join(_OPTIONS)})=")


def read_drafts(drafts: str) -> int | Literal["auto"]:
    """The value of --draft-tokens. Raises InvalidRequestError for what is neither a number nor "auto"."""
    try:
        return "auto" if drafts == "auto" else int(drafts)
    except ValueError as error:
        raise InvalidRequestError(f'--draft-tokens {drafts!r} must be a whole number or "auto"') from error


def read_draft_vocab(tokens: str) -> int | Literal["auto", "all"]:
    """The value of --draft-vocab. Raises InvalidRequestError for what is neither a number, "auto" nor "all"."""
    try:
        vocabulary = tokens if tokens in ("auto", "all") else int(tokens)
    except ValueError as error:
        raise InvalidRequestError(f'--draft-vocab {tokens!r} must be a whole number, "auto" or "all"') from error
    with options_named():
        check_draft_vocab(vocabulary)
    return vocabulary  # type: ignore[return-value]


def read_layers(layers: str) -> int | Literal["auto"]:
    """The value of --gpu-layers. Raises InvalidRequestError for what is neither a number nor "auto"."""
    try:
        return "auto" if layers == "auto" else int(layers)
    except ValueError as error:
        raise InvalidRequestError(f'--gpu-layers {layers!r} must be a whole number or "auto"') from error


def read_json(variables: str) -> object:
    """The value of --chat-template-kwargs. Raises InvalidRequestError for what is no JSON."""
    try:
        return json.loads(variables)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f'--chat-template-kwargs {variables!r:.200} must be JSON such as {{"enable_thinking": false}}: {error}'
        ) from error


@contextmanager
def options_named() -> Iterator[None]:
    """An InvalidRequestError names options as the command line does."""
    try:
        yield
    except InvalidRequestError as error:
        error.args = (_NAMED.sub(lambda found: f"{_OPTIONS[found[1]]} ", str(error)),)
        raise


@dataclass(frozen=True)
class Loading(Placing):
    """What a model is loaded with."""

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
        """Those of LLM. Raises InvalidRequestError for values that no model can be loaded with."""
        keywords: dict[str, Any] = {
            "n_ctx": self.ctx,
            "n_seq_max": n_seq_max,
            "n_gpu_layers": read_layers(self.gpu_layers),
            "n_threads": self.threads,
            "all_threads": self.all_threads,
            "type_k": self.cache_type,
            "type_v": self.cache_type,
            "draft_tokens": read_drafts(self.draft_tokens),
            "draft_vocab": read_draft_vocab(self.draft_vocab),
            "tap": self.tap,
            "cache_bytes": None if self.cache is None else self.cache * 2**20,
        }
        if self.chat_template_file is not None:
            keywords["chat_template"] = self.chat_template_file
        if self.chat_template_kwargs is not None:
            keywords["chat_template_kwargs"] = read_json(self.chat_template_kwargs)
        of_model, of_rope = self.of_model(), self.of_rope()
        with options_named():
            read = read_keywords({**keywords, **of_model, **of_rope, "offload_kqv": self.kv_offload})
            find_files(read)
        return read

    def llm(self, n_seq_max: int = 1, prefix: Path | None = None) -> LLM:
        """The model with its context; without a file, the shipped model. As loading.load."""
        keywords = self.keywords(n_seq_max)
        check_prefix(prefix)  # before a model is brought
        file, keywords = model_file(self.model, keywords)
        what = file.name if file else "the shipped model"
        with options_named(), loading(what):
            llm = load(file, keywords, prefix)
        show_warnings_of_drafts()
        if note := note_of_no_head(llm, self.model, keywords):
            tell(note)
        return llm
