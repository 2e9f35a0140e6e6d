"""How much processor time the control groups of Linux let this process have: containers are bounded by it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Find the processors' time that this process may use, in processors: 1.5 for 150 ms of each 100 ms. None for no
    bound, and where the system has no control groups.

    The least of all levels counts: a group has no more than the group around it. root: where proc and sys are.

    Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst ("cpu.max") and scheduler/sched-bwc.rst.
    """
    found = [quota for folder in _folders(root) if (quota := _quota_of(folder)) is not None]
    return min(found, default=None)


def control_groups(root: Path = Path("/")) -> list[Path]:
    """Find the folders of this process's groups that may have a bound on processor time, from its own to the outermost,
    of both versions."""
    return list({folder.resolve(): None for folder in _folders(root) if (folder / "cpu.stat").is_file()})


def _folders(root: Path) -> Iterator[Path]:
    try:  # names of groups may be no text
        lines = os.fsdecode((root / "proc/self/cgroup").read_bytes()).split("\n")
    except OSError:
        return
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        number, names, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":  # version 2
            places = [mounts, mounts / "unified"]
        elif "cpu" in names.split(","):
            places = [mounts / names, mounts / "cpu", mounts / "cpu,cpuacct"]
        else:
            continue
        # a container may see its own group as the outermost, by whatever path its host knows it
        group = PurePosixPath("/", path)
        for place in places:
            yield from (place / str(level).lstrip("/") for level in (group, *group.parents))


def _quota_of(folder: Path) -> float | None:
    """Read a group's own bound, None for none."""
    try:
        if (file := folder / "cpu.max").is_file():  # "max 100000", or microseconds of each period
            quota, period = file.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 < int(period) else None
    except (OSError, ValueError):
        return None
