"""Options for loading a model, and the `LLM` that is made from them."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymtp.cli.model_file import model_name, show_note, with_projector_beside
from pymtp.cli.options import AllThreads, ModelName, Tap, TemplateFile, TemplateVariables, Threads
from pymtp.cli.placing import PlacementOptions
from pymtp.cli.screen import loading_status, show_draft_warnings
from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.load import load
from pymtp.options import LLMOptions


@dataclass(frozen=True)
class InferenceOptions(PlacementOptions):
    """Options of all commands that load a model for inference, without its name."""

    tap: Tap = LLMOptions.tap
    n_threads: Threads = None
    all_threads: AllThreads = LLMOptions.all_threads
    chat_template: TemplateFile = None
    chat_template_kwargs: TemplateVariables = None

    def keywords(self) -> dict[str, Any]:
        """Return the options as keywords of LLM. Raises InvalidRequestError for values of a wrong form."""
        given = super().keywords()
        if self.chat_template_kwargs is not None:
            given["chat_template_kwargs"] = _read_json(self.chat_template_kwargs)
        return given


@dataclass(frozen=True)
class LoadOptions(InferenceOptions):
    """Options of all commands that load one model for inference."""

    model: ModelName = None

    def keywords(self) -> dict[str, Any]:
        """Return the options as keywords of LLM. Raises InvalidRequestError for values of a wrong form."""
        given = super().keywords()
        del given["model"]
        return given

    def llm(self, n_seq_max: int = 1, prefix: Path | None = None) -> LLM:
        """Load the model, or the shipped model if none is named, and the prefix file if one is given.

        Shows notes and warnings on stderr. Raises the errors of `options` and of pymtp.load.load.
        """
        options = with_projector_beside(self.options(model_name(self.model), n_seq_max=n_seq_max))
        llm = load(options, prefix, show_note, status=_loading)
        show_draft_warnings()
        return llm


def _loading(options: LLMOptions) -> AbstractContextManager[None]:
    return loading_status("the shipped model" if options.model is None else Path(str(options.model)).name)


def _read_json(variables: str) -> object:
    """Parse the value of --chat-template-kwargs. Raises InvalidRequestError if it is not JSON."""
    try:
        return json.loads(variables)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f'--chat-template-kwargs {variables!r:.200} must be JSON such as {{"enable_thinking": false}}: {error}'
        ) from error
