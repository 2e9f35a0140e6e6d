"""The socket that clients connect to."""

from __future__ import annotations

import ipaddress
import os
import socket

from pymtp.errors import InvalidRequestError, PymtpError

BACKLOG = 2048  # connections that wait while there is no worker


def open_standard_streams() -> None:
    """Those that were closed lead nowhere from now on: a socket that got the number of one would be lost to a child."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)


def listen(host: str, port: int) -> socket.socket:
    """Listens there, at a port that is free where it is 0.

    Raises InvalidRequestError for a host that has no address, PymtpError where nobody may listen.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError(f"--host {host!r} has no address: {error}") from error
    # a name such as localhost may have both kinds: most clients try IPv4
    family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    both = family == socket.AF_INET6 and ipaddress.ip_address(address[0]).is_unspecified
    try:
        return socket.create_server(
            address[:2],
            family=family,
            backlog=BACKLOG,
            dualstack_ipv6=both and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise PymtpError(f"cannot listen at {_shown(host)}:{port}: {why}") from error


def url(listener: socket.socket) -> str:
    """Where a client on this machine finds it."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://{_shown(host)}:{port}"


def is_local(listener: socket.socket) -> bool:
    """Whether only this machine reaches it."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
