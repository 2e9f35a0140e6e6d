"""Contexts without a model: scripted tokens, the rules of a real context, and a clock of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from random import Random

from helpers.scripted_saving import ScriptedSequence, ScriptedStateMixin
from pymtp.context.inspect import Counters
from pymtp.errors import CancelledError, ContextFullError, InvalidRequestError, NativeError, PymtpError
from pymtp.prefix_cache.tree import Tokens
from pymtp.sampling import Sampler, TokenLogprobs

VOCAB = 50
NO_IMAGES: Mapping[int, object] = {}
NO_WORK = Counters(*[0] * len(fields(Counters)))


class ScriptedContext(ScriptedStateMixin):
    """A context whose target model writes `text` after any prompt. Its head is right where `hits` says so, by position.

    A call takes call_seconds, and in addition token_seconds for each token of a prompt, step_seconds for each draft
    step, and row_seconds for each row of a verification.
    """

    def __init__(
        self,
        text: Sequence[int] = (),
        hits: Sequence[bool] = (True,),
        n_ctx: int = 1000,
        n_seq_max: int = 1,
        n_ubatch: int = 16,
        draft_tokens: int = 8,
    ) -> None:
        self.text, self.hits, self.n_ctx = list(text), list(hits), n_ctx
        self.n_seq_max, self.n_ubatch = n_seq_max, n_ubatch
        self.draft_tokens = self.max_drafts = draft_tokens
        self.sequences = [ScriptedSequence() for _ in range(n_seq_max)]
        self.sampled: list[int] = []  # positions that a token was sampled at
        self.never_drafted: set[int] = set()
        self.max_verify_rows = 0
        self.verified: list[dict[int, int]] = []  # rows of each sequence, by call
        self.now = 0.0
        self.token_seconds, self.step_seconds, self.row_seconds, self.call_seconds = 0.1, 0.1, 0.2, 1.0
        self.copy_seconds = 0.001  # per token
        self.copies: list[tuple[int, int]] = []  # source and target sequence
        self.calls: list[tuple[str, tuple[int, ...], int]] = []  # name, sequences, number of tokens
        self.cancelled, self.cancels = False, 0
        # Called first by each call; may raise an error
        self.before: Callable[[str, Sequence[int]], None] = lambda what, seqs: None
        self.sequence_error: Callable[[int], Exception | None] = lambda seq: None
        self.counters = NO_WORK

    @property
    def tokens_of(self) -> list[list[int]]:
        return [list(s.tokens) for s in self.sequences]

    def clock(self) -> float:
        return self.now

    def after(self, s: ScriptedSequence, prefix: Sequence[int]) -> int:
        """Return the target model's next token after a prefix."""
        i = len(prefix) - s.prompt
        return self.text[i] if i < len(self.text) else 0

    def _call(self, what: str, seqs: Sequence[int], n: int, seconds: float) -> None:
        assert list(seqs) == sorted(set(seqs))
        try:
            if self.cancelled:
                raise CancelledError("cancelled")
            self.before(what, seqs)
        except (NativeError, CancelledError):
            for seq in seqs:
                self.clear(seq)
            raise
        self.calls.append((what, tuple(seqs), n))
        self.now += self.call_seconds + seconds

    def cancel(self, cancelled: bool = True) -> None:
        self.cancels += cancelled
        self.cancelled = cancelled

    def set_sampling(self, sampler: Sampler, seq: int = 0) -> None:
        self.sequences[seq].seed = sampler.seed

    def tokens_held(self, seq: int = 0) -> int:
        return len(self.sequences[seq].tokens)

    def tokens(self, seq: int = 0) -> list[int]:
        return list(self.sequences[seq].tokens)

    def begins_with(self, tokens: Tokens, seq: int = 0) -> bool:
        return self.sequences[seq].tokens[: len(tokens)] == tokens.tolist()

    def clear(self, seq: int | None = None) -> None:
        for number in range(self.n_seq_max) if seq is None else [seq]:
            self.sequences[number] = ScriptedSequence(seed=self.sequences[number].seed)

    def copy(self, source: int, seq: int) -> None:
        assert source != seq
        assert not self.sequences[seq].tokens
        if self.cancelled:
            raise CancelledError("cancelled")
        self.before("copy", [source, seq])
        s = self.sequences[source]
        s.chain = []
        seed = self.sequences[seq].seed
        self.sequences[seq] = replace(s, tokens=list(s.tokens), chain=[], rewindable=0, seed=seed, copied=True)
        self.copies.append((source, seq))
        self.now += len(s.tokens) * self.copy_seconds

    def move(self, source: int, seq: int) -> None:
        self.copy(source, seq)
        self.sequences[seq].seed = self.sequences[source].seed
        self.clear(source)

    def prefill(self, tokens: Sequence[int], seq: int = 0) -> None:
        self.prefill_batch({seq: tokens})

    def prefill_batch(self, prompts: Mapping[int, Sequence[int]], images: Mapping[int, object] = NO_IMAGES) -> None:
        n = sum(map(len, prompts.values()))
        for seq, tokens in prompts.items():
            assert tokens, "a prompt has tokens"
            if len(self.sequences[seq].tokens) + len(tokens) > self.n_ctx:
                raise ContextFullError("full")
        self._call("prefill", list(prompts), n, n * self.token_seconds)
        for s in self.sequences:
            s.read &= s.copied
        for seq, tokens in prompts.items():
            s = self.sequences[seq]
            s.tokens += tokens
            s.prompt, s.read, s.copied, s.chain, s.rewindable = len(s.tokens), True, False, [], 0

    def first_token(self, seq: int = 0) -> int:
        s = self.sequences[seq]
        assert s.read, "the sequence was in the last prefill"
        if (error := self.sequence_error(seq)) is not None:
            raise error
        self.sampled.append(len(s.tokens))
        return self.after(s, s.tokens)

    def draft_chains(self, tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]:
        assert 0 < n <= self.draft_tokens
        self._call("draft", list(tokens), n, n * len(tokens) * self.step_seconds)
        made = {}
        for seq, token in tokens.items():
            s = self.sequences[seq]
            assert len(s.tokens) + n <= self.n_ctx
            s.chain = [token]
            for _ in range(n):
                prefix = s.tokens + s.chain
                right = self.after(s, prefix)
                s.chain.append(right if self.hits[len(prefix) % len(self.hits)] else (right + 1) % VOCAB)
            start = len(s.tokens)
            made[seq] = s.chain[1:], [0.5 + p % 2 / 4 for p in range(start + 1, start + 1 + n)]
        return made

    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, list[int] | PymtpError]:
        n = max(map(len, chains.values()))
        assert all(chains.values())
        assert n <= 1 + self.max_drafts
        self._call("verify", list(chains), n, n * len(chains) * self.row_seconds)
        self.max_verify_rows = max(self.max_verify_rows, n)
        self.verified.append({seq: len(chain) for seq, chain in chains.items()})
        results: dict[int, list[int] | PymtpError] = {}
        for seq, chain in chains.items():
            s = self.sequences[seq]
            assert len(s.tokens) + n <= self.n_ctx
            if (error := self.sequence_error(seq)) is not None:
                assert isinstance(error, (NativeError, InvalidRequestError))
                self.clear(seq)
                results[seq] = error
                continue
            s.chain, s.rewindable, s.read, s.copied = [], len(chain) - 1, False, False
            sampled: list[int] = []
            for i, token in enumerate(chain):
                s.tokens.append(token)
                if len(sampled) == i and (not i or token == sampled[-1]):  # rows after a wrong draft are not sampled
                    self.sampled.append(len(s.tokens))
                    sampled.append(self.after(s, s.tokens))
            results[seq] = sampled
        return results

    def drafts_over(self, token: int) -> bool:
        return token not in self.never_drafted

    def rewind(self, n_keep: int, seq: int = 0) -> None:
        s = self.sequences[seq]
        assert 0 <= len(s.tokens) - n_keep <= s.rewindable
        del s.tokens[n_keep:]
        s.rewindable = 0

    def logprobs(self, seq: int = 0) -> list[TokenLogprobs]:
        return []


class SeededContext(ScriptedContext):
    """A context whose next token depends on the seed and on all tokens before it."""

    def next_token(self, seed: int, prefix: Sequence[int]) -> int:
        return next_token(seed, prefix)

    def after(self, s: ScriptedSequence, prefix: Sequence[int]) -> int:
        return self.next_token(s.seed, prefix)

    def prefills(self) -> Counter[int]:
        """Count the chunks of prompts by their length."""
        return Counter(n for what, _, n in self.calls if what == "prefill")


class RepeatingContext(SeededContext):
    """A context that repeats the last 20 tokens, and now and then, as the seed says, writes another token."""

    PERIOD = 20
    NOISE = 0.04

    def next_token(self, seed: int, prefix: Sequence[int]) -> int:
        token = next_token(seed, prefix)
        noise = Random(f"{seed} {len(prefix)}").random() < self.NOISE
        return token if noise or len(prefix) < self.PERIOD else prefix[-self.PERIOD]


def next_token(seed: int, prefix: Sequence[int]) -> int:
    """Return the token that SeededContext writes after a prefix."""
    return hash((seed, *prefix)) % VOCAB


class ScriptedModel:
    """A vocabulary in which each token is one character; `end` is the end token."""

    n_vocab = VOCAB

    def __init__(self, end: int | None = None) -> None:
        self.end = end

    def check_tokens(self, tokens: list[int]) -> None: ...

    def ends_generation(self, token: int) -> bool:
        return token == self.end

    def token_bytes(self, token: int) -> bytes:
        return bytes([ord("0") + token])


def expected_tokens(
    seed: int, prompt: Sequence[int], n: int, next_token: Callable[[int, Sequence[int]], int] = next_token
) -> list[int]:
    """Return the n tokens that SeededContext, or a context with another `next_token`, writes after a prompt."""
    text = list(prompt)
    for _ in range(n):
        text.append(next_token(seed, text))
    return text[len(prompt) :]
