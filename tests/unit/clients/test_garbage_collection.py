"""Clients that are not closed: their requests for configs keep neither them nor the application's objects alive."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from klamm.client_configs.definitions import ACKS
from klamm.clients import ConfigUpdate, KafkaConsumer, aio, confluent
from klamm.clients.dynamic_config import DynamicConfigs, normalise_producer
from klamm.clients.own_connection import OwnConnection
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsResponse
from tests.support.processes import wait_until
from tests.support.stub_broker import StubBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


class Application:
    """Owns a client that refers to it by its callback."""

    client: Any

    def on_change(self, update: ConfigUpdate) -> None: ...


def assert_is_collected(client: weakref.ref[Any]) -> None:
    """Collect garbage until the client is gone: the thread of the requests looks at it for an instant now and then."""

    def is_collected() -> bool:
        gc.collect()
        return client() is None

    wait_until(is_collected, timeout_s=30, what="the client to be garbage collected")


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    with StubBroker(features={"client.configs": (1, 1)}, versions={50: (0, 0)}) as stub:
        entry = DescribeClientConfigsResponse.EntryData(values=[])
        stub.answer(50, lambda _: DescribeClientConfigsResponse(error_message=None, entries=[entry]))
        yield stub


@pytest.mark.parametrize("family", [confluent.Producer, confluent.Consumer])
def test_confluent_client_is_garbage_collected(family: Any, broker: StubBroker) -> None:
    # given
    application = Application()
    properties = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"}
    if family is confluent.Producer:
        del properties["group.id"]
    application.client = family(properties, on_dynamic_config_change=application.on_change)
    client = weakref.ref(application.client)
    # when
    del application
    # then
    assert_is_collected(client)


def test_kafka_python_consumer_is_garbage_collected(broker: StubBroker) -> None:
    # given
    application = Application()
    application.client = KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, group_id="g", on_dynamic_config_change=application.on_change
    )
    client = weakref.ref(application.client)
    with contextlib.closing(application.client._client):
        # when
        del application
        # then
        assert_is_collected(client)


async def test_aiokafka_client_is_garbage_collected(broker: StubBroker) -> None:
    # given
    application = Application()
    application.client = aio.AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, on_dynamic_config_change=application.on_change
    )
    normalise = functools.partial(normalise_producer, is_idempotent=False)
    configs = application.client._wanted
    application.client._dynamic = await aio._start(application.client, configs, client_id="app1", normalise=normalise)
    application.client._closed = True  # otherwise aiokafka warns
    client = weakref.ref(application.client)
    # when
    del application
    # then
    assert_is_collected(client)


def test_client_can_be_collected_as_soon_as_the_first_response_is_announced(broker: StubBroker) -> None:
    # given
    clients = [Application()]
    client = weakref.ref(clients[0])
    configs = DynamicConfigs(
        client_id="app1",
        static={ACKS: "1"},
        normalise=functools.partial(normalise_producer, is_idempotent=False),
        interval_s=60,
        retry_backoff_s=1,
    )
    connection = OwnConnection(
        client=clients[0],
        settings={"bootstrap_servers": broker.bootstrap_servers, "client_id": "app1"},
        software_name="klamm-test",
        configs=configs,
        apply=lambda *_: None,
    )
    seen: list[object] = []

    def drop_the_client(_: object) -> None:
        clients.clear()
        gc.collect()
        seen.append(client())

    connection._loop._first.add_done_callback(drop_the_client)
    # when
    connection.start()
    # then
    connection.close()
    assert seen == [None]
