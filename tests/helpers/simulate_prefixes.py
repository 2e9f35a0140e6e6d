"""A context without a model, which holds tokens only, and an engine that runs requests on it with a prefix cache."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pymtp.errors import InvalidRequestError, NativeError
from pymtp.prefix_cache.cache import PrefillState, PrefixCache
from pymtp.prefix_cache.tree import COMMON, Space, Tokens

Path = tuple[int, ...]


class Memory:
    """Host memory: counts all live objects, whoever refers to them."""

    def __init__(self, limit: int) -> None:
        self.limit, self.nbytes, self.peak = limit, 0, 0

    def add(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self.peak = max(self.peak, self.nbytes)
        assert self.nbytes <= self.limit, "more than the limit"


class SavedBytes:
    """Saved K and V, or a saved state.

    path: all tokens up to the last one that it belongs to. has_logits: whether a state includes its logits.
    """

    def __init__(self, memory: Memory, path: Path, nbytes: int, start: int, has_logits: bool = False) -> None:
        self.path, self.nbytes, self.start, self.has_logits = path, nbytes, start, has_logits
        memory.add(nbytes)
        weakref.finalize(self, memory.add, -nbytes)

    def __getitem__(self, rows: slice) -> SavedRows:
        assert 0 <= rows.start < rows.stop <= len(self.path) - self.start
        return SavedRows(self, self.start + rows.start, self.start + rows.stop)


@dataclass(frozen=True)
class SavedRows:
    """The rows of saved K and V between two positions."""

    saved: SavedBytes
    start: int
    end: int


@dataclass
class SimSequence:
    """The contents of a sequence.

    state: the tokens that its state belongs to; None without a state. has_logits: whether that includes logits.
    """

    tokens: Path = ()
    state: Path | None = ()
    has_logits: bool = False


class SimFile:
    """A prefix file: a text, and states at some positions of it, the last one at its end."""

    def __init__(self, context: SimContext, tokens: Path, checkpoints: Sequence[int]) -> None:
        assert sorted(checkpoints)[-1] == len(tokens)
        self._context, self.tokens, self.checkpoints = context, tokens, checkpoints
        self.cell_bytes = context.cell_bytes

    def state_bytes(self, position: int) -> int:
        return self._context.max_bytes

    def state(self, position: int) -> SavedBytes:
        self._context.before("file", 0)
        at_end = position == len(self.tokens)
        return SavedBytes(self._context.memory, self.tokens[:position], self._context.max_bytes, position, at_end)

    def cells(self, first: int, n: int) -> SavedBytes:
        assert 0 <= first < first + n <= len(self.tokens)
        self._context.before("file", 0)
        return SavedBytes(self._context.memory, self.tokens[: first + n], n * self.cell_bytes, first)

    def error(self, message: str) -> InvalidRequestError:
        return InvalidRequestError(f"the file {message}")


class SimContext:
    """A context that holds each sequence's tokens, and checks that states and K and V belong together.

    failed_save_clears: whether a save that fails empties its sequence.
    before: called with the name of a method and its sequence; may raise.
    """

    def __init__(
        self, n_seq_max: int, limit: int, *, cell_bytes: int = 14, max_bytes: int = 19000, n_ubatch: int = 512
    ) -> None:
        self.n_seq_max, self.n_ubatch = n_seq_max, n_ubatch
        self.cell_bytes, self.max_bytes = cell_bytes, max_bytes
        self.memory = Memory(limit)
        self.sequences = [SimSequence() for _ in range(n_seq_max)]
        self.n_prefilled = 0
        self.calls: list[str] = []
        self.failed_save_clears = False
        self.before: Callable[[str, int], None] = lambda method, seq: None

    @property
    def state(self) -> SimContext:
        """Return the part of the context that saves and loads."""
        return self

    def clear(self, seq: int | None = None) -> None:
        for number in range(self.n_seq_max) if seq is None else [seq]:
            self.sequences[number] = SimSequence()

    def _may_fail(self, method: str, seq: int) -> None:
        self.calls.append(method)
        try:
            self.before(method, seq)
        except BaseException:
            if not method.startswith("save") or self.failed_save_clears:
                self.clear(seq)
            raise

    def copy(self, source: int, seq: int) -> None:
        assert source != seq
        assert not self.sequences[seq].tokens
        self._may_fail("copy", seq)
        copied = self.sequences[source]
        assert copied.state == copied.tokens
        self.sequences[seq] = SimSequence(copied.tokens, copied.state, copied.has_logits)

    def tokens_held(self, seq: int = 0) -> int:
        return len(self.sequences[seq].tokens) if self.sequences[seq].state is not None else 0

    def begins_with(self, tokens: Tokens, seq: int = 0) -> bool:
        prefix = tuple(self.sequences[seq].tokens[: len(tokens)])
        return self.tokens_held(seq) > 0 and prefix == tuple(tokens.tolist())

    def keep_cells(self, n: int, seq: int = 0) -> None:
        self._may_fail("keep_cells", seq)
        assert n <= len(self.sequences[seq].tokens)
        self.sequences[seq] = SimSequence(self.sequences[seq].tokens[:n], None)

    def copy_cells(self, source: int, seq: int, first: int, n: int) -> None:
        assert source != seq
        self._may_fail("copy_cells", seq)
        copied, target = self.sequences[source], self.sequences[seq]
        assert first == len(target.tokens) < first + n <= len(copied.tokens)
        assert copied.tokens[:first] == target.tokens
        assert target.state is None
        self.sequences[seq] = SimSequence(copied.tokens[: first + n], None)

    def save_cells(self, seq: int, first: int, n: int) -> SavedBytes:
        self._may_fail("save_cells", seq)
        assert 0 <= first < first + n <= self.tokens_held(seq)
        return SavedBytes(self.memory, self.sequences[seq].tokens[: first + n], n * self.cell_bytes, first)

    def load_cells(self, seq: int, first: int, cells: Sequence[SavedRows]) -> None:
        self._may_fail("load_cells", seq)
        target = self.sequences[seq]
        assert target.state is None
        assert first == len(target.tokens)
        path = target.tokens
        for rows in cells:
            assert rows.start == len(path)
            path += rows.saved.path[rows.start : rows.end]
        self.sequences[seq] = SimSequence(path, None)

    def save(self, seq: int = 0) -> SavedBytes:
        self._may_fail("save_state", seq)
        saved = self.sequences[seq]
        assert saved.state == saved.tokens
        return SavedBytes(self.memory, saved.tokens, self.max_bytes, len(saved.tokens), saved.has_logits)

    def check(self, tokens: Sequence[int], state: SavedBytes) -> bool:
        assert state.path == tuple(tokens)
        return state.has_logits

    def load(self, seq: int, tokens: Sequence[int], state: SavedBytes) -> None:
        self._may_fail("load_state", seq)
        assert self.sequences[seq].state is None
        assert state.path == tuple(tokens) == self.sequences[seq].tokens
        self.sequences[seq] = SimSequence(state.path, state.path, state.has_logits)

    def prefill(self, seq: int, tokens: Path) -> None:
        self._may_fail("prefill", seq)
        before = self.sequences[seq]
        assert tokens
        assert before.state == before.tokens
        self.n_prefilled += len(tokens)
        path = before.tokens + tokens
        self.sequences[seq] = SimSequence(path, path, True)

    def decode(self, seq: int, token: int) -> None:
        before = self.sequences[seq]
        assert before.state == before.tokens
        path = (*before.tokens, token)
        self.sequences[seq] = SimSequence(path, path)


@dataclass(eq=False)
class SimRequest:
    """A request: a prompt, and the tokens that will be generated after it.

    chunks: the lengths of its prefill calls. n_waits: how often it had to wait for another request.
    generating: whether its first token was sampled.
    """

    prompt: Path
    output: Path
    number: int
    branch_points: tuple[int, ...] = ()
    priority: int = 0
    space: Space = COMMON
    prefill_state: PrefillState | None = None
    n_generated: int = 0
    n_prefilled: int = 0
    chunks: list[int] = field(default_factory=list)
    n_waits: int = 0
    generating: bool = False
    finished: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        return self.priority, self.number


class SimEngine:
    """An engine like engine.Engine: each step admits requests, prefills one chunk, and generates a token for each.

    random: shuffles the order of prefill; None for the order of ranks.
    """

    def __init__(
        self, n_seq_max: int = 4, cache_bytes: int = 10**9, *, alignment: int = 64, min_gain: int = 64, **context: int
    ) -> None:
        self.context = SimContext(n_seq_max, cache_bytes, **context)
        self.cache = PrefixCache(self.context, cache_bytes, min_gain=min_gain, alignment=alignment)
        self.waiting: list[SimRequest] = []
        self.running: list[SimRequest] = []
        self.all: list[SimRequest] = []
        self.numbers = count()
        self.random: random.Random | None = None

    def submit(
        self,
        prompt: Sequence[int],
        output: Sequence[int] = (),
        *,
        branch_points: Sequence[int] = (),
        priority: int = 0,
        space: Space = COMMON,
    ) -> SimRequest:
        request = SimRequest(tuple(prompt), tuple(output), next(self.numbers), tuple(branch_points), priority, space)
        self.all.append(request)
        self.waiting.append(request)
        return request

    @property
    def free(self) -> list[int]:
        taken = {request.prefill_state.seq for request in self.running if request.prefill_state}
        return [seq for seq in range(self.context.n_seq_max) if seq not in taken]

    def move(self, request: SimRequest, target: int) -> None:
        """Move a running request to a free sequence."""
        prefill = request.prefill_state
        assert prefill is not None
        self.cache.spill(target)
        self.context.clear(target)
        self.context.copy(prefill.seq, target)
        self.context.clear(prefill.seq)
        self.cache.on_move(prefill.seq, target)

    def step(self) -> bool:
        """Run one step; tell whether requests are left."""
        while self.waiting and self.free:
            request = min(self.waiting, key=lambda waiting: waiting.rank)
            self.waiting.remove(request)
            request.prefill_state = self.cache.begin(
                request.prompt, self.free, request.rank, request.branch_points, request.space
            )
            self.running.append(request)
        generating = [request for request in self.running if request.generating]
        in_prefill = sorted((request for request in self.running if not request.generating), key=lambda one: one.rank)
        if self.random is not None:
            self.random.shuffle(in_prefill)
        assert not in_prefill or any(self.guarded(request, self.prefill) for request in in_prefill), "all wait"
        for request in generating:
            self.guarded(request, self.generate)
        return bool(self.running or self.waiting)

    def submit_and_run(self, prompt: Sequence[int], output: Sequence[int] = (), **keywords: Any) -> SimRequest:
        request = self.submit(prompt, output, **keywords)
        self.run()
        return request

    def run(self, max_steps: int = 100_000) -> None:
        for _ in range(max_steps):
            if not self.step():
                return
        raise AssertionError("some request never finishes")

    def guarded(self, request: SimRequest, call: Callable[[SimRequest], bool]) -> bool:
        """Call a method for a request, which fails with the context's errors."""
        try:
            return call(request)
        except NativeError:
            self.finish(request, fails=True)
            return True

    def prefill(self, request: SimRequest) -> bool:
        """Prefill a chunk; return False if the request waits for another one."""
        prefill, prompt, n_ubatch = request.prefill_state, request.prompt, self.context.n_ubatch
        assert prefill is not None
        if not self.cache.prepare_chunk(prefill):
            request.n_waits += 1
            return False
        sequence = self.context.sequences[prefill.seq]
        assert sequence.tokens == sequence.state == prompt[: prefill.n_computed]
        if prefill.unfinished:
            start = prefill.n_computed
            end = min(prefill.next_checkpoint, start - start % n_ubatch + n_ubatch)
            chunk = prompt[start:end]
            self.context.prefill(prefill.seq, chunk)
            request.chunks.append(len(chunk))
            request.n_prefilled += len(chunk)
            self.cache.on_prefill(prefill, end)
            # before the sequence moves on: the others wait for its state
            for other in sorted(self.running, key=lambda one: one.rank):
                if other is not request and other.prefill_state is not None and other.prefill_state.waiting:
                    self.guarded(other, self.prepare_chunk)
        if not prefill.unfinished:
            assert self.context.sequences[prefill.seq].has_logits
            self.cache.on_first_token(prefill)
            request.generating = True
            if not request.output:
                self.finish(request)
        return True

    def prepare_chunk(self, request: SimRequest) -> bool:
        assert request.prefill_state is not None
        ready = self.cache.prepare_chunk(request.prefill_state)
        request.n_waits += not ready
        return ready

    def generate(self, request: SimRequest) -> bool:
        assert request.prefill_state is not None
        self.context.decode(request.prefill_state.seq, request.output[request.n_generated])
        request.n_generated += 1
        if request.n_generated == len(request.output):
            self.finish(request)
        return True

    def finish(self, request: SimRequest, *, fails: bool = False) -> None:
        """End a request that is complete, cancelled, or failed: then its sequence is cleared."""
        request.finished = True
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self.running.remove(request)
            assert request.prefill_state is not None
            if fails:
                self.context.clear(request.prefill_state.seq)
            self.cache.release(request.prefill_state, None if fails else request.output[: request.n_generated])


def text(seed: int, n: int) -> Path:
    """Return random tokens, which share no beginning with those of other seeds."""
    return tuple(random.Random(seed).choices(range(200_000), k=n))
