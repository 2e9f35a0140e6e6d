"""Apply patches/ to the sources for the build, and edit them as commits of a git repository."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from git_repo import commit, commit_tree, create, git, read_commit, run_git
from hunks import MIN_CONTEXT, read_hunks, split_lines
from index import fetch
from sources import LayoutError, Paths, Pin, Tree, read_pristine, read_tree, sync

MAX_CONTEXT = 20  # lines of context; if they still match several places, the line number decides

Rule = Callable[[Path, Path], None]  # called with the directory and the next patch; raises LayoutError


def apply(tree: Tree, patches: Sequence[Path], *rules: Rule) -> Tree:
    """Return `tree` with `patches` applied.

    Raises LayoutError with the patch, file and hunk that does not apply, or that one of `rules` refuses.
    """
    if not patches:
        return tree
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name).resolve()
        sync(tree, directory)
        for patch in patches:
            for rule in rules:
                rule(directory, patch)
            _apply_one(directory, patch)
        return read_tree(directory)


def edit(paths: Paths) -> None:
    """Make the git repository `paths.work`: the pristine sources, then one commit per patch.

    Raises LayoutError if the directory exists, or at the first patch that does not apply; the earlier patches are then
    commits.
    """
    work, pin = paths.work, Pin.read(paths.requirements)
    refuse_work(work)
    pristine = read_pristine(fetch(paths, pin))
    create(work)
    commit_tree(work, "main", pristine, f"llama.cpp {pin.commit}\n\nAs in {pin.sdist}.\n")
    git(work, "reset", "--hard", "--quiet")
    patches = paths.patches()
    try:
        commit_patches(work, patches)
    except LayoutError as error:
        number = int(git(work, "rev-list", "--count", "HEAD")) - 1
        rest = " ".join(str(later.resolve()) for later in patches[number:])
        raise LayoutError(
            f"{error.wrong}\n  The {number} patches before it are commits in {work}.",
            f"cd {work} && git am --reject {rest}\n"
            "  After each conflict: git add -A && git am --continue. In the end: python vendor/layout.py write",
        ) from None
    print(f"layout: {work} holds {len(patches)} patches as commits; to write them back: python vendor/layout.py write")


def refuse_work(work: Path) -> None:
    if work.exists():
        raise LayoutError(f"{work} exists", f"python vendor/layout.py write, if it holds work; then rm -rf {work}")


def commit_patches(work: Path, patches: Sequence[Path]) -> None:
    """Add a commit for each patch. Raises LayoutError at the first one that does not apply."""
    for patch in patches:
        author, message = _parse_head(patch)
        _apply_one(work, patch, "--index")
        commit(work, author, message)


def write(paths: Paths) -> None:
    """Write patches/ from the commits in `paths.work`, and the pin if `roll` moved the patches to another release.

    The file name of a patch is made from its number and subject. Raises LayoutError if the repository is missing, has
    uncommitted changes or an unfinished rebase, does not start from the pinned sources, or has a commit that cannot be
    written as a patch.
    """
    work = paths.work
    if not (work / ".git").exists():
        raise LayoutError(f"{work} does not exist: it would hold the patches", "python vendor/layout.py edit")
    if dirty := git(work, "status", "--porcelain").rstrip():
        raise LayoutError(f"{work} has uncommitted changes:\n{dirty}", "run git commit or git stash there")
    if any((work / ".git" / name).exists() for name in ("rebase-merge", "rebase-apply", "sequencer")):
        raise LayoutError(f"{work} is in the middle of a rebase", "git rebase --continue or git am --continue there")
    first, *commits = git(work, "rev-list", "--reverse", "HEAD").split()
    pin = _pin_of(work, first, Pin.read(paths.requirements))
    pristine = read_pristine(fetch(paths, pin))
    if read_commit(work, first) != pristine:
        raise LayoutError(
            f"{work} starts from other sources than the pin",
            f"rm -rf {work} && python vendor/layout.py edit; copy its commits by git cherry-pick",
        )
    fresh = dict(_format(work, number, commit) for number, commit in enumerate(commits, start=1))
    with tempfile.TemporaryDirectory() as name:
        sync(fresh, Path(name))
        if apply(pristine, sorted(Path(name).iterdir())) != read_commit(work, "HEAD"):
            raise LayoutError(
                f"the patches do not add up to HEAD in {work}", "use plain commits: no merge, no mode, no binary file"
            )
    for stale in paths.patches():
        if stale.name not in fresh:
            stale.unlink()
            print(f"layout: removed patches/{stale.name}")
    for name, content in fresh.items():
        file = paths.root / "patches" / name
        if not file.exists() or file.read_bytes() != content:
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
            print(f"layout: wrote patches/{name}")
    if pin != Pin.read(paths.requirements):
        pin.write(paths.requirements)
        print(f"layout: the pin is {pin.requirement}, llama.cpp {pin.commit}")


def rolled_message(old: Pin, new: Pin) -> str:
    """Return the message of a root commit for rolled patches, from which `write` reads the new pin."""
    return f"llama.cpp {new.commit}\n\nRolled from {old.requirement}.\n\n{new.text}\n"


def _pin_of(work: Path, root: str, pin: Pin) -> Pin:
    """Return the pin that `roll` wrote to the root commit, if it was rolled from `pin`; otherwise `pin`."""
    message = git(work, "show", "--no-patch", "--format=%B", root)
    rolled = Pin.parse(message) if f"\nRolled from {pin.requirement}.\n" in message else None
    return rolled or pin


# ── patch files ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _parse_head(patch: Path) -> tuple[str, str]:
    """Return the author and the commit message of a patch."""
    head, _, rest = patch.read_text(encoding="utf-8").partition("\n\n")
    head = re.sub(r"\n[ \t]+", " ", head)  # a long subject continues in indented lines
    author = re.search(r"^From: (.+ <.+>)$", head, re.M)
    subject = re.search(r"^Subject: (?:\[PATCH[^]]*\] )?(.+)$", head, re.M)
    body = re.split(r"^(?:---$|diff --git )", rest, maxsplit=1, flags=re.M)[0].strip()
    if not author or not subject or not body:
        raise LayoutError(
            f"patches/{patch.name} has no author, subject or message",
            "begin it with 'From: NAME <EMAIL>', 'Subject: …', an empty line, and the reason for the patch",
        )
    return author[1], f"{subject[1]}\n\n{body}\n"


def _format(work: Path, number: int, commit: str) -> tuple[str, bytes]:
    """Return the file name and content of a commit's patch, which depend only on the commit's message and lines."""
    show = git(work, "show", "--no-patch", "--format=%f%n%an <%ae>%n%s%n%b", commit)
    slug, author, subject, body = show.split("\n", 3)
    if not body.strip():
        raise LayoutError(f"commit '{subject}' in {work} does not say why it exists", "git commit --amend, there")
    files = git(work, "diff-tree", "-r", "--no-commit-id", "--name-only", "--no-renames", commit).splitlines()
    diffs = "".join(_diff(work, commit, file) for file in files)
    name = f"{number:04}-{slug}"[:57].rstrip("-.") + ".patch"  # cut as by git format-patch
    return name, f"From: {author}\nSubject: {subject}\n\n{body.strip()}\n\n{diffs}".encode()


def _diff(work: Path, commit: str, file: str) -> str:
    """Return the diff of one file, with enough lines of context to make each place unique, and without blob hashes."""
    old = run_git(work, "show", f"{commit}^:{file}").stdout  # fails, with no output, for a new file
    before = split_lines(old.decode("utf-8", "surrogateescape"))
    for context in range(MIN_CONTEXT, MAX_CONTEXT + 1):
        shape = ("-r", "-p", f"--unified={context}", "--no-commit-id", "--no-renames", "--inter-hunk-context=0")
        diff = git(work, "diff-tree", *shape, commit, "--", file)
        if all(len(hunk.places(before)) == 1 for hunk in read_hunks(diff) if hunk.old):
            break
    return re.sub(r"^index [0-9a-f]+\.\.[0-9a-f]+.*\n", "", diff, flags=re.M)


def _apply_one(directory: Path, patch: Path, *options: str) -> None:
    done = run_git(directory, "apply", "--whitespace=nowarn", *options, str(patch.resolve()))
    if done.returncode == 0:
        return
    said = done.stderr.decode(errors="replace").strip().replace("error: ", "")
    where = said.replace("\n", "; ")
    if failed := re.search(r"patch failed: (.+):(\d+)", said):
        text = patch.read_text(encoding="utf-8")
        section = text[max(0, text.find(f"--- a/{failed[1]}\n")) :]
        hunk = re.search(rf"^@@ -{failed[2]}[, ].*$", section, re.M)
        where = f"{failed[1]}, hunk {hunk[0] if hunk else failed[2]}"
    raise LayoutError(
        f"patches/{patch.name} does not apply: {where}",
        "python vendor/layout.py edit (it stops at the patch that does not apply, and says how to go on)",
    )
