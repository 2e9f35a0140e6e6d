"""Counts invalid tool calls: the shipped model is made to call tools with schemas of all kinds.

    pip install .[test] typer
    python tools/checks/tool_calls.py --schemas 300

Three tools with random schemas are given. The model must call any one of them (tool_choice "required"), and each of
them (named), greedily and at temperature 1, in XML or as JSON. It was not trained on tools: only the grammar makes its
calls valid. Each answer must be one call of an existing tool, with arguments that jsonschema finds valid. Strings are
bounded, because a model of 5 M parameters does not end them by itself.

An invalid call is printed with its schema and seed: --first SEED --schemas 1 repeats it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any

import jsonschema
import typer
from rich.console import Console
from rich.progress import track

from pymtp import LLM, SamplingParams
from pymtp.chat import Chat, NamedTool, OutputFormat, Tool, ToolChoice, read_tools

MAX_TOKENS = 1500
AT_ONCE = 8
HERMES = 'A template that speaks of <tool_call>{"name": …}.'
STRINGS = [
    {"pattern": "^[a-z]{1,8}(-[0-9]{2})?$"},
    {"pattern": r"^(GET|POST) /\S{1,9}$"},
    {"format": "date-time"},
    {"format": "uuid"},
    {"enum": ["low", "high", "", "very high"]},
    {"const": "</parameter>"},
]


class Schemas:
    """Makes random schemas: the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def tool(self, name: str) -> dict[str, Any]:
        """Return a random tool in OpenAI's format."""
        properties = {name: self.value(3) for name in self._names(self._random.randint(0, 6))}
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": properties,
            "required": self._some(properties),
            "additionalProperties": False,
            "$defs": {"level": {"enum": [1, 2.5, None, "top"]}, "tree": self._tree()},
        }
        description = "Does something." if self._random.random() < 0.5 else None
        strict = self._random.random() < 0.5
        return {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": schema, "strict": strict},
        }

    def value(self, depth: int) -> dict[str, Any]:
        kinds = [self.string, self.integer, self.scalar, self.reference, self.choice]
        kinds += [self.array, self.object, self.either] if depth else []
        schema: dict[str, Any] = self._random.choice(kinds)(depth - 1)
        if self._random.random() < 0.3 and "$ref" not in schema:
            schema = {"description": "What it is for.", "default": None, **schema}
        return schema

    def string(self, _: int) -> dict[str, Any]:
        if self._random.random() < 0.4:
            return {"type": "string", **self._random.choice(STRINGS)}
        least = self._random.choice([0, 0, 1, 5, 20])
        return {"type": "string", "minLength": least, "maxLength": least + self._random.randint(0, 60)}

    def integer(self, _: int) -> dict[str, Any]:
        low = self._random.randint(-1000, 1000)
        bounds = {"minimum": low, "maximum": low + self._random.randint(0, 5000)}
        return {"type": "integer", **dict(self._random.sample([*bounds.items()], self._random.randint(0, 2)))}

    def scalar(self, _: int) -> dict[str, Any]:
        return {"type": self._random.choice(["number", "boolean", "null", ["integer", "null"], ["boolean", "number"]])}

    def reference(self, _: int) -> dict[str, Any]:
        return {"$ref": self._random.choice(["#/$defs/level", "#/$defs/tree"])}

    def choice(self, _: int) -> dict[str, Any]:
        return {"enum": self._random.sample(["a", "b c", "1", 1, 2.5, None, True, [1], {"a": "b"}], 3)}

    def array(self, depth: int) -> dict[str, Any]:
        least = self._random.randint(0, 2)
        most = least + self._random.randint(0, 3)
        return {"type": "array", "items": self.value(depth), "minItems": least, "maxItems": most}

    def object(self, depth: int) -> dict[str, Any]:
        properties = {name: self.value(depth) for name in self._names(self._random.randint(1, 3))}
        return {"type": "object", "properties": properties, "required": self._some(properties)}

    def either(self, depth: int) -> dict[str, Any]:
        parts = [self.value(depth), self._random.choice([{"type": "null"}, self.value(depth)])]
        return {"anyOf": parts} if parts[0] != parts[1] else parts[0]

    def _tree(self) -> dict[str, Any]:
        branches = {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1}
        return {"type": "object", "properties": {"n": self.integer(0), "branches": branches}, "required": ["n"]}

    def _names(self, n: int) -> list[str]:
        return self._random.sample(["a", "path", "new_string", "größe", "x.y", "file name", "n", "type", "value"], n)

    def _some(self, properties: dict[str, Any]) -> list[str]:
        return [name for name in properties if self._random.random() < 0.6]


@dataclass(frozen=True)
class ToolRequest:
    seed: int
    tools: tuple[Tool, ...]
    form: OutputFormat
    params: SamplingParams
    choice: ToolChoice


def requests_for(llm: LLM, seed: int) -> Iterator[ToolRequest]:
    """Yield requests for a call, with all tool choices, for the schemas of a seed."""
    schemas = Schemas(seed)
    tools = read_tools([schemas.tool(name) for name in ("first", "mcp__server__second", "third")])
    end = llm.chat_prompts.prompt(chat_of(seed, tools)).end
    choices: list[ToolChoice] = ["required", *(NamedTool(tool.name) for tool in tools)]
    for i, choice in enumerate(choices):
        for j, temperature in enumerate((0.0, 1.0)):
            template = HERMES if (seed + i + j) % 2 else llm.model.chat_template
            form = OutputFormat(template, end, tools=tools, tool_choice=choice, parallel_tool_calls=False)
            params = SamplingParams(MAX_TOKENS, temperature=temperature, seed=seed, grammar=form.gbnf)
            yield ToolRequest(seed, tools, form, params, choice)


def chat_of(seed: int, tools: tuple[Tool, ...]) -> Chat:
    functions = [{"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}} for tool in tools]
    return Chat([{"role": "user", "content": f"Do number {seed}."}], functions)


def wrong(one: ToolRequest, text: str) -> str | None:
    """Describe the error in an answer; None for none."""
    parser = one.form.parser()
    parser.push(text)
    parser.finish()
    answer = parser.output
    if len(answer.tool_calls) != 1 or answer.content or answer.unfinished_call:
        return f"it is not one call: {answer}"
    (call,) = answer.tool_calls
    by_name = {tool.name: tool.parameters for tool in one.tools}
    if call.name not in by_name or (isinstance(one.choice, NamedTool) and call.name != one.choice.name):
        return f"it calls {call.name}"
    try:
        jsonschema.Draft202012Validator(by_name[call.name]).validate(json.loads(call.arguments))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{call.arguments}: {error}"
    return None


def check(llm: LLM, seeds: range) -> tuple[int, list[str]]:
    """Return the number of requests, and the errors in their answers."""
    problems = []
    each = [one for seed in seeds for one in requests_for(llm, seed)]
    prompts = [chat_of(one.seed, one.tools) for one in each]
    for one, completion in zip(each, llm.generate(prompts, [one.params for one in each]), strict=True):
        problem = wrong(one, completion.text)
        if problem is not None:
            problems.append(f"seed {one.seed}, {one.choice}, {completion.finish_reason}: {problem}\n{completion.text}")
    return len(each), problems


def main(
    schemas: Annotated[int, typer.Option(help="How many tools have a schema of their own.")] = 300,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
) -> None:
    n, problems = 0, []
    with LLM(n_seq_max=AT_ONCE) as llm:
        seeds = range(first, first + -(-schemas // 3))  # three per seed
        for seed in track(seeds, console=Console(stderr=True)):
            more, found = check(llm, range(seed, seed + 1))
            n, problems = n + more, problems + found
            for problem in found:
                print(problem, flush=True)
    print(f"{n - len(problems)} of {n} calls are valid: {3 * len(seeds)} schemas, seeds {first} to {seeds[-1]}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    typer.run(main)
