"""Jinja as transformers' apply_chat_template has it, in a sandbox: a model file is not to be trusted with more.

What a template does is counted (limits.py). This module imports jinja2, so it is imported where it is used.
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

from pymtp.chat.costs import filter_cost, method_cost, operator_cost
from pymtp.chat.limits import CALL, Budget, OverrunError, running, within

FORMAT = 1000  # characters for strftime_now: Python takes 256 times the memory
MAX_SOURCE = 2**20  # characters of a template: the longest of the field have 30,000


def compiled(source: str) -> jinja2.Template:
    """Compile a template.

    Raises jinja2.TemplateError, and whatever else a compiler may raise, for a source that is no template.
    """
    if len(source) > MAX_SOURCE:
        raise OverrunError(f"it has {len(source)} characters, and {MAX_SOURCE} are the most that is taken")
    return _Environment().from_string(source)


def rendered(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Make the text. Raises what the template raises, and OverrunError where it does too much."""
    return within(Budget(dict(variables)), template.generate(variables))


class _Generation(Extension):
    """{% generation %}…{% endgeneration %}, which marks for training what the assistant wrote. Here it is as a call
    block is: its text stands as it does without, and what is set within is not seen outside."""

    tags = {"generation"}  # noqa: RUF012 — as its base

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_whole"), [], [], body).set_lineno(line)

    def _whole(self, caller: Macro) -> str:
        text: str = caller()
        return text


class _Counted(CodeGenerator):
    """Makes code that counts: a step for each round of a loop, and the parts of lists and joined texts."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        # A statement, and a condition that holds: reading `environment.one_step` is a step.
        node.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("one_step")))
        if node.test is not None:
            node.test = nodes.And(nodes.EnvironmentAttribute("one_step"), node.test)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.joined(context, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self.write("environment.kept(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self.write("environment.kept(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        cuts = isinstance(node.arg, nodes.Slice)
        self.write("environment.cut(" if cuts else "")
        super().visit_Getitem(node, frame)
        self.write(")" if cuts else "")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        loads = node.ctx == "load"
        self.write("environment.kept(" if loads else "")
        super().visit_Tuple(node, frame)
        self.write(")" if loads else "")


class _Namespace(Namespace):
    """Without a text of its own: namespaces may hold each other."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Environment(ImmutableSandboxedEnvironment):
    """With the options, filters and functions that the authors of templates rely on."""

    code_generator_class = _Counted
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=self._written
        )
        self.concat = self._concat  # type: ignore[method-assign]
        self.filters["tojson"] = _tojson
        self.filters = {name: _bounded(name, each) for name, each in self.filters.items()}
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now, "namespace": _Namespace}
        del self.globals["lipsum"]  # makes as much text as it is asked for, and no template has it

    @property
    def one_step(self) -> bool:
        """True. Reading it is a step of the template."""
        running().step()
        return True

    def kept(self, value: Any) -> Any:
        """A list or the like that the template wrote."""
        running().weigh(value)
        return value

    def cut(self, value: Any) -> Any:
        """A part of a text or a list: a copy."""
        running().write(len(value))
        return value

    def joined(self, context: Context, parts: Iterable[Any]) -> str:
        """Parts that `~` joins."""
        budget, found = running(), list(parts)
        budget.step()
        budget.write(sum(map(budget.weigh, found)))
        return markup_join(found) if context.eval_ctx.autoescape else str_join(found)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = running()
        budget.step()
        if operator == "+" and type(left) is str and type(right) is str:  # by far the most
            budget.write(len(left) + len(right))
            return left + right
        budget.write(operator_cost(budget, operator, left, right))
        value = super().call_binop(context, operator, left, right)
        if not isinstance(value, (str, bytes)):  # which were counted
            budget.weigh(value)
        return value

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 — as its base
        budget = running()
        budget.step(CALL)
        if args or kwargs:
            args = tuple(_whole(each) for each in args)
            budget.read(*args, *kwargs.values())
        budget.write(method_cost(budget, __obj, args, kwargs))
        return budget.checked(super().call(__context, __obj, *args, **kwargs), *args)

    def _concat(self, parts: Iterable[str]) -> str:
        found = list(parts)
        running().write(sum(map(len, found)))
        return "".join(found)

    @staticmethod
    def _written(value: Any) -> Any:
        """A value whose text comes next."""
        if not isinstance(value, str):
            with suppress(LookupError):  # a constant, while the template is compiled
                running().weigh(value)
        return value


def _bounded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that counts what it makes."""
    first = 1 if hasattr(call, "jinja_pass_arg") else 0  # the context or the like comes before the value

    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget = running()
        budget.step()
        before, value, more = args[:first], args[first], args[first + 1 :]
        if name == "join":
            value = _whole(value)
        budget.write(filter_cost(budget, name, value, more, kwargs))
        return budget.checked(call(*before, value, *more, **kwargs), value)

    if first:
        bounded.jinja_pass_arg = call.jinja_pass_arg  # type: ignore[attr-defined]
    return bounded


def _whole(value: Any) -> Any:
    """An iterator as a list: its parts are counted."""
    return list(value) if type(value) not in (str, bool, int, list, dict) and isinstance(value, Iterator) else value


def _refuse(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _now(format: str) -> str:
    if len(format) > FORMAT:
        raise OverrunError(f"it gives strftime_now {len(format)} characters, and {FORMAT} are the most that is taken")
    return datetime.now().strftime(format)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers' filter: jinja's own escapes <, > and &."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
