"""The HTTP side of a mirror, in a thread of its own."""

from __future__ import annotations

import urllib.request

import pytest

from klamm.mirror.watching.server import WatchServer


def _get(server: WatchServer, path: str) -> str:
    host, port = server.address
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_pages_are_served_while_it_is_entered() -> None:
    # given
    with WatchServer("127.0.0.1", 0, {"/": lambda: ("text/plain", "here")}) as server:
        # then
        assert _get(server, "/") == "here"
    with pytest.raises(OSError, match="refused"):
        _get(server, "/")


def test_an_address_in_use_is_refused_at_once() -> None:
    with WatchServer("127.0.0.1", 0, {}) as server, pytest.raises(OSError, match="in use"):
        WatchServer("127.0.0.1", server.address[1], {})
