"""Checks that the records of a prefix cache match its context."""

from __future__ import annotations

from pymtp.engine.engine import Engine
from pymtp.prefix_cache.tree import as_tokens, common_prefix_length


def check_prefix_cache(engine: Engine) -> None:
    """Check, between two steps, that the contents of sequences and host memory match the cache's records."""
    cache, context = engine.prefix_cache, engine.runner.context
    store = cache.store
    tree = store.tree
    running = {request.seq: request for request in engine.scheduler.running}
    assert {prefill.seq for prefill in cache._prefills} == set(running)
    for seq, contents in enumerate(store.sequences):
        tokens = context.tokens(seq)
        assert tokens[: contents.n_tokens] == contents.known_tokens.tolist(), seq
        assert contents.in_use == any(prefill.started for prefill in cache._prefills if prefill.seq == seq), seq
        if contents.has_state:
            assert len(tokens) == contents.n_tokens, seq
        if seq not in running and not contents.has_state:
            assert not contents.has_logits
    texts = [as_tokens(context.tokens(seq)) for seq in range(context.n_seq_max)]
    blocks, nbytes = set(), 0
    for node in tree.checkpoints:
        path = as_tokens([token for member in reversed([node, *node.ancestors()]) for token in member.tokens])
        assert node.checkpoint is not None
        nbytes += node.checkpoint.state.nbytes
        if not node.on_host:  # then a sequence has the K and V
            assert any(common_prefix_length(path, text) == len(path) for text in texts)
        for member in [node, *node.ancestors()]:
            blocks |= {part.block for part in member.slices or ()}
    assert tree.nbytes == nbytes + sum(block.data.nbytes for block in blocks)
    assert tree.nbytes <= store.eviction.limit
    if not running:
        assert not store.pins
