from __future__ import annotations

import random
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.login import open_connection
from klamm.kafka_client.connection.security import Security
from klamm.kafka_client.connection.transport import ConnectionSettings, TlsStream
from klamm.kafka_client.errors import FATAL_ERRORS, ConnectionLostError
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from pathlib import Path


def test_client_properties_become_connection_settings() -> None:
    settings = ConnectionSettings.of(("a:1",), {"request.timeout.ms": " 1500 ", "client.id": "mine"}, "other")
    assert (settings.request_timeout_s, settings.client_id) == (1.5, "mine")
    settings = ConnectionSettings.of(("a:1",), {}, "other")
    assert (settings.request_timeout_s, settings.client_id) == (30.0, "other")


def test_connection_keyword_arguments_equal_properties() -> None:
    keywords = {"client_id": "me", "reconnect_backoff_ms": 10, "retry_backoff_ms": 5, "connections_max_idle_ms": 1}
    settings = ConnectionSettings.of_keywords("a:1, b:2", keywords)
    assert settings.bootstrap_servers == ("a:1", "b:2")
    assert (settings.client_id, settings.reconnect_backoff_s, settings.retry_backoff_s) == ("me", 0.01, 0.005)


@pytest.mark.parametrize("value", ["soon", "0", "-1", "2147483648", ""])
def test_invalid_request_timeout_is_rejected(value: str) -> None:
    with pytest.raises(
        SettingsError, match=f"^request.timeout.ms={value}: expected a whole number from 1 to 2147483647"
    ):
        ConnectionSettings.of(("a:1",), {"request.timeout.ms": value}, "other")


class ResetStream:
    """TLS socket whose peer has sent a response, and has then reset the connection."""

    def __init__(self) -> None:
        self._records = [b"resp", b"onse"]

    def recv_into(self, view: memoryview) -> int:
        if not self._records:
            raise ConnectionResetError("reset")
        record = self._records.pop(0)
        view[: len(record)] = record
        return len(record)


def test_bytes_before_a_reset_are_received_over_tls() -> None:
    """As without TLS: the response may be the confirmation of a change."""
    connected: Any = ResetStream()
    stream, view = TlsStream(connected), memoryview(bytearray(100))
    assert stream.receive_into(view) == len(b"response")
    assert bytes(view[:8]) == b"response"
    with pytest.raises(ConnectionResetError):
        stream.receive_into(view)


class FullTlsSocket:
    """TLS socket with so much room. Like OpenSSL, it reports the bytes of a call when all of them are written."""

    def __init__(self) -> None:
        self.room = 0
        self.received = bytearray()
        self._begun = 0
        """Bytes of a call that the peer has, but that are not reported."""

    def send(self, view: memoryview) -> int:
        taken = min(self.room, len(view) - self._begun)
        self.received += view[self._begun : self._begun + taken]
        self.room -= taken
        self._begun += taken
        if self._begun < len(view):
            raise ssl.SSLWantWriteError
        self._begun = 0
        return len(view)


def test_slow_reading_of_a_large_view_is_noticed_over_tls() -> None:
    # given
    data = random.Random(7).randbytes(300_001)
    full, sent = FullTlsSocket(), 0
    connected: Any = full
    stream, progress = TlsStream(connected), []
    # when
    while sent < len(data):
        full.room += 100_000
        sent += stream.send_views([memoryview(data)[sent:]])
        progress.append(sent)
    # then
    assert bytes(full.received) == data
    assert progress == [65_536, 196_608, 262_144, 300_001]


def test_half_written_store_is_a_retryable_error_of_the_connection(tmp_path: Path) -> None:
    """The stores are read for each connection. One that is being replaced is whole a moment later."""
    store = tmp_path / "trusted.pem"
    store.write_text("-----BEGIN CERTIFICATE-----\nMIIB")
    tls = {"ssl.truststore.location": str(store), "ssl.truststore.type": "PEM"}
    security = Security(protocol="SSL", tls=tls)  # as if it had been checked before
    settings = ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="test", security=security)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(ConnectionLostError, match=r"ssl\.truststore\.location=.*cannot be read") as lost,
    ):
        open_connection("127.0.0.1", server.getsockname()[1], settings, BufferPool(max_free_bytes=0))
    assert not isinstance(lost.value, FATAL_ERRORS)
