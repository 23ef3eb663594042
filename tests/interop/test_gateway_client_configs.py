"""Client configs (KIP-649) behind three gateways in front of real Apache Kafka, with clients as they come.

``make soak`` plays it with a thousand alterations and ten thousand entities, ``make test`` with some dozens.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import time
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

import klamm
from klamm import cli
from klamm.admin import (
    AdminClient,
    AlterConfigOp,
    ClientConfigEntity,
    ClientConfigOp,
    ConfigEntry,
    ConfigResource,
    EntityFilter,
    EntityType,
    FilterComponent,
    NewTopic,
    OpType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from klamm.clients import KafkaProducer
from klamm.protocol.messages.alter_client_configs import AlterClientConfigsRequest, AlterClientConfigsResponse
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.types import ResourceType
from tests.support.alterations import alter_all
from tests.support.processes import free_port, wait_until
from tests.support.recording_proxy import owner_of
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kafka import KafkaCluster
    from tests.support.lent_kafka import LentKafka


TOPIC = "gateway-client-configs"
CONFIGS_TOPIC = "__klamm_client_configs"
ALL_USERS = EntityFilter(components=(FilterComponent.of_entity_type(EntityType.USER),), strict=False)
KEYS = {"acks": "all", "session.timeout.ms": "9000", "heartbeat.interval.ms": "500"}
_SOON_S = 60.0
_IS_SOAK = bool(os.environ.get("KLAMM_SOAK"))
_USERS = 334 if _IS_SOAK else 24
"""Users who get all ``KEYS``."""
_ENTITIES = 10_000 if _IS_SOAK else 300

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def _sockets_collected() -> Iterator[None]:
    yield
    gc.collect()


class Rig:
    """Three gateways and the addresses of their metrics."""

    def __init__(self, cluster: KafkaCluster, gateways: list[klamm.Gateway], metrics: list[str]) -> None:
        self.cluster = cluster
        self.gateways = gateways
        self.metrics = metrics

    def page(self, number: int, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.metrics[number]}{path}", timeout=60) as response:
            text: str = response.read().decode()
            return text


def gateway_before(cluster: KafkaCluster, metrics: str, **more: Any) -> klamm.Gateway:
    config = {
        "client.configs.enable": "true",
        "change.history.enable": "true",
        "client.config.enforcement": "on",
        "metrics.listen": metrics,
    }
    return klamm.Gateway(cluster.bootstrap_servers, config=config | more)


@pytest.fixture(scope="module")
def rig(lent_kafka_of_release: LentKafka) -> Iterator[Rig]:
    """Gateways before a node of their own: what they keep there is the configs of all clients of a cluster."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(lent_kafka_of_release.lend())
        metrics = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        gateways = [stack.enter_context(gateway_before(cluster, each)) for each in metrics]
        with AdminClient(gateways[0].bootstrap_servers) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 1)]).all().result()
        yield Rig(cluster, gateways, metrics)


@pytest.fixture
def admins(rig: Rig) -> Iterator[list[AdminClient]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(AdminClient(each.bootstrap_servers)) for each in rig.gateways]


def users(admin: AdminClient) -> dict[str, dict[str, str]]:
    """Return the configs of all named users."""
    return {
        described.entity.user: dict(described.configs)
        for described in admin.describe_client_configs(ALL_USERS).result()
        if described.entity.user is not None and not described.entity.has_client_id and described.configs
    }


def set_for(admin: AdminClient, client_id: str, key: str, value: str | None) -> None:
    entity = ClientConfigEntity.of_client("ANONYMOUS", client_id)
    admin.alter_client_configs({entity: [ClientConfigOp(key, value)]}).all().result()


def test_configs_set_through_one_gateway_are_served_by_all(
    rig: Rig, admins: list[AdminClient], capsys: pytest.CaptureFixture[str]
) -> None:
    first, two, _ = (each.bootstrap_servers for each in rig.gateways)
    change = ("--alter", "--entity-type", "users", "--entity-name", "billing", "--add-config", "acks=all")
    assert cli.main(["configs", "--bootstrap-server", first, *change]) == 0
    wait_until(lambda: users(admins[1]).get("billing") == {"acks": "all"}, timeout_s=_SOON_S, what="the other gateway")
    capsys.readouterr()
    shown = ("--describe", "--entity-type", "users", "--entity-name", "billing")
    assert cli.main(["configs", "--bootstrap-server", two, *shown]) == 0
    assert "acks=all" in capsys.readouterr().out
    # the SCRAM requests with the same API keys go upstream
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    admins[0].alter_user_scram_credentials([UserScramCredentialUpsertion("scram", info, "secret")]).all().result()
    with AdminClient(rig.cluster.bootstrap_servers) as direct:
        wait_until(
            lambda: "scram" in direct.list_user_scram_credentials().result(), timeout_s=_SOON_S, what="credentials"
        )
    assert "scram" in admins[1].list_user_scram_credentials().result()
    topic = admins[2].describe_topics([CONFIGS_TOPIC]).all().result()[CONFIGS_TOPIC]
    assert [len(partition.replicas) for partition in topic.partitions] == [1]
    resource = ConfigResource(ResourceType.TOPIC, CONFIGS_TOPIC)
    configs = admins[2].describe_configs([resource]).all().result()[resource]
    assert configs["cleanup.policy"].value == "compact"


def test_concurrent_alterations_survive_a_killed_gateway(
    rig: Rig, admins: list[AdminClient], capsys: pytest.CaptureFixture[str]
) -> None:
    """The three keys of each user are set at the same time through different gateways, one of which dies meanwhile.

    The history has each change once, with its author.
    """
    changes = [(f"user-{number}", key, value) for number in range(_USERS) for key, value in KEYS.items()]

    def kill_one(answered: int) -> None:
        if answered == len(changes) * 2 // 5:
            rig.gateways[0].kill()

    addresses = [gateway.bootstrap_servers for gateway in rig.gateways]
    try:
        asyncio.run(alter_all(addresses, changes, at_once=120, on_answer=kill_one))
    finally:
        rig.gateways[0].start()
    expected = {f"user-{number}": KEYS for number in range(_USERS)}

    def altered(admin: AdminClient) -> dict[str, dict[str, str]]:
        return {user: own for user, own in users(admin).items() if user.startswith("user-")}

    for admin in admins:
        wait_until(lambda each=admin: altered(each) == expected, timeout_s=_SOON_S, what="all alterations")  # type: ignore[misc]
    capsys.readouterr()
    server = ("--bootstrap-server", addresses[1])
    assert cli.main(["configs", "history", *server, "--limit", "100000", "-o", "json"]) == 0
    entries = [entry for entry in json.loads(capsys.readouterr().out) if entry["resource"].startswith("user 'user-")]
    assert sorted((entry["resource"], entry["name"], entry["new"]) for entry in entries) == sorted(
        (f"user '{user}'", key, value) for user, key, value in changes
    )
    assert {(entry["old"], entry["principal"], entry["client_id"]) for entry in entries} == {
        (None, "User:ANONYMOUS", "alterations")
    }


def test_revert_restores_the_recorded_value(
    rig: Rig, admins: list[AdminClient], capsys: pytest.CaptureFixture[str]
) -> None:
    set_for(admins[0], "reverted", "acks", "1")
    where = ("--user", "ANONYMOUS", "--client", "reverted", "--bootstrap-server", rig.gateways[1].bootstrap_servers)
    assert cli.main(["clients", "history", *where, "-o", "json"]) == 0
    (newest,) = json.loads(capsys.readouterr().out)
    assert (newest["name"], newest["old"], newest["new"]) == ("acks", None, "1")
    set_for(admins[2], "reverted", "acks", "all")
    assert cli.main(["clients", "revert", *where, "--to", newest["at"]]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "  ~ acks: all -> 1",
        "user 'ANONYMOUS', client-id 'reverted': 1 config reverted.",
    ]


def test_history_of_all_change_kinds_is_readable_through_any_gateway(
    rig: Rig, admins: list[AdminClient], capsys: pytest.CaptureFixture[str]
) -> None:
    """SCRAM credentials have the API key of client configs."""
    topic = ConfigResource(ResourceType.TOPIC, TOPIC)
    for number, admin in enumerate(admins):
        operation = AlterConfigOp(ConfigEntry("retention.ms", f"{number + 1}0000"), OpType.SET)
        admin.incremental_alter_configs({topic: [operation]}).all().result()
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    admins[1].alter_user_scram_credentials([UserScramCredentialUpsertion("recorded", info, "hunter2")]).all().result()
    set_for(admins[2], "recorded", "acks", "1")

    def history(*flags: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        server = ("--bootstrap-server", rig.gateways[0].bootstrap_servers)
        assert cli.main(["configs", "history", *server, "-o", "json", *flags]) == 0
        shown = capsys.readouterr().out
        assert "hunter2" not in shown
        lines: list[dict[str, Any]] = json.loads(shown)
        return lines

    wait_until(lambda: len(history("--topic", TOPIC)) == 4, timeout_s=_SOON_S, what="the changes of the topic")
    of_topic = history("--topic", TOPIC)
    assert [(line["name"], line["new"]) for line in of_topic] == [
        ("retention.ms", "30000"),
        ("retention.ms", "20000"),
        ("retention.ms", "10000"),
        ("partitions", "1"),
    ]
    client = ("User:ANONYMOUS", "klamm-admin", "127.0.0.1", True)
    assert {(line["principal"], line["client_id"], line["host"], line["is_confirmed"]) for line in of_topic} == {client}

    def others() -> list[tuple[str, ...]]:
        lines = [line for line in history("--limit", "1000") if "recorded" in line["resource"]]
        return [(line["resource"], line["name"], line["new"]) for line in lines]

    wait_until(lambda: len(others()) == 2, timeout_s=_SOON_S, what="the changes of the user")
    assert others() == [
        ("user 'ANONYMOUS', client-id 'recorded'", "acks", "1"),
        ("SCRAM:recorded", "SCRAM-SHA-512", "[hidden] iterations=4096"),
    ]
    assert 'klamm_gateway_history_changes_total{outcome="lost"} 0' in rig.page(1, "/metrics")


def raised(rig: Rig) -> int:
    """Return how many requests of the first gateway were held to enforced acks."""
    prefix = 'klamm_enforced_client_configs_total{config="acks"} '
    samples = [line for line in rig.page(0, "/metrics").splitlines() if line.startswith(prefix)]
    return int(float(samples[0].rpartition(" ")[2])) if samples else 0


def test_acks_of_an_unmodified_producer_are_raised(rig: Rig, admins: list[AdminClient]) -> None:
    """With acks=0 the client expects no response, so the following requests show that it got none."""
    settings = {"bootstrap.servers": rig.gateways[0].bootstrap_servers, "client.id": "held", "log_level": 0}
    for acks in (1, 0):
        producer = Producer({**settings, "acks": acks})
        errors: list[KafkaError | None] = []

        def send(producer: Producer = producer, errors: list[KafkaError | None] = errors) -> None:
            for _ in range(5):
                producer.produce(TOPIC, b"value", on_delivery=lambda error, _: errors.append(error))
                assert producer.flush(_SOON_S) == 0

        before = raised(rig)
        send()
        assert raised(rig) == before
        set_for(admins[0], "held", "acks", "all")
        send()
        after = raised(rig)
        assert after >= before + 5
        set_for(admins[0], "held", "acks", None)
        send()
        assert raised(rig) == after
        assert errors == [None] * 15


def test_unusable_record_is_skipped_and_clients_are_served(rig: Rig) -> None:
    key, value = b'{"user":null}', b'{"configs":{"acks":"x","heartbeat.interval.ms":"1.5","session.timeout.ms":"9000"}}'
    kafka = Producer({"bootstrap.servers": rig.cluster.bootstrap_servers})
    kafka.produce(CONFIGS_TOPIC, value, key)
    kafka.flush(_SOON_S)
    errors: list[KafkaError | None] = []
    for number, gateway in enumerate(rig.gateways):
        wait_until(partial(skips, rig, number, 1), timeout_s=_SOON_S, what="the record")
        assert "the default user: Invalid value x for configuration acks" in rig.page(number, "/")
        producer = Producer({"bootstrap.servers": gateway.bootstrap_servers, "client.id": "beside"})
        producer.produce(TOPIC, b"value", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(_SOON_S) == 0
    assert errors == [None] * len(rig.gateways)
    kafka.produce(CONFIGS_TOPIC, None, key)
    kafka.flush(_SOON_S)
    wait_until(partial(skips, rig, 0, 0), timeout_s=_SOON_S, what="its removal")


def skips(rig: Rig, number: int, count: int) -> bool:
    return f"klamm_skipped_client_config_records {count}" in rig.page(number, "/metrics")


def consumer_of(rig: Rig, number: int, client_id: str, **settings: Any) -> Consumer:
    servers = rig.gateways[number].bootstrap_servers
    common = {"bootstrap.servers": servers, "client.id": client_id, "group.id": client_id, "log_level": 0}
    consumer = Consumer(common | settings)
    consumer.subscribe([TOPIC])
    return consumer


def test_session_timeout_of_classic_consumer_is_replaced(rig: Rig, admins: list[AdminClient]) -> None:
    """Kafka rejects a timeout below ``group.min.session.timeout.ms``, so it has received another one."""
    set_for(admins[0], "short", "session.timeout.ms", "9000")
    wanted = {"session.timeout.ms": 1000, "heartbeat.interval.ms": 300}
    consumer = consumer_of(rig, 0, "short", **wanted)
    try:
        wait_until(
            lambda: consumer.poll(0.05) is None and bool(consumer.assignment()), timeout_s=_SOON_S, what="assignment"
        )
        (client,) = [
            client for client in json.loads(rig.page(0, "/clients.json"))["clients"] if client["client_id"] == "short"
        ]
        assert client["reported"]["session.timeout.ms"] == "1000"
        assert client["compliance"] == {"session.timeout.ms": "enforced"}
        assert (client["standing"], client["drift"]) == ("enforced", ["session.timeout.ms"])
    finally:
        consumer.close()


def interval_of(client: WireClient, group_id: str) -> int:
    """Join a group and leave it again. Return the heartbeat interval that its member gets."""
    group = FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id])
    member: dict[str, Any] = {"group_id": group_id, "member_id": "A" * 22, "rebalance_timeout_ms": 60_000}
    joining = ConsumerGroupHeartbeatRequest(**member, subscribed_topic_names=[TOPIC], topic_partitions=[])
    intervals: list[int] = []

    def has_joined() -> bool:
        if client.ask(group, FindCoordinatorResponse, 4).coordinators[0].error_code == 0:  # creates its topic
            answer = client.ask(joining, ConsumerGroupHeartbeatResponse, 1)
            intervals[:] = [answer.heartbeat_interval_ms] if answer.error_code == 0 else []
        return bool(intervals)

    wait_until(has_joined, timeout_s=_SOON_S, what="a place in the group")
    leaving = ConsumerGroupHeartbeatRequest(**member, member_epoch=-1, topic_partitions=None)
    assert client.ask(leaving, ConsumerGroupHeartbeatResponse, 1).error_code == 0
    return intervals[0]


def test_heartbeat_interval_of_consumer_protocol_member_is_replaced(rig: Rig, admins: list[AdminClient]) -> None:
    """Kafka itself offers 5 s."""
    set_for(admins[0], "beating", "heartbeat.interval.ms", "9000")
    with WireClient(rig.gateways[0].bootstrap_servers, client_id="beating") as client:
        assert interval_of(client, "beating") == 9000
    assert 'klamm_enforced_client_configs_total{config="heartbeat.interval.ms"}' in rig.page(0, "/metrics")


@pytest.mark.long
def test_gateway_processes_serve_the_same_configs_after_one_is_killed(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that was started again gets connections when it has read the configs: the first one is enforced."""
    metrics = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        gateway = stack.enter_context(gateway_before(rig.cluster, metrics, processes=2))

        def connect() -> tuple[int | None, WireClient]:
            """Return a connection, and the process that serves it."""
            client = stack.enter_context(WireClient(gateway.bootstrap_servers, client_id="held-by-all", timeout_s=60))
            client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2)
            return owner_of(int(gateway.bootstrap_servers.rpartition(":")[2]), client.port), client

        # given
        served = dict(connect() for _ in range(2))
        (killed, first), (_, other) = served.items()
        # when: configs are set through one process
        set_by(first, "held-by-all", "heartbeat.interval.ms", "9000")
        set_by(first, "follows-all", "acks", "all")
        # then: a client of the other process is held to them, and one that requests them follows
        wait_until(lambda: interval_of(other, "held-by-all") == 9000, timeout_s=_SOON_S, what="the other process")
        follower = stack.enter_context(
            KafkaProducer(
                bootstrap_servers=gateway.bootstrap_servers,
                client_id="follows-all",
                acks=1,
                enable_idempotence=False,
            )
        )
        wait_until(lambda: follower.config["acks"] == -1, timeout_s=_SOON_S, what="acks=all")
        follower.send(TOPIC, b"before").get(60)
        capsys.readouterr()
        assert cli.main(["clients", "list", "--metrics", metrics, "-o", "json"]) == 0
        listed = {each["client_id"]: each for each in json.loads(capsys.readouterr().out)}
        assert listed["held-by-all"]["connections"] == 2
        assert listed["held-by-all"]["compliance"] == {"heartbeat.interval.ms": "enforced"}
        assert listed["follows-all"]["compliance"] == {"acks": "follows"}
        # when: the process through which they were set is killed, and another one set meanwhile
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        set_by(other, "held-by-all", "acks", "all")
        # then
        fresh: list[WireClient] = []

        def has_newcomer() -> bool:
            with contextlib.suppress(ConnectionError):  # dealt to the process that was killed
                process, client = connect()
                fresh[:] = [client]
                return process is not None and process not in served
            return False

        wait_until(has_newcomer, timeout_s=_SOON_S, interval_s=0.1, what="the new process")
        assert interval_of(fresh[0], "held-by-all") == 9000
        assert configs_of(fresh[0]) == configs_of(other) == {"heartbeat.interval.ms": "9000", "acks": "all"}
        follower.send(TOPIC, b"after").get(60)


def set_by(client: WireClient, client_id: str, key: str, value: str) -> None:
    """Set a config for a client id over one connection."""
    entity = [
        AlterClientConfigsRequest.EntityData(entity_type=entity_type, entity_name=name)
        for entity_type, name in (("user", "ANONYMOUS"), ("client-id", client_id))
    ]
    entry = AlterClientConfigsRequest.EntryData(
        entity=entity, ops=[AlterClientConfigsRequest.OpData(key=key, value=value)]
    )
    (outcome,) = client.ask(AlterClientConfigsRequest(entries=[entry]), AlterClientConfigsResponse, 0).entries
    assert outcome.error_code == 0, outcome.error_message


def configs_of(client: WireClient) -> dict[str, str]:
    """Describe the configs of ``held-by-all`` over one connection."""
    components = [
        DescribeClientConfigsRequest.ComponentData(entity_type=entity_type, match_type=0, match=name)
        for entity_type, name in (("user", "ANONYMOUS"), ("client-id", "held-by-all"))
    ]
    request = DescribeClientConfigsRequest(components=components, supported_configs=None, strict=True)
    response = client.ask(request, DescribeClientConfigsResponse, 0)
    assert response.error_code == 0, response.error_message
    (entry,) = response.entries or []
    return {each.key: each.value for each in entry.values}


def test_registration_is_visible_through_all_gateways(rig: Rig, admins: list[AdminClient]) -> None:
    set_for(admins[0], "dynamic", "acks", "all")
    entity = ClientConfigEntity.of_client("ANONYMOUS", "dynamic")
    producer = KafkaProducer(bootstrap_servers=rig.gateways[0].bootstrap_servers, client_id="dynamic")
    try:
        wait_until(lambda: producer.config["acks"] == -1, timeout_s=_SOON_S, what="acks=all")
    finally:
        producer.close()

    def registered(admin: AdminClient) -> bool:
        entities = {described.entity: described for described in admin.describe_client_configs(_of("dynamic")).result()}
        return entity in entities and any("acks" in each.supported_configs for each in entities[entity].compatibility)

    for admin in admins:
        wait_until(lambda each=admin: registered(each), timeout_s=_SOON_S, what="the registration")  # type: ignore[misc]
    (client,) = [
        client for client in json.loads(rig.page(0, "/clients.json"))["clients"] if client["client_id"] == "dynamic"
    ]
    assert (client["standing"], client["compliance"]) == ("in line", {"acks": "follows"})


def _of(client_id: str) -> EntityFilter:
    return EntityFilter(
        components=(
            FilterComponent.of_entity(EntityType.USER, "ANONYMOUS"),
            FilterComponent.of_entity(EntityType.CLIENT_ID, client_id),
        ),
        strict=True,
    )


def test_new_gateway_is_ready_with_all_entities(rig: Rig, admins: list[AdminClient], record_property: Any) -> None:
    some = {
        ClientConfigEntity.of_user(f"many-{number}"): [ClientConfigOp("acks", "all")] for number in range(_ENTITIES)
    }
    admins[1].alter_client_configs(some).all().result()
    started = time.monotonic()
    with gateway_before(rig.cluster, f"127.0.0.1:{free_port()}") as fresh:
        assert time.monotonic() - started < _SOON_S
        with AdminClient(fresh.bootstrap_servers) as admin:
            assert sum(user.startswith("many-") for user in users(admin)) == _ENTITIES
