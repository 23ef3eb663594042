"""Dynamic client configs end to end: an operator's change, read from the Produce frames of a running producer."""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING, Any

import kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka import Producer as ConfluentProducer
from kafka.admin import KafkaAdminClient

from klamm.admin import (
    AdminClient,
    ClientConfigEntity,
    ClientConfigOp,
    EntityFilter,
    EntityType,
    FilterComponent,
    NewTopic,
)
from klamm.client_configs.registrations import TOPIC as REGISTRATIONS
from klamm.clients import KafkaProducer
from klamm.protocol.errors import InvalidTopicError
from tests.support.frame_proxy import FrameProxy
from tests.support.klamm import KlammBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


ANONYMOUS = ClientConfigEntity.of_user("ANONYMOUS")


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    with KlammBroker() as running:
        yield running


@pytest.fixture
def admin(broker: KlammBroker) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap_servers, timeout_ms=20_000) as client:
        yield client


@pytest.fixture
def proxy(broker: KlammBroker) -> Iterator[FrameProxy]:
    with FrameProxy(broker.bootstrap_servers) as running:
        yield running


def topic(admin: AdminClient, name: str) -> str:
    admin.create_topics([NewTopic(name=name, num_partitions=1, replication_factor=1)]).all().result()
    return name


def producer(bootstrap_servers: str, client_id: str, **configs: Any) -> KafkaProducer:
    settings: dict[str, Any] = {
        "client_id": client_id,
        "acks": 1,
        "enable_idempotence": False,
        "metadata_max_age_ms": 200,
        **configs,
    }
    return KafkaProducer(bootstrap_servers=bootstrap_servers, **settings)


def put(admin: AdminClient, entity: ClientConfigEntity, **values: str | None) -> None:
    ops = [ClientConfigOp(name, value) for name, value in values.items()]
    admin.alter_client_configs({entity: ops}).all().result()


def produce_until(client: KafkaProducer, name: str, proxy: FrameProxy, acks: int) -> int:
    """Produce record after record until one goes out with ``acks``; returns how many it took."""
    deadline = time.monotonic() + 20
    for count in range(1, 10_000):
        client.send(name, b"%d" % count).get(20)
        if proxy.produced_acks()[-1:] == [acks]:  # with acks=0, the request may still be on its way
            return count
        assert time.monotonic() < deadline
        time.sleep(0.02)
    raise AssertionError


def registrations(bootstrap_servers: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", exclude_internal_topics=False
    )
    try:
        partition = kafka.TopicPartition(REGISTRATIONS, 0)
        if not consumer.partitions_for_topic(REGISTRATIONS):
            return []
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        records: list[tuple[dict[str, Any], dict[str, Any]]] = []
        while len(records) < end:
            for batch in consumer.poll(1_000).values():
                records.extend((json.loads(record.key), json.loads(record.value)) for record in batch)
        return records
    finally:
        consumer.close()


def test_running_producer_applies_changed_acks_and_reverts(admin: AdminClient, proxy: FrameProxy) -> None:
    """K649-34: Resolved dynamic values override the client's static (.properties) values; static overrides built-in
    defaults.

    K649-69: Both new: feature used.

    K649-74: Producer: fetch in the send loop; acks of later Produce requests follow the dynamic value.

    K649-77: A key that vanishes from the answer reverts to the client's static value.
    """
    name = topic(admin, "acks-change")
    app = ClientConfigEntity.of_client("ANONYMOUS", "acks-app")
    with producer(proxy.bootstrap_servers, "acks-app") as client:
        produce_until(client, name, proxy, 1)
        connections = {request.connection for request in proxy.requests(0)}
        put(admin, app, acks="all")
        produce_until(client, name, proxy, -1)
        put(admin, app, acks=None)
        produce_until(client, name, proxy, 1)
        assert {request.connection for request in proxy.requests(0)} == connections
    acks = proxy.produced_acks()
    flips = [acks[0], *(now for before, now in itertools.pairwise(acks) if now != before)]
    assert flips == [1, -1, 1]


def test_client_id_overrides_user_and_user_overrides_default(admin: AdminClient, proxy: FrameProxy) -> None:
    """K649-32, O649-D."""
    name = topic(admin, "acks-layers")
    layers = (ClientConfigEntity.of_client("ANONYMOUS", "layer-app"), ANONYMOUS, ClientConfigEntity.of_user(None))
    with producer(proxy.bootstrap_servers, "layer-app") as client:
        try:
            put(admin, layers[2], acks="0")
            produce_until(client, name, proxy, 0)
            put(admin, layers[1], acks="all")
            produce_until(client, name, proxy, -1)
            put(admin, layers[0], acks="1")
            produce_until(client, name, proxy, 1)
        finally:
            for layer in layers:
                put(admin, layer, acks=None)


def test_client_is_registered_once_and_survives_a_kill(broker: KlammBroker) -> None:
    """K649-22: EntityCompatibility lists, per software name+version that registered under the entity, the configs it
    supports.

    K649-39: A client registers its supported keys at start-up through a DescribeClientConfigs request (SupportedConfigs
    non-null).

    K649-40: The broker writes the registration to an internal topic.

    K649-44: The topic must not be plain-compacted: same key for many versions, compaction would lose all but the last.

    K649-45: Registrations survive broker restart and are visible from every broker.

    K649-63: Configs survive restart; any broker may be asked.
    """
    for _ in range(2):
        with producer(broker.bootstrap_servers, "registered-app"):
            pass
    with AdminClient(broker.bootstrap_servers) as admin:
        put(admin, ClientConfigEntity.of_client("ANONYMOUS", "registered-app"), acks="all")
        assert admin.list_topics(include_internal=True).result()[REGISTRATIONS].is_internal
    broker.restart(kill=True)
    mine = [value for key, value in registrations(broker.bootstrap_servers) if key["client-id"] == "registered-app"]
    assert [value["supported_configs"] for value in mine] == [["acks"]]
    with AdminClient(broker.bootstrap_servers) as admin:
        exactly = EntityFilter(
            components=(
                FilterComponent.of_entity(EntityType.USER, "ANONYMOUS"),
                FilterComponent.of_entity(EntityType.CLIENT_ID, "registered-app"),
            ),
            strict=True,
        )
        (described,) = admin.describe_client_configs(exactly).result()
    assert dict(described.configs) == {"acks": "all"}
    (compatibility,) = described.compatibility
    assert compatibility.client_information.startswith("klamm-kafka-python/")
    assert compatibility.supported_configs == ("acks",)


def test_clients_cannot_write_registrations(broker: KlammBroker) -> None:
    """K649-48: The registration topic is not mirrored and not writable by clients."""
    with producer(broker.bootstrap_servers, "forger"):
        pass
    before = registrations(broker.bootstrap_servers)
    errors: list[KafkaError | None] = []
    forger = ConfluentProducer({"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 30_000})
    forger.produce(REGISTRATIONS, b"{}", b"{}", on_delivery=lambda error, _: errors.append(error))
    assert forger.flush(60) == 0
    assert [error.code() for error in errors if error is not None] == [KafkaError.TOPIC_EXCEPTION]
    assert registrations(broker.bootstrap_servers) == before


def test_clients_cannot_create_the_registrations_topic() -> None:
    """K649-48: The registration topic is not mirrored and not writable by clients."""
    with KlammBroker() as fresh, AdminClient(fresh.bootstrap_servers, timeout_ms=20_000) as admin:
        curious = kafka.KafkaConsumer(REGISTRATIONS, bootstrap_servers=fresh.bootstrap_servers)
        curious.poll(500)
        curious.close()
        mine = NewTopic(name=REGISTRATIONS, num_partitions=2, replication_factor=1)
        with pytest.raises(InvalidTopicError):
            admin.create_topics([mine]).all().result()
        assert REGISTRATIONS not in admin.list_topics(include_internal=True).result()
        with producer(fresh.bootstrap_servers, "first-app"):
            pass
        assert admin.list_topics(include_internal=True).result()[REGISTRATIONS].is_internal
        assert len(registrations(fresh.bootstrap_servers)) == 1


def test_clients_without_kip_649_are_unaffected(broker: KlammBroker, admin: AdminClient, proxy: FrameProxy) -> None:
    """K649-68: Old client, new broker: nothing changes."""
    name = topic(admin, "old-clients")
    put(admin, ANONYMOUS, acks="0")
    try:
        old = ConfluentProducer({"bootstrap.servers": proxy.bootstrap_servers, "client.id": "old-app", "acks": "all"})
        old.produce(name, b"value")
        assert old.flush(20) == 0
    finally:
        put(admin, ANONYMOUS, acks=None)
    assert proxy.produced_acks() == [-1]
    assert proxy.requests(50) == []
    assert all(key["client-id"] != "old-app" for key, _ in registrations(broker.bootstrap_servers))


def test_scram_and_client_configs_share_api_keys_in_one_process(broker: KlammBroker, admin: AdminClient) -> None:
    """O649-A."""
    theirs = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        with producer(broker.bootstrap_servers, "scram-app"):
            for _ in range(3):
                described = theirs.describe_user_scram_credentials()
                put(admin, ClientConfigEntity.of_client("ANONYMOUS", "scram-app"), acks="all")
                users = EntityFilter(
                    components=(FilterComponent.of_entity(EntityType.USER, "ANONYMOUS"),), strict=False
                )
                entities = [entry.entity for entry in admin.describe_client_configs(users).result()]
                assert ClientConfigEntity.of_client("ANONYMOUS", "scram-app") in entities
                assert not described
    finally:
        theirs.close()
