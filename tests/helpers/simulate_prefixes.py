"""A context that holds tokens only, and an engine that reads and writes with prefixes on it."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from pymtp.errors import InvalidRequestError, NativeError
from pymtp.prefix_cache.cache import Prefixes
from pymtp.prefix_cache.records import Reader
from pymtp.prefix_cache.tree import Tokens

Path = tuple[int, ...]


class Memory:
    """Host memory: what is alive counts, whoever holds it."""

    def __init__(self, limit: int) -> None:
        self.limit, self.nbytes, self.most = limit, 0, 0

    def add(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self.most = max(self.most, self.nbytes)
        assert self.nbytes <= self.limit, "more than the budget"


class Bytes:
    """Saved cells or a saved state. path: all tokens up to the last that it is of. fresh: with their logits."""

    def __init__(self, memory: Memory, path: Path, nbytes: int, start: int, fresh: bool = False) -> None:
        self.path, self.nbytes, self.start, self.fresh = path, nbytes, start, fresh
        memory.add(nbytes)
        weakref.finalize(self, memory.add, -nbytes)

    def __getitem__(self, rows: slice) -> Rows:
        assert 0 <= rows.start < rows.stop <= len(self.path) - self.start
        return Rows(self, self.start + rows.start, self.start + rows.stop)


@dataclass(frozen=True)
class Rows:
    """Of saved cells, those of the tokens between two places."""

    of: Bytes
    start: int
    end: int


@dataclass
class Cells:
    """What a sequence holds. state: the tokens whose state it has; fresh: and their logits."""

    tokens: Path = ()
    state: Path | None = ()
    fresh: bool = False


class SimFile:
    """A file with a text, and states at some places of it, the last at its end."""

    def __init__(self, context: SimContext, tokens: Path, places: Sequence[int]) -> None:
        assert sorted(places)[-1] == len(tokens)
        self._context, self.tokens, self.places, self.cell_bytes = context, tokens, places, context.cell_bytes

    def state_bytes(self, place: int) -> int:
        return self._context.state_bytes

    def state(self, place: int) -> Bytes:
        self._context.before("file", 0)
        whole = place == len(self.tokens)
        return Bytes(self._context.memory, self.tokens[:place], self._context.state_bytes, place, whole)

    def cells(self, first: int, n: int) -> Bytes:
        assert 0 <= first < first + n <= len(self.tokens)
        self._context.before("file", 0)
        return Bytes(self._context.memory, self.tokens[: first + n], n * self.cell_bytes, first)

    def refused(self, why: str) -> InvalidRequestError:
        return InvalidRequestError(f"the file {why}")


class SimContext:
    """Holds each sequence's tokens, and sees to it that state and cells belong together."""

    def __init__(
        self, n_seq_max: int, limit: int, *, cell_bytes: int = 14, state_bytes: int = 19000, n_ubatch: int = 512
    ) -> None:
        self.n_seq_max, self.n_ubatch = n_seq_max, n_ubatch
        self.cell_bytes, self.state_bytes = cell_bytes, state_bytes
        self.memory = Memory(limit)
        self.cells = [Cells() for _ in range(n_seq_max)]
        self.n_read = 0
        self.calls: list[str] = []
        self.saves_lose = False  # whether a save that fails empties its sequence
        self.before: Callable[[str, int], None] = lambda what, seq: None  # may raise

    def clear(self, seq: int | None = None) -> None:
        for each in range(self.n_seq_max) if seq is None else [seq]:
            self.cells[each] = Cells()

    def _may_fail(self, what: str, seq: int) -> None:
        self.calls.append(what)
        try:
            self.before(what, seq)
        except BaseException:
            if not what.startswith("save") or self.saves_lose:
                self.clear(seq)
            raise

    def copy(self, source: int, seq: int) -> None:
        assert source != seq
        assert not self.cells[seq].tokens
        self._may_fail("copy", seq)
        one = self.cells[source]
        assert one.state == one.tokens
        self.cells[seq] = Cells(one.tokens, one.state, one.fresh)

    def tokens_held(self, seq: int = 0) -> int:
        return len(self.cells[seq].tokens) if self.cells[seq].state is not None else 0

    def begins_with(self, tokens: Tokens, seq: int = 0) -> bool:
        return self.tokens_held(seq) > 0 and tuple(self.cells[seq].tokens[: len(tokens)]) == tuple(tokens.tolist())

    def keep_cells(self, n: int, seq: int = 0) -> None:
        self._may_fail("keep_cells", seq)
        assert n <= len(self.cells[seq].tokens)
        self.cells[seq] = Cells(self.cells[seq].tokens[:n], None)

    def copy_cells(self, source: int, seq: int, first: int, n: int) -> None:
        assert source != seq
        self._may_fail("copy_cells", seq)
        one, other = self.cells[source], self.cells[seq]
        assert first == len(other.tokens) < first + n <= len(one.tokens)
        assert one.tokens[:first] == other.tokens
        assert other.state is None
        self.cells[seq] = Cells(one.tokens[: first + n], None)

    def save_cells(self, seq: int, first: int, n: int) -> Bytes:
        self._may_fail("save_cells", seq)
        assert 0 <= first < first + n <= self.tokens_held(seq)
        return Bytes(self.memory, self.cells[seq].tokens[: first + n], n * self.cell_bytes, first)

    def load_cells(self, seq: int, first: int, cells: Sequence[Rows]) -> None:
        self._may_fail("load_cells", seq)
        held = self.cells[seq]
        assert held.state is None
        assert first == len(held.tokens)
        path = held.tokens
        for rows in cells:
            assert rows.start == len(path)
            path += rows.of.path[rows.start : rows.end]
        self.cells[seq] = Cells(path, None)

    def save_state(self, seq: int = 0) -> Bytes:
        self._may_fail("save_state", seq)
        one = self.cells[seq]
        assert one.state == one.tokens
        return Bytes(self.memory, one.tokens, self.state_bytes, len(one.tokens), one.fresh)

    def check_state(self, tokens: Sequence[int], state: Bytes) -> bool:
        assert state.path == tuple(tokens)
        return state.fresh

    def load_state(self, seq: int, tokens: Sequence[int], state: Bytes) -> None:
        self._may_fail("load_state", seq)
        assert self.cells[seq].state is None
        assert state.path == tuple(tokens) == self.cells[seq].tokens
        self.cells[seq] = Cells(state.path, state.path, state.fresh)

    def prefill(self, seq: int, tokens: Path) -> None:
        self._may_fail("prefill", seq)
        one = self.cells[seq]
        assert tokens
        assert one.state == one.tokens
        self.n_read += len(tokens)
        path = one.tokens + tokens
        self.cells[seq] = Cells(path, path, True)

    def write(self, seq: int, token: int) -> None:
        one = self.cells[seq]
        assert one.state == one.tokens
        path = (*one.tokens, token)
        self.cells[seq] = Cells(path, path)


@dataclass(eq=False)
class Asked:
    """A request: a prompt, and the tokens that will be written after it."""

    prompt: Path
    written: Path
    number: int
    marks: tuple[int, ...] = ()
    priority: int = 0
    reader: Reader | None = None
    n_written: int = 0
    n_read: int = 0
    pieces: list[int] = field(default_factory=list)
    waited: int = 0
    begun: bool = False
    ended: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        return self.priority, self.number


class SimEngine:
    """As engine.Engine, but for the model: admits, reads a piece of prompt, writes a token of each."""

    def __init__(
        self, n_seq_max: int = 4, cache_bytes: int = 10**9, *, grain: int = 64, least: int = 64, **context: int
    ) -> None:
        self.context = SimContext(n_seq_max, cache_bytes, **context)
        self.prefixes = Prefixes(self.context, cache_bytes, least=least, grain=grain)
        self.waiting: list[Asked] = []
        self.running: list[Asked] = []
        self.all: list[Asked] = []
        self.numbers = count()
        self.random: random.Random | None = None  # who reads next; None: who comes first

    def ask(
        self, prompt: Sequence[int], written: Sequence[int] = (), *, marks: Sequence[int] = (), priority: int = 0
    ) -> Asked:
        asked = Asked(tuple(prompt), tuple(written), next(self.numbers), tuple(marks), priority)
        self.all.append(asked)
        self.waiting.append(asked)
        return asked

    @property
    def free(self) -> list[int]:
        taken = {asked.reader.seq for asked in self.running if asked.reader}
        return [seq for seq in range(self.context.n_seq_max) if seq not in taken]

    def move(self, asked: Asked, target: int) -> None:
        """A running request goes to a free sequence."""
        assert asked.reader is not None
        self.prefixes.leave(target)
        self.context.clear(target)
        self.context.copy(asked.reader.seq, target)
        self.context.clear(asked.reader.seq)
        self.prefixes.moved(asked.reader.seq, target)

    def step(self) -> bool:
        while self.waiting and self.free:
            asked = min(self.waiting, key=lambda one: one.rank)
            self.waiting.remove(asked)
            asked.reader = self.prefixes.open(asked.prompt, self.free, asked.rank, asked.marks)
            self.running.append(asked)
        writing = [asked for asked in self.running if asked.begun]
        reading = sorted((asked for asked in self.running if not asked.begun), key=lambda one: one.rank)
        if self.random is not None:
            self.random.shuffle(reading)
        assert not reading or any(self.guarded(asked, self.read) for asked in reading), "all wait"
        for asked in writing:
            self.guarded(asked, self.write)
        return bool(self.running or self.waiting)

    def ask_and_run(self, prompt: Sequence[int], written: Sequence[int] = (), *, marks: Sequence[int] = ()) -> Asked:
        """Alone."""
        asked = self.ask(prompt, written, marks=marks)
        self.run()
        return asked

    def run(self, most: int = 100_000) -> None:
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError("some request never ends")

    def guarded(self, asked: Asked, call: Callable[[Asked], bool]) -> bool:
        try:
            return call(asked)
        except NativeError:
            self.end(asked, fails=True)
            return True

    def read(self, asked: Asked) -> bool:
        """Whether there was anything to do."""
        reader, prompt, edge = asked.reader, asked.prompt, self.context.n_ubatch
        assert reader is not None
        if not self.prefixes.advance(reader):
            asked.waited += 1
            return False
        held = self.context.cells[reader.seq]
        assert held.tokens == held.state == prompt[: reader.n]
        if reader.reads:
            end = min(reader.stop, reader.n - reader.n % edge + edge)
            piece = prompt[reader.n : end]
            self.context.prefill(reader.seq, piece)
            asked.pieces.append(len(piece))
            asked.n_read += len(piece)
            self.prefixes.read(reader, end)
            for other in sorted(self.running, key=lambda one: one.rank):  # before what they wait for is gone
                if other is not asked and other.reader is not None and other.reader.waits:
                    self.guarded(other, self.go)
        if not reader.reads:
            assert self.context.cells[reader.seq].fresh
            self.prefixes.write(reader)
            asked.begun = True
            if not asked.written:
                self.end(asked)
        return True

    def go(self, asked: Asked) -> bool:
        assert asked.reader is not None
        goes = self.prefixes.advance(asked.reader)
        asked.waited += not goes
        return goes

    def write(self, asked: Asked) -> bool:
        assert asked.reader is not None
        self.context.write(asked.reader.seq, asked.written[asked.n_written])
        asked.n_written += 1
        if asked.n_written == len(asked.written):
            self.end(asked)
        return True

    def end(self, asked: Asked, *, fails: bool = False) -> None:
        """It is done, cancelled, or failed: then its sequence is empty."""
        asked.ended = True
        if asked in self.waiting:
            self.waiting.remove(asked)
        if asked in self.running:
            self.running.remove(asked)
            assert asked.reader is not None
            if fails:
                self.context.clear(asked.reader.seq)
            self.prefixes.close(asked.reader, None if fails else asked.written[: asked.n_written])


def text(seed: int, n: int) -> Path:
    """Tokens that no other seed begins with."""
    return tuple(random.Random(seed).choices(range(200_000), k=n))
