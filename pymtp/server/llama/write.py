"""Writing of completions in the form of llama.cpp's server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pymtp.chat import ContentDelta
from pymtp.engine.deltas import CompletionDelta
from pymtp.engine.request import Completion
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model
from pymtp.openai.generate_request import GenerateRequest
from pymtp.openai.prompt_texts import tokens_text
from pymtp.openai.timings import PromptProgress, timings
from pymtp.samplers import SAMPLER_RULES, SAMPLERS
from pymtp.sampling import SamplingParams, TokenLogprobs
from pymtp.server.event_response import find_stop_string
from pymtp.server.llama.probabilities import native_logprobs, post_sampling_probs
from pymtp.server.llama.read import NativeOptions
from pymtp.server.llama.types import NativeChunk, NativeCompletion, NativeLogprob
from pymtp.stats import Stats

ANY_SLOT = -1
SETTINGS = "generation_settings"
MAX_SETTINGS = 2**26  # characters of the settings in all answers to a body, each of which repeats them


class NativeWriter:
    """The writer of the answers to one body, for all of its prompts.

    The index of an answer counts the completions of the first prompt, then those of the second, and so on.
    """

    def __init__(self, request: GenerateRequest, options: NativeOptions, model: Model, model_name: str) -> None:
        """request: the request of a prompt: only its params are read. model_name: the name in the answers."""
        self._params, self._options, self._model, self._model_name = request.params, options, model, model_name
        self._n_tokens: dict[int, int] = {}

    def chunks(self, prompt: int, delta: CompletionDelta, stats: Stats) -> bytes:
        """Return the events of a delta of a stream, without the last event.

        With probabilities there is an event for each token, because clients of llama.cpp's server expect it.

        stats: those of the completion so far.
        """
        index = prompt * self._params.n + delta.index
        text = "".join(event.text for event in delta.events if isinstance(event, ContentDelta))
        tokens = [token for piece in delta.pieces for token in piece.token_ids]
        if not tokens or self._options.only_prompt:
            return b""
        logprobs = [one for piece in delta.pieces for one in piece.logprobs or ()]
        groups = [[token] for token in tokens] if logprobs else [tokens]
        events = []
        for i, group in enumerate(groups):
            self._n_tokens[index] = self._n_tokens.get(index, 0) + len(group)
            chunk: NativeChunk = {
                "index": index,
                "content": text if i == 0 else "",
                "tokens": group,
                "stop": False,
                "id_slot": ANY_SLOT,
                "tokens_predicted": self._n_tokens[index],
                "tokens_evaluated": stats.prompt_tokens,
            }
            if logprobs:
                chunk["completion_probabilities"] = self._probabilities(logprobs[i : i + 1])
            if self._options.timings_per_token:
                chunk["timings"] = timings(stats)
            events.append(encode_event(chunk))
        return b"".join(events)

    def progress(self, prompt: int, progress: PromptProgress, stats: Stats) -> bytes:
        """Return the event that tells how much of a prompt is computed."""
        chunk: NativeChunk = {
            "index": prompt * self._params.n,
            "content": "",
            "tokens": [],
            "stop": False,
            "id_slot": ANY_SLOT,
            "tokens_predicted": 0,
            "tokens_evaluated": progress["total"],
            "prompt_progress": progress,
        }
        if self._options.timings_per_token:
            done, seconds = progress["processed"], progress["time_ms"] / 1e3
            so_far = replace(stats, prompt_tokens=done, cached_tokens=progress["cache"], prefill_seconds=seconds)
            chunk["timings"] = timings(replace(so_far, completion_tokens=0, decode_seconds=0.0))
        return encode_event(chunk)

    def last(self, prompt: int, i: int, done: Completion) -> bytes:
        """Return the last event of a completion."""
        answer = self.answer(prompt, i, done)
        return encode_event({**answer, "content": "", "tokens": []} if "content" in answer else answer)

    def answer(self, prompt: int, i: int, done: Completion) -> Mapping[str, Any]:
        """Return the whole answer of a completion. i: its number among those of its prompt."""
        options, only_prompt = self._options, self._options.only_prompt
        data = b"".join(map(self._model.token_bytes, done.token_ids))
        stop = find_stop_string(data, done.text, self._params.stop) if done.finish_reason == "stop" else None
        limited = done.finish_reason != "stop" or only_prompt
        n_tokens, n_prompt = 0 if only_prompt else len(done.token_ids), len(done.prompt_token_ids)
        limit = self._params.max_tokens
        times = timings(done.stats)
        if only_prompt:
            times["predicted_n"] = 0
        answer: NativeCompletion = {
            "index": prompt * self._params.n + i,
            "content": "" if only_prompt else done.text,
            "tokens": done.token_ids if options.return_tokens and not only_prompt else [],
            "id_slot": ANY_SLOT,
            "stop": True,
            "model": self._model_name,
            "tokens_predicted": n_tokens,
            "tokens_evaluated": n_prompt,
            "generation_settings": generation_settings(self._params, options, done.seed),
            "prompt": tokens_text(done.prompt_token_ids, self._model),
            "has_new_line": not only_prompt and "\n" in done.text,
            "truncated": done.finish_reason == "length" and not only_prompt and (limit is None or n_tokens < limit),
            "stop_type": "limit" if limited else "eos" if stop is None else "word",
            "stopping_word": stop or "",
            "tokens_cached": n_prompt + n_tokens,
            "timings": times,
        }
        if not options.stream and done.logprobs is not None and not only_prompt:
            answer["completion_probabilities"] = self._probabilities(done.logprobs)
        return select_fields(answer, options.response_fields) if options.response_fields else answer

    def _probabilities(self, logprobs: Sequence[TokenLogprobs]) -> list[NativeLogprob]:
        n_probs = self._options.n_probs or 0
        if self._options.post_sampling:
            return post_sampling_probs(logprobs, self._params, n_probs, self._model)
        return native_logprobs(logprobs, n_probs, self._model)


def encode_event(event: Mapping[str, Any]) -> bytes:
    """Encode an event of a stream; its data are JSON."""
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def select_fields(answer: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the named fields of an answer, those that it has. "a/b" names the field b of the field a."""
    found: dict[str, Any] = {}
    for name in names:
        value: Any = answer
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            found[name] = value
    return found


def check_settings(params: SamplingParams, options: NativeOptions, n_answers: int) -> None:
    """Raise InvalidRequestError if the settings in all answers to a body would take more than MAX_SETTINGS."""
    is_told = not options.response_fields or any(name.startswith(SETTINGS) for name in options.response_fields)
    if n_answers > 1 and is_told and not options.stream:
        size = len(json.dumps(generation_settings(params, options, 0)))
        if size * n_answers > MAX_SETTINGS:
            raise InvalidRequestError(
                f"each of {n_answers} answers would repeat settings of {size} characters: ask for fewer completions, "
                "for a stream, or for response_fields without generation_settings"
            )


def generation_settings(params: SamplingParams, options: NativeOptions, seed: int | None) -> dict[str, Any]:
    """Return sampling parameters by their names in llama.cpp's server, where those that pymtp lacks are switched off.

    A bias of null forbids a token, because JSON has no infinity.

    seed: the seed that was used; None for a random one.
    """
    limit = 0 if options.only_prompt else -1 if params.max_tokens is None else params.max_tokens
    return {
        "seed": -1 if seed is None else seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_last_n": params.penalty_last_n,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        **{name: getattr(params, name) for name in SAMPLER_RULES},
        "samplers": list(SAMPLERS if params.samplers is None else params.samplers),
        "mirostat": 0,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.0,
        "stop": list(params.stop),
        "max_tokens": limit,
        "n_predict": limit,
        "ignore_eos": params.ignore_eos,
        "stream": options.stream,
        "logit_bias": [
            {"token": token, "bias": bias if bias > -1e30 else None} for token, bias in params.logit_bias.items()
        ],
        "n_probs": options.n_probs or 0,
        "grammar": params.gbnf or "",
        "timings_per_token": options.timings_per_token,
        "post_sampling_probs": options.post_sampling,
    }
