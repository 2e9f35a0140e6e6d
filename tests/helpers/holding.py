"""Whether what prefixes know of sequences is so."""

from __future__ import annotations

from pymtp.engine.engine import Engine
from pymtp.prefix_cache.tree import as_tokens, shared


def check_held(engine: Engine) -> None:
    """Between two steps: sequences hold what they are known to hold, and host memory what it should."""
    prefixes, context = engine.prefixes, engine._context
    store = prefixes.store
    tree = store.tree
    running = {request.seq: request for request in engine._scheduler.running}
    assert {reader.seq for reader in prefixes._readers} == set(running)
    for seq, held in enumerate(store.held):
        tokens = context.tokens(seq)
        assert tokens[: held.n] == held.tokens[: held.n].tolist(), seq
        assert held.busy == any(reader.begun for reader in prefixes._readers if reader.seq == seq), seq
        if held.live:
            assert len(tokens) == held.n, seq
        if seq not in running and not held.live:
            assert not held.logits
    paths = [as_tokens(context.tokens(seq)) for seq in range(context.n_seq_max)]
    blocks, nbytes = set(), 0
    for node in tree.checkpoints:
        path = [token for each in reversed([node, *node.up()]) for token in each.tokens]
        assert node.checkpoint is not None
        nbytes += node.checkpoint.state.nbytes
        if not node.covered:  # then a sequence has them
            assert any(shared(as_tokens(path), one) == len(path) for one in paths)
        for each in [node, *node.up()]:
            blocks |= {part.block for part in each.parts or ()}
    assert tree.nbytes == nbytes + sum(block.data.nbytes for block in blocks)
    assert tree.nbytes <= store.budget.limit
    if not running:
        assert not store.pins
