"""Sources with lost records or recreated topics: the flow stops unless the file permits the loss."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from klamm.admin import AdminClient
from klamm.kafka_client.data.cluster import LATEST, Cluster
from klamm.mirror.copy import copier as copiers
from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.source_offsets import SourcePartition, key_bytes, value_bytes
from klamm.protocol.partitioner import partition_for_key
from tests.support.copiers import copy_all, copy_settings, is_done, run_until
from tests.support.klamm import KlammBroker
from tests.support.mirror import Seen, create_topic, delete_records, produce, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.mirror.copy.settings import CopySettings

YEAR_2013 = 1_356_998_400_000
FOREVER = {"retention.ms": "-1"}
POSITIONS = "mm2-offsets.A.internal"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """One broker that is source and target of all tests, each with topics of its own."""
    with KlammBroker() as broker:
        create_topic(broker.bootstrap_servers, POSITIONS, 5, {"cleanup.policy": "compact"})
        yield broker.bootstrap_servers


def numbered(first: int, count: int) -> list[Seen]:
    return [Seen(None, b"%d" % number, (), YEAR_2013) for number in range(first, first + count)]


def write(address: str, topic: str, records: list[Seen], partition: int = 0) -> None:
    produce(address, topic, [(partition, record) for record in records])


def create_both(address: str, topic: str, partitions: int = 1) -> list[PartitionId]:
    for name in (topic, f"A.{topic}"):
        create_topic(address, name, partitions, FOREVER)
    return [PartitionId(topic, partition, f"A.{topic}") for partition in range(partitions)]


def create_again(address: str, topic: str) -> None:
    with AdminClient(address) as admin:
        admin.delete_topics([topic]).all().result(300)
    create_topic(address, topic, 1, FOREVER)


def going_on(settings: CopySettings) -> CopySettings:
    return replace(settings, continue_after_loss=True)


def test_topic_recreated_while_mirror_was_stopped_is_detected(address: str, caplog: pytest.LogCaptureFixture) -> None:
    """K894-38: the new topic is longer than the old one, so its offsets alone tell nothing."""
    # given
    partitions = create_both(address, "away")
    settings = copy_settings(address, address, alias="A")
    write(address, "away", numbered(0, 20))
    copy_all(settings, *partitions)
    create_again(address, "away")
    write(address, "away", numbered(100, 50))
    # when
    (stopped,) = copy_all(settings, *partitions)
    # then
    assert stopped.state is CopyState.STOPPED
    assert "away was deleted and created again on the source" in stopped.reason
    assert (
        "klamm.on.source.loss=continue mirrors it from its beginning, after the records that A.away holds"
        in stopped.reason
    )
    assert read(address, "A.away", {0: 20}) == {0: numbered(0, 20)}
    # when
    with caplog.at_level(logging.WARNING):
        copy_all(going_on(settings), *partitions)
    # then
    assert "it is mirrored from its beginning" in caplog.text
    assert read(address, "A.away", {0: 70}) == {0: numbered(0, 20) + numbered(100, 50)}
    # and once it is accepted, it is the topic that is meant
    write(address, "away", numbered(150, 5))
    (resumed,) = copy_all(settings, *partitions)
    assert resumed.state is CopyState.COPYING
    assert read(address, "A.away", {0: 75}) == {0: numbered(0, 20) + numbered(100, 55)}


def test_topic_recreated_while_mirrored_restarts_if_configured(address: str) -> None:
    # given
    partitions = create_both(address, "while")
    write(address, "while", numbered(0, 20))
    copier = Copier(going_on(copy_settings(address, address, alias="A")), partitions)
    try:
        run_until(copier, lambda: all(map(is_done, copier.progress())))
        # when
        create_again(address, "while")
        write(address, "while", numbered(100, 5))
        # then
        run_until(copier, lambda: sum(row.records for row in copier.progress()) == 25)
    finally:
        copier.close()
    assert read(address, "A.while", {0: 25}) == {0: numbered(0, 20) + numbered(100, 5)}


def test_purged_records_are_skipped_if_configured(address: str, caplog: pytest.LogCaptureFixture) -> None:
    """K894-38: one partition stops, the other goes on; with the setting both do, and what is missing is told."""
    # given
    partitions = create_both(address, "lost", 2)
    settings = copy_settings(address, address, alias="A")
    for partition in (0, 1):
        write(address, "lost", numbered(0, 10), partition)
    copy_all(settings, *partitions)
    for partition in (0, 1):
        write(address, "lost", numbered(10, 10), partition)
    delete_records(address, "lost", 1, before=15)
    # when
    rows = copy_all(settings, *partitions)
    # then
    assert [row.state for row in rows] == [CopyState.COPYING, CopyState.STOPPED]
    assert "offset 10 is no longer available: the source holds 15 to 20" in rows[1].reason
    assert "klamm.on.source.loss=continue resumes at 15" in rows[1].reason
    # when
    with caplog.at_level(logging.WARNING):
        copy_all(going_on(settings), *partitions)
    # then
    assert "lost-1: offsets 10 to 14 were purged on the source before they were mirrored; resuming at 15" in caplog.text
    arrived = read(address, "A.lost", {0: 20, 1: 15})
    assert arrived == {0: numbered(0, 20), 1: numbered(0, 10) + numbered(15, 5)}


def mirrored_up_to(address: str, topic: str, offset: int, leader_epoch: int) -> None:
    """Write the position of a mirror that has copied records up to and with an offset."""
    key = key_bytes(SourcePartition("A", topic, 0))
    write(address, POSITIONS, [Seen(key, value_bytes(offset, leader_epoch), (), YEAR_2013)], partition_for_key(key, 5))


@pytest.mark.parametrize("shards", [0, 1], ids=["at least once", "exactly once"])
def test_log_end_before_source_offset_resumes_at_divergence(
    address: str, shards: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Fetch names the leader epoch of the last copied batch, and the leader answers where its log ends (KIP-595)."""
    # given
    topic = f"cut-{shards}"
    partitions = create_both(address, topic)
    write(address, topic, numbered(0, 20))
    mirrored_up_to(address, topic, 49, leader_epoch=0)
    settings = copy_settings(address, address, alias="A", shards=shards)
    # when
    (stopped,) = copy_all(settings, *partitions)
    # then
    assert stopped.state is CopyState.STOPPED
    assert "its log diverges at offset 20 from what was read up to offset 50 of leader epoch 0" in stopped.reason
    assert f"klamm.on.source.loss=continue resumes at 20, after the records that A.{topic} holds" in stopped.reason
    # when
    with caplog.at_level(logging.WARNING):
        copier = Copier(going_on(settings), partitions)
        try:
            run_until(copier, lambda: "resuming at 20" in caplog.text)
            write(address, topic, numbered(20, 5))
            run_until(copier, lambda: sum(row.records for row in copier.progress()) == 5)
        finally:
            copier.close()
    # then
    assert read(address, f"A.{topic}", {0: 5}) == {0: numbered(20, 5)}
    # and the position is that of the log as it is now
    write(address, topic, numbered(25, 5))
    (resumed,) = copy_all(settings, *partitions)
    assert resumed.state is CopyState.COPYING
    assert read(address, f"A.{topic}", {0: 10}) == {0: numbered(20, 10)}


def test_truncated_and_regrown_klamm_source_is_detected() -> None:
    """A power cut took records that were only in the page cache, and others got their offsets since."""
    with KlammBroker() as broker:
        # given
        address = broker.bootstrap_servers
        create_topic(address, POSITIONS, 5, {"cleanup.policy": "compact"})
        partitions, settings = create_both(address, "torn"), copy_settings(address, address, alias="A")
        write(address, "torn", numbered(0, 10))
        cut = (broker.data_dir / "logs" / "torn-0" / f"{0:020d}.log").stat().st_size
        write(address, "torn", numbered(10, 10))
        copy_all(settings, *partitions)
        # when
        broker.kill()
        os.truncate(broker.data_dir / "logs" / "torn-0" / f"{0:020d}.log", cut)
        broker.start()
        write(address, "torn", numbered(100, 20))
        (stopped,) = copy_all(settings, *partitions)
    # then
    assert stopped.state is CopyState.STOPPED
    assert "its log diverges at offset 10 from what was read up to offset 20 of leader epoch 0" in stopped.reason


def test_offset_out_of_range_is_loss_despite_regrown_log(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OFFSET_OUT_OF_RANGE for an offset that the log has a moment later is no glitch: it has other records there."""
    # given
    topic = "rejected"
    partitions = create_both(address, topic)
    write(address, topic, numbered(100, 20))
    mirrored_up_to(address, topic, 24, leader_epoch=-1)
    ask = Cluster.list_offsets

    def grow_first(
        cluster: Cluster, where: list[tuple[str, int]], timestamp: int, **more: bool
    ) -> dict[tuple[str, int], int]:
        if where == [(topic, 0)] and timestamp == LATEST:
            write(address, topic, numbered(120, 10))
            monkeypatch.setattr(Cluster, "list_offsets", ask)
        return ask(cluster, where, timestamp, **more)

    monkeypatch.setattr(Cluster, "list_offsets", grow_first)
    # when
    (stopped,) = copy_all(copy_settings(address, address, alias="A"), *partitions)
    # then
    assert stopped.state is CopyState.STOPPED
    assert "it rejected offset 25 as out of range, and holds 0 to 30 now" in stopped.reason


def test_takeover_records_topic_id_of_current_topic(address: str) -> None:
    """K894-38: positions that MirrorMaker 2 has written carry no topic id."""
    # given
    partitions = create_both(address, "taken-over")
    write(address, "taken-over", numbered(0, 20))
    key = key_bytes(SourcePartition("A", "taken-over", 0))
    position = Seen(key, value_bytes(4), (), YEAR_2013)
    write(address, POSITIONS, [position], partition_for_key(key, 5))
    settings = copy_settings(address, address, alias="A")
    # when
    copy_all(settings, *partitions)
    # then
    assert read(address, "A.taken-over", {0: 15}) == {0: numbered(5, 15)}
    create_again(address, "taken-over")
    (stopped,) = copy_all(settings, *partitions)
    assert stopped.state is CopyState.STOPPED


@pytest.mark.parametrize("shards", [0, 1], ids=["at least once", "exactly once"])
def test_stopped_partition_starts_again_once_its_remote_topic_is_another_one(
    address: str, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr(copiers, "_LOOK_EVERY_S", 0.1)
    topic = f"unknown-{shards}"
    partitions = create_both(address, topic)
    write(address, topic, numbered(0, 20))
    write(address, f"A.{topic}", numbered(100, 5))
    copier = Copier(copy_settings(address, address, alias="A", shards=shards), partitions)
    try:
        run_until(copier, lambda: copier.progress()[0].state is CopyState.STOPPED)
        assert "Delete the remote topic" in copier.progress()[0].reason
        # when
        create_again(address, f"A.{topic}")
        # then
        run_until(copier, lambda: copier.progress()[0].state is CopyState.COPYING and is_done(copier.progress()[0]))
    finally:
        copier.close()
    assert read(address, f"A.{topic}", {0: 20}) == {0: numbered(0, 20)}
