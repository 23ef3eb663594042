"""The HTTP side of a mirror, in a thread of its own."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from klamm.mirror.status.live import WatchServer


def _get(server: WatchServer, path: str) -> str:
    host, port = server.address
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_server_serves_pages_within_context() -> None:
    # given
    with WatchServer("127.0.0.1", 0, {"/": lambda: ("text/plain", "here")}) as server:
        # then
        assert _get(server, "/") == "here"
    with pytest.raises(OSError, match="refused"):
        _get(server, "/")


def test_idle_connection_ends_with_server(caplog: pytest.LogCaptureFixture) -> None:
    # given, as browsers open them
    with WatchServer("127.0.0.1", 0, {"/": lambda: ("text/plain", "here")}) as server:
        idle = socket.create_connection(server.address)
        assert _get(server, "/") == "here"
    # then
    idle.settimeout(5)
    assert idle.recv(1) == b""
    idle.close()
    assert caplog.records == []


def test_address_in_use_fails_at_once() -> None:
    with WatchServer("127.0.0.1", 0, {}) as server, pytest.raises(OSError, match="in use"):
        WatchServer("127.0.0.1", server.address[1], {})
