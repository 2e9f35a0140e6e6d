"""Answers as OpenAI's API has them: bodies of /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any

from pymtp.chat import Answer
from pymtp.engine.request import Completion
from pymtp.model.model import Model
from pymtp.native.build_info import build_info
from pymtp.openai.generate_request import Text
from pymtp.openai.requests import CHAT, text_prompts
from pymtp.sampling import TokenLogprobs
from pymtp.stats import Stats

OBJECTS = {CHAT: ("chatcmpl-", "chat.completion")}
Each = Sequence[Sequence[Text]]


@cache
def fingerprint() -> str:
    """Which build answers."""
    info = build_info()
    return f"pymtp-{info['pymtp']}-{info['llama_cpp_commit'][:7]}"


def head(url: str, model_name: str) -> dict[str, Any]:
    """What an answer and all chunks of a stream begin with."""
    prefix, kind = OBJECTS.get(url, ("cmpl-", "text_completion"))
    return {
        "id": prefix + uuid.uuid4().hex,
        "object": kind,
        "created": int(time.time()),
        "model": model_name,
        "system_fingerprint": fingerprint(),
    }


def call_id() -> str:
    """A new name of a call, which the tool's answer comes with."""
    return f"call_{uuid.uuid4().hex[:24]}"


def answer(url: str, body: Mapping[str, Any], each: Each, model: Model, model_name: str) -> dict[str, Any]:
    """The body of an answer. each: of each prompt its texts; of a chat there is one prompt."""
    texts = [text for texts in each for text in texts]
    if url == CHAT:
        choices = [_chat_choice(i, text, model) for i, text in enumerate(texts)]
    else:
        prompts = text_prompts(body) if body.get("echo") else [""] * len(each)
        before = [prompt_text(prompt, model) for prompt, texts in zip(prompts, each, strict=True) for _ in texts]
        choices = [_text_choice(i, text.completion, model, before[i]) for i, text in enumerate(texts)]
    return head(url, body.get("model") or model_name) | {
        "choices": choices,
        "usage": usage([[text.completion for text in texts] for texts in each]),
        "pymtp": drafting([text.completion for text in texts]),
    }


def usage(each: Sequence[Sequence[Completion]]) -> dict[str, Any]:
    """Tokens of the prompts, each counted once, and of all completions."""
    n_prompt = sum(len(done[0].prompt_token_ids) for done in each)
    n_written = sum(len(one.token_ids) for done in each for one in done)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_written,
        "total_tokens": n_prompt + n_written,
        "prompt_tokens_details": {"cached_tokens": sum(done[0].stats.cached_tokens for done in each)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(one.stats.thinking_tokens for done in each for one in done)
        },
    }


def drafting(done: Sequence[Completion]) -> dict[str, Any]:
    """What multi-token prediction brought to all texts together. Of the times, the queue's and the first token's are
    those of the first text, the others the longest."""
    stats = [one.stats for one in done]
    drafted, accepted = sum(each.drafted for each in stats), sum(each.accepted for each in stats)
    decode_seconds = max(each.decode_seconds for each in stats)
    written = sum(max(0, each.completion_tokens - 1) for each in stats)
    return {
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": round(accepted / drafted, 4) if drafted else 0.0,
        "accepted_per_position": _sums(stats),
        "depths": [depth for each in stats for depth in each.depths],
        "rounds": sum(each.rounds for each in stats),
        "prefill_seconds": round(max(each.prefill_seconds for each in stats), 6),
        "decode_seconds": round(decode_seconds, 6),
        "queue_seconds": round(stats[0].queue_seconds, 6),
        "time_to_first_token": round(stats[0].time_to_first_token, 6),
        "cached_tokens": stats[0].cached_tokens,
        "tokens_per_second": round(written / decode_seconds, 2) if decode_seconds else 0.0,
        "seed": done[0].seed,
    }


def _sums(stats: Sequence[Stats]) -> list[int]:
    return [sum(at) for at in zip_longest(*(each.accepted_per_position for each in stats), fillvalue=0)]


def _chat_choice(i: int, text: Text, model: Model) -> dict[str, Any]:
    done = text.completion
    return {
        "index": i,
        "message": message(text.answer or Answer(None, done.text, ())),
        "finish_reason": text.reason,
        "logprobs": None if done.logprobs is None else chat_logprobs(done.logprobs, model),
    }


def message(answer: Answer) -> dict[str, Any]:
    """The assistant's message. A call that was cut short is the last, with the arguments that came, as in a stream."""
    calls = answer.calls if answer.unfinished is None else (*answer.calls, answer.unfinished)
    found: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.content is None and not calls:
        found["content"] = ""
    if answer.thinking is not None:
        found |= {"reasoning_content": answer.thinking, "reasoning": answer.thinking}
    if calls:
        found["tool_calls"] = [
            {"id": call_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return found


def chat_logprobs(each: Iterable[TokenLogprobs], model: Model) -> dict[str, Any]:
    """The tokens of a chat's answer with their log-probabilities."""

    def token(number: int, logprob: float) -> dict[str, Any]:
        data = model.token_bytes(number)
        return {"token": data.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(data)}

    return {
        "content": [
            token(one.token_id, one.logprob) | {"top_logprobs": [token(*top) for top in one.top]} for one in each
        ]
    }


def prompt_text(prompt: str | list[int], model: Model) -> str:
    """The text of a prompt, for one that is to be repeated."""
    return prompt if isinstance(prompt, str) else model.detokenize(prompt)


def _text_choice(i: int, done: Completion, model: Model, before: str) -> dict[str, Any]:
    return {
        "index": i,
        "text": before + done.text,
        "finish_reason": done.finish_reason,
        "logprobs": None if done.logprobs is None else text_logprobs(done.logprobs, model, len(before)),
    }


def text_logprobs(each: Iterable[TokenLogprobs], model: Model, start: int) -> dict[str, Any]:
    """The tokens of a text with their log-probabilities. start: characters before the first."""

    def text(number: int) -> str:
        return model.token_bytes(number).decode("utf-8", "replace")

    found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for one in each:
        found["tokens"].append(text(one.token_id))
        found["token_logprobs"].append(_finite(one.logprob))
        found["top_logprobs"].append({text(number): _finite(logprob) for number, logprob in one.top})
        found["text_offset"].append(start)
        start += len(found["tokens"][-1])
    return found


def _finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI's API says -9999 there."""
    return max(logprob, -9999.0)
