"""Statistics: those of a completion (times, cached tokens, drafts and their acceptance), and those of an engine."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pymtp.context.inspect import Counters
from pymtp.prefix_cache.store import PrefixFigures

RECENT_ROUNDS = 256  # number of rounds that tokens_per_second covers


@dataclass
class DraftStats:
    """The draft counters of one request's rounds.

    rounds: the number of rounds, each with one verification.
    drafted: the number of verified drafts, of the head and from text.
    drafted_by_text, accepted_by_text: the numbers of verified and of accepted drafts that came from text.
    discarded: the number of drafts that were not verified, because they were too unlikely to be accepted.
    depths: the number of verified drafts of each round.
    drafted_per_position, accepted_per_position: how often the first, second, … draft of the head in a round was
        verified, and accepted.
    outside_per_position: how often the first, second, … draft was the first to be rejected while the target's token was
        not in the draft vocabulary.
    """

    rounds: int = 0
    drafted: int = 0
    drafted_by_text: int = 0
    accepted_by_text: int = 0
    discarded: int = 0
    depths: list[int] = field(default_factory=list)
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    outside_per_position: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Stats:
    """The figures of one completion. All seconds are wall time.

    prompt_tokens: the number of tokens of the prompt.
    completion_tokens: the number of generated tokens.
    thinking_tokens: the number of generated tokens of the thinking, without its tags and thinking_end.
    cached_tokens: the number of prompt tokens that were not computed again, because their state was cached.
    queue_seconds: the time that the request waited for a sequence.
    prefill_seconds: the time from the end of the queue to the first token, including the head's part of the prefill.
    time_to_first_token: the seconds from the start of the request to the first token; 0 without tokens.
    decode_seconds: the time from the first token to the end.
    rounds: the number of rounds, each with one verification.
    drafted: the number of verified drafts, of the head and from text.
    accepted: the number of drafts that the target accepted.
    drafted_by_text, accepted_by_text: the numbers of these that came from text: from earlier places where the end of
        the text occurred.
    discarded: the number of drafts that were not verified, because they were too unlikely to be accepted.
    depths: the number of verified drafts of each round.
    drafted_per_position, accepted_per_position: how often the first, second, … draft of the head in a round was
        verified, and accepted.
    outside_per_position: how often the first, second, … draft was the first to be rejected while the target's token was
        not in the draft vocabulary: these rejections are the cost of draft_vocab.
    phase_seconds: the context's seconds in each phase while the request ran, including its work for concurrent
        requests. Phases: prefill, head_sync (the head's decode of the prompt), draft (including the head's decode of
        the accepted tokens), verify, sample (a part of draft and verify), rewind.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    discarded: int = 0
    depths: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    outside_per_position: tuple[int, ...] = ()
    phase_seconds: dict[str, float] = field(default_factory=dict)
    queue_seconds: float = 0.0
    time_to_first_token: float = 0.0
    thinking_tokens: int = 0
    drafted_by_text: int = 0
    accepted_by_text: int = 0
    drafted_per_position: tuple[int, ...] = ()

    @property
    def acceptance_rate(self) -> float:
        """Return accepted / drafted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Return the number of tokens per round; 0 without rounds. The first token counts for the prefill.

        A round yields its accepted drafts and one token of the target, except a last round that ends with a draft.
        """
        return (self.completion_tokens - 1) / self.rounds if self.rounds else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Return the number of computed prompt tokens per second of prefill; 0 without a prefill."""
        return (self.prompt_tokens - self.cached_tokens) / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Return the number of tokens after the first one per second of decoding; 0 without decoding."""
        return max(0, self.completion_tokens - 1) / self.decode_seconds if self.decode_seconds else 0.0

    def as_dict(self) -> dict[str, object]:
        """Return all figures, the derived ones included, as a dict for JSON."""
        names = (*self.__dataclass_fields__, "acceptance_rate", "mean_accepted_length")
        names = (*names, "prefill_tokens_per_second", "decode_tokens_per_second")
        return {name: getattr(self, name) for name in names}


def collect(
    prompt_tokens: int,
    completion_tokens: int,
    prefill_seconds: float,
    decode_seconds: float,
    draft_stats: DraftStats,
    before: Counters | None,
    after: Counters | None,
    *,
    cached_tokens: int = 0,
    queue_seconds: float = 0.0,
    time_to_first_token: float = 0.0,
    thinking_tokens: int = 0,
) -> Stats:
    """Return the Stats of a completion.

    before, after: the context's counters at the start and the end of the request; None if the request never ran.
    """
    phases = {
        name: getattr(after, f"{name}_seconds") - getattr(before, f"{name}_seconds") if before and after else 0.0
        for name in ("prefill", "head_sync", "draft", "verify", "sample", "rewind")
    }
    return Stats(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached_tokens,
        prefill_seconds=prefill_seconds,
        decode_seconds=decode_seconds,
        rounds=draft_stats.rounds,
        drafted=draft_stats.drafted,
        accepted=sum(draft_stats.accepted_per_position) + draft_stats.accepted_by_text,
        discarded=draft_stats.discarded,
        depths=tuple(draft_stats.depths),
        accepted_per_position=tuple(draft_stats.accepted_per_position),
        outside_per_position=tuple(draft_stats.outside_per_position),
        phase_seconds=phases,
        queue_seconds=queue_seconds,
        time_to_first_token=time_to_first_token,
        thinking_tokens=thinking_tokens,
        drafted_by_text=draft_stats.drafted_by_text,
        accepted_by_text=draft_stats.accepted_by_text,
        drafted_per_position=tuple(draft_stats.drafted_per_position),
    )


@dataclass(frozen=True)
class Figures:
    """The statistics of an engine, since it was created.

    running, waiting: number of requests with a sequence, and of requests without one.
    finished, failed, cancelled: number of requests that ended in each of these ways.
    tokens: number of generated tokens.
    tokens_per_second: the speed of generation over the last 256 rounds.
    rounds: number of rounds; each has one verification by the target model.
    rows: number of rows of all verification batches, padding included.
    drafted, accepted: number of drafts that were verified, and of drafts that the target model agreed with.
    drafted_by_text, accepted_by_text: the same numbers for drafts from text alone.
    rounds_with_drafts: number of rounds of single sequences that verified drafts, of the head or from text.
    drafted_per_position, accepted_per_position: the same numbers for the first, second, … draft of the head in a round.
    depths: number of rounds for each number of drafts per sequence.
    sequences: number of rounds for each number of sequences.
    read: number of prompt tokens that were prefilled, not reused. prefills: number of decodes that did so.
    prefixes: the counters of the prefix cache.
    output_bytes: bytes of host memory of earlier outputs that are kept for drafts from text.
    """

    running: int = 0
    waiting: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    tokens: int = 0
    tokens_per_second: float = 0.0
    rounds: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_by_text: int = 0
    accepted_by_text: int = 0
    rounds_with_drafts: int = 0
    drafted_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    depths: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    read: int = 0
    prefills: int = 0
    prefixes: PrefixFigures = field(default_factory=PrefixFigures)
    output_bytes: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Return accepted / drafted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def rows_per_round(self) -> float:
        """Return rows / rounds; 0 without rounds."""
        return self.rows / self.rounds if self.rounds else 0.0


class EngineStats:
    """The counters of an engine, from which `figures` makes snapshots.

    finished, failed, cancelled: number of requests that ended in each of these ways.
    tokens: number of generated tokens. prefilled: number of prompt tokens that were not taken from the cache.
    prefills: number of decodes of prompts.
    drafts: number of rounds of single sequences, by (verified, accepted) drafts of the head.
    drafted_by_text, accepted_by_text: numbers of drafts from text that were verified, and accepted.
    rounds_with_drafts: number of rounds of single sequences that verified drafts.
    """

    def __init__(self) -> None:
        self.finished = self.failed = self.cancelled = 0
        self.tokens = self.prefilled = self.prefills = 0
        self.drafts: Counter[tuple[int, int]] = Counter()
        self.drafted_by_text = self.accepted_by_text = self.rounds_with_drafts = 0
        self._rounds: Counter[tuple[int, int]] = Counter()  # rounds, by (sequences, rows per sequence)
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_ROUNDS)  # end times, and generated tokens

    def add_round(self, n_sequences: int, rows: int, tokens: int, now: float) -> None:
        """Count a round.

        rows: number of rows of each sequence.
        tokens: number of tokens that the round generated.
        now: the time at the end of the round.
        """
        self._rounds[n_sequences, rows] += 1
        self.tokens += tokens
        self._recent.append((now, tokens))

    def figures(self, running: int, waiting: int, prefixes: PrefixFigures, output_bytes: int) -> Figures:
        """Return a snapshot of the statistics."""
        recent = list(self._recent)
        seconds = recent[-1][0] - recent[0][0] if recent else 0.0
        depths: Counter[int] = Counter()
        sequences: Counter[int] = Counter()
        rounds, drafts = self._rounds.copy(), self.drafts.copy()
        for (n_sequences, rows), times in rounds.items():
            depths[rows - 1] += times
            sequences[n_sequences] += times
        drafted = _per_position((made, times) for (made, _), times in drafts.items())
        accepted = _per_position((right, times) for (_, right), times in drafts.items())
        return Figures(
            running=running,
            waiting=waiting,
            finished=self.finished,
            failed=self.failed,
            cancelled=self.cancelled,
            tokens=self.tokens,
            # The tokens of the first recent round were generated before the measured time begins
            tokens_per_second=sum(tokens for _, tokens in recent[1:]) / seconds if seconds else 0.0,
            rounds=sum(rounds.values()),
            rows=sum(n_sequences * rows * times for (n_sequences, rows), times in rounds.items()),
            drafted=sum(drafted) + self.drafted_by_text,
            accepted=sum(accepted) + self.accepted_by_text,
            drafted_by_text=self.drafted_by_text,
            accepted_by_text=self.accepted_by_text,
            rounds_with_drafts=self.rounds_with_drafts,
            drafted_per_position=drafted,
            accepted_per_position=accepted,
            depths=dict(sorted(depths.items())),
            sequences=dict(sorted(sequences.items())),
            read=self.prefilled,
            prefills=self.prefills,
            prefixes=prefixes,
            output_bytes=output_bytes,
        )


def _per_position(lengths: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return the number of first, second, … drafts of all rounds.

    lengths: pairs of a number of drafts, and the number of rounds with that many drafts.
    """
    counts = Counter[int]()
    for length, times in lengths:
        counts[length] += times
    return tuple(sum(counts[n] for n in counts if n > i) for i in range(max(counts, default=0)))
