"""Data directories that a release of klamm wrote, with a description of what is in them.

``python -m tests.support.data_archive`` lets the klamm of this checkout write one: ``tests/data/klamm-VERSION.tar.xz``
and ``tests/data/klamm-VERSION.json``. Every later version must open it and describe the same content.
"""

from __future__ import annotations

import dataclasses
import json
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

import klamm
from klamm.admin import (
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    AdminClient,
    AlterConfigOp,
    ClientConfigEntity,
    ClientConfigOp,
    ClientQuotaEntity,
    ClientQuotaOp,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    EntityFilter,
    EntityType,
    FilterComponent,
    NewTopic,
    OpType,
    PatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from klamm.protocol.records import Record, decode_records, encode_batch
from tests.support.klamm import KlammBroker
from tests.support.processes import wait_until
from tests.support.transaction_wire import TransactionClient, committed_offset, read_committed
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Mapping

ARCHIVES: Final = Path(__file__).parents[1] / "data"
PASSWORD: Final = "of-an-earlier-version"  # noqa: S105 - for the user of the archives
USER: Final = "carol"
OPEN_TRANSACTION: Final = "payments-open"
SETTINGS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.delete.retention.ms": "9000000000000",  # nothing in an archive ever expires
    "offsets.retention.minutes": "2147483647",
    "transactional.id.expiration.ms": "2147483647",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "2147483647",
}
TOPICS: Final[tuple[tuple[str, int, dict[str, str]], ...]] = (
    ("orders", 3, {}),
    ("compacted", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1"}),
    ("appended", 1, {"message.timestamp.type": "LogAppendTime"}),
    ("truncated", 1, {}),
    ("payments", 1, {}),
)
"""Name, number of partitions and configs. Broker 1 leads all partitions."""
_ANY_USER: Final = EntityFilter(
    components=(FilterComponent.of_entity_type(EntityType.USER),),
    strict=False,
)
_T0: Final = 1_700_000_000_000
"""Timestamp of the first record. No topic has a retention that would remove it."""


def fill(broker: KlammBroker) -> None:
    """Write topics of all kinds, transactions, groups, configs, ACLs, credentials, quotas and client configs."""
    servers = broker.bootstrap_servers
    with AdminClient(servers) as admin, WireClient(servers.split(",", maxsplit=1)[0]) as wire:
        topics = [
            NewTopic(
                name,
                configs={"retention.ms": "-1", **configs},
                replicas_assignments=dict.fromkeys(range(partitions), (1, 2)),
            )
            for name, partitions, configs in TOPICS
        ]
        admin.create_topics(topics).result()
        _produce(servers)
        _compact(wire)
        _truncate(wire)
        _transactions(wire)
        _commit_offsets(servers)
        _configure(admin)


def _produce(servers: str) -> None:
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        producer = Producer({"bootstrap.servers": servers, "compression.type": codec, "enable.idempotence": True})
        for partition in range(3):
            for record in range(4):
                producer.produce(
                    "orders",
                    key=f"{codec}-{record}",
                    value=f"{codec} {record} " + "x" * 40,
                    partition=partition,
                    timestamp=_T0 + number * 1000 + record,
                    headers=[("trace", b"\x00\xff"), ("empty", b""), ("none", None)],
                )
        for topic, partition in (("appended", 0), ("truncated", 0)):
            producer.produce(topic, value=codec, partition=partition, timestamp=_T0 + number)
        producer.flush(30)


def _compact(wire: WireClient) -> None:
    for number in range(12):
        value = None if number % 4 == 3 else b"%d" % number
        wire.produce("compacted", 0, encode_batch([Record(b"key %d" % (number % 4), value, timestamp=_T0 + number)]))
    wait_until(
        lambda: sum(len(decode_records(batch)) for batch in wire.read_to_end("compacted", 0)) <= 6,
        timeout_s=30,
        what="the compaction of a topic",
    )


def _truncate(wire: WireClient) -> None:
    part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="truncated", partitions=[part])
    answer = wire.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=10_000), DeleteRecordsResponse, 2)
    assert [partition.error_code for topic in answer.topics for partition in topic.partitions] == [0]


def _transactions(wire: WireClient) -> None:
    for name, commit in (("payments-d", True), ("payments-b", False), ("payments-f", True), (OPEN_TRANSACTION, None)):
        client = TransactionClient(wire, name)
        client.find_coordinator()
        _, identity = client.init(4, timeout_ms=900_000)
        assert client.add(identity, 3, "payments", 0) == [0]
        assert client.produce(identity, 9, "payments", 0, name, sequence=0) == 0
        assert client.add_offsets(identity, 3, "payers") == 0
        assert client.commit_offset(identity, 3, "payers", "orders", len(name)) == 0
        if commit is not None:
            assert client.end(identity, 3, commit=commit)[0] == 0


def _commit_offsets(servers: str) -> None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    while not consumer.assignment():
        consumer.poll(0.1)
    offsets = [TopicPartition("orders", partition, 5 + partition, metadata=f"p{partition}") for partition in range(3)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def _configure(admin: AdminClient) -> None:
    altered = {
        ConfigResource(ResourceType.TOPIC, "orders"): {"max.message.bytes": "200000"},
        ConfigResource(ResourceType.BROKER, ""): {"log.retention.bytes": "-1"},
        ConfigResource(ResourceType.BROKER, "1"): {"log.cleaner.threads": "1"},
        ConfigResource(ResourceType.GROUP, "billing"): {"consumer.session.timeout.ms": "50000"},
    }
    admin.incremental_alter_configs(
        {
            resource: [AlterConfigOp(ConfigEntry(name, value), OpType.SET) for name, value in configs.items()]
            for resource, configs in altered.items()
        }
    ).result()
    quotas = {
        ClientQuotaEntity.of({"user": "dave"}): [ClientQuotaOp("producer_byte_rate", 1e9)],
        ClientQuotaEntity.of({"user": None, "client-id": "app"}): [ClientQuotaOp("request_percentage", 150.0)],
        ClientQuotaEntity.of({"ip": "127.0.0.9"}): [ClientQuotaOp("connection_creation_rate", 500.0)],
    }
    admin.alter_client_quotas(quotas).result()
    configs = {
        ClientConfigEntity.of_user(None): [ClientConfigOp("acks", "all")],
        ClientConfigEntity.of_client("dave", "app"): [ClientConfigOp("session.timeout.ms", "45000")],
    }
    admin.alter_client_configs(configs).result()
    read = Acl(
        resource_type=AclResourceType.TOPIC,
        resource_name="orders",
        pattern_type=PatternType.LITERAL,
        principal=f"User:{USER}",
        host="*",
        operation=AclOperation.READ,
        permission=AclPermission.ALLOW,
    )
    denied = dataclasses.replace(
        read,
        resource_type=AclResourceType.GROUP,
        resource_name="bill",
        pattern_type=PatternType.PREFIXED,
        principal="User:*",
        host="127.0.0.1",
        permission=AclPermission.DENY,
    )
    admin.create_acls([read, denied]).result()
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        credential = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD)
        admin.alter_user_scram_credentials([credential]).result()


def describe(servers: str) -> dict[str, Any]:
    """Return the content of a broker as plain data that compares equal in every version."""
    with AdminClient(servers) as admin, WireClient(servers.split(",", maxsplit=1)[0]) as wire:
        names = sorted(admin.list_topics().result())
        topics = admin.describe_topics(names).result()
        resources = [
            *(ConfigResource(ResourceType.TOPIC, name) for name in names),
            ConfigResource(ResourceType.BROKER, "1"),
            ConfigResource(ResourceType.BROKER, ""),
            ConfigResource(ResourceType.GROUP, "billing"),
        ]
        return {
            "api versions": _api_versions(wire),
            "cluster id": admin.describe_cluster().result().cluster_id,
            "topics": {
                name: {
                    "id": str(topics[name].topic_id),
                    "replicas": [list(partition.replicas) for partition in topics[name].partitions],
                    "partitions": [_partition(wire, name, index) for index in range(len(topics[name].partitions))],
                }
                for name in names
            },
            "dynamic configs": {
                f"{resource.type.name} {resource.name}": _dynamic(entries)
                for resource, entries in admin.describe_configs(resources).result().items()
            },
            "groups": {
                group: {
                    f"{at.topic}-{at.partition}": None if committed is None else [committed.offset, committed.metadata]
                    for at, committed in sorted(admin.list_group_offsets({group: None}).result()[group].items())
                }
                for group in sorted(listing.group_id for listing in admin.list_groups().result())
            },
            "committed offset of the payers": list(committed_offset(wire, "payers", "orders")),
            "transactions": _transactions_of(wire),
            "acls": sorted(
                [
                    acl.resource_type.name,
                    acl.resource_name,
                    acl.pattern_type.name,
                    acl.principal,
                    acl.host,
                    acl.operation.name,
                    acl.permission.name,
                ]
                for acl in admin.describe_acls().result()
            ),
            "scram": {
                user: sorted([info.mechanism.name, info.iterations] for info in infos)
                for user, infos in admin.list_user_scram_credentials().result().items()
            },
            "quotas": sorted(
                (
                    [[list(part) for part in entity.parts], dict(values)]
                    for entity, values in admin.describe_client_quotas().result().items()
                ),
                key=json.dumps,
            ),
            "client configs": sorted(
                (
                    [[[kind.value, name] for kind, name in described.entity.components], dict(described.configs)]
                    for described in admin.describe_client_configs(_ANY_USER).result()
                ),
                key=json.dumps,
            ),
        }


def _api_versions(wire: WireClient) -> dict[str, list[int]]:
    answer = wire.ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
    return {str(versions.api_key): [versions.min_version, versions.max_version] for versions in answer.api_keys}


def _dynamic(entries: Mapping[str, ConfigEntry]) -> dict[str, str | None]:
    sources = {
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
        ConfigSource.DYNAMIC_BROKER_CONFIG,
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        ConfigSource.GROUP_CONFIG,
    }
    return {name: entry.value for name, entry in sorted(entries.items()) if entry.source in sources}


def _partition(wire: WireClient, topic: str, index: int) -> dict[str, Any]:
    records = [
        [
            record.offset,
            record.timestamp,
            _text(record.key),
            _text(record.value),
            [[name, _text(value)] for name, value in record.headers],
        ]
        for batch in wire.read_to_end(topic, index, _offset(wire, topic, index, -2))
        if not batch.is_control
        for record in decode_records(batch)
    ]
    return {
        "start, end": [_offset(wire, topic, index, -2), _offset(wire, topic, index, -1)],
        "records": records,
        "committed": read_committed(wire, topic, index, _offset(wire, topic, index, -2)),
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _offset(wire: WireClient, topic: str, index: int, timestamp: int) -> int:
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=timestamp)
    wanted = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])
    answer = wire.ask(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[wanted]), ListOffsetsResponse, 7)
    ((result,),) = (topic.partitions for topic in answer.topics)
    assert result.error_code == 0
    return int(result.offset)


def _transactions_of(wire: WireClient) -> dict[str, str]:
    answer = wire.ask(ListTransactionsRequest(state_filters=[], producer_id_filters=[]), ListTransactionsResponse, 0)
    return {
        str(transaction.transactional_id): str(transaction.transaction_state)
        for transaction in answer.transaction_states
    }


def broker_on(data_dir: Path) -> KlammBroker:
    """Return a broker with two ids on a data directory."""
    return KlammBroker(SETTINGS, brokers=2, data_dir=data_dir)


def main() -> None:
    """Write the archive of this version."""
    with tempfile.TemporaryDirectory(prefix="klamm-archive-") as folder:
        data_dir = Path(folder, "data")
        with broker_on(data_dir) as broker:
            fill(broker)
            content = describe(broker.bootstrap_servers)
        ARCHIVES.mkdir(exist_ok=True)
        name = ARCHIVES / f"klamm-{klamm.__version__}"
        with tarfile.open(f"{name}.tar.xz", "w:xz") as archive:
            archive.add(data_dir, "data")
        Path(f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
