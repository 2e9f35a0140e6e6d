"""Compare pymtp and llama-server, one request after the other or several at once: same llama.cpp, file and prompts.

    pip install . typer
    python tools/bench/bench_server.py demo:1:200 --drafts 3,auto --server-drafts 3 --prompt-tokens 300
    python tools/bench/bench_server.py demo:8:256 demo:8:256:0.7
    python tools/models/make_model.py qwen3.5-0.8b build/0.8b-q4_0.gguf --type q4_0
    python tools/bench/bench_server.py build/0.8b-q4_0.gguf:4:64 build/0.8b-q4_0.gguf:8:64

A case is MODEL:REQUESTS:TOKENS:TEMPERATURE, where "demo" is the shipped model and TEMPERATURE may be left out: greedy.
With several REQUESTS, all are sent at once to a server with as many slots, and passed to pymtp as one list; the
measured time goes from then to the last token of the last request, with the prefill. With one, prompts follow each
other and only decoding is timed, from the first token to the last: by the server's clock, and by pymtp's `Stats`.

llama-server runs without drafts and with its MTP at 1, 2 and 3 drafts; pymtp is compared with the best of these. It is
built from the pinned sources with pymtp's build options, and only with the patches that it needs to run. With --patched
it is built from pymtp's own sources, which separates the effect of kernels from that of the design. With --apart each
arm also runs on two files, trunk and head, into which the model is split. Prompts are token ids, both sides generate
without end tokens, and neither caches prompts.

Every measurement is a process of its own, warmed up with the same prompts. After the first round, arms of llama-server
below 0.7 of its best are left out. With random weights no draft is accepted on either side.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import llama_server
import typer
from llama_server import Answer
from peer import (
    WARM_UP,
    Case,
    Comparison,
    Output,
    Pairs,
    Patched,
    Threads,
    errors_shown,
    in_a_process,
    prepare,
    show,
    write_json,
)

from pymtp.bench.table import Column
from pymtp.native.cores import default_threads

from makers.head_file import write_pair  # isort: skip  # peer makes the folder of tests importable

SERVER, PYMTP = "llama-server", "pymtp"
TWO_FILES = ", two files"
ONE_BY_ONE = 4  # prompts of a case with one request
MIN_SHARE = 0.7  # slower arms, relative to llama-server's best, are not measured again

Files = tuple[Path, Path | None]  # the model, and a separate head


@dataclass(frozen=True)
class Measurement:
    """The measurement of one arm. speed: tokens/s. first_token: median seconds from a request to its first token."""

    speed: float
    first_token: float
    drafted: int
    accepted: int
    texts: list[list[int]]

    @property
    def acceptance(self) -> float | None:
        """Return accepted / drafted; None without drafts."""
        return self.accepted / self.drafted if self.drafted else None


def speed(case: Case, texts: Sequence[Sequence[int]], seconds: float, decode_seconds: Sequence[float]) -> float:
    """Return the tokens/s of several requests at once, or of decoding requests one after the other."""
    if case.requests > 1:
        return sum(map(len, texts)) / seconds
    return sum(len(text) - 1 for text in texts) / sum(decode_seconds)


def measure_server(
    program: Path, files: Files, case: Case, drafts: str, prompts: Sequence[Sequence[int]]
) -> Measurement:
    """Measure a run of llama-server. Raises ServerError."""
    model, head = files
    options: dict[str, str | int] = {"threads": case.threads, "ctx_size": case.n_ctx * case.requests}
    if drafts != "0":
        options |= {"spec_type": "draft-mtp", "spec_draft_n_max": drafts}
        options |= {} if head is None else {"spec_draft_model": str(head)}
    with (
        llama_server.start(program, model, parallel=case.requests, **options) as server,
        ThreadPoolExecutor(case.requests) as clients,
    ):

        def run(n: int) -> list[Answer]:
            futures = [
                clients.submit(server.complete, prompt, n, temperature=case.temperature, seed=number)
                for number, prompt in enumerate(prompts)
            ]
            return [future.result() for future in futures]

        run(WARM_UP)
        started = time.perf_counter()
        answers = run(case.tokens)
        seconds = time.perf_counter() - started
    texts = [answer.token_ids for answer in answers]
    return Measurement(
        speed(case, texts, seconds, [answer.seconds for answer in answers]),
        statistics.median(answer.waited for answer in answers),
        sum(answer.drafted for answer in answers),
        sum(answer.accepted for answer in answers),
        texts,
    )


def measure_pymtp(
    files: Files, case: Case, drafts: str, prompts: Sequence[Sequence[int]], bias: dict[int, float]
) -> Measurement:
    """Measure a run of pymtp. Call it in a new process."""
    # llama-server samples from the 40 likeliest tokens, too
    params = {"top_k": 40, "top_p": 1.0, "min_p": 0.0, "logit_bias": bias}
    draft_tokens: Any = drafts if drafts == "auto" else int(drafts)
    completions, seconds = case.run_llm(files[0], prompts, params, head=files[1], draft_tokens=draft_tokens)
    texts, stats = [c.token_ids for c in completions], [c.stats for c in completions]
    return Measurement(
        speed(case, texts, seconds, [s.decode_seconds for s in stats]),
        statistics.median(s.time_to_first_token for s in stats),
        sum(s.drafted for s in stats),
        sum(s.accepted for s in stats),
        texts,
    )


def measure(
    case: Case, n: int, program: Path, drafts: Sequence[str], server_drafts: Sequence[str], apart: Files | None = None
) -> Comparison[Measurement]:
    """Measure n rounds of all arms. apart: the model as two files."""
    prompts, bias = in_a_process(
        partial(prepare, case.model, max(case.requests, ONE_BY_ONE), case.prompt_tokens, held_out=case.held_out)
    )
    prompts = prompts[: case.requests if case.requests > 1 else ONE_BY_ONE]
    arms: dict[str, Callable[[], Measurement]] = {}
    for files, suffix in [((case.model, None), ""), *([(apart, TWO_FILES)] if apart else [])]:
        for number in server_drafts:
            arms[arm_name(SERVER, number) + suffix] = partial(measure_server, program, files, case, number, prompts)
        for number in drafts:
            arms[arm_name(PYMTP, number) + suffix] = partial(
                in_a_process, measure_pymtp, files, case, number, prompts, bias
            )
    results = Comparison[Measurement](lambda m: m.speed)
    for measured in results.run(str(case), arms, n):
        servers = {arm: m.speed for arm, m in measured.items() if arm.startswith(SERVER)}
        if len(results.rounds) == 1:
            for arm in [arm for arm, speed in servers.items() if speed < MIN_SHARE * max(servers.values())]:
                del arms[arm]
    return results


def arm_name(side: str, drafts: str) -> str:
    """Return the name of an arm."""
    return f"{side} {'plain' if drafts == '0' else drafts}"


def compare_texts(results: Comparison[Measurement], arm: str, base: str) -> dict[str, Any]:
    """Compare an arm's texts with those of another arm in the first round.

    Return the number of texts, of those that differ, and for each of these its number, the index of the first different
    token, and both tokens.
    """
    pairs = list(zip(results.rounds[0][base].texts, results.rounds[0][arm].texts, strict=True))
    firsts = [
        (number, *next((i, a, b) for i, (a, b) in enumerate(zip(peer, own, strict=True)) if a != b))
        for number, (peer, own) in enumerate(pairs)
        if peer != own
    ]
    return {"texts": len(pairs), "differing": len(firsts), "first_differences": firsts}


def summary(results: Comparison[Measurement]) -> dict[str, Any]:
    """Return medians by arm, and for pymtp the ratios to llama-server's best arm and the comparison of texts with it.

    The best arm has the best median of those that were measured in all rounds.
    """
    speeds = results.medians()
    best = max((arm for arm in results.rounds[-1] if arm.startswith(SERVER)), key=speeds.__getitem__)
    ratios = {arm: results.ratios(arm, best) for arm in speeds if arm.startswith(PYMTP)}
    return {
        "median_tokens_per_second": speeds,
        "median_first_token_seconds": results.medians(lambda m: m.first_token),
        "acceptance": {arm: m.acceptance for arm, m in results.rounds[0].items()},
        "best_of_llama_server": best,
        "median_ratio_to_it": {arm: statistics.median(values) for arm, values in ratios.items()},
        "ratios": ratios,
        "two_files_over_one": {
            arm: [two / one for two, one in zip(results.ratios(arm + TWO_FILES, best + TWO_FILES), own, strict=False)]
            for arm, own in ratios.items()
            if arm + TWO_FILES in speeds and best + TWO_FILES in speeds
        },
        "same_text": {arm: compare_texts(results, arm, best) for arm in ratios},
    }


def main(
    cases: Annotated[list[str], typer.Argument(help="MODEL:REQUESTS:TOKENS[:TEMPERATURE]", show_default=False)],
    pairs: Pairs = 5,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt, at most.")] = 48,
    drafts: Annotated[str, typer.Option("--drafts", "-d", help="Drafts per round of pymtp's arms.")] = "0,auto",
    server_drafts: Annotated[str, typer.Option(help="Drafts per round of llama-server's arms.")] = "0,1,2,3",
    apart: Annotated[bool, typer.Option("--apart", help="Also with the head in a file of its own.")] = False,
    threads: Threads = None,
    patched: Patched = False,
    output: Output = None,
) -> None:
    """Compare pymtp's decoding with llama-server's."""
    written = []
    with errors_shown(), tempfile.TemporaryDirectory() as folder:
        parsed_cases = [Case.read(text, prompt_tokens, threads or default_threads()) for text in cases]
        program = llama_server.build(patched=patched)
        for case in parsed_cases:
            files = write_pair(case.model, Path(folder)) if apart else None
            results = measure(case, pairs, program, drafts.split(","), server_drafts.split(","), files)
            found = summary(results)
            waits, accepted = found["median_first_token_seconds"], found["acceptance"]
            show(
                results.table(
                    str(case),
                    "tokens/s",
                    found["best_of_llama_server"],
                    Column("first token, s", waits.__getitem__, ".3f"),
                    Column("accepted", accepted.__getitem__, ".1%"),
                ),
                notes=[
                    *(
                        f"{arm}: of llama-server on two files, relative to one file: {statistics.median(values):.3f}"
                        for arm, values in found["two_files_over_one"].items()
                    ),
                    *(
                        f"{arm}: {texts['texts'] - texts['differing']} of {texts['texts']} texts are llama-server's; "
                        f"first differences (text, index, tokens): {texts['first_differences'] or '-'}"
                        for arm, texts in found["same_text"].items()
                    ),
                ],
            )
            written.append(asdict(case) | {"model": case.model.name} | found | {"rounds": results.as_dicts("texts")})
            # after each case, so that no result is lost
            write_json(output, "requests against llama-server", patched_server=patched, cases=written)


if __name__ == "__main__":
    typer.run(main)
