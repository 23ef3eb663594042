"""A running consumer follows centrally set timeouts: read from its JoinGroup and Heartbeat frames."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest

from klamm.admin import AdminClient, ClientConfigEntity, ClientConfigOp, NewTopic
from klamm.clients import ConfigUpdate, KafkaConsumer
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.join_group import JoinGroupRequest
from tests.support.frame_proxy import FrameProxy
from tests.support.klamm import KlammBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

APP = ClientConfigEntity.of_client("ANONYMOUS", "timeout-app")


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    with KlammBroker({"group.initial.rebalance.delay.ms": "0"}) as running:
        with AdminClient(running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name="timeouts", num_partitions=1, replication_factor=1)]).all().result()
        yield running


@pytest.fixture
def admin(broker: KlammBroker) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap_servers, timeout_ms=20_000) as client:
        yield client
        put(client, **{"session.timeout.ms": None, "heartbeat.interval.ms": None})


@pytest.fixture
def proxy(broker: KlammBroker) -> Iterator[FrameProxy]:
    with FrameProxy(broker.bootstrap_servers) as running:
        yield running


def put(admin: AdminClient, **values: str | None) -> None:
    ops = [ClientConfigOp(name, value) for name, value in values.items()]
    admin.alter_client_configs({APP: ops}).all().result()


def consumer(proxy: FrameProxy, group: str | None, **configs: Any) -> KafkaConsumer:
    settings: dict[str, Any] = {"client_id": "timeout-app", "metadata_max_age_ms": 200, **configs}
    return KafkaConsumer("timeouts", bootstrap_servers=proxy.bootstrap_servers, group_id=group, **settings)


def session_timeouts(proxy: FrameProxy) -> list[int]:
    """Of all JoinGroup requests, repetitions left out."""
    timeouts = [request.read(JoinGroupRequest).session_timeout_ms for request in proxy.requests(11)]
    return [key for key, _ in itertools.groupby(timeouts)]


def poll_until(client: KafkaConsumer, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        client.poll(50)


def test_the_first_join_already_carries_the_dynamic_session_timeout(admin: AdminClient, proxy: FrameProxy) -> None:
    """K649-73, K649-75."""
    put(admin, **{"session.timeout.ms": "21000"})
    client = consumer(proxy, "first-join")
    try:
        poll_until(client, lambda: bool(client.assignment()))
    finally:
        client.close()
    assert session_timeouts(proxy) == [21_000]
    first = proxy.requests(50)[0]
    assert first.at_s < proxy.requests(11)[0].at_s
    registered = first.read(DescribeClientConfigsRequest).supported_configs
    assert registered == ["session.timeout.ms", "heartbeat.interval.ms"]


def test_a_changed_session_timeout_reaches_the_coordinator_and_comes_back(
    admin: AdminClient, proxy: FrameProxy
) -> None:
    """K649-77, K649-78."""
    updates: list[ConfigUpdate] = []
    client = consumer(proxy, "changed-join", session_timeout_ms=30_000, on_dynamic_config_change=updates.append)
    try:
        poll_until(client, lambda: bool(client.assignment()))
        put(admin, **{"session.timeout.ms": "22000"})
        poll_until(client, lambda: session_timeouts(proxy)[-1] == 22_000)
        put(admin, **{"session.timeout.ms": None})
        poll_until(client, lambda: session_timeouts(proxy)[-1] == 30_000)
        poll_until(client, lambda: bool(client.assignment()))
    finally:
        client.close()
    assert session_timeouts(proxy) == [30_000, 22_000, 30_000]
    members = {request.read(JoinGroupRequest).member_id for request in proxy.requests(11)} - {""}
    assert len(members) == 1
    assert [change.new for update in updates for change in update.changes] == ["22000", "30000"]


def test_a_changed_heartbeat_interval_takes_effect_without_joining_again(admin: AdminClient, proxy: FrameProxy) -> None:
    """K649-79."""

    def heartbeats() -> list[float]:
        return [request.at_s for request in proxy.requests(HeartbeatRequest.API_KEY)]

    client = consumer(proxy, "heartbeats", heartbeat_interval_ms=1_000)
    try:
        poll_until(client, lambda: len(heartbeats()) >= 2)
        slow = heartbeats()
        joins = len(proxy.requests(11))
        put(admin, **{"heartbeat.interval.ms": "100"})
        poll_until(client, lambda: len(heartbeats()) >= len(slow) + 15)
        assert len(proxy.requests(11)) == joins
    finally:
        client.close()
    fast = heartbeats()[-8:]
    assert slow[-1] - slow[-2] > 0.8
    assert (fast[-1] - fast[0]) / (len(fast) - 1) < 0.5


def test_a_consumer_without_a_group_has_nothing_to_ask(proxy: FrameProxy) -> None:
    """K649-71."""
    for settings in ({"group": None}, {"group": "switched-off", "enable_dynamic_config": False}):
        client = consumer(proxy, **settings)
        client.poll(300)
        client.close()
    assert proxy.requests(50) == []
