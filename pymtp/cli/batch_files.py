"""Batch files in OpenAI's format: one file has a request on each line, the other the answers in the same order."""

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
from pymtp.openai.generate_request import GenerateRequest, parse_outputs, prepare_request
from pymtp.openai.request_body import CHAT, TEXT, read_generate_request, unknown_fields
from pymtp.openai.response_body import build_response

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

REQUESTS_AHEAD = 4  # requests that are started before they can run, for each sequence of the context
ANSWER_START = b'{"id": "batch_req_'  # the beginning of each line of answers


@dataclass(frozen=True)
class BatchProgress:
    """The progress of a batch.

    done: number of answers in the answers file, including those of an earlier run.
    failed: number of these answers that are errors.
    tokens: number of completion tokens that this run generated.
    """

    done: int
    failed: int
    tokens: int


class BatchFiles:
    """The requests file and the answers file of a batch.

    Answers are written in order, line by line, so that a later run can resume.
    """

    def __init__(self, requests: Path, answers: Path) -> None:
        """Open the files, and count the answers of an earlier run.

        Raises InvalidRequestError if the answers do not belong to the first requests, if a path is not a regular file,
        or if both paths are the same file; OSError for a file that cannot be read or written.
        """
        for path in (requests, answers):
            if str(path) == "-":
                raise InvalidRequestError("- is not supported here: a run that is resumed must read both files again")
            if path.exists() and not path.is_file():  # for example a pipe
                raise InvalidRequestError(f"{path} is not a regular file: a run that is resumed must read it again")
        if answers.exists() and answers.samefile(requests):
            raise InvalidRequestError(f"requests and answers must be two files, not {answers} for both")
        self._requests, self._answers = requests, answers
        self.total = sum(1 for _ in self.lines())
        self.done = self.failed = 0
        self.open_answers().close()  # a file that cannot be written fails here, before the model is loaded
        self._resume()

    def lines(self) -> Iterator[str]:
        """Yield the lines of the requests file that are not blank."""
        try:
            with self._requests.open(encoding="utf-8-sig") as file:
                for line in file:
                    if line.strip():
                        yield line
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"{self._requests} is not UTF-8: {error}") from error

    def _resume(self) -> None:
        """Count the answers of an earlier run, and remove an incomplete last line from the answers file."""
        whole = 0
        requests = self.lines()
        with self._answers.open("rb") as file:
            for line in file:
                if line.startswith(ANSWER_START[: len(line)]) and not line.endswith(b"\n"):
                    break
                number = self.done + 1
                try:
                    custom_id, failed = _read_answer(line)
                except (ValueError, LookupError, TypeError, RecursionError) as error:
                    raise InvalidRequestError(
                        f"line {number} of {self._answers} is not an answer: name another file for the answers"
                    ) from error
                request = next(requests, None)
                if request is None or custom_id != _custom_id(request):
                    raise InvalidRequestError(
                        f"line {number} of {self._answers} answers another request than line {number} of "
                        f"{self._requests}: name another file for the answers"
                    )
                self.done += 1
                self.failed += failed
                whole += len(line)
        os.truncate(self._answers, whole)

    def open_answers(self) -> BinaryIO:
        """Open the answers file for appending.

        Raises InvalidRequestError if another run has the file open. Without file locks, this goes unnoticed.
        """
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


def _is_error(answer: Mapping[str, Any]) -> bool:
    return bool(answer["response"]["status_code"] != 200)


def _read_answer(line: bytes) -> tuple[object, bool]:
    """Return the custom_id of an answer, and whether it is an error. Raises for a line that no batch run wrote."""
    if not line.startswith(ANSWER_START):
        raise ValueError("not an answer")
    answer = json.loads(line)
    return answer["custom_id"], _is_error(answer)


def _custom_id(line: str) -> object:
    """Return the custom_id in a line of the requests file; None where the line has none."""
    try:
        found = _parse_line(line)
    except InvalidRequestError:
        return None
    return found.get("custom_id") if isinstance(found, dict) else None


def _parse_finite(number: str) -> float:
    """Parse a number. Raises ValueError for NaN, Infinity and 1e999, which Python accepts but JSON does not have."""
    value = float(number)
    if not isfinite(value):
        raise ValueError(f"{number} is not a finite number")
    return value


def _parse_line(line: str) -> object:
    try:
        return json.loads(line, parse_constant=_parse_finite, parse_float=_parse_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the line is not JSON: {error}") from error


async def run_batch(llm: AsyncLLM, files: BatchFiles, on_done: Callable[[BatchProgress], object]) -> BatchProgress:
    """Answer all requests that have no answer yet, many at once. The answer to a bad line is its error.

    on_done: called with the progress after each answer.

    Raises ClosedError, and OSError for a file that cannot be written.
    """
    progress = BatchProgress(files.done, files.failed, 0)
    tasks: asyncio.Queue[asyncio.Task[dict[str, Any]] | None] = asyncio.Queue(
        REQUESTS_AHEAD * llm.llm.context.n_seq_max
    )

    async def start_requests() -> None:
        try:
            for i, line in enumerate(files.lines()):
                if i >= files.done:
                    await tasks.put(asyncio.create_task(_answer(llm, line)))
        finally:
            await tasks.put(None)

    starting = asyncio.create_task(start_requests())
    try:
        with files.open_answers() as file:
            while (task := await tasks.get()) is not None:
                line = await task
                # json.dumps escapes lone surrogates, which a custom_id may contain and UTF-8 cannot encode
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                usage = line["response"]["body"].get("usage", {})
                progress = BatchProgress(
                    progress.done + 1,
                    progress.failed + _is_error(line),
                    progress.tokens + usage.get("completion_tokens", 0),
                )
                on_done(progress)
        await starting
    finally:
        starting.cancel()
        while not tasks.empty():
            if (task := tasks.get_nowait()) is not None:
                task.cancel()
    return progress


async def _answer(llm: AsyncLLM, line: str) -> dict[str, Any]:
    """Run the request in a line of the requests file, and return the object for its line of the answers file."""
    custom_id = _custom_id(line)
    try:
        request = _check_request(_parse_line(line))
        url, body = request["url"], request["body"]
        generate_request = _read_request(url, body, llm.llm.sampling_defaults)
        prompt, params, output_format = await llm._prepare(lambda: prepare_request(llm.llm, generate_request))
        completion = await llm.generate(prompt, params)
        model = llm.llm.model
        return _answer_line(
            custom_id,
            200,
            build_response(url, body, [parse_outputs(output_format, completion)], model, model.path.name),
        )
    except ClosedError:
        raise
    except PymtpError as error:
        wrong = isinstance(error, InvalidRequestError)
        kind = "invalid_request_error" if wrong else "server_error"
        details = {"message": str(error), "type": kind, "param": None, "code": None}
        return _answer_line(custom_id, 400 if wrong else 500, {"error": details})


def _check_request(request: object) -> Mapping[str, Any]:
    if not isinstance(request, dict) or not isinstance(request.get("body"), dict):
        raise InvalidRequestError('a request is an object with "custom_id", "method", "url" and "body"')
    if request.get("method", "POST") != "POST" or request.get("url") not in (CHAT, TEXT):
        raise InvalidRequestError(f"url must be {CHAT} or {TEXT}, and method POST")
    return request


def _read_request(url: str, body: Mapping[str, Any], defaults: Mapping[str, Any]) -> GenerateRequest:
    """Read a request body, and refuse unknown fields.

    A batch runs for hours: a misspelt name that was ignored would be noticed too late.
    """
    if unknown := unknown_fields(url, body):
        raise InvalidRequestError(f"{', '.join(unknown)}: not supported")
    if body.get("stream"):
        raise InvalidRequestError("stream: a batch has no streams")
    return read_generate_request(url, body, defaults)


def _answer_line(custom_id: object, status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": custom_id,
        "response": {"status_code": status, "request_id": f"req_{uuid.uuid4().hex}", "body": body},
        "error": None,
    }
