"""Counts the layers of pymtp's packages, and the imports between them.

    python tools/checks/imports.py

A module at the root counts as a package of its own. Every import counts, also one in a function or for type checkers.
An arrow is a pair of packages, one of which imports the other, however often. The number of layers is the length of the
longest chain of arrows. Exits with status 1 if packages import each other in a cycle.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "pymtp"


def imported_names(path: Path) -> list[str]:
    """List the dotted names that a file imports."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def package_arrows(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Return the imported packages of each package."""
    packages = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    arrows: dict[str, set[str]] = defaultdict(set)
    for path in package.rglob("*.py"):
        package_name = path.relative_to(package).parts[0].removesuffix(".py")
        for name in imported_names(path):
            top, _, rest = name.partition(".")
            used = rest.partition(".")[0]
            if top == package.name and used in packages - {package_name}:
                arrows[package_name].add(used)
    return arrows


def layers(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Sort packages into layers, from the bottom up. Raises CycleError if packages import each other in a cycle."""
    heights: dict[str, int] = {}
    for package_name in TopologicalSorter(arrows).static_order():
        heights[package_name] = 1 + max((heights[used] for used in arrows.get(package_name, ())), default=-1)
    return [
        sorted(package_name for package_name, at in heights.items() if at == height)
        for height in range(max(heights.values()) + 1)
    ]


def main() -> int:
    arrows = package_arrows()
    try:
        found = layers(arrows)
    except CycleError as error:
        print("a cycle:", " -> ".join(error.args[1]))
        return 1
    for height, packages in reversed(list(enumerate(found, 1))):
        print(f"{height:3}  {'  '.join(packages)}")
    print(f"layers: {len(found)}, arrows between packages: {sum(map(len, arrows.values()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
