"""The Jinja environment of chat templates: that of transformers' apply_chat_template, in a sandbox and within limits.

A template comes with the model file, which is not trusted. Its operations are counted (render_budget.py). This module
imports jinja2, so others import it only where they use it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from pymtp.chat.render_budget import CALL_STEPS, RenderBudget, RenderLimitError, current_budget, render_within
from pymtp.chat.render_costs import filter_cost, method_cost, operator_cost

MAX_TIME_FORMAT = 1000  # characters of a format for strftime_now, for which Python takes 256 times the memory
MAX_SOURCE = 2**20  # characters of a template; the longest of published models have 30,000


def compile_source(source: str) -> jinja2.Template:
    """Compile a template.

    Raises jinja2.TemplateError, and whatever else the compilers may raise, for a source that is no template.
    """
    if len(source) > MAX_SOURCE:
        raise RenderLimitError(f"it has {len(source)} characters, and {MAX_SOURCE} are the most that is taken")
    return _Environment().from_string(source)


def render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Render a template. Raises whatever the template raises, and RenderLimitError where it does too much."""
    return render_within(RenderBudget(dict(variables)), template.generate(variables))


class _GenerationBlock(Extension):
    """The block {% generation %}…{% endgeneration %}, which marks the assistant's text for training.

    Its text is rendered as without the block. Variables that are set within are not seen outside, as in a call block.
    """

    tags = {"generation"}  # noqa: RUF012 — declared so by the base class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render_body"), [], [], body).set_lineno(line)

    def _render_body(self, caller: Macro) -> str:
        text: str = caller()
        return text


class _CountingCodeGenerator(CodeGenerator):
    """A code generator whose code counts a step for each round of a loop, and the items of lists and joined texts."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        # Reading `environment.count_step` counts a step: once as a statement, and once as a condition, which is true.
        node.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("count_step")))
        if node.test is not None:
            node.test = nodes.And(nodes.EnvironmentAttribute("count_step"), node.test)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.join_concat(context, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self.write("environment.count_literal(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self.write("environment.count_literal(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        cuts = isinstance(node.arg, nodes.Slice)
        self.write("environment.count_slice(" if cuts else "")
        super().visit_Getitem(node, frame)
        self.write(")" if cuts else "")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        loads = node.ctx == "load"
        self.write("environment.count_literal(" if loads else "")
        super().visit_Tuple(node, frame)
        self.write(")" if loads else "")


class _OpaqueNamespace(Namespace):
    """A namespace whose text does not show its values: namespaces may hold each other."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with the options, filters and functions that the authors of templates rely on."""

    code_generator_class = _CountingCodeGenerator
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols], finalize=self._count_text
        )
        self.concat = self._concat  # type: ignore[method-assign]
        self.filters["tojson"] = _tojson
        self.filters = {name: _count_filter(name, each) for name, each in self.filters.items()}
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "namespace": _OpaqueNamespace,
        }
        del self.globals["lipsum"]  # makes any amount of text, and no template uses it

    @property
    def count_step(self) -> bool:
        """Count a step of the template, and return True."""
        current_budget().step()
        return True

    def count_literal(self, value: Any) -> Any:
        """Count a list, dict or tuple that the template writes as a literal, and return it."""
        current_budget().weigh(value)
        return value

    def count_slice(self, value: Any) -> Any:
        """Count a slice of a text or a list, which is a copy, and return it."""
        current_budget().count_output(len(value))
        return value

    def join_concat(self, context: Context, parts: Iterable[Any]) -> str:
        """Join the operands of `~`, counted."""
        budget, texts = current_budget(), list(parts)
        budget.step()
        budget.count_output(sum(map(budget.weigh, texts)))
        return markup_join(texts) if context.eval_ctx.autoescape else str_join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = current_budget()
        budget.step()
        if operator == "+" and type(left) is str and type(right) is str:  # by far the most frequent
            budget.count_output(len(left) + len(right))
            return left + right
        budget.count_output(operator_cost(budget, operator, left, right))
        value = super().call_binop(context, operator, left, right)
        if not isinstance(value, (str, bytes)):  # texts were counted above
            budget.weigh(value)
        return value

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 — named so by the base class
        budget = current_budget()
        budget.step(CALL_STEPS)
        if args or kwargs:
            args = tuple(_as_list(each) for each in args)
            budget.count_input(*args, *kwargs.values())
        budget.count_output(method_cost(budget, __obj, args, kwargs))
        return budget.count_result(super().call(__context, __obj, *args, **kwargs), *args)

    def _concat(self, parts: Iterable[str]) -> str:
        texts = list(parts)
        current_budget().count_output(sum(map(len, texts)))
        return "".join(texts)

    @staticmethod
    def _count_text(value: Any) -> Any:
        """Count a value that is about to be written as text, and return it."""
        if not isinstance(value, str):
            with suppress(LookupError):  # the compiler writes constants while there is no budget
                current_budget().weigh(value)
        return value


def _count_filter(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter so that it counts its steps and its result."""
    first = 1 if hasattr(call, "jinja_pass_arg") else 0  # the context or the like comes before the value

    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        budget.step()
        before, value, more = args[:first], args[first], args[first + 1 :]
        if name == "join":
            value = _as_list(value)
        budget.count_output(filter_cost(budget, name, value, more, kwargs))
        return budget.count_result(call(*before, value, *more, **kwargs), value)

    if first:
        bounded.jinja_pass_arg = call.jinja_pass_arg  # type: ignore[attr-defined]
    return bounded


def _as_list(value: Any) -> Any:
    """Return an iterator as a list, whose items can be counted; any other value as it is."""
    return list(value) if type(value) not in (str, bool, int, list, dict) and isinstance(value, Iterator) else value


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > MAX_TIME_FORMAT:
        raise RenderLimitError(
            f"it gives strftime_now {len(format)} characters, and {MAX_TIME_FORMAT} are the most that is taken"
        )
    return datetime.now().strftime(format)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as transformers' filter does: jinja's own filter escapes <, > and &."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
