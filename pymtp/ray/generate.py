"""Generation of text for the rows of a Ray Dataset."""

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
from pymtp.engine.prepare import Prompt
from pymtp.engine.request import Completion
from pymtp.errors import InvalidRequestError, PymtpError
from pymtp.llm import is_prompt
from pymtp.load import fetch_named
from pymtp.options import read_options
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

    Each actor loads the model once. The rows of a batch are generated together, so a batch should have several times
    n_seq_max rows. The text of a row depends only on its prompt, its params and the model, and not on the actor or on
    other rows, if all machines have the same build of pymtp and processors with the same instructions.
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
        prompt: name of the column of prompts: strings, lists of token ids, or lists of messages in OpenAI's form.
        output: name of the column that is added for the generated texts.
        params: SamplingParams for all rows, or a mapping of some fields of SamplingParams; or a function that takes a
            row and returns either of them, for example to give each row another seed.
        errors: what happens if a row fails, for example because its prompt is longer than n_ctx. With "raise", the call
            raises the error. With "keep", the text of the row is "", its finish_reason is "error", and a further
            column `error` has the message, which is "" for all other rows.
        options: keywords of LLM. The default of n_seq_max is 8; the default of n_threads is the number of CPUs that Ray
            assigned to the actor.

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
            raise InvalidRequestError(
                f"prompt={prompt!r} and output={output!r} must not be names of other columns that Generate adds"
            )
        self._prompt, self._added, self._keep_errors = prompt, added, errors == "keep"
        self._params: Callable[[Row], SamplingParams]
        if callable(params):
            self._params = lambda row: _row_params(params, row)
        else:
            same_params = _read_params(params)
            self._params = lambda _: same_params
        keywords = {"n_seq_max": DEFAULT_SEQUENCES, "n_threads": assigned_cpus(), **options}
        self._llm = AsyncLLM.from_options(fetch_named(read_options("Generate()", model, keywords)))

    def __call__(self, batch: Batch) -> Batch:
        """Generate for each row of a batch. Return the batch with more columns.

        The added columns are the text, finish_reason, prompt_tokens and completion_tokens, and `error` if errors are
        kept. A column is an array with a value for each row. Columns have the same types in all batches.

        Raises InvalidRequestError if the batch does not consist of columns of one length, has no column of prompts, or
        already has a column that would be added. Unless errors are kept, raises the errors of `LLM.generate`.
        """
        if not isinstance(batch, Mapping):
            raise InvalidRequestError(
                f'a batch must be a mapping of columns, not a {type(batch).__name__}: use batch_format="numpy"'
            )
        if self._prompt not in batch:
            raise InvalidRequestError(
                f"there is no column {self._prompt!r} among {', '.join(sorted(map(str, batch)))}: give the name of the "
                "column of prompts as prompt="
            )
        if existing := [name for name in self._added if name in batch]:
            raise InvalidRequestError(
                f"the rows already have columns named {', '.join(existing)}: rename or drop them first, or give "
                "another name for the column of texts as output="
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
        """Generate for one row. Return its values of the added columns."""
        try:
            prompt = prompt_of(row[self._prompt])
            if not is_prompt(prompt):
                raise InvalidRequestError(f"a row must have one prompt, not several: {shown(prompt)}", "prompts")
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
                f"all columns must have the same length: {first!r} has {expected} values, {name!r} has {length}"
            )


def _length(name: str, values: object) -> int:
    try:
        if not isinstance(values, (str, bytes, Mapping, Set)):
            return len(values)  # type: ignore[arg-type] # any object with a length
    except TypeError:  # the object has no length, such as an array without dimensions
        pass
    raise InvalidRequestError(f"the column {name!r} is not an array: {shown(values)}")


def _output(completion: Completion) -> tuple[Any, ...]:
    stats = completion.stats
    return completion.text, completion.finish_reason, stats.prompt_tokens, stats.completion_tokens


def _read_params(params: object) -> SamplingParams:
    """Convert None, SamplingParams or a mapping of its fields to SamplingParams.

    Raises InvalidRequestError for other objects, and for params with n other than 1.
    """
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
    """Call the function for a row, and convert its result to SamplingParams.

    If the function raises any exception, raises InvalidRequestError, so that only this row fails.
    """
    try:
        params = function(row)
    except PymtpError:
        raise
    except Exception as error:
        raise InvalidRequestError(
            f"the function params failed for a row: {type(error).__name__}: {error}", "params"
        ) from error
    if isinstance(params, Mapping):
        params = {name: _column_value(name, value) for name, value in params.items()}
    return _read_params(params)


def _column_value(name: str, value: object) -> object:
    """Convert a value of a column to the type of a parameter.

    Ray turns a column of integers with missing values into a column of floats. So NaN is converted back to None, and a
    whole number to an int if the parameter is an int.
    """
    if type(value).__name__ == "NAType" or (isinstance(value, (float, np.floating)) and np.isnan(value)):
        return None
    if name not in INTEGER_PARAMS or not isinstance(value, np.floating) or not value.is_integer():
        return value
    limit = 2 ** (int(np.finfo(type(value)).nmant) + 1)
    if abs(value) >= limit:
        raise InvalidRequestError(
            f"{name}={value!r}: a column with missing values is stored as floats, which are exact only below {limit}",
            name,
        )
    return int(value)


def _checked(params: SamplingParams) -> SamplingParams:
    if params.n != 1:
        raise InvalidRequestError(
            f"n={params.n} must be 1, because a row has one text: for more texts, repeat the row with different seeds"
        )
    for name in ("logprobs", "prompt_logprobs"):
        if (value := getattr(params, name)) is not None:
            raise InvalidRequestError(f"{name}={value} must be None: no column of the result has them", name)
    return params


def prompt_of(value: Any) -> Prompt:
    """Convert a value of the prompt column to a prompt.

    This undoes changes by Arrow, which turns lists into arrays, and adds None for keys that a message lacks.
    """
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return Chat([_message(item) for item in value])
    return value  # type: ignore[no-any-return] # LLM.generate checks the type


def _message(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(item) for name, item in value.items() if item is not None or name == "content"}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    return value


def _column(values: Sequence[Any], *, is_text: bool) -> NDArray[Any]:
    """Make a column of text or of integers.

    Text is an array of objects, because arrays of str would lose NUL characters at the end of a string. An empty column
    of text is an array of str, so that Ray knows its type.
    """
    if not is_text:
        return np.array(values, dtype=np.int64)
    return np.array(values, dtype=object if values else str)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on another thread if this thread already runs an event loop, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
