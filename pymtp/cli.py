"""The command line: generate, chat, info, tap, bench. Text goes to stdout, progress and figures to stderr.

Exit codes: 0 done, 1 it failed on the way, 2 it was asked for wrongly, 3 the model cannot be loaded, 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pymtp.bench.command import bench
from pymtp.build import build_info
from pymtp.chat import Message
from pymtp.depth import MAX_AUTO
from pymtp.errors import InvalidRequestError, ModelLoadError, PymtpError
from pymtp.llm import LLM
from pymtp.model import Model
from pymtp.options import CacheType, Layers, ModelFile, Threads
from pymtp.request import Completion
from pymtp.sampling import SamplingParams
from pymtp.stats import Stats
from pymtp.stream import Stream

FAILED, MISUSED, NOT_LOADED = 1, 2, 3

app = typer.Typer(
    help="Multi-token-prediction speculative decoding for Qwen3.5, 3.6 and 3.8 GGUF models.",
    no_args_is_help=True,
    add_completion=False,
)
app.add_typer(bench, name="bench")
screen = Console(stderr=True, highlight=False)

Drafts = Annotated[str, typer.Option("--draft-tokens", "-d", metavar="auto|N", help="Drafts a round.")]
Tap = Annotated[str, typer.Option(help="Hidden state for the head: post_norm, pre_norm, auto.")]
Ctx = Annotated[int, typer.Option("--ctx", "-c", help="Context length, 0 for the model's own.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="The most tokens to generate.")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 takes the most likely token.")]
TopK = Annotated[int, typer.Option(help="Keep the k most likely tokens, 0 for all.")]
TopP = Annotated[float, typer.Option(help="Keep the most likely tokens that reach p.")]
MinP = Annotated[float, typer.Option(help="Drop tokens less likely than this times the likeliest.")]
Seed = Annotated[int, typer.Option(help="Seed of the sampling.")]
Stop = Annotated[list[str] | None, typer.Option(help="End at this string; may be given several times.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def figures(stats: Stats) -> str:
    """The line of figures after a completion."""
    line = (
        f"{stats.prompt_tokens} prompt tokens at {stats.prefill_tokens_per_second:.0f}/s, "
        f"{stats.completion_tokens} tokens at {stats.decode_tokens_per_second:.1f}/s"
    )
    if stats.drafted:
        line += f", {stats.acceptance_rate:.0%} of drafts accepted, {stats.mean_accepted_length:.2f} tokens a round"
    return line


def as_json(completion: Completion) -> str:
    """A completion and all its figures."""
    return json.dumps(asdict(completion) | {"stats": completion.stats.as_dict()}, ensure_ascii=False)


def _write(stream: Stream) -> Completion:
    """Prints the text as it comes."""
    with stream:
        with screen.status("reading the prompt …"):
            first = next(stream)
        for piece in chain([first], stream):
            sys.stdout.write(piece.text)
            sys.stdout.flush()
    return stream.completion


def _read_drafts(drafts: str) -> int | Literal["auto"]:
    try:
        return "auto" if drafts == "auto" else int(drafts)
    except ValueError as error:
        raise InvalidRequestError(f'--draft-tokens {drafts!r} must be a whole number or "auto"') from error


def _load(model: Path | None, ctx: int, gpu_layers: int, threads: int | None, cache: str, drafts: str, tap: str) -> LLM:
    draft_tokens = _read_drafts(drafts)
    with screen.status(f"loading {model.name if model else 'the model inside pymtp'} …"):
        return LLM(
            model,
            n_ctx=ctx,
            n_gpu_layers=gpu_layers,
            n_threads=threads,
            type_k=cache,
            type_v=cache,
            draft_tokens=draft_tokens,
            tap=tap,
        )


@app.command()
def generate(
    prompt: Annotated[str | None, typer.Argument(help='The prompt, or "-" to read it from standard input.')] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from this file.")] = None,
    model: ModelFile = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 40,
    top_p: TopP = 0.95,
    min_p: MinP = 0.05,
    seed: Seed = 0,
    stop: Stop = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end.")] = False,
    grammar_file: Annotated[Path | None, typer.Option(help="Hold the text to the GBNF grammar in this file.")] = None,
    json_schema: Annotated[Path | None, typer.Option(help="Hold the text to the JSON schema in this file.")] = None,
    logprobs: Annotated[
        int | None, typer.Option(help="With --json: log-probabilities of each token, and so many more.")
    ] = None,
    draft_tokens: Drafts = "auto",
    tap: Tap = "auto",
    ctx: Ctx = 8192,
    gpu_layers: Layers = -1,
    threads: Threads = None,
    cache_type: CacheType = "f16",
    json_output: AsJson = False,
) -> None:
    """Continue a prompt."""
    text = _read_prompt(prompt, file)
    params = SamplingParams(
        max_tokens,
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
        stop or (),
        ignore_eos,
        grammar=_read("grammar", grammar_file) if grammar_file else None,
        json_schema=_read("JSON schema", json_schema) if json_schema else None,
        logprobs=logprobs,
    )
    with _load(model, ctx, gpu_layers, threads, cache_type, draft_tokens, tap) as llm:
        if json_output:
            print(as_json(llm.generate(text, params)))
            return
        completion = _write(llm.stream(text, params))
        print()
        screen.print(figures(completion.stats), style="dim", soft_wrap=True)


def _read(what: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"cannot read the {what} from {file}: {error}") from error


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise InvalidRequestError('give one prompt: as an argument, "-" for standard input, or --file')
    if file is not None:
        return _read("prompt", file)
    return sys.stdin.read() if prompt == "-" else str(prompt)


@app.command()
def chat(
    model: ModelFile = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = 0.7,
    top_k: TopK = 40,
    top_p: TopP = 0.95,
    min_p: MinP = 0.05,
    seed: Seed = 0,
    draft_tokens: Drafts = "auto",
    tap: Tap = "auto",
    ctx: Ctx = 8192,
    gpu_layers: Layers = -1,
    threads: Threads = None,
    cache_type: CacheType = "f16",
) -> None:
    """Talk with a model, turn by turn. Ends with Ctrl-D; Ctrl-C ends a turn."""
    params = SamplingParams(max_tokens, temperature, top_k, top_p, min_p, seed)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    with _load(model, ctx, gpu_layers, threads, cache_type, draft_tokens, tap) as llm:
        while (said := _ask()) is not None:
            if not said.strip():
                continue
            asked = [*messages, {"role": "user", "content": said}]
            stream = llm.stream_chat(asked, params)
            try:
                completion = _write(stream)
            except KeyboardInterrupt:
                completion = stream.completion
            print()
            screen.print(figures(completion.stats), style="dim", soft_wrap=True)
            messages = [*asked, {"role": "assistant", "content": completion.text}]


def _ask() -> str | None:
    """A line from the user; None at the end of input."""
    if sys.stdin.isatty():
        screen.print("> ", end="", style="bold")
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


@app.command()
def info(
    model: Annotated[Path | None, typer.Argument(help="GGUF file; if not given, pymtp's own.")] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Say what running it will take; the options below are for this.")
    ] = False,
    draft_tokens: Drafts = "auto",
    ctx: Ctx = 8192,
    gpu_layers: Layers = -1,
    cache_type: CacheType = "f16",
    json_output: AsJson = False,
) -> None:
    """Say what a model file, this build and this machine are. No weights are read."""
    if memory:
        _show_memory(model, _read_drafts(draft_tokens), ctx, gpu_layers, cache_type, json_output)
        return
    with Model(model, vocab_only=True) as loaded:
        about: dict[str, object] = {
            "file": str(loaded.path),
            "name": loaded.metadata.get("general.name", ""),
            "about": loaded.metadata.get("general.description", ""),
            "architecture": loaded.architecture,
            "weights": loaded.weight_type,
            "parameters": loaded.n_params,
            "size_bytes": loaded.path.stat().st_size,
            "layers": loaded.n_layer,
            "mtp_head": loaded.has_head,
            "tap": loaded.tap if loaded.has_head else None,
            "width": loaded.n_embd,
            "vocabulary": loaded.n_vocab,
            "context_trained": loaded.n_ctx_train,
            "chat_template": loaded.chat_template is not None,
        }
    build = build_info()
    if json_output:
        print(json.dumps({"model": about, "build": build}, ensure_ascii=False))
        return
    out = Console(highlight=False)
    for title, facts in (("model", about), ("build", dict(build))):
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, value in facts.items():
            table.add_row(name.replace("_", " "), _readable(value))
        out.print(table)


def _show_memory(
    model: Path | None, drafts: int | Literal["auto"], ctx: int, gpu_layers: int, cache: str, json_output: bool
) -> None:
    from pymtp.memory_table import as_table, plan_beside

    with Model(model, vocab_only=True) as looked_at:
        most = drafts if drafts != "auto" else MAX_AUTO if looked_at.has_head else 0
    plans = plan_beside(model, draft_tokens=most, n_gpu_layers=gpu_layers, n_ctx=ctx, type_k=cache, type_v=cache)
    options = {"n_ctx": ctx, "draft_tokens": most, "cache_type": cache, "gpu_layers": gpu_layers}
    build = build_info()
    if json_output:
        devices = [plan.as_dict() for plan in plans]
        print(json.dumps({"model": looked_at.path.name, "options": options, "devices": devices, "build": build}))
        return
    out = Console(highlight=False)
    out.print(f"{looked_at.path.name}: {', '.join(f'{k} {v}' for k, v in options.items())}", soft_wrap=True)
    described = {device["name"]: device["description"] for device in build["devices"]}
    for plan in plans:
        out.print(as_table(plan, described.get(plan.without.device, plan.without.device)))


@app.command()
def tap(
    model: Annotated[Path | None, typer.Argument(help="GGUF file; if not given, pymtp's own.")] = None,
    tokens: Annotated[int, typer.Option(min=2, help="To generate after each prompt.")] = 128,
    gpu_layers: Layers = -1,
    threads: Threads = None,
    json_output: AsJson = False,
) -> None:
    """Say which hidden state a model's head was trained on: the one before or after the final norm."""
    from pymtp.bench.tap import as_dict, as_table, in_words, judge

    with screen.status("drafting with both taps …"), Model(model, n_gpu_layers=gpu_layers) as loaded:
        judgement = judge(loaded, tokens=tokens, n_threads=threads)
    if json_output:
        print(json.dumps(as_dict(judgement), ensure_ascii=False))
        return
    out = Console(highlight=False)
    out.print(as_table(judgement))
    for line in in_words(judgement):
        out.print(line, soft_wrap=True, markup=False)


def _readable(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(_readable(v) for v in value.values())
    if isinstance(value, list):
        separator = "\n" if any(isinstance(v, dict) or len(str(v)) > 20 for v in value) else " "
        return separator.join(_readable(v) for v in value)
    return "-" if value in (None, "") else str(value)


def app_main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line (None: the process's own); turns this package's errors into one line and an exit code."""
    try:
        app(arguments)
    except PymtpError as error:
        screen.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        code = FAILED
        if isinstance(error, InvalidRequestError):
            code = MISUSED
        elif isinstance(error, ModelLoadError):
            code = NOT_LOADED
        sys.exit(code)
