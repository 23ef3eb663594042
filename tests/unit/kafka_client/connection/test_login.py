"""Opening of connections to brokers, and their SASL login."""

from __future__ import annotations

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.login import open_connection
from klamm.kafka_client.connection.security import Security
from klamm.kafka_client.connection.transport import ConnectionSettings, PlainTransport
from klamm.kafka_client.errors import CLOSED, ConnectionLostError
from tests.support.stub_broker import closed_after_versions

PLAIN = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="alice", password="a-secret")  # noqa: S106  # test password


@pytest.mark.parametrize("security", [Security(), PLAIN], ids=["PLAINTEXT", "SASL_PLAINTEXT"])
def test_connection_closed_after_api_versions_is_lost(security: Security, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ConnectionSettings(bootstrap_servers=("broker:1",), client_id="me", security=security)
    with closed_after_versions() as connected:
        monkeypatch.setattr("klamm.kafka_client.connection.login.connect", lambda *_: PlainTransport(connected))
        # when
        with pytest.raises(ConnectionLostError) as caught:
            open_connection("broker", 1, settings, BufferPool(max_free_bytes=0))
    # then
    assert type(caught.value) is ConnectionLostError  # no rejected login
    assert str(caught.value) == f"broker:1: {CLOSED}"
