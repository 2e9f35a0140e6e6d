"""Tests of orders of samplers and of lists of breakers: the forms that clients write."""

from __future__ import annotations

from typing import Any

import pytest

from pymtp import SamplingParams
from pymtp.samplers import DEFAULT_BREAKERS, SAMPLERS, read_breakers, read_order


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("edskypmxt", SAMPLERS),
        ("kt", ("top_k", "temperature")),
        ("top_k;temperature", ("top_k", "temperature")),
        ("temperature", ("temperature",)),
        (["top-k", "minp", "TYPICAL_P", "temp", "nucleus"], ("top_k", "min_p", "typ_p", "temperature", "top_p")),
        (("xtc", "dry", "xtc"), ("xtc", "dry")),
        (["typ_p", "top_p", "typical_p"], ("typ_p", "top_p")),
        ([], ()),
        ("", ()),
    ],
)
def test_order_is_read_in_each_of_llama_cpps_forms(written: Any, read: tuple[str, ...]) -> None:
    assert read_order(written) == read
    assert SamplingParams(samplers=written).samplers == read


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["a", "b"], ("a", "b")),
        ((), ()),
        ('["\\n", ":"]', ("\n", ":")),
        (r'"\n", ":", "\"", "*"', DEFAULT_BREAKERS),
        ("[]", ()),
        ("end", ("end",)),
        ('"', ('"',)),
    ],
)
def test_breakers_may_be_a_list_or_its_json_text(written: Any, read: tuple[str, ...]) -> None:
    assert read_breakers(written) == read
    assert SamplingParams(dry_sequence_breakers=written).dry_sequence_breakers == read
