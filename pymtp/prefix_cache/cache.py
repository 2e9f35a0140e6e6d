"""Nothing is read twice: where prompts go on, which of them wait for others, and where they stop for checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np

from pymtp.prefix_cache.checkpoints import Why, plan_stops
from pymtp.prefix_cache.context import PrefixContext
from pymtp.prefix_cache.load import StoredPrefix, adopt
from pymtp.prefix_cache.records import Held, Place, PrefixFigures, Reader
from pymtp.prefix_cache.store import PrefixStore
from pymtp.prefix_cache.tree import Bytes, Node, Tokens, as_tokens, shared

PAST, PAST_TOKENS = 64, 2**20  # prompts, and tokens of them, that new ones are compared with
FROM_HOST = 2  # what a token's K and V from or to host memory cost, of a copy from sequence to sequence


class Prefixes:
    """What an engine asks when it reads prompts. One thread at a time; `figures` from any.

    The tree of prefixes is an idea of SGLang (arXiv 2312.07104); to keep recurrent states only where texts part and
    end is one of Marconi (arXiv 2411.19379).
    """

    def __init__(
        self,
        context: PrefixContext,
        cache_bytes: int,
        *,
        least: int = 64,
        grain: int = 1,
        reading: Callable[[int, int], float] = lambda start, end: float(end - start),
    ) -> None:
        """
        cache_bytes: of host memory. With 0, prompts go on only from what sequences hold.
        least: tokens that a checkpoint, a jump or a stop for others has to save: they are read in the time of several
            checkpoints.
        grain: a prompt may be cut at multiples of it without a change of bits. 1: anywhere, and what was written may
            be gone on from as what was read.
        reading: seconds of reading the tokens between two places of a prompt, in any unit.
        """
        self._context, self.least, self.grain = context, least, grain
        self.store = PrefixStore(context, cache_bytes, least, reading)
        self._readers: list[Reader] = []
        self._past: deque[Tokens] = deque()
        self._n_past = self._ticks = 0
        self._lookups = self._hits = self._found = 0

    def figures(self) -> PrefixFigures:
        """A snapshot."""
        store, tree, budget = self.store, self.store.tree, self.store.budget
        return PrefixFigures(
            nbytes=tree.nbytes,
            nodes=tree.n_nodes,
            checkpoints=len(tree.checkpoints),
            tokens=tree.n_tokens,
            lookups=self._lookups,
            hits=self._hits,
            found=self._found,
            copied=store.copied,
            loaded=store.loaded,
            saved=store.saved,
            evicted=budget.evicted,
            evicted_tokens=budget.evicted_tokens,
        )

    # ── A request ───────────────────────────────────────────────────────────────────────────────────────────────────

    def open(
        self,
        prompt: Sequence[int] | Tokens,
        free: Sequence[int],
        rank: tuple[int, int],
        marks: Iterable[int] = (),
        family: object = None,
        most: int | None = None,
    ) -> Reader:
        """A prompt that is to be read, in one of the free sequences: `Reader.seq`. Nothing changes there yet.

        rank: who comes first; lower. marks: places that prompts to come part from this one at, such as the beginning
        of the last user message. family: it goes on only from what others of the same one left in sequences.
        most: it goes on from no place after so many tokens, until `Reader.most` is another.
        """
        tokens = as_tokens(prompt)
        most = len(tokens) if most is None else most
        self._look(free)
        place = self.place(tokens, free, family, most)
        reader = Reader(tokens, rank, marks, place.seq, family)
        reader.most = most
        reader.here = place.n
        self._readers.append(reader)
        for each in self._readers:  # whoever reads for others is to stop where they part, from its next piece on
            if each is reader or (each.reads and reader.rank < each.rank and not each.alone):
                each.waits = self._waits(each)
        return reader

    def advance(self, reader: Reader) -> bool:
        """To be called before each piece of a prompt: brings the sequence to the best place that there is. False where
        it waits for another reader, which comes before it and reads what it needs.

        Raises what the context raises, as `read` does: then the sequence is empty, and the reader is to be closed, or
        to read all by itself.
        """
        if reader.alone:
            reader.waits = False
            return True
        place = self.place(reader.tokens, [reader.seq], reader.family, reader.most)
        reader.here = max(place.n, reader.n)
        reader.waits = self._waits(reader)
        if not reader.begun:
            self.store.pin(reader, place.node)
        if reader.waits:
            return False
        if not reader.begun or place.n - reader.n >= self.least:
            self._go(reader, place)
        return True

    def read_alone(self, reader: Reader) -> None:
        """After `advance` raised: the prompt is read from its beginning."""
        self._found -= reader.found
        reader.n = reader.found = 0
        reader.alone = True
        self._go(reader, Place(reader.seq))

    def read(self, reader: Reader, n: int) -> None:
        """The reader's sequence holds n tokens of the prompt now, and nothing was sampled since. Takes a checkpoint
        where one is wanted: readers that wait for it may go on after this, and are to be asked first."""
        held = self.store.held[reader.seq]
        reader.n = reader.here = held.n = n
        held.live, held.logits = True, not reader.reads
        if n in reader.stops:
            self._keep(reader)

    def write(self, reader: Reader) -> None:
        """The first token after the prompt was sampled: the state moves on."""
        held = self.store.held[reader.seq]
        held.live = held.logits = False

    def rest(self, reader: Reader) -> None:
        """Nothing is to be sampled after the prompt: the next launch takes the logits."""
        self.store.held[reader.seq].logits = False

    def close(self, reader: Reader, written: Sequence[int] | None = ()) -> None:
        """The request is done with its sequence, which holds what was read of the prompt, and what was written; None:
        nothing. A sequence that nothing was done to yet holds what it held."""
        self._readers.remove(reader)
        self.store.pin(reader, None)
        held = self.store.held[reader.seq]
        held.logits = False  # the next launch takes them
        if written is None:
            self.store.emptied(reader.seq)
        elif not len(written):
            held.live |= reader.begun
        elif self.grain == 1:
            held.tokens, held.n, held.live = np.append(reader.tokens, as_tokens(written)), reader.n + len(written), True
        held.busy = False

    def leave(self, seq: int) -> None:
        """Before a free sequence is emptied for another use: saves what is worth it. Raises what the context raises:
        the sequence is empty then."""
        self.store.leave(seq, 0)

    def worth(self, seq: int) -> int:
        """Tokens that may have to be read again when a free sequence is emptied: none that host memory has room for."""
        held, limit = self.store.held[seq], self.store.budget.limit
        return 0 if limit >= self._context.state_bytes + held.n * self._context.cell_bytes else held.n

    def moved(self, seq: int, target: int) -> None:
        """What a sequence held has gone to another, which was empty."""
        held = self.store.held
        held[target], held[seq] = held[seq], Held()
        for reader in self._readers:
            if reader.seq == seq:
                reader.seq = target

    def _look(self, free: Sequence[int]) -> None:
        """Forgets what free sequences do not hold any more: a user may have had the context to himself."""
        for seq in free:
            held = self.store.held[seq]
            whole = not held.live or self._context.tokens_held(seq) == held.n
            if held.n and not (whole and self._context.begins_with(held.tokens[: held.n], seq)):
                self.store.emptied(seq)

    def lost(self) -> list[int]:
        """After something failed: the sequences of requests that a copy from there emptied. What is free and was
        emptied is known from now on."""
        found = []
        for seq, held in enumerate(self.store.held):
            if self._context.tokens_held(seq) < held.n:
                if held.busy:
                    found.append(seq)
                else:
                    self.store.emptied(seq)
        return found

    def recover(self) -> None:
        """After any call was broken off anywhere: nobody reads, and sequences hold what the context says."""
        self._readers.clear()
        self._n_past = sum(map(len, self._past))
        self.store.recover()

    def states(self, tokens: Sequence[int] | Tokens, places: Iterable[int]) -> dict[int, Bytes]:
        """Those that are there, after so many of the tokens; after all of them with logits only."""
        path, _ = self.store.tree.walk(as_tokens(tokens))
        there = {node.end: node.checkpoint for node in path if node.checkpoint is not None}
        found = {place: there[place] for place in places if place in there}
        return {place: one.state for place, one in found.items() if place < len(tokens) or one.logits}

    def adopt(self, file: StoredPrefix) -> None:
        """What a file has can be gone on from. Raises InvalidRequestError where that cannot be: see prefix_files."""
        adopt(self._context, self.store, file)

    def forget(self) -> None:
        """Gives all host memory back; sequences hold nothing that may be gone on from."""
        self.store.forget()
        self._past.clear()
        self._n_past = 0

    # ── Where a prompt goes on ──────────────────────────────────────────────────────────────────────────────────────

    def place(self, tokens: Tokens, seqs: Sequence[int], family: object = None, most: int | None = None) -> Place:
        """The place with the most tokens, but no more than `most`, in one of these sequences: the one where the least K
        and V must move. Of several, the one that holds what is worth the least; of these, the one that was used the
        longest ago."""
        store = self.store
        most = len(tokens) if most is None else most
        common = [held.shared(tokens) if held.family is family else 0 for held in store.held]
        path, _ = store.tree.walk(tokens)
        node = next((each for each in reversed(path) if each.end <= most and self._fits(each, len(tokens))), None)
        n, source = node.end if node else 0, None
        for seq, held in enumerate(store.held):
            nearest = held.n > n or (held.n == n and seq in seqs)  # a checkpoint of the same place needs to be loaded
            there = held.live and nearest and common[seq] == held.n <= most
            if there and self._may(held.n, len(tokens), held.logits):
                node, n, source = None, held.n, seq
        choices = []
        for seq in seqs:
            if node is None:
                kept, near = (n if seq == source else 0), source
            else:
                kept, near = min(common[seq], n), next((s for s, m in enumerate(common) if m >= n and s != seq), None)
            lost, priority = store.loss(seq, kept) if len(seqs) > 1 else (0, 0.0)
            cost = (n - kept) * (FROM_HOST if near is None else 1) + lost * FROM_HOST
            place = Place(seq, n, kept, node, near if kept < n else None)
            choices.append((cost, priority, store.held[seq].used, place))
        return min(choices, key=lambda choice: choice[:3])[3]

    def _fits(self, node: Node, length: int) -> bool:
        return node.checkpoint is not None and self._may(node.end, length, node.checkpoint.logits)

    def _may(self, n: int, length: int, logits: bool) -> bool:
        """Whether a prompt of such a length may go on after n tokens."""
        return logits if n == length else n < length and n % self.grain == 0

    def _go(self, reader: Reader, place: Place) -> None:
        tokens, n = reader.tokens, place.n
        parting = self._parting(tokens)  # before what it parts from may go
        self.store.pin(reader, place.node)
        self.store.fill(tokens, place)
        self._ticks += 1
        self.store.held[place.seq] = Held(
            tokens,
            n,
            live=True,
            logits=n == len(tokens),
            busy=True,
            used=self._ticks,
            family=reader.family,
            goes_on=max(n, parting) >= self.least or len(reader.marks) > 0,
        )
        if not reader.begun:
            reader.begun = True
            self._lookups += 1
            self._hits += n > 0
            self._remember(tokens)
        self._found += n - reader.n
        reader.found += n - reader.n
        reader.n = n
        self._plan(reader, parting)

    # ── Checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _parting(self, tokens: Tokens) -> int:
        """How many tokens some other text begins with, too."""
        past = (shared(one, tokens) for one in self._past if one is not tokens)  # as it is where a reader goes further
        return max(self.store.tree.walk(tokens)[1], *chain((held.shared(tokens) for held in self.store.held), past))

    def _remember(self, tokens: Tokens) -> None:
        """A prompt whose K, V and states may go before another shows that they were wanted."""
        self._past.append(tokens)
        self._n_past += len(tokens)
        while self._n_past > PAST_TOKENS or len(self._past) > PAST:
            self._n_past -= len(self._past.popleft())

    def _plan(self, reader: Reader, parting: int) -> None:
        limit, size = self.store.budget.limit, self._context.state_bytes
        most = limit // (2 * size) or limit // size  # half of it, so that a prompt does not drive all others out
        reader.stops |= plan_stops(
            len(reader.tokens),
            reader.n,
            least=self.least,
            grain=self.grain,
            n_ubatch=self._context.n_ubatch,
            most=most,
            saved=self.store.before(reader.tokens[: reader.n]),
            parting=parting,
            marks=reader.marks,
        )

    def _keep(self, reader: Reader) -> None:
        n, why = reader.n, reader.stops[reader.n]
        node = self.store.put(reader.seq, reader.tokens[:n], why, logits=True)
        if node is None:
            return
        for other in self._readers:
            follows = other.waits and not other.begun and shared(reader.tokens, other.tokens) >= n
            if follows and self._fits(node, len(other.tokens)):
                self.store.pin(other, node)  # else it might go before it was of use

    # ── Who waits ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _waits(self, reader: Reader) -> bool:
        """Whether a reader that comes before this one is going to pass a place further on that this one may go on from.
        It stops there. Who comes first waits for none, so nobody waits for ever, whatever becomes of others."""
        best, place = None, reader.here
        for other in self._readers:
            if other.rank < reader.rank and other.reads and other.family is reader.family:
                n = min(self._meeting(other.tokens, reader.tokens), reader.most)
                pays = n - reader.here >= self.least
                if not reader.begun:  # for a few tokens it waits where the other stops anyway
                    pays |= n in other.stops or n == len(reader.tokens)
                if n > max(place, other.n) and pays:
                    best, place = other, n
        if best is not None:
            best.stops.setdefault(place, Why.PARTING)
        return best is not None

    def _meeting(self, first: Tokens, second: Tokens) -> int:
        """How far the second may follow the first."""
        n = shared(first, second)
        if n == len(first) == len(second):
            return n
        n = min(n, len(second) - 1)
        return n - n % self.grain
