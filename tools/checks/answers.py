"""Counts wrong answers of chats: too much thinking, invalid calls and JSON, and tokens that drafting changes.

    pip install '.[test]' typer
    python tools/checks/answers.py --seeds 200

For each seed, three tools with random schemas are given to the shipped model, with a template that begins to think and
calls tools in XML or as JSON. It must call any one of them, and each of them by name; it may call one; it writes JSON
for a random schema; it continues prompts. Each request has a thinking budget and one of three temperatures, and is
generated with 0, 3 and 7 drafts, four requests at once. The model was trained on calls of other tools: only the grammar
makes its answers valid. Strings are bounded, because a small model does not end them by itself.

An answer must not think beyond its budget. The tokens that close a thinking must be generated in one round. Calls and
JSON must be what jsonschema finds valid. Drafts must not change a token. `--first SEED --seeds 1` repeats a seed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any

import jsonschema
import typer
from common import SCREEN, differing, run_command, show_table
from makers.chat_templates import DROPS_THINKING
from rich.console import Console
from rich.progress import track

from pymtp import LLM, Completion, SamplingParams
from pymtp.chat import Chat, NamedTool, OutputFormat, Tool, ToolChoice, read_tools
from pymtp.openai.generate_request import GenerateRequest, prepare_request

AT_ONCE = 4
DEPTHS = (0, 3, 7)
TEMPERATURES = (0.0, 0.7, 1.0)
TEMPLATES = (DROPS_THINKING, "{# calls by <tool_call> are JSON #}" + DROPS_THINKING)
MESSAGES = ("", "\nEnough.\n", " é\U0001f600")
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "logprobs": 1}
COUNTS = ("texts", "tokens", "closed", "rounds", "beyond", "differ", "wrong")
STRINGS = [{"pattern": "^[a-z]{1,8}(-[0-9]{2})?$"}, {"pattern": r"^(GET|POST) /\S{1,9}$"}, {"format": "date-time"}]
STRINGS += [{"format": "uuid"}, {"enum": ["low", "high", "", "very high"]}, {"const": "a </parameter> b"}]
SCALARS = ["number", "boolean", "null", ["integer", "null"], ["boolean", "number"]]
NAMES = ["a", "path", "new_string", "größe", "x.y", "file name", "n", "type", "value"]


class Schemas:
    """Makes random schemas: the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def tool(self, name: str) -> dict[str, Any]:
        """Return a random tool in OpenAI's format."""
        branches = {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1}
        tree = {"type": "object", "properties": {"n": self._integer(), "branches": branches}, "required": ["n"]}
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **self._object(3, 0, 6)}
        schema |= {"additionalProperties": False, "$defs": {"level": {"enum": [1, 2.5, None, "top"]}, "tree": tree}}
        description, strict = self._random.choice(["Does something.", None]), self._random.random() < 0.5
        function = {"name": name, "description": description, "parameters": schema, "strict": strict}
        return {"type": "function", "function": function}

    def _value(self, depth: int) -> dict[str, Any]:
        rng, enum = self._random, ["a", "b c", "1", 1, 2.5, None, True, [1], {"a": "b"}]
        least, items = rng.choice([0, 0, 1, 5, 20]), rng.randint(0, 2)
        made: dict[str, Any] = rng.choice([
            lambda: {"type": "string", **rng.choice(STRINGS)},
            lambda: {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 60)},
            *(self._integer, lambda: {"type": rng.choice(SCALARS)}, lambda: {"enum": rng.sample(enum, 3)}),
            *(lambda: {"$ref": rng.choice(["#/$defs/level", "#/$defs/tree"])},) * 2,
            lambda: {"type": "array", "items": self._value(depth - 1), "minItems": items, "maxItems": items + 2},
            *(lambda: self._object(depth - 1, 1, 3), lambda: self._either(depth - 1)),
        ][: 10 if depth else 7])()  # fmt: skip
        described = rng.random() < 0.3 and "$ref" not in made
        return {"description": "What it is for.", "default": None, **made} if described else made

    def _integer(self) -> dict[str, Any]:
        low = self._random.randint(-1000, 1000)
        bounds = {"minimum": low, "maximum": low + self._random.randint(0, 5000)}
        return {"type": "integer", **dict(self._random.sample([*bounds.items()], self._random.randint(0, 2)))}

    def _object(self, depth: int, least: int, most: int) -> dict[str, Any]:
        names = self._random.sample(NAMES, self._random.randint(least, most))
        properties = {name: self._value(depth) for name in names}
        required = [name for name in properties if self._random.random() < 0.6]
        return {"type": "object", "properties": properties, "required": required}

    def _either(self, depth: int) -> dict[str, Any]:
        parts = [self._value(depth), self._random.choice([{"type": "null"}, self._value(depth)])]
        return {"anyOf": parts} if parts[0] != parts[1] else parts[0]


@dataclass(frozen=True)
class Asked:
    """A request for one text, the same at each depth.

    form: the format of a chat's answer. closing: the tokens that close its thinking.
    tools, choice, schema: what the answer must fulfil.
    """

    kind: str
    prompt: Any
    params: SamplingParams
    form: OutputFormat | None
    closing: list[int]
    tools: Sequence[Tool] = ()
    choice: ToolChoice = "auto"
    schema: Any = None


def requests_for(llm: LLM, seed: int) -> Iterator[Asked]:
    """Yield requests of all kinds, with all tool choices, for the schemas of a seed."""
    rng, schemas = Random(seed), Schemas(seed)
    tools = read_tools([schemas.tool(name) for name in ("first", "mcp__server__second", "third")])
    schema = schemas.tool("answer")["function"]["parameters"]
    calls: dict[str, Any] = {"tools": tools, "parallel_tool_calls": False}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("a call", calls | {"tool_choice": "required"}),
        *(("a named call", calls | {"tool_choice": NamedTool(tool.name)}) for tool in tools),
        ("text or calls", {"tools": tools}),
        ("JSON", {"schema": schema}),
        ("JSON or calls", {"schema": schema, "tools": tools}),
        ("text", {}),
        ("prompt, JSON", {"json_schema": schema}),
        ("prompt, penalties", PENALTIES),
    ]
    for kind, given in kinds:
        text = f"What is {rng.randint(100, 999)} + {rng.randint(100, 999)}?"  # which the shipped model thinks about
        budget, message = rng.choice([0, 1, 2, rng.randint(3, 40)]), rng.choice(MESSAGES)
        said, end = (llm.model.tokenize(part, add_special=False) for part in (message, "</think>\n\n"))
        closing = [*(said if budget and message else []), *end]
        sampling: dict[str, Any] = {"temperature": rng.choice(TEMPERATURES), "seed": seed, "top_k": rng.choice([0, 40])}
        sampling |= {"thinking_budget": budget, "thinking_end": message}
        limit = 1500 if kind in ("a call", "a named call", "JSON", "prompt, JSON") else rng.randint(60, 160)
        if kind.startswith("prompt"):
            params = SamplingParams(limit, **sampling, **given)
            prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n"
            yield Asked(kind, prompt, params, None, closing, schema=given.get("json_schema"))
        else:
            chat = Chat([{"role": "user", "content": text}])
            asked = GenerateRequest(chat, SamplingParams(limit, **sampling), **given)
            must = (asked.tools, asked.tool_choice, asked.schema)
            yield Asked(kind, *prepare_request(llm, asked), closing, *must)


def wrong(asked: Asked, text: str, *, complete: bool = True) -> str:
    """Describe the error in an answer; "" for none. complete: whether the answer ended by itself."""
    one_call = asked.choice == "required" or isinstance(asked.choice, NamedTool)
    if not complete:
        return "the call does not end" if one_call else ""
    by_name = {tool.name: tool.parameters for tool in asked.tools}
    calls: Sequence[Any] = ()
    try:
        if asked.form is None:
            content: str | None = text.partition("</think>")[2]
        else:
            parser = asked.form.parser()
            parser.push(text)
            parser.finish()
            calls, content = parser.output.tool_calls, parser.output.content
            if one_call and (len(calls) != 1 or content or parser.output.unfinished_call):
                return f"it is not one call: {parser.output}"
        for call in calls:
            if call.name not in by_name or (isinstance(asked.choice, NamedTool) and call.name != asked.choice.name):
                return f"it calls {call.name}"
            jsonschema.Draft202012Validator(by_name[call.name]).validate(json.loads(call.arguments))
        if asked.schema is not None and not calls:
            jsonschema.Draft202012Validator(asked.schema).validate(json.loads(content or ""))
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error)
    return ""


def generate(llm: LLM, batch: Sequence[Asked]) -> Iterator[tuple[Completion, int]]:
    """Yield each text, and the number of rounds of its closing tokens; 0 if pymtp did not close its thinking."""
    streams = [llm.stream(asked.prompt, asked.params) for asked in batch]
    for asked, stream in zip(batch, streams, strict=True):
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


def open_llms(template: str, n_threads: int = 1) -> list[LLM]:
    """Return an LLM of the shipped model for each of DEPTHS."""
    options: dict[str, Any] = {"n_ctx": 4096, "n_threads": n_threads, "n_seq_max": AT_ONCE, "chat_template": template}
    return [LLM(draft_tokens=depth, **options) for depth in DEPTHS]


def check(llms: Sequence[LLM], seed: int, rows: dict[str, Counter[str]]) -> list[str]:
    """Count the answers for a seed by their kinds, and describe the wrong ones. llms: those of DEPTHS."""
    problems, each = list[str](), list(requests_for(llms[0], seed))
    for at in range(0, len(each), AT_ONCE):
        batch = each[at : at + AT_ONCE]
        plain = [done for done, _ in generate(llms[0], batch)]
        for llm in llms:
            for asked, right, (done, rounds) in zip(batch, plain, generate(llm, batch), strict=True):
                problem = wrong(asked, done.text, complete=done.finish_reason == "stop")
                beyond = done.stats.thinking_tokens > (asked.params.thinking_budget or 0)
                n, differ = len(done.token_ids), differing(done.token_ids, right.token_ids)
                row = rows.setdefault(asked.kind, Counter(dict.fromkeys(COUNTS, 0)))
                row.update(dict(zip(COUNTS, (1, n, rounds > 0, rounds, beyond, differ, problem != ""), strict=True)))
                if problem or beyond or differ or rounds > 1:
                    problems.append(f"seed {seed}, {asked.kind}, {done.finish_reason}: {problem}\n{done.text}")
    return problems


def main(
    seeds: Annotated[int, typer.Option(min=1, help="How often the tools get other schemas.")] = 200,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
) -> None:
    """Generate and count answers; exit with status 1 if any is wrong."""
    problems, rows = list[str](), dict[str, Counter[str]]()
    llms = [open_llms(template) for template in TEMPLATES]
    for seed in track(range(first, first + seeds), console=Console(stderr=True)):
        problems += check(llms[seed % 2], seed, rows)
    for problem in problems:
        SCREEN.print(problem)
    show_table(rows, f"with {', '.join(map(str, DEPTHS))} drafts")
    raise typer.Exit(1 if problems else 0)


if __name__ == "__main__":
    run_command(main)
