"""``klamm clients list`` on a running broker: clients that follow, ignore or never registered."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

from klamm import cli
from klamm.admin import (
    AdminClient,
    ClientConfigEntity,
    ClientConfigOp,
    EntityFilter,
    EntityType,
    FilterComponent,
    NewTopic,
)
from klamm.cli import clients as command
from klamm.client_configs.registrations import TOPIC
from klamm.clients import KafkaProducer, aio
from tests.support.klamm import KlammBroker
from tests.support.processes import free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def metrics() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def broker(metrics: str) -> Iterator[KlammBroker]:
    with KlammBroker({"metrics.listen": metrics}) as running:
        with AdminClient(running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name="listed", num_partitions=1, replication_factor=1)]).all().result()
            admin.alter_client_configs(
                {ClientConfigEntity.of_user("ANONYMOUS"): [ClientConfigOp("acks", "all")]}
            ).all().result()
        yield running


def client_entry(metrics: str, client_id: str) -> dict[str, Any]:
    (entry,) = [client for client in command.fetch(metrics) if client["client_id"] == client_id]
    return entry


def test_following_client_is_in_line_after_fetch_and_pending_after_change(broker: KlammBroker, metrics: str) -> None:
    # given
    with (
        KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, client_id="follows", acks=1, enable_idempotence=False
        ) as producer,
        AdminClient(broker.bootstrap_servers) as admin,
    ):
        producer.send("listed", b"x").get(20)
        entry = client_entry(metrics, "follows")
        assert (entry["registered"], entry["standing"], entry["told"]) == (["acks"], "in line", {"acks": "all"})
        assert entry["connections"] >= 1
        assert abs(entry["last_seen_ms"] / 1000 - time.time()) < 60
        # when
        app = ClientConfigEntity.of_client("ANONYMOUS", "follows")
        admin.alter_client_configs({app: [ClientConfigOp("acks", "0")]}).all().result()
        # then
        assert client_entry(metrics, "follows")["standing"] == "pending"
    wait_until(
        lambda: client_entry(metrics, "follows")["connections"] == 0, timeout_s=60, what="the broker to see the end"
    )


def test_client_without_kip_649_is_listed_as_unregistered(
    broker: KlammBroker, metrics: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """K649-68: Old client, new broker: nothing changes."""
    # given
    plain = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "plain"})
    plain.produce("listed", b"x")
    assert plain.flush(20) == 0
    # when
    entry = client_entry(metrics, "plain")
    code = command.main(["list", "--metrics", metrics, "--client", "plain"])
    # then
    assert (entry["registered"], entry["standing"], entry["ignored"]) == (None, "ignores", ["acks"])
    assert entry["software_name"] == "confluent-kafka-python"
    assert entry["kinds"] == ["producer"]
    assert code == 0
    assert "unknown (never registered)" in capsys.readouterr().out


def test_keys_of_one_client_kind_do_not_concern_others(broker: KlammBroker, metrics: str) -> None:
    # given: acks is set for every client of the user
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("listed", b"x")
    assert producer.flush(20) == 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "client.id": "reads", "group.id": "g"}
    )
    consumer.assign([confluent_kafka.TopicPartition("listed", 0, 0)])
    # when
    assert consumer.poll(20) is not None
    with AdminClient(broker.bootstrap_servers, client_id="administers") as admin:
        admin.list_groups().result()
        # then
        entries = {(each["client_id"], *each["kinds"]): each for each in command.fetch(metrics)}
        for key in (("reads", "consumer"), ("administers", "admin")):
            assert (entries[key]["standing"], entries[key]["ignored"]) == ("not concerned", [])
    consumer.close()


async def test_aiokafka_client_is_listed_once_with_its_unnamed_connections(broker: KlammBroker, metrics: str) -> None:
    async with aio.AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id="aio", acks=1) as client:
        await client.send_and_wait("listed", b"x")
        entry = await asyncio.to_thread(client_entry, metrics, "aio")
    assert (entry["software_name"], entry["standing"]) == ("klamm-aiokafka", "in line")
    assert entry["connections"] >= 2


def test_describe_shows_client_with_empty_client_id(broker: KlammBroker, capsys: pytest.CaptureFixture[str]) -> None:
    servers = ["--bootstrap-server", broker.bootstrap_servers]
    for client_id in ("", "beside"):
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id=client_id):
            pass
    # when
    code = cli.main(["configs", *servers, "--describe", "--entity-type", "users", "--entity-type", "clients"])
    # then
    output = capsys.readouterr().out
    assert code == 0, output
    assert "user-principal 'ANONYMOUS', client-id ''" in output
    assert "user-principal 'ANONYMOUS', client-id 'beside'" in output


def test_deleted_registration_topic_clears_registrations(broker: KlammBroker) -> None:
    everybody = EntityFilter(
        components=(
            FilterComponent.of_entity_type(EntityType.USER),
            FilterComponent.of_entity_type(EntityType.CLIENT_ID),
        ),
        strict=True,
    )

    def registered(admin: AdminClient) -> set[str | None]:
        entities = admin.describe_client_configs(everybody).result()
        return {each.entity.client_id for each in entities if each.compatibility}

    def register(client_id: str) -> None:
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id=client_id):
            pass

    with AdminClient(broker.bootstrap_servers) as admin:
        # given
        register("before")
        register("after")
        assert {"before", "after"} <= registered(admin)
        # when
        admin.delete_topics([TOPIC]).all().result()
        # then
        assert registered(admin) == set()
        register("after")
        assert registered(admin) == {"after"}
    broker.restart()
    with AdminClient(broker.bootstrap_servers) as admin:
        assert registered(admin) == {"after"}
