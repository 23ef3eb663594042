from __future__ import annotations

import json
from dataclasses import replace

from klamm.kafka_client.connection.security import Security
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.fetch import FetchLimits
from klamm.kraft.image import BrokerEndpoint
from klamm.mirror.copy.equal_offsets import ReplicaSettings
from klamm.mirror.copy.offset_sync_writer import SyncSettings
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.settings import CopySettings
from klamm.mirror.copy.transactions import ShardSettings
from klamm.mirror.naming import CONNECTOR
from klamm.mirror.spark.leases import FlowShare, PartitionGroup, from_json, partition_groups, to_json
from klamm.server.listeners import Address


def share(flow: str, partitions: int) -> FlowShare:
    security = Security(protocol="SASL_SSL", mechanism="PLAIN", username="u")
    connection = ConnectionSettings(bootstrap_servers=("h:1",), client_id="c", security=security)
    settings = CopySettings(
        flow=flow,
        source_alias=flow[0],
        connector=CONNECTOR,
        source=connection,
        target=connection,
        source_offsets_topic="p",
        source_offsets_interval_s=1.0,
        read_committed=False,
        fetch_limits=FetchLimits(1, 2, 3, 4),
        buffer_bytes=5,
        syncs=SyncSettings(topic="s", connection=connection, lag_max=6),
    )
    return FlowShare(settings=settings, partitions=tuple(PartitionId("t", at, "A.t") for at in range(partitions)))


def distributed(groups: tuple[PartitionGroup, ...]) -> list[list[tuple[str, list[int]]]]:
    return [[(s.settings.flow, [p.partition for p in s.partitions]) for s in group.shares] for group in groups]


def test_partitions_rotate_over_slots() -> None:
    assert distributed(partition_groups([share("A->B", 5)], slots=4, tasks_max={"A->B": 2})) == [
        [("A->B", [0, 2, 4])],
        [("A->B", [1, 3])],
    ]


def test_groups_do_not_exceed_partitions() -> None:
    """K894-48: Tasks: partitions distributed round-robin to min(tasks.max, partitions)."""
    assert len(partition_groups([share("A->B", 2)], slots=8, tasks_max={"A->B": 8})) == 2


def test_group_has_minimum_partition_count() -> None:
    assert [len(partition_groups([share("A->B", count)], slots=3, tasks_max={})) for count in (5, 8, 9, 16, 90)] == [
        1,
        1,
        2,
        2,
        3,
    ]


def test_tasks_max_limits_groups_of_flow() -> None:
    """K894-48: Tasks: partitions distributed round-robin to min(tasks.max, partitions)."""
    assert distributed(partition_groups([share("A->B", 3)], slots=8, tasks_max={"A->B": 1})) == [[("A->B", [0, 1, 2])]]
    assert len(partition_groups([share("A->B", 3)], slots=8, tasks_max={"A->B": 2})) == 2


def test_flows_beyond_slots_share_task() -> None:
    groups = partition_groups([share("A->B", 1), share("B->A", 1), share("A->C", 1)], slots=2, tasks_max={})
    assert distributed(groups) == [[("A->B", [0]), ("A->C", [0])], [("B->A", [0])]]


def test_group_round_trips_as_json() -> None:
    group = PartitionGroup(number=3, shares=(share("A->B", 2),), session="s")
    assert from_json(json.loads(json.dumps(to_json(group)))) == group


def in_transactions(flow_share: FlowShare, shards: int) -> FlowShare:
    transactions = ShardSettings(id_prefix="p", shards=shards, shard=0, interval_s=1.0, shortest_s=0.1, timeout_ms=9)
    return replace(flow_share, settings=replace(flow_share.settings, transactions=transactions))


def test_exactly_once_flow_is_assigned_by_shards() -> None:
    """K894-39: partitions of a shard are in one group, however many slots there are."""
    flow_share = in_transactions(share("A->B", 8), 4)
    ids_by_slots = {}
    for slots in (1, 2, 3, 16):
        groups = partition_groups([flow_share], slots=slots, tasks_max={})
        assert len(groups) == min(slots, 4)
        parts = [part for group in groups for part in group.shares]
        ids = {
            part.settings.transactions.transactional_id: part.partitions for part in parts if part.settings.transactions
        }
        assert sorted(ids) == ["p-4-0", "p-4-1", "p-4-2", "p-4-3"]
        ids_by_slots[slots] = ids
    assert ids_by_slots[1] == ids_by_slots[2] == ids_by_slots[3] == ids_by_slots[16], (
        "a partition never changes its transactional id"
    )


def test_empty_shard_is_not_assigned() -> None:
    assert len(partition_groups([in_transactions(share("A->B", 2), 64)], slots=8, tasks_max={})) == 2


def test_shard_round_trips_as_json() -> None:
    (group,) = partition_groups([in_transactions(share("A->B", 2), 4)], slots=1, tasks_max={})
    assert from_json(json.loads(json.dumps(to_json(group)))) == group


def of_replica(share: FlowShare) -> FlowShare:
    replica = ReplicaSettings(
        node_id=9,
        controllers=share.settings.target,
        listeners=(BrokerEndpoint(name="INTERNAL", host="h", port=9, security_protocol="PLAINTEXT"),),
        bind=(Address(host="h", port=9),),
    )
    return replace(share, settings=replace(share.settings, replica=replica))


def test_flow_of_a_broker_is_one_task() -> None:
    groups = partition_groups([of_replica(share("A->B", 50))], slots=4, tasks_max={"A->B": 4})

    assert [len(group.shares[0].partitions) for group in groups] == [50]


def test_stopped_flow_changes_no_group_number_of_replicas() -> None:
    """A broker lives in the process of its group, so another number would restart it."""
    flows = {flow: of_replica(share(flow, 5)) for flow in ("A->B", "C->B")} | {"D->B": share("D->B", 1)}

    def numbers(*names: str, slots: int = 4) -> dict[str, int]:
        shares = [flows[name] for name in names]
        groups = partition_groups(shares, slots=slots, tasks_max={}, replicas=["A->B", "C->B"])
        return {each.settings.flow: group.number for group in groups for each in group.shares}

    assert numbers("A->B", "C->B") == {"A->B": 0, "C->B": 1}
    assert numbers("C->B") == {"C->B": 1}
    assert numbers("D->B", "C->B", "A->B") == {"A->B": 0, "C->B": 1, "D->B": 2}
    assert numbers("C->B", slots=1) == {"C->B": 0}


def test_settings_of_a_broker_round_trip_as_json() -> None:
    group = PartitionGroup(number=0, shares=(of_replica(share("A->B", 2)),))

    assert from_json(json.loads(json.dumps(to_json(group)))) == group
