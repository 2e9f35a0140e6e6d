"""What drafting and verifying cost on this machine, for this model: learnt from the rounds themselves."""

from __future__ import annotations

from bisect import bisect_left
from math import inf

ROW_SHARE = (
    0.3  # what each row adds to the cost of one, before two were timed: between a large model's and a small one's
)
STEP_SHARE = 0.25  # a draft step as a share of plain decoding, before one was timed: as of small models, the dearest
SETTLED, PLAIN = 2, 6  # timings that make a count known, and one row, which all is compared with
EARLY = 6  # timings up to which an estimate is their mean
STALE = 150  # timings after which all counts are open again: what was known of those not timed since may be wrong
DOUBLE = 1.5  # what a first timing is believed to be at most, times what was expected: it may be a spoilt one
LUCK = 0.65  # an estimate not settled may turn out this share of it
CLIP = 0.1  # no timing counts for more than this above the estimate: a busy machine only adds time, ten times as much
CHEAPER = 0.75  # this share of what was expected is more than luck
OWN_GAIN = 0.02  # how far a count's own estimate goes towards a timing: a spread of 20% becomes 2%
GAIN = 0.25  # the same of what all counts share: the machine's pace, and what the context adds
CONTEXT = 250  # tokens before a row whose attention weighs as much as all else, as in small models


class Curve:
    """Seconds over a count, of rows or of steps, after a context of some length.

    pace · own[count] + growth · own[least] · count · n_past / CONTEXT: each count has its own cost, for some kernels
    take four rows faster than three; attention adds to it by rows and by tokens before them. The machine's pace and
    growth, which all counts share, follow the timings by normalized least mean squares (Nagumo and Noda 1967).
    """

    def __init__(self, share: float) -> None:
        """share: what each further one adds to the cost of the one count that was timed, while it is the only one."""
        self._share = share
        self._pace = 1.0
        self._growth = 0.0
        self._own: dict[int, float] = {}
        self._times: dict[int, int] = {}
        self.known: list[int] = []  # the counts that were timed, rising
        self._n = 0

    def observe(self, x: int, n_past: int, seconds: float, expected: float, again: bool) -> None:
        """One timing of the count x after n_past tokens.

        expected: what was thought before, infinite where nothing was.
        again: whether the rounds before were of the same kind. If not, caches are cold, and there may have been a graph
            to build: then the timing counts only where it shows the count to be far cheaper.
        """
        if not again and seconds > CHEAPER * expected and self.known:
            return
        self._n += 1
        if self._n % STALE == 0:
            self._times = {x: min(times, SETTLED - 1) if x > 1 else times for x, times in self._times.items()}
        times = self._times.get(x, 0)
        self._times[x] = times + 1
        part = self._part(x, n_past)
        own = self._own.get(x, 0.0)
        estimate = self._pace * own + self._growth * part
        if times < SETTLED or seconds < estimate / 2:  # half of it: what was timed before was spoilt
            seconds = min(seconds, estimate if times else DOUBLE * expected)
            self._own[x] = max(seconds - self._growth * part, seconds / 10) / self._pace
            if not times:
                self.known = sorted(self._own)
            return
        error = min(CLIP * estimate, seconds - estimate)
        if times < EARLY:
            self._own[x] = own + error / times / self._pace
            return
        self._own[x] = own * (1 + OWN_GAIN * error / estimate)
        step = GAIN * error / (own * own + part * part)
        self._pace = max(self._pace / 2, self._pace + step * own)
        self._growth = max(0.0, self._growth + step * part)

    def missing(self, x: int, least: int = SETTLED) -> int:
        """How many timings of x itself are missing, or were too long ago, for it to be relied on."""
        return max(0, least - self._times.get(x, 0))

    def at(self, x: int, n_past: int) -> float:
        """The estimate after n_past tokens. The own cost of a count that was not timed is on the line between its
        neighbours; beyond the last, on the line from the first to the last. Needs a timing."""
        own = self._own.get(x)
        if own is None:
            known = self.known
            first, last = known[0], known[-1]
            own = self._own[first]
            if first == last:
                own *= (1 + self._share * (x - 1)) / (1 + self._share * (first - 1))
            else:
                i = min(max(1, bisect_left(known, x)), len(known) - 1)
                a, b = (first, last) if x > last else (known[i - 1], known[i])
                line = self._own[a] + (self._own[b] - self._own[a]) * (x - a) / (b - a)
                own = max(line, own * x / first if x < first else own)
        return self._pace * own + self._growth * self._part(x, n_past)

    def _part(self, x: int, n_past: int) -> float:
        return self._own[self.known[0]] * x * n_past / CONTEXT if self.known else 0.0


class Costs:
    """Seconds of rounds, for one model in one context on one machine. Outlives the requests."""

    def __init__(self) -> None:
        self.n_past = 0  # tokens that the context holds, where an estimate is asked for
        self._draft = Curve(1.0)  # a chain of n steps is n times one step
        self._verify = Curve(ROW_SHARE)

    def observe(
        self, n_past: int, drafted: int, draft_seconds: float, rows: int, verify_seconds: float, again: bool
    ) -> None:
        """A chain of `drafted` steps and a verification of so many rows, after n_past tokens. again: the round before
        drafted as many."""
        self.n_past = n_past
        draft, verify = self._draft, self._verify
        if drafted:
            draft.observe(drafted, n_past, draft_seconds, self.draft_seconds(drafted) if verify.known else inf, again)
        verify.observe(rows, n_past, verify_seconds, verify.at(rows, n_past) if verify.known else inf, again)

    @property
    def known(self) -> bool:
        """Whether plain decoding was timed well enough to compare with."""
        return not self._verify.missing(1, PLAIN)

    def missing(self, n: int) -> int:
        """How many timings of rounds of n drafts are missing for them to be relied on."""
        return self._verify.missing(1 + n)

    @property
    def deepest(self) -> int:
        """The most drafts of which a verification was timed."""
        return self._verify.known[-1] - 1

    def verify_seconds(self, rows: int) -> float:
        """The estimate for a verification of so many rows."""
        return self._verify.at(rows, self.n_past)

    def draft_seconds(self, n: int) -> float:
        """The estimate for a chain of n steps."""
        if n == 0:
            return 0.0
        if not self._draft.known:
            return n * STEP_SHARE * self.verify_seconds(1)
        return self._draft.at(n, self.n_past)

    def round_seconds(self, n: int) -> float:
        """The estimate for a round at depth n; plain decoding at 0."""
        return self.draft_seconds(n) + self.verify_seconds(1 + n)

    def rounds(self, top: int) -> tuple[list[float], list[float]]:
        """The estimates for rounds at depths 0 to `top`, and the cheapest that they may turn out: more rows may cost no
        more than fewer did, where that was not timed often enough."""
        likely, least, floor = [], [], inf
        for n in range(top + 1):
            draft, verify = self.draft_seconds(n), self.verify_seconds(1 + n)
            if not self.missing(n):
                floor = verify
            likely.append(draft + verify)
            least.append(draft + min(verify, max(floor, LUCK * verify)))
        likely[0] = least[0] = min(likely)  # or plain decoding was spoilt when it was timed
        return likely, least
