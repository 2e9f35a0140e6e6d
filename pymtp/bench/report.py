"""The report of a bench: what its reports of all kinds share, and how they are written as JSON and read again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from itertools import zip_longest
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from rich.table import Table as RichTable
from rich.text import Text

from pymtp.bench import table
from pymtp.bench.machine import machine
from pymtp.bench.table import SPREAD_NOTE, Cell, Column, Spread, Table
from pymtp.bench.text_pairs import LOOK_UP
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model
from pymtp.native.build_info import build_info
from pymtp.stats import Stats

R = TypeVar("R", bound="Report")
M = TypeVar("M")
K = TypeVar("K")

# figures that no report has (the tokens), or that those of earlier versions lack
LACKING: dict[str, Any] = {"token_ids": (), "outside_per_position": (), "thinking_tokens": 0, "predicted": {}}
LACKING |= {"drafted_by_text": 0, "accepted_by_text": 0, "drafted_per_position": ()}
LACKING |= dict.fromkeys(("queue_seconds", "time_to_first_token"), 0.0)

DRAFTS = ("drafted", "drafted_by_text", "accepted", "accepted_by_text")  # figures of stats, for drafts_by_source


@dataclass(frozen=True)
class Report:
    """All results of a bench, as in its JSON file.

    A bench names itself and its fields, and computes its cells (the rows of its tables, also in JSON and CSV), tables,
    notes and plot.

    settings: settings of the bench.
    model, machine, build: descriptions, see run_environment.
    left_out: a line about each missing measurement, with the reason.
    """

    settings: dict[str, Any]
    model: dict[str, Any]
    machine: dict[str, Any]
    build: Mapping[str, Any]
    left_out: list[str]
    measurements: list[Any]

    bench: ClassVar[str] = ""
    explained: ClassVar[str] = ""  # the meaning of the columns
    spreads: ClassVar[tuple[str, ...]] = ()  # names of figures in cells that are a Spread or None

    @classmethod
    def of(cls: type[R], measurements: list[Any], settings: dict[str, Any], **more: Any) -> R:
        """Make a report. more: all other fields."""
        return cls(settings, measurements=measurements, **more)

    def cells(self) -> list[Cell]:
        """Return the rows of the tables: figures of several measurements."""
        return []

    def tables(self) -> Sequence[Table]:
        """Build the tables."""
        return []

    def findings(self) -> list[str]:
        """Return notes to print below the tables, besides missing measurements, explanations and the environment."""
        return []

    def plot(self, path: Path) -> None:
        """Draw the report to a file."""

    @staticmethod
    def describe_start(group: Any, arm: str) -> str:
        """Describe a measurement that is about to start, for the progress bar."""
        return arm

    @staticmethod
    def describe_result(m: Any) -> str:
        """Describe a finished measurement in one line."""
        return f"round {m.round + 1}"

    def computed(self) -> dict[str, Any]:
        """Return the part of the JSON object that is computed from the rest."""
        return {"cells": [vars(cell) for cell in self.cells()]}

    def csv_lines(self) -> list[dict[str, Any]]:
        """Return the lines of the CSV: a cell each, where each of `spreads` becomes its median, low and high."""
        lines = []
        for cell in self.cells():
            line: dict[str, Any] = {}
            for name, value in vars(cell).items():
                if name in self.spreads:
                    line |= {f"{name}_{part}": value and getattr(value, part) for part in ("median", "low", "high")}
                else:
                    line[name] = value
            lines.append(line)
        return lines

    def notes(self) -> list[str]:
        """Return all notes to print below the tables."""
        notes = [f"left out: {line}" for line in self.left_out]
        return [*notes, *self.findings(), f"{SPREAD_NOTE}. {self.explained}", *self._environment()]

    def as_json(self) -> str:
        """Format the report as JSON, for `load`, with all figures of `stats`. Each list of numbers is on one line."""
        whole: dict[str, Any] = {"bench": self.bench, **asdict(self), **self.computed()}
        for entry, m in zip(whole["measurements"], self.measurements, strict=True):
            entry.pop("token_ids", None)
            if "stats" in entry:
                entry["stats"] = m.stats.as_dict()
        text = json.dumps(whole, indent=1, default=asdict)
        return re.sub(r"\[\n[-\d.,e\s]*\]", lambda match: "[" + " ".join(match[0][1:-1].split()) + "]", text)

    def as_csv(self) -> str:
        """Format the cells as CSV: speeds in tokens/s, times in seconds, sizes in bytes."""
        return table.as_csv(self.csv_lines())

    def as_markdown(self) -> str:
        """Format all tables and notes as Markdown."""
        return table.as_markdown(self.tables(), self.notes())

    def as_tables(self) -> list[RichTable | Text]:
        """Format all tables and notes for a terminal."""
        return table.as_tables(self.tables(), self.notes())

    @classmethod
    def load(cls: type[R], path: Path) -> R:
        """Load a report that as_json wrote.

        Raises InvalidRequestError for any other file, and for a report that cannot be printed in every format: many
        faults of a damaged file are found only when figures are computed.
        """
        try:
            whole = json.loads(path.read_text(encoding="utf-8-sig"))
            if not isinstance(whole, dict):
                raise ValueError("it is no JSON object")
            if whole["bench"] != cls.bench:
                raise ValueError(f"it is the report of a {whole['bench']} bench")
            report: R = _build(cls, whole)
            for form in (report.as_json, report.as_csv, report.as_markdown, report.as_tables):
                form()
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise InvalidRequestError(
                f"{path} cannot be read as the report of a {cls.bench} bench: {_fault(error)}"
            ) from error
        return report

    def _environment(self) -> list[str]:
        """Return two lines about the machine and the build."""
        devices = ", ".join(device["description"] for device in self.build["devices"])
        drivers = "".join(f", driver {gpu['driver']}" for gpu in self.machine["gpus"][:1])
        return [
            "{cpu}, {cores} cores; ".format(**self.machine) + f"devices: {devices}{drivers}; {self.machine['system']}",
            "pymtp {pymtp}, llama.cpp {llama_cpp_commit}, {compiler}".format(**self.build),
        ]


def _fault(error: Exception) -> str:
    """Say what is wrong with a file whose reading as a report failed."""
    match error:
        case OSError():
            return error.strerror or str(error)
        case json.JSONDecodeError():
            return f"it is not JSON, or was cut short, at line {error.lineno}"
        case UnicodeDecodeError():
            return "it is not text in UTF-8"
        case RecursionError():
            return "its lists are nested too deep"
        case KeyError():
            return f"it has no field {error.args[0]!r:.100}"
        case ValueError() if "bench" in str(error) or "object" in str(error):
            return str(error)
        case _:
            return "a field has a value that no bench writes"


def _build(kind: Any, value: Any) -> Any:
    """Build a value of a type from JSON: dataclasses within lists, tuples and dictionaries."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        types, values = get_type_hints(kind), LACKING | value
        return kind(**{field.name: _build(types[field.name], values[field.name]) for field in fields(kind)})  # type: ignore[operator]
    if origin in (list, tuple):
        return origin(_build(arguments[0], item) for item in value)
    if origin is dict:
        return {arguments[0](name): _build(arguments[1], item) for name, item in value.items()}
    if NoneType in arguments and is_dataclass(arguments[0]):
        return None if value is None else _build(arguments[0], value)
    return value


def run_environment(model: Model) -> dict[str, Any]:
    """Return the fields of a Report that describe the model, the machine and this build of pymtp."""
    names = ("architecture", "weight_type", "n_params", "n_ctx_train")
    return {"model": {name: getattr(model, name) for name in names}, "machine": machine(), "build": build_info()}


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Format the settings that all benches share, for the title of a table."""
    placing = "".join(f", {name}: {value}" for name, value in settings.get("placing", {}).items())
    return f"rounds: {settings['rounds']}, threads: {settings['threads']}{placing}"


def group_by(measurements: Sequence[M], key: Callable[[M], K], order: Callable[[K], Any]) -> dict[K, list[M]]:
    """Return the lists of measurements with the same key, by their keys, sorted by `order` of a key."""
    groups: dict[K, list[M]] = {}
    for m in measurements:
        groups.setdefault(key(m), []).append(m)
    return {found: groups[found] for found in sorted(groups, key=order)}


def paired_ratios(
    own: Sequence[M], others: Sequence[M], value: Callable[[M], float], group: Callable[[M], Any]
) -> Spread | None:
    """Compute the ratios of the values of measurements to that of the other measurement in the same group.

    others: at most one measurement of each group. Measurements without another one are left out.
    """
    values = {group(m): value(m) for m in others}
    return Spread.of([value(m) / values[group(m)] for m in own if group(m) in values])


def accepted_per_position(all_stats: Sequence[Stats]) -> list[float]:
    """Return, for the first, second, … draft of the head in a round, the share that was accepted, over all stats."""
    drafted = [sum(counts) for counts in zip_longest(*map(_drafted_per_position, all_stats), fillvalue=0)]
    accepted = [sum(counts) for counts in zip_longest(*(s.accepted_per_position for s in all_stats), fillvalue=0)]
    return [right / made for made, right in zip_longest(drafted, accepted, fillvalue=0)]


def _drafted_per_position(stats: Stats) -> tuple[int, ...]:
    # reports of earlier versions lack the field: all of their drafts are the head's
    depths = () if stats.drafted_per_position else stats.depths
    return stats.drafted_per_position or tuple(sum(d > i for d in depths) for i in range(max(depths, default=0)))


def synthetic_note(rates: Sequence[float] | None) -> list[str]:
    """Return the note of a report with synthetic acceptance; no note for rates that are None or empty."""
    if not rates:
        return []
    shown = ", ".join(f"{rate:g}" for rate in rates)
    return [
        f"SYNTHETIC: drafts were accepted at given rates ({shown}), regardless of the target's output. "
        "The text has no meaning; the speeds are those of a head with such an acceptance."
    ]


def forced_note(settings: Mapping[str, Any], predicted: Mapping[str, float]) -> list[str]:
    """Return the note of a report with forced text; no note for text that the target chose.

    settings: those of the bench, with forced_text, and with synthetic, the rates of the head's drafts.
    predicted: by kind of text, the share of its tokens that a look-up predicts, see text_pairs.predicted_share.
    """
    if not settings.get("forced_text"):
        return []
    rates = ", ".join(f"{rate:g}" for rate in settings["synthetic"])
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in predicted.items())
    return [
        f"FORCED TEXT ({settings['forced_text']}): the target computed, and a given text was taken as what it chose. "
        f"The head's drafts were right at given rates ({rates}), drafts from text where they equal the text.",
        f"tokens that a look-up of the {LOOK_UP} tokens before them predicts: {shares}",
    ]


def drafts_by_source(drafted: int, drafted_by_text: int, accepted: int, accepted_by_text: int) -> dict[str, Any]:
    """Return the fields of a cell about the sources of drafts: the share from text, and the acceptance of each source.

    The arguments are numbers of drafts; drafted and accepted count those of both sources.
    """

    def share(part: int, whole: int) -> float | None:
        return part / whole if whole else None

    return {
        "text_share": share(drafted_by_text, drafted) or 0.0,
        "text_accepted": share(accepted_by_text, drafted_by_text),
        "head_accepted": share(accepted - accepted_by_text, drafted - drafted_by_text),
    }


def source_columns(cells: Sequence[Cell]) -> list[Column]:
    """Return the columns about the sources of drafts; none if no drafts are from text."""
    if not any(cell.text_share for cell in cells):
        return []
    return [
        Column("from text", "text_share", ".0%"),
        Column("of text accepted", "text_accepted", ".0%"),
        Column("of head accepted", "head_accepted", ".0%"),
    ]
