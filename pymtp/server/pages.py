"""The web pages: a chat, and plots of the engine's statistics."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

router = APIRouter(include_in_schema=False)

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
}
# The policy forbids content from other hosts, inline scripts and styles, and HTML that scripts make from strings. The
# images of messages are data URLs.
_POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Cache-Control": "no-cache",  # browsers must revalidate a cached file, because an update may have changed it
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class _StaticFile:
    content: bytes
    headers: dict[str, str]


def _load_files() -> dict[str, _StaticFile]:
    """Read the files of the pages, by their paths below static/."""
    folder = Path(str(files("pymtp.server").joinpath("static")))
    paths = [path for path in folder.rglob("*.*") if path.suffix[1:] in _TYPES]  # without KaTeX's licence
    return {
        name: _static_file(name, path.read_bytes()) for path in paths if (name := path.relative_to(folder).as_posix())
    }


def _static_file(name: str, content: bytes) -> _StaticFile:
    tag = f'"{sha256(content).hexdigest()[:32]}"'
    kind = _TYPES[name.rpartition(".")[2]]
    return _StaticFile(content, {**_HEADERS, "Content-Type": kind, "ETag": tag})


_FILES = _load_files()


@router.get("/")
async def chat_page(request: Request) -> Response:
    return _file_response(request, "index.html")


@router.get("/favicon.ico")  # the path that browsers try for responses that link to no icon, such as JSON
async def icon(request: Request) -> Response:
    return _file_response(request, "icon.svg")


@router.get("/figures.html")
async def figures_page(request: Request) -> Response:
    return _file_response(request, "figures.html")


@router.get("/static/{name:path}")
async def static_file(request: Request, name: str) -> Response:
    return _file_response(request, name)


def _file_response(request: Request, name: str) -> Response:
    file = _FILES.get(name)
    if file is None:
        raise HTTPException(404)
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.headers["ETag"] in known or "*" in known:
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)
