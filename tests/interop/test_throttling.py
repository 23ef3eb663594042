"""Quotas from the view of clients: a rate above the quota is reduced to it."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

import klamm
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.records import Record, encode_batch
from tests.interop.test_client_quotas import alter
from tests.support.record_times import RECENT_MS
from tests.support.wire import WireClient, request_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import ThrottleEvent

RATE = 500_000
SIZE = 100_000
FREE_S = 10
"""Kafka's window lets as many seconds' worth pass at once."""


@pytest.fixture
def broker() -> Iterator[klamm.Broker]:
    with klamm.Broker() as running:
        yield running


def limit(broker: klamm.Broker, entity: tuple[str, str | None], **quotas: float) -> None:
    with WireClient(broker.bootstrap_servers) as client:
        assert alter(client, ((entity,), dict(quotas))) == [(0, None)]


def test_librdkafka_producer_is_throttled_and_reports_the_delay(broker: klamm.Broker) -> None:
    limit(broker, ("client-id", "fast"), producer_byte_rate=RATE)
    events: list[ThrottleEvent] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "fast",
            "linger.ms": 0,
            "batch.size": SIZE,
            "throttle_cb": events.append,
        }
    )
    began = time.monotonic()
    for number in range(RATE * (FREE_S + 2) // SIZE):
        producer.produce("t", bytes([number % 256]) * SIZE)
        producer.poll(0)
    assert producer.flush(60) == 0
    seconds = time.monotonic() - began
    assert seconds > 1.0, "twelve seconds' worth took at least about two"
    assert events
    assert events[0].throttle_time > 0


@pytest.mark.long
def test_consumer_is_throttled(broker: klamm.Broker) -> None:
    with WireClient(broker.bootstrap_servers, timeout_s=60) as client:
        client.create_topic("t")
        batch = bytes(encode_batch([Record(None, b"x" * 500_000, (), RECENT_MS)]))
        for _ in range(12):
            client.produce("t", 0, batch)
        limit(broker, ("user", None), consumer_byte_rate=RATE)
        began = time.monotonic()
        assert len(list(client.read_to_end("t", 0))) == 12
        client.end_offset("t", 0)
        assert time.monotonic() - began > 1.0


def test_new_connection_does_not_remove_the_throttle_of_a_consumer(broker: klamm.Broker) -> None:
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=SIZE * 100)
    request = FetchRequest(
        max_bytes=SIZE * 100, session_epoch=-1, topics=[FetchRequest.FetchTopic(topic="t", partitions=[wanted])]
    )
    with WireClient(broker.bootstrap_servers) as client:
        client.create_topic("t")
        client.produce("t", 0, bytes(encode_batch([Record(None, b"x" * 6 * SIZE, (), RECENT_MS)])))
    limit(broker, ("user", None), consumer_byte_rate=SIZE)
    answers = []
    for _ in range(2):
        with WireClient(broker.bootstrap_servers) as client:
            answers.append(client.ask(request, FetchResponse, 12))
    first, second = answers
    assert (len(first.responses), first.throttle_time_ms) == (1, 0)
    assert (len(second.responses), second.session_id, second.error_code) == (0, 0, 0)
    assert second.throttle_time_ms > 1_000


def first_answer(address: str) -> tuple[bytes, socket.socket]:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    try:
        connection.sendall(request_frame(ApiVersionsRequest(), 0))
        return connection.recv(4), connection
    except ConnectionError:
        return b"", connection


def test_connection_creation_rate_closes_connections_of_address(broker: klamm.Broker) -> None:
    here = (("ip", "127.0.0.1"),)
    with WireClient(broker.bootstrap_servers) as already_there:
        alter(already_there, (here, {"connection_creation_rate": 1.0}))
        answers: list[bool] = []
        while all(answers) and len(answers) < 10 * FREE_S:  # a slow machine needs more until the rate is exceeded
            answer, connection = first_answer(broker.bootstrap_servers)
            connection.close()
            answers.append(bool(answer))
        assert answers[0]
        assert False in answers
        alter(already_there, (here, {"connection_creation_rate": None}))
    answer, connection = first_answer(broker.bootstrap_servers)
    connection.close()
    assert answer


def test_connections_beyond_the_rate_of_the_broker_are_served_later() -> None:
    with klamm.Broker(config={"max.connection.creation.rate": 5}) as broker:
        began = time.monotonic()
        for _ in range(5 * FREE_S + 5):
            answer, connection = first_answer(broker.bootstrap_servers)
            connection.close()
            assert answer
        assert time.monotonic() - began > 0.8
