"""Client wrappers accept and reject the same arguments as the library that they replace."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from aiokafka.errors import KafkaConnectionError  # type: ignore[import-untyped]

from klamm.clients import aio, confluent
from tests.support.dynamic_clients import SILENT
from tests.support.processes import free_port
from tests.support.stub_broker import StubBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def servers() -> Iterator[str]:
    with StubBroker() as stub:
        yield stub.bootstrap_servers


def listener(_: Any, __: Any) -> None:
    pass


@pytest.mark.parametrize("acks", [2, "ALL", -1])
def test_producer_accepts_all_acks_of_librdkafka(servers: str, acks: object) -> None:
    assert confluent.Producer({"bootstrap.servers": servers, "acks": acks}, logger=SILENT).close() == 0


def test_consumer_accepts_any_heartbeat_interval_of_librdkafka(servers: str) -> None:
    own = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 7_000}
    confluent.Consumer({"bootstrap.servers": servers, "group.id": "g", **own}, logger=SILENT).close()


@pytest.mark.parametrize("value", [False, "false"])
def test_enable_dynamic_config_is_also_a_property(value: object) -> None:
    """K649-71: Client switch ``enable.dynamic.config`` (bool, default true); false -> never sends key 50."""
    properties = {"enable.dynamic.config": value}
    with StubBroker(features={"client.configs": (1, 1)}, versions={50: (0, 0)}) as stub:
        properties["bootstrap.servers"] = stub.bootstrap_servers
        confluent.Producer(properties, logger=SILENT).close()
        confluent.Consumer(properties | {"group.id": "g"}, logger=SILENT).close()
        assert stub.requests(50) == []


@pytest.mark.parametrize("value", ["yes", "on", "", " true", None, 2])
@pytest.mark.parametrize("client", [confluent.Producer, confluent.Consumer])
def test_enable_dynamic_config_must_be_a_boolean_of_librdkafka(client: type[Any], value: object) -> None:
    with pytest.raises(ValueError, match=r"enable\.dynamic\.config=.*: expected true or false"):
        client({"bootstrap.servers": "localhost:1", "group.id": "g", "enable.dynamic.config": value})


def test_librdkafka_rejects_its_own_invalid_configs(servers: str) -> None:
    with pytest.raises(confluent_kafka.KafkaException, match="acks"):
        confluent.Producer({"bootstrap.servers": servers, "acks": 1, "enable.idempotence": True})


def test_closed_producer_rejects_records(servers: str) -> None:
    client = confluent.Producer({"bootstrap.servers": servers}, logger=SILENT)
    assert client.close() == 0
    assert client.close() == 0
    with pytest.raises(RuntimeError, match="closed"):
        client.produce("t", b"x")


def test_close_returns_number_of_undelivered_records() -> None:
    properties = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "message.timeout.ms": 300_000}
    client = confluent.Producer(properties, enable_dynamic_config=False, logger=SILENT)
    client.produce("t", b"x")
    assert client.close(0.01) == 1


@pytest.mark.parametrize(
    "subscribe",
    [
        lambda client: client.subscribe(["t"], listener, listener, listener),
        lambda client: client.subscribe(["t"], on_assign=listener),
        lambda client: client.subscribe(["t"], on_assign=None),
    ],
    ids=["by place", "by name", "none"],
)
def test_rebalance_listeners_are_accepted_like_confluent_kafka(subscribe: Callable[[confluent.Consumer], None]) -> None:
    properties = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    with confluent.Consumer(properties, enable_dynamic_config=False, logger=SILENT) as client:
        subscribe(client)


@pytest.mark.parametrize(("topics", "on_assign"), [("topic", listener), (["topic"], "listener")])
def test_invalid_subscription_raises_type_error(topics: Any, on_assign: Any) -> None:
    properties = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    with (
        confluent.Consumer(properties, enable_dynamic_config=False, logger=SILENT) as client,
        pytest.raises(TypeError, match="expect"),
    ):
        client.subscribe(topics, on_assign)


@pytest.mark.parametrize("family", [aio.AIOKafkaProducer, aio.AIOKafkaConsumer])
async def test_client_that_fails_to_start_leaves_no_thread(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.clients.own_connection.MAX_WAIT_FOR_FIRST_S", 0.05)
    more = {"group_id": "g"} if family is aio.AIOKafkaConsumer else {}
    client = family(bootstrap_servers=f"127.0.0.1:{free_port()}", client_id="not-started", **more)
    with pytest.raises(KafkaConnectionError):
        await client.start()
    assert "klamm-connections-not-started" not in [thread.name for thread in threading.enumerate()]
    await client.stop()
