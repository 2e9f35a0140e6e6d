"""Compare pymtp with llama-server, llama-bench and its own server: the same llama.cpp, model file and prompts.

    pip install '.[server]' gguf typer
    python tools/bench/bench_server.py demo:1:200 -d 3,auto --server-drafts 3 -p 300
    python tools/bench/bench_server.py demo:8:256 demo:8:256:0.7
    python tools/models/make_model.py qwen3.5-0.8b build/0.8b-q4_0.gguf --type q4_0
    python tools/bench/bench_server.py build/0.8b-q4_0.gguf:4:64 build/0.8b-q4_0.gguf:8:64
    python tools/bench/bench_server.py build/0.8b-q4_0.gguf:1:128 -d 0 --server-drafts '' -p 128 --llama-bench
    python tools/bench/bench_server.py build/0.8b-q4_0.gguf:1:64 -d 1,3,7,auto --server-drafts '' -p 1024 --apart
    python tools/bench/bench_server.py demo:1:400 -d auto --server-drafts 0+ngram-mod,2,2+ngram-mod,3+ngram-mod -p 900
    python tools/bench/bench_server.py demo:8:1500 -d auto --server-drafts '' --http

A case is MODEL:REQUESTS:TOKENS:TEMPERATURE, where "demo" is the shipped model and TEMPERATURE may be left out: greedy.
docs/how-to/measure.md has the conditions of each side. Prompts are token ids, all sides generate without end tokens,
and none caches prompts. Every measurement is a process of its own, warmed up with the same prompts. With random weights
no draft is accepted on any side.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import llama_bench
import llama_server
import typer
from http_clients import completion_tokens, send_all
from llama_server import Answer
from peer import PAGE, Comparison, Output, Pairs, Patched, Threads, errors_shown, in_a_process, show, write_json
from pymtp_server import serve

from pymtp import LLM, Completion, InvalidRequestError, SamplingParams
from pymtp.bench.table import Column, Spread, format_spread
from pymtp.chat import ChatTemplate
from pymtp.model.model import Model, demo_model
from pymtp.native.cores import default_threads

from makers.new_texts import new_prompts  # isort: skip  # peer makes the folder of tests importable
from makers.head_file import write_pair  # isort: skip

SERVER, BENCH, PYMTP = "llama-server", "llama-bench", "pymtp"
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
TWO_FILES = ", two files"
DEMO = "demo"
WARM_UP = 16  # tokens of each request
ONE_BY_ONE = 4  # prompts of a case with one request
CHAT_CHARACTERS, CHAT_TOKENS = 160, 128  # of a message, and at most of a prompt with it
MIN_SHARE = 0.7  # slower arms, relative to llama-server's best, are not measured again
FILTERS = {"top_k": 40, "top_p": 1.0, "min_p": 0.0}  # those of llama-server here

Files = tuple[Path, Path | None]  # the model, and a separate head


@dataclass(frozen=True)
class Case:
    """A case: the settings of all sides. held_out: the prompts are random modules, not random tokens."""

    model: Path
    held_out: bool
    requests: int
    tokens: int
    temperature: float
    prompt_tokens: int
    threads: int

    @classmethod
    def read(cls, text: str, prompt_tokens: int, threads: int) -> Case:
        """Parse a case such as "demo:8:256:0.7". Raises InvalidRequestError for any other text."""
        model, *numbers = text.split(":")
        file = demo_model() if model == DEMO else Path(model)
        try:
            requests, tokens, temperature = map(float, [*numbers, 0.0][:3])
        except ValueError as error:
            raise InvalidRequestError(f"{text!r} is no MODEL:REQUESTS:TOKENS or MODEL:…:TEMPERATURE") from error
        if not file.is_file():
            raise InvalidRequestError(f"there is no file {file}")
        return cls(file, model == DEMO, int(requests), int(tokens), temperature, prompt_tokens, threads)

    @property
    def n_ctx(self) -> int:
        """Return the context of one request, on all sides."""
        return -(-(self.prompt_tokens + self.tokens) // PAGE) * PAGE

    def __str__(self) -> str:
        temperature = f"T = {self.temperature:g}" if self.temperature else "greedy"
        return f"{self.model.name}, {self.requests} requests of {self.tokens} tokens, {temperature}"


@dataclass(frozen=True)
class Prompts:
    """The prompts of a case: their texts, which are the messages of chats, token ids, and a bias against end tokens."""

    texts: list[str]
    token_ids: list[list[int]]
    bias: dict[int, float]

    @classmethod
    def of(cls, case: Case, *, chats: bool) -> Prompts:
        """Make the prompts of a case. Call it in a new process, as it loads the model."""
        n = case.requests if case.requests > 1 else ONE_BY_ONE
        with Model(case.model, mtp=False) as model:
            texts = new_prompts(n)
            if chats:
                texts, template = [text[:CHAT_CHARACTERS] for text in texts], ChatTemplate(model)
                rendered = [template.render([{"role": "user", "content": text}]) for text in texts]
                prompts = [model.tokenize(text) for text in rendered]
            elif case.held_out:
                prompts = [model.tokenize(text)[: case.prompt_tokens] for text in texts]
            else:
                numbers = random.Random(0)
                prompts = [numbers.choices(range(model.n_vocab), k=case.prompt_tokens) for _ in range(n)]
            bias = {token: float("-inf") for token in range(model.n_vocab) if model.ends_generation(token)}
        return cls(texts, prompts, bias)


@dataclass(frozen=True)
class Measurement:
    """The measurement of one arm.

    speed: tokens/s. first_token: median seconds from a request to its first token. outside: seconds of decoding per
    token outside of native calls, of one request at a time.
    """

    speed: float
    first_token: float | None = None
    outside: float | None = None
    drafted: int = 0
    accepted: int = 0
    texts: list[list[int]] = field(default_factory=list)

    @property
    def acceptance(self) -> float | None:
        """Return accepted / drafted; None without drafts."""
        return self.accepted / self.drafted if self.drafted else None


def speed(case: Case, texts: Sequence[Sequence[int]], seconds: float, decode_seconds: Sequence[float]) -> float:
    """Return the tokens/s of several requests at once, or of decoding requests one after the other."""
    if case.requests > 1:
        return sum(map(len, texts)) / seconds
    return sum(len(text) - 1 for text in texts) / sum(decode_seconds)


def measure_server(program: Path, files: Files, case: Case, drafts: str, prompts: Prompts) -> Measurement:
    """Measure a run of llama-server. Raises ServerError."""
    model, head = files
    options: dict[str, str | int] = {"threads": case.threads, "ctx_size": case.n_ctx * case.requests}
    depth, *others = drafts.split("+")
    if depth != "0":
        options |= {"spec_draft_n_max": depth} | ({} if head is None else {"spec_draft_model": str(head)})
    if types := [*(["draft-mtp"] if depth != "0" else []), *others]:
        options["spec_type"] = ",".join(types)
    with (
        llama_server.start(program, model, parallel=case.requests, **options) as server,
        ThreadPoolExecutor(case.requests) as clients,
    ):

        def run(n: int) -> list[Answer]:
            futures = [
                clients.submit(server.complete, prompt, n, temperature=case.temperature, seed=number)
                for number, prompt in enumerate(prompts.token_ids)
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
        drafted=sum(answer.drafted for answer in answers),
        accepted=sum(answer.accepted for answer in answers),
        texts=texts,
    )


def measure_pymtp(files: Files, case: Case, drafts: str, prompts: Prompts) -> Measurement:
    """Measure a run of pymtp. Call it in a new process."""
    draft_tokens: Any = drafts if drafts == "auto" else int(drafts)
    with LLM(
        files[0],
        head=files[1],
        n_ctx=case.n_ctx,
        n_seq_max=case.requests,
        n_threads=case.threads,
        draft_tokens=draft_tokens,
        cache_prompt=False,
    ) as llm:

        def run(n: int) -> list[Completion]:
            shared = {"max_tokens": n, "temperature": case.temperature, "logit_bias": prompts.bias, **FILTERS}
            params = [SamplingParams(seed=seed, **shared) for seed in range(len(prompts.token_ids))]
            return llm.generate(prompts.token_ids, params)

        run(WARM_UP)
        started = time.perf_counter()
        completions = run(case.tokens)
        seconds = time.perf_counter() - started
    texts, stats = [c.token_ids for c in completions], [c.stats for c in completions]
    native = sum(s.phase_seconds[phase] for s in stats for phase in ("draft", "verify", "rewind"))
    decode_seconds, one_by_one = [s.decode_seconds for s in stats], case.requests == 1
    return Measurement(
        speed(case, texts, seconds, decode_seconds),
        statistics.median(s.time_to_first_token - (s.queue_seconds if one_by_one else 0.0) for s in stats),
        (sum(decode_seconds) - native) / sum(len(text) - 1 for text in texts) if one_by_one else None,
        sum(s.drafted for s in stats),
        sum(s.accepted for s in stats),
        texts,
    )


def measure_llama_bench(program: Path, case: Case) -> Measurement:
    """Measure a run of llama-bench."""
    work = {"n_prompt": 0, "n_gen": case.tokens, "n_depth": case.prompt_tokens, "threads": case.threads}
    return Measurement(float(llama_bench.run(program, case.model, **work)["avg_ts"]))


def measure_http(case: Case, api: str, prompts: Prompts) -> Measurement:
    """Measure a run of `pymtp serve` with clients in this process."""
    if api == "chat":
        own: list[dict[str, Any]] = [{"messages": [{"role": "user", "content": text}]} for text in prompts.texts]
    else:
        own = [{"prompt": token_ids} for token_ids in prompts.token_ids]

    def bodies(n: int) -> list[bytes]:
        shared = {"model": "m", "max_tokens": n, "temperature": case.temperature, "ignore_eos": True, **FILTERS}
        shared |= {"stream": True, "stream_options": {"include_usage": True}}
        return [json.dumps({**prompt, "seed": seed, **shared}).encode() for seed, prompt in enumerate(own)]

    options = {"ctx": case.n_ctx, "n_seq_max": case.requests, "threads": case.threads, "cache": 0}
    with serve(case.model, **options) as server:
        send_all(server.host, server.port, bodies(WARM_UP), PATHS[api])
        contents = bodies(case.tokens)
        started = time.perf_counter()
        answers = send_all(server.host, server.port, contents, PATHS[api])
        seconds = time.perf_counter() - started
    return Measurement(sum(map(completion_tokens, answers)) / seconds)


Arms = dict[str, Callable[[], Measurement]]


def make_arms(
    case: Case,
    prompts: Prompts,
    drafts: Sequence[str],
    server_drafts: Sequence[str],
    programs: Mapping[str, Path],
    apart: Files | None = None,
    *,
    http: bool = False,
) -> Arms:
    """Return the arms of a case by name. programs: those of SERVER and BENCH. apart: the model as two files."""
    arms: Arms = {}
    for files, suffix in [((case.model, None), ""), *([(apart, TWO_FILES)] if apart else [])]:
        for number in server_drafts:
            arms[arm_name(SERVER, number) + suffix] = partial(
                measure_server, programs[SERVER], files, case, number, prompts
            )
        for number in drafts:
            arms[arm_name(PYMTP, number) + suffix] = partial(in_a_process, measure_pymtp, files, case, number, prompts)
    if BENCH in programs:
        arms[BENCH] = partial(measure_llama_bench, programs[BENCH], case)
    return arms | ({f"HTTP {api}": partial(measure_http, case, api, prompts) for api in PATHS} if http else {})


def arm_name(side: str, drafts: str) -> str:
    """Return the name of an arm."""
    return f"{side} {'plain' if drafts == '0' else drafts}"


def measure(case: Case, n: int, arms: Arms) -> Comparison[Measurement]:
    """Measure n rounds of the arms, those of llama-server that are far slower than its best only once."""
    results = Comparison[Measurement](lambda m: m.speed)
    for measured in results.run(str(case), arms, n):
        servers = {arm: m.speed for arm, m in measured.items() if arm.startswith(SERVER)}
        if len(results.rounds) == 1:
            for arm in [arm for arm, speed in servers.items() if speed < MIN_SHARE * max(servers.values())]:
                del arms[arm]
    return results


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
    """Return medians by arm, and the ratios of all arms but llama-server's to one arm, and a comparison of their texts.

    That arm is llama-server's with the best median of those that were measured in all rounds, else llama-bench, else
    pymtp's first.
    """

    def medians_of(name: str) -> dict[str, float]:
        get = attrgetter(name)
        return {arm: statistics.median(results.values(arm, get)) for arm in speeds if get(first[arm]) is not None}

    speeds, first = results.medians(), results.rounds[0]
    servers = [arm for arm in results.rounds[-1] if arm.startswith(SERVER)]
    base = max(servers, key=speeds.__getitem__) if servers else BENCH if BENCH in speeds else next(iter(speeds))
    ratios = {arm: results.ratios(arm, base) for arm in speeds if not arm.startswith(SERVER) and arm != base}
    with_texts = [arm for arm in ratios if first[arm].texts and first[base].texts]
    pairs = {arm: arm + TWO_FILES for arm in speeds if arm + TWO_FILES in speeds}
    return {
        "median_tokens_per_second": speeds,
        "median_first_token_seconds": medians_of("first_token"),
        "median_outside_microseconds": {arm: 1e6 * seconds for arm, seconds in medians_of("outside").items()},
        "acceptance": {arm: m.acceptance for arm, m in first.items()},
        "compared_with": base,
        "median_ratio_to_it": {arm: statistics.median(values) for arm, values in ratios.items()},
        "ratios": ratios,
        "two_files_over_one": {one: results.ratios(two, one) for one, two in pairs.items()},
        "one_file_s_wait_over_two_files": {
            one: results.ratios(one, two, lambda m: m.first_token or 0.0) for one, two in pairs.items()
        },
        "same_text": {arm: compare_texts(results, arm, base) for arm in with_texts},
    }


def notes(found: Mapping[str, Any]) -> list[str]:
    """Return the notes to a table of a summary."""
    waits = found["one_file_s_wait_over_two_files"]
    return [
        *(
            f"{arm}: on two files, relative to one file: decoding {'  '.join(format_spread(Spread.of(ratios)))}, "
            f"prompts {'  '.join(format_spread(Spread.of(waits[arm])))}"
            for arm, ratios in found["two_files_over_one"].items()
        ),
        *(
            f"{arm}: {texts['texts'] - texts['differing']} of {texts['texts']} texts are those of "
            f"{found['compared_with']}; first differences (text, index, tokens): {texts['first_differences'] or '-'}"
            for arm, texts in found["same_text"].items()
        ),
    ]


def main(
    cases: Annotated[list[str], typer.Argument(help="MODEL:REQUESTS:TOKENS[:TEMPERATURE]", show_default=False)],
    pairs: Pairs = 5,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", "-p", min=1, help="Tokens of each prompt, at most.")
    ] = 48,
    drafts: Annotated[str, typer.Option("--drafts", "-d", help="Drafts per round of pymtp's arms.")] = "0,auto",
    server_drafts: Annotated[
        str, typer.Option(help='Drafts per round of llama-server\'s arms; "3+ngram-mod" drafts from text, too.')
    ] = "0,1,2,3",
    with_bench: Annotated[bool, typer.Option("--llama-bench", help="Also llama-bench, for one request.")] = False,
    apart: Annotated[bool, typer.Option("--apart", help="Also with the head in a file of its own.")] = False,
    http: Annotated[bool, typer.Option("--http", help="Also clients of pymtp serve, for several requests.")] = False,
    threads: Threads = None,
    patched: Patched = False,
    output: Output = None,
) -> None:
    """Compare pymtp's decoding with that of llama-server, llama-bench and its own server."""
    written = []
    numbers = [number for number in server_drafts.split(",") if number]
    with errors_shown(), tempfile.TemporaryDirectory() as folder:
        length = CHAT_TOKENS if http else prompt_tokens
        parsed_cases = [Case.read(text, length, threads or default_threads()) for text in cases]
        if any(case.requests == 1 if http else with_bench and case.requests > 1 for case in parsed_cases):
            raise InvalidRequestError("--llama-bench is for cases with one request, --http for cases with several")
        programs = {SERVER: llama_server.build(patched=patched)} if numbers else {}
        programs |= {BENCH: llama_bench.build()} if with_bench else {}
        for case in parsed_cases:
            files = None
            if apart:  # all files must be in one folder, as speed depends on their place
                case = replace(case, model=Path(shutil.copy(case.model, folder)))
                files = write_pair(case.model, Path(folder))
            prompts = in_a_process(partial(Prompts.of, case, chats=http))
            arms = make_arms(case, prompts, drafts.split(","), numbers, programs, files, http=http)
            results = measure(case, pairs, arms)
            found = summary(results)
            columns = [
                Column("first token, s", found["median_first_token_seconds"].get, ".3f"),
                Column("outside, µs/token", found["median_outside_microseconds"].get, ".0f"),
                Column("accepted", found["acceptance"].__getitem__, ".1%"),
            ]
            show(results.table(str(case), "tokens/s", found["compared_with"], *columns), notes=notes(found))
            written.append(asdict(case) | {"model": case.model.name} | found | {"rounds": results.as_dicts("texts")})
            # after each case, so that no result is lost
            write_json(output, "requests against peers", patched_server=patched, cases=written)


if __name__ == "__main__":
    typer.run(main)
