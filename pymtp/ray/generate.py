"""Texts for the rows of a Ray Dataset."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from pymtp.async_llm import AsyncLLM
from pymtp.chat import Chat
from pymtp.engine.prefix_files import Prompt
from pymtp.engine.request import Completion
from pymtp.errors import InvalidRequestError, PymtpError
from pymtp.llm import is_prompt
from pymtp.load import brought
from pymtp.options import find_files
from pymtp.ray.workers import PLACES, given_cores
from pymtp.sampling import SamplingParams
from pymtp.validation import shown

T = TypeVar("T")
Row = Mapping[str, Any]
Batch = dict[str, NDArray[Any]]
Params = SamplingParams | Mapping[str, Any] | None
WHOLE = {field.name for field in fields(SamplingParams) if field.type in ("int", "int | None")}


class Generate:
    """Adds what a model writes to each row. For `map_batches` of Ray Data:

        ds.map_batches(
            pymtp.ray.Generate,
            fn_constructor_kwargs={"model": "model.gguf", "params": SamplingParams(max_tokens=200)},
            batch_size=64, num_cpus=8, compute=ray.data.ActorPoolStrategy(min_size=1, max_size=10),
        )

    Each worker loads the model once. The rows of a batch run together, so a batch should be several times n_seq_max.
    A row's text depends on its prompt, its params and the model alone, not on the worker or the other rows, as long as
    all machines have the same build, and processors that it treats alike.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        prompt: str = "prompt",
        output: str = "text",
        params: Params | Callable[[Row], Params] = None,
        errors: Literal["raise", "keep"] = "raise",
        **options: Any,
    ) -> None:
        """
        model: a GGUF file that is on every machine, or a name of the hub such as "hf:owner/name:Q4_K_M", which each
            machine downloads once; None for the model that ships with pymtp.
        prompt: the column of prompts: strings, lists of token ids, or lists of messages in OpenAI's form.
        output: the column of texts.
        params: SamplingParams or a mapping of some of its fields, for all rows; or a function that has them for a row,
            such as a seed of its own.
        errors: what becomes of a row that fails, a prompt longer than n_ctx for example. "raise": the work ends with
            its error. "keep": the row's text is "", its finish_reason "error", and the column `error` has the message,
            "" for other rows. All batches have columns of the same types.
        options: of LLM. n_seq_max is 8 where none is given, and n_threads the CPUs that Ray gave the worker.

        Raises what LLM and LLM.from_pretrained raise, and InvalidRequestError for errors and columns that are none.
        """
        if not isinstance(errors, str) or errors not in ("raise", "keep"):
            raise InvalidRequestError(f'errors={shown(errors)} must be "raise" or "keep"')
        for what, name in (("prompt", prompt), ("output", output)):
            if not isinstance(name, str) or not name:
                raise InvalidRequestError(f"{what}={shown(name)} must be the name of a column", what)
        added = [
            output,
            "finish_reason",
            "prompt_tokens",
            "completion_tokens",
            *(["error"] if errors == "keep" else []),
        ]
        if prompt in added or len(set(added)) < len(added):
            raise InvalidRequestError(f"prompt={prompt!r} and output={output!r} must not be columns that this adds")
        self._prompt, self._added, self._keeps = prompt, added, errors == "keep"
        self._params: Callable[[Row], SamplingParams]
        if callable(params):
            self._params = lambda row: _params_of(params, row)
        else:
            fixed = _read(params)
            self._params = lambda _: fixed
        keywords = AsyncLLM._read({"n_seq_max": PLACES, "n_threads": given_cores(), **options})
        find_files(keywords)
        file, with_head = brought(model, keywords)
        self._llm = AsyncLLM(file, **with_head)

    def __call__(self, batch: Batch) -> Batch:
        """The batch with columns added: the text, `finish_reason`, `prompt_tokens`, `completion_tokens`, and `error`
        where errors are kept. Takes and gives a column as an array by rows.

        Raises InvalidRequestError for a batch that is no columns of one length, or without prompts, or with a column
        that is to be added, and, unless errors are kept, what `LLM.generate` raises.
        """
        if not isinstance(batch, Mapping):
            raise InvalidRequestError(f'a batch is a {type(batch).__name__}, not columns: take batch_format="numpy"')
        if self._prompt not in batch:
            raise InvalidRequestError(
                f"no column {self._prompt!r} among {', '.join(sorted(map(str, batch)))}: name it with prompt="
            )
        if taken := [name for name in self._added if name in batch]:
            raise InvalidRequestError(
                f"the rows have {', '.join(taken)} already: rename or drop columns first, or name that of the texts "
                "with output="
            )
        _check_lengths(batch)
        rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        written = _run(self._all(rows))
        columns = zip(*written, strict=True) if written else [()] * len(self._added)
        added = {
            name: _column(values, is_text=not name.endswith("_tokens") or name == self._added[0])
            for name, values in zip(self._added, columns, strict=True)
        }
        return {**batch, **added}

    async def _all(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        writing = [asyncio.ensure_future(self._one(row)) for row in rows]
        try:
            return list(await asyncio.gather(*writing))
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)

    async def _one(self, row: Row) -> tuple[Any, ...]:
        """What is added to a row."""
        try:
            prompt = prompt_of(row[self._prompt])
            if not is_prompt(prompt):
                raise InvalidRequestError(f"{shown(prompt)} are several prompts, and a row has one prompt", "prompts")
            done = await self._llm.generate(prompt, self._params(row))
        except PymtpError as error:
            if not self._keeps:
                raise
            return "", "error", 0, 0, str(error)
        return (*_figures(done), "") if self._keeps else _figures(done)


def _check_lengths(batch: Batch) -> None:
    lengths = {name: _length(name, values) for name, values in batch.items()}
    first, n = next(iter(lengths.items()))
    for name, other in lengths.items():
        if other != n:
            raise InvalidRequestError(f"columns are of one length: {n} values of {first!r}, {other} of {name!r}")


def _length(name: str, values: object) -> int:
    try:
        if not isinstance(values, (str, bytes, Mapping, Set)):
            return len(values)  # type: ignore[arg-type] # of whatever has one
    except TypeError:  # an array without dimensions too
        pass
    raise InvalidRequestError(f"the column {name!r} is no array: {shown(values)}")


def _figures(done: Completion) -> tuple[Any, ...]:
    return done.text, done.finish_reason, done.stats.prompt_tokens, done.stats.completion_tokens


def _read(params: object) -> SamplingParams:
    """Raises InvalidRequestError for what is none, and for those of several texts."""
    if params is None:
        return SamplingParams()
    if isinstance(params, SamplingParams):
        return _checked(params)
    names = [field.name for field in fields(SamplingParams)]
    if not isinstance(params, Mapping) or not set(params) <= set(names):
        raise InvalidRequestError(
            f"params={shown(params)} must be SamplingParams, a mapping of some of {', '.join(names)}, or a function",
            "params",
        )
    return _checked(SamplingParams(**params))


def _params_of(function: Callable[[Row], object], row: Row) -> SamplingParams:
    """Raises InvalidRequestError also where the function fails: a row's error, as all others."""
    try:
        given = function(row)
    except PymtpError:
        raise
    except Exception as error:
        raise InvalidRequestError(f"params of the row: {type(error).__name__}: {error}", "params") from error
    if isinstance(given, Mapping):
        given = {name: _of_column(name, value) for name, value in given.items()}
    return _read(given)


def _of_column(name: str, value: object) -> object:
    """A row's value. Numbers of a column that lacks some became reals: whole ones are so again where whole ones are
    wanted, and NaN is None."""
    if type(value).__name__ == "NAType" or (isinstance(value, (float, np.floating)) and np.isnan(value)):
        return None
    if name not in WHOLE or not isinstance(value, np.floating) or not value.is_integer():
        return value
    most = 2 ** (int(np.finfo(type(value)).nmant) + 1)
    if abs(value) >= most:
        raise InvalidRequestError(
            f"{name}={value!r}: numbers of a column that lacks some are reals, which hold whole numbers below {most}",
            name,
        )
    return int(value)


def _checked(params: SamplingParams) -> SamplingParams:
    if params.n != 1:
        raise InvalidRequestError(f"n={params.n}: a row has one text; repeat the row for more, each with a seed")
    return params


def prompt_of(value: Any) -> Prompt:
    """What a row holds, as an LLM takes it: Arrow gives lists as arrays, and fills messages up with None."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        return Chat([_message(each) for each in value])
    return value  # type: ignore[no-any-return] # generate says what is no prompt


def _message(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(each) for name, each in value.items() if each is not None or name == "content"}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | list):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    return value


def _column(values: Sequence[Any], *, is_text: bool) -> NDArray[Any]:
    """Texts are objects, for arrays of text lose NUL characters at the end; without any, the array says the type."""
    if not is_text:
        return np.array(values, dtype=np.int64)
    return np.array(values, dtype=object if values else str)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns; on another thread where an event loop runs on this one, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
