"""Generation for the rows of a Ray Dataset."""

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
from pymtp.load import resolve_model
from pymtp.options import check_files
from pymtp.ray.workers import DEFAULT_SEQUENCES, assigned_cpus
from pymtp.sampling import SamplingParams
from pymtp.validation import shown

T = TypeVar("T")
Row = Mapping[str, Any]
Batch = dict[str, NDArray[Any]]
Params = SamplingParams | Mapping[str, Any] | None
INTEGER_PARAMS = {field.name for field in fields(SamplingParams) if field.type in ("int", "int | None")}


class Generate:
    """An actor for `map_batches` of Ray Data: it adds generated text to each row.

        ds.map_batches(
            pymtp.ray.Generate,
            fn_constructor_kwargs={"model": "model.gguf", "params": SamplingParams(max_tokens=200)},
            batch_size=64, num_cpus=8, compute=ray.data.ActorPoolStrategy(min_size=1, max_size=10),
        )

    Each actor loads the model once. The rows of a batch run together, so a batch should be several times n_seq_max.
    A row's text depends on its prompt, its params and the model alone, not on the actor or the other rows, as long as
    all machines have the same build, and processors with the same instructions.
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
        """Load the model.

        model: a GGUF file that is on every machine, or a name of the hub such as "hf:owner/name:Q4_K_M", which each
            machine downloads once; None for the model that ships with pymtp.
        prompt: the column of prompts: strings, lists of token ids, or lists of messages in OpenAI's form.
        output: the column of texts.
        params: SamplingParams or a mapping of some of its fields, for all rows; or a function that returns them for a
            row, such as a seed of its own.
        errors: for a row that fails, such as a prompt longer than n_ctx. "raise": the call raises its error.
            "keep": the row's text is "", its finish_reason "error", and the column `error` has the message,
            "" for other rows. All batches have columns of the same types.
        options: keywords of LLM. Defaults: n_seq_max is 8, and n_threads the CPUs that Ray assigned to the actor.

        Raises the errors of LLM and LLM.from_pretrained, and InvalidRequestError for invalid `errors` and columns.
        """
        if not isinstance(errors, str) or errors not in ("raise", "keep"):
            raise InvalidRequestError(f'errors={shown(errors)} must be "raise" or "keep"')
        for argument, name in (("prompt", prompt), ("output", output)):
            if not isinstance(name, str) or not name:
                raise InvalidRequestError(f"{argument}={shown(name)} must be the name of a column", argument)
        added = [
            output,
            "finish_reason",
            "prompt_tokens",
            "completion_tokens",
            *(["error"] if errors == "keep" else []),
        ]
        if prompt in added or len(set(added)) < len(added):
            raise InvalidRequestError(f"prompt={prompt!r} and output={output!r} must not be columns that this adds")
        self._prompt, self._added, self._keep_errors = prompt, added, errors == "keep"
        self._params: Callable[[Row], SamplingParams]
        if callable(params):
            self._params = lambda row: _row_params(params, row)
        else:
            same_params = _read_params(params)
            self._params = lambda _: same_params
        keywords = AsyncLLM._read({"n_seq_max": DEFAULT_SEQUENCES, "n_threads": assigned_cpus(), **options})
        check_files(keywords)
        file, with_head = resolve_model(model, keywords)
        self._llm = AsyncLLM(file, **with_head)

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with more columns: text, finish reason, prompt tokens, completion tokens, and error if kept.

        A column is an array with a value for each row.

        Raises InvalidRequestError for a batch that is no columns of one length, has no prompts, or already has a column
        that is to be added. Unless errors are kept, raises the errors of `LLM.generate`.
        """
        if not isinstance(batch, Mapping):
            raise InvalidRequestError(f'a batch is a {type(batch).__name__}, not columns: take batch_format="numpy"')
        if self._prompt not in batch:
            raise InvalidRequestError(
                f"no column {self._prompt!r} among {', '.join(sorted(map(str, batch)))}: name it with prompt="
            )
        if existing := [name for name in self._added if name in batch]:
            raise InvalidRequestError(
                f"the rows have {', '.join(existing)} already: rename or drop columns first, or name that of the texts "
                "with output="
            )
        _check_lengths(batch)
        rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        outputs = _run(self._generate_all(rows))
        columns = zip(*outputs, strict=True) if outputs else [()] * len(self._added)
        added = {
            name: _column(values, is_text=not name.endswith("_tokens") or name == self._added[0])
            for name, values in zip(self._added, columns, strict=True)
        }
        return {**batch, **added}

    async def _generate_all(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        tasks = [asyncio.ensure_future(self._generate_row(row)) for row in rows]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _generate_row(self, row: Row) -> tuple[Any, ...]:
        """Return the values of the added columns for a row."""
        try:
            prompt = prompt_of(row[self._prompt])
            if not is_prompt(prompt):
                raise InvalidRequestError(f"{shown(prompt)} are several prompts, and a row has one prompt", "prompts")
            completion = await self._llm.generate(prompt, self._params(row))
        except PymtpError as error:
            if not self._keep_errors:
                raise
            return "", "error", 0, 0, str(error)
        return (*_output(completion), "") if self._keep_errors else _output(completion)


def _check_lengths(batch: Batch) -> None:
    lengths = {name: _length(name, values) for name, values in batch.items()}
    first, expected = next(iter(lengths.items()))
    for name, length in lengths.items():
        if length != expected:
            raise InvalidRequestError(
                f"columns are of one length: {expected} values of {first!r}, {length} of {name!r}"
            )


def _length(name: str, values: object) -> int:
    try:
        if not isinstance(values, (str, bytes, Mapping, Set)):
            return len(values)  # type: ignore[arg-type] # any object with a length
    except TypeError:  # also for an array without dimensions
        pass
    raise InvalidRequestError(f"the column {name!r} is no array: {shown(values)}")


def _output(completion: Completion) -> tuple[Any, ...]:
    stats = completion.stats
    return completion.text, completion.finish_reason, stats.prompt_tokens, stats.completion_tokens


def _read_params(params: object) -> SamplingParams:
    """Convert to SamplingParams. Raises InvalidRequestError for other objects, and for n != 1."""
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


def _row_params(function: Callable[[Row], object], row: Row) -> SamplingParams:
    """Call the function for a row. Raises InvalidRequestError if it fails, which is an error of that row only."""
    try:
        params = function(row)
    except PymtpError:
        raise
    except Exception as error:
        raise InvalidRequestError(f"params of the row: {type(error).__name__}: {error}", "params") from error
    if isinstance(params, Mapping):
        params = {name: _column_value(name, value) for name, value in params.items()}
    return _read_params(params)


def _column_value(name: str, value: object) -> object:
    """Convert a row's value to the type of a parameter.

    A column of integers with missing values became a column of floats: NaN is None again, and a whole number an int
    where the parameter is an int.
    """
    if type(value).__name__ == "NAType" or (isinstance(value, (float, np.floating)) and np.isnan(value)):
        return None
    if name not in INTEGER_PARAMS or not isinstance(value, np.floating) or not value.is_integer():
        return value
    limit = 2 ** (int(np.finfo(type(value)).nmant) + 1)
    if abs(value) >= limit:
        raise InvalidRequestError(
            f"{name}={value!r}: numbers of a column that lacks some are reals, which hold whole numbers below {limit}",
            name,
        )
    return int(value)


def _checked(params: SamplingParams) -> SamplingParams:
    if params.n != 1:
        raise InvalidRequestError(f"n={params.n}: a row has one text; repeat the row for more, each with a seed")
    return params


def prompt_of(value: Any) -> Prompt:
    """Convert a row's value to a prompt. Arrow turns lists into arrays, and adds None for missing keys of messages."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return Chat([_message(item) for item in value])
    return value  # type: ignore[no-any-return] # generate checks it


def _message(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(item) for name, item in value.items() if item is not None or name == "content"}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    return value


def _column(values: Sequence[Any], *, is_text: bool) -> NDArray[Any]:
    """Make a column. Text is an array of objects, as arrays of str lose NULs at the end; an empty one is typed str."""
    if not is_text:
        return np.array(values, dtype=np.int64)
    return np.array(values, dtype=object if values else str)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; on another thread where an event loop runs on this one, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
