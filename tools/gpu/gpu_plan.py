"""What to measure next on a machine that is there for minutes: pure functions of what is done and how long that took.

A job is one comparison: some modes on one prompt, or some depths at one rate of acceptance, side by side, in one loaded
model. `jobs` lists all of them, most valuable first; `next_job` picks the first that is not done and fits into the time
that is left, by prior estimates which are corrected by what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NONE, FUSED, HOST_COPY, ALL_OUTPUTS = "none", "fused", "host-copy", "all-outputs"
PREFILL, DECODE, PEER = "prefill", "decode", "peer"
RATES = (0.75, 0.0, 0.5, 0.9)  # of each draft of a round, where those before it were accepted
MARGIN = 1.25  # an estimate may be wrong; a job that is cut off is lost


@dataclass(frozen=True)
class Shape:
    """A model to measure, and what is believed of its speed before anything is known.

    prefill: tokens a second in a short prompt; at `half` tokens attention has made it half of that. decode: tokens a
    second without drafts. load, make: seconds to load it and to write its file.
    """

    key: str
    preset: str
    prefill: float
    half: int
    decode: float
    load: float
    make: float


@dataclass(frozen=True)
class Scale:
    """How much of everything. gen: tokens after each prompt. tokens: of a decode bench. peer: tokens of a prompt.
    threads: of the CPU, 0 for all cores."""

    shapes: tuple[Shape, ...]
    weight_type: str
    first: tuple[int, ...]  # sizes of prompts
    more: tuple[int, ...]
    gen: int
    tokens: int
    peer: int
    threads: int = 0


# Guesses for one H200: 3,277 and 98 tokens a second were reported of the 35B on an RTX 3090, which has a fifth of its
# memory's speed; the 27B reads and computes eight to nine times as many weights a token.
FULL = Scale(
    shapes=(
        Shape("35b-a3b", "qwen3.6-35b-a3b", prefill=6000, half=150_000, decode=150, load=20, make=60),
        Shape("27b", "qwen3.6-27b", prefill=2500, half=200_000, decode=55, load=20, make=50),
    ),
    weight_type="iq4_nl",
    first=(1024, 8192, 32_768, 131_072),
    more=(65_536, 196_608),
    gen=128,
    tokens=256,
    peer=8192,
)
SMOKE = Scale(
    shapes=(
        Shape("tiny-moe", "tiny-moe", prefill=5000, half=100_000, decode=500, load=1, make=1),
        Shape("tiny", "tiny", prefill=5000, half=100_000, decode=500, load=1, make=1),
    ),
    weight_type="q4_0",
    first=(64, 128),
    more=(192,),
    gen=8,
    tokens=12,
    peer=64,
    threads=1,
)


@dataclass(frozen=True)
class Job:
    """A comparison. Of PREFILL: size, depth and modes; of DECODE: rate and arms; PEER has neither."""

    model: str
    bench: str
    size: int = 0
    depth: int = 0
    modes: tuple[str, ...] = ()
    rate: float = 0.0
    turn: int = 0  # a second measurement of the same has another

    @property
    def name(self) -> str:
        """One job, one name."""
        what = {PREFILL: f"{self.size}.d{self.depth}", DECODE: f"a{self.rate:g}"}.get(self.bench, "")
        parts = (self.model, self.bench, what, "+".join(self.modes), f"t{self.turn}")
        return ".".join(part for part in parts if part)


@dataclass(frozen=True)
class Done:
    """A job that needs no further try: the seconds it took, or why it failed. cut: it needs one, for there was no time,
    and takes longer than that."""

    name: str
    seconds: float
    error: str = ""
    cut: bool = False


def jobs(scale: Scale) -> list[Job]:
    """All jobs, most valuable first; within a tier model by model, as changing the model takes time."""
    first, more = scale.first, scale.more
    quick = (NONE, "3", "3:host-copy", "auto")
    rest = (NONE, "1", "2", "3", "4", "auto")

    def prefill(sizes: Sequence[int], modes: tuple[str, ...], depth: int = 3, turn: int = 0) -> list[Job]:
        return [Job("", PREFILL, size, depth, modes, turn=turn) for size in sizes]

    tiers: list[list[Job]] = [
        [*prefill(first, (NONE, FUSED)), *(Job("", DECODE, modes=quick, rate=rate) for rate in RATES[:2])],
        [Job("", PEER), *prefill(first[:-1], (NONE, HOST_COPY))],
        [Job("", DECODE, modes=rest, rate=rate, turn=1) for rate in RATES],
        [*prefill(first[:-1], (NONE, ALL_OUTPUTS)), *prefill(more, (NONE, FUSED))],
        [*prefill(first[-1:], (NONE, HOST_COPY)), *prefill(first, (NONE, FUSED), turn=1)],
        [job for depth in (2, 4) for job in prefill(first, (NONE, FUSED), depth)],
        [Job("", PEER, turn=1), *prefill(more, (NONE, HOST_COPY))],
        [*prefill(first[-1:], (NONE, ALL_OUTPUTS)), *prefill(more, (NONE, ALL_OUTPUTS))],  # hours of a slow machine
        [job for depth in (2, 4) for job in prefill(more, (NONE, FUSED), depth)],
    ]
    return [Job(**vars(job) | {"model": shape.key}) for tier in tiers for shape in scale.shapes for job in tier]


def prior(job: Job, scale: Scale) -> float:
    """Seconds that a job is believed to take before any like it was done, the model loaded."""
    shape = next(shape for shape in scale.shapes if shape.key == job.model)
    if job.bench == DECODE:
        return len(job.modes) * (2.0 + 1.5 * scale.tokens / shape.decode)
    if job.bench == PEER:  # either side loads for itself, twice over
        return 4 * shape.load + 4 * scale.peer / shape.prefill + 2 * scale.tokens / shape.decode
    slowness = {ALL_OUTPUTS: 4.0, HOST_COPY: 1.5}
    prompt = job.size / shape.prefill * (1 + job.size / (2 * shape.half))
    code = 1.5 * scale.gen / shape.decode * (1 + job.size / shape.half)
    return sum(2.0 + slowness.get(mode, 1.0) * prompt + code for mode in job.modes)


def estimate(job: Job, done: Mapping[str, Done], scale: Scale) -> float:
    """Seconds, corrected by the job done that is most like it: of the same model and bench, then of the same modes,
    then of the nearest size."""
    known = {one.name: one for one in jobs(scale)}
    like = [
        known[d.name] for d in done.values() if d.name in known and not d.error and (not d.cut or d.name == job.name)
    ]
    like = [one for one in like if (one.model, one.bench) == (job.model, job.bench)]
    if not like:
        return prior(job, scale)

    def unlike(one: Job) -> tuple[object, ...]:  # what was cut off tells of itself: at least
        return one != job, one.modes != job.modes, abs(math.log((1 + one.size) / (1 + job.size))), one.name

    nearest = min(like, key=unlike)
    return prior(job, scale) * done[nearest.name].seconds / prior(nearest, scale)


def next_job(
    scale: Scale, done: Iterable[Done], left: float, loaded: str | None, made: Iterable[str], benches: Sequence[str]
) -> Job | None:
    """The most valuable job that is not done and fits into `left` seconds; None when none does.

    loaded: the model that needs no loading. made: models whose files are there. benches: those to look at.
    """
    by_name = {one.name: one for one in done}
    there = set(made)
    for job in jobs(scale):
        if job.bench not in benches or (job.name in by_name and not by_name[job.name].cut):
            continue
        shape = next(shape for shape in scale.shapes if shape.key == job.model)
        before = 0.0 if job.model == loaded else shape.load
        before += 0.0 if job.model in there else shape.make
        if before + MARGIN * estimate(job, by_name, scale) <= left:
            return job
    return None
