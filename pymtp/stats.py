"""What a completion cost, and what speculation brought it."""

from dataclasses import dataclass, field

from pymtp.context.inspect import Counters


@dataclass
class Tally:
    """What the rounds of one generation came to. drafted: drafts verified. discarded: drafts not worth it. depths: the
    drafts that each round verified. outside_per_position: how often the first wrong draft was at that position, and the
    right token was none that drafts were made over."""

    rounds: int = 0
    drafted: int = 0
    discarded: int = 0
    depths: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    outside_per_position: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Stats:
    """Figures of one completion; seconds are wall time.

    thinking_tokens: those of completion_tokens that the model thought: before `</think>`, neither tags nor a closing
        message among them.
    cached_tokens: of the prompt, held already and not computed again.
    queue_seconds: until its turn came. prefill_seconds: from then until the first token was there, the head's share
        included. time_to_first_token: both, and what came between; 0 without tokens.
    decode_seconds: from then to the end.
    rounds: verifications. drafted, accepted: drafts of the head that were verified, and those the target agreed with.
    discarded: drafts that were not worth verifying. depths: the drafts verified in each round.
    accepted_per_position: how often the first, second, … draft of a round was accepted.
    outside_per_position: how often it was the first to be rejected, and the target's token was not in the draft
        vocabulary: acceptance lost to draft_vocab.
    phase_seconds: of the context while the request ran, shared with requests beside it: prefill, head_sync (the prompt
        through the head), draft (with the head's share of the tokens accepted before), verify, sample (within draft
        and verify), rewind.
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
        """accepted / drafted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Tokens a round, of those after the first, which the prefill brings; 0 without rounds. A round brings the
        accepted drafts and a token of the target's own, but for a last round that ends on an accepted draft."""
        return (self.completion_tokens - 1) / self.rounds if self.rounds else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens that were computed / prefill_seconds; 0 when there was no prefill."""
        return (self.prompt_tokens - self.cached_tokens) / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first, which the prefill brings, / decode_seconds; 0 when there was none."""
        return max(0, self.completion_tokens - 1) / self.decode_seconds if self.decode_seconds else 0.0

    def as_dict(self) -> dict[str, object]:
        """All figures, the derived ones included, ready for JSON."""
        names = (*self.__dataclass_fields__, "acceptance_rate", "mean_accepted_length")
        names = (*names, "prefill_tokens_per_second", "decode_tokens_per_second")
        return {name: getattr(self, name) for name in names}


def collect(
    prompt_tokens: int,
    completion_tokens: int,
    prefill_seconds: float,
    decode_seconds: float,
    tally: Tally,
    before: Counters | None,
    after: Counters | None,
    *,
    cached_tokens: int = 0,
    queue_seconds: float = 0.0,
    time_to_first_token: float = 0.0,
    thinking_tokens: int = 0,
) -> Stats:
    """The stats of a completion from what the rounds counted and what the context did meanwhile, if it did."""
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
        rounds=tally.rounds,
        drafted=tally.drafted,
        accepted=sum(tally.accepted_per_position),
        discarded=tally.discarded,
        depths=tuple(tally.depths),
        accepted_per_position=tuple(tally.accepted_per_position),
        outside_per_position=tuple(tally.outside_per_position),
        phase_seconds=phases,
        queue_seconds=queue_seconds,
        time_to_first_token=time_to_first_token,
        thinking_tokens=thinking_tokens,
    )
