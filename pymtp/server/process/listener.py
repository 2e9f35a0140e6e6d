"""The listening sockets of the server."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence

from pymtp.errors import InvalidRequestError, PymtpError

BACKLOG = 2048  # connections that may wait while no worker runs


def open_standard_streams() -> None:
    """Open /dev/null for each standard stream that is closed.

    Otherwise the listening socket could get the file descriptor of a standard stream, and a worker, whose standard
    streams are opened anew, would lose the socket.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)


def listen_all(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Return sockets that listen on each of several hosts, all on one port.

    Port 0 selects a port that is free on the first host. Raises the errors of `listen`.
    """
    listeners: list[socket.socket] = []
    try:
        for host in hosts:
            listeners.append(listen(host, listeners[0].getsockname()[1] if listeners else port))
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a host and port. Port 0 selects any free port.

    Raises InvalidRequestError if the host has no address, and PymtpError if the socket cannot listen.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError(f"--host {host!r} has no address: {error}") from error
    # A name such as localhost may have both IPv4 and IPv6 addresses. IPv4 is preferred, because most clients try it.
    family, *_, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)
    dual_stack = family == socket.AF_INET6 and ipaddress.ip_address(address[0]).is_unspecified
    try:
        return socket.create_server(
            address[:2],
            family=family,
            backlog=BACKLOG,
            dualstack_ipv6=dual_stack and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise PymtpError(f"cannot listen at {_url_host(host)}:{port}: {reason}") from error


def url(listener: socket.socket) -> str:
    """Return the URL by which clients on this machine reach the server."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://{_url_host(host)}:{port}"


def is_local(listener: socket.socket) -> bool:
    """Return whether only clients on this machine can connect to the listening socket."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
