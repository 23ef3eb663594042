"""The producer on a stub broker: what leaves the client, read from the wire."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

import kafka
import pytest
from kafka.protocol.admin import DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse

from klamm.clients import ConfigUpdate, KafkaProducer
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from tests.support.processes import wait_until
from tests.support.stub_broker import SILENCE, StubBroker, produced_acks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.stub_broker import Answer, Request

ANNOUNCED = {"client.configs": (1, 1)}
KEY_50 = {50: (0, 0)}


class CentralConfigs:
    """Handler that answers key 50 with the current values."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def __call__(self, request: Request) -> Answer:
        request.read(DescribeClientConfigsRequest)
        values = [DescribeClientConfigsResponse.ValueData(key=key, value=value) for key, value in self.values.items()]
        return DescribeClientConfigsResponse(
            error_message=None, entries=[DescribeClientConfigsResponse.EntryData(values=values)]
        )


@pytest.fixture
def central() -> CentralConfigs:
    return CentralConfigs()


@pytest.fixture
def broker(central: CentralConfigs) -> Iterator[StubBroker]:
    with StubBroker(features=ANNOUNCED, versions=KEY_50) as stub:
        stub.answer(50, central)
        yield stub


def producer(broker: StubBroker, **configs: Any) -> KafkaProducer:
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "client_id": "app1",
        "acks": 1,
        "enable_idempotence": False,
        "metadata_max_age_ms": 100,
        "retry_backoff_ms": 20,
        "request_timeout_ms": 3_000,
        "delivery_timeout_ms": 10_000,
        **configs,
    }
    return KafkaProducer(**settings)


def send(client: KafkaProducer) -> None:
    client.send("stub", b"value").get(10)


def acks_on_the_wire(broker: StubBroker, client: KafkaProducer) -> int:
    send(client)
    return produced_acks(broker.requests(0))[-1]


def wait_for_acks(broker: StubBroker, client: KafkaProducer, wanted: int) -> None:
    deadline = time.monotonic() + 30
    while acks_on_the_wire(broker, client) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_three_intervals(broker: StubBroker) -> None:
    """Wait for the requests for metadata, which are as frequent as those for client configs."""
    before = len(broker.requests(3))
    broker.wait_for(lambda: len(broker.requests(3)) >= before + 3)


def test_client_sends_its_software_name(broker: StubBroker) -> None:
    """K649-43: Software name/version come from the connection's ApiVersions v3+ request (KIP-511), else "unknown"."""
    with producer(broker):
        pass
    names = set()
    for request in broker.requests(18):
        decoded = request.read(ApiVersionsRequest)
        assert isinstance(decoded, ApiVersionsRequest)
        names.add(decoded.client_software_name)
    assert names == {"klamm-kafka-python"}


def test_failing_callback_does_not_stop_the_producer(broker: StubBroker, central: CentralConfigs) -> None:
    def fail(update: ConfigUpdate) -> None:
        raise RuntimeError("no")

    with producer(broker, on_dynamic_config_change=fail) as client:
        central.values = {"acks": "all"}
        wait_for_acks(broker, client, -1)
        central.values = {}
        wait_for_acks(broker, client, 1)


def test_broker_without_feature_support_is_not_queried() -> None:
    """K649-67: New client, old broker: broker answers 42 (or does not offer the API); the client disables the feature
    and keeps working with static configs.
    """
    with StubBroker(versions={18: (0, 2)}) as stub:
        with producer(stub) as client:
            send(client)
            wait_for_three_intervals(stub)
        assert stub.requests(50) == []


@pytest.mark.parametrize(
    "reply",
    [
        DescribeClientConfigsResponse(error_message=None, entries=[]),
        b"",
    ],
    ids=["no entry", "nothing"],
)
def test_broker_with_invalid_response_is_queried_once(reply: Answer) -> None:
    """K649-67: New client, old broker: broker answers 42 (or does not offer the API); the client disables the feature
    and keeps working with static configs.

    K649-70: Also treat as "old broker": key absent in ApiVersions, error 35, unparsable answer, connection closed on
    the first try.
    """
    with StubBroker(features=ANNOUNCED, versions=KEY_50) as stub:
        stub.answer(50, lambda _: reply)
        with producer(stub) as client:
            assert acks_on_the_wire(stub, client) == 1
            wait_for_three_intervals(stub)
            assert acks_on_the_wire(stub, client) == 1
        assert len(stub.requests(50)) == 1


def test_missing_response_disables_dynamic_configs_but_not_the_producer() -> None:
    """K649-70: Also treat as "old broker": key absent in ApiVersions, error 35, unparsable answer, connection closed on
    the first try.
    """
    with StubBroker(features=ANNOUNCED, versions=KEY_50) as stub:
        stub.answer(50, lambda _: SILENCE)
        with producer(stub, request_timeout_ms=500) as client:
            assert acks_on_the_wire(stub, client) == 1
        assert len(stub.requests(50)) == 1


@pytest.mark.parametrize("in_flight", [1, 2])
def test_busy_producer_still_applies_changes(in_flight: int, broker: StubBroker, central: CentralConfigs) -> None:
    """K649-74: Producer: fetch in the send loop; acks of later Produce requests follow the dynamic value."""

    def slowly(request: Request) -> Answer:
        time.sleep(0.005)
        produced = request.read(ProduceRequest)
        assert isinstance(produced, ProduceRequest)
        if produced.acks == 0:
            return SILENCE
        return ProduceResponse(
            responses=[
                ProduceResponse.TopicProduceResponse(
                    name="stub",
                    partition_responses=[ProduceResponse.PartitionProduceResponse(index=0, error_message=None)],
                )
            ]
        )

    broker.answer(0, slowly)
    with producer(broker, max_in_flight_requests_per_connection=in_flight, batch_size=100) as client:
        client.send("stub", bytes(200)).get(20)
        central.values = {"acks": "all"}
        futures = [client.send("stub", bytes(200)) for _ in range(100)]
        for future in futures:
            future.get(20)
    acks = produced_acks(broker.requests(0))
    assert acks[0] == 1
    assert acks[-1] == -1
    assert acks == sorted(acks, reverse=True)


def test_kafka_pythons_classes_for_shared_keys_are_unchanged(broker: StubBroker) -> None:
    """O649-A."""
    with producer(broker) as client:
        send(client)
    request = DescribeUserScramCredentialsRequest[0](users=None)
    request.with_header(correlation_id=1, client_id="x")
    assert request.header.get_response_class() is DescribeUserScramCredentialsResponse[0]


class Application:
    """Owns a producer that refers to it, by its callback."""

    def __init__(self, broker: StubBroker) -> None:
        self.client = producer(broker, on_dynamic_config_change=self.on_change)

    def on_change(self, update: ConfigUpdate) -> None: ...


def test_garbage_collected_producer_ends_its_thread(broker: StubBroker) -> None:
    # given
    application = Application(broker)
    send(application.client)
    sender = application.client._sender
    # when
    del application

    # then
    def has_ended() -> bool:
        gc.collect()
        return not sender.is_alive()

    wait_until(has_ended, timeout_s=30, what="the end of the sender's thread")


def test_client_is_a_kafka_python_producer(broker: StubBroker) -> None:
    with producer(broker) as client:
        assert isinstance(client, kafka.KafkaProducer)
        assert client.partitions_for("stub") == {0}
    with pytest.raises(ValueError, match="Unrecognized configs"):
        producer(broker, no_such_config=1)
