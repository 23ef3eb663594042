"""Producer epochs of several transactional ids. Their coordinators are different brokers, and some do not respond."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data import transactions
from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.data.transactions import InitResult, init_all
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.support.stub_broker import CLOSE, SILENCE, StubBroker

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from tests.support.stub_broker import Answer, Request

VERSIONS = {FindCoordinatorRequest.API_KEY: (0, 4), InitProducerIdRequest.API_KEY: (0, 4)}
STAMP = ProducerStamp(4, 2, is_transactional=True)


def epochs(coordinators: Mapping[str, StubBroker]) -> dict[str, InitResult]:
    """Request the epochs of transactional ids. The first coordinator is the bootstrap server."""
    entries = [
        FindCoordinatorResponse.Coordinator(key=key, node_id=number, host="127.0.0.1", port=broker.port)
        for number, (key, broker) in enumerate(coordinators.items())
    ]
    bootstrap = next(iter(coordinators.values()))
    bootstrap.answer(FindCoordinatorRequest.API_KEY, lambda _: FindCoordinatorResponse(coordinators=entries))
    connection = ConnectionSettings(bootstrap_servers=(bootstrap.bootstrap_servers,), client_id="test")
    with contextlib.closing(Cluster(connection, BufferPool(max_free_bytes=0))) as cluster:
        return init_all(cluster, dict.fromkeys(coordinators), timeout_ms=1000)


def with_epoch(_request: Request) -> Answer:
    return InitProducerIdResponse(producer_id=STAMP.producer_id, producer_epoch=STAMP.producer_epoch)


def test_coordinators_without_a_response_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_TIMEOUT_S", 2.0)
    with (
        StubBroker(versions=VERSIONS) as first,
        StubBroker(versions=VERSIONS) as second,
        StubBroker(versions=VERSIONS) as third,
    ):
        for silent in (first, second):
            silent.answer(InitProducerIdRequest.API_KEY, lambda _: SILENCE)
        third.answer(InitProducerIdRequest.API_KEY, with_epoch)
        began = time.monotonic()
        results = epochs({"a": first, "b": second, "c": third})
        took_s = time.monotonic() - began
    assert results["c"] == STAMP
    for key in ("a", "b"):
        assert isinstance(results[key], ConnectionLostError)
        assert str(results[key]) == "InitProducerId: no response within 2 s"
    assert 2.0 <= took_s < 3.9, "both limits pass at the same time"


def test_broken_connection_fails_only_its_coordinator() -> None:
    with StubBroker(versions=VERSIONS) as first, StubBroker(versions=VERSIONS) as second:
        first.answer(InitProducerIdRequest.API_KEY, lambda _: CLOSE)
        second.answer(InitProducerIdRequest.API_KEY, with_epoch)
        results = epochs({"a": first, "b": second})
    assert results["b"] == STAMP
    assert isinstance(results["a"], ConnectionLostError)
