"""Whole numbers within bounds, as GBNF."""

from __future__ import annotations

MAX_DIGITS = 16  # of numbers without a bound
MOST = 10**30


def integers(least: int | None, most: int | None) -> str:
    """GBNF for the decimal numbers from `least` to `most`; without one of these, up to MAX_DIGITS digits, or one digit
    more than the other bound. Raises ValueError where there are none, and for bounds beyond MOST."""
    if any(bound is not None and abs(bound) > MOST for bound in (least, most)):
        raise ValueError(f"a bound is beyond {MOST:.0e}")
    far = max(10**MAX_DIGITS, *(10 * abs(bound) for bound in (least, most) if bound is not None), 0) - 1
    low, high = -far if least is None else least, far if most is None else most
    if low > high:
        raise ValueError(f"there is no integer from {low} to {high}")
    ways = []
    if low < 0:
        ways.append(f'"-" ( {_naturals(max(1, -high), -low)} )')
    if high >= 0:
        ways.append(_naturals(max(low, 0), high))
    return " | ".join(ways)


def _naturals(low: int, high: int) -> str:
    lengths = range(len(str(low)), len(str(high)) + 1)
    bounds = ((max(low, 10 ** (n - 1) if n > 1 else 0), min(high, 10**n - 1)) for n in lengths)
    return " | ".join(_digits(str(a), str(b)) for a, b in bounds)


def _digits(low: str, high: str) -> str:
    """Numbers of as many digits as both bounds have."""
    more = len(low) - 1
    if low[0] == high[0]:
        return f"[{low[0]}] ( {_digits(low[1:], high[1:])} )" if more else f"[{low[0]}]"
    zeros, nines = "0" * more, "9" * more
    first, last = int(low[0]), int(high[0])
    ways = []
    if low[1:] != zeros:
        ways.append(f"[{first}] ( {_digits(low[1:], nines)} )")
        first += 1
    if high[1:] != nines:
        ways.append(f"[{last}] ( {_digits(zeros, high[1:])} )")
        last -= 1
    if first <= last:
        ways.append(f"[{first}-{last}] [0-9]{{{more}}}" if more else f"[{first}-{last}]")
    return " | ".join(ways)
