"""Config requests on a separate connection: invalid brokers, and garbage-collected clients."""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING
from unittest.mock import AsyncMock, Mock

from klamm.client_configs.definitions import ACKS
from klamm.clients.dynamic_config import ConfigUpdate, DynamicConfigs, normalise_producer
from klamm.clients.own_connection import OwnConnection, _OwnLoop
from klamm.kafka_client.pool.node import PooledConnection
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from tests.support.stub_broker import Answer, Request, StubBroker

if TYPE_CHECKING:
    from collections.abc import Mapping

ANNOUNCED = {"client.configs": (1, 1)}
KEY_50 = {50: (0, 0)}


def configs_of_a_producer() -> DynamicConfigs:
    def normalise(values: Mapping[str, str]) -> Mapping[str, str]:
        return normalise_producer(values, is_idempotent=False)

    return DynamicConfigs(
        client_id="own", static={ACKS: "1"}, normalise=normalise, interval_s=0.1, retry_backoff_s=0.02
    )


class Client:
    """Owns a connection, and can be forgotten."""

    def __init__(self, broker: StubBroker, seen: list[ConfigUpdate] | None = None) -> None:
        self.connection = OwnConnection(
            client=self,
            settings={"bootstrap_servers": broker.bootstrap_servers, "client_id": "own"},
            software_name="klamm-test",
            configs=configs_of_a_producer(),
            apply=lambda _, update: None if seen is None else seen.append(update),
        )


def with_acks(value: str) -> DescribeClientConfigsResponse:
    entry = DescribeClientConfigsResponse.EntryData(
        entity=[], values=[DescribeClientConfigsResponse.ValueData(key=ACKS, value=value)]
    )
    return DescribeClientConfigsResponse(error_message=None, entries=[entry])


def until(condition: object) -> None:
    deadline = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_first_response_applies_at_start_and_later_ones_follow() -> None:
    """K649-39: A client registers its supported keys at start-up through a DescribeClientConfigs request
    (SupportedConfigs non-null).

    K649-72: Fetch interval = metadata.max.age.ms (default 300000); at most one request in flight; failed (no response)
    -> retry, expiry clock not reset.

    K649-73: Consumer: first fetch is done before the first JoinGroup so the join already carries the dynamic session
    timeout; then periodically.
    """
    seen: list[ConfigUpdate] = []
    with StubBroker(features=ANNOUNCED, versions=KEY_50) as stub:
        stub.answer(50, lambda _: with_acks("all"))
        client = Client(stub, seen)
        # when
        assert client.connection.start()
        # then
        assert [update.effective[ACKS] for update in seen] == ["all"]
        # when
        stub.answer(50, lambda _: with_acks("0"))
        # then
        until(lambda: len(seen) == 2)
        client.connection.close()
        requests = [request.read(DescribeClientConfigsRequest) for request in stub.requests(50)]
        registered = [request.supported_configs for request in requests]  # type: ignore[attr-defined]
        assert registered[0] == [ACKS]
        assert set(map(str, registered[1:])) == {"None"}


def test_garbage_collected_client_stops_its_requests() -> None:
    with StubBroker(features=ANNOUNCED, versions=KEY_50) as stub:
        requests: list[Request] = []

        def answer(request: Request) -> Answer:
            requests.append(request)
            return with_acks("1")

        stub.answer(50, answer)
        client = Client(stub)
        client.connection.start()
        until(lambda: len(requests) > 1)
        # when
        del client

        # then
        def has_ended() -> bool:
            gc.collect()
            return not any(thread.name == "klamm-connections-own" for thread in threading.enumerate())

        until(has_ended)


async def test_first_request_is_repeated_if_the_connection_closes_before_it_is_sent() -> None:
    """A response of Metadata may throttle the connection, and the broker closes it during the pause."""
    # given
    closed = Mock(closed=True, features=ANNOUNCED)
    connection = PooledConnection(closed, Mock(), 30.0)
    pool = Mock(connection=AsyncMock(return_value=connection))
    configs = configs_of_a_producer()
    # when
    await _OwnLoop(pool, pool, configs, lambda *_: None)._ask_once()
    # then
    assert configs.disabled_because is None
    assert configs.due_in_s(0.0) is not None
