"""Choice of the compiled module by the processor's features.

A build from source has one module, for the processor that it was built on. A wheel has the same module for several
levels of a processor family, compiled/<name>/_native.*. variants.json lists these levels, with the processor features
that each needs and its compiler flags, which vendor/variants.cmake uses. The highest level that the processor can run
is loaded, or the level that the environment variable PYMTP_CPU names.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

NATIVE = "native"  # the module of a build from source
_TABLE = Path(__file__).with_name("variants.json")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # other names of processor families


@dataclass(frozen=True)
class Variant:
    """A processor level that the module is compiled for.

    needs: the processor features that it needs, by the names of `_processor.features`.
    flags: the compiler options for it.
    """

    name: str
    needs: frozenset[str]
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """The chosen module: the variant's name, its folder, and all installed variants from the lowest up."""

    name: str
    folder: Path
    inside: tuple[str, ...]


def table(machine: str) -> list[Variant]:
    """Return the levels of a processor family (`platform.machine()`) from the lowest up; empty for other families."""
    family = machine.lower()
    rows = json.loads(_TABLE.read_text(encoding="utf-8")).get(_MACHINES.get(family, family), [])
    variants: dict[str, Variant] = {}
    for row in rows:
        below = variants[row["base"]].needs if "base" in row else frozenset()
        variants[row["name"]] = Variant(row["name"], below | frozenset(row["needs"]), tuple(row["flags"]))
    return list(variants.values())


def pick(variants: Sequence[Variant], features: Collection[str], asked: str = "") -> Variant:
    """Choose the highest variant that a processor with `features` can run, or the variant named `asked`.

    Raises ImportError if the processor can run no variant, and if the variant named `asked` is missing or cannot run.
    """
    usable = [variant for variant in variants if variant.needs.issubset(features)]
    if not usable:
        lowest = variants[0]
        raise ImportError(
            f"this processor lacks {_lacks(lowest, features)}, which this wheel of pymtp needs (its lowest level is "
            f"{lowest.name}). Compile pymtp for this processor, in the folder of its sources: pip install ."
        )
    if not asked:
        return usable[-1]
    named = {variant.name: variant for variant in variants}
    runs = ", ".join(variant.name for variant in usable)
    if asked not in named:
        raise ImportError(
            f"PYMTP_CPU is {asked!r}, which this pymtp was not compiled for: it has {', '.join(named)}. Set PYMTP_CPU "
            f"to one that runs here ({runs}), or leave it unset"
        )
    if named[asked] not in usable:
        raise ImportError(
            f"PYMTP_CPU is {asked!r}, but this processor lacks {_lacks(named[asked], features)}, or the operating "
            f"system does not let programs use it. Set PYMTP_CPU to one that runs here ({runs}), or leave it unset"
        )
    return named[asked]


def _lacks(variant: Variant, features: Collection[str]) -> str:
    return ", ".join(sorted(variant.needs.difference(features)))


def choose(package: Path, features: Callable[[], Collection[str]]) -> Choice:
    """Choose the module to load from `package`, the folder of pymtp.native.

    features: a function that returns the processor's features. It is called only if there are variants.

    Raises ImportError as `pick` does, if PYMTP_CPU names a level and pymtp was built from source, and if `package` is
    in a zip archive.
    """
    if not package.is_dir():
        raise ImportError(
            "pymtp cannot be imported from a zip archive: its native module must be a file. Install pymtp with pip"
        )
    asked = os.environ.get("PYMTP_CPU", "").strip()
    compiled = package / "compiled"
    inside = [variant for variant in table(platform.machine()) if any((compiled / variant.name).glob("_native.*"))]
    if not inside:
        if asked not in ("", NATIVE):
            raise ImportError(
                f"PYMTP_CPU is {asked!r}, but this pymtp was compiled from source, for the processor of the machine "
                "that compiled it. Leave PYMTP_CPU unset, or install a wheel with several levels"
            )
        return Choice(NATIVE, package, (NATIVE,))
    chosen = pick(inside, features(), asked)
    return Choice(chosen.name, compiled / chosen.name, tuple(variant.name for variant in inside))
