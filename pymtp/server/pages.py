"""The pages for people: a chat, and the engine's figures over time."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

router = APIRouter(include_in_schema=False)

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Nothing from elsewhere, nothing inline, and no text that a script could make into elements.
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Cache-Control": "no-cache",  # kept, and asked for again: another version may be installed
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class _File:
    content: bytes
    headers: dict[str, str]


def _read() -> dict[str, _File]:
    found = {}
    for path in files("pymtp.server").joinpath("static").iterdir():
        content = path.read_bytes()
        tag = f'"{sha256(content).hexdigest()[:32]}"'
        kind = _TYPES[path.name.rpartition(".")[2]]
        found[path.name] = _File(content, {**_HEADERS, "Content-Type": kind, "ETag": tag})
    return found


_FILES = _read()


@router.get("/")
async def chat_page(request: Request) -> Response:
    return _answer(request, "index.html")


@router.get("/favicon.ico")  # where browsers look for it beside an answer that is no page of ours
async def icon(request: Request) -> Response:
    return _answer(request, "icon.svg")


@router.get("/figures.html")
async def figures_page(request: Request) -> Response:
    return _answer(request, "figures.html")


@router.get("/static/{name}")
async def static_file(request: Request, name: str) -> Response:
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    file = _FILES.get(name)
    if file is None:
        raise HTTPException(404)
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.headers["ETag"] in known or "*" in known:
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)
