"""The side channel between driver and tasks: peers without the token, and hostile first lines."""

from __future__ import annotations

import errno
import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from klamm.mirror.spark import channel
from klamm.mirror.spark.channel import ChannelClient, ChannelServer
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Lines:
    """Dispatcher that records the lines it gets."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.closed = 0

    def on_line(self, _: object, message: Any) -> None:
        self.received.append(message)

    def on_close(self, _: object) -> None:
        self.closed += 1


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def server(lines: Lines) -> Iterator[ChannelServer]:
    server = ChannelServer(lines)
    server.listen()
    yield server
    server.close()


def answer_to(server: ChannelServer, first: bytes) -> bytes:
    """Return what the server sends to a peer that begins with a line; empty when it hangs up."""
    with socket.create_connection(server.address, timeout=60) as stranger:
        stranger.sendall(first)
        return stranger.recv(1)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "first",
    [
        b"[]\n",
        b"1\n",
        b"null\n",
        b"no json\n",
        b"\xff\xfe\n",
        b'{"token": 5}\n',
        b'{"token": null}\n',
        '{"token": "\u00e9"}\n'.encode(),
        b'{"token": "wrong"}\n',
        b'{"token": "' + b"x" * 100_000,
        b"[" * 1_000 + b"\n",
    ],
)
def test_connection_without_token_is_closed(server: ChannelServer, lines: Lines, first: bytes) -> None:
    # when
    try:
        answer = answer_to(server, first)
    except ConnectionResetError:  # the rest of a long line was never read
        answer = b""
    # then
    assert answer == b""
    assert lines.received == []
    client = ChannelClient(server.address, server.token)
    client.send({"hello": 1})
    wait_until(lambda: lines.received == [{"hello": 1}], timeout_s=30, what="the line of a task")
    client.close()


def test_silent_connection_is_closed_after_login_timeout(
    server: ChannelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_LOGIN_TIMEOUT_S", 0.1)
    before = threading.active_count()
    assert answer_to(server, b'{"tok') == b""
    wait_until(lambda: threading.active_count() <= before, timeout_s=30, what="the end of its thread")


def test_connection_that_logs_in_while_the_server_closes_is_closed(
    server: ChannelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, is_closed = ChannelServer._is_token, threading.Event()

    def check_late(server: ChannelServer, line: bytes) -> bool:
        assert is_closed.wait(30)
        return check(server, line)

    monkeypatch.setattr(ChannelServer, "_is_token", check_late)
    client = ChannelClient(server.address, server.token)
    # when
    server.close()
    is_closed.set()
    # then
    with pytest.raises(ConnectionResetError):
        client.receive(timeout_s=30)
    client.close()


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (socket.socket, "accept", OSError(errno.EMFILE, "Too many open files")),
        (threading.Thread, "start", RuntimeError("can't start new thread")),
    ],
)
def test_tasks_connect_after_resource_exhaustion(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception
) -> None:
    monkeypatch.setattr(channel, "_PAUSE_S", 0.0)
    server = ChannelServer(lines)
    work, failures = getattr(owner, name), [error, error]

    def fail_at_first(*arguments: Any) -> Any:
        if threading.current_thread().name == "mirror-channel" and failures:
            raise failures.pop()
        return work(*arguments)

    monkeypatch.setattr(owner, name, fail_at_first)
    server.listen()
    try:
        # when: a connection is lost with each thread that cannot be started
        while name == "start" and failures:
            with socket.create_connection(server.address, timeout=60) as lost:
                assert lost.recv(1) == b""
        client = ChannelClient(server.address, server.token)
        client.send({"hello": 1})
        # then
        wait_until(lambda: lines.received == [{"hello": 1}], timeout_s=30, what="the line of a task")
        client.close()
    finally:
        server.close()
    assert not failures


def test_authenticated_task_may_be_silent(server: ChannelServer, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_LOGIN_TIMEOUT_S", 1.0)
    client = ChannelClient(server.address, server.token)
    assert client.receive(timeout_s=1.2) is None
    client.send({"late": True})
    wait_until(lambda: lines.received == [{"late": True}], timeout_s=30, what="the late line")
    server.broadcast({"x": json.dumps(1)})
    client.close()
    wait_until(lambda: lines.closed == 1, timeout_s=30, what="the end of the connection")
