"""Producer epochs of several transactional ids. Their coordinators are different brokers, and some do not respond."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.connection import wait_for_events
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
    from collections.abc import Iterable, Mapping

    import pytest

    from klamm.kafka_client.connection.connection import Connection
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
    # given
    now_s, waits_s = 0.0, list[float]()

    def wait(connections: Iterable[Connection], timeout_s: float) -> list[tuple[Connection, int]]:
        nonlocal now_s
        if len(waiting := set(connections)) > 2:  # until the third has responded
            return wait_for_events(waiting, 120.0)
        waits_s.append(timeout_s)
        now_s += timeout_s
        return []

    monkeypatch.setattr(transactions, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(transactions, "wait_for_events", wait)
    with (
        StubBroker(versions=VERSIONS) as first,
        StubBroker(versions=VERSIONS) as second,
        StubBroker(versions=VERSIONS) as third,
    ):
        for silent in (first, second):
            silent.answer(InitProducerIdRequest.API_KEY, lambda _: SILENCE)
        third.answer(InitProducerIdRequest.API_KEY, with_epoch)
        # when
        results = epochs({"a": first, "b": second, "c": third})
    # then
    assert results["c"] == STAMP
    for key in ("a", "b"):
        assert isinstance(results[key], ConnectionLostError)
        assert str(results[key]) == "InitProducerId: no response within 10 s"
    assert waits_s == [10.0], "both limits pass at the same time"


def test_broken_connection_fails_only_its_coordinator() -> None:
    with StubBroker(versions=VERSIONS) as first, StubBroker(versions=VERSIONS) as second:
        first.answer(InitProducerIdRequest.API_KEY, lambda _: CLOSE)
        second.answer(InitProducerIdRequest.API_KEY, with_epoch)
        results = epochs({"a": first, "b": second})
    assert results["b"] == STAMP
    assert isinstance(results["a"], ConnectionLostError)
