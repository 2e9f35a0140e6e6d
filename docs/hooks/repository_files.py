"""Put files of the repository that pages link to, such as results of benchmarks, beside the pages of the site."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()(?:\.\./)+[^)\s#]+")
FOLDER = "repository"


def target(page: File, link: str) -> str | None:
    """Return the path in the repository that a page links to; None within docs/."""
    path = normpath(f"docs/{page.src_uri}/../{link}")
    return None if path.startswith("docs/") else path


def uri(path: str) -> str:
    """Return the file's place in the site. A Markdown file is there as text, since its own links lead elsewhere."""
    return f"{FOLDER}/{path}" + (".txt" if path.endswith(".md") else "")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the linked files."""
    for page in files.documentation_pages():
        for link in LINK.findall(page.content_string):
            path = target(page, link)
            if path and (ROOT / path).is_file() and not files.get_file_from_path(uri(path)):
                files.append(File.generated(config, uri(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links to the added files; a link to a folder becomes its text."""
    depth = "../" * page.file.src_uri.count("/")

    def moved(match: re.Match[str]) -> str:
        path = target(page.file, match[0])
        return f"{depth}{uri(path)}" if path and (ROOT / path).is_file() else match[0]

    markdown = LINK.sub(moved, markdown)
    return re.sub(
        r"(?<!!)\[([^]]*)\]\(((?:\.\./)+[^)\s#]+)\)",
        lambda match: match[1] if (ROOT / (target(page.file, match[2]) or "setup")).is_dir() else match[0],
        markdown,
    )
