"""Counts texts whose thinking exceeds its budget, and tokens that drafting changes in them.

    pip install . gguf typer jsonschema
    python tools/checks/thinking_budget.py --texts 2000

The shipped model, with a template that begins to think, answers chats at three temperatures: without constraints, with
a schema, with tools that may or must be called. It also continues prompts with a schema and with penalties. Each text
is generated with 0, 3 and 7 drafts, four at once. The tokens that close a thinking must be generated in one round.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pymtp import LLM, SamplingParams
from pymtp.chat import Chat, OutputFormat, Tool
from pymtp.engine.request import Completion
from pymtp.model.model import demo_model
from pymtp.openai.generate_request import GenerateRequest, prepare_request

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.chat_templates import DROPS_THINKING
from makers.demo_corpus import held_out_prompts
from makers.gguf_variants import rewrite

AT_ONCE = 4
DEPTHS = (0, 3, 7)
TEMPERATURES = (0.0, 0.7, 1.0)
MESSAGES = ("", "\nEnough.\n", " é\U0001f600")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = (Tool("weather", parameters=SCHEMA), Tool("now", parameters={"type": "object", "properties": {}}))
# constraints of an answer: fields of a GenerateRequest, or of the params of a raw prompt
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "chat": {},
    "chat, schema": {"schema": SCHEMA},
    "chat, tools": {"tools": TOOLS},
    "chat, a tool": {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    "chat, schema, tools": {"schema": SCHEMA, "tools": TOOLS},
    "prompt, schema": {"json_schema": SCHEMA},
    "prompt, penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "logprobs": 1},
}


@dataclass(frozen=True)
class ThinkingRequest:
    """A request for one text, the same at each depth."""

    constraint: str
    prompt: Any
    params: SamplingParams
    form: OutputFormat | None
    closing: list[int]


def texts(llm: LLM, n: int) -> Iterator[ThinkingRequest]:
    """Yield requests of all kinds in turn, with random budgets and messages."""
    rng, prompts = random.Random(5), held_out_prompts(20)
    for i in range(n):
        constraint = list(CONSTRAINTS)[i % len(CONSTRAINTS)]
        asked, message = prompts[rng.randrange(20)][: rng.randint(20, 200)], rng.choice(MESSAGES)
        budget = rng.choice([0, 1, 2, rng.randint(3, 40)])
        common: dict[str, Any] = {
            "temperature": TEMPERATURES[i // len(CONSTRAINTS) % 3],
            "seed": i,
            "top_k": rng.choice([0, 40]),
        }
        params = SamplingParams(rng.randint(60, 160), thinking_budget=budget, thinking_end=message, **common)
        close = llm.model.tokenize("</think>\n\n", add_special=False)
        closing = [*(llm.model.tokenize(message, add_special=False) if budget and message else []), *close]
        if constraint.startswith("chat"):
            chat = Chat([{"role": "user", "content": asked}])
            yield ThinkingRequest(
                constraint, *prepare_request(llm, GenerateRequest(chat, params, **CONSTRAINTS[constraint])), closing
            )
        else:
            given = SamplingParams(
                params.max_tokens, thinking_budget=budget, thinking_end=message, **common, **CONSTRAINTS[constraint]
            )
            yield ThinkingRequest(constraint, f"{asked}\n<think>\n", given, None, closing)


def generate_texts(llm: LLM, each: Sequence[ThinkingRequest]) -> Iterator[tuple[Completion, int]]:
    """Yield each text, and the number of rounds of its closing tokens; 0 if pymtp did not close its thinking."""
    streams = [llm.stream(asked.prompt, asked.params) for asked in each]
    for asked, stream in zip(each, streams, strict=True):
        pieces = [piece.token_ids for piece in stream]
        done, n, rounds = stream.completion, 0, 0
        start = asked.params.thinking_budget or 0
        end = start + len(asked.closing)
        closed = done.stats.thinking_tokens == start and done.token_ids[start:end] == asked.closing
        for i, tokens in enumerate(pieces):
            # the prefill samples the first token
            rounds += i > 0 and n < end and n + len(tokens) > start and closed
            n += len(tokens)
        yield done, rounds


def fulfils(asked: ThinkingRequest, done: Completion) -> bool:
    """Tell whether a text that ended by itself fulfils its constraints."""
    if done.finish_reason != "stop" or ("schema" not in asked.constraint and "tool" not in asked.constraint):
        return True
    try:
        if asked.form is None:
            jsonschema.validate(json.loads(done.text.partition("</think>")[2]), SCHEMA)
            return True
        parser = asked.form.parser()
        parser.push(done.text)
        parser.finish()
        for call in parser.output.tool_calls:
            if call.name == "weather":
                jsonschema.validate(json.loads(call.arguments), SCHEMA)
        if not parser.output.tool_calls and "schema" in asked.constraint:
            jsonschema.validate(json.loads(parser.output.content or ""), SCHEMA)
        return bool(parser.output.tool_calls) or asked.constraint != "chat, a tool"
    except (ValueError, jsonschema.ValidationError):
        return False


def main(texts_: Annotated[int, typer.Option("--texts", help="How many texts, each at three depths.")] = 2000) -> None:
    """Generate and count texts; exit with status 1 if a count is wrong."""
    began = time.monotonic()
    counts = {
        constraint: dict.fromkeys(("texts", "closed", "beyond", "rounds", "differ", "tokens", "broken"), 0)
        for constraint in CONSTRAINTS
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "thinks.gguf"
        rewrite(demo_model(), path, metadata={"tokenizer.chat_template": DROPS_THINKING})
        llms = [LLM(path, n_ctx=1024, n_threads=1, draft_tokens=depth, n_seq_max=AT_ONCE) for depth in DEPTHS]
        all_requests = list(texts(llms[0], texts_))
        for at in track(range(0, texts_, AT_ONCE), console=Console(stderr=True)):
            batch = all_requests[at : at + AT_ONCE]
            plain = [done for done, _ in generate_texts(llms[0], batch)]
            for llm in llms:
                for asked, right, (done, rounds) in zip(batch, plain, generate_texts(llm, batch), strict=True):
                    count = counts[asked.constraint]
                    count["texts"] += 1
                    count["tokens"] += len(done.token_ids)
                    count["beyond"] += done.stats.thinking_tokens > (asked.params.thinking_budget or 0)
                    count["closed"] += rounds > 0
                    count["rounds"] += rounds
                    same = sum(a == b for a, b in zip(done.token_ids, right.token_ids, strict=False))
                    count["differ"] += max(len(done.token_ids), len(right.token_ids)) - same
                    count["broken"] += not fulfils(asked, done)
    table = Table("constraint", *next(iter(counts.values())))
    for constraint, count in counts.items():
        table.add_row(constraint, *map(str, count.values()))
    totals = {name: sum(count[name] for count in counts.values()) for name in next(iter(counts.values()))}
    table.add_row("all", *map(str, totals.values()))
    Console(width=110).print(table)
    print(f"{texts_} texts with {', '.join(map(str, DEPTHS))} drafts, {time.monotonic() - began:.0f} s")
    if totals["beyond"] or totals["differ"] or totals["broken"] or totals["rounds"] != totals["closed"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
