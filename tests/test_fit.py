"""Claims about n_gpu_layers="auto": as many layers as fit, by a plan."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pymtp.fit import Plan, layers_that_fit
from pymtp.memory import DeviceMemory

ALL = 30  # layers, the output and the head among them


def scripted(weights: Sequence[int], shares: Sequence[int]) -> Plan:
    """A machine with a GPU for each share. Layers are taken from the last on, with K and V."""

    def plan(layers: int) -> list[DeviceMemory]:
        n = len(weights) if layers < 0 else layers
        taken = sum(weights[len(weights) - n :]) + (50 if n else 0)
        host = DeviceMemory("CPU", True, weights=10**9)
        return [host] + [
            DeviceMemory(f"GPU{i}", False, weights=taken * share // sum(shares)) for i, share in enumerate(shares)
        ]

    return plan


SIZES = st.lists(st.integers(1, 100), min_size=ALL, max_size=ALL)
SHARES = st.lists(st.integers(1, 5), min_size=1, max_size=3)
FREE = st.integers(-100, 4000)


def room(free: int, shares: Sequence[int]) -> dict[str, int]:
    return {f"GPU{i}": free for i in range(len(shares))}


@given(SIZES, SHARES, FREE)
def test_what_is_planned_fits_and_one_layer_more_does_not(weights: list[int], shares: list[int], free: int) -> None:
    plan = scripted(weights, shares)

    def fits(layers: int) -> bool:
        return all(m.host or m.total <= free for m in plan(layers))

    layers = layers_that_fit(plan, room(free, shares), ALL)
    assert layers == 0 or fits(layers)
    assert layers == -1 or not fits(layers + 1)


@given(SIZES, SHARES, FREE, st.integers(0, 500))
def test_more_memory_never_takes_fewer_layers(weights: list[int], shares: list[int], free: int, more: int) -> None:
    plan = scripted(weights, shares)
    less, larger = (layers_that_fit(plan, room(n, shares), ALL) % (ALL + 1) for n in (free, free + more))
    assert less <= larger


@given(st.lists(st.integers(0, 1000), min_size=ALL + 1, max_size=ALL + 1), st.integers(0, 1000))
def test_what_is_planned_fits_even_where_plans_do_not_grow(totals: list[int], free: int) -> None:
    def plan(layers: int) -> list[DeviceMemory]:
        return [DeviceMemory("GPU0", False, weights=totals[layers])]

    layers = layers_that_fit(plan, {"GPU0": free}, ALL)
    assert layers == 0 or totals[layers] <= free


def test_a_device_that_is_not_named_has_no_room() -> None:
    assert layers_that_fit(scripted([1] * ALL, [1, 1]), {"GPU0": 10**6}, ALL) == 0


def test_few_plans_are_made() -> None:
    asked = []
    plan = scripted([1] * 100, [1])

    def counted(layers: int) -> Sequence[DeviceMemory]:
        asked.append(layers)
        return plan(layers)

    assert layers_that_fit(counted, {"GPU0": 80}, 100) == 30
    assert len(asked) <= 8
