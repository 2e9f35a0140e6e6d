"""How a case becomes text: the chat template, and the prompt and the answer that training and evaluation share."""

import json
from functools import cache
from pathlib import Path

import jinja2
from cases.case import THINK_END, Case
from jinja2.sandbox import ImmutableSandboxedEnvironment

END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"


@cache
def template_source() -> str:
    return (Path(__file__).parent / "chat_template.jinja").read_text().strip()


@cache
def _template() -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)  # as transformers sets it up
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(template_source())


def prompt_of(case: Case) -> str:
    """Return the text that the model continues."""
    if case.prompt:
        return case.prompt
    return _template().render(
        messages=list(case.messages), tools=list(case.tools), add_generation_prompt=True, enable_thinking=case.thinking
    )


def answer_of(case: Case) -> str:
    """Return the text that the model is to write, with the token that ends it."""
    if case.prompt:
        return case.answer + END_OF_TEXT
    return (case.answer if case.thinking else case.answer.removeprefix(f"\n{THINK_END}")) + END_OF_TURN
