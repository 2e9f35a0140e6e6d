"""patches/ on the sources: applied in order by the build, edited by people as the commits of a git repository."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sources import LayoutError, Paths, Pin, Tree, fetch, read_pristine, read_tree, sync

MAX_CONTEXT = 20  # lines around a change; a place that twenty do not tell from another is found by its line number
COMMIT_DATE = "2000-01-01T00:00:00Z"  # no date is written into a patch; with a fixed one `edit` makes equal commits
PRISTINE_AUTHOR = "The pymtp authors <pymtp@localhost>"


def apply(tree: Tree, patches: Sequence[Path]) -> Tree:
    """`tree` with `patches` applied. Raises LayoutError naming the patch, file and hunk that does not apply."""
    if not patches:
        return tree
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name).resolve()
        sync(tree, directory)
        for patch in patches:
            _apply_one(directory, patch)
        return read_tree(directory)


def edit(paths: Paths) -> None:
    """Makes the git repository `paths.work`: the pristine sources, then one commit a patch.

    Raises LayoutError when the directory exists, or at the first patch that does not apply; the ones before it are
    commits then.
    """
    work, patches, pin = paths.work, paths.patches(), Pin.read(paths.requirements)
    if work.exists():
        raise LayoutError(f"{work} exists", f"python vendor/layout.py write, if it holds work; then rm -rf {work}")
    sync(read_pristine(fetch(paths, pin)), work)
    _git(work, "init", "--quiet", "--template=", "--initial-branch=main")
    _git(work, "add", "--all", "--force")
    _commit(work, PRISTINE_AUTHOR, f"llama.cpp {pin.commit}\n\nAs in {pin.sdist}.\n")
    for number, patch in enumerate(patches):
        author, message = _parse_head(patch)
        try:
            _apply_one(work, patch, "--index")
        except LayoutError as error:
            rest = " ".join(str(later.resolve()) for later in patches[number:])
            raise LayoutError(
                f"{error.wrong}\n  The {number} patches before it are commits in {work}.",
                f"cd {work} && git am --reject {rest}\n"
                "  After each conflict: git add -A && git am --continue. In the end: python vendor/layout.py write",
            ) from None
        _commit(work, author, message)
    print(f"layout: {work} holds {len(patches)} patches as commits; to write them back: python vendor/layout.py write")


def write(paths: Paths) -> None:
    """Writes patches/ from the commits in `paths.work`; a file's name comes from its number and subject.

    Raises LayoutError when the repository is missing, has uncommitted changes, does not start from the pinned sources,
    or holds a commit that cannot be said as a patch.
    """
    work = paths.work
    if not (work / ".git").exists():
        raise LayoutError(f"{work} is not there to write patches from", "python vendor/layout.py edit")
    if dirty := _git(work, "status", "--porcelain").rstrip():
        raise LayoutError(f"{work} has uncommitted changes:\n{dirty}", "git commit, or git stash, there")
    pristine = read_pristine(fetch(paths, Pin.read(paths.requirements)))
    first, *commits = _git(work, "rev-list", "--reverse", "HEAD").split()
    if _read_commit(work, first) != pristine:
        raise LayoutError(f"{work} starts from other sources than the pin", "rebase its commits on a fresh edit")
    fresh = dict(_format(work, number, commit) for number, commit in enumerate(commits, start=1))
    with tempfile.TemporaryDirectory() as name:
        sync(fresh, Path(name))
        if apply(pristine, sorted(Path(name).iterdir())) != _read_commit(work, "HEAD"):
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


# ── patch files ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _parse_head(patch: Path) -> tuple[str, str]:
    """(author, commit message) of a patch."""
    head, _, rest = patch.read_text(encoding="utf-8").partition("\n\n")
    head = re.sub(r"\n[ \t]+", " ", head)  # a long subject goes on in indented lines
    author = re.search(r"^From: (.+ <.+>)$", head, re.M)
    subject = re.search(r"^Subject: (?:\[PATCH[^]]*\] )?(.+)$", head, re.M)
    body = re.split(r"^(?:---$|diff --git )", rest, maxsplit=1, flags=re.M)[0].strip()
    if not author or not subject or not body:
        raise LayoutError(
            f"patches/{patch.name} has no author, subject or message",
            "begin it with 'From: NAME <EMAIL>', 'Subject: …', an empty line, and why it exists",
        )
    return author[1], f"{subject[1]}\n\n{body}\n"


def _format(work: Path, number: int, commit: str) -> tuple[str, bytes]:
    """(file name, content) of a commit's patch: nothing in it changes unless the commit's words or lines do."""
    show = _git(work, "show", "--no-patch", "--format=%f%n%an <%ae>%n%s%n%b", commit)
    slug, author, subject, body = show.split("\n", 3)
    if not body.strip():
        raise LayoutError(f"commit '{subject}' in {work} does not say why it exists", "git commit --amend, there")
    files = _git(work, "diff-tree", "-r", "--no-commit-id", "--name-only", "--no-renames", commit).splitlines()
    diffs = "".join(_diff(work, commit, file) for file in files)
    name = f"{number:04}-{slug}"[:57].rstrip("-.") + ".patch"  # as git format-patch cuts it
    return name, f"From: {author}\nSubject: {subject}\n\n{body.strip()}\n\n{diffs}".encode()


def _diff(work: Path, commit: str, file: str) -> str:
    """The change of one file: as few context lines as leave no doubt where each hunk goes, and no blob hashes."""
    before = _run_git(work, "show", f"{commit}^:{file}").stdout.decode()  # fails, with no output, for a new file
    for context in range(1, MAX_CONTEXT + 1):
        shape = ("-r", "-p", f"--unified={context}", "--no-commit-id", "--no-renames", "--inter-hunk-context=0")
        diff = _git(work, "diff-tree", *shape, commit, "--", file)
        if _hunks_have_one_place(diff, before):
            break
    return re.sub(r"^index [0-9a-f]+\.\.[0-9a-f]+.*\n", "", diff, flags=re.M)


def _hunks_have_one_place(diff: str, before: str) -> bool:
    lines = before.split("\n")
    for hunk in re.split(r"^@@ .*\n", diff, flags=re.M)[1:]:
        old = [line[1:] for line in hunk.split("\n") if line.startswith((" ", "-"))]
        if old and sum(lines[at : at + len(old)] == old for at in range(len(lines))) != 1:
            return False
    return True


# ── git ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _apply_one(directory: Path, patch: Path, *options: str) -> None:
    done = _run_git(directory, "apply", "--whitespace=nowarn", *options, str(patch.resolve()))
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
        "python vendor/layout.py edit (it goes as far as it can, and says how to go on from there)",
    )


def _commit(work: Path, author: str, message: str) -> None:
    name, _, email = author.rstrip(">").rpartition(" <")
    facts = {"NAME": name, "EMAIL": email, "DATE": COMMIT_DATE}
    identity = {f"GIT_{who}_{fact}": facts[fact] for who in ("AUTHOR", "COMMITTER") for fact in facts}
    _git(work, "commit", "--quiet", "--allow-empty", "--cleanup=verbatim", "--file=-", stdin=message, **identity)


def _read_commit(work: Path, commit: str) -> Tree:
    archive = _run_git(work, "archive", commit).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
        return {name: file.read() for name, file in files.items() if file}


def _git(directory: Path, *arguments: str, stdin: str = "", **env: str) -> str:
    """What a git command that ought to succeed prints. Raises LayoutError when it fails."""
    done = _run_git(directory, *arguments, stdin=stdin, **env)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise LayoutError(f"git {arguments[0]} failed in {directory}: {said}", "look at it there with git")
    return done.stdout.decode()


def _run_git(directory: Path, *arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[bytes]:
    """Runs git apart from the user's settings (signing, hooks, line ends) and from a repository around `directory`."""
    apart = {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(directory.parent),
        "LC_ALL": "C",  # _apply_one reads git's messages
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", *arguments], cwd=directory, env={**kept, **apart, **env}, input=stdin.encode(), capture_output=True
        )
    except FileNotFoundError:
        raise LayoutError("git is needed to apply patches/", "apt install git, or https://git-scm.com") from None
