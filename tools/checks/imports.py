"""Counts the layers of pymtp's imports, and the arrows between its rooms.

    python tools/checks/imports.py

A room is a package of pymtp; a module at the root counts as a room of its own. Every import counts, also one within a
function or for type checkers. An arrow is a pair of rooms of which one imports the other, however often. The number of
layers is the length of the longest chain of arrows. Ends with status 1 where rooms import each other in a circle.
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


def room_arrows(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Return, for each room, the rooms that it imports."""
    rooms = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    arrows: dict[str, set[str]] = defaultdict(set)
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        for name in imported_names(path):
            top, _, rest = name.partition(".")
            used = rest.partition(".")[0]
            if top == package.name and used in rooms - {room}:
                arrows[room].add(used)
    return arrows


def layers(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Sort rooms into layers, from the ground up. Raises CycleError where rooms import each other in a circle."""
    heights: dict[str, int] = {}
    for room in TopologicalSorter(arrows).static_order():
        heights[room] = 1 + max((heights[used] for used in arrows.get(room, ())), default=-1)
    return [sorted(room for room, at in heights.items() if at == height) for height in range(max(heights.values()) + 1)]


def main() -> int:
    arrows = room_arrows()
    try:
        found = layers(arrows)
    except CycleError as error:
        print("a circle:", " -> ".join(error.args[1]))
        return 1
    for height, rooms in reversed(list(enumerate(found, 1))):
        print(f"{height:3}  {'  '.join(rooms)}")
    print(f"layers: {len(found)}, arrows between rooms: {sum(map(len, arrows.values()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
