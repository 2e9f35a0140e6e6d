"""Tests of vendor/layout.py on a source distribution of six small files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import layout
import pytest
from helpers.vendored import (
    NUMBERED,
    REPEATED,
    SDIST,
    SOURCES,
    add_patch,
    commit,
    make_checkout,
    make_sdist,
    read_patches,
)
from patch_repo import edit, write
from sources import LayoutError, Paths, Tree


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return make_checkout(tmp_path)


def age(paths: Paths) -> None:
    """Set the times of all laid-out files back by an hour, so that writes can be seen."""
    for file in paths.target.rglob("*"):
        os.utime(file, (0, file.stat().st_mtime - 3600))


def written_since(paths: Paths, times: dict[Path, float]) -> set[str]:
    now = laid_out_times(paths)
    return {file.relative_to(paths.target).as_posix() for file in now if now[file] != times.get(file)}


def laid_out_times(paths: Paths) -> dict[Path, float]:
    return {file: file.stat().st_mtime for file in paths.target.rglob("*") if file.is_file()}


# ── laying out ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_layout_without_patches_copies_the_needed_sources(paths: Paths) -> None:
    layout.lay_out(paths)
    assert (paths.target / "src/llama.cpp").read_text() == NUMBERED
    assert not (paths.target / "docs").exists()


def test_layout_applies_patches_in_the_order_of_their_names(paths: Paths) -> None:
    add_patch(paths, "0002-second", "src/llama.cpp", "one\n", "two\n", NUMBERED.replace("line 9\n", "one\n"))
    add_patch(paths, "0001-first", "src/llama.cpp", "line 9\n", "one\n")
    layout.lay_out(paths)
    assert (paths.target / "src/llama.cpp").read_text() == NUMBERED.replace("line 9\n", "two\n")


def test_layout_names_a_broken_patch_with_file_and_hunk(paths: Paths) -> None:
    add_patch(paths, "0001-good", "ggml/ggml.c", "line 3\n", "three\n")
    add_patch(paths, "0002-broken", "src/llama.cpp", "line 9\n", "nine\n", NUMBERED.replace("line 8\n", "gone\n"))
    with pytest.raises(LayoutError, match=r"0002-broken\.patch does not apply: src/llama\.cpp, hunk @@ -6,7 \+6,7 @@"):
        layout.lay_out(paths)
    assert not paths.target.exists()


def test_layout_rewrites_only_files_of_a_changed_patch(paths: Paths) -> None:
    add_patch(paths, "0001-a", "ggml/ggml.c", "line 3\n", "three\n")
    add_patch(paths, "0002-b", "src/llama.cpp", "line 3\n", "three\n")
    layout.lay_out(paths)
    age(paths)
    times = laid_out_times(paths)
    add_patch(paths, "0002-b", "src/llama.cpp", "line 3\n", "drei\n")
    layout.lay_out(paths)
    assert written_since(paths, times) == {"src/llama.cpp", "pymtp-layout.json"}


def test_layout_reverts_a_dropped_patch(paths: Paths) -> None:
    patch = add_patch(paths, "0001-a", "src/new.cpp", "", "int x;\n", "")
    patch.write_text(patch.read_text().replace("--- a/src/new.cpp", "new file mode 100644\n--- /dev/null"))
    layout.lay_out(paths)
    assert (paths.target / "src/new.cpp").read_text() == "int x;\n"
    patch.unlink()
    layout.lay_out(paths)
    assert not (paths.target / "src/new.cpp").exists()


def test_layout_of_an_unchanged_tree_needs_no_sources_and_no_git(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    add_patch(paths, "0001-a", "ggml/ggml.c", "line 3\n", "three\n")
    layout.lay_out(paths)
    (paths.cache / SDIST).unlink()
    monkeypatch.setenv("PATH", "")
    times = laid_out_times(paths)
    layout.lay_out(paths)
    assert written_since(paths, times) == set()


def test_layout_repairs_a_half_written_tree(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    layout.lay_out(paths)

    def interrupted(tree: Tree, directory: Path) -> int:
        (directory / "src/llama.cpp").write_text("half writ")
        raise KeyboardInterrupt

    patch = add_patch(paths, "0001-a", "ggml/ggml.c", "line 3\n", "three\n")
    with monkeypatch.context() as patched:
        patched.setattr(layout, "sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            layout.lay_out(paths)
    patch.unlink()  # the inputs are again those in the manifest of the first run
    layout.lay_out(paths)
    assert (paths.target / "src/llama.cpp").read_text() == NUMBERED


@pytest.mark.parametrize("file", ["src/llama.cpp", "src/added.cpp"])
def test_check_names_a_file_changed_by_hand(paths: Paths, file: str) -> None:
    layout.lay_out(paths)
    layout.check(paths)
    (paths.target / file).write_text("by hand\n")
    with pytest.raises(LayoutError, match=f"differs from pin \\+ patches in {file}"):
        layout.check(paths)


def test_check_requires_three_lines_of_context(paths: Paths) -> None:
    add_patch(paths, "0001-thin", "src/llama.cpp", "line 9\n", "nine\n", context=2)
    layout.lay_out(paths)
    with pytest.raises(LayoutError, match=r"0001-thin\.patch has fewer than 3 lines .* src/llama\.cpp, hunk @@ -7,5 "):
        layout.check(paths)


@pytest.mark.parametrize("line", [1, 3, 38, 40])
def test_check_accepts_shorter_context_at_the_edges_of_a_file(paths: Paths, line: int) -> None:
    add_patch(paths, "0001-edge", "src/llama.cpp", f"line {line}\n", "other\n")
    layout.lay_out(paths)
    layout.check(paths)


@pytest.mark.parametrize("line", [1, 40])
def test_check_requires_three_lines_of_context_on_the_side_away_from_the_edge_of_a_file(
    paths: Paths, line: int
) -> None:
    add_patch(paths, "0001-edge", "src/llama.cpp", f"line {line}\n", "other\n", context=2)
    layout.lay_out(paths)
    with pytest.raises(LayoutError, match="fewer than 3 lines"):
        layout.check(paths)


def test_check_refuses_a_patch_that_applies_at_other_lines(paths: Paths) -> None:
    moved = add_patch(paths, "0001-moved", "src/llama.cpp", "line 9\n", "nine\n")
    moved.write_text(moved.read_text().replace("@@ -6,7 +6,7 @@", "@@ -16,7 +16,7 @@"))
    with pytest.raises(LayoutError, match=r"0001-moved\.patch does not apply: .*@@ -16,7 .*: its lines are at 6"):
        layout.lay_out(paths)
    assert not paths.target.exists()


def test_layout_error_says_that_git_is_missing(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    add_patch(paths, "0001-a", "ggml/ggml.c", "line 3\n", "three\n")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LayoutError, match="git is needed"):
        layout.lay_out(paths)


# ── fetching ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def shelf(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty the cache, and make the returned empty folder the only index of pip."""
    shelf = tmp_path / "shelf"
    (paths.cache / SDIST).unlink()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    shelf.mkdir()
    return shelf


def test_damaged_cached_file_is_reported_and_downloaded_again(
    paths: Paths, shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sha256 = make_sdist(shelf / SDIST, SOURCES)
    paths.requirements.write_text(f"# llama.cpp commit: 1\nllama-cpp-python==0.3.36 --hash=sha256:{sha256}\n")
    (paths.cache / SDIST).write_bytes(b"cut off")
    layout.lay_out(paths)
    assert "is damaged; fetching it again" in capsys.readouterr().out
    assert (paths.target / "src/llama.cpp").read_text() == NUMBERED
    assert (paths.cache / SDIST).read_bytes() == (shelf / SDIST).read_bytes()


def test_source_distribution_with_another_hash_is_refused(paths: Paths, shelf: Path) -> None:
    sha256 = make_sdist(shelf / SDIST, SOURCES | {"LICENSE": "another\n"})
    with pytest.raises(LayoutError, match=rf"another {SDIST} than the pinned one(.|\n)*got +{sha256}"):
        layout.lay_out(paths)
    assert list(paths.cache.iterdir()) == []


def test_download_without_a_package_index_has_a_short_error(
    paths: Paths, shelf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    assert layout.main([], paths) == 1
    message = capsys.readouterr().err
    assert message.startswith("layout: pip reached no index that has llama-cpp-python==0.3.36\n")
    assert "Mend it: check the network" in message
    assert "Traceback" not in message


def test_python_without_pip_is_reported(
    paths: Paths, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = tmp_path / "bare" / ("Scripts" if os.name == "nt" else "bin") / "python"
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(LayoutError, match="has no pip"):
        layout.lay_out(paths)


# ── editing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_edit_and_write_keep_the_patches_byte_for_byte(paths: Paths) -> None:
    edit(paths)
    commit(paths.work, "src/llama.cpp", NUMBERED.replace("line 9\n", "nine\n"), "first: é\n\nWhy: a test.\n\nTwice.\n")
    commit(paths.work, "src/new.cpp", "a new file, its last line without an end")
    write(paths)
    before = read_patches(paths)
    assert list(before) == ["0001-first.patch", "0002-a-change.patch"]
    shutil.rmtree(paths.work)
    edit(paths)
    write(paths)
    assert read_patches(paths) == before


def test_write_adds_a_commit_and_drops_a_stale_patch(paths: Paths) -> None:
    edit(paths)
    commit(paths.work, "src/llama.cpp", NUMBERED.replace("line 9\n", "nine\n"), "graph: say nine, é\n\nWhy: a test.\n")
    add_patch(paths, "0001-stale", "ggml/ggml.c", "line 3\n", "three\n")
    write(paths)
    assert list(read_patches(paths)) == ["0001-graph-say-nine.patch"]
    text = read_patches(paths)["0001-graph-say-nine.patch"].decode()
    assert text == (
        "From: A Person <a@example.org>\nSubject: graph: say nine, é\n\nWhy: a test.\n\n"
        "diff --git a/src/llama.cpp b/src/llama.cpp\n--- a/src/llama.cpp\n+++ b/src/llama.cpp\n"
        "@@ -6,7 +6,7 @@ line 5\n line 6\n line 7\n line 8\n-line 9\n+nine\n line 10\n line 11\n line 12\n"
    )


def test_write_adds_context_until_a_hunk_is_unique(paths: Paths) -> None:
    edit(paths)
    lines = REPEATED.splitlines(keepends=True)
    lines[8] = "    c();\n"  # the third of five equal places: even with four lines of context, another place matches
    commit(paths.work, "src/graph.cpp", "".join(lines))
    write(paths)
    (patch,) = read_patches(paths).values()
    assert b"@@ -4,11 +4,11 @@" in patch


def test_write_gives_three_lines_of_context_even_if_one_is_unique(paths: Paths) -> None:
    add_patch(paths, "0001-thin", "src/llama.cpp", "line 9\n", "nine\n", context=1)
    edit(paths)
    write(paths)
    (patch,) = read_patches(paths).values()
    assert b"@@ -6,7 +6,7 @@" in patch


def test_write_refuses_uncommitted_work(paths: Paths) -> None:
    edit(paths)
    (paths.work / "src/llama.cpp").write_text("by hand\n")
    with pytest.raises(LayoutError, match="uncommitted changes"):
        write(paths)


def test_write_refuses_a_commit_without_a_reason(paths: Paths) -> None:
    edit(paths)
    commit(paths.work, "src/llama.cpp", NUMBERED.replace("line 9\n", "nine\n"), "only a subject")
    with pytest.raises(LayoutError, match=r"'only a subject' .* does not say why"):
        write(paths)


def test_write_refuses_commits_that_do_not_start_from_the_pinned_sources(paths: Paths) -> None:
    edit(paths)
    sha256 = make_sdist(paths.cache / SDIST, SOURCES | {"LICENSE": "another\n"})
    pin = f"# llama.cpp commit: 1\nllama-cpp-python==0.3.36 --hash=sha256:{sha256}\n"
    paths.requirements.write_text(pin)
    with pytest.raises(LayoutError, match="starts from other sources than the pin"):
        write(paths)
    assert paths.requirements.read_text() == pin


def test_edit_stops_at_a_failing_patch_with_advice(paths: Paths) -> None:
    add_patch(paths, "0001-good", "ggml/ggml.c", "line 3\n", "three\n")
    broken = add_patch(paths, "0002-broken", "src/llama.cpp", "nine\n", "9\n", NUMBERED.replace("line 9\n", "nine\n"))
    with pytest.raises(LayoutError, match=f"The 1 patches before it are commits(.|\n)*git am --reject {broken}"):
        edit(paths)
    log = subprocess.run(["git", "log", "--format=%s"], cwd=paths.work, capture_output=True, text=True, check=True)
    assert log.stdout.splitlines() == ["good", "llama.cpp 0c1e57098"]
