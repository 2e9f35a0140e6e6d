"""Random requests of all kinds, whose prompts share beginnings, for checks of many requests."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pymtp import Completion, SamplingParams
from pymtp.chat.prompt import ChatPrompt
from pymtp.engine.request import Request
from pymtp.errors import PymtpError
from pymtp.images import Image
from pymtp.model.model import Model
from pymtp.sampling import TokenLogprobs
from pymtp.stats import Stats

Call = Literal["generate", "list", "stream"]

GRAMMARS: Sequence[dict[str, Any]] = (
    {"grammar": 'root ::= [a-z ]+ "."'},
    {"grammar": 'root ::= ("def " [a-z_]+ "(" [a-z, ]* "):\\n" "    return " [a-z0-9 +]+ "\\n")+'},
    {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}},
    {"json_schema": {"type": "array", "items": {"enum": [1, "two", None, True]}, "minItems": 3, "maxItems": 20}},
    {"grammar": 'root ::= "a" [0-9] [0-9] [^\\x00-\\U0010ffff]'},  # a dead end: only this request fails
)
STOPS = ("e", ("\n\n", "return"), (" ", "="), "self", ("never comes",))
BREAKERS = ((), ("\n",), (" ", "self", "e"))
ORDER = "edskypmxt"  # llama.cpp's letters for the samplers
KNOWN = 40  # texts that prompts repeat, continue or branch off from
ROOM = 64  # tokens of the context that most prompts leave free


@dataclass(frozen=True)
class RequestSpec:
    """A request: prompt, parameters, and the way a caller makes and cancels it.

    call: the method of LLM; "list" for `generate` with several prompts.
    arrival_step: the step of the engine, or the unit of time, at which it arrives.
    cancel_after: the number of tokens after which the caller cancels it; None for never.
    branch_points: those of LLM._submit.
    images: those of the prompt by their tokens.
    """

    number: int
    prompt: list[int]
    params: SamplingParams
    priority: int
    call: Call
    arrival_step: int
    cancel_after: int | None
    branch_points: tuple[int, ...]
    images: Mapping[int, Image] = field(default_factory=dict)

    @property
    def given(self) -> list[int] | ChatPrompt:
        """Return the prompt as an LLM takes it."""
        return ChatPrompt(self.prompt, (), images=self.images) if self.images else self.prompt

    @property
    def completions_params(self) -> list[SamplingParams]:
        """Return the params of each completion alone."""
        seed = self.params.seed or 0
        return [replace(self.params, n=1, seed=(seed + i) % 2**64) for i in range(self.params.n)]


@dataclass(frozen=True)
class Outcome:
    """The result of a completion.

    reason: Completion.finish_reason, "failed" with `error`, or "pieces" for a stream, whose pieces give no reason.
    """

    token_ids: list[int]
    text: str
    reason: str
    logprobs: list[TokenLogprobs] | None = None
    error: str = ""
    stats: Stats | None = None  # may differ

    def difference(self, whole: Outcome) -> str:
        """Describe the difference from the complete outcome of the request alone; "" for none.

        Only the beginning of an unfinished text is compared: a failed round returns no token, and rounds of the request
        alone have other lengths.
        """
        n = len(self.token_ids)
        for i, (one, other) in enumerate(zip(self.token_ids, whole.token_ids, strict=False)):
            if one != other:
                return f"token {i} is {one}, and {other} alone"
        complete = self.reason in ("stop", "length")
        if n > len(whole.token_ids) or (complete and n < len(whole.token_ids)):
            return f"{n} tokens, and {len(whole.token_ids)} alone"
        if self.logprobs is not None and self.logprobs != (whole.logprobs or [])[:n]:
            pairs = zip(self.logprobs, whole.logprobs or [], strict=False)
            places = [i for i, (one, other) in enumerate(pairs) if one != other]
            return f"the log-probabilities of token {places[0] if places else n} differ"
        if complete and (self.reason, self.text) != (whole.reason, whole.text):
            return f"ends as {self.reason!r} with {self.text[-20:]!r}, alone as {whole.reason!r} {whole.text[-20:]!r}"
        if self.error != (whole.error if self.reason == "failed" else ""):
            return f"fails by {self.error!r}, alone by {whole.error!r}"
        return ""


def outcome(found: Completion | Request) -> Outcome:
    """Return the outcome of a finished completion or request."""
    if not isinstance(found, Request):
        return Outcome(found.token_ids, found.text, found.finish_reason, found.logprobs, stats=found.stats)
    done = outcome(found.completion)
    return done if found.error is None else replace(done, reason="failed", error=describe_error(found.error))


def describe_error(error: PymtpError) -> str:
    """Return the type and the message of an error."""
    return f"{type(error).__name__}: {error}"


class RequestGenerator:
    """Makes random requests: the same for the same random numbers.

    Prompts are new, or repeat, continue or branch off from earlier prompts and answers.
    """

    def __init__(
        self, model: Model, numbers: random.Random, texts: Sequence[Sequence[int]], n_ctx: int, n_ubatch: int
    ) -> None:
        self._model, self._numbers, self._texts, self._n_ctx, self._n_ubatch = model, numbers, texts, n_ctx, n_ubatch
        self.known: list[list[int]] = []

    def make_many(self, n: int, span: int) -> list[RequestSpec]:
        """Return n requests that arrive within `span` steps."""
        times = sorted(self._numbers.randrange(span) for _ in range(n))
        return [self.make(number, arrival_step) for number, arrival_step in enumerate(times)]

    def make(self, number: int = 0, arrival_step: int = 0) -> RequestSpec:
        """Return a random request, whose prompt later requests may share."""
        numbers = self._numbers
        call: Call = numbers.choice(("generate", "list", "stream", "stream"))
        params = self._params(several=call != "stream")
        prompt = self.whole(self._prompt())
        if numbers.random() < 0.02 and params.grammar is None:  # runs to the end of the context
            params = replace(params, max_tokens=None, ignore_eos=True, stop=())
            prompt = self.whole((prompt * self._n_ctx)[: self._n_ctx - numbers.randint(1, 60)])
        self._keep(prompt)
        cancel_after = numbers.randint(1, 60) if numbers.random() < 0.15 else None
        priority = numbers.choice((-1, 0, 0, 0, 1))
        branch_points = {numbers.randint(1, len(prompt)) for _ in range(numbers.choice((0, 0, 0, 1, 2)))}
        where = tuple(sorted(branch_points))
        images = self.images_of(prompt)
        return RequestSpec(number, prompt, params, priority, call, arrival_step, cancel_after, where, images)

    def whole(self, prompt: list[int]) -> list[int]:
        """Return a prompt that an LLM takes, for one that was cut anywhere. A prompt of text is taken as it is."""
        return prompt

    def images_of(self, prompt: Sequence[int]) -> Mapping[int, Image]:
        """Return the images of a prompt by their tokens."""
        return {}

    def answered(self, spec: RequestSpec, found: Outcome) -> None:
        """Add the text that was generated for a prompt: later prompts may continue it."""
        if n := len(found.token_ids):
            end = self._numbers.choice((n, n, n - 1, self._numbers.randint(0, n)))
            self._keep(spec.prompt + found.token_ids[:end])

    def _keep(self, text: list[int]) -> None:
        if len(self.known) < KNOWN:
            self.known.append(text)
        else:
            self.known[self._numbers.randrange(KNOWN)] = text

    def _prompt(self) -> list[int]:
        numbers = self._numbers
        limit = self._n_ctx - numbers.choice((1, ROOM, ROOM, ROOM))
        way = numbers.choice(("new", "again", "start", "part", "part", "more", "more")) if self.known else "new"
        if way == "new":
            n = numbers.choice((numbers.randint(1, 8), numbers.randint(1, 90), numbers.randint(90, limit)))
            return self._text(n)[:limit]
        base = numbers.choice(self.known)
        if way == "part":
            base = base[: self._place(len(base))] + self._text(numbers.choice((1, 8, 48, 100)))
        elif way == "start":
            base = base[: self._place(len(base))]
        elif way == "more":
            base = base + self._text(numbers.choice((1, 5, 40, 100)))
        return base[:limit]

    def _place(self, length: int) -> int:
        """Return a random position: anywhere, near the end of a ubatch, or shortly before the end."""
        numbers = self._numbers
        piece = numbers.randrange(1 + length // self._n_ubatch) * self._n_ubatch + numbers.choice((-1, 0, 1))
        place = numbers.choice((numbers.randint(1, length), piece, length - numbers.randint(0, 12)))
        return min(max(1, place), length)

    def _text(self, n: int) -> list[int]:
        numbers = self._numbers
        if numbers.random() < 0.3:
            return numbers.choices(range(min(256, self._model.n_vocab)), k=n)
        text = numbers.choice(self._texts)
        start = numbers.randrange(max(1, len(text) - n))
        return list(text[start : start + n])

    def _samplers(self) -> dict[str, Any]:
        """Return values of some of the samplers that few requests use."""
        numbers = self._numbers
        kinds: list[dict[str, Any]] = [
            {
                "dry_multiplier": numbers.choice((0.4, 0.8, 5.0)),
                "dry_base": numbers.choice((1.0, 1.75, 4.0)),
                "dry_allowed_length": numbers.choice((0, 1, 2, 8)),
                "dry_penalty_last_n": numbers.choice((-1, 8, 64)),
            }
            | ({"dry_sequence_breakers": numbers.choice(BREAKERS)} if numbers.random() < 0.3 else {}),
            {
                "xtc_probability": numbers.choice((0.2, 0.5, 1.0)),
                "xtc_threshold": numbers.choice((0.0, 0.05, 0.1, 0.3)),
            },
            {"top_n_sigma": numbers.choice((0.5, 1.0, 3.0))},
            {"typical_p": numbers.choice((0.3, 0.9, 0.99))},
            {
                "dynatemp_range": numbers.choice((0.1, 0.5, 2.0)),
                "dynatemp_exponent": numbers.choice((0.3, 1.0, 2.0)),
            },
            {"samplers": numbers.choice((None, "".join(numbers.sample(ORDER, numbers.randint(0, len(ORDER))))))},
        ]
        chosen: dict[str, Any] = {}
        for kind in numbers.sample(kinds, numbers.choice((1, 1, 2, 3, len(kinds)))):
            chosen |= kind
        return chosen

    def _params(self, *, several: bool) -> SamplingParams:
        numbers = self._numbers
        more: dict[str, Any] = {}
        if numbers.random() < 0.2:
            more |= {
                "repetition_penalty": numbers.choice((1.0, 1.1, 1.5)),
                "frequency_penalty": numbers.choice((0.0, 0.2)),
                "presence_penalty": numbers.choice((0.0, 0.3)),
                "penalty_last_n": numbers.choice((-1, 16, 64)),
            }
        if numbers.random() < 0.3:
            bias = numbers.choice(((-4.0, 0.5, 2.0), (100.0,)))  # with the second, the head predicts the tokens
            tokens = numbers.sample(range(self._model.n_vocab), numbers.randint(1, 4))
            more["logit_bias"] = {token: numbers.choice(bias) for token in tokens}
        if numbers.random() < 0.3:
            more |= self._samplers()
        if numbers.random() < 0.15:
            more |= numbers.choice(GRAMMARS)
        elif numbers.random() < 0.15:
            more["stop"] = numbers.choice(STOPS)
        return SamplingParams(
            max_tokens=numbers.choice((numbers.randint(1, 6), numbers.randint(7, 60), numbers.randint(60, 180))),
            temperature=numbers.choice((0.0, 0.0, 0.3, 0.7, 1.0, 1.5)),
            top_k=numbers.choice((0, 1, 40, 40, 200)),
            top_p=numbers.choice((1.0, 0.95, 0.5)),
            min_p=numbers.choice((0.0, 0.05, 0.2)),
            seed=numbers.getrandbits(64),
            ignore_eos=numbers.random() < 0.8,
            logprobs=numbers.choice((None, 0, 1, 5, 3)),
            n=numbers.choice((1, 1, 1, 1, 2, 3)) if several else 1,
            draft_tokens=numbers.choice((None, None, None, *range(8))),
            **more,
        )
