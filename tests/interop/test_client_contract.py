"""Requests that every client with dynamic configs sends, for each library, read from its frames."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import kafka
import pytest

from klamm.admin import AdminClient, ClientConfigEntity, ClientConfigOp, NewTopic
from klamm.client_configs.definitions import HEARTBEAT_INTERVAL_MS
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.join_group import JoinGroupRequest
from klamm.protocol.messages.sync_group import SyncGroupRequest
from tests.support.dynamic_clients import (
    CONSUMERS,
    INTERVAL_MS,
    PRODUCERS,
    TOPIC,
    CentralConfigs,
    Family,
    Settings,
    encoded,
)
from tests.support.frame_proxy import FrameProxy
from tests.support.klamm import KlammBroker
from tests.support.long_tests import long_only
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from klamm.clients import ConfigUpdate
    from klamm.protocol.frames import RequestHeader
    from tests.support.dynamic_clients import RunningClient, RunningConsumer
    from tests.support.frame_proxy import Replacement
    from tests.support.kafka import KafkaCluster

KEY_50: Final = DescribeClientConfigsRequest.API_KEY
KEY_18: Final = ApiVersionsResponse.API_KEY
PATIENCE_S: Final = 60.0

FAMILIES: Final = (*PRODUCERS, *CONSUMERS)
SHORT: Final = (PRODUCERS[1], CONSUMERS[0])
"""A producer and a consumer of two libraries."""
OTHERS: Final = long_only(*(family for family in FAMILIES if family not in SHORT))
every_family = pytest.mark.parametrize("family", [*SHORT, *OTHERS], ids=lambda family: family.name)


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    with KlammBroker({"group.initial.rebalance.delay.ms": "0"}) as running:
        with AdminClient(running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name=TOPIC, num_partitions=1, replication_factor=1)]).all().result()
        yield running


@pytest.fixture
def central() -> CentralConfigs:
    return CentralConfigs()


@pytest.fixture
def proxy(broker: KlammBroker, central: CentralConfigs) -> Iterator[FrameProxy]:
    with FrameProxy(broker.bootstrap_servers, replacements={KEY_50: central}) as running:
        yield running


def settings(
    proxy: FrameProxy,
    client_id: str,
    *,
    enabled: bool = True,
    idempotent: bool = False,
    on_change: Callable[[ConfigUpdate], None] | None = None,
) -> Settings:
    return Settings(
        servers=proxy.bootstrap_servers,
        client_id=client_id,
        enabled=enabled,
        idempotent=idempotent,
        on_change=on_change,
    )


@pytest.fixture
def client_id(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    return name


def work_until(client: RunningClient, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        client.work()


def flips(values: Sequence[int]) -> list[int]:
    return [value for value, _ in itertools.groupby(values)]


@every_family
def test_client_fetches_configs_first_and_registers_supported_keys(
    family: Family[RunningClient], proxy: FrameProxy, central: CentralConfigs, client_id: str
) -> None:
    """K649-30: The user is taken from the connection's authenticated principal (name without "User:".

    K649-39: A client registers its supported keys at start-up through a DescribeClientConfigs request (SupportedConfigs
    non-null).

    K649-73: Consumer: first fetch is done before the first JoinGroup so the join already carries the dynamic session
    timeout; then periodically.

    K649-74: Producer: fetch in the send loop; acks of later Produce requests follow the dynamic value.

    K649-75: Producer registers [acks]; consumer registers [session.timeout.ms, heartbeat.interval.ms].
    """
    # given
    value, on_the_wire = family.new
    central.values = {family.key: value}
    # when
    client = family.start(settings(proxy, client_id))
    try:
        work_until(client, lambda: bool(family.sent(proxy)))
    finally:
        client.close()
    # then
    assert set(family.sent(proxy)) == {on_the_wire}
    first, *_ = proxy.requests(KEY_50)
    assert first.at_s < proxy.requests(family.api)[0].at_s
    request = first.read(DescribeClientConfigsRequest)
    assert request.resolve_entity
    assert request.supported_configs == list(family.keys)
    assert [(component.entity_type, component.match_type, component.match) for component in request.components] == [
        ("client-id", 0, client_id)
    ]


@every_family
def test_client_fetches_again_after_each_interval_with_one_request_in_flight(
    family: Family[RunningClient], broker: KlammBroker, central: CentralConfigs, client_id: str
) -> None:
    """K649-39: A client registers its supported keys at start-up through a DescribeClientConfigs request
    (SupportedConfigs non-null).

    K649-72: Fetch interval = metadata.max.age.ms (default 300000); at most one request in flight; failed (no response)
    -> retry, expiry clock not reset.
    """
    # given a broker that takes longer to answer than the interval lasts
    answered_at_s: list[float] = []

    def slowly(header: RequestHeader, body: memoryview) -> bytes:
        time.sleep(1.5 * INTERVAL_MS / 1000)
        answered_at_s.append(time.monotonic())
        return central(header, body)

    # when
    with FrameProxy(broker.bootstrap_servers, replacements={KEY_50: slowly}) as proxy:
        client = family.start(settings(proxy, client_id))
        try:
            work_until(client, lambda: len(proxy.requests(KEY_50)) >= 3)
        finally:
            client.close()
        # then
        requests = proxy.requests(KEY_50)
        registered = [request.read(DescribeClientConfigsRequest).supported_configs for request in requests]
        assert [keys is None for keys in registered] == [False] + [True] * (len(registered) - 1)
        pauses_s = [request.at_s - answered for answered, request in zip(answered_at_s, requests[1:], strict=False)]
        assert min(pauses_s) >= 0.9 * INTERVAL_MS / 1000


@every_family
def test_changed_config_is_applied_reported_and_reverted(
    family: Family[RunningClient],
    proxy: FrameProxy,
    central: CentralConfigs,
    client_id: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """K649-34: Resolved dynamic values override the client's static (.properties) values; static overrides built-in
    defaults.

    K649-74: Producer: fetch in the send loop; acks of later Produce requests follow the dynamic value.

    K649-77: A key that vanishes from the answer reverts to the client's static value.

    K649-80: Unknown keys in Values are ignored.
    """
    # given
    caplog.set_level("INFO", "klamm.clients")
    updates: list[ConfigUpdate] = []
    value, on_the_wire = family.new
    client = family.start(settings(proxy, client_id, on_change=updates.append))
    try:
        work_until(client, lambda: family.sent(proxy)[-1:] == [family.old])
        # when
        central.values = {family.key: value, "linger.ms": "5"}
        work_until(client, lambda: family.sent(proxy)[-1] == on_the_wire)
        central.values = {}
        work_until(client, lambda: family.sent(proxy)[-1] == family.old)
    finally:
        client.close()
    # then
    assert flips(family.sent(proxy)) == [family.old, on_the_wire, family.old]
    own = str(family.old)
    reported = [(change.name, change.old, change.new, change.origin) for update in updates for change in update.changes]
    assert reported == [(family.key, own, value, "dynamic"), (family.key, value, own, "static")]
    for before, after, origin in ((own, value, "dynamic"), (value, own, "static")):
        line = f"{family.key} of client {client_id} changed from {before} to {after} ({origin})"
        assert caplog.text.count(line) == 1


@every_family
def test_invalid_config_is_rejected_and_last_good_values_kept(
    family: Family[RunningClient],
    proxy: FrameProxy,
    central: CentralConfigs,
    client_id: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """K649-76: A set that fails client validation (e.g. heartbeat >= session."""
    # given
    updates: list[ConfigUpdate] = []
    value, on_the_wire = family.new
    central.values = {family.key: value}
    client = family.start(settings(proxy, client_id, on_change=updates.append))
    try:
        work_until(client, lambda: family.sent(proxy)[-1:] == [on_the_wire])
        # when
        central.values = family.bad
        requests_before = len(proxy.requests(KEY_50))
        work_until(client, lambda: len(proxy.requests(KEY_50)) >= requests_before + 3)
        work_until(client, lambda: family.sent(proxy)[-1] == on_the_wire)
    finally:
        client.close()
    # then
    assert set(family.sent(proxy)) == {on_the_wire}
    assert len(updates) == 1
    assert caplog.text.count("are rejected, the last good ones stay") == 1


@every_family
def test_disabled_client_sends_no_config_request(
    family: Family[RunningClient], proxy: FrameProxy, central: CentralConfigs, client_id: str
) -> None:
    """K649-71: Client switch ``enable.dynamic.config`` (bool, default true); false -> never sends key 50."""
    # given
    central.values = {family.key: family.new[0]}
    # when
    client = family.start(settings(proxy, client_id, enabled=False))
    try:
        work_until(client, lambda: bool(family.sent(proxy)))
    finally:
        client.close()
    # then
    assert proxy.requests(KEY_50) == []
    assert set(family.sent(proxy)) == {family.old}


def _without_features(header: RequestHeader, body: memoryview) -> bytes:
    response = decode(ApiVersionsResponse, header.api_version, body)
    response.supported_features = []
    return bytes(encode(response, header.api_version))


def _rejecting(code: int) -> Replacement:
    return lambda _, __: encoded(DescribeClientConfigsResponse(error_code=code, error_message="no", entries=None))


OLD_BROKERS: Final[dict[str, tuple[dict[int, Replacement], int]]] = {
    "feature absent": ({KEY_18: _without_features}, 0),
    "error 35": ({KEY_50: _rejecting(35)}, 1),
    "error 42": ({KEY_50: _rejecting(42)}, 1),
    "closed": ({KEY_50: lambda _, __: None}, 1),
    "garbage": ({KEY_50: lambda _, __: b"\xff" * 40}, 1),
}


@pytest.mark.parametrize("kind", ["error 42", "closed", *long_only("feature absent", "error 35", "garbage")])
def test_client_disables_dynamic_configs_on_old_broker_and_continues(
    kind: str, broker: KlammBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """K649-67: New client, old broker: broker answers 42 (or does not offer the API); the client disables the feature
    and keeps working with static configs.

    K649-70: Also treat as "old broker": key absent in ApiVersions, error 35, unparsable answer, connection closed on
    the first try.
    """
    # given
    caplog.set_level("INFO", "klamm.clients")
    replacements, requests = OLD_BROKERS[kind]
    with contextlib.ExitStack() as stack:
        proxies = [
            stack.enter_context(FrameProxy(broker.bootstrap_servers, replacements=replacements)) for _ in FAMILIES
        ]
        # when
        for family, proxy in zip(FAMILIES, proxies, strict=True):
            client = family.start(settings(proxy, f"{kind}, {family.name}"))
            stack.callback(client.close)
            work_until(client, lambda family=family, proxy=proxy: bool(family.sent(proxy)))  # type: ignore[misc]
            ends_at = time.monotonic() + 2 * INTERVAL_MS / 1000  # by then it would have asked again
            work_until(client, lambda ends_at=ends_at: time.monotonic() > ends_at)  # type: ignore[misc]
        # then
        for family, proxy in zip(FAMILIES, proxies, strict=True):
            assert (family.name, len(proxy.requests(KEY_50))) == (family.name, requests)
            assert (family.name, set(family.sent(proxy))) == (family.name, {family.old})
            assert caplog.text.count(f"Dynamic configs are off for client {kind}, {family.name}") == 1
    ours = f"klamm-connections-{kind}, "
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)] == []


@pytest.mark.parametrize("family", PRODUCERS, ids=lambda family: family.name)
def test_idempotent_producer_ignores_acks_below_all(
    family: Family[RunningClient], proxy: FrameProxy, central: CentralConfigs, client_id: str
) -> None:
    """K649-76: A set that fails client validation (e.g. heartbeat >= session."""
    # given
    central.values = {family.key: "1"}
    updates: list[ConfigUpdate] = []
    # when
    client = family.start(settings(proxy, client_id, idempotent=True, on_change=updates.append))
    try:
        work_until(client, lambda: len(proxy.requests(KEY_50)) >= 2)
        central.values = {family.key: "-1"}
        requests_before = len(proxy.requests(KEY_50))
        work_until(client, lambda: len(proxy.requests(KEY_50)) >= requests_before + 2)
    finally:
        client.close()
    # then
    assert set(family.sent(proxy)) == {-1}
    assert updates == []


@pytest.mark.parametrize("family", CONSUMERS, ids=lambda family: family.name)
def test_changed_heartbeat_interval_applies_within_the_generation(
    family: Family[RunningClient], proxy: FrameProxy, central: CentralConfigs, client_id: str
) -> None:
    """K649-79: Changed heartbeat.interval.ms takes effect at the next heartbeat."""
    # given
    slow_ms, count = 2_000, 8
    central.values = {HEARTBEAT_INTERVAL_MS: str(slow_ms)}
    client = family.start(settings(proxy, client_id))
    try:
        work_until(client, lambda: bool(proxy.requests(SyncGroupRequest.API_KEY)))
        # when
        central.values = {HEARTBEAT_INTERVAL_MS: "50"}
        work_until(client, lambda: len(proxy.requests(HeartbeatRequest.API_KEY)) > count)
    finally:
        client.close()
    # then
    beats = proxy.requests(HeartbeatRequest.API_KEY)
    pauses_s = sorted(later.at_s - sooner.at_s for sooner, later in itertools.pairwise(beats[-count:]))
    assert pauses_s[count // 2] < 0.8 * slow_ms / 1000
    assert len({beat.read(HeartbeatRequest).generation_id for beat in beats}) == 1


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


@pytest.mark.parametrize(
    ("family", "assignor"),
    [*((family, "range") for family in CONSUMERS), (CONSUMERS[1], "cooperative-sticky")],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_rejoining_consumer_resumes_without_a_rebalance(
    family: Family[RunningConsumer], assignor: str, broker: KlammBroker, client_id: str
) -> None:
    """K649-73: Consumer: first fetch is done before the first JoinGroup so the join already carries the dynamic session
    timeout; then periodically.

    K649-77: A key that vanishes from the answer reverts to the client's static value.

    K649-78: Changed session.timeout.ms is sent to the coordinator by a new JoinGroup; a stable group must not rebalance
    for that alone.
    """
    updates: list[ConfigUpdate] = []
    read: dict[int, list[bytes]] = {0: [], 1: []}
    name = f"goes-on-{uuid4()}"
    with (
        FrameProxy(broker.bootstrap_servers) as proxy,
        AdminClient(broker.bootstrap_servers, timeout_ms=30_000) as admin,
        contextlib.closing(kafka.KafkaProducer(bootstrap_servers=broker.bootstrap_servers)) as writer,
    ):
        admin.create_topics([NewTopic(name=name, num_partitions=2, replication_factor=1)]).all().result()

        def put(**values: str | None) -> None:
            ops = [ClientConfigOp(key, value) for key, value in values.items()]
            admin.alter_client_configs({ClientConfigEntity.of_client("ANONYMOUS", client_id): ops}).all().result()

        def write(start: int, end: int) -> None:
            for value in numbers(start, end):
                for partition in read:
                    writer.send(name, value, partition=partition)
            writer.flush(30)

        def read_until(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not condition():
                assert time.monotonic() < deadline, read
                for partition, value in client.read():
                    read[partition].append(value)

        def has_joined_with(session_timeout_ms: int) -> bool:
            return family.sent(proxy)[-1] == session_timeout_ms and client.is_assigned(2)

        # given a partition that was never read, and one that is to be read again from its third record
        put(**{family.key: "21000"})
        client = family.start(
            Settings(
                servers=proxy.bootstrap_servers,
                client_id=client_id,
                topic=name,
                assignor=assignor,
                on_change=updates.append,
            )
        )
        try:
            read_until(lambda: client.is_assigned(2))
            client.pause(1)
            write(0, 5)
            read_until(lambda: len(read[0]) == 5)
            client.seek(0, 2)
            before = len(proxy.requests(HeartbeatRequest.API_KEY))
            # when
            put(**{family.key: "22000"})
            wait_until(lambda: len(updates) == 2, timeout_s=PATIENCE_S, what="the change to be told")
            read_until(lambda: has_joined_with(22_000))
            put(**{family.key: None})
            read_until(lambda: has_joined_with(30_000))
            write(5, 10)
            read_until(lambda: len(read[0]) == 5 + 8)
            # then
            assert read == {0: numbers(0, 5) + numbers(2, 10), 1: []}
            client.resume(1)
            read_until(lambda: len(read[1]) == 10)
            beats = len(proxy.requests(HeartbeatRequest.API_KEY))
            read_until(lambda: len(proxy.requests(HeartbeatRequest.API_KEY)) > beats)
        finally:
            client.close()
        assert read == {0: numbers(0, 5) + numbers(2, 10), 1: numbers(0, 10)}
        assert flips(family.sent(proxy)) == [21_000, 22_000, 30_000]
        heartbeats = [request.read(HeartbeatRequest) for request in proxy.requests(HeartbeatRequest.API_KEY)[before:]]
        # The first join only asks for a member id. kafka-python joins again, with the same timeout, if it hears of the
        # partitions of the new topic while it assigns them: that is a rebalance which it has asked for.
        joins = family.sent(proxy)[1:]
        own_rebalances = sum(join == other for join, other in itertools.pairwise(joins))
        assert len({beat.generation_id for beat in heartbeats}) <= 1 + own_rebalances, joins


@pytest.mark.long
def test_clients_work_with_kafka_and_send_no_config_request(
    real_kafka: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """K649-67, K649-70, O649-A."""
    # given
    caplog.set_level("INFO", "klamm.clients")
    with AdminClient(real_kafka.bootstrap_servers, timeout_ms=30_000) as admin:
        admin.create_topics([NewTopic(name=TOPIC, num_partitions=1, replication_factor=1)]).all().result()
    with FrameProxy(real_kafka.bootstrap_servers) as proxy:
        for family in (*PRODUCERS, *CONSUMERS):
            # when
            client_id = unique(f"{family.name} ")
            seen = len(family.sent(proxy))
            client = family.start(settings(proxy, client_id))
            try:
                work_until(client, lambda family=family, seen=seen: len(family.sent(proxy)) > seen)  # type: ignore[misc]
            finally:
                client.close()
            # then
            assert set(family.sent(proxy)) == {family.old}
            assert caplog.text.count(f"Dynamic configs are off for client {client_id}: the broker does not") == 1
        assert proxy.requests(KEY_50) == []
        assert proxy.requests(51) == []
        joins = [request.read(JoinGroupRequest) for request in proxy.requests(JoinGroupRequest.API_KEY)]
        assert {join.group_instance_id for join in joins} == {None}
