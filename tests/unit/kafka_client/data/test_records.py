"""Fetches that a quota does not allow at once, that a broker rejects as a whole, or that it sends to a replica."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data import records
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.data.records import read_records
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.records import Record, encode_batch
from tests.support.stub_broker import StubBroker, redirect_fetches

if TYPE_CHECKING:
    from collections.abc import Iterator

FULL = FetchResponse(
    responses=[
        FetchResponse.FetchableTopicResponse(
            topic="stub",
            partitions=[
                FetchResponse.PartitionData(
                    high_watermark=1, last_stable_offset=1, records=bytes(encode_batch([Record(b"k", b"v", (), 5)]))
                )
            ],
        )
    ]
)


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    with StubBroker(versions={FetchRequest.API_KEY: (4, 11)}) as running:
        yield running


@pytest.fixture
def cluster(broker: StubBroker) -> Iterator[Cluster]:
    settings = ConnectionSettings(bootstrap_servers=(broker.bootstrap_servers,), client_id="test")
    with contextlib.closing(Cluster(settings, BufferPool(max_free_bytes=0))) as connected:
        connected.refresh(["stub"])
        yield connected


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times in seconds that fetches have waited. Nothing waits in fact."""
    slept: list[float] = []
    monkeypatch.setattr(records, "time", SimpleNamespace(sleep=slept.append))
    return slept


def script(broker: StubBroker, *answers: FetchResponse) -> None:
    left = iter(answers)
    broker.answer(FetchRequest.API_KEY, lambda _: next(left))


def read(cluster: Cluster) -> tuple[list[bytes | None], int]:
    got, position = read_records(cluster, "stub", 0, 0, timeout_s=10.0, max_wait_ms=0)
    return [record.value for record in got], position


def test_fetch_beyond_a_quota_is_repeated_after_its_throttle_time(
    broker: StubBroker, cluster: Cluster, waits: list[float]
) -> None:
    throttled = [FetchResponse(throttle_time_ms=time_ms) for time_ms in (11_000, 2_500)]
    script(broker, *throttled, FULL)
    assert read(cluster) == ([b"v"], 1)
    assert waits == [11.0, 2.5], "longer than the limit for a response"
    requests = [request.rest for request in broker.requests(FetchRequest.API_KEY)]
    assert len(requests) == 3
    assert len(set(requests)) == 1, "the same request"


def test_fetch_that_a_quota_does_not_allow_in_time_fails(
    broker: StubBroker, cluster: Cluster, waits: list[float]
) -> None:
    script(broker, *(FetchResponse(throttle_time_ms=time_ms) for time_ms in (11_000, 20_000)), FULL)
    with pytest.raises(ConnectionLostError, match="a quota of the broker does not allow it for another 20 s"):
        read(cluster)
    assert waits == [11.0]
    assert read(cluster) == ([b"v"], 1), "on a new connection"


def test_top_level_error_of_fetch_is_reported_by_name(broker: StubBroker, cluster: Cluster) -> None:
    script(broker, FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
    with pytest.raises(ConnectionLostError, match="Fetch: UNKNOWN_SERVER_ERROR"):
        read(cluster)


def test_records_are_read_from_the_preferred_read_replica(broker: StubBroker, cluster: Cluster) -> None:
    """KIP-392."""
    with StubBroker(versions={FetchRequest.API_KEY: (4, 11)}) as replica:
        redirect_fetches(broker, replica)
        script(replica, FULL)
        cluster.refresh(["stub"])
        assert read(cluster) == ([b"v"], 1)
