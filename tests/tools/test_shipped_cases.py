"""Tests of the shipped model's training data: right answers are judged right, broken ones wrong, the split holds."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from cases import arithmetic, functions, infill, modules, stories
from cases.case import THINK_END, Case, spoken
from chats import answer_of, prompt_of, template_source
from jinja2 import Environment, nodes
from stream import KINDS, WEIGHTS, held_out_cases, training_cases

from pymtp import Model
from pymtp.chat.output_format import OutputFormat
from pymtp.chat.template import ChatTemplate
from pymtp.chat.tools import read_tools

COUNT = {functions.KIND: 4, infill.KIND: 4, modules.KIND: 4}  # a check runs two processes a function


def held_out(kind: str) -> list[Case]:
    return held_out_cases(kind, COUNT.get(kind, 30))


@pytest.mark.parametrize("kind", KINDS)
def test_reference_answers_are_judged_right_and_broken_ones_wrong(kind: str) -> None:
    cases = held_out(kind)
    assert len(cases) >= 4
    for case in cases:
        assert case.is_right(case.answer)
        assert not case.is_right("")
        assert not case.is_right(case.answer[: len(case.answer) * 2 // 3])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if held_out_cases(kind, 1)[0].messages])
def test_answer_in_a_chat_ends_its_thinking_once(kind: str) -> None:
    case = next(case for case in held_out(kind) if case.messages)
    assert not case.is_right(spoken(case.answer))
    assert not case.is_right(f"</think>{case.answer}")
    if case.answer.startswith(f"\n{THINK_END}"):
        silent = replace(case, thinking=False)
        assert silent.is_right(spoken(case.answer))
        assert not silent.is_right(case.answer)


def test_sum_without_its_work_is_wrong() -> None:
    for case in held_out(arithmetic.KIND):
        assert not case.is_right(f"zzz</think>{spoken(case.answer)}")


def test_sums_and_products_with_swapped_operands_are_one_case() -> None:
    keys = {arithmetic.make(random.Random(seed)).key for seed in range(20_000)}
    pairs = [(key, re.fullmatch(r"(\d+)([+*])(\d+)", key)) for key in keys]
    swapped = {f"{pair[3]}{pair[2]}{pair[1]}" for key, pair in pairs if pair and pair[1] != pair[3]}
    assert len(pairs) > 10_000
    assert not keys & swapped


def test_module_is_wrong_with_empty_or_cut_or_repeated_functions() -> None:
    for case in held_out(modules.KIND):
        whole = case.prompt + case.answer
        empty = re.sub(r"^(def .*:)\n(?: .*\n|\n(?= ))+", r"\1\n    pass\n", whole, flags=re.M)
        assert empty.count("    pass\n") == len(case.functions)
        assert not case.is_right(empty.removeprefix(case.prompt))
        assert not case.is_right(case.answer[: len(case.answer) * 9 // 10])
        assert not case.is_right(case.answer + case.answer[len(case.answer) * 2 // 3 :])


def test_training_sees_no_held_out_case() -> None:
    keys = {(kind, case.key) for kind in KINDS for case in held_out_cases(kind, 150)}
    seen = list(itertools.islice(training_cases(random.Random(0), WEIGHTS), 2000))
    assert not any(case.held_out for case in seen)
    assert not keys & {(case.kind, case.key) for case in seen}
    assert {case.kind for case in seen} == set(KINDS)
    texts = "\n".join(prompt_of(case) + answer_of(case) for case in seen)
    heads = {re.findall(r"^def .*:$", case.prompt + case.answer, re.M)[0] for case in held_out_cases("functions", 150)}
    assert [head for head in heads if f"{head}\n" in texts] == []


def test_readme_prompt_is_trained() -> None:
    cases = (functions.make(random.Random(i)) for i in range(20_000))
    assert not next(case for case in cases if case.prompt == "def fibonacci(n):").held_out


def test_function_with_another_result_is_wrong_and_another_way_to_it_right() -> None:
    double = functions.Written("double", "double n", "def double(n):", "    return n * 2\n", ("signed",))
    assert double.is_right("def double(k):\n    return k + k\n")
    assert not double.is_right("def double(n):\n    return n ** 2\n")
    assert not double.is_right("def other(n):\n    return n * 2\n")


def test_function_that_never_ends_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_SECONDS", 0.5)
    assert functions.results("def f(n):\n    while True:\n        pass\n", "f", ["int"]) is None


def test_every_function_has_a_result_for_some_input() -> None:
    for function in functions.functions():
        source = function.written("f", {name: name for name, _ in function.parameters}, 3)
        space: dict[str, object] = {}
        exec(source, space)
        calls = functions.arguments([kind for _, kind in function.parameters])
        assert any(_succeeds(space["f"], call) for call in calls), function.names


def test_no_two_functions_begin_alike() -> None:
    bodies: dict[str, str] = {}
    for seed in range(5000):
        written = functions.draw(random.Random(seed))
        assert bodies.setdefault(written.head, written.body) == written.body


def _succeeds(call: object, arguments: list[object]) -> bool:
    assert callable(call)
    try:
        call(*arguments)
    except Exception:
        return False
    return True


@pytest.mark.parametrize(
    ("sign", "a", "b"), [("+", 457, 86), ("+", 950, 77), ("-", 403, 58), ("*", 47, 36), ("*", 905, 7), ("/", 282, 6)]
)
def test_arithmetic_is_worked_out_by_true_steps_that_give_the_result(sign: str, a: int, b: int) -> None:
    thoughts, result = arithmetic.work(sign, a, b)
    assert result == int(eval(f"{a}{sign}{b}"))
    steps = re.findall(r"^([\d+*/-]+)=(\d+)(?: r (\d+))?$", thoughts, re.MULTILINE)
    for left, value, rest in steps:
        assert eval(left.replace("/", "//")) == int(value)
        assert not rest or eval(left.replace("/", "%")) == int(rest)
    values = [value for _, value, _ in steps]
    if sign == "/":  # from the first digit on
        assert int("".join(values)) == result
    else:  # from the last digit on, each with its carry before it
        last = values[-len(str(result)) :] if len(values[-1]) == 1 else values[1 - len(str(result)) :]
        assert int(last[-1] + "".join(value[-1] for value in reversed(last[:-1]))) == result


def test_story_with_another_name_or_place_is_wrong() -> None:
    case = next(case for case in held_out(stories.KIND) if case.messages)
    story = case.answer
    name = re.findall(r"asked (\w+) for", story)[0]
    other = "Quinn" if name != "Quinn" else "Rosa"
    assert not case.is_right(story.replace(f"{name} came", f"{other} came"))
    assert not case.is_right(story.replace(f"{name} came to", f"{name} came from Paris to Rome and"))


def test_story_of_another_animal_is_wrong() -> None:
    for case in (case for case in held_out(stories.KIND) if case.messages):
        animal = re.findall(r"time, an? (\w+) named", case.answer)[0]
        assert not case.is_right(case.answer.replace(animal, "toaster"))
        assert not case.is_right(case.answer.replace(animal, "cow"))


def test_template_renders_alike_in_pymtp_and_in_training(demo: Path) -> None:
    template = ChatTemplate(Model(demo, vocab_only=True), template_source())
    for kind in KINDS:
        for case in held_out_cases(kind, 15):
            if case.messages:
                given = {"enable_thinking": case.thinking}
                ours = template.render(case.messages, tools=list(case.tools) or None, chat_template_kwargs=given)
                assert ours == prompt_of(case)


def test_template_of_the_shipped_file_is_the_source(demo: Path) -> None:
    with Model(demo, vocab_only=True) as model:
        assert model.chat_template == template_source()


def test_template_keeps_the_thinking_after_the_last_of_two_equal_questions(demo: Path) -> None:
    question = {"role": "user", "content": "a"}
    first, second = ({"role": "assistant", "reasoning_content": text, "content": "b"} for text in ("c", "d"))
    with Model(demo, vocab_only=True) as model:
        prompt = ChatTemplate(model, template_source()).render([question, first, question, second])
    assert "<think>\nd\n</think>" in prompt
    assert "<think>\nc" not in prompt


def test_template_calls_no_methods_and_has_two_filters() -> None:
    # llama.cpp's parser has no methods of lists; its server does not start with a template that calls one
    tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template_source())
    called = {node.node.attr for node in tree.find_all(nodes.Call) if isinstance(node.node, nodes.Getattr)}
    assert called == set()
    assert {node.name for node in tree.find_all(nodes.Filter)} == {"items", "tojson"}


def test_thinking_that_is_switched_off_ends_in_the_prompt() -> None:
    case = next(case for case in held_out("facts") if case.thinking)
    silent = replace(case, thinking=False)
    assert prompt_of(silent) + answer_of(silent) == prompt_of(case) + answer_of(case)


def test_trained_calls_are_calls_for_pymtp() -> None:
    cases = [case for case in held_out_cases("tools", 60) if "<function=" in case.answer]
    assert len(cases) > 20
    for case in cases:
        form = OutputFormat(template_source(), "<think>\n", tools=read_tools(case.tools))
        (call,) = form.parse(case.answer).tool_calls
        assert case.answer.count(f"<function={call.name}>") == 1
