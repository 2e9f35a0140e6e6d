"""Tests of the files of the pages: they have the right headers, and load nothing from other hosts."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
from helpers.servers import Server

STATIC = Path(str(files("pymtp.server"))) / "static"
NAMES = sorted(path.name for path in STATIC.iterdir() if path.is_file())
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def url(server: Server, name: str) -> str:
    return f"{server.url}/" + {"index.html": "", "figures.html": name}.get(name, f"static/{name}")


@pytest.mark.parametrize("name", NAMES)
def test_static_file_has_its_content_type_and_policy(server: Server, name: str) -> None:
    got = httpx.get(url(server, name))
    assert got.status_code == 200
    assert got.content == (STATIC / name).read_bytes()
    assert got.headers["content-type"].split(";")[0] == TYPES[name.rpartition(".")[2]]
    assert got.headers["x-content-type-options"] == "nosniff"
    policy = dict(part.strip().partition(" ")[::2] for part in got.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"  # forbids inline scripts and styles, and content from other hosts
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in got.headers["content-security-policy"]


KATEX = {"katex.min.js": "text/javascript", "katex.min.css": "text/css", "fonts/KaTeX_Main-Regular.woff2": "font/woff2"}


def test_katex_is_served_from_the_package(server: Server) -> None:
    for name, kind in KATEX.items():
        got = httpx.get(f"{server.url}/static/katex/{name}")
        assert (got.status_code, got.content) == (200, (STATIC / "katex" / name).read_bytes())
        assert got.headers["content-type"].split(";")[0] == kind
    assert httpx.get(f"{server.url}/static/katex/LICENSE").status_code == 404


def test_etag_of_a_cached_file_gives_304(server: Server) -> None:
    first = httpx.get(url(server, "chat.js"))
    assert first.headers["cache-control"] == "no-cache"
    known = {"If-None-Match": f'W/"other", {first.headers["etag"]}'}
    again = httpx.get(url(server, "chat.js"), headers=known)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert httpx.get(url(server, "chat.css"), headers=known).status_code == 200


@pytest.mark.parametrize(
    "path", ["static/", "static/none.js", "static/..%2fpages.py", "static/%2e%2e/pages.py", "index.html"]
)
def test_only_files_of_the_static_folder_are_served(server: Server, path: str) -> None:
    assert httpx.get(f"{server.url}/{path}").status_code == 404


def test_pages_need_no_api_key_but_the_figures_route_does(new_server: Callable[..., Server]) -> None:
    server = new_server(api_keys=("secret",)).ready()
    assert httpx.get(url(server, "index.html")).status_code == 200
    assert httpx.get(url(server, "figures.html")).status_code == 200
    assert httpx.get(url(server, "chat.js")).status_code == 200
    assert httpx.get(f"{server.url}/figures").status_code == 401
    assert httpx.get(f"{server.url}/figures", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_pages_can_be_disabled(new_server: Callable[..., Server]) -> None:
    server = new_server(page=False).ready()
    assert [httpx.get(url(server, name)).status_code for name in NAMES] == [404] * len(NAMES)
    assert httpx.get(f"{server.url}/figures").status_code == 200


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".html")])
def test_pages_have_no_inline_scripts_or_styles(name: str) -> None:
    text = (STATIC / name).read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text) == []


@pytest.mark.parametrize("name", NAMES)
def test_scripts_make_no_html_from_strings(name: str) -> None:
    text = (STATIC / name).read_text(encoding="utf-8")
    assert text.count("\n") <= 400
    assert max(map(len, text.split("\n"))) <= 140
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc", text)
    addresses = set(re.findall(r"https?://[\w.]+", text))
    assert addresses <= {"http://www.w3.org"}  # the XML namespace of SVG, which browsers do not fetch


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_imported_names_of_scripts_exist_and_are_used(name: str) -> None:
    text = (STATIC / name).read_text(encoding="utf-8")
    for names, source in re.findall(r'import \{([^}]+)\} from "\./([\w.]+)"', text):
        exported = (STATIC / source).read_text(encoding="utf-8")
        for each in (each.strip() for each in names.split(",")):
            assert re.search(rf"export (?:async )?(?:function\*?|class|const) {each}\b", exported), each
            assert len(re.findall(rf"\b{each}\b", text)) > 1, each
