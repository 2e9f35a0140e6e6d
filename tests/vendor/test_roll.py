"""Tests of vendor/layout.py roll, from one small release to another."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import layout
import pytest
import trial
from helpers.vendored import NUMBERED, SOURCES, add_patch, make_checkout, make_sdist, read_patches
from patch_repo import write
from rewritten import REWRITTEN, rewritten_changes
from sources import LayoutError, Paths, Pin, read_tree

NEW = "llama_cpp_python-0.3.37.tar.gz"
CHANGES = "# Changelog\n\n## [0.3.37]\n\n- feat: update llama.cpp to ggml-org/llama.cpp@1234567ab\n"
NINE = {"old": "line 9\n", "new": "nine\n"}


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setattr("sources.SUBSET", ("CMakeLists.txt", "LICENSE", "ggml", "src"))
    return make_checkout(tmp_path)


def release(paths: Paths, changes: str = CHANGES, **files: str | None) -> str:
    """Put release 0.3.37 into the cache and return its sha256.

    The release has the files of SOURCES, replaced by those in `files`; None removes a file.
    """
    named = {name.replace("__", "/").replace("_", "."): text for name, text in files.items()}
    sources = {name: text for name, text in (SOURCES | named).items() if text is not None}
    return make_sdist(paths.cache / NEW, sources, **{"CHANGELOG.md": changes})


def roll(paths: Paths, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    """Run `roll 0.3.37` and return (exit status, output, error message)."""
    status = layout.main(["roll", "0.3.37", *options], paths)
    said = capsys.readouterr()
    return status, said.out, said.err


def told(out: str) -> list[list[str]]:
    """Return the rows of the table: a patch, its outcome, and a note if there is one."""
    lines = out.split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines if line[:4].isdigit()]


def git(work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    who = ["-c", "user.name=A Person", "-c", "user.email=a@example.org", "-c", "core.editor=true"]
    return subprocess.run(["git", *who, *arguments], cwd=work, capture_output=True, text=True)


def read_all(paths: Paths) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in paths.root.rglob("*") if file.is_file()}


# ── outcomes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_roll_of_a_clean_patch_moves_the_pin(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    add_patch(paths, "0001-nine", "src/llama.cpp", **NINE)
    sha256 = release(paths, ggml__ggml_c="other\n")
    status, out, _ = roll(paths, capsys)
    assert (status, told(out)) == (0, [["0001 nine", "clean"]])
    assert "1 clean, 0 merged, 0 conflict, 0 upstream has it; 0.0 minutes" in out
    assert b"@@ -6,7 +6,7 @@" in read_patches(paths)["0001-nine.patch"]
    assert Pin.read(paths.requirements) == Pin("llama-cpp-python==0.3.37", NEW, sha256, "1234567ab")
    layout.lay_out(paths)
    assert (paths.target / "ggml/ggml.c").read_text() == "other\n"
    assert (paths.target / "src/llama.cpp").read_text() == NUMBERED.replace("line 9\n", "nine\n")


def test_roll_rewrites_a_patch_whose_lines_moved(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    add_patch(paths, "0001-nine", "src/llama.cpp", **NINE)
    release(paths, src__llama_cpp="first\n" + NUMBERED)
    status, out, _ = roll(paths, capsys)
    assert (status, told(out)) == (0, [["0001 nine", "merged", "at other lines"]])
    assert b"@@ -7,7 +7,7 @@" in read_patches(paths)["0001-nine.patch"]
    layout.lay_out(paths)
    assert (paths.target / "src/llama.cpp").read_text() == "first\n" + NUMBERED.replace("line 9\n", "nine\n")


def test_roll_merges_a_patch_beside_changed_lines_and_reports_the_place(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    add_patch(paths, "0001-nine", "src/llama.cpp", **NINE)
    release(paths, src__llama_cpp=NUMBERED.replace("line 7\n", "seven\n"))
    status, out, _ = roll(paths, capsys)
    assert (status, told(out)) == (0, [["0001 nine", "merged", "other lines around it: src/llama.cpp:6"]])
    layout.lay_out(paths)
    assert "seven\nline 8\nnine\n" in (paths.target / "src/llama.cpp").read_text()


def test_roll_follows_a_renamed_file(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    add_patch(paths, "0001-nine", "src/llama.cpp", **NINE)
    release(paths, src__llama_cpp=None, src__core__model_cpp=NUMBERED)
    status, out, _ = roll(paths, capsys)
    assert (status, told(out)) == (0, [["0001 nine", "merged", "in another file"]])
    layout.lay_out(paths)
    assert "nine\n" in (paths.target / "src/core/model.cpp").read_text()


def test_roll_drops_a_patch_that_upstream_has_already_applied(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    add_patch(paths, "0001-nine", "src/llama.cpp", **NINE)
    add_patch(paths, "0002-three", "ggml/ggml.c", "line 3\n", "three\n")
    release(paths, src__llama_cpp=NUMBERED.replace("line 9\n", "nine\n"))
    status, out, _ = roll(paths, capsys)
    assert (status, told(out)) == (0, [["0001 nine", "upstream has it"], ["0002 three", "clean"]])
    assert list(read_patches(paths)) == ["0001-three.patch"]


def test_roll_reports_a_patch_whose_change_upstream_has_made_in_part(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    patch = add_patch(paths, "0001-both", "src/llama.cpp", **NINE)
    other = add_patch(paths, "0002-x", "ggml/ggml.c", "line 3\n", "three\n")
    patch.write_text(patch.read_text() + other.read_text().partition("\n\nWhy: a test.\n\n")[2])
    other.unlink()
    release(paths, src__llama_cpp=NUMBERED.replace("line 9\n", "nine\n"))
    _, out, _ = roll(paths, capsys, "--dry-run")
    assert told(out) == [["0001 both", "merged", "upstream has 2 of its 4 lines"]]


# ── conflicts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def torn(paths: Paths) -> Paths:
    """Make three patches: the first conflicts with the release, the second builds on it, the third conflicts too."""
    nine = NUMBERED.replace("line 9\n", "nine\n")
    add_patch(paths, "0001-nine", "src/llama.cpp", **NINE)
    add_patch(paths, "0002-ninth", "src/llama.cpp", "nine\n", "ninth\n", nine)
    add_patch(paths, "0003-three", "ggml/ggml.c", "line 3\n", "three\n")
    changed = "first\n" + NUMBERED.replace("line 9\n", "LINE 9\n")
    release(paths, src__llama_cpp=changed, ggml__ggml_c=NUMBERED.replace("line 3\n", "LINE 3\n"))
    return paths


def test_roll_reports_each_conflict_with_file_line_and_upstream_change(
    torn: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, said = roll(torn, capsys, "--dry-run")
    assert status == 1
    assert told(out) == [
        ["0001 nine", "conflict", "src/llama.cpp:10"],
        ["0002 ninth", "merged", "at other lines"],  # the first conflict is not reported again
        ["0003 three", "conflict", "ggml/ggml.c:3"],
    ]
    assert "  src/llama.cpp:10\n    -line 9\n    +LINE 9\n" in out
    assert "  ggml/ggml.c:3\n    -line 3\n    +LINE 3\n" in out
    assert "2 of 3 patches have conflicts: 0001 0003" in said


def test_roll_with_a_conflict_leaves_a_rebase_and_writes_nothing(
    torn: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_all(torn)
    status, _, said = roll(torn, capsys)
    assert status == 1
    assert "git add -A && git rebase --continue" in said
    assert {file: text for file, text in read_all(torn).items() if "/work/" not in file} == before
    assert git(torn.work, "diff", "--name-only", "--diff-filter=U").stdout.split() == ["src/llama.cpp"]
    assert (torn.work / "src/llama.cpp").read_text().split("\n")[9].startswith("<<<<<<< ")
    with pytest.raises(LayoutError, match="uncommitted changes"):
        write(torn)
    git(torn.work, "reset", "--hard")
    with pytest.raises(LayoutError, match="in the middle of a rebase"):
        write(torn)


def test_write_moves_the_pin_after_resolved_conflicts(torn: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    roll(torn, capsys)
    (torn.work / "src/llama.cpp").write_text("first\n" + NUMBERED.replace("line 9\n", "nine\n"))
    resolve(torn.work, stops_again=True)
    (torn.work / "ggml/ggml.c").write_text(NUMBERED.replace("line 3\n", "three\n"))
    resolve(torn.work, stops_again=False)
    write(torn)
    assert Pin.read(torn.requirements).version == "0.3.37"
    assert list(read_patches(torn)) == ["0001-nine.patch", "0002-ninth.patch", "0003-three.patch"]
    layout.lay_out(torn)
    layout.check(torn)
    assert (torn.target / "src/llama.cpp").read_text() == "first\n" + NUMBERED.replace("line 9\n", "ninth\n")
    assert (torn.target / "ggml/ggml.c").read_text() == NUMBERED.replace("line 3\n", "three\n")


def resolve(work: Path, *, stops_again: bool) -> None:
    """Resolve a conflict, and run the two commands that the message of `roll` names."""
    git(work, "add", "-A")
    assert (git(work, "rebase", "--continue").returncode != 0) == stops_again


def test_roll_reports_a_removed_file_and_other_files_of_its_name(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    add_patch(paths, "0001-nine", "src/llama.cpp", **NINE)
    release(paths, src__llama_cpp=None, tools__llama_cpp="int main() {}\n")  # the build does not read tools/
    status, out, _ = roll(paths, capsys, "--dry-run")
    assert (status, told(out)) == (1, [["0001 nine", "conflict", "src/llama.cpp"]])
    assert "  src/llama.cpp\n    is not in 0.3.37\n    files with that name: tools/llama.cpp\n" in out


def test_roll_reports_the_new_name_of_a_file(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    add_patch(paths, "0001-nine", "src/llama.cpp", **NINE)
    rewritten = "".join(f"line {n}\n" if n > 25 else f"other {n}\n" for n in range(1, 41))
    release(paths, src__llama_cpp=None, src__core_cpp=rewritten)
    _, out, _ = roll(paths, capsys, "--dry-run")
    assert "is not in 0.3.37\n    it is src/core.cpp now, 3" in out


def test_roll_reports_files_of_the_build_that_the_release_lacks(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    release(paths, CMakeLists_txt=None)
    status, out, said = roll(paths, capsys, "--dry-run")
    assert status == 1
    assert "CMakeLists.txt is not in 0.3.37, and the build reads it; no file has that name" in out
    assert "llama-cpp-python==0.3.37 has no CMakeLists.txt" in said


MTP = """
llama_model_qwen35::graph_mtp::graph_mtp(const llama_model & model, const llm_graph_params & params)
    : llm_graph_context(params) {
    if (layer.wo) {
        cur = build_norm(cur);
    }
}

void other() {
    cur = build_norm(cur);
}
"""


def roll_of_models(paths: Paths, capsys: pytest.CaptureFixture[str], old: str | None, new: str | None) -> str:
    """Roll from a release whose qwen35.cpp is `old` to one where it is `new`, and return the output."""
    sources = SOURCES if old is None else SOURCES | {"src/models/qwen35.cpp": old}
    sha256 = make_sdist(paths.cache / Pin.read(paths.requirements).sdist, sources)
    pin = Pin.read(paths.requirements)
    Pin(pin.requirement, pin.sdist, sha256, pin.commit).write(paths.requirements)
    release(paths, **({} if new is None else {"src__models__qwen35_cpp": new}))
    status, out, _ = roll(paths, capsys, "--dry-run")
    assert status == 0
    return out


def test_roll_reports_a_changed_function_that_our_code_rewrites(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    new = MTP.replace("(cur);\n    }\n}", "(cur, model.norm);\n    }\n}")
    out = roll_of_models(paths, capsys, MTP, new)
    assert "graph_mtp in src/models/qwen35.cpp changed: pymtp/native/graphs/draft_block.cpp has its own version" in out
    assert "    -        cur = build_norm(cur);\n    +        cur = build_norm(cur, model.norm);\n" in out


def test_roll_is_silent_about_other_functions(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    new = MTP.replace("(cur);\n}\n", "(cur, model.norm);\n}\n")
    assert new != MTP
    assert "has its own version" not in roll_of_models(paths, capsys, MTP, "// moved\n" + new)


def test_roll_reports_a_removed_function_that_our_code_rewrites(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    out = roll_of_models(paths, capsys, MTP, None)
    assert "graph_mtp in src/models/qwen35.cpp is gone: pymtp/native/graphs/draft_block.cpp has" in out


def test_rewritten_functions_are_in_the_pinned_llama_cpp() -> None:
    tree = read_tree(Paths.default().target)
    changes = list(rewritten_changes(tree, {}))
    assert [sentence.partition(" in ")[0] for sentence, _ in changes] == [name for _, name, _ in REWRITTEN]
    assert all(len(diff) > 20 for _, diff in changes)  # whole functions


# ── dry runs and errors ───────────────────────────────────────────────────────────────────────────────────────────────


def test_roll_dry_run_changes_nothing(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    add_patch(paths, "0001-nine", "src/llama.cpp", **NINE)
    release(paths, src__llama_cpp="first\n" + NUMBERED)
    before = read_all(paths)
    status, out, _ = roll(paths, capsys, "--dry-run")
    assert (status, told(out)) == (0, [["0001 nine", "merged", "at other lines"]])
    assert read_all(paths) == before


def test_roll_refuses_to_overwrite_existing_work(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    release(paths)
    paths.work.mkdir()
    (paths.work / "notes").write_text("mine")
    status, _, said = roll(paths, capsys)
    assert (status, "work exists" in said) == (1, True)
    assert (paths.work / "notes").read_text() == "mine"


def test_roll_leaves_no_work_if_patches_do_not_apply_to_the_pin(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    add_patch(paths, "0001-broken", "src/llama.cpp", "line 9\n", "nine\n", NUMBERED.replace("line 8\n", "gone\n"))
    release(paths)
    status, _, said = roll(paths, capsys)
    assert (status, "0001-broken.patch does not apply" in said) == (1, True)
    assert not paths.work.exists()


def test_roll_reads_the_commit_from_the_packed_checkout(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    head = {".git/modules/vendor/llama.cpp/HEAD": "89abcdef01" * 4 + "\n", "CHANGELOG.md": CHANGES}
    make_sdist(paths.cache / NEW, SOURCES, **head)
    roll(paths, capsys)
    assert Pin.read(paths.requirements).commit == "89abcdef0"


def test_roll_asks_for_the_commit_of_a_release_without_one(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    release(paths, changes="# Changelog\n\n## [0.3.36]\n\n- update llama.cpp to ggml-org/llama.cpp@0c1e57098\n")
    status, _, said = roll(paths, capsys)
    assert (status, "does not say which llama.cpp it holds" in said, "--commit ID" in said) == (1, True, True)
    status, _, _ = roll(paths, capsys, "--commit", "fedcba987")
    assert (status, Pin.read(paths.requirements).commit) == (0, "fedcba987")


def test_roll_refuses_a_commit_that_contradicts_the_release(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    release(paths)
    status, _, said = roll(paths, capsys, "--commit", "fedcba987")
    assert (status, "it holds llama.cpp 1234567ab, not fedcba987" in said) == (1, True)


def test_roll_without_a_version_takes_the_newest_release(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf = tmp_path / "shelf"  # the only index of pip
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    for version in ("0.3.35", "0.3.37", "0.3.36"):
        make_sdist(shelf / f"llama_cpp_python-{version}.tar.gz", SOURCES, **{"CHANGELOG.md": CHANGES})
    assert layout.main(["roll"], paths) == 0
    assert Pin.read(paths.requirements).version == "0.3.37"
    assert layout.main(["roll"], paths) == 0
    assert "llama-cpp-python==0.3.37 is the pin already" in capsys.readouterr().out
    assert layout.main(["roll", "0.3.99", "--dry-run"], paths) == 1
    assert "the index has no llama-cpp-python==0.3.99" in capsys.readouterr().err


# ── build and tests ───────────────────────────────────────────────────────────────────────────────────────────────────

GCC = """
FAILED: CMakeFiles/llama.dir/src/llama-graph.cpp.o
{root}/vendor/llama.cpp/src/llama-graph.cpp:12:5: error: 'x' was not declared in this scope
{root}/vendor/../pymtp/native/kernels/attention.cpp:7:10: fatal error: ops.h: No such file or directory
   12 |     x = error: no
../../vendor/../pymtp/native/graphs/chain.cpp:9:1: error: expected ';'
/usr/bin/ld: {root}/vendor/../pymtp/native/graphs/sync.cpp:40: undefined reference to `llama_sync'
{root}/vendor/llama.cpp/ggml/src/ggml-cuda/top-k.cu(88): error: identifier "k" is undefined
CMake Error at CMakeLists.txt:64 (add_subdirectory):
"""


def test_build_errors_are_listed_with_patched_files_first(tmp_path: Path) -> None:
    assert trial.find_errors(GCC.format(root=tmp_path), tmp_path) == [
        "pymtp/native/kernels/attention.cpp:7: fatal error: ops.h: No such file or directory",
        "pymtp/native/graphs/chain.cpp:9: error: expected ';'",
        "pymtp/native/graphs/sync.cpp:40: undefined reference to `llama_sync'",
        "vendor/llama.cpp/src/llama-graph.cpp:12: error: 'x' was not declared in this scope",
        'vendor/llama.cpp/ggml/src/ggml-cuda/top-k.cu:88: error: identifier "k" is undefined',
        "CMakeLists.txt:64: CMake error (add_subdirectory):",
    ]


def test_roll_reports_file_and_line_of_a_failed_build(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    release(paths)
    (paths.root / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    error = f"{paths.root}/pymtp/native/kernels/norms.cpp:3:7: error: unknown type name 'block_q4'"
    (paths.root / "backend.py").write_text(f'print("""{error}""", flush=True)\nraise SystemExit(1)\n')
    status, _, said = roll(paths, capsys, "--build")
    assert status == 1
    assert "the build fails:\n  pymtp/native/kernels/norms.cpp:3: error: unknown type name 'block_q4'\n" in said
    assert Pin.read(paths.requirements).version == "0.3.37"  # the new state is kept, so that the user can repair it


def test_roll_with_test_fails_on_a_failing_test(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release(paths)
    monkeypatch.setattr(trial, "build", lambda root: (root / "built").touch())
    (paths.root / "test_it.py").write_text("import os\ndef test_it():\n    assert not os.path.exists('built')\n")
    (paths.root / "pytest.ini").write_text("[pytest]\n")
    status, out, said = roll(paths, capsys, "--test")
    assert (status, "layout: it builds" in out, "tests fail" in said) == (1, True, True)


def test_roll_dry_run_builds_nothing(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        roll(paths, capsys, "--dry-run", "--build")
    assert "--dry-run leaves nothing to build" in capsys.readouterr().err
