"""Benchmark reports with damage at every position."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from pymtp import InvalidRequestError
from pymtp.bench.report import Report

MEASUREMENTS = 1  # of a report, since only the first is damaged
WRONG: tuple[Any, ...] = ("x", None, [], 0)


def damaged_reports(whole: Any) -> Iterator[str]:
    """Yield the report with each value replaced by each kind of wrong value; of a list, the first item only."""
    text = json.dumps(whole)

    def within(value: Any) -> Iterator[str]:
        places = value.keys() if isinstance(value, dict) else range(min(1, len(value)))
        for place in list(places):
            kept = value[place]
            for wrong in WRONG:
                value[place] = wrong
                yield json.dumps(whole)
            value[place] = kept
            if isinstance(kept, (dict, list)):
                yield from within(kept)

    yield from within(whole)
    assert json.dumps(whole) == text


def count_refused_and_printed(kind: type[Report], whole: Any, path: Path) -> tuple[int, int]:
    """Return how many damaged reports of a kind are refused, and how many are read and printed in every format.

    Only the values that are read are damaged, and not those that were computed from them.
    """
    refused = printed = 0
    read = {"bench", *(field.name for field in fields(kind))}
    whole = {name: value for name, value in whole.items() if name in read}
    whole["measurements"] = whole["measurements"][:MEASUREMENTS]
    for text in damaged_reports(whole):
        path.write_text(text)
        try:
            report = kind.load(path)
        except InvalidRequestError:
            refused += 1
        else:
            for form in (report.as_json, report.as_csv, report.as_markdown, report.as_tables):
                form()
            printed += 1
    return refused, printed
