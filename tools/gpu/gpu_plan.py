"""The planner of the GPU suite, for a machine that is available for minutes: it picks the next job to measure.

A job is one comparison: some modes on one prompt, or some depths at one rate of acceptance, side by side, in one loaded
model. `jobs` lists all of them, most valuable first. `next_job` picks the first that is not done and fits into the time
left. Estimates of the time begin with guesses, and are corrected by measured times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NONE, FUSED, HOST_COPY, ALL_OUTPUTS = "none", "fused", "host-copy", "all-outputs"
PREFILL, DECODE, PEER = "prefill", "decode", "peer"
RATES = (0.75, 0.0, 0.5, 0.9)  # acceptance of each draft of a round if those before it were accepted
MARGIN = 1.25  # factor for estimates: a job that is aborted is lost


@dataclass(frozen=True)
class Shape:
    """A model to measure, with guesses of its speed.

    prefill: tokens/s in a short prompt; at `half` tokens, attention halves it. decode: tokens/s without drafts.
    load, make: seconds to load the model, and to write its file.
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
    """The models and sizes of the suite.

    first, more: prompt sizes. gen: tokens after each prompt. tokens: of a decode bench. peer: tokens of a prompt for
    llama-bench. threads: of the CPU, 0 for all cores.
    """

    shapes: tuple[Shape, ...]
    weight_type: str
    first: tuple[int, ...]
    more: tuple[int, ...]
    gen: int
    tokens: int
    peer: int
    threads: int = 0


# Guesses for one H200: 3,277 and 98 tokens/s were reported of the 35B on an RTX 3090, which has a fifth of the memory
# speed; the 27B reads and computes eight to nine times as many weights per token.
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
    """A comparison. PREFILL has size, depth and modes; DECODE has a rate, and arms as modes; PEER has neither."""

    model: str
    bench: str
    size: int = 0
    depth: int = 0
    modes: tuple[str, ...] = ()
    rate: float = 0.0
    turn: int = 0  # number of the repetition

    @property
    def name(self) -> str:
        """Return the unique name of the job."""
        size_or_rate = {PREFILL: f"{self.size}.d{self.depth}", DECODE: f"a{self.rate:g}"}.get(self.bench, "")
        parts = (self.model, self.bench, size_or_rate, "+".join(self.modes), f"t{self.turn}")
        return ".".join(part for part in parts if part)


@dataclass(frozen=True)
class Done:
    """The result of a job: its seconds, or its error.

    cut: the time was up before it ended. Only then the job is tried again, and takes longer than these seconds.
    """

    name: str
    seconds: float
    error: str = ""
    cut: bool = False


def jobs(scale: Scale) -> list[Job]:
    """List all jobs, most valuable first; within a tier by model, as changing the model takes time."""
    first, more = scale.first, scale.more
    first_arms = (NONE, "3", "3:host-copy", "auto")
    all_arms = (NONE, "1", "2", "3", "4", "auto")

    def prefill(sizes: Sequence[int], modes: tuple[str, ...], depth: int = 3, turn: int = 0) -> list[Job]:
        return [Job("", PREFILL, size, depth, modes, turn=turn) for size in sizes]

    tiers: list[list[Job]] = [
        [*prefill(first, (NONE, FUSED)), *(Job("", DECODE, modes=first_arms, rate=rate) for rate in RATES[:2])],
        [Job("", PEER), *prefill(first[:-1], (NONE, HOST_COPY))],
        [Job("", DECODE, modes=all_arms, rate=rate, turn=1) for rate in RATES],
        [*prefill(first[:-1], (NONE, ALL_OUTPUTS)), *prefill(more, (NONE, FUSED))],
        [*prefill(first[-1:], (NONE, HOST_COPY)), *prefill(first, (NONE, FUSED), turn=1)],
        [job for depth in (2, 4) for job in prefill(first, (NONE, FUSED), depth)],
        [Job("", PEER, turn=1), *prefill(more, (NONE, HOST_COPY))],
        [*prefill(first[-1:], (NONE, ALL_OUTPUTS)), *prefill(more, (NONE, ALL_OUTPUTS))],  # hours on a slow machine
        [job for depth in (2, 4) for job in prefill(more, (NONE, FUSED), depth)],
    ]
    return [Job(**vars(job) | {"model": shape.key}) for tier in tiers for shape in scale.shapes for job in tier]


def prior(job: Job, scale: Scale) -> float:
    """Guess the seconds of a job with the model loaded, before any similar job was done."""
    shape = next(shape for shape in scale.shapes if shape.key == job.model)
    if job.bench == DECODE:
        return len(job.modes) * (2.0 + 1.5 * scale.tokens / shape.decode)
    if job.bench == PEER:  # each side loads the model twice
        return 4 * shape.load + 4 * scale.peer / shape.prefill + 2 * scale.tokens / shape.decode
    slowness = {ALL_OUTPUTS: 4.0, HOST_COPY: 1.5}
    prompt = job.size / shape.prefill * (1 + job.size / (2 * shape.half))
    code = 1.5 * scale.gen / shape.decode * (1 + job.size / shape.half)
    return sum(2.0 + slowness.get(mode, 1.0) * prompt + code for mode in job.modes)


def estimate(job: Job, done: Mapping[str, Done], scale: Scale) -> float:
    """Estimate the seconds of a job: the guess, corrected by the most similar job that is done.

    That has the same model and bench, then the same modes, then the nearest size.
    """
    known = {planned.name: planned for planned in jobs(scale)}
    similar = [
        known[d.name] for d in done.values() if d.name in known and not d.error and (not d.cut or d.name == job.name)
    ]
    similar = [other for other in similar if (other.model, other.bench) == (job.model, job.bench)]
    if not similar:
        return prior(job, scale)

    def distance(other: Job) -> tuple[object, ...]:
        # the job itself, if it was cut: it takes at least its seconds
        size_ratio = (1 + other.size) / (1 + job.size)
        return other != job, other.modes != job.modes, abs(math.log(size_ratio)), other.name

    nearest = min(similar, key=distance)
    return prior(job, scale) * done[nearest.name].seconds / prior(nearest, scale)


def next_job(
    scale: Scale, done: Iterable[Done], left: float, loaded: str | None, made: Iterable[str], benches: Sequence[str]
) -> Job | None:
    """Return the most valuable job that is not done and fits into `left` seconds; None if there is none.

    loaded: the model that is loaded. made: models whose files exist. benches: to choose from.
    """
    by_name = {result.name: result for result in done}
    existing = set(made)
    for job in jobs(scale):
        if job.bench not in benches or (job.name in by_name and not by_name[job.name].cut):
            continue
        shape = next(shape for shape in scale.shapes if shape.key == job.model)
        preparation = 0.0 if job.model == loaded else shape.load
        preparation += 0.0 if job.model in existing else shape.make
        if preparation + MARGIN * estimate(job, by_name, scale) <= left:
            return job
    return None
