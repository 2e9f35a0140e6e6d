"""The positions in a prompt at which prefill stops for a checkpoint of the recurrent state."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

# The next turn of a chat may have other tokens in place of the last ones of a prompt, such as an opened thinking block.
TAIL_TOKENS = 8

MAX_CHECKPOINTS = 12  # per prompt

# A checkpoint without evidence that it will be used must save so many times `min_gain`.
UNPROVEN_FACTOR = 4


class CheckpointReason(IntEnum):
    """The reason for a checkpoint, the strongest one first."""

    BRANCH_SEEN = 0  # another text branched off here
    BRANCH_EXPECTED = 1  # the caller expects later prompts to branch off here
    NEAR_END = 2  # a prompt that continues another one, without branch points: the next turn may branch off here
    PROMPT_END = 3  # the whole prompt may come again
    INTERVAL = 4  # a long prompt: wherever another one branches off, a checkpoint is near
    SEQUENCE_END = 5  # the end of a sequence, taken when it is spilled: prefill never stops for it


def plan_checkpoints(
    n_tokens: int,
    n_cached: int,
    *,
    min_gain: int,
    alignment: int,
    n_ubatch: int,
    max_checkpoints: int,
    last_checkpoint: int | None = None,
    shared_tokens: int = 0,
    branch_points: Iterable[int] = (),
) -> dict[int, CheckpointReason]:
    """Return where prefill of a prompt with n_cached cached tokens stops, in rising order, and the reasons.

    All positions but the end are multiples of `alignment`: cutting the prompt there changes no bits.

    min_gain: the fewest tokens that a checkpoint must save.
    last_checkpoint: the last checkpoint within the cached tokens. It lies before their end where the prompt continues
        the state of its sequence, which prefill overwrites. None: at their end.
    shared_tokens: the number of leading tokens that another text shares.
    branch_points: positions where later prompts are expected to branch off; the prompt's end says that all of it will
        come again.
    """
    planned: dict[int, CheckpointReason] = {}
    last_checkpoint = n_cached if last_checkpoint is None else last_checkpoint

    def add(position: int, reason: CheckpointReason) -> None:
        position = min(position, n_tokens - 1)
        position -= position % alignment
        gains = position > n_cached and position - last_checkpoint >= min_gain
        if gains and all(abs(position - other) >= min_gain for other in planned):
            planned[position] = reason

    continues_text = max(n_cached, shared_tokens) >= min_gain  # the prompt begins as another text does
    expected = set(branch_points)
    branches = dict.fromkeys(expected - {n_tokens}, CheckpointReason.BRANCH_EXPECTED)
    branches[shared_tokens] = CheckpointReason.BRANCH_SEEN
    for position in sorted(branches):  # rising: the first of several close ones serves them all
        add(position, branches[position])
    if CheckpointReason.BRANCH_EXPECTED not in planned.values() and continues_text:  # it may be a turn of a chat
        add(n_tokens - TAIL_TOKENS, CheckpointReason.NEAR_END)
    end_is_useful = n_tokens in expected or continues_text
    end_is_far = n_tokens - n_cached >= UNPROVEN_FACTOR * min_gain
    if end_is_useful and end_is_far and all(n_tokens - other >= min_gain for other in planned):
        planned[n_tokens] = CheckpointReason.PROMPT_END
    interval = n_ubatch
    while interval < UNPROVEN_FACTOR * min_gain:
        interval *= 2
    # gaps double with the distance from the end: wherever another text branches off, little is prefilled again
    position, gap = (n_tokens - min_gain) // interval * interval, interval
    while position > 0:
        add(position, CheckpointReason.INTERVAL)
        position, gap = position - gap, 2 * gap
    by_importance = sorted(planned, key=lambda position: (planned[position], -position))
    chosen = by_importance[: max(0, min(max_checkpoints, MAX_CHECKPOINTS))]
    return {position: planned[position] for position in sorted(chosen)}
