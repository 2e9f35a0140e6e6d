"""Which token follows: a function of the seed, the position, the logits and the tokens before, and of nothing else.

Greedy takes the argmax. With a temperature, the token at a position is argmax over the filtered candidates of
log p + Gumbel(seed, position, token id). The target and the draft head draw with the same noise, so they agree more
often than two independent draws, and the drawn token does not depend on whether, how deep or how often one drafts
(Daliri, Musco, Suresh: "Coupling without Communication and Drafter-Invariant Speculative Decoding", arXiv 2408.07978).

The sampling itself is pymtp/native/runtime/sampler.cpp, where the logits are.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pymtp.errors import InvalidRequestError
from pymtp.grammar.json_schema import MAX_TEXT, schema_grammar, schema_text
from pymtp.model.model import Model
from pymtp.native import ffi, lib
from pymtp.native.locking import refuse_copies
from pymtp.validation import flag, is_real, is_whole, shown

Logits = NDArray[np.float32]

MAX_LOGPROBS = 100
MOST = 1e30  # of a bias or penalty: what becomes of logits then stays within float32
MAX_COMPLETIONS = 128  # as OpenAI's API
MAX_DRAFTS = 64  # a round
MOST_END = 1000  # characters of a message that closes a thinking
TAGS = ("<think>", "</think>", "<tool_call>", "<function=")  # of Qwen's templates
CLOSING_MESSAGE = f"text of at most {MOST_END} characters, without {', '.join(TAGS)}"


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens and when to stop.

    max_tokens: the most tokens to generate; None for as many as the context holds.
    top_k: keep the k most likely tokens, 0 for all. top_p: keep the most likely ones that together reach p.
    min_p: drop tokens less likely than min_p times the most likely.
    temperature: 0 takes the most likely token, always; top_k, top_p, min_p and seed then have no part.
    seed: of the noise, below 2**64; None draws one.
    stop: strings that end the text; they are not part of it.
    ignore_eos: go on after the model says that it is done.
    logit_bias: token id → what is added to its logit; -inf forbids it.
    repetition_penalty: divides positive and multiplies negative logits of tokens that came before, 1 for none.
    frequency_penalty, presence_penalty: taken from their logits for each time they came, and once, 0 for none.
    penalty_last_n: how many tokens before count, the prompt's too; 0 for none, -1 for all.

    grammar: what the text may be, in llama.cpp's GBNF, from the rule "root". The model may end only where the grammar
        does, and a control token comes only where the grammar names it.
    json_schema: the same as a JSON schema, a mapping or its text, kept as text. A keyword that a grammar cannot hold a
        text to is refused.
    grammar_prefix: so many tokens at the end of the prompt begin the grammar's text: a text that was cut goes on with
        `grammar_prefix=len(first.token_ids)`.
    logprobs: report with each token its log-probability and those of so many likeliest tokens, at most 100; None for
        none. Of the model's own distribution: the softmax over the whole vocabulary at temperature 1, before bias,
        penalties, grammar and filters.
    n: completions of one prompt, at most 128; the further ones are `Completion.others`. Each has a seed of its own:
        that of the first and 1, 2, … more. Greedy ones are the same.
    draft_tokens: the most drafts a round for this text, 0 for plain decoding; None for what the LLM does.
    thinking_budget: the most tokens of thinking, at most n_ctx; 0 for no thinking, None for any number. When so many
        are out and `</think>` is not, `thinking_end` and `</think>` are written in one round, and the answer follows.
        Thinking begins where the prompt ends with `<think>`, or the text begins with it. With a budget, the grammar of
        a text whose prompt ends with `<think>` begins behind the thinking, unless the grammar itself names `</think>`.
    thinking_end: a message that is written before `</think>` when a budget of 1 or more is out, "" for none. It is no
        part of the budget, and counts for max_tokens.

    Grammar, bias, penalties, top-k, top-p, min-p and temperature are applied in this order, with llama.cpp's
    definitions and defaults.

    Raises InvalidRequestError for values outside their range, a schema that cannot be held to, and, where the text is
    to be generated, for a grammar that is refused.
    """

    max_tokens: int | None = 256
    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = 0
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: str | None = None
    json_schema: str | Mapping[str, Any] | None = None
    grammar_prefix: int = 0
    logprobs: int | None = None
    n: int = 1
    draft_tokens: int | None = None
    thinking_budget: int | None = None
    thinking_end: str = ""

    def __post_init__(self) -> None:
        stops = _listed(self.stop)
        object.__setattr__(self, "stop", stops)
        bias = self.logit_bias
        if isinstance(bias, Mapping):
            bias = MappingProxyType(dict(bias))
            object.__setattr__(self, "logit_bias", bias)
        checks = (
            (
                "max_tokens",
                self.max_tokens is None or is_whole(self.max_tokens, 1),
                "a whole number of at least 1, or None",
            ),
            ("temperature", is_real(self.temperature) and self.temperature >= 0, "a finite number, 0 or more"),
            ("top_k", is_whole(self.top_k, 0), "a whole number, 0 or more"),
            ("top_p", is_real(self.top_p) and 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", is_real(self.min_p) and 0 <= self.min_p <= 1, "from 0 to 1"),
            (
                "seed",
                self.seed is None or is_whole(self.seed, 0, 2**64 - 1),
                "a whole number from 0 to 2**64 - 1, or None",
            ),
            ("repetition_penalty", _within(self.repetition_penalty, 1 / MOST), "from 1e-30 to 1e30"),
            ("frequency_penalty", _within(self.frequency_penalty, -MOST), "from -1e30 to 1e30"),
            ("presence_penalty", _within(self.presence_penalty, -MOST), "from -1e30 to 1e30"),
            ("penalty_last_n", is_whole(self.penalty_last_n, -1), "a whole number, -1 or more"),
            ("logit_bias", _is_bias(bias), "a mapping from token ids to numbers from -1e30 to 1e30, or -inf"),
            ("stop", all(isinstance(s, str) and s for s in stops), "non-empty strings"),
            ("grammar", self.grammar is None or _is_text(self.grammar), "GBNF of at most 2**20 characters, or None"),
            ("json_schema", isinstance(self.json_schema, (str, Mapping, type(None))), "a mapping, JSON text, or None"),
            ("json_schema", self.json_schema is None or self.grammar is None, "None beside a grammar"),
            ("grammar_prefix", is_whole(self.grammar_prefix, 0, 2**31 - 1), "0 or more"),
            (
                "logprobs",
                self.logprobs is None or is_whole(self.logprobs, 0, MAX_LOGPROBS),
                "a whole number from 0 to 100, or None",
            ),
            ("n", is_whole(self.n, 1, MAX_COMPLETIONS), f"a whole number from 1 to {MAX_COMPLETIONS}"),
            (
                "draft_tokens",
                self.draft_tokens is None or is_whole(self.draft_tokens, 0, MAX_DRAFTS),
                f"a whole number from 0 to {MAX_DRAFTS}, or None",
            ),
            (
                "thinking_budget",
                self.thinking_budget is None or is_whole(self.thinking_budget, 0),
                "a whole number, 0 or more, or None for any number of tokens",
            ),
            (
                "thinking_end",
                is_closing_message(self.thinking_end),
                CLOSING_MESSAGE,
            ),
        )
        for name, right, wanted in checks:
            if not right:
                raise InvalidRequestError(f"{name}={shown(getattr(self, name))} must be {wanted}", name)
        object.__setattr__(self, "ignore_eos", flag("ignore_eos", self.ignore_eos))
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", schema_text(self.json_schema))
        self.gbnf  # noqa: B018 — a schema is refused here, not where it is used

    def __reduce__(self) -> tuple[Any, ...]:
        # a mapping proxy, which keeps logit_bias as it is, cannot be copied or pickled
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return _restored, (values | {"logit_bias": dict(self.logit_bias)},)

    @cached_property
    def gbnf(self) -> str | None:
        """The grammar, or that of the schema."""
        return schema_grammar(self.json_schema) if isinstance(self.json_schema, str) else self.grammar


def _listed(stop: Any) -> tuple[Any, ...]:
    one = isinstance(stop, (str, bytes, Mapping)) or not isinstance(stop, Iterable)
    if one or (isinstance(stop, np.ndarray) and stop.ndim == 0):
        return (stop,)
    return tuple(stop)


def _restored(values: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**values)


@dataclass(frozen=True)
class TokenLogprobs:
    """A generated token's natural log-probability, and the likeliest tokens with theirs, most likely first: of the
    model's logits by themselves, within 1e-6 of what float64 makes of them."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or "\0" in value or len(value) > MAX_TEXT:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_closing_message(value: object) -> bool:
    """Whether it may be written where a budget of thinking is out; see CLOSING_MESSAGE."""
    return _is_text(value) and len(str(value)) <= MOST_END and not any(tag in str(value) for tag in TAGS)


def _within(value: Any, low: float) -> bool:
    return is_real(value) and low <= value <= MOST


def _is_bias(bias: object) -> bool:
    return isinstance(bias, Mapping) and all(
        is_whole(token, 0) and (_within(value, -MOST) or value == -math.inf) for token, value in bias.items()
    )


class Sampler:
    """`params` as the native side takes them. `seed` is the one in use. Threads that share it take turns."""

    def __init__(self, params: SamplingParams, seed_offset: int = 0) -> None:
        """seed_offset: what is added to the seed, modulo 2**64."""
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"params must be SamplingParams, not {type(params).__name__}")
        self._lock = threading.RLock()
        self.params = params
        self.seed = secrets.randbits(64) if params.seed is None else (int(params.seed) + seed_offset) % 2**64
        self._bias = ffi.new("struct pymtp_logit_bias[]", [(int(t), float(v)) for t, v in params.logit_bias.items()])
        self.native: Any = ffi.new("struct pymtp_sampling *")
        self.native.temperature = params.temperature
        self.native.top_k = min(params.top_k, 2**31 - 1)
        self.native.top_p = params.top_p
        self.native.min_p = params.min_p
        self.native.seed = self.seed
        self.native.penalty_last_n = min(params.penalty_last_n, 2**31 - 1)
        self.native.repeat_penalty = params.repetition_penalty
        self.native.frequency_penalty = params.frequency_penalty
        self.native.presence_penalty = params.presence_penalty
        self.native.n_bias = len(params.logit_bias)
        self.native.bias = self._bias
        self.native.n_grammar_prefix = params.grammar_prefix
        self.native.n_logprobs = -1 if params.logprobs is None else params.logprobs
        self._gbnf = params.gbnf
        self._n_vocab = 0  # any

    def held_to(self, gbnf: str | None, grammar_prefix: int = 0) -> Sampler:
        """One that differs by its grammar, None for none, and by how many tokens before it begin the grammar's text."""
        other = Sampler(self.params)
        other.seed = other.native.seed = self.seed
        other._gbnf, other.native.n_grammar_prefix = gbnf, grammar_prefix
        return other

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)

    @contextmanager
    def compiled(self, model: Model) -> Iterator[Any]:
        """`native` with the grammar, while it lasts, ready for a model's vocabulary. Raises InvalidRequestError, with
        the reason, for one that is refused."""
        with self._lock, nullcontext(ffi.NULL) if self._gbnf is None else model.grammar(self._gbnf) as grammar:
            self.native.grammar, self._n_vocab = grammar, model.n_vocab
            try:
                yield self.native
            finally:
                self.native.grammar, self._n_vocab = ffi.NULL, 0

    def sample(self, logits: Logits, position: int, before: Sequence[int] = ()) -> tuple[int | None, float]:
        """The token at `position`, from logits of shape (n_vocab,), after the tokens `before`, which a grammar's text
        begins with: None when a logit is not a number or the grammar allows none. And its probability at temperature 1
        among the likeliest, from 0 to 1. Within `compiled`, where there is a grammar. Raises InvalidRequestError for
        logits of another shape, tokens that are not in the vocabulary, and a negative position."""
        with self._lock:
            with np.errstate(over="ignore"):  # infinite is what such a logit is, and what is said of it
                row = np.ascontiguousarray(logits, dtype=np.float32)
            n_vocab = self._n_vocab or row.size
            if row.shape != (n_vocab,) or n_vocab == 0:
                raise InvalidRequestError(f"logits must have the shape ({n_vocab or 'n_vocab'},), not {row.shape}")
            for token in {*before, *self.params.logit_bias}:
                if not 0 <= token < n_vocab:
                    raise InvalidRequestError(f"there is no token {token} in a vocabulary of {n_vocab}")
            if not is_whole(position, 0, 2**63 - 1):
                raise InvalidRequestError(f"position={shown(position)} must be a whole number, 0 or more")
            confidence = ffi.new("float *")
            token = lib.pymtp_sample(
                self.native, ffi.from_buffer("float[]", row), len(row), position, list(before), len(before), confidence
            )
            return (None if token < 0 else token), confidence[0]
