"""Listening sockets of a server process, and its event loop."""

from __future__ import annotations

import asyncio
import socket

from klamm.server.listeners import ANY_HOST, Address


def bind(address: Address, *, shared: bool = False) -> socket.socket:
    """Return a bound socket.

    Args:
        address: Address to listen on.
        shared: Whether other processes that share it, too, may listen on the address (SO_REUSEPORT).

    Raises:
        OSError: The address cannot be bound. The message names it.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((address.host or ANY_HOST, address.port))
    except OSError as error:
        sock.close()
        raise OSError(f"cannot listen on {address}: {error.strerror or error}") from error
    return sock


def start_listening(sock: socket.socket, *, backlog: int = 128) -> None:
    """Listen on a bound socket.

    With SO_REUSEADDR, binding succeeds although another process listens on the address. uvloop does not report the
    error of listening either, so it is detected here.

    Raises:
        OSError: Another process listens on the address. The message names it.
    """
    try:
        sock.listen(backlog)
    except OSError as error:
        raise OSError(f"cannot listen on {bound_address(sock)}: {error.strerror or error}") from error


def bound_address(sock: socket.socket) -> Address:
    """Return the address that a socket is bound to."""
    host, port = sock.getsockname()[:2]
    return Address(host=host, port=port)


def fastest_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of uvloop if that is installed, else of asyncio."""
    try:
        import uvloop  # noqa: PLC0415  # not on every platform
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
