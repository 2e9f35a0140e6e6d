"""The Jinja environment of chat templates: like that of transformers' apply_chat_template, but in a limited sandbox.

A template comes from the model file, which is not trusted, so the template's operations are counted (render_budget.py).
This module imports jinja2, which is slow, so other modules import this one only inside the functions that use it.
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

MAX_TIME_FORMAT = 1000  # characters of a strftime_now format; Python needs 256 times its length in memory
MAX_SOURCE = 2**20  # characters of a template; the longest ones of published models have 30,000


def compile_source(source: str) -> jinja2.Template:
    """Compile a template.

    Raises RenderLimitError for a source that is too long, and jinja2.TemplateError or any other exception of the
    compilers for a source that is not a template.
    """
    if len(source) > MAX_SOURCE:
        raise RenderLimitError(f"the template has {len(source)} characters, and at most {MAX_SOURCE} are allowed")
    return _Environment().from_string(source)


def render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Render a template. Raises the template's own exceptions, and RenderLimitError if it exceeds its budget."""
    return render_within(RenderBudget(dict(variables)), template.generate(variables))


class _GenerationBlock(Extension):
    """The block {% generation %}…{% endgeneration %}, which marks the assistant's text for training.

    The text inside the block is rendered as if there were no block. But variables that are set inside the block are not
    visible outside, as in a call block.
    """

    tags = {"generation"}  # noqa: RUF012 — the base class declares `tags` in the same way

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render_body"), [], [], body).set_lineno(line)

    def _render_body(self, caller: Macro) -> str:
        text: str = caller()
        return text


class _CountingCodeGenerator(CodeGenerator):
    """A generator of template code that counts loop rounds, and the sizes of literals, slices and joined strings."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        # Reading the property `environment.count_step` counts a step and returns True. The loop's body reads it, and so
        # does the loop's filter, because the body does not run for items that the filter rejects.
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
        self._visit_within("count_literal", super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._visit_within("count_literal", super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        self._visit_within("count_literal" if node.ctx == "load" else "", super().visit_Tuple, node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        cuts = isinstance(node.arg, nodes.Slice)
        self._visit_within("count_slice" if cuts else "", super().visit_Getitem, node, frame)

    def _visit_within(self, method: str, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        """Write the code of a node as the argument of a method of the environment; "" for no method."""
        self.write(f"environment.{method}(" if method else "")
        visit(node, frame)
        self.write(")" if method else "")


class _OpaqueNamespace(Namespace):
    """A namespace whose text hides its values: the text of namespaces that contain each other could be huge."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with the options, filters and functions of transformers that chat templates need."""

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
        del self.globals["lipsum"]  # lipsum() writes any amount of text, and no chat template uses it

    @property
    def count_step(self) -> bool:
        """Return True. Reading this property counts a step of the template."""
        current_budget().step()
        return True

    def count_literal(self, value: Any) -> Any:
        """Count a list, dict or tuple that the template writes as a literal, and return it."""
        current_budget().weigh(value)
        return value

    def count_slice(self, value: Any) -> Any:
        """Charge a slice to the render budget, because slicing copies, and return the slice."""
        current_budget().count_output(len(value))
        return value

    def join_concat(self, context: Context, parts: Iterable[Any]) -> str:
        """Join the operands of `~`, and count the characters."""
        budget, texts = current_budget(), list(parts)
        budget.step()
        budget.count_output(sum(map(budget.weigh, texts)))
        return markup_join(texts) if context.eval_ctx.autoescape else str_join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = current_budget()
        budget.step()
        if operator == "+" and type(left) is str and type(right) is str:  # fast path: the most frequent case by far
            budget.count_output(len(left) + len(right))
            return left + right
        budget.count_output(operator_cost(budget, operator, left, right))
        value = super().call_binop(context, operator, left, right)
        if not isinstance(value, (str, bytes)):  # the characters of a string were counted above
            budget.weigh(value)
        return value

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 — the names of the base class
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
        """Count a value that the template is about to write into the prompt, and return the value."""
        if not isinstance(value, str):
            with suppress(LookupError):  # there is no budget when the compiler writes constants
                current_budget().weigh(value)
        return value


def _count_filter(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter in a function that counts the steps and the result of the filter."""
    first = 1 if hasattr(call, "jinja_pass_arg") else 0  # such filters take the context or environment before the value

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
            f"the format of strftime_now has {len(format)} characters, and at most {MAX_TIME_FORMAT} are allowed"
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
