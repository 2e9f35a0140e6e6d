"""An LLM as a command or a server starts with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM


def load(model: Path | None, keywords: Mapping[str, Any], prefix: Path | None = None) -> LLM:
    """model, keywords: of LLM. prefix: a file to go on from.

    Raises what `LLM` and `load_prefix` raise, and InvalidRequestError for a prefix that cannot be read.
    """
    llm = LLM(model, **keywords)
    if prefix is None:
        return llm
    try:
        llm.load_prefix(prefix)
    except OSError as error:
        llm.close()
        raise InvalidRequestError(f"cannot read the prefix from {prefix}: {error}") from error
    except BaseException:
        llm.close()
        raise
    return llm
