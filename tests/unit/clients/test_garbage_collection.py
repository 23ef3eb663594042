"""Clients that are not closed: their requests for configs keep neither them nor the application's objects alive."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from klamm.clients import ConfigUpdate, KafkaConsumer, aio, confluent
from klamm.clients.dynamic_config import normalise_producer
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsResponse
from tests.support.stub_broker import StubBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


class Application:
    """Owns a client that refers to it by its callback."""

    client: Any

    def on_change(self, update: ConfigUpdate) -> None: ...


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
    gc.collect()
    # then
    assert client() is None


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
        gc.collect()
        # then
        assert client() is None


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
    gc.collect()
    # then
    assert client() is None
