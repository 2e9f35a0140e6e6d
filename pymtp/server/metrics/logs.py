"""The log on stderr, as text lines or JSON lines: one line per request, and a few others."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Literal

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

log = logging.getLogger("pymtp.server")
LOGGER_NAMES = ("pymtp", "uvicorn")


def configure(log_format: LogFormat, level: LogLevel) -> None:
    """Configure the loggers to write to stderr.

    At level info, uvicorn logs only warnings and errors, because the request log has a line for each request already.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    for name in LOGGER_NAMES:
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate = [handler], False
        logger.setLevel(level.upper())
    if level == "info":
        # At level info, llama.cpp would log many lines while it loads a model.
        logging.getLogger("pymtp.native").setLevel(logging.WARNING)
        logging.getLogger("uvicorn").setLevel(logging.WARNING)


@contextmanager
def hold_errors(logger: logging.Logger) -> Iterator[None]:
    """Hold back the errors of a logger until the context ends, and drop them if it ends with an exception."""
    held: list[logging.LogRecord] = []

    def hold(record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR:
            return True
        held.append(record)
        return False

    logger.addFilter(hold)
    try:
        yield
    finally:
        logger.removeFilter(hold)
    for record in held:
        logger.handle(record)


class TextLines(logging.Formatter):
    """The format of text lines, such as `2026-01-31T12:00:00.000Z INFO message key=value …`."""

    def format(self, record: logging.LogRecord) -> str:
        values = [f"{key}={_word(value)}" for key, value in _fields(record).items()]
        line = " ".join([_time(record), f"{record.levelname:<7}", _one_line(record.getMessage()), *values])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """The format of JSON lines: an object with time, level, message, and the fields of the record."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname.lower(), "message": record.getMessage()}
        line |= _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)  # ASCII only, because some other characters control terminals


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the fields that were passed to the logger as extra={"fields": …}."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _word(value: Any) -> str:
    """Return the text of a value: without quotes if it is one word, else with quotes."""
    if isinstance(value, float):
        return f"{value:.4g}"
    word = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if not word.isprintable():  # some of these characters control terminals, so they are escaped
        return json.dumps(word)
    return word if re.fullmatch(r'[^\s"]+', word) else json.dumps(word, ensure_ascii=False)


def _one_line(message: str) -> str:
    return message.replace("\r", "\\r").replace("\n", "\\n")
