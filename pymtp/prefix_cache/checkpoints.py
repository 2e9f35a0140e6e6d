"""At which places the reading of a prompt stops for a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

# Prompts of a chat end with what the next prompt may not hold, such as an opened block of thinking: so many tokens.
TAIL = 8

MOST = 12  # of a prompt

# A checkpoint that nothing speaks for yet has to save so many times what a checkpoint has to save at least.
FOR_NOTHING = 4


class Why(IntEnum):
    """Why there is a checkpoint at a place, what matters most first."""

    PARTING = 0  # another text was seen to part from this one there
    MARK = 1  # the caller says that prompts to come part from this one there
    TAIL = 2  # shortly before the end of what goes on from another, without marks: the next turn may part there
    END = 3  # the whole prompt may come again
    STEP = 4  # of a long prompt: wherever another one parts, the way is not far
    TEXT = 5  # the end of what was written, which nothing stops for


def plan_stops(
    length: int,
    start: int,
    *,
    least: int,
    grain: int,
    n_ubatch: int,
    most: int,
    saved: int | None = None,
    parting: int = 0,
    marks: Iterable[int] = (),
) -> dict[int, Why]:
    """Stops of a prompt of so many tokens, of which `start` are there: places after that, rising, `most` at most.

    All but the end are multiples of `grain`: a prompt may be cut there without a change of bits. least: tokens that a
    checkpoint has to save. saved: the last checkpoint of these `start` tokens, where the prompt goes on from what its
    sequence holds, which is gone then; else the start. parting: tokens that another text begins with, too. marks:
    places that speak for themselves, the end among them where the whole prompt will come again.
    """
    stops: dict[int, Why] = {}
    saved = start if saved is None else saved

    def add(place: int, why: Why) -> None:
        place = min(place, length - 1)
        place -= place % grain
        if place > start and place - saved >= least and all(abs(place - other) >= least for other in stops):
            stops[place] = why

    goes_on = max(start, parting) >= least  # it begins as another text does
    marked = set(marks)
    whys = dict.fromkeys(marked - {length}, Why.MARK) | {parting: Why.PARTING}
    for place in sorted(whys):  # of several that are near one another the first, which does for all
        add(place, whys[place])
    if Why.MARK not in stops.values() and goes_on:  # it may be a turn of a chat
        add(length - TAIL, Why.TAIL)
    wanted = length in marked or goes_on
    if wanted and length - start >= FOR_NOTHING * least and all(length - other >= least for other in stops):
        stops[length] = Why.END
    every = n_ubatch
    while every < FOR_NOTHING * least:
        every *= 2
    place, gap = (length - least) // every * every, every
    while place > 0:  # the next one is no further away than the end, so that little is read again wherever texts part
        add(place, Why.STEP)
        place, gap = place - gap, 2 * gap
    chosen = sorted(stops, key=lambda place: (stops[place], -place))[: max(0, min(most, MOST))]
    return {place: stops[place] for place in sorted(chosen)}
