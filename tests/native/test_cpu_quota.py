"""Tests of CPU quotas of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymtp.native import cores
from pymtp.native.cores import control_groups, cpu_quota

V2 = "0::/docker/abc\n"
V1 = "9:name=systemd:/\n4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n"


def system(folder: Path, groups: str, files: dict[str, str]) -> Path:
    """Make a root folder in which proc/self/cgroup has the text `groups`, and sys/fs/cgroup has these files."""
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{n}": t for n, t in files.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def old(folder: str, quota: int, period: int = 100_000) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        (V2, {"docker/abc/cpu.max": "150000 100000\n"}, 1.5),
        (V2, {"docker/abc/cpu.max": "max 100000\n"}, None),
        (V2, {"docker/abc/cpu.max": "max 100000\n", "docker/cpu.max": "50000 100000\n"}, 0.5),
        (V2, {"docker/abc/cpu.max": "100000 100000\n", "docker/cpu.max": "400000 100000\n"}, 1),
        (V2, {"docker/abc/cpu.max": "400000 100000\n", "docker/cpu.max": "100000 100000\n"}, 1),
        (V2, {"cpu.max": "200000 100000\n"}, 2),  # a container sees its own group as the root
        ("0::/\n", {"cpu.max": "250000 50000\n"}, 5),
        ("0::/\n", {"unified/cpu.max": "250000 50000\n"}, 5),
        (V1, old("cpu,cpuacct/docker/abc", 50_000), 0.5),
        (V1, old("cpu/docker/abc", 50_000), 0.5),
        (V1, old("cpu,cpuacct", 300_000), 3),
        (V1, old("cpu,cpuacct/docker/abc", -1) | old("cpu,cpuacct/docker", 20_000, 10_000), 2),
        (V1 + V2, old("cpu,cpuacct/docker/abc", 100_000), 1),
        ("1:cpu:/\n0::/\n", old("cpu", -1), None),
        (V2, {}, None),
        (V2, {"docker/abc/cpu.max": "nonsense\n"}, None),
        (V1, old("cpu,cpuacct/docker/abc", 100_000, 0), None),
    ],
)
def test_cpu_quota_is_the_smallest_limit_of_all_levels_and_versions(
    tmp_path: Path, groups: str, files: dict[str, str], quota: float | None
) -> None:
    assert cpu_quota(system(tmp_path, groups, files)) == quota


def test_cpu_quota_is_none_without_control_groups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert control_groups(tmp_path) == []


def test_control_groups_are_all_levels_that_account_for_cpu_time(tmp_path: Path) -> None:
    group = (
        system(tmp_path, V2, {f"{name}cpu.stat": "nr_throttled 0\n" for name in ("docker/abc/", "")}) / "sys/fs/cgroup"
    )
    assert control_groups(tmp_path) == [group / "docker/abc", group]
    (group / "unified").symlink_to(group)
    assert control_groups(tmp_path) == [group / "docker/abc", group]


def test_cpu_quota_reads_group_names_that_are_not_utf8(tmp_path: Path) -> None:
    group = system(tmp_path, V2, {"cpu.max": "150000 100000\n", "cpu.stat": "nr_throttled 0\n"})
    (tmp_path / "proc/self/cgroup").write_bytes(b"nonsense\n0::/docker/\xff\xfe\n")
    assert cpu_quota(tmp_path) == 1.5
    assert control_groups(tmp_path) == [group / "sys/fs/cgroup"]


@pytest.mark.parametrize(("quota", "threads"), [(0.3, 1), (0.5, 1), (1.0, 1), (1.5, 2), (2.2, 2), (64.0, 8), (None, 8)])
def test_default_thread_count_is_the_quota_rounded_to_whole_cores(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, threads: int
) -> None:
    monkeypatch.setattr(cores, "physical_cores", lambda: 8)
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert cores.default_threads() == threads
