"""Writing of answers in the form of Ollama's API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from pymtp.chat import ContentDelta, OutputEvent, ParsedOutput, ReasoningDelta
from pymtp.openai.generate_request import Output
from pymtp.server.ollama.types import OllamaAnswer, OllamaAnsweredCall
from pymtp.stats import Stats


class AnswerWriter:
    """The writer of one answer of /api/chat or /api/generate, in parts or as a whole."""

    def __init__(self, model_name: str, *, chat: bool) -> None:
        """chat: whether the text stands in a message, as for /api/chat."""
        self._model_name, self._chat = model_name, chat

    def part(self, events: Sequence[OutputEvent] = ()) -> OllamaAnswer | None:
        """Return the part for new output; None if it has no text. Tool calls come with the last parts."""
        thinking = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
        content = "".join(event.text for event in events if isinstance(event, ContentDelta))
        return self._answer(content, thinking) if thinking or content else None

    def empty(self) -> OllamaAnswer:
        """Return a part without text, which keeps the connection alive."""
        return self._answer("", "")

    def loaded(self) -> OllamaAnswer:
        """Return the answer to a request without a prompt, which asks for the model to be loaded."""
        return {**self.empty(), "done": True, "done_reason": "load"}

    def end(self, output: Output) -> list[OllamaAnswer]:
        """Return the last parts: the tool calls, if there are any, and the durations."""
        parsed = output.parsed or ParsedOutput()
        calls = tool_calls(parsed)
        answers = [self._answer("", "", calls)] if calls else []
        return [*answers, self.empty() | _end(output)]  # type: ignore[list-item] # a union of typed dicts

    def whole(self, output: Output) -> OllamaAnswer:
        """Return the whole answer."""
        parsed = output.parsed
        if parsed is None:
            answer = self._answer(output.completion.text, "")
        else:
            answer = self._answer(parsed.content or "", parsed.reasoning or "", tool_calls(parsed))
        return answer | _end(output)  # type: ignore[return-value] # a union of typed dicts

    def _answer(self, content: str, thinking: str, calls: Sequence[OllamaAnsweredCall] = ()) -> OllamaAnswer:
        answer: OllamaAnswer = {"model": self._model_name, "created_at": now(), "done": False}
        if self._chat:
            answer["message"] = {"role": "assistant", "content": content}
            if thinking:
                answer["message"]["thinking"] = thinking
            if calls:
                answer["message"]["tool_calls"] = list(calls)
        else:
            answer["response"] = content
            if thinking:
                answer["thinking"] = thinking
        return answer


def tool_calls(parsed: ParsedOutput) -> list[OllamaAnsweredCall]:
    """Return the complete calls of an output, with their arguments as objects."""
    return [
        {"function": {"index": i, "name": call.name, "arguments": json.loads(call.arguments)}}
        for i, call in enumerate(parsed.tool_calls)
    ]


def _end(output: Output) -> dict[str, Any]:
    reason = "length" if output.finish_reason == "length" else "stop"
    return {"done": True, "done_reason": reason, **durations(output.completion.stats)}


def durations(stats: Stats) -> dict[str, int]:
    """Return the times of a completion in nanoseconds, and its numbers of tokens, by Ollama's names."""
    return {
        "total_duration": nanoseconds(stats.queue_seconds + stats.prefill_seconds + stats.decode_seconds),
        "load_duration": 0,
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": nanoseconds(stats.prefill_seconds),
        "eval_count": stats.completion_tokens,
        "eval_duration": nanoseconds(stats.decode_seconds),
    }


def nanoseconds(seconds: float) -> int:
    """Convert seconds to whole nanoseconds."""
    return round(1e9 * seconds)


def now() -> str:
    """Return the present time in UTC, as Ollama writes it."""
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def encode_line(answer: Mapping[str, Any]) -> bytes:
    """Encode a part of an answer as a line of JSON."""
    return json.dumps(answer).encode() + b"\n"
