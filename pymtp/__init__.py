"""Multi-token-prediction speculative decoding for Qwen3-Next, Qwen3.5, 3.6 and 3.8 GGUF models."""

import logging
from typing import TYPE_CHECKING

from pymtp.native.build_info import build_info  # isort: skip  # imported first: it reports a broken build

from pymtp.engine.request import Completion, Piece
from pymtp.engine.stream import Stream
from pymtp.errors import (
    CancelledError,
    ClosedError,
    ContextFullError,
    InvalidRequestError,
    ModelLoadError,
    NativeError,
    PymtpError,
)
from pymtp.generate import generate
from pymtp.llm import LLM
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams, TokenLogprobs
from pymtp.stats import Figures, Stats

if TYPE_CHECKING:
    from pymtp.async_llm import AsyncLLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "CancelledError",
    "ClosedError",
    "Completion",
    "ContextFullError",
    "Figures",
    "InvalidRequestError",
    "Model",
    "ModelLoadError",
    "NativeError",
    "Piece",
    "PymtpError",
    "SamplingParams",
    "Stats",
    "Stream",
    "TokenLogprobs",
    "build_info",
    "generate",
]

# The package logs nothing unless the program configures logging.
logging.getLogger("pymtp").addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    """Import AsyncLLM at its first use: asyncio takes a tenth of the import time of pymtp."""
    if name == "AsyncLLM":
        from pymtp.async_llm import AsyncLLM

        return AsyncLLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
