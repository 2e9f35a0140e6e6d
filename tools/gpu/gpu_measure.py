"""The process that measures jobs of one model, as long as the most valuable job that fits into the time is one of it.

tools/gpu/gpu_bench.py starts it. Measurements and reports are those of `pymtp bench`. This tool chooses the next job,
and writes the reports after each.
"""

from __future__ import annotations

import json
import random
import time
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from gpu_plan import ALL_OUTPUTS, DECODE, FULL, HOST_COPY, PREFILL, SMOKE, Job, Scale, next_job
from gpu_results import Results

from pymtp.bench import decode, decode_report, prefill, prefill_report
from pymtp.bench.order import balanced_order
from pymtp.bench.report import run_environment
from pymtp.cli.memory_table import compare_plans
from pymtp.errors import NativeError
from pymtp.model.model import Model
from pymtp.native.cores import default_threads

CACHE_TYPE = "f16"
PREFILL_RATE = 0.75  # synthetic acceptance after a prompt: random weights accept no drafts
KIND = "code"
PLAN_DRAFTS = 3
COMPARISONS = (HOST_COPY, ALL_OUTPUTS)  # beside fused; each is measured with its own `none`


def rates(rate: float) -> tuple[float, ...]:
    """Return the acceptance of the first, second, … draft, if each is accepted at this rate after those before it."""
    return tuple(round(rate**n, 6) for n in range(1, decode.MAX_DEPTH + 1))


class ModelBench:
    """A loaded model, and the reports of its measurements so far."""

    def __init__(self, model: Model, key: str, scale: Scale, results: Results, gpu_layers: int) -> None:
        self._model, self._key, self._scale, self._results = model, key, scale, results
        self._gpu_layers = gpu_layers
        self._threads = scale.threads or default_threads()
        self._environment = run_environment(model)
        self._warm = False

    def run(self, job: Job) -> str:
        """Measure a job and write its report. Return the failures, "" if there are none."""
        return self._prefill(job) if job.bench == PREFILL else self._decode(job)

    def _prefill(self, job: Job) -> str:
        scale = self._scale
        settings = prefill.PrefillSettings(
            model=self._model.path.name,
            modes=prefill.MODES,
            sizes=tuple(sorted((*scale.first, *scale.more))),
            depths=(2, 3, 4),
            gen=scale.gen,
            rounds=2,
            prompt="random tokens",
            cache_prompt=False,
            synthetic=rates(PREFILL_RATE),
            time_budget=None,
            threads=self._threads,
            gpu_layers=self._gpu_layers,
            cache_type=CACHE_TYPE,
        )
        make = prefill.contexts(self._model, settings)
        numbers = random.Random(job.name)

        def random_tokens(n: int) -> list[int]:
            return numbers.choices(range(self._model.n_vocab), k=n)

        warm_up = random_tokens(prefill.WARM_UP)
        if not self._warm:  # kernels are loaded at their first use
            with suppress(NativeError):
                first = prefill.PrefillGroup(0, scale.first[0], job.depth, job.modes)
                prefill.measure(make, first, job.modes[-1], warm_up[: scale.first[0]], warm_up, 2)
            self._warm = True
        comparison = next((i + 1 for i, mode in enumerate(COMPARISONS) if mode in job.modes), 0)
        turn = job.turn * (1 + len(COMPARISONS)) + comparison
        group = prefill.PrefillGroup(turn, job.size, job.depth, balanced_order(job.modes, turn))
        prompt = random_tokens(job.size)
        name = f"prefill-{self._key}.json"
        report = prefill_report.load(self._results.folder / name) if self._results.read(name) else None
        measurements = [m for m in report.measurements if not _same_prefill(m, group)] if report else []
        failed = list(report.left_out) if report else []
        failures = []
        for mode in group.modes:
            try:
                measurements.append(prefill.measure(make, group, mode, prompt, warm_up, scale.gen))
            except NativeError as error:
                failures.append(f"{prefill.format_size(job.size)} {mode}, {job.depth} drafts: {error}")
        new_report = prefill_report.PrefillReport(
            settings=asdict(settings), left_out=failed + failures, measurements=measurements, **self._environment
        )
        self._results.write(name, prefill_report.as_json(new_report))
        return "; ".join(failures)

    def _decode(self, job: Job) -> str:
        settings = decode.DecodeSettings(
            model=self._model.path.name,
            arms=job.modes,
            kinds=(KIND,),
            temperatures=(0.0,),
            tokens=self._scale.tokens,
            rounds=2,
            synthetic=rates(job.rate),
            threads=self._threads,
            gpu_layers=self._gpu_layers,
            cache_type=CACHE_TYPE,
        )
        name = f"decode-{self._key}-{job.rate:g}.json"
        report = decode_report.load(self._results.folder / name) if self._results.read(name) else None
        measurements = [m for m in report.measurements if m.round != job.turn] if report else []
        group = decode.DecodeGroup(job.turn, KIND, 0.0, balanced_order(job.modes, job.turn))
        failures = []
        with closing(decode.DecodeArms(self._model, settings)) as arms:
            for arm in group.arms:
                try:
                    result = arms.run(group, arm)
                except NativeError as error:
                    failures.append(f"{arm}: {error}")
                    continue
                measurements.append(
                    decode.DecodeMeasurement(**vars(result), round=group.round, kind=KIND, temperature=0.0, arm=arm)
                )
        arms_there = tuple(arm for arm in decode.ARMS if any(m.arm == arm for m in measurements))
        failed = (list(report.left_out) if report else []) + failures
        new_report = decode_report.DecodeReport.of(
            measurements, asdict(settings) | {"arms": arms_there}, left_out=failed, **self._environment
        )
        self._results.write(name, decode_report.as_json(new_report))
        return "; ".join(failures)


def _same_prefill(m: prefill.PrefillMeasurement, group: prefill.PrefillGroup) -> bool:
    return (m.round, m.size, m.depth) == (group.round, group.size, group.depth)


def write_plan(model: Path, key: str, scale: Scale, results: Results, gpu_layers: int) -> None:
    """Write the memory plan of the largest context, with and without MTP, for each device."""
    n_ctx = max((*scale.first, *scale.more)) + scale.gen
    plans = compare_plans(model, draft_tokens=PLAN_DRAFTS, n_gpu_layers=gpu_layers, n_ctx=n_ctx)
    plan = {"model": model.name, "n_ctx": n_ctx, "draft_tokens": PLAN_DRAFTS, "devices": [p.as_dict() for p in plans]}
    results.write(f"memory-{key}.json", json.dumps(plan, indent=1))


def main(
    model: Annotated[Path, typer.Argument(help="GGUF file.")],
    key: Annotated[str, typer.Argument(help="The model's key in the plan.")],
    folder: Annotated[Path, typer.Argument(help="Results.")],
    seconds: Annotated[float, typer.Option(help="Seconds left, with loading.")],
    benches: Annotated[str, typer.Option(help="Benches to choose from.")],
    made: Annotated[str, typer.Option(help="Models whose files exist.")],
    smoke: Annotated[bool, typer.Option("--smoke")] = False,
    gpu_layers: Annotated[int, typer.Option()] = -1,
) -> None:
    """Measure jobs of one model until those of another are more valuable, or none fits."""
    deadline = time.monotonic() + seconds
    scale = SMOKE if smoke else FULL
    results = Results(folder)
    if results.read(f"memory-{key}.json") is None:
        write_plan(model, key, scale, results, gpu_layers)
    with Model(model, n_gpu_layers=gpu_layers) as loaded:
        bench = ModelBench(loaded, key, scale, results, gpu_layers)
        while True:
            left = deadline - time.monotonic()
            job = next_job(scale, results.done(), left, key, made.split(","), benches.split(","))
            if job is None or job.model != key or job.bench not in (PREFILL, DECODE):
                return
            print(f"{left:5.0f} s left: {job.name}", flush=True)
            results.begin(job)
            started = time.monotonic()
            error = bench.run(job)
            results.end(job, time.monotonic() - started, error)
            if error:
                print(f"  failed: {error}", flush=True)


if __name__ == "__main__":
    typer.run(main)
