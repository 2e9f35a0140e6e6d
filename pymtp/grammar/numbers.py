"""Numbers between bounds, and multiples of a number, as patterns and as a condition of an automaton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from pymtp.grammar.automaton import Expressions, NoTextError, expression_rule, pattern_sets
from pymtp.grammar.characters import range_grammar
from pymtp.grammar.keywords import NoValueError, SchemaError, is_number
from pymtp.grammar.pattern_syntax import parse_pattern
from pymtp.grammar.regex import node_grammar
from pymtp.grammar.rules import Rules

MAX_DIGITS = 16  # digits of an integer that the schema does not bound
MAX_INTEGER = 10**30  # the largest absolute value of a bound of integers
# Significant digits of a number with bounds: with more, a number below a bound could be the bound as a 64-bit float.
MAX_SIGNIFICANT = 15
MAX_MODULUS = 2000  # the largest multipleOf, in units of its last decimal; an automaton has a state for each remainder

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


@dataclass(frozen=True)
class Bound:
    """A bound of numbers. exclusive: whether the bound itself is outside."""

    value: Decimal
    exclusive: bool = False

    @property
    def sign(self) -> int:
        """Return -1, 0 or 1."""
        return (self.value > 0) - (self.value < 0)

    def __neg__(self) -> Bound:
        return Bound(-self.value, self.exclusive)


def read_bounds(schema: dict[str, Any], path: str) -> tuple[Bound | None, Bound | None]:
    """Return the lower and the upper bound that a schema sets. Raises SchemaError for bounds that are no numbers."""
    bounds: dict[str, list[Bound]] = {"minimum": [], "maximum": []}
    for name, found in bounds.items():
        exclusive = schema.get(f"exclusive{name.title()}")
        if name in schema:
            found.append(Bound(_decimal(schema[name], f"{path}/{name}"), exclusive is True))
        if f"exclusive{name.title()}" in schema and not isinstance(exclusive, bool):  # in draft 4, it was a boolean
            found.append(Bound(_decimal(exclusive, f"{path}/exclusive{name.title()}"), True))
    low = max(bounds["minimum"], key=lambda bound: (bound.value, bound.exclusive), default=None)
    high = min(bounds["maximum"], key=lambda bound: (bound.value, not bound.exclusive), default=None)
    return low, high


def _decimal(value: object, path: str) -> Decimal:
    if not is_number(value):
        raise SchemaError(f"{path} must be a number")
    return Decimal(repr(value))


def number_rule(
    schema: dict[str, Any], rules: Rules, *, whole: bool, excluded: Sequence[int | float], path: str
) -> str:
    """Return GBNF alternatives for the numbers that a schema's bounds and its multipleOf allow.

    whole: whether only integers are allowed. Other numbers are written without an exponent.
    excluded: numbers that are not allowed.

    Raises NoValueError if there is none, and SchemaError for bounds and factors that no grammar can express.
    """
    low, high = read_bounds(schema, path)
    try:
        condition = Multiple(_decimal(schema["multipleOf"], f"{path}/multipleOf")) if "multipleOf" in schema else None
        whole = whole or (condition is not None and not condition.decimals)
        if whole:
            patterns = [integer_pattern(_whole(low, ROUND_CEILING, 1), _whole(high, ROUND_FLOOR, -1))]
            if condition is None and not excluded:
                # The pattern of integers has only what GBNF writes in the same way, and parsing it takes longer.
                return patterns[0].replace("-(?:", '"-" (').replace("(?:", "(").replace("|", " | ")
        else:
            patterns = decimal_patterns(low, high)
        nodes = [parse_pattern(pattern) for pattern in patterns]
        if len(nodes) == 1 and condition is None and not excluded:
            return node_grammar(nodes[0], range_grammar)
        without = [parse_pattern(_value_pattern(value)) for value in excluded]
        sets = [ranges for node in (*nodes, *without) for ranges in pattern_sets(node)]
        if condition is not None:
            sets += [[(code, code)] for code in b"-.0123456789"]
        expressions = Expressions(sets)
        every = [*map(expressions.whole, nodes), *(expressions.without(expressions.whole(node)) for node in without)]
        return expression_rule(expressions, expressions.both(every), rules, range_grammar, condition)
    except NoTextError as error:
        raise NoValueError(f"{path}: {error}") from error
    except ValueError as error:
        raise error if isinstance(error, SchemaError) else SchemaError(f"{path}: {error}") from error


def _value_pattern(value: int | float) -> str:
    text = f"{Decimal(repr(value)).normalize():f}"
    return rf"{'-?' if not value else ''}{text.replace('.', '[.]')}{'0*' if '.' in text else r'(?:[.]0*)?'}"


def _whole(bound: Bound | None, rounding: str, step: int) -> int | None:
    """Return the integer nearest to a bound that is inside. step: 1 for a lower bound, -1 for an upper one."""
    if bound is None or (abs(bound.value) > MAX_INTEGER and bound.sign == -step):
        return None  # a bound that no integer reaches
    value = int(bound.value.to_integral_value(rounding))
    return value + step if bound.exclusive and value == bound.value else value


def integer_pattern(minimum: int | None, maximum: int | None, digits: int = MAX_DIGITS) -> str:
    """Return a pattern for the integers from `minimum` to `maximum`.

    If a bound is None, the integers have up to `digits` digits, or one digit more than the other bound. Raises
    ValueError if there is no integer between the bounds, and for bounds beyond MAX_INTEGER.
    """
    if any(bound is not None and abs(bound) > MAX_INTEGER for bound in (minimum, maximum)):
        raise ValueError(f"a bound is beyond {MAX_INTEGER:.0e}")
    far = max(10**digits, *(10 * abs(bound) for bound in (minimum, maximum) if bound is not None), 0) - 1
    low, high = -far if minimum is None else minimum, far if maximum is None else maximum
    if low > high:
        raise NoTextError(f"there is no integer from {low} to {high}")
    options = []
    if low < 0:
        options.append(f"-(?:{_naturals(max(1, -high), -low)})")
    if high >= 0:
        options.append(_naturals(max(low, 0), high))
    return "|".join(options)


def _naturals(low: int, high: int) -> str:
    lengths = range(len(str(low)), len(str(high)) + 1)
    bounds = ((max(low, 10 ** (n - 1) if n > 1 else 0), min(high, 10**n - 1)) for n in lengths)
    return "|".join(_same_length(str(a), str(b)) for a, b in bounds)


def _same_length(low: str, high: str) -> str:
    """Return a pattern for the numbers between two bounds with the same number of digits."""
    more = len(low) - 1
    if low[0] == high[0]:
        return f"[{low[0]}](?:{_same_length(low[1:], high[1:])})" if more else f"[{low[0]}]"
    zeros, nines = "0" * more, "9" * more
    first, last = int(low[0]), int(high[0])
    options = []
    if low[1:] != zeros:
        options.append(f"[{first}](?:{_same_length(low[1:], nines)})")
        first += 1
    if high[1:] != nines:
        options.append(f"[{last}](?:{_same_length(zeros, high[1:])})")
        last -= 1
    if first <= last:
        options.append(f"[{first}-{last}][0-9]{{{more}}}" if more else f"[{first}-{last}]")
    return "|".join(options)


def decimal_patterns(low: Bound | None, high: Bound | None) -> list[str]:
    """Return patterns that decimals without an exponent match together if they are between two bounds.

    Raises ValueError if there is no such number.
    """
    if low and high and (low.value > high.value or (low.value == high.value and (low.exclusive or high.exclusive))):
        raise NoTextError(f"there is no number from {low.value} to {high.value}, without the exclusive bounds")
    # Numbers have at most MAX_DIGITS digits before the point, so a bound beyond that allows all of them, or none.
    far = 10**MAX_DIGITS
    if (low and low.value >= far) or (high and high.value <= -far):
        raise ValueError(f"numbers of more than {MAX_DIGITS} digits are not supported")
    low = None if low is None or low.value <= -far else _shortened(low, ROUND_CEILING)
    high = None if high is None or high.value >= far else _shortened(high, ROUND_FLOOR)
    size = max((len(str(abs(int(bound.value)))) for bound in (low, high) if bound is not None), default=1)
    digits = max(0, MAX_SIGNIFICANT - size)
    patterns = []
    if low is not None:
        positive = _at_least(low, digits) if low.sign >= 0 else _unbounded(digits)
        patterns.append(positive if low.sign >= 0 else f"{positive}|-(?:{_at_most(-low, digits)})")
    if high is not None:
        negative = _unbounded(digits) if high.sign > 0 else _at_least(-high, digits)
        positive = _at_most(high, digits) if high.sign >= 0 else ""
        patterns.append(f"{positive}|-(?:{negative})" if positive else f"-(?:{negative})")
    return patterns or [f"-?(?:{_unbounded(digits)})"]


def _shortened(bound: Bound, rounding: str) -> Bound:
    """Return a bound. An exclusive one has at most MAX_SIGNIFICANT digits, rounded towards the numbers inside."""
    if not bound.exclusive:
        return bound
    return Bound(Context(prec=MAX_SIGNIFICANT, rounding=rounding).plus(bound.value), True)


def _unbounded(digits: int) -> str:
    return f"(?:0|[1-9][0-9]{{0,{MAX_SIGNIFICANT - 1}}}){_any_fraction(digits)}"


def _any_fraction(digits: int) -> str:
    return rf"(?:\.[0-9]{{1,{digits}}})?" if digits else ""


def _parts(bound: Bound) -> tuple[int, str]:
    """Return the integer part of a bound that is 0 or more, and the digits of its fraction without zeros at the end."""
    text = f"{bound.value:f}"
    return int(text.partition(".")[0]), text.partition(".")[2].rstrip("0")


def _at_least(bound: Bound, digits: int) -> str:
    whole, fraction = _parts(bound)
    options = []
    if (rest := _fraction_at_least(fraction, bound.exclusive, digits)) is not None:
        options.append(f"{whole}{rest}")
    larger = _naturals(whole + 1, max(10**MAX_SIGNIFICANT, 10 * (whole + 1)) - 1)
    options.append(f"(?:{larger}){_any_fraction(digits)}")
    return "|".join(options)


def _at_most(bound: Bound, digits: int) -> str:
    whole, fraction = _parts(bound)
    options = []
    if whole:
        options.append(f"(?:{_naturals(0, whole - 1)}){_any_fraction(digits)}")
    if fraction:
        options.append(rf"{whole}(?:\.(?:{_digits_at_most(fraction, bound.exclusive, digits)}))?")
    elif not bound.exclusive:
        options.append(rf"{whole}(?:\.0)?")
    return "|".join(options)


def _fraction_at_least(fraction: str, exclusive: bool, digits: int) -> str | None:
    if not fraction:
        if not exclusive:
            return _any_fraction(digits)
        return rf"\.[0-9]{{0,{digits - 1}}}[1-9]" if digits else None
    rest = _digits_at_least(fraction, exclusive, digits)
    return None if rest is None else rf"\.(?:{rest})"


def _digits_at_least(fraction: str, exclusive: bool, digits: int) -> str | None:
    """Return a pattern for the digits of the fractions that are at least as large as `fraction`."""
    if not fraction:
        if exclusive:
            return f"[0-9]{{0,{digits - 1}}}[1-9]" if digits > 0 else None
        return f"[0-9]{{0,{digits}}}" if digits > 0 else ""
    first, more = int(fraction[0]), max(digits - 1, 0)
    options = [f"[{first + 1}-9][0-9]{{0,{more}}}"] if first < 9 else []
    if (rest := _digits_at_least(fraction[1:], exclusive, digits - 1)) is not None:
        options.append(f"{first}(?:{rest})")
    return "|".join(options) or None


def _digits_at_most(fraction: str, exclusive: bool, digits: int) -> str:
    """Return a pattern for the digits of the fractions that are at most as large as `fraction`, which is not 0."""
    first, rest, more = int(fraction[0]), fraction[1:], max(digits - 1, 0)
    options = [f"[0-{first - 1}][0-9]{{0,{more}}}"] if first else []
    if rest:
        options.append(f"{first}(?:{_digits_at_most(rest, exclusive, digits - 1)})?")
    elif not exclusive:
        options.append(str(first))
    return "|".join(options)


class Multiple:
    """The condition that a decimal is a multiple of a number.

    decimals: the digits after the point that the multiples have at most.
    """

    def __init__(self, factor: Decimal) -> None:
        """Raise ValueError for a factor that is not above 0, or needs too many states."""
        if factor <= 0:
            raise ValueError("multipleOf must be more than 0")
        exponent = factor.normalize().as_tuple().exponent
        assert isinstance(exponent, int)
        self.decimals = max(0, -exponent)
        self._modulus = int(factor.scaleb(self.decimals))
        if self._modulus > MAX_MODULUS or self.decimals >= MAX_SIGNIFICANT:
            raise ValueError(f"multipleOf is more than {MAX_MODULUS} units of its last decimal")

    def start(self) -> object:
        """Return the state before the first character: the remainder, and the digits after the point, if any."""
        return 0, None

    def step(self, state: object, code: int) -> object | None:
        """Return the state after a character of a number."""
        assert isinstance(state, tuple)
        remainder, after = state
        if chr(code) == "-":
            return state
        if chr(code) == ".":
            return (remainder, 0) if self.decimals else None
        if after == self.decimals or not 0x30 <= code <= 0x39:
            return None
        return (10 * remainder + code - 0x30) % self._modulus, None if after is None else after + 1

    def accepts(self, state: object) -> bool:
        """Return whether a number that ends here is a multiple."""
        assert isinstance(state, tuple)
        remainder, after = state
        return not remainder * 10 ** (self.decimals - (after or 0)) % self._modulus


def is_multiple(value: int | float, factor: int | float) -> bool:
    """Return whether a number is a multiple of a factor, both as decimals."""
    try:
        return not Decimal(repr(value)) % Decimal(repr(factor))
    except ArithmeticError:  # the factor is 0, or a number is far too large
        return False
