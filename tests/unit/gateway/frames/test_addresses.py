"""Broker addresses in responses: replaced in all carriers and all versions, everything else as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest

from klamm.gateway.frames.wire import response_body, response_frame
from klamm.gateway.relay.forwarding import AddressRewriter
from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.protocol.messages.describe_cluster import DescribeClusterResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorResponse
from klamm.protocol.messages.metadata import MetadataResponse
from klamm.protocol.messages.produce import ProduceResponse
from tests.support.relay_rig import CARRIERS

if TYPE_CHECKING:
    from klamm.protocol.schema import Message


UNSERVED: Final = 60_001
"""Node id of a broker without a port of the gateway."""


class Book:
    """An address book that remembers what it learned."""

    def __init__(self) -> None:
        self.learned: dict[int, tuple[str, int]] = {}

    def advertised(self, node_id: int, host: str, port: int) -> tuple[str, int] | None:
        self.learned[node_id] = (host, port)
        return None if node_id == UNSERVED else ("gateway", 10_000 + node_id)


def rewritten(message: Message, version: int) -> tuple[bytes, Book]:
    book = Book()
    body = memoryview(bytes(encode(message, version)))
    return b"".join(bytes(piece) for piece in CARRIERS[message.API_KEY].rewrite(body, version, book)), book


def metadata(host: str, port: int) -> MetadataResponse:
    broker = MetadataResponse.MetadataResponseBroker
    partition = MetadataResponse.MetadataResponsePartition(leader_id=5, replica_nodes=[5, 7], isr_nodes=[5])
    return MetadataResponse(
        throttle_time_ms=9,
        brokers=[
            broker(node_id=5, host=host, port=port + 5, rack="a"),
            broker(node_id=7, host=host, port=port + 7),
        ],
        cluster_id="c",
        topics=[MetadataResponse.MetadataResponseTopic(name="t", topic_id=UUID(int=3), partitions=[partition])],
    )


def produced(host: str, port: int, rack: str | None = None) -> ProduceResponse:
    return ProduceResponse(
        throttle_time_ms=0,
        responses=[
            ProduceResponse.TopicProduceResponse(
                name="t", partition_responses=[ProduceResponse.PartitionProduceResponse(index=0, error_code=6)]
            )
        ],
        node_endpoints=[ProduceResponse.NodeEndpoint(node_id=5, host=host, port=port + 5, rack=rack)],
    )


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_each_version_names_the_gateway(version: int) -> None:
    body, book = rewritten(metadata("broker.internal", 9000), version)
    assert body == encode(metadata("gateway", 10_000), version)
    assert book.learned == {5: ("broker.internal", 9005), 7: ("broker.internal", 9007)}


@pytest.mark.parametrize("version", range(7))
def test_coordinators_of_each_version_are_at_the_gateway(version: int) -> None:
    def response_at(host: str, port: int) -> FindCoordinatorResponse:
        coordinator = FindCoordinatorResponse.Coordinator(key="g", node_id=5, host=host, port=port + 5)
        missing = FindCoordinatorResponse.Coordinator(key="h", node_id=-1, host="", port=-1, error_code=15)
        return FindCoordinatorResponse(node_id=5, host=host, port=port + 5, coordinators=[coordinator, missing])

    body, _ = rewritten(response_at("broker.internal", 9000), version)
    assert body == encode(response_at("gateway", 10_000), version)


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_names_the_gateway(version: int) -> None:
    def described(host: str, port: int) -> DescribeClusterResponse:
        broker = DescribeClusterResponse.DescribeClusterBroker(broker_id=5, host=host, port=port + 5)
        return DescribeClusterResponse(cluster_id="c", controller_id=5, brokers=[broker])

    body, _ = rewritten(described("broker.internal", 9000), version)
    assert body == encode(described("gateway", 10_000), version)


@pytest.mark.parametrize("version", range(10, 14))
@pytest.mark.parametrize("rack", [None, "", "rack-1"])
def test_new_leaders_in_produce_responses_are_at_the_gateway(version: int, rack: str | None) -> None:
    body, _ = rewritten(produced("broker.internal", 9000, rack), version)
    assert decode(ProduceResponse, version, body).node_endpoints[0].host == "gateway"
    assert body == encode(produced("gateway", 10_000, rack), version)


def test_produce_response_without_new_leaders_is_not_decoded() -> None:
    message = produced("x", 1)
    message.node_endpoints = []
    body = memoryview(bytes(encode(message, 11)))
    (piece,) = CARRIERS[0].rewrite(body, 11, Book())
    assert piece is body


def with_unserved(message: Message, *, entries: str, node_id: str) -> Message:
    """Add a broker without a port of the gateway to a response."""
    brokers = getattr(message, entries)
    brokers.append(type(brokers[0])(**{node_id: UNSERVED, "host": "broker.internal", "port": 9092}))
    return message


@pytest.mark.parametrize("version", range(14))
def test_metadata_leaves_out_broker_without_port(version: int) -> None:
    # given
    message = with_unserved(metadata("broker.internal", 9000), entries="brokers", node_id="node_id")
    # when
    body, _ = rewritten(message, version)
    # then
    assert body == encode(metadata("gateway", 10_000), version)
    # and a response that a policy has decoded, too
    CARRIERS[3].replace_in(message, Book())
    assert encode(message, version) == body


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_leaves_out_broker_without_port(version: int) -> None:
    broker = DescribeClusterResponse.DescribeClusterBroker(broker_id=5, host="broker.internal", port=9005)
    message = DescribeClusterResponse(cluster_id="c", controller_id=UNSERVED, brokers=[broker])
    body, _ = rewritten(with_unserved(message, entries="brokers", node_id="broker_id"), version)
    response = decode(DescribeClusterResponse, version, body)
    assert [(each.broker_id, each.host, each.port) for each in response.brokers] == [(5, "gateway", 10_005)]


@pytest.mark.parametrize("version", range(10, 14))
def test_produce_response_leaves_out_new_leader_without_port(version: int) -> None:
    message = with_unserved(produced("broker.internal", 9000), entries="node_endpoints", node_id="node_id")
    body, _ = rewritten(message, version)
    assert body == encode(produced("gateway", 10_000), version)


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("version", range(7))
async def test_coordinator_without_port_is_not_available(version: int, *, is_long: bool) -> None:
    # given
    at: dict[str, Any] = {"node_id": UNSERVED, "host": "broker.internal", "port": 9092}
    served = FindCoordinatorResponse.Coordinator(key="h", node_id=5, host="broker.internal", port=9005)
    unserved = FindCoordinatorResponse.Coordinator(key="g", **at)
    message = FindCoordinatorResponse(**at, coordinators=[unserved, served])
    frame = memoryview(response_frame(message, version, 1))
    rewriter = AddressRewriter(CARRIERS[10], version, Book())
    # when
    pieces = await rewriter.rewrite_slowly(frame) if is_long else rewriter(frame)
    # then
    answer = memoryview(b"".join(pieces))
    response = decode(FindCoordinatorResponse, version, answer, response_body(FindCoordinatorResponse, version, answer))
    first = response.coordinators[0] if version >= 4 else response
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (first.error_code, first.node_id, first.host, first.port) == (unavailable, -1, "", -1)
    assert version < 4 or response.coordinators[1].host == "gateway"


def test_cut_response_is_a_protocol_error() -> None:
    body = bytes(encode(metadata("broker.internal", 9000), 12))
    for end in range(20):
        with pytest.raises(ProtocolError):
            CARRIERS[3].rewrite(memoryview(body)[:end], 12, Book())
