"""Claims about the places where a prompt stops for checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

import hypothesis.strategies as st
from hypothesis import given

from pymtp.prefix_cache.checkpoints import MOST, Why, plan_stops


def plan(length: int, start: int = 0, *, most: int = 99, grain: int = 64, parting: int = 0, marks: Iterable[int] = ()):
    return plan_stops(length, start, least=64, grain=grain, n_ubatch=512, most=most, parting=parting, marks=marks)


def test_a_prompt_stops_at_its_parting_its_marks_its_end_and_every_so_many_tokens() -> None:
    assert plan(2248, parting=1300, marks=[200, 1900]) == {
        192: Why.MARK,
        512: Why.STEP,
        1280: Why.PARTING,
        1536: Why.STEP,
        1856: Why.MARK,
        2048: Why.STEP,
        2248: Why.END,
    }


def test_a_text_that_goes_on_stops_shortly_before_its_end_without_marks() -> None:
    assert plan(301, parting=64) == {64: Why.PARTING, 256: Why.TAIL}
    assert plan(401, start=100, grain=1) == {393: Why.TAIL}
    assert plan(301, parting=64, marks=[290]) == {64: Why.PARTING, 256: Why.MARK}


def test_a_new_text_stops_only_where_a_ubatch_ends() -> None:
    for length in (100, 2000, 40_001):
        assert all(place % 512 == 0 for place in plan(length))


def test_the_end_is_a_stop_where_a_text_goes_on_and_where_all_of_it_will_come_again() -> None:
    assert plan(1248) == {512: Why.STEP, 1024: Why.STEP}
    assert plan(1248, marks=[1248]) == {512: Why.STEP, 1024: Why.STEP, 1248: Why.END}
    assert plan(1248, start=100, grain=1) == {512: Why.STEP, 1024: Why.STEP, 1240: Why.TAIL}
    assert plan(1248, parting=700, marks=[900]) == {
        512: Why.STEP,
        640: Why.PARTING,
        896: Why.MARK,
        1024: Why.STEP,
        1248: Why.END,
    }


def test_what_matters_least_is_left_out_first() -> None:
    def reasons(most: int) -> set[Why]:
        return set(plan(2248, parting=1300, marks=[1900], most=most).values())

    assert reasons(0) == set()
    assert reasons(1) == {Why.PARTING}
    assert reasons(2) == {Why.PARTING, Why.MARK}
    assert reasons(3) == {Why.PARTING, Why.MARK, Why.END}
    assert list(plan(40_000, most=2)) == [39_424, 39_936]  # of the steps, the last


def test_a_prompt_stops_at_so_many_places_at_most() -> None:
    assert len(plan(40_000, marks=range(1000, 40_000, 1000))) == MOST


def test_steps_lie_further_apart_the_further_they_are_from_the_end() -> None:
    assert [place for place, why in plan(8192).items() if why == Why.STEP] == [4096, 6144, 7168, 7680]
    for length in (300, 2048, 40_000, 90_001):
        stops = [0, *plan(length)]
        for place in range(64, length, 97):  # where another text parts
            assert place - max(stop for stop in stops if stop <= place) <= 512 + 2 * (length - place)


def test_of_places_near_one_another_the_first_is_kept_which_does_for_all() -> None:
    assert plan(250, grain=1, marks=[100, 130, 163, 170]) == {100: Why.MARK, 170: Why.MARK}
    assert plan(250, grain=1, parting=220, marks=[200]) == {200: Why.MARK}
    assert plan(400, 190, grain=1, marks=[200, 260]) == {260: Why.MARK}


def test_nothing_is_kept_of_what_is_read_again_in_no_time() -> None:
    assert plan(60) == {}
    assert plan(2100, 2048) == {}
    assert plan(2040, 1984, parting=2039) == {}


@given(
    length=st.integers(1, 200_000),
    share=st.floats(0, 1),
    grain=st.sampled_from([1, 16, 64]),
    most=st.integers(0, 40),
    parting=st.integers(0, 200_000),
    marks=st.lists(st.integers(0, 200_000), max_size=5),
)
def test_stops_are_few_and_where_a_prompt_may_be_cut(
    length: int, share: float, grain: int, most: int, parting: int, marks: list[int]
) -> None:
    start = int(length * share)
    stops = plan(length, start, most=most, grain=grain, parting=parting, marks=marks)
    assert len(stops) <= min(most, MOST)
    assert list(stops) == sorted(stops)
    for place, why in stops.items():
        assert start + 64 <= place <= length
        assert place % grain == 0 or (place == length and why == Why.END)
