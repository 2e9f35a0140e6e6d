"""Sampling: the next token is a function of the seed, the position, the logits and the earlier tokens.

Greedy takes the argmax. With a temperature, the token at a position is argmax over the filtered candidates of
log p + Gumbel(seed, position, token id). The target and the draft head sample with the same noise. So they agree more
often than two independent samples would, and the sampled token does not depend on the drafts
(Daliri, Musco, Suresh: "Coupling without Communication and Drafter-Invariant Speculative Decoding", arXiv 2408.07978).

The code that samples is pymtp/native/runtime/sampler.cpp, where the logits are.
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
from pymtp.grammar.json_schema import MAX_TEXT, SchemaGrammar, schema_grammar, schema_text
from pymtp.model.model import Model
from pymtp.native import ffi, lib
from pymtp.native.process import refuse_copies
from pymtp.samplers import (
    DEFAULT_BREAKERS,
    SAMPLER_RULES,
    SAMPLERS,
    SAMPLING_NAMES_ELSEWHERE,
    LogitsProcessor,
    RowProcessor,
    read_breakers,
    read_order,
    read_processors,
)
from pymtp.validation import is_real, is_text, is_whole, names_keywords, read_bool, shown

Logits = NDArray[np.float32]


@ffi.def_extern(error=False)  # type: ignore[untyped-decorator]
def pymtp_on_logits(data: Any, logits: Any, n_vocab: int, prefix: Any, n: int) -> bool:
    processor: RowProcessor = ffi.from_handle(data)
    return processor.run(logits, n_vocab, prefix, n)


MAX_LOGPROBS = 100
MAX_MAGNITUDE = 1e30  # the largest bias or penalty: the changed logits stay within float32
MAX_EXACT = 2**53  # JavaScript and others read larger integers of JSON as floats; random seeds are less
MAX_COMPLETIONS = 128  # completions of a prompt, as in OpenAI's API
MAX_DRAFTS = 64  # drafts in a round
MAX_THINKING_END = 1000  # characters
MAX_SALT = 1000  # characters
TAGS = ("<think>", "</think>", "<tool_call>", "<function=")  # tags in Qwen's chat templates
THINKING_END_RULE = f"text of at most {MAX_THINKING_END} characters, without {', '.join(TAGS)}"


@names_keywords(SAMPLING_NAMES_ELSEWHERE)
@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of a request: how tokens are chosen, and where the text ends.

    max_tokens: the maximum number of tokens to generate; None for as many as the context has room for.
    temperature: 0 for greedy decoding: always the most likely token. top_k, top_p, min_p and seed have no effect then,
        unless one of the samplers below is on.
    top_k: keep the k most likely tokens; 0 for all. top_p: keep the most likely tokens that together reach probability
        p. min_p: drop tokens with less than min_p times the probability of the most likely one.
    seed: the seed of the sampling noise, from 0 to 2**64 - 1; None for a random seed.
    stop: strings that end the text; the text does not contain them.
    stop_token_ids: tokens that end the text, which does not contain them. In a chat, the tokens and strings that end
        the text are looked for after the thinking.
    ignore_eos: continue after the model's end token. A token of `stop_token_ids` still ends the text.
    logit_bias: a number for each token id that is added to its logit; -inf forbids the token.
    repetition_penalty: divides the positive and multiplies the negative logits of tokens that occurred before; 1 for no
        penalty.
    frequency_penalty: subtracted from the logit of a token once for each earlier occurrence; 0 for no penalty.
    presence_penalty: subtracted once from the logit of a token that occurred before; 0 for no penalty.
    penalty_last_n: the number of last tokens, the prompt's included, that the three penalties look at; 0 for no
        penalties, -1 for all tokens.

    grammar: a grammar in llama.cpp's GBNF that the text must match, from its rule "root". The model can end the text
        only where the grammar can end, and can write a control token only where the grammar names it.
    json_schema: a JSON schema that the text must match, as a mapping, as JSON text, or as a class of Pydantic (it is
        kept as text). In a chat, the answer after the thinking must match it. A schema with a keyword that no grammar
        can express is refused; see strict_schema.
    distinct_calls: end the text before a tool call, in the tags of Qwen's templates, that the text already has.
    grammar_prefix: the number of tokens at the end of the prompt that already belong to the grammar's text. To
        continue the text of a completion `first` that was cut off, give `grammar_prefix=len(first.token_ids)`.
    strict_schema: whether a keyword of json_schema that no grammar can express is refused. If False, it is left out,
        and `left_out` names it.
    logprobs: report the log-probability of each token, and this number of most likely tokens with their
        log-probabilities, at most 100; None for no report. The probabilities are the model's own: the softmax over the
        whole vocabulary at temperature 1, before bias, penalties, grammar and filters.
    prompt_logprobs: the same for each token of the prompt but the first, in `Completion.prompt_logprobs`. They are
        computed beside the request, in a context of their own, whatever is cached. None for no report.
    n: the number of completions of one prompt, at most 128; all but the first are in `Completion.others`. Their seeds
        are the seed of the first plus 1, 2, …. With temperature 0 and without XTC they are equal.
    draft_tokens: the maximum number of drafts in each round of this request, 0 for plain decoding; None for the LLM's
        own setting.
    thinking_budget: the maximum number of thinking tokens, at most n_ctx; 0 for no thinking, None for no limit. When
        the budget is used up before `</think>`, `thinking_end` and `</think>` are inserted, and the answer follows.
        Thinking begins if the prompt ends or the completion begins with `<think>`. With a budget and a prompt that ends
        with `<think>`, the grammar applies after the thinking, unless it names `</think>` itself.
    cache_prompt: reuse cached tokens of earlier prompts, and keep those of this prompt. If False, only the n
        completions of the prompt share its tokens.
    cache_salt: the prompt reuses only cached tokens of prompts with the same salt, and of loaded prefix files; at most
        1,000 characters. So nobody who does not know the salt can find out, by times or counts of cached tokens, how
        the prompt begins.
    thinking_end: a message that is inserted before `</think>` when a budget of 1 or more is used up; "" for none. Its
        tokens count for max_tokens, but not for the budget.

    dry_multiplier: DRY ("don't repeat yourself") subtracts dry_multiplier * dry_base ** (length - dry_allowed_length)
        from the logit of a token that would continue a repetition of at least dry_allowed_length tokens; 0 for off.
    dry_base: see dry_multiplier. dry_allowed_length: see dry_multiplier.
    dry_penalty_last_n: the number of last tokens, the prompt's included, in which DRY looks for repetitions; 0 for off,
        -1 for all tokens.
    dry_sequence_breakers: strings at which a repetition ends; DRY does not penalize tokens that contain one.
    top_n_sigma: drop tokens whose logits are more than this number of standard deviations below the highest; 0 for off.
    typical_p: keep the tokens whose -log p is closest to the entropy, as many as exceed this probability; 1 for off.
    xtc_probability: the probability with which XTC ("exclude top choices") drops, at each token, all tokens of at least
        the probability xtc_threshold but the least likely of them; 0 for off. The draws are a function of the seed and
        the position. xtc_threshold: see xtc_probability; above 0.5 for off.
    dynatemp_range: the temperature is between temperature - dynatemp_range and temperature + dynatemp_range, the higher
        the larger the entropy is relative to that of equally likely tokens; 0 for off. dynatemp_exponent: the exponent
        of that relation.
    samplers: the samplers to apply, in their order: a list of "penalties", "dry", "top_n_sigma", "top_k", "typ_p",
        "top_p", "min_p", "xtc" and "temperature", or llama.cpp's letters for them, "edskypmxt". A sampler that is left
        out has no effect, and without "temperature" the temperature is 1. None for all, in this order.

    logits_processor: a function, or a sequence of functions, that changes the logits before everything else. It gets
        the ids of all tokens so far, the prompt's included, as int32 of shape (n,), and the model's row of logits as
        float32 of shape (n_vocab,). Tokens of images have negative ids. It changes the row in place and returns None,
        or returns another row; -inf forbids a token. It is called once for each sampled token, again where tokens are
        computed again, and with drafts maybe behind the end of the text: the result must depend on the arguments alone.
        It runs on any thread, and must not call the LLM. An exception ends its request. Drafts are made without it, and
        verified with it.

    Grammar and bias are applied first, then the samplers, with llama.cpp's definitions and defaults.

    Raises InvalidRequestError for values outside their range and a schema that no grammar can express. A grammar with
    errors is refused when the request is made.
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
    json_schema: str | Mapping[str, Any] | type | None = None
    grammar_prefix: int = 0
    logprobs: int | None = None
    n: int = 1
    draft_tokens: int | None = None
    thinking_budget: int | None = None
    thinking_end: str = ""
    stop_token_ids: Sequence[int] = ()
    cache_prompt: bool = True
    cache_salt: str = ""
    distinct_calls: bool = False
    strict_schema: bool = True
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: str | Sequence[str] = DEFAULT_BREAKERS
    top_n_sigma: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    samplers: str | Sequence[str] | None = None
    logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        stops = _listed(self.stop)
        object.__setattr__(self, "stop", stops)
        object.__setattr__(self, "stop_token_ids", _listed(self.stop_token_ids))
        object.__setattr__(self, "json_schema", _schema_of_model(self.json_schema))
        bias = self.logit_bias
        if isinstance(bias, Mapping):
            bias = MappingProxyType(dict(bias))
            object.__setattr__(self, "logit_bias", bias)
        if self.dry_sequence_breakers is not DEFAULT_BREAKERS:
            object.__setattr__(self, "dry_sequence_breakers", read_breakers(self.dry_sequence_breakers))
        if self.samplers is not None:
            object.__setattr__(self, "samplers", read_order(self.samplers))
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
            ("repetition_penalty", _within(self.repetition_penalty, 1 / MAX_MAGNITUDE), "from 1e-30 to 1e30"),
            ("frequency_penalty", _within(self.frequency_penalty, -MAX_MAGNITUDE), "from -1e30 to 1e30"),
            ("presence_penalty", _within(self.presence_penalty, -MAX_MAGNITUDE), "from -1e30 to 1e30"),
            ("penalty_last_n", is_whole(self.penalty_last_n, -1), "a whole number, -1 or more"),
            ("logit_bias", _is_bias(bias), "a mapping from token ids to numbers from -1e30 to 1e30, or -inf"),
            ("stop", all(isinstance(s, str) and s for s in stops), "non-empty strings"),
            ("stop_token_ids", all(is_whole(token, 0) for token in self.stop_token_ids), "token ids"),
            (
                "grammar",
                self.grammar is None or is_text(self.grammar, MAX_TEXT),
                "GBNF of at most 2**20 characters, or None",
            ),
            (
                "json_schema",
                isinstance(self.json_schema, (str, Mapping, type(None))),
                "a mapping, JSON text, a class of Pydantic, or None",
            ),
            ("json_schema", self.json_schema is None or self.grammar is None, "None beside a grammar"),
            ("grammar_prefix", is_whole(self.grammar_prefix, 0, 2**31 - 1), "0 or more"),
            *(
                (name, value is None or is_whole(value, 0, MAX_LOGPROBS), "a whole number from 0 to 100, or None")
                for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs))
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
                is_thinking_end(self.thinking_end),
                THINKING_END_RULE,
            ),
            (
                "logits_processor",
                self.logits_processor is None or read_processors(self.logits_processor) is not None,
                "a function, a sequence of functions, or None",
            ),
            (
                "cache_salt",
                is_text(self.cache_salt, MAX_SALT),
                f"text of at most {MAX_SALT} characters",
            ),
            *(
                (name, rule.holds(getattr(self, name)), rule.wanted)
                for name, rule in SAMPLER_RULES.items()
                if getattr(self, name) is not getattr(SamplingParams, name)  # the default
            ),
        )
        for name, right, wanted in checks:
            if not right:
                raise InvalidRequestError(f"{name}={shown(getattr(self, name))} must be {wanted}", name)
        for name in ("ignore_eos", "cache_prompt", "distinct_calls", "strict_schema"):
            object.__setattr__(self, name, read_bool(name, getattr(self, name)))
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", schema_text(self.json_schema))  # type: ignore[arg-type] # checked
        self.gbnf  # noqa: B018 — compiles the schema now, so that an invalid one is refused here

    def __reduce__(self) -> tuple[Any, ...]:
        # logit_bias is a read-only mapping proxy, which cannot be copied or pickled
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return _restored, (values | {"logit_bias": dict(self.logit_bias)},)

    @cached_property
    def gbnf(self) -> str | None:
        """Return `grammar`, or the grammar in GBNF for `json_schema`; None without both."""
        return self.grammar if self._schema_grammar is None else self._schema_grammar.gbnf

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the places of json_schema's keywords that are left out, such as "#/properties/a/uniqueItems"."""
        return () if self._schema_grammar is None else self._schema_grammar.left_out

    @cached_property
    def _schema_grammar(self) -> SchemaGrammar | None:
        if not isinstance(self.json_schema, str):
            return None
        return schema_grammar(self.json_schema, strict=self.strict_schema)


def _listed(stop: Any) -> tuple[Any, ...]:
    one = isinstance(stop, (str, bytes, Mapping)) or not isinstance(stop, Iterable)
    if one or (isinstance(stop, np.ndarray) and stop.ndim == 0):
        return (stop,)
    return tuple(stop)


def _schema_of_model(schema: Any) -> Any:
    """Return the JSON schema of a class of Pydantic, or of another that has model_json_schema; others unchanged.

    Raises InvalidRequestError for a class that cannot tell its schema.
    """
    if not isinstance(schema, type) or not callable(getattr(schema, "model_json_schema", None)):
        return schema
    try:
        return schema.model_json_schema()  # type: ignore[attr-defined]
    except Exception as error:  # the class may raise anything
        raise InvalidRequestError(f"json_schema={shown(schema)} tells no schema: {error}", "json_schema") from error


def _restored(values: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**values)


@dataclass(frozen=True)
class TokenLogprobs:
    """The natural log-probability of a token of an output or a prompt, and the most likely tokens with their own.

    The probabilities are those of the model's unchanged logits, within 1e-6 of a computation in float64.
    top: pairs of token id and log-probability, the most likely token first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def is_thinking_end(value: object) -> bool:
    """Return whether `value` is a valid thinking_end; see THINKING_END_RULE."""
    return is_text(value, MAX_THINKING_END) and not any(tag in str(value) for tag in TAGS)


def _within(value: Any, low: float) -> bool:
    return is_real(value) and low <= value <= MAX_MAGNITUDE


def _is_bias(bias: object) -> bool:
    return isinstance(bias, Mapping) and all(
        is_whole(token, 0) and (_within(value, -MAX_MAGNITUDE) or value == -math.inf) for token, value in bias.items()
    )


# fields of SamplingParams and of struct pymtp_sampling
_NATIVE_NAMES = (*(SAMPLER_RULES.keys() - {"dry_penalty_last_n", "dry_sequence_breakers"}),)


class Sampler:
    """The native form of SamplingParams. Safe to share between threads.

    params: the SamplingParams. seed: the seed in use. native: a struct pymtp_sampling *, without the grammar.
    processor: the logits processor, with its error; None without one.
    """

    def __init__(self, params: SamplingParams, seed_offset: int = 0) -> None:
        """
        Convert the params.

        seed_offset: added to the seed, modulo 2**64.

        Raises InvalidRequestError for anything else than SamplingParams.
        """
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"params must be SamplingParams, not {type(params).__name__}")
        self._lock = threading.RLock()
        self.params = params
        self.seed = secrets.randbelow(MAX_EXACT) if params.seed is None else (int(params.seed) + seed_offset) % 2**64
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
        for name in _NATIVE_NAMES:
            setattr(self.native, name, getattr(params, name))
        self.native.dry_penalty_last_n = min(params.dry_penalty_last_n, 2**31 - 1)
        if params.samplers is not None:
            self._order = ffi.new("int32_t[]", [SAMPLERS.index(name) for name in params.samplers] or 1)
            self.native.samplers, self.native.n_samplers = self._order, len(params.samplers)
        functions = read_processors(params.logits_processor) if params.logits_processor is not None else None
        self.processor = None if functions is None else RowProcessor(functions)
        if self.processor is not None:
            self._processor_handle = ffi.new_handle(self.processor)
            self.native.processor, self.native.processor_data = lib.pymtp_on_logits, self._processor_handle
        self._gbnf = params.gbnf
        self._kept: Any = None  # the compiled grammar, from `keep_grammar` to `free_grammar`
        self._n_vocab = 0  # number of logits that `sample` requires; 0 for any number

    def with_grammar(self, gbnf: str | None, grammar_prefix: int = 0) -> Sampler:
        """Return a copy with the same seed, another grammar (GBNF; None for no grammar) and another grammar_prefix."""
        other = Sampler(self.params)
        other.seed = other.native.seed = self.seed
        other._gbnf, other.native.n_grammar_prefix = gbnf, grammar_prefix
        return other

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)

    def keep_grammar(self, model: Model) -> None:
        """Compile the grammar once for all later calls of `compiled` with this model; it keeps the weights in memory.

        Raises InvalidRequestError, with the reason, for a grammar that is refused.
        """
        if self._gbnf is not None:
            self._kept = model.grammar(self._gbnf)

    def free_grammar(self) -> None:
        """Free the grammar that `keep_grammar` compiled."""
        self._kept = None

    def find_breakers(self, model: Model) -> None:
        """Find the tokens at which DRY ends repetitions, so that `compiled` need not wait for them with this model."""
        self._breakers(model)

    @contextmanager
    def compiled(self, model: Model) -> Iterator[Any]:
        """Compile the grammar for the model's vocabulary, and yield `native` with it until the context manager ends.

        Raises InvalidRequestError, with the reason, for a grammar that is refused.
        """
        known = nullcontext(self._kept or ffi.NULL) if self._kept or self._gbnf is None else None
        with self._lock, known or model.grammar(self._gbnf or "") as grammar:
            breakers = self._breakers(model)
            self.native.grammar, self.native.dry_breakers, self._n_vocab = grammar, breakers, model.n_vocab
            try:
                yield self.native
            finally:
                self.native.grammar, self.native.dry_breakers, self._n_vocab = ffi.NULL, ffi.NULL, 0

    def _breakers(self, model: Model) -> Any:
        params = self.params
        is_on = params.dry_multiplier > 0 and params.dry_penalty_last_n != 0 and params.dry_sequence_breakers
        return model.dry_breakers(tuple(params.dry_sequence_breakers)) if is_on else ffi.NULL

    def sample(self, logits: Logits, position: int, before: Sequence[int] = ()) -> tuple[int | None, float]:
        """Sample the token at `position`, and return it with its probability.

        logits: of shape (n_vocab,), converted to float32.
        before: the tokens before the position. Penalties count them, and the grammar's text starts with the first one.

        The token is None if a logit is NaN, the largest is not finite, or the grammar allows no token. The probability
        is computed among the most likely tokens at temperature 1, from 0 to 1. With a grammar, call `sample` inside
        `compiled`.

        Raises the errors of the logits processor, and InvalidRequestError for logits of another shape, tokens outside
        the vocabulary, and a negative position.
        """
        with self._lock:
            with np.errstate(over="ignore"):  # a logit beyond float32 becomes infinite
                row = np.ascontiguousarray(logits, dtype=np.float32)
            n_vocab = self._n_vocab or row.size
            if row.shape != (n_vocab,) or n_vocab == 0:
                raise InvalidRequestError(f"logits must have the shape ({n_vocab or 'n_vocab'},), not {row.shape}")
            for token in {*before, *self.params.logit_bias}:
                if not 0 <= token < n_vocab:
                    raise InvalidRequestError(f"there is no token {token} in a vocabulary of {n_vocab}")
            if not is_whole(position, 0, 2**63 - 1):
                raise InvalidRequestError(f"position={shown(position)} must be a whole number, 0 or more")
            if self.processor is not None:
                row = self.processor.process(np.array(before, np.int32), row)
            confidence = ffi.new("float *")
            token = lib.pymtp_sample(
                self.native, ffi.from_buffer("float[]", row), len(row), position, list(before), len(before), confidence
            )
            return (None if token < 0 else token), confidence[0]
