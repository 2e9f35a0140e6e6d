"""Files of requests, in OpenAI's batch format: a line for each request, a line for each answer, in the same order."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

from pymtp.async_llm import AsyncLLM
from pymtp.errors import ClosedError, InvalidRequestError, PymtpError
from pymtp.openai.generate_request import Ask, prepared, read
from pymtp.openai.requests import CHAT, TEXT, read_ask, unknown_fields
from pymtp.openai.responses import answer

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

AHEAD = 4  # requests for each sequence of the context that are looked at and wait
BEGIN = b'{"id": "batch_req_'  # of the line of an answer


@dataclass(frozen=True)
class Progress:
    """done: answers in the file, those of an earlier run among them. failed: those that are errors. tokens: written in
    this run."""

    done: int
    failed: int
    tokens: int


class BatchFiles:
    """The two files of a batch. Answers are written whole and in order, so that a run goes on where an earlier one was
    ended."""

    def __init__(self, requests: Path, answers: Path) -> None:
        """Raises InvalidRequestError where the answers are not those of the first requests, and for what is no file of
        its own, OSError for files that cannot be read, or written."""
        for path in (requests, answers):
            if str(path) == "-":
                raise InvalidRequestError("- is no file here: a run that goes on reads both files once more")
            if path.exists() and not path.is_file():  # a pipe, perhaps
                raise InvalidRequestError(f"{path} is no regular file: a run that goes on reads it once more")
        if answers.exists() and answers.samefile(requests):
            raise InvalidRequestError(f"requests and answers must be two files, not {answers} for both")
        self._requests, self._answers = requests, answers
        self.total = sum(1 for _ in self.lines())
        self.done = self.failed = 0
        self.append().close()  # fails now where it would after a model was loaded
        self._resume()

    def lines(self) -> Iterator[str]:
        """The requests, blank lines left out."""
        try:
            with self._requests.open(encoding="utf-8-sig") as file:
                for line in file:
                    if line.strip():
                        yield line
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"{self._requests} is not UTF-8: {error}") from error

    def _resume(self) -> None:
        """Counts the answers that are there. A line that was cut off in the middle goes."""
        whole = 0
        asked = self.lines()
        with self._answers.open("rb") as file:
            for line in file:
                if line.startswith(BEGIN[: len(line)]) and not line.endswith(b"\n"):
                    break
                number = self.done + 1
                try:
                    custom_id, failed = _read_answer(line)
                except (ValueError, LookupError, TypeError, RecursionError) as error:
                    raise InvalidRequestError(
                        f"line {number} of {self._answers} is no answer: name another file for the answers"
                    ) from error
                request = next(asked, None)
                if request is None or custom_id != _custom_id(request):
                    raise InvalidRequestError(
                        f"line {number} of {self._answers} answers another request than line {number} of "
                        f"{self._requests}: name another file for the answers"
                    )
                self.done += 1
                self.failed += failed
                whole += len(line)
        os.truncate(self._answers, whole)

    def append(self) -> BinaryIO:
        """The answers, to go on after the last. Raises InvalidRequestError while another run has them open, where the
        system has locks."""
        file = self._answers.open("ab")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise InvalidRequestError(f"{self._answers} is being written by another run") from error
        except OSError:
            pass  # some file systems have no locks
        return file


def _failed(answer: Mapping[str, Any]) -> bool:
    return bool(answer["response"]["status_code"] != 200)


def _read_answer(line: bytes) -> tuple[object, bool]:
    """The custom_id of a line that this package wrote, and whether it is an error. Raises for any other line."""
    if not line.startswith(BEGIN):
        raise ValueError("no answer")
    answer = json.loads(line)
    return answer["custom_id"], _failed(answer)


def _custom_id(line: str) -> object:
    """None for what is no request, or has none."""
    try:
        found = _parsed(line)
    except InvalidRequestError:
        return None
    return found.get("custom_id") if isinstance(found, dict) else None


def _finite(number: str) -> float:
    """Not of JSON are NaN and Infinity, and 1e999, which Python reads as that."""
    value = float(number)
    if not isfinite(value):
        raise ValueError(f"{number} is no number")
    return value


def _parsed(line: str) -> object:
    try:
        return json.loads(line, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the line is no JSON: {error}") from error


async def run_batch(llm: AsyncLLM, files: BatchFiles, on_done: Callable[[Progress], object]) -> Progress:
    """Answers all requests that have no answer yet, many at once. A line that is no good has its error as its answer.
    on_done: called after each answer. Raises ClosedError, and OSError for a file that cannot be written."""
    progress = Progress(files.done, files.failed, 0)
    tasks: asyncio.Queue[asyncio.Task[dict[str, Any]] | None] = asyncio.Queue(AHEAD * llm.llm.context.n_seq_max)

    async def ask() -> None:
        try:
            for i, line in enumerate(files.lines()):
                if i >= files.done:
                    await tasks.put(asyncio.create_task(_answered(llm, line)))
        finally:
            await tasks.put(None)

    asking = asyncio.create_task(ask())
    try:
        with files.append() as file:
            while (task := await tasks.get()) is not None:
                line = await task
                # escaped: half a surrogate pair, which JSON may name, has no UTF-8
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                usage = line["response"]["body"].get("usage", {})
                progress = Progress(
                    progress.done + 1,
                    progress.failed + _failed(line),
                    progress.tokens + usage.get("completion_tokens", 0),
                )
                on_done(progress)
        await asking
    finally:
        asking.cancel()
        while not tasks.empty():
            if (task := tasks.get_nowait()) is not None:
                task.cancel()
    return progress


async def _answered(llm: AsyncLLM, line: str) -> dict[str, Any]:
    """The line of an answer."""
    custom_id = _custom_id(line)
    try:
        request = _checked(_parsed(line))
        url, body = request["url"], request["body"]
        ask = _read_ask(url, body, llm.llm.sampling_defaults)
        prompt, params, form = await llm.prepare(lambda: prepared(llm.llm, ask))
        done = await llm.generate(prompt, params)
        model = llm.llm.model
        return _line(custom_id, 200, answer(url, body, [read(form, done)], model, model.path.name))
    except ClosedError:
        raise
    except PymtpError as error:
        wrong = isinstance(error, InvalidRequestError)
        kind = "invalid_request_error" if wrong else "server_error"
        said = {"message": str(error), "type": kind, "param": None, "code": None}
        return _line(custom_id, 400 if wrong else 500, {"error": said})


def _checked(request: object) -> Mapping[str, Any]:
    if not isinstance(request, dict) or not isinstance(request.get("body"), dict):
        raise InvalidRequestError('a request is an object with "custom_id", "method", "url" and "body"')
    if request.get("method", "POST") != "POST" or request.get("url") not in (CHAT, TEXT):
        raise InvalidRequestError(f"url must be {CHAT} or {TEXT}, and method POST")
    return request


def _read_ask(url: str, body: Mapping[str, Any], defaults: Mapping[str, Any]) -> Ask:
    """A name that nobody knows is refused: it may be misspelt, and a batch runs for hours."""
    if unknown := unknown_fields(url, body):
        raise InvalidRequestError(f"{', '.join(unknown)}: not supported")
    if body.get("stream"):
        raise InvalidRequestError("stream: a batch has no streams")
    return read_ask(url, body, defaults)


def _line(custom_id: object, status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": custom_id,
        "response": {"status_code": status, "request_id": f"req_{uuid.uuid4().hex}", "body": body},
        "error": None,
    }
