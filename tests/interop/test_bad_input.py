"""Malformed input: its connection is closed with one log line, and other clients are served."""

from __future__ import annotations

import random
import socket
import struct
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pytest

from klamm import Broker
from klamm.protocol.codec import decode
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest
from klamm.protocol.messages.produce import ProduceRequest
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def cpu_s(broker: Broker) -> float:
    """Return the processor time of a broker, which other load does not change."""
    user_s, system_s, *_ = psutil.Process(broker.pid).cpu_times()
    return float(user_s + system_s)


def connect(broker: Broker) -> socket.socket:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(api_key: int, version: int, body: bytes = b"", *, flexible: bool = False, correlation_id: int = 1) -> bytes:
    header = struct.pack(">hhih", api_key, version, correlation_id, -1)
    return framed(header + (b"\x00" if flexible else b"") + body)


def answer(connection: socket.socket) -> bytes:
    """Return the next answer without its size; empty when the connection is closed."""
    try:
        with connection.makefile("rb") as stream:
            size = stream.read(4)
            return stream.read(struct.unpack(">i", size)[0]) if size else b""
    except ConnectionResetError:
        return b""


def assert_closed_and_alive(broker: Broker, sent: bytes) -> None:
    with connect(broker) as bystander, connect(broker) as hostile:
        port = hostile.getsockname()[1]
        hostile.sendall(sent)
        assert answer(hostile) == b""
        bystander.sendall(request(18, 0))
        assert answer(bystander)[4:6] == b"\x00\x00"
    assert broker.log_text().count(f":{port} closed:") == 1


def test_oversized_frame_closes_the_connection(broker: Broker) -> None:
    assert_closed_and_alive(broker, struct.pack(">i", 2**31 - 1))


def test_negative_frame_size_closes_the_connection(broker: Broker) -> None:
    assert_closed_and_alive(broker, struct.pack(">i", -5))


def test_http_request_closes_the_connection(broker: Broker) -> None:
    assert_closed_and_alive(broker, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


def test_unknown_api_key_closes_the_connection(broker: Broker) -> None:
    assert_closed_and_alive(broker, request(999, 0))


def test_unsupported_version_closes_the_connection(broker: Broker) -> None:
    """K649-17: Unknown request versions (1+) are not advertised; sent anyway, the connection is closed, as Kafka does
    for all but ApiVersions.
    """
    assert_closed_and_alive(broker, request(44, 7))


def test_version_advertised_only_for_old_clients_closes_the_connection(broker: Broker) -> None:
    assert_closed_and_alive(broker, request(0, 2))


def test_ten_thousand_produce_partitions_do_not_delay_other_clients(broker: Broker) -> None:
    """An assignment that names one partition twice must not be compared with itself ten thousand times either."""
    topic = CreateTopicsRequest.CreatableTopic(
        name="twice",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=min(index, 9_997), broker_ids=[1])
            for index in range(9_999)
        ],
        configs=[],
    )
    data = [ProduceRequest.PartitionProduceData(index=index, records=b"") for index in range(30_000)]
    produced = ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[ProduceRequest.TopicProduceData(name="nowhere", partition_data=data)]
    )
    with connect(broker) as busy:
        busy.settimeout(60)
        busy.sendall(request_frame(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7))
        assert b"9997" in answer(busy)
        busy.sendall(request_frame(produced, 9))
        assert len(answer(busy)) > 30_000


def test_null_in_non_nullable_field_closes_the_connection(broker: Broker) -> None:
    assert_closed_and_alive(broker, request(44, 0, b"\xff\xff\xff\xff\x00"))


def test_truncated_body_closes_the_connection(broker: Broker) -> None:
    assert_closed_and_alive(broker, request(44, 0, bytes.fromhex("000000010200027431")))


@pytest.mark.parametrize("filler", [b"\xff", b"\x01", b"\x7f", b"\x80"], ids=lambda filler: filler.hex())
@pytest.mark.parametrize(("api_key", "version"), [(18, 3), (3, 1), (3, 12), (19, 2), (44, 0), (44, 1)])
def test_megabyte_of_garbage_takes_less_than_two_seconds(
    broker: Broker, api_key: int, version: int, filler: bytes
) -> None:
    with connect(broker) as hostile:
        began_s = cpu_s(broker)
        hostile.sendall(request(api_key, version, filler * MEGABYTE, flexible=True))
        answer(hostile)
        assert cpu_s(broker) - began_s < 2
    with connect(broker) as bystander:
        bystander.sendall(request(18, 0))
        assert answer(bystander)


def test_random_frames_on_every_key_do_not_stop_the_broker(broker: Broker) -> None:
    generator = random.Random(649)
    for _ in range(400):
        key, version = generator.randrange(-2, 95), generator.randrange(-1, 19)
        body = generator.randbytes(generator.randrange(0, 120))
        with connect(broker) as hostile:
            hostile.sendall(request(key, version, body))
            hostile.shutdown(socket.SHUT_WR)
            answer(hostile)
    assert broker.is_running
    with connect(broker) as bystander:
        bystander.sendall(request(18, 0))
        assert answer(bystander)


def test_unsupported_api_versions_version_returns_supported_versions(broker: Broker) -> None:
    with connect(broker) as connection:
        connection.sendall(request(18, 77, flexible=True))
        body = answer(connection)[4:]
    response = decode(ApiVersionsResponse, 0, body)
    assert response.error_code == 35
    assert [(api.api_key, api.min_version, api.max_version) for api in response.api_keys] == [(18, 0, 5)]


def test_invalid_software_name_is_rejected_without_closing_the_connection(broker: Broker) -> None:
    with connect(broker) as connection:
        connection.sendall(request(18, 3, b"\x05a b!\x02" + b"1\x00", flexible=True))
        assert answer(connection)[4:6] == struct.pack(">h", 42)
        connection.sendall(request(18, 0))
        assert answer(connection)[4:6] == b"\x00\x00"


def test_pipelined_requests_are_answered_in_order(broker: Broker) -> None:
    with connect(broker) as connection:
        connection.sendall(b"".join(request(18, 0, correlation_id=index) for index in range(200)))
        with connection.makefile("rb") as stream:
            seen = []
            for _ in range(200):
                size = struct.unpack(">i", stream.read(4))[0]
                seen.append(struct.unpack(">i", stream.read(size)[:4])[0])
    assert seen == list(range(200))
