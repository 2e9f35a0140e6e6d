"""What drafting and verifying cost on this machine, for this model: learnt from the rounds themselves."""

from __future__ import annotations

from bisect import bisect_left
from math import inf

ROW_SHARE = (
    0.3  # what each row adds to the cost of one, before two were timed: between a large model's and a small one's
)
STEP_SHARE = 0.25  # a draft step as a share of plain decoding, before one was timed: as of small models, the dearest
SETTLED, FEW = 2, 3  # timings that make a count known, and of how many first ones the smallest stands
STALE = 500  # timings after which all counts are open again: a context of about a thousand tokens more
DOUBLE = 1.5  # what a first timing is believed to be at most, times what was expected: it may be a spoilt one
LUCK = 0.65  # an estimate not settled may turn out this share of it
CLIP = 0.1  # no timing counts for more than this above the estimate: a busy machine only adds time, ten times as much
GAIN = 0.1  # how far an estimate goes towards a timing: a spread of 20% becomes 5%
OWN = 0.2  # the count's share of that; the rest is taken for the context's or the machine's, and goes for all counts


class Curve:
    """Seconds over a count, of rows or of steps. It may fall: some kernels take four rows faster than three."""

    def __init__(self, share: float) -> None:
        """share: what each further one adds to the cost of the one count that was timed, while it is the only one."""
        self._share = share
        self._scale = 1.0
        self._own: dict[int, float] = {}
        self._times: dict[int, int] = {}
        self.known: list[int] = []  # the counts that were timed, rising
        self._n = 0

    def observe(self, x: int, seconds: float, expected: float) -> None:
        """One timing of the count x. expected: what was thought before, infinite where nothing was."""
        self._n += 1
        if self._n % STALE == 0:
            self._times = {x: min(times, SETTLED - 1) if x > 1 else times for x, times in self._times.items()}
        own, times = self._own.get(x, 0.0), self._times.get(x, 0)
        self._times[x] = times + 1
        if not times:
            self._own[x] = min(seconds, DOUBLE * expected) / self._scale
            self.known = sorted(self._own)
        elif times < FEW or seconds < own * self._scale / 2:  # half of it: what was timed before was spoilt
            self._own[x] = min(own, seconds / self._scale)
        else:
            error = min(CLIP, seconds / (own * self._scale) - 1)
            if times * GAIN < 1:  # a plain mean at first
                self._own[x] = own * (1 + error / times)
            else:
                self._own[x] = own * (1 + OWN * GAIN * error)
                self._scale *= 1 + (1 - OWN) * GAIN * error

    def settled(self, x: int, least: int = SETTLED) -> bool:
        """Whether x itself was timed often and lately enough to be relied on."""
        return self._times.get(x, 0) >= least

    def at(self, x: int) -> float:
        """The estimate. Between two timed counts, on the line between them; beyond the last, on the line from the first
        to the last. Needs a timing."""
        own = self._own.get(x)
        if own is not None:
            return own * self._scale
        known = self.known
        first, last = known[0], known[-1]
        y = self._own[first]
        if first == last:
            y *= (1 + self._share * (x - 1)) / (1 + self._share * (first - 1))
        else:
            i = min(max(1, bisect_left(known, x)), len(known) - 1)
            a, b = (first, last) if x > last else (known[i - 1], known[i])
            line = self._own[a] + (self._own[b] - self._own[a]) * (x - a) / (b - a)
            y = max(line, y * x / first if x < first else y)
        return y * self._scale


class Costs:
    """Seconds of rounds, for one model in one context on one machine. Outlives the requests."""

    def __init__(self) -> None:
        self._draft = Curve(1.0)  # a chain of n steps is n times one step
        self._verify = Curve(ROW_SHARE)

    def observe(self, drafted: int, draft_seconds: float, rows: int, verify_seconds: float) -> None:
        """A chain of `drafted` steps, and a verification of so many rows. The first of its kind builds a graph too."""
        draft, verify = self._draft, self._verify
        if drafted:
            draft.observe(drafted, draft_seconds, self.draft_seconds(drafted) if verify.known else inf)
        verify.observe(rows, verify_seconds, verify.at(rows) if verify.known else inf)

    @property
    def known(self) -> bool:
        """Whether plain decoding was timed well enough to compare with."""
        return self._verify.settled(1, FEW)

    def settled(self, n: int) -> bool:
        """Whether rounds of n drafts were timed well enough to be relied on."""
        return self._verify.settled(1 + n)

    @property
    def deepest(self) -> int:
        """The most drafts of which a verification was timed."""
        return self._verify.known[-1] - 1

    def verify_seconds(self, rows: int) -> float:
        """The estimate for a verification of so many rows."""
        return self._verify.at(rows)

    def draft_seconds(self, n: int) -> float:
        """The estimate for a chain of n steps."""
        if n == 0:
            return 0.0
        return self._draft.at(n) if self._draft.known else n * STEP_SHARE * self._verify.at(1)

    def round_seconds(self, n: int) -> float:
        """The estimate for a round at depth n; plain decoding at 0."""
        return self.draft_seconds(n) + self._verify.at(1 + n)

    def rounds(self, top: int) -> tuple[list[float], list[float]]:
        """The estimates for rounds at depths 0 to `top`, and the cheapest that they may turn out: more rows may cost no
        more than fewer did, where that was not timed often enough."""
        at, settled = self._verify.at, self._verify.settled
        likely, least, floor = [], [], inf
        for n in range(top + 1):
            draft, verify = self.draft_seconds(n), at(1 + n)
            if settled(1 + n):
                floor = verify
            likely.append(draft + verify)
            least.append(draft + min(verify, max(floor, LUCK * verify)))
        likely[0] = least[0] = min(likely)  # or plain decoding was spoilt when it was timed
        return likely, least
