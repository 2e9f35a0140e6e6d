"""Images of other servers: fetched from the hosts that the server's options name, and from nowhere else.

A request must not make the server read what only the server can reach. So each host is looked up once, its addresses
are checked, and the connection goes to one of these very addresses. The same holds for each redirection.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

import httpx

from pymtp.errors import InvalidRequestError
from pymtp.server.settings import ANY_HOST, ImageHost, read_image_host
from pymtp.server.timeout import run_with_timeout
from pymtp.validation import shown

SECONDS = 10.0  # longest time for one image, with all redirections
MAX_REDIRECTIONS = 3
_PORTS = {"http": 80, "https": 443}
_HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "pymtp"}


class _Target(NamedTuple):
    """A URL whose host is allowed. is_named: whether the option has the host's own name, and no wildcard."""

    url: httpx.URL
    is_named: bool


class ImageFetcher:
    """Fetches the bytes of images from allowed hosts."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """hosts: as in ServerSettings.allow_image_urls."""
        self._hosts = {read_image_host(host) for host in hosts}
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, url: str, max_bytes: int) -> bytes:
        """Return the bytes of an image.

        Raises InvalidRequestError for a URL of another host, an address of a private network, too many bytes, an answer
        without an image, and if it takes longer than SECONDS.
        """
        try:
            return await run_with_timeout(SECONDS, self._fetch(url, max_bytes))
        except asyncio.TimeoutError as error:
            raise InvalidRequestError(f"{_about(url)} has not come within {SECONDS:g} seconds") from error

    async def _fetch(self, url: str, max_bytes: int) -> bytes:
        given: str | httpx.URL = url
        for _ in range(MAX_REDIRECTIONS + 1):
            answer = await self._get(self._target(given), max_bytes)
            if isinstance(answer, bytes):
                return answer
            given = answer
        raise InvalidRequestError(f"{_about(url)} is redirected more than {MAX_REDIRECTIONS} times")

    def _target(self, url: str | httpx.URL) -> _Target:
        """Return a URL if its host is allowed. Raises InvalidRequestError for others."""
        try:
            read = httpx.URL(url)
            port = read.port or _PORTS.get(read.scheme)
        except (httpx.InvalidURL, ValueError) as error:
            raise InvalidRequestError(f"{_about(url)} has no valid URL: {error}") from error
        if read.scheme not in _PORTS or not read.host or port is None:
            raise InvalidRequestError(f"{_about(url)} must have an http or https URL with a host")
        if read.userinfo:
            raise InvalidRequestError(f"{_about(read.copy_with(userinfo=b''))} must have no user name in its URL")
        if not self._hosts:
            raise InvalidRequestError(
                f"{_about(url)} is not fetched: send its bytes as a data URL, or start the server with "
                "--allow-image-urls HOST"
            )
        host = read.raw_host.decode().strip("[]").lower()
        own = None if port == _PORTS[read.scheme] else port
        if ImageHost(host, own) in self._hosts or ImageHost(host, port) in self._hosts:
            return _Target(read, is_named=True)
        if own is None and ImageHost(ANY_HOST, None) in self._hosts:
            return _Target(read, is_named=False)
        where = host if own is None else f"{host}:{own}"
        raise InvalidRequestError(f"{_about(url)} is not fetched: --allow-image-urls does not name {shown(where)}")

    async def _get(self, target: _Target, max_bytes: int) -> bytes | httpx.URL:
        """Return the bytes of an answer, or the URL to which it redirects."""
        if self._tls is None and target.url.scheme == "https":
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        failure: Exception | None = None
        for address in await _addresses(target):
            # no proxy of the environment: it would look the host up itself; `fetch` limits the time
            async with httpx.AsyncClient(
                trust_env=False, timeout=None, verify=False if self._tls is None else self._tls
            ) as client:
                request = client.build_request(
                    "GET",
                    target.url.copy_with(host=str(address), fragment=None),
                    headers={**_HEADERS, "Host": target.url.netloc.decode()},
                    extensions={"sni_hostname": target.url.raw_host.decode()},
                )
                try:
                    answer = await client.send(request, stream=True)
                except httpx.ConnectError as error:
                    failure = error
                    continue
                except httpx.HTTPError as error:
                    failure = error
                    break
                try:
                    return await _read(target, answer, max_bytes)
                except httpx.HTTPError as error:
                    failure = error
                    break
                finally:
                    await answer.aclose()
        why = f"{failure}" or type(failure).__name__
        raise InvalidRequestError(f"{_about(target.url)} cannot be fetched: {why:.200}") from failure


async def _addresses(target: _Target) -> list[IPv4Address | IPv6Address]:
    """Return the addresses of a host.

    Raises InvalidRequestError if there are none, and if one of them is not public. An address that an option names
    itself, and localhost, may be private.
    """
    host = target.url.raw_host.decode().strip("[]")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError(f"{_about(target.url)} cannot be fetched: its host has no address") from error
    addresses = list(dict.fromkeys(ip_address(str(info[4][0]).partition("%")[0]) for info in found))
    if not (target.is_named and (host.lower() == "localhost" or _is_address(host))) and not all(
        map(_is_public, addresses)
    ):
        raise InvalidRequestError(
            f"{_about(target.url)} is not fetched: its host is in a private network; --allow-image-urls may name its "
            "address"
        )
    return addresses


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address):
        if (inner := address.ipv4_mapped or address.sixtofour) is not None:
            return _is_public(inner)
        if address.teredo is not None:
            return False
        if int(address) >> 32 in (0, 0x64FF9B << 64):  # the last 32 bits are an IPv4 address
            return _is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    return address.is_global and not address.is_multicast


async def _read(target: _Target, answer: httpx.Response, max_bytes: int) -> bytes | httpx.URL:
    """Return the bytes of an answer, or the URL to which it redirects. Raises InvalidRequestError for others."""
    about = _about(target.url)
    if answer.has_redirect_location:
        try:
            # the redirect is resolved against the host's name, not against its address
            return target.url.join(answer.headers["location"])
        except httpx.InvalidURL as error:
            raise InvalidRequestError(f"{about} is redirected to no valid URL") from error
    if answer.status_code != 200:
        raise InvalidRequestError(f"{about} cannot be fetched: its host answers with status {answer.status_code}")
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise InvalidRequestError(f"{about} cannot be fetched: its host compresses it, though it was told not to")
    data = bytearray()
    async for piece in answer.aiter_raw():
        data += piece
        if len(data) > max_bytes:
            raise InvalidRequestError(f"{about} has more than {max_bytes} bytes, the limit")
    return bytes(data)


def _about(url: object) -> str:
    return f"the image {shown(str(url))}"
