"""The positions in a prompt at which prefill stops for a checkpoint of the recurrent state."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

# The next turn of a chat may replace the last tokens of a prompt, such as those that open a thinking block.
TAIL_TOKENS = 8

MAX_CHECKPOINTS = 12  # per prompt

# A checkpoint without evidence that it will be used must save at least this multiple of `min_gain`.
UNPROVEN_FACTOR = 4


class CheckpointReason(IntEnum):
    """The reason for a checkpoint: the lower the value, the stronger the reason."""

    BRANCH_SEEN = 0  # another text branched off here
    BRANCH_EXPECTED = 1  # the caller expects later prompts to branch off here
    NEAR_END = 2  # near the end of a prompt that continues another text: the next turn of a chat may branch off here
    PROMPT_END = 3  # the same whole prompt may be sent again
    INTERVAL = 4  # one of several in a long prompt, so that one is near wherever another prompt branches off
    SEQUENCE_END = 5  # at the end of a sequence, taken when it is spilled: prefill never stops for it


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
    """Return the positions where the prefill of a prompt stops for checkpoints, in rising order, with the reasons.

    All positions except the prompt's end are multiples of `alignment`, so that stopping there changes no bits.

    n_tokens: the length of the prompt.
    n_cached: the number of its first tokens that come from the cache.
    min_gain: the fewest tokens that a checkpoint must save.
    last_checkpoint: the position of the last checkpoint within the cached tokens; None: at the end of these tokens. It
        lies earlier if the prompt continues from the state of its sequence, because prefill overwrites that state.
    shared_tokens: the number of leading tokens that the prompt shares with another text.
    branch_points: positions where later prompts are expected to branch off; the position of the prompt's end means that
        the whole prompt is expected again.
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
    for position in sorted(branches):  # in rising order: of close branch points, the first gets the only checkpoint
        add(position, branches[position])
    # the prompt may be a turn of a chat
    if CheckpointReason.BRANCH_EXPECTED not in planned.values() and continues_text:
        add(n_tokens - TAIL_TOKENS, CheckpointReason.NEAR_END)
    end_is_useful = n_tokens in expected or continues_text
    end_is_far = n_tokens - n_cached >= UNPROVEN_FACTOR * min_gain
    if end_is_useful and end_is_far and all(n_tokens - other >= min_gain for other in planned):
        planned[n_tokens] = CheckpointReason.PROMPT_END
    interval = n_ubatch
    while interval < UNPROVEN_FACTOR * min_gain:
        interval *= 2
    # gaps double with the distance from the end, so that a text that branches off late prefills little again
    position, gap = (n_tokens - min_gain) // interval * interval, interval
    while position > 0:
        add(position, CheckpointReason.INTERVAL)
        position, gap = position - gap, 2 * gap
    by_importance = sorted(planned, key=lambda position: (planned[position], -position))
    chosen = by_importance[: max(0, min(max_checkpoints, MAX_CHECKPOINTS))]
    return {position: planned[position] for position in sorted(chosen)}
