"""What sequences and host memory hold: checkpoints, and the K and V before them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from pymtp.errors import NativeError, PymtpError
from pymtp.prefix_cache.checkpoints import Why
from pymtp.prefix_cache.context import PrefixContext
from pymtp.prefix_cache.eviction import FIRST, UNLIKELY, Budget, likely
from pymtp.prefix_cache.records import Held, Place, Reader
from pymtp.prefix_cache.tree import Block, Bytes, Node, Part, PrefixTree, Tokens, as_tokens

BLOCK = 256  # tokens whose K and V are saved, and given back, together


class PrefixStore:
    """Two tiers: the sequences of a context, and host memory up to a budget.

    A checkpoint is in host memory from the moment that it was taken. The K and V before it stay where they are, in a
    sequence, and go to host memory when the sequence is to hold something else, if they are worth their bytes. So a
    conversation that goes on in its sequence needs host memory for states only. Those that were loaded stay in host
    memory, too, until there is something else for their bytes. A checkpoint whose K and V are nowhere is gone.
    """

    def __init__(
        self, context: PrefixContext, cache_bytes: int, least: int, reading: Callable[[int, int], float]
    ) -> None:
        """least: tokens that the end of a text has to save. reading: seconds, as for Prefixes."""
        self._context, self._least = context, least
        self.tree = PrefixTree()
        self.budget = Budget(self.tree, cache_bytes, context.cell_bytes, reading)
        self._leaving: int | None = None  # a sequence that is about to hold something else
        self.held = [Held() for _ in range(context.n_seq_max)]
        self.pins: dict[Reader, Node] = {}  # what readers stand on, or are to: these checkpoints do not go
        self.copied = self.loaded = self.saved = 0  # tokens whose K and V were

    @contextmanager
    def _or_empty(self, seq: int) -> Iterator[None]:
        """A sequence that something fails on is empty."""
        try:
            yield
        except Exception:  # no other: see recover
            with suppress(PymtpError):  # of a context that is closed
                self._context.clear(seq)
            self.emptied(seq)
            raise

    def emptied(self, seq: int) -> None:
        """The sequence holds nothing any more."""
        nodes = self._only_there(seq, 0)
        self.held[seq] = Held()
        for node in nodes:
            self._drop(node)

    def forget(self) -> None:
        """Nothing is known any more."""
        self.pins.clear()
        self.tree = self.budget.tree = PrefixTree()
        self.held = [Held() for _ in self.held]

    def recover(self) -> None:
        """After any call was broken off: sequences hold what the context says, and no request is there."""
        self.pins.clear()
        if not self.tree.whole:
            self.tree = self.budget.tree = PrefixTree()
        kept: set[Node] = set()
        for seq in range(len(self.held)):
            goes_on, self.held[seq] = self.held[seq].goes_on, Held()
            with suppress(PymtpError):  # of a context that is closed
                tokens = as_tokens(self._context.tokens(seq))
                self.held[seq] = Held(tokens, len(tokens), live=len(tokens) > 0, goes_on=goes_on)
                kept.update(self.tree.walk(tokens)[0])
        for node in list(self.tree.checkpoints):
            if not node.covered and node not in kept:
                self.tree.drop(node)

    def fill(self, tokens: Tokens, place: Place) -> None:
        """Makes a sequence hold the tokens up to a place, with their state. Raises what the context raises; the
        sequence is empty then."""
        context, seq, n = self._context, place.seq, place.n
        with self._or_empty(seq):
            self.leave(seq, place.kept)
            if place.node is not None:
                self._load(tokens, place, place.node)
            elif place.kept < n or not n:
                context.clear(seq)
                if place.source is not None:
                    context.copy(place.source, seq)
                    self.copied += n

    def _load(self, tokens: Tokens, place: Place, node: Node) -> None:
        context, seq, n, kept = self._context, place.seq, place.n, place.kept
        assert node.checkpoint is not None
        self.budget.touch(node)
        context.keep_cells(kept, seq)
        if place.source is not None:
            context.copy_cells(place.source, seq, kept, n - kept)
            self.copied += n - kept
        elif kept < n:
            context.load_cells(seq, kept, [part.cells for part in self.tree.cells(node, kept)])
            self.loaded += n - kept
        context.load_state(seq, tokens[:n].tolist(), node.checkpoint.state)

    # ── Checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, seq: int, tokens: Tokens, why: Why, *, logits: bool, keep: Iterable[Node] = ()) -> Node | None:
        """A checkpoint of what a sequence holds; None where there is one, or no room. keep: what must not go for it."""
        n, before, size = len(tokens), self.before(tokens), self._context.state_bytes
        if before == n:
            return None
        priority = self.budget.clock + FIRST[why] * self.budget.worth(before, n, size, cells=n - before)
        if not self.room(size, priority, {*self.pins.values(), *keep}):
            return None
        state = self._saved(seq, partial(self._context.save_state, seq))
        return None if state is None else self.budget.put(tokens, state, why, logits=logits)

    def _saved(self, seq: int, save: Callable[[], Bytes]) -> Bytes | None:
        """None where it fails. Raises what it fails by where the sequence does not hold what it held."""
        try:
            return save()
        except (NativeError, MemoryError):
            if self._context.tokens_held(seq) < self.held[seq].n:
                raise
            return None

    def before(self, tokens: Tokens) -> int:
        """The last checkpoint among the tokens; 0 without one."""
        return max((node.end for node in self.tree.walk(tokens)[0] if node.checkpoint is not None), default=0)

    def pin(self, reader: Reader, node: Node | None) -> None:
        """What the reader stands on, instead of what it stood on."""
        self.pins.pop(reader, None)
        if node is not None:
            self.pins[reader] = node

    def _drop(self, node: Node) -> None:
        if node.checkpoint is not None:
            self.tree.drop(node)
            self.pins = {reader: other for reader, other in self.pins.items() if other is not node}

    # ── From sequences to host memory ───────────────────────────────────────────────────────────────────────────────

    def _only_there(self, seq: int, kept: int) -> list[Node]:
        """Checkpoints after `kept` tokens of a sequence whose K and V nothing else has, rising."""
        held = self.held[seq]
        if held.n <= kept:
            return []
        path, _ = self.tree.walk(held.tokens[: held.n])
        nodes = [node for node in path if node.checkpoint is not None and node.end > kept and not node.covered]
        for other in self.held:
            if not nodes:
                break
            last = nodes[0].end - 1
            # of most, and there may be many, a look at one token is enough
            if other is not held and other.n > last and other.tokens[last] == held.tokens[last]:
                n = other.shared(held.tokens)
                nodes = [node for node in nodes if node.end > n]
        return nodes

    def _end(self, seq: int, kept: int) -> int:
        """Tokens of a text whose last state is wanted, there and nowhere else, and to be lost; 0 for none."""
        held = self.held[seq]
        if not held.goes_on or not held.live or held.busy or held.n <= kept:
            return 0
        return held.n if held.n - self.before(held.tokens[: held.n]) > self._least else 0

    def loss(self, seq: int, kept: int) -> tuple[int, float]:
        """Where a sequence keeps no more than so many tokens: how many are to be saved before, of checkpoints that are
        likely used, and the highest priority of those whose K and V nothing else has."""
        nodes = self._only_there(seq, kept)
        wanted = next((node for node in reversed(nodes) if likely(node) > UNLIKELY), None)
        n = 0
        if wanted is not None:
            covered = next((above.end for above in wanted.up() if above.covered), 0)
            n = wanted.end - max(kept, covered)
        return n, max(map(self.budget.priority, nodes), default=0.0)

    def leave(self, seq: int, kept: int) -> None:
        """Saves what is worth it of a sequence that is to keep no more than so many tokens. Raises what the context
        raises; the sequence is empty then."""
        self._leaving = seq
        try:
            with self._or_empty(seq):
                self._save(seq, kept)
        finally:
            self._leaving = None
        held = self.held[seq]
        if held.n > kept:
            held.n, held.live, held.logits = kept, False, False

    def room(self, need: int, priority: float, keep: Container[Node | None]) -> bool:
        """As Budget.room, which is not to hold this: K, V and states go without a collection."""
        return self.budget.room(need, priority, keep, self._spare)

    def _spare(self) -> bool:
        """Lets go of K and V in host memory that a sequence has, too, and keeps. Whether there were any."""
        return any(
            self.tree.uncover(self.tree.walk(held.tokens[: held.n])[0])
            for seq, held in enumerate(self.held)
            if seq != self._leaving
        )

    def _save(self, seq: int, kept: int) -> None:
        held, nodes = self.held[seq], self._only_there(seq, kept)
        if end := self._end(seq, kept):
            node = self.put(seq, held.tokens[:end], Why.TEXT, logits=held.logits, keep=nodes)
            if node is not None and not node.covered:
                nodes.append(node)
        for node in nodes:
            if not self._cover(seq, node, {*self.pins.values(), *nodes}):
                self._drop(node)
                self.budget.evicted += 1

    def _cover(self, seq: int, node: Node, keep: Container[Node]) -> bool:
        """Brings K and V before a checkpoint to host memory; whether it was worth it."""
        if node.covered:  # with another branch
            return True
        assert node.checkpoint is not None
        start = node.end
        while start != (covered := next((above.end for above in node.up() if above.covered), 0)):
            start = covered  # what was covered may go where room is made
            need, size = (node.end - start) * self._context.cell_bytes, node.checkpoint.state.nbytes
            worth = self.budget.worth(node.before(), node.end, size, cells=node.end - start)
            if not self.room(need, node.checkpoint.age + likely(node) * worth, keep):
                return False
        parts = []
        for i in range(start // BLOCK, -(-node.end // BLOCK)):
            first, last = max(i * BLOCK, start), min((i + 1) * BLOCK, node.end)
            cells = self._saved(seq, partial(self._context.save_cells, seq, first, last - first))
            if cells is None:
                return False
            parts.append(Part(Block(first, cells), first, last))
        if sum(part.block.data.nbytes for part in parts) > need:
            return False
        self.tree.cover(node, parts)
        self.saved += node.end - start
        return True
