"""The impact of a change as a policy of the broker reads it, from the broker's own logs, groups and configs."""

from __future__ import annotations

import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from klamm.broker.app import BrokerApp
from klamm.broker.cluster import AdvertisedBroker
from klamm.broker.groups.offset_coordinator import Committer
from klamm.broker.groups.offsets import OffsetToCommit
from klamm.broker.impact import predict_impact
from klamm.broker.settings import parse_arguments
from klamm.impact.changes import ConfigAltered, PartitionsAdded, TopicDeleted
from klamm.impact.facts import Need
from klamm.impact.samples import NEWEST_RECORDS
from klamm.protocol.types import ResourceType
from tests.support.logs import batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from klamm.broker.context import Services
    from klamm.impact.changes import Change
    from klamm.impact.findings import Finding, Impact
    from klamm.storage.log import PartitionLog

DAY_MS = 86_400_000
GROUP = Committer(group_id="billing")


@asynccontextmanager
async def broker(data_dir: Path, *flags: str) -> AsyncIterator[Services]:
    settings = parse_arguments(["--listen", "127.0.0.1:0", "--data-dir", str(data_dir), "--brokers", "2", *flags])
    nodes = tuple(AdvertisedBroker(node_id=each, host="127.0.0.1", port=9092 + each) for each in settings.node_ids)
    app = await BrokerApp.start(settings, {settings.listeners[0].name: nodes})
    try:
        yield app.services
    finally:
        await app.stop()


async def log_of(services: Services, name: str = "orders", **configs: str) -> PartitionLog:
    """Create a topic of one partition and return its log."""
    node = services.cluster.node_ids[0]
    values = {key.replace("_", "."): value for key, value in configs.items()}
    topic = await services.topics.create(name, [[node]], configs=values)
    log = services.logs.get(topic.topic_id, 0)
    assert log is not None
    return log


def altered(name: str, value: str | None, topic: str = "orders") -> ConfigAltered:
    return ConfigAltered(resource_type=ResourceType.TOPIC, resource_name=topic, name=name, value=value)


def default_altered(name: str, value: str, broker: str = "") -> ConfigAltered:
    return ConfigAltered(resource_type=ResourceType.BROKER, resource_name=broker, name=name, value=value)


async def predicted(services: Services, *changes: Change) -> Impact:
    return await predict_impact(changes, 10.0, services)


def only(impact: Impact, kind: str) -> Finding:
    (finding,) = [finding for finding in impact.findings if finding.kind == kind]
    return finding


async def test_retention_impact_has_old_records_and_lagging_groups(tmp_path: Path) -> None:
    async with broker(tmp_path) as services:
        log = await log_of(services)
        now_ms = services.now_ms()
        for age_ms in (2 * DAY_MS, 2 * DAY_MS, 0):
            log.append(batch("value", at=now_ms - age_ms))
        offset = OffsetToCommit(topic="orders", partition=0, offset=1)
        assert await services.groups.offsets.commit(GROUP, [offset], api_version=8) == (0,)

        finding = only(await predicted(services, altered("retention.ms", str(DAY_MS))), "records_deleted")

        assert finding.figures["deleted_records"] == 2
        assert finding.figures["deleted_bytes"] == log.size * 2 // 3
        assert finding.figures["oldest_ms"] == now_ms - 2 * DAY_MS
        assert finding.figures["unread_records"] == 1
        assert finding.names["groups"].first == ("billing",)
        assert (await predicted(services, altered("retention.ms", str(3 * DAY_MS)))).findings == ()


async def test_default_concerns_the_topics_that_inherit_it(tmp_path: Path) -> None:
    async with broker(tmp_path) as services:
        for number in range(12):
            log = await log_of(services, f"inheriting-{number}")
            log.append(batch("value", at=services.now_ms() - DAY_MS))
        own = await log_of(services, "own", retention_ms="-1")
        own.append(batch("value", at=services.now_ms() - DAY_MS))
        impact = await predicted(services, default_altered("log.retention.minutes", "60"))

        deleted = [finding.topic for finding in impact.findings if finding.kind == "records_deleted"]
        assert sorted(map(str, deleted)) == sorted(f"inheriting-{number}" for number in range(12))


@pytest.mark.parametrize("change", [altered("retention.ms", str(8 * DAY_MS)), default_altered("log.retention.ms", "1")])
async def test_impact_uses_inherited_log_retention_hours(tmp_path: Path, change: Change) -> None:
    async with broker(tmp_path, "--set", "log.retention.hours=720") as services:
        (await log_of(services)).append(batch("value", at=services.now_ms() - 20 * DAY_MS))
        assert only(await predicted(services, change), "records_deleted").figures["deleted_records"] == 1


async def test_deleted_config_falls_back_to_hours_of_the_broker(tmp_path: Path) -> None:
    async with broker(tmp_path, "--set", "log.retention.hours=1") as services:
        log = await log_of(services, retention_ms="-1")
        log.append(batch("value", at=services.now_ms() - DAY_MS))
        impact = await predicted(services, altered("retention.ms", None))
        assert only(impact, "records_deleted").figures["deleted_records"] == 1


async def test_topics_inherit_from_the_first_broker_of_the_process(tmp_path: Path) -> None:
    async with broker(tmp_path) as services:
        first, second = services.cluster.node_ids
        topic = await services.topics.create("orders", [[second]], configs={})
        log = services.logs.get(topic.topic_id, 0)
        assert log is not None
        log.append(batch("value", at=services.now_ms() - DAY_MS))
        for node, kinds in ((first, ["records_deleted", "inherited_by_topics"]), (second, [])):
            impact = await predicted(services, default_altered("log.retention.ms", "1", broker=str(node)))
            assert [finding.kind for finding in impact.findings] == kinds


async def test_newest_batches_and_producers_are_read(tmp_path: Path) -> None:
    async with broker(tmp_path) as services:
        log = await log_of(services)
        log.append(batch("a", "b", key=None, producer_id=7, producer_epoch=0, base_sequence=0, at=services.now_ms()))

        compaction = await predicted(services, altered("cleanup.policy", "compact"))
        assert only(compaction, "keyless_records").figures["keyless_percent"] == 100
        rejected = only(await predicted(services, altered("max.message.bytes", "10")), "batches_rejected")
        assert rejected.names["producers"].first == ("producer id 7",)
        assert only(await predicted(services, TopicDeleted(topic="orders")), "topic_in_use").figures == {}
        assert (await predicted(services, PartitionsAdded(topic="orders", total_count=3))).findings == ()


async def test_compaction_is_harmless_only_if_all_records_were_read(tmp_path: Path) -> None:
    async with broker(tmp_path) as services:
        log = await log_of(services)
        log.append(batch("a", key=b"first", at=services.now_ms()))
        log.append(batch("b", key=b"second", at=services.now_ms()))
        assert (await predicted(services, altered("cleanup.policy", "compact"))).findings == ()

        log.append(batch(*["a"] * NEWEST_RECORDS, key=None, at=services.now_ms()))

        impact = await predicted(services, altered("cleanup.policy", "compact"))
        assert only(impact, "unread_records_compacted").figures["records"] == 2 + NEWEST_RECORDS


async def test_offset_syncs_reveal_unmirrored_records(tmp_path: Path) -> None:
    async with broker(tmp_path) as services:
        log = await log_of(services)
        log.append(batch("a", "b", "c", at=services.now_ms()))
        syncs = await log_of(services, "mm2-offset-syncs.target.internal")
        key = struct.pack(">h6si", 6, b"orders", 0)
        syncs.append(batch(struct.pack(">qq", 1, 1), key=key, at=services.now_ms()))

        finding = only(await predicted(services, TopicDeleted(topic="orders")), "records_deleted")

        assert finding.figures["unmirrored_records"] == 2
        assert finding.names["mirrors"].first == ("target",)


async def test_timeout_names_missing_facts(tmp_path: Path) -> None:
    async with broker(tmp_path) as services:
        await log_of(services)
        with pytest.raises(TimeoutError, match="configs of 1 of 1"):
            await predict_impact([TopicDeleted(topic="orders")], 0.0, services)


async def test_partition_without_a_leader_is_a_missing_fact(tmp_path: Path) -> None:
    async with broker(tmp_path) as services:
        await log_of(services)
        services.cluster.down = frozenset(services.cluster.node_ids[:1])

        impact = await predicted(services, TopicDeleted(topic="orders"))

        assert Need.OFFSETS in impact.missing
        assert impact.unknown == ("log offsets of orders-0: it has no leader, or no log",)


async def test_unknown_topic_has_no_impact(tmp_path: Path) -> None:
    async with broker(tmp_path) as services:
        assert (await predicted(services, TopicDeleted(topic="none"))).findings == ()
