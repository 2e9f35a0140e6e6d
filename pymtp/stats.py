"""The figures of a completion: times, cached tokens, drafts and their acceptance."""

from dataclasses import dataclass, field

from pymtp.context.inspect import Counters


@dataclass
class DraftStats:
    """The draft counters of one request's rounds.

    rounds: the number of rounds, each with one verification.
    drafted: the number of verified drafts.
    discarded: the number of drafts that were not verified, because they were too unlikely to be accepted.
    depths: the number of verified drafts of each round.
    accepted_per_position: how often the first, second, … draft of a round was accepted.
    outside_per_position: how often the first, second, … draft was the first to be rejected while the target's token was
        not in the draft vocabulary.
    """

    rounds: int = 0
    drafted: int = 0
    discarded: int = 0
    depths: list[int] = field(default_factory=list)
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
    drafted: the number of verified drafts of the head.
    accepted: the number of drafts that the target accepted.
    discarded: the number of drafts that were not verified, because they were too unlikely to be accepted.
    depths: the number of verified drafts of each round.
    accepted_per_position: how often the first, second, … draft of a round was accepted.
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
        accepted=sum(draft_stats.accepted_per_position),
        discarded=draft_stats.discarded,
        depths=tuple(draft_stats.depths),
        accepted_per_position=tuple(draft_stats.accepted_per_position),
        outside_per_position=tuple(draft_stats.outside_per_position),
        phase_seconds=phases,
        queue_seconds=queue_seconds,
        time_to_first_token=time_to_first_token,
        thinking_tokens=thinking_tokens,
    )
