"""The parts of an LLM that requests are made and answered with: an LLM uses this package, which knows no LLM."""

from __future__ import annotations

from typing import Any, Protocol

from pymtp.chat.prompt import ChatPrompts
from pymtp.context.context import Context
from pymtp.engine.prepare import Prompt
from pymtp.engine.request import Completion
from pymtp.engine.stream import Stream
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams


class LoadedModel(Protocol):
    """The parts of an LLM that a request is prepared with."""

    model: Model
    sampling_defaults: dict[str, Any]

    @property
    def context(self) -> Context: ...
    @property
    def template_source(self) -> str | None: ...
    @property
    def chat_prompts(self) -> ChatPrompts: ...


class Generator(LoadedModel, Protocol):
    """The parts of an LLM that a request is answered with."""

    def generate(self, prompts: Prompt, params: SamplingParams) -> Completion: ...
    def stream(self, prompt: Prompt, params: SamplingParams) -> Stream: ...
