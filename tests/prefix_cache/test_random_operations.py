"""Tests of the prefix cache under random requests, cancels, moves and failures: its records stay right and complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import hypothesis.strategies as st
import pytest
from helpers.simulate_prefixes import Path, SavedBytes, SimEngine, SimFile, SimRequest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pymtp.errors import InvalidRequestError, NativeError
from pymtp.prefix_cache import checkpoints, store
from pymtp.prefix_cache.tree import KvBlock, RadixNode, RadixTree, as_tokens, is_kept

CELL, STATE = 3, 40


def path_of(node: RadixNode) -> Path:
    nodes = [node, *node.ancestors()]
    return tuple(int(token) for member in reversed(nodes) for token in member.tokens)


def nodes_of(tree: RadixTree) -> Iterator[RadixNode]:
    left = list(tree.root.children.values())
    while left:
        node = left.pop()
        left += node.children.values()
        yield node


class PrefixCacheMachine(RuleBasedStateMachine):
    """Random operations on a simulated engine. After each operation, all records are compared with the context."""

    @initialize(
        n_seq=st.integers(1, 3), budget=st.sampled_from([0, 60, 150, 400, 2000]), alignment=st.sampled_from([1, 1, 4])
    )
    def begin(self, n_seq: int, budget: int, alignment: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(store, "BLOCK_TOKENS", 5)
        self.patch.setattr(checkpoints, "TAIL_TOKENS", 2)
        self.engine = SimEngine(
            n_seq, budget, alignment=alignment, min_gain=3, cell_bytes=CELL, max_bytes=STATE, n_ubatch=8
        )
        self.engine.random = Random(0)
        self.texts: list[Path] = [()]
        self.kept: set[Path] = set()  # the texts of files that stay
        self.failing = ""
        self.engine.context.before = self.before

    def before(self, method: str, seq: int) -> None:
        if method == self.failing:
            self.failing = ""
            raise NativeError("broken")

    @rule(text_index=st.integers(0, 100), n_cut=st.integers(0, 40), n_new=st.integers(1, 30), data=st.data())
    def submit(self, text_index: int, n_cut: int, n_new: int, data: st.DataObject) -> None:
        text = self.texts[text_index % len(self.texts)]
        random = Random(data.draw(st.integers(0, 3)))
        prompt = text[: len(text) - n_cut] if n_cut < len(text) else text
        prompt += tuple(random.randrange(3) for _ in range(n_new))
        output = tuple(random.randrange(3) for _ in range(random.randrange(12)))
        branch_points = [random.randrange(len(prompt))] if random.randrange(2) else []
        self.engine.submit(prompt, output, branch_points=branch_points, priority=random.randrange(2))
        self.texts += [prompt, prompt + output]

    @rule(n=st.integers(1, 10))
    def step(self, n: int) -> None:
        for _ in range(n):
            self.engine.step()
            self.check()

    @rule(
        text_index=st.integers(0, 100),
        n_cut=st.integers(0, 40),
        positions=st.lists(st.integers(0, 40), max_size=2),
        kept=st.integers(0, 4).map(lambda n: n == 4),
    )
    def import_file(self, text_index: int, n_cut: int, positions: list[int], kept: bool) -> None:
        text = self.texts[text_index % len(self.texts)]
        text = text[: len(text) - n_cut] if n_cut < len(text) else text
        if not text:
            return
        file = SimFile(self.engine.context, text, sorted({len(text), *(1 + n % len(text) for n in positions)}))
        cache = self.engine.cache
        need = len(text) * CELL + len(file.checkpoints) * STATE
        try:
            cache.import_file(file, kept=kept)
        except InvalidRequestError:
            protected = {*cache.store.pins.values(), *cache.store.tree.match_prefix(as_tokens(text))[0]}
            protected |= {node for node in cache.store.tree.checkpoints if is_kept(node)}
            assert need > cache.store.eviction.limit or protected >= cache.store.tree.checkpoints.keys()
        except NativeError:
            assert self.failing == ""
        else:
            path, n = cache.store.tree.match_prefix(as_tokens(text))
            assert n == len(text) == cache.store.tree.tokens_on_host(as_tokens(text))
            ends = {node.end: node.checkpoint for node in path}
            assert all(ends.get(position) is not None for position in file.checkpoints)
            assert ends[n].has_logits
            self.kept |= {text} if kept else set()

    @rule(
        method=st.sampled_from(
            ["file", "save_state", "save_cells", "load_state", "load_cells", "copy_cells", "copy", "keep_cells"]
        ),
        failed_save_clears=st.booleans(),
    )
    def fail(self, method: str, failed_save_clears: bool) -> None:
        self.failing, self.engine.context.failed_save_clears = method, failed_save_clears

    @precondition(lambda self: self.engine.running or self.engine.waiting)
    @rule(i=st.integers(0, 10), fails=st.booleans())
    def cancel(self, i: int, fails: bool) -> None:
        requests = [*self.engine.running, *self.engine.waiting]
        self.engine.finish(requests[i % len(requests)], fails=fails)

    @precondition(lambda self: any(self.can_move(request) for request in self.engine.running) and self.engine.free)
    @rule()
    def move(self) -> None:
        self.failing = ""
        request = next(request for request in self.engine.running if self.can_move(request))
        self.engine.move(request, self.engine.free[0])

    def can_move(self, request: SimRequest) -> bool:
        return request.prefill_state is not None and request.prefill_state.started

    @invariant()
    def check(self) -> None:
        if hasattr(self, "engine"):
            self.check_tree()
            assert all(self.engine.cache.store.tree.tokens_on_host(as_tokens(text)) == len(text) for text in self.kept)
            self.check_sequences()
            self.check_lookups()

    def check_tree(self) -> None:
        tree, refs, nbytes, n_tokens = self.engine.cache.store.tree, Counter[KvBlock](), 0, 0
        for node in nodes_of(tree):
            assert node.parent is not None
            assert node.parent.children[int(node.tokens[0])] is node
            assert node.parent.end == node.start
            assert node.checkpoint is not None or len(node.children) > 1
            assert (node.checkpoint is not None) == (node in tree.checkpoints)
            path = path_of(node)
            if node.checkpoint is not None:
                nbytes += node.checkpoint.state.nbytes
                assert isinstance(node.checkpoint.state, SavedBytes)
                assert node.checkpoint.state.path == path
            if node.slices is None:
                continue
            assert node.parent.on_host
            assert node.checkpoint is not None or any(child.on_host for child in node.children.values())
            assert [part.start for part in node.slices] == [node.start, *(part.end for part in node.slices[:-1])]
            assert node.slices[-1].end == node.end
            n_tokens += len(node.tokens)
            for block, _, end in node.slices:
                refs[block] += 1
                assert isinstance(block.data, SavedBytes)
                assert block.data.path[:end] == path[:end]
        nbytes += sum(block.data.nbytes for block in refs)
        assert all(block.ref_count == n for block, n in refs.items())
        assert (nbytes, n_tokens) == (tree.nbytes, tree.n_tokens)
        assert tree.n_nodes == sum(1 for _ in nodes_of(tree))
        assert nbytes == self.engine.context.memory.nbytes <= self.engine.cache.store.eviction.limit

    def check_sequences(self) -> None:
        engine = self.engine
        for sequence, contents in zip(engine.context.sequences, engine.cache.store.sequences, strict=True):
            known = tuple(map(int, contents.known_tokens))
            assert sequence.tokens[: contents.n_tokens] == known
            if contents.has_state:
                assert sequence.state == known == sequence.tokens
            if contents.has_logits:
                assert sequence.has_logits
        for node in engine.cache.store.tree.checkpoints:
            path = path_of(node)
            assert node.on_host or any(
                tuple(contents.known_tokens[: node.end]) == path for contents in engine.cache.store.sequences
            )

    def check_lookups(self) -> None:
        """Compare lookups with a dict of all cached prefixes, whose values say whether the state has logits."""
        engine = self.engine
        positions: dict[Path, bool] = {(): False}
        for node in engine.cache.store.tree.checkpoints:
            assert node.checkpoint is not None
            positions[path_of(node)] = node.checkpoint.has_logits
        for contents in engine.cache.store.sequences:
            if contents.has_state:
                path = tuple(map(int, contents.known_tokens))
                positions[path] = contents.has_logits or positions.get(path, False)
        alignment = engine.cache.alignment
        for prompt in self.texts[-4:]:
            if prompt:
                usable = [n for n in range(len(prompt)) if prompt[:n] in positions and n % alignment == 0]
                best = len(prompt) if positions.get(prompt) else max(usable)
                hit = engine.cache.longest_match(as_tokens(prompt), range(len(engine.context.sequences)))
                assert hit.n_tokens == best

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.run()
            self.check()
            assert all(request.finished for request in self.engine.all)
            self.patch.undo()


class TestPrefixCache(PrefixCacheMachine.TestCase):  # type: ignore[misc, valid-type, name-defined]
    settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
