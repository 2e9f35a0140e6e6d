"""Claims about an engine's figures, over a scripted context: no model."""

from __future__ import annotations

from collections import Counter

from helpers.engines import Bed


def test_drafts_are_counted_by_their_position() -> None:
    bed = Bed(n_seq_max=3, hits=(True, True, False, True, False))
    for i in range(6):
        bed.submit([1, 2, 3, 4, 5], 40, seed=i, draft_tokens=(None, 1, 3)[i % 3])
    bed.run()
    drafted, accepted = Counter[int](), Counter[int]()
    for request in bed.requests:
        stats = request.completion.stats
        drafted.update(place for depth in stats.depths for place in range(depth))
        accepted.update({place: n for place, n in enumerate(stats.accepted_per_position)})
    figures = bed.engine.figures()
    assert figures.drafted_per_position == tuple(drafted[place] for place in range(len(drafted)))
    assert figures.accepted_per_position == tuple(n for _, n in sorted(accepted.items()) if n)
    assert figures.drafted_per_position[0] > figures.accepted_per_position[0] > 0
    assert (figures.drafted, figures.accepted) == (sum(drafted.values()), sum(accepted.values()))
