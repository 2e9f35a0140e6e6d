"""The images of an LLM: their tokens, and their rows, which the projector computes and a cache keeps.

A prompt holds an image as a run of one negative token, one for each row of the image. Equal images have the same token
as long as it is remembered, and different ones never, so that prefixes of prompts with images are compared as tokens.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pymtp.chat.prompt import CacheKey, ChatPrompt
from pymtp.errors import InvalidRequestError, NativeError, PymtpError
from pymtp.images import Image, ImageLimits
from pymtp.native.process import FORK_SECONDS, tell_of_forks, wait_before_forks

Rows = NDArray[np.float32]
CACHE_SHARE = 4  # the rows of images take at most this share of the host memory for cached prefixes
TURN_SECONDS = 0.02  # the projector computes this long before the engine looks for other work
GRACE_SECONDS = 0.002  # after other work, more of it is waited for this long before the projector goes on early
MAX_TOKENS = 2**16  # images whose tokens are remembered: a forgotten image gets a new one, and is prefilled again


class ImageProjector(Protocol):
    """The calls of a projector: see pymtp.model.projector. Tests put a script in its place."""

    @property
    def path(self) -> Path: ...
    @property
    def digest(self) -> str: ...
    def grid(self, width: int, height: int) -> tuple[int, int]: ...
    def begin(self, pixels: NDArray[np.uint8]) -> None: ...
    def advance(self, seconds: float) -> Rows | None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


class PromptImages(NamedTuple):
    """The images of a prompt by their tokens, and the key that separates their cached rows, see `request.cache_key`."""

    by_token: Mapping[int, Image]
    key: CacheKey | None


NO_IMAGES = PromptImages({}, None)


class ImageJob:
    """An image that is encoded for those who wait for it.

    rows: a row for each token of the image, shape (n_tokens, n_embd); None until it is encoded.
    error: why it cannot be encoded.
    n_waiting: the number of those who wait for it.
    priority: the lowest priority of those who wait: a job with a lower number is begun first.
    on_done: are called at the end, on the engine's thread.
    """

    def __init__(self, image: Image, key: CacheKey | None, rows: Rows | None = None) -> None:
        self.image, self.key, self.rows = image, key, rows
        self.error: PymtpError | None = None
        self.n_waiting = self.priority = 0
        self.on_done: list[Callable[[], object]] = []

    @property
    def done(self) -> bool:
        """Return whether there are rows, or an error."""
        return self.rows is not None or self.error is not None


class ImageEncoder:
    """Gives images their tokens, and encodes them in the turns of the engine.

    Any thread may call all methods but `turn`, and ask for images. One is encoded at a time, in the order of asking.

    limits: what images a chat may have.
    n_encoded: the number of images that the projector has encoded.
    """

    def __init__(
        self,
        projector: ImageProjector,
        cache_bytes: int,
        limits: ImageLimits | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Create an encoder without images.

        cache_bytes: the limit of host memory for rows.
        clock: returns the time in seconds.
        """
        self.projector, self.limits = projector, limits or ImageLimits()
        self._cache_bytes, self._clock = cache_bytes, clock
        self.nbytes = self.n_encoded = 0
        self._tokens: OrderedDict[tuple[bytes, int, int], int] = OrderedDict()  # by digest and grid
        self._last_token = 0
        self._decoded: OrderedDict[bytes, None] = OrderedDict()  # digests of images that are not damaged
        self._cache: OrderedDict[tuple[CacheKey, bytes], Rows] = OrderedDict()  # the least recently used first
        self._jobs: list[ImageJob] = []  # those that are waited for and not done, in the order of asking
        self._current: ImageJob | None = None  # which the projector, or the thread before it, works on
        self._beginning: Future[object] | None = None  # done when the projector has begun the current image
        self._credit = 0.0  # seconds that the projector may compute before other work goes on
        self._waited = False  # for other work, since there was some
        self._after_fork_in_child()
        tell_of_forks(self)
        wait_before_forks(self)

    def _before_fork(self) -> None:
        """Wait until the projector has given up the last image, unless another one is encoded."""
        if self._last is not None and self._current is None:
            wait([self._last], FORK_SECONDS)

    def _after_fork_in_child(self) -> None:
        """Replace locks and threads in a forked child, because another thread may have held the locks at the fork."""
        # reentrant, as a handler of a signal may call the LLM, which refuses it later
        self._lock, self._checking = threading.RLock(), threading.RLock()
        # decodes images, and begins and ends them one after the other: the engine waits for none of this
        self._preparer = ThreadPoolExecutor(1, "pymtp images")
        self._last: Future[object] | None = None  # the last of these calls

    def grid(self, image: Image) -> tuple[int, int]:
        """Return the columns and rows of an image's tokens. Raises the errors of `Projector.grid`."""
        return self.projector.grid(image.width, image.height)

    def place(self, image: Image, *, decode: bool = True) -> tuple[int, int]:
        """Return the token of an image, and the number of its tokens.

        decode: whether to decode it, which is done once for each image, to find damage.

        Raises InvalidRequestError for an image that is damaged, or that the projector refuses, such as one that is too
        narrow.
        """
        nx, ny = self.grid(image)
        if decode:
            self._check_pixels(image)
        return self.token_of(image.digest, nx, ny), nx * ny

    def is_checked(self, image: Image) -> bool:
        """Return whether the image was decoded before, and is not damaged."""
        with self._lock:
            return image.digest in self._decoded

    def _check_pixels(self, image: Image) -> None:
        if self.is_checked(image):
            return
        with self._checking:  # decoding takes much memory
            image.pixels()
        with self._lock:
            self._decoded[image.digest] = None
            if len(self._decoded) > MAX_TOKENS:
                self._decoded.popitem(last=False)

    def token_of(self, digest: bytes, nx: int, ny: int) -> int:
        """Return the token of an image with a grid of nx columns and ny rows."""
        with self._lock:
            token = self._tokens.pop((digest, nx, ny), None)
            if token is None:
                self._last_token -= 1
                token = self._last_token
                if len(self._tokens) >= MAX_TOKENS:
                    self._tokens.popitem(last=False)
            self._tokens[digest, nx, ny] = token
            return token

    def check_prompt(self, prompt: ChatPrompt) -> None:
        """Raise InvalidRequestError unless the image tokens of a prompt are those of its images, each one whole."""
        runs = [(token, len(list(run))) for token, run in groupby(prompt.tokens) if token < 0]
        whole = dict(self.place(image, decode=False) for image in prompt.images.values())
        if any(whole.get(token) != n for token, n in runs) or not whole.keys() >= prompt.images.keys():
            raise InvalidRequestError(
                "the images of the prompt were given their tokens by another LLM, or too long ago"
            )
        if prompt.tokens[-1] < 0:
            raise InvalidRequestError("the prompt ends with an image: text must follow")

    # ── Encoding ────────────────────────────────────────────────────────────────────────────────────────────────────

    def request(self, image: Image, key: CacheKey | None, priority: int = 0) -> ImageJob:
        """Ask for the rows of an image. `leave` must follow.

        key: only rows under the same key are shared with others; None: nothing is shared, and nothing is kept.
        """
        with self._lock:
            begun = [self._current] if self._current is not None and self._current not in self._jobs else []
            job = next((job for job in (*self._jobs, *begun) if key is not None and _same(job, image, key)), None)
            if job is None:
                job = ImageJob(image, key, self._cached(key, image))
            if not job.done and job not in self._jobs:
                self._jobs.append(job)
            job.priority = min(priority, job.priority) if job.n_waiting else priority
            job.n_waiting += 1
            return job

    def leave(self, job: ImageJob) -> None:
        """Need an image no longer. Its encoding ends if nobody else waits for it."""
        with self._lock:
            job.n_waiting -= 1
            if not job.n_waiting and job in self._jobs:
                self._jobs.remove(job)

    @property
    def busy(self) -> bool:
        """Return whether `turn` has something to do."""
        return bool(self._jobs) or self._current is not None

    def turn(self, others: float | None, must_stop: Callable[[], object] = lambda: False) -> bool:
        """Let the first image go on, for as long as other work took since its last turn. Runs on the engine's thread.

        others: the seconds of other work since the last call; None if there was none.
        must_stop: is asked every TURN_SECONDS, or at the next end of a layer. If it returns true, the turn ends.

        Returns whether an image has come to its end, with rows or an error.
        """
        if others is not None:
            self._credit, self._waited = min(self._credit + others, max(others, TURN_SECONDS)), False
        elif self._credit < 0 and not self._waited:  # what made the other work may soon make more
            self._waited = True
            time.sleep(GRACE_SECONDS)
            return False
        else:
            self._credit = TURN_SECONDS
        done = False
        while self._credit > 0 and not done and not must_stop():
            started = self._clock()
            done = self._go_on(min(self._credit, TURN_SECONDS), waits=others is None)
            self._credit -= self._clock() - started
            if others is None or self._beginning is not None:  # the latter: another thread prepares the image
                break
        return done

    def _go_on(self, seconds: float, *, waits: bool) -> bool:
        """Work on the first image. waits: whether this thread may wait until the image is begun."""
        job = self._next_job()
        if job is None:
            return False
        rows: Rows | None = None
        try:
            if self._beginning is not None:
                wait([self._beginning], seconds if waits else 0)
                if not self._beginning.done():
                    return False
                begun, self._beginning = self._beginning, None
                begun.result()
            rows = self.projector.advance(seconds)
        except PymtpError as error:
            job.error = error.with_traceback(None)
        except MemoryError:
            job.error = NativeError("there is not enough memory for the image")
        if job.error is not None:
            self._in_turn(self.projector.end)
        if rows is not None:
            self.n_encoded += 1
            self._keep(job.key, job.image, rows)
        if rows is not None or job.error is not None:
            self._end(job, rows)
        return job.done

    def _end(self, job: ImageJob, rows: Rows | None) -> None:
        job.rows = rows
        self._forget_current()
        with self._lock:
            self._jobs = [other for other in self._jobs if other is not job]
        for call in job.on_done:
            call()

    def _next_job(self) -> ImageJob | None:
        """Return the job to work on, None without one. Gives up the current one if nobody waits for it any more."""
        with self._lock:
            if self._current is not None and self._current not in self._jobs:
                if self._beginning is not None:
                    self._beginning.cancel()  # unless it has begun: the next image would wait for it
                self._in_turn(self.projector.end)
                self._forget_current()
            if self._current is None and self._jobs:
                self._current = min(self._jobs, key=lambda job: job.priority)  # the first of equal ones
                self._beginning = self._in_turn(partial(self._begin, self._current.image))
            return self._current

    def _begin(self, image: Image) -> None:
        self.projector.end()  # an image of the parent, if this process was forked before that one ended
        self.projector.begin(image.pixels())

    def _in_turn(self, call: Callable[[], object]) -> Future[object]:
        """Let the preparing thread make a call after those before."""
        try:
            self._last = self._preparer.submit(call)
            return self._last
        except RuntimeError:  # the interpreter exits, and starts no thread
            done: Future[object] = Future()
            try:
                done.set_result(call())
            except Exception as error:
                done.set_exception(error)
            return done

    def _forget_current(self) -> None:
        self._current = self._beginning = None

    def close(self) -> None:
        """Free the projector. Images that are waited for are not encoded any more."""
        self._preparer.shutdown(wait=False, cancel_futures=True)
        self._last = None  # a cancelled call would never come to its end
        self.projector.close()

    # ── Rows that are kept ──────────────────────────────────────────────────────────────────────────────────────────

    def _cached(self, key: CacheKey | None, image: Image) -> Rows | None:
        with self._lock:
            if key is None or (key, image.digest) not in self._cache:
                return None
            self._cache.move_to_end((key, image.digest))
            return self._cache[key, image.digest]

    def _keep(self, key: CacheKey | None, image: Image, rows: Rows) -> None:
        """Keep rows, in place of the least recently used ones. Rows that are too large for the cache are not kept."""
        if key is None or rows.nbytes > self._cache_bytes:
            return
        with self._lock:
            self._cache[key, image.digest] = rows
            self.nbytes += rows.nbytes
            while self.nbytes > self._cache_bytes:
                self.nbytes -= self._cache.popitem(last=False)[1].nbytes


def _same(job: ImageJob, image: Image, key: CacheKey) -> bool:
    return job.key == key and job.image.digest == image.digest
