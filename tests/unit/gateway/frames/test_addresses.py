"""Broker addresses in responses: replaced in all carriers and all versions, everything else as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import ProtocolError
from klamm.protocol.messages.describe_cluster import DescribeClusterResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorResponse
from klamm.protocol.messages.metadata import MetadataResponse
from klamm.protocol.messages.produce import ProduceResponse
from tests.support.relay_rig import CARRIERS

if TYPE_CHECKING:
    from klamm.protocol.schema import Message


class Book:
    """An address book that remembers what it learned."""

    def __init__(self) -> None:
        self.learned: dict[int, tuple[str, int]] = {}

    def advertised(self, node_id: int, host: str, port: int) -> tuple[str, int]:
        self.learned[node_id] = (host, port)
        return "gateway", 10_000 + node_id


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


def test_cut_response_is_a_protocol_error() -> None:
    body = bytes(encode(metadata("broker.internal", 9000), 12))
    for end in range(20):
        with pytest.raises(ProtocolError):
            CARRIERS[3].rewrite(memoryview(body)[:end], 12, Book())
