"""Tests of templates that would run or write without end: each is refused soon, in little memory."""

from __future__ import annotations

import re
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from pymtp import InvalidRequestError
from pymtp.chat import ChatTemplate
from pymtp.chat.render_budget import BASE_STEPS
from pymtp.model.model import Model

SECONDS = 12  # processor time of a test; on an idle core, no test takes more than two seconds
PART = 8  # an endless template is given one of so many parts of the steps, and of the seconds
BYTES = 2**28
LONG = "{% set x = 'a' * 10000 %}"
ITSELF = "{% set ns = namespace() %}{% set ns.a = ns %}"
GROWS = "{{% set ns = namespace(x={0}, y={0}) %}}{{% for i in range(99) %}}{1}{{% endfor %}}{{{{ ns.x }}}}"

ENDLESS = {
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that pass over all": "{% for i in range(9999) %}{% for j in range(9999) if false %}{% endfor %}{% endfor %}",
    "recursive loops": "{% for i in range(9999) recursive %}{{ loop(range(9999)) if loop.depth < 9 }}{% endfor %}",
    "a macro within itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a macro twice within itself": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(99) }}"
    ),
    "blocks twice within blocks": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 40
    + "x"
    + "{% endcall %}" * 40,
    "long lists in a loop": "{% for i in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "one long list in a loop": (
        "{% set x = range(99999) | list %}{% for i in range(99999) %}{{ x | sort | first }}{% endfor %}"
    ),
    "dicts in a loop": "{% for i in range(99999) %}{% set x = dict.fromkeys(range(99999)) %}{% endfor %}",
    "slices": "{{ [1] | slice(10 ** 9) | list }}",
    "a generator without end": "{{ [1] | slice(10 ** 15) | map('string') | select | join }}",
    "a search from the end": "{{ ('a' * 3000000).rfind('ab' + 'a' * 1000000) }}",
    "a split from the end": "{{ ('a' * 3000000).rsplit(sep='ab' + 'a' * 1000000) }}",
    "a strip of many characters": "{{ ('a' * 2000000).strip('b' * 2000000 + 'a') }}",
    "a trim of many characters": "{{ ('a' * 2000000) | trim('b' * 2000000 + 'a') }}",
    "a long word in short lines": "{{ ('a' * 1000000) | wordwrap(1) }}",
}
ENORMOUS = {
    "a text times a number": "{{ 'a' * 10 ** 9 }}",
    "a number times a text": "{% set x = 10 ** 9 * 'a' %}",
    "a list times a number": "{% set x = [1] * 10 ** 9 %}",
    "powers": "{% set x = 9 ** (9 ** 9) %}",
    "squares": GROWS.format(7, "{% set ns.x = ns.x * ns.x %}"),
    "x ~ x": GROWS.format("'ab'", "{% set ns.x = ns.x ~ ns.x %}"),
    "x + x": GROWS.format("'ab'", "{% set ns.x = ns.x + ns.x %}"),
    "[x] + [x]": GROWS.format("['ab']", "{% set ns.x = ns.x + ns.x %}"),
    "[x, x]": GROWS.format("['ab']", "{% set ns.x = [ns.x, ns.x] %}"),
    "(x, x)": GROWS.format("('ab',)", "{% set ns.x = (ns.x, ns.x) %}"),
    "{1: x, 2: x}": GROWS.format("{}", "{% set ns.x = {1: ns.x, 2: ns.x} %}"),
    "dict(a=x, b=x)": GROWS.format("{}", "{% set ns.x = dict(a=ns.x, b=ns.x) %}"),
    "[x, x] == [y, y]": GROWS.format(
        "['ab']", "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% if ns.x == ns.y %}{% endif %}"
    ),
    "arguments": "{% macro m() %}{% set ns.x = varargs %}{% endmacro %}"
    + GROWS.format("('a',)", "{{ m(ns.x, ns.x) }}"),
    "set blocks": GROWS.format("'ab'", "{% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = t %}"),
    "set blocks in a loop": LONG + "{% for i in range(99999) %}{% set t %}{{ x }}{% endset %}{% endfor %}",
    "macros": GROWS.format("'ab'", "{% macro t() %}{{ ns.x }}{{ ns.x }}{% endmacro %}{% set ns.x = t() %}"),
    "generation blocks": GROWS.format("'ab'", "{% generation %}{% set ns.x = ns.x ~ ns.x %}{% endgeneration %}"),
    "output": LONG + "{% for i in range(99999) %}{{ x }}{% endfor %}",
    "center": "{{ 'a' | center(10 ** 9) }}",
    "center of a constant": "{{ 'a' | center(1000000000) }}",
    "mapped center": "{{ ['a'] | map('center', 10 ** 9) | list }}",
    "ljust": "{{ 'a'.ljust(10 ** 9) }}",
    "rjust": "{{ 'a'.rjust(10 ** 9) }}",
    "zfill": "{{ 'a'.zfill(10 ** 9) }}",
    "bytes": "{{ 'a'.encode().ljust(10 ** 9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10 ** 9) }}",
    "translate": LONG + "{{ x.translate({97: x}) }}",
    "to_bytes": "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "replace": LONG + "{{ x.replace('a', x) }}",
    "replace nothing": LONG + "{{ x.replace('', x) }}",
    "the filter replace": LONG + "{{ x | replace('a', x) }}",
    "join": LONG + "{{ x.join(x) }}",
    "the filter join": LONG + "{{ range(99999) | join(x) }}",
    "the filter join of a view": LONG + "{{ dict.fromkeys(range(9999)).keys() | join(x) }}",
    "a joined view": LONG + "{{ x.join(dict.fromkeys(range(9999) | map('string')).keys()) }}",
    "a joined generator": LONG + "{{ x.join(range(9999) | map('string')) }}",
    "%d": "{{ '%1000000000d' % 1 }}",
    "%*d": "{{ '%*d' % (10 ** 9, 1) }}",
    "%s %s": LONG + "{{ ('%s' * 10000) % ((x,) * 10000) }}",
    "the filter format": "{{ '%1000000000d' | format(1) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "format {}": "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "indent": "{{ ('\n' * 9999) | indent(99999) }}",
    "tojson": "{{ [] | tojson(indent=10 ** 9) }}",
    "tojson deep": "{{ [[[[1] * 99999]]] | tojson(indent=9999) }}",
    "batch": "{{ [1] | batch(10 ** 9, 'a') | list }}",
    "wordwrap": LONG + "{{ ('a ' * 9999) | wordwrap(1, wrapstring=x) }}",
    "sum of lists": "{{ ([[1] * 9999] * 999) | sum(start=[]) }}",
    "hexadecimal": "{{ ('f' * 10 ** 6) | int(0, 16) // 3 }}",
    "a long attribute": ITSELF + "{{ ([ns] * 9999) | sort(attribute='a.' * 100000 ~ 'a') }}",
    "many attributes": ITSELF + "{{ ([ns] * 9999) | sort(false, false, 'a,' * 100000) }}",
    "a mapped attribute": ITSELF + "{{ ([ns] * 9999) | map(attribute='a.' * 10 ** 6 ~ 'a') | list }}",
    "round up": "{{ 5 | round(10 ** 9, 'ceil') }}",
    "round to thousands": "{{ 5 | round(-10 ** 9) }}",
    "a time": "{{ strftime_now('%1000000d' * 100000) }}",
    "an encoding": "{{ ('b' * 500000 ~ '-' ~ 'a' * 500000).encode().decode('punycode') }}",
    "slices of a text": "{% set x = 'a' * 15000000 %}" + "".join(f"{{% set x{i} = x[1:] %}}" for i in range(40)),
    "tuples within tuples": "{% set ns = namespace(x=()) %}"
    + "{% for i in range(99999) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {ns.x: 1} | length }}",
}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model(vocab_only=True) as model:
        yield model


def refusal(model: Model, source: str) -> str:
    """Return the message of the error with which a template is refused."""
    with pytest.raises(InvalidRequestError, match="the chat template") as refused:
        ChatTemplate(model, source).render([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
    return str(refused.value)


@pytest.mark.parametrize("about", ENDLESS)
def test_endless_template_is_refused_soon(model: Model, monkeypatch: pytest.MonkeyPatch, about: str) -> None:
    monkeypatch.setattr("pymtp.chat.render_budget.BASE_STEPS", BASE_STEPS // PART)
    begun = time.process_time()
    assert re.search("too many steps|recursion", refusal(model, ENDLESS[about]))
    assert time.process_time() - begun < SECONDS / PART


@pytest.mark.parametrize("about", ENORMOUS)
def test_template_with_enormous_output_is_refused_in_little_memory(model: Model, about: str) -> None:
    tracemalloc.start()
    try:
        begun = time.process_time()
        refusal(model, ENORMOUS[about])
        assert time.process_time() - begun < SECONDS
        assert tracemalloc.get_traced_memory()[1] < BYTES
    finally:
        tracemalloc.stop()


def test_template_that_is_slow_for_its_steps_is_refused_by_the_clock(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymtp.chat.render_budget.MAX_SECONDS", 0.0)
    assert "more than 0 seconds" in refusal(model, ENDLESS["loops in loops"])


def test_slow_template_that_refuses_a_chat_is_not_tried_with_all_rewrites_and_efforts(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = ChatTemplate(model, "{% for i in range(60000) %}{% endfor %}{{ raise_exception('not today') }}")
    attempts: list[object] = []
    render_once = template._render_once
    monkeypatch.setattr(template, "_render_once", lambda *args: attempts.append(args) or render_once(*args))
    monkeypatch.setattr("pymtp.chat.render_budget.MAX_SECONDS", 0.05)
    with pytest.raises(InvalidRequestError):
        template.render(
            [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}],
            chat_template_kwargs={"reasoning_effort": "high"},
        )
    assert len(attempts) < 14  # seven efforts, each with the original and the rewritten messages


def test_lipsum_is_not_available(model: Model) -> None:
    with pytest.raises(InvalidRequestError, match="lipsum"):
        ChatTemplate(model, "{{ lipsum(10 ** 9) }}").render([{"role": "user", "content": "a"}])


def test_long_chats_stay_within_the_limits(model: Model) -> None:
    source = (
        "{% macro text(content) %}{{ content | trim }}{% endmacro %}"
        "{% for message in messages[::-1] %}{% if text(message.content).startswith('b') %}{% endif %}{% endfor %}"
        "{% for message in messages %}{% set said = text(message.content) %}{% set n = messages | length %}"
        "{{- '<' + message.role + '>' + said + '\\n' }}{% endfor %}"
    )
    template = ChatTemplate(model, source)
    short = [{"role": "user", "content": "a"}] * 5_000
    assert template.render(short) == "<user>a\n" * 5_000
    long = "a" * 2**21
    assert template.render([{"role": "user", "content": long}]) == f"<user>{long}\n"
