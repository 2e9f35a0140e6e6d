"""Whatever is asked, cancelled, moved and broken: prefixes hold what they say, find all that is there, and no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import hypothesis.strategies as st
import pytest
from helpers.simulate_prefixes import Asked, Bytes, Path, SimEngine, SimFile
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pymtp.errors import InvalidRequestError, NativeError
from pymtp.prefix_cache import checkpoints, store
from pymtp.prefix_cache.tree import Block, Node, PrefixTree, as_tokens

CELL, STATE = 3, 40


def path_of(node: Node) -> Path:
    nodes = [node, *node.up()]
    return tuple(int(token) for each in reversed(nodes) for token in each.tokens)


def nodes_of(tree: PrefixTree) -> Iterator[Node]:
    left = list(tree.root.children.values())
    while left:
        node = left.pop()
        left += node.children.values()
        yield node


class Machine(RuleBasedStateMachine):
    @initialize(
        n_seq=st.integers(1, 3), budget=st.sampled_from([0, 60, 150, 400, 2000]), grain=st.sampled_from([1, 1, 4])
    )
    def begin(self, n_seq: int, budget: int, grain: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(store, "BLOCK", 5)
        self.patch.setattr(checkpoints, "TAIL", 2)
        self.engine = SimEngine(n_seq, budget, grain=grain, least=3, cell_bytes=CELL, state_bytes=STATE, n_ubatch=8)
        self.engine.random = Random(0)
        self.texts: list[Path] = [()]
        self.broken = ""
        self.engine.context.before = self.before

    def before(self, what: str, seq: int) -> None:
        if what == self.broken:
            self.broken = ""
            raise NativeError("broken")

    @rule(base=st.integers(0, 100), cut=st.integers(0, 40), extra=st.integers(1, 30), data=st.data())
    def ask(self, base: int, cut: int, extra: int, data: st.DataObject) -> None:
        text = self.texts[base % len(self.texts)]
        random = Random(data.draw(st.integers(0, 3)))
        prompt = text[: len(text) - cut] if cut < len(text) else text
        prompt += tuple(random.randrange(3) for _ in range(extra))
        written = tuple(random.randrange(3) for _ in range(random.randrange(12)))
        marks = [random.randrange(len(prompt))] if random.randrange(2) else []
        self.engine.ask(prompt, written, marks=marks, priority=random.randrange(2))
        self.texts += [prompt, prompt + written]

    @rule(n=st.integers(1, 10))
    def step(self, n: int) -> None:
        for _ in range(n):
            self.engine.step()
            self.check()

    @rule(base=st.integers(0, 100), cut=st.integers(0, 40), places=st.lists(st.integers(0, 40), max_size=2))
    def adopt(self, base: int, cut: int, places: list[int]) -> None:
        text = self.texts[base % len(self.texts)]
        text = text[: len(text) - cut] if cut < len(text) else text
        if not text:
            return
        file = SimFile(self.engine.context, text, sorted({len(text), *(1 + n % len(text) for n in places)}))
        prefixes = self.engine.prefixes
        need = len(text) * CELL + len(file.places) * STATE
        try:
            prefixes.adopt(file)
        except InvalidRequestError:
            stay = {*prefixes.store.pins.values(), *prefixes.store.tree.walk(as_tokens(text))[0]}
            assert need > prefixes.store.budget.limit or stay >= prefixes.store.tree.checkpoints.keys()
        except NativeError:
            assert self.broken == ""
        else:
            path, n = prefixes.store.tree.walk(as_tokens(text))
            assert n == len(text) == prefixes.store.tree.covered(as_tokens(text))
            ends = {node.end: node.checkpoint for node in path}
            assert all(ends.get(place) is not None for place in file.places)
            assert ends[n].logits

    @rule(
        what=st.sampled_from(
            ["file", "save_state", "save_cells", "load_state", "load_cells", "copy_cells", "copy", "keep_cells"]
        ),
        loses=st.booleans(),
    )
    def breaks(self, what: str, loses: bool) -> None:
        self.broken, self.engine.context.saves_lose = what, loses

    @precondition(lambda self: self.engine.running or self.engine.waiting)
    @rule(i=st.integers(0, 10), fails=st.booleans())
    def cancel(self, i: int, fails: bool) -> None:
        asked = [*self.engine.running, *self.engine.waiting]
        self.engine.end(asked[i % len(asked)], fails=fails)

    @precondition(lambda self: any(self.can_move(asked) for asked in self.engine.running) and self.engine.free)
    @rule()
    def move(self) -> None:
        self.broken = ""
        self.engine.move(next(asked for asked in self.engine.running if self.can_move(asked)), self.engine.free[0])

    def can_move(self, asked: Asked) -> bool:
        return asked.reader is not None and asked.reader.begun

    @invariant()
    def check(self) -> None:
        if hasattr(self, "engine"):
            self.check_tree()
            self.check_sequences()
            self.check_lookups()

    def check_tree(self) -> None:
        tree, refs, nbytes, n_tokens = self.engine.prefixes.store.tree, Counter[Block](), 0, 0
        for node in nodes_of(tree):
            assert node.parent is not None
            assert node.parent.children[int(node.tokens[0])] is node
            assert node.parent.end == node.start
            assert node.checkpoint is not None or len(node.children) > 1
            assert (node.checkpoint is not None) == (node in tree.checkpoints)
            path = path_of(node)
            if node.checkpoint is not None:
                nbytes += node.checkpoint.state.nbytes
                assert isinstance(node.checkpoint.state, Bytes)
                assert node.checkpoint.state.path == path
            if node.parts is None:
                continue
            assert node.parent.covered
            assert node.checkpoint is not None or any(child.covered for child in node.children.values())
            assert [part.start for part in node.parts] == [node.start, *(part.end for part in node.parts[:-1])]
            assert node.parts[-1].end == node.end
            n_tokens += len(node.tokens)
            for block, _, end in node.parts:
                refs[block] += 1
                assert isinstance(block.data, Bytes)
                assert block.data.path[:end] == path[:end]
        nbytes += sum(block.data.nbytes for block in refs)
        assert all(block.refs == n for block, n in refs.items())
        assert (nbytes, n_tokens) == (tree.nbytes, tree.n_tokens)
        assert tree.n_nodes == sum(1 for _ in nodes_of(tree))
        assert nbytes == self.engine.context.memory.nbytes <= self.engine.prefixes.store.budget.limit

    def check_sequences(self) -> None:
        engine = self.engine
        for cells, held in zip(engine.context.cells, engine.prefixes.store.held, strict=True):
            known = tuple(map(int, held.tokens[: held.n]))
            assert cells.tokens[: held.n] == known
            if held.live:
                assert cells.state == known == cells.tokens
            if held.logits:
                assert cells.fresh
        for node in engine.prefixes.store.tree.checkpoints:
            path = path_of(node)
            assert node.covered or any(
                tuple(held.tokens[: held.n][: node.end]) == path for held in engine.prefixes.store.held
            )

    def check_lookups(self) -> None:
        """Against a dict of all places that there are."""
        engine = self.engine
        places: dict[Path, bool] = {(): False}
        for node in engine.prefixes.store.tree.checkpoints:
            assert node.checkpoint is not None
            places[path_of(node)] = node.checkpoint.logits
        for held in engine.prefixes.store.held:
            if held.live:
                path = tuple(map(int, held.tokens[: held.n]))
                places[path] = held.logits or places.get(path, False)
        grain = engine.prefixes.grain
        for prompt in self.texts[-4:]:
            if prompt:
                fits = [n for n in range(len(prompt)) if prompt[:n] in places and n % grain == 0]
                best = len(prompt) if places.get(prompt) else max(fits)
                assert engine.prefixes.place(as_tokens(prompt), range(len(engine.context.cells))).n == best

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.run()
            self.check()
            assert all(asked.ended for asked in self.engine.all)
            self.patch.undo()


class TestPrefixes(Machine.TestCase):  # type: ignore[misc, valid-type, name-defined]
    settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
