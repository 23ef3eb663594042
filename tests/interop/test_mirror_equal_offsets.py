"""Flows that keep offsets by replay, on Apache Kafka and on klamm: every record is read at its source offset."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from klamm.admin import AdminClient, ConfigResource, ConfigSource, ResourceType
from klamm.mirror.copy import copier as copiers
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.replay.obstacles import obstacles
from klamm.mirror.replay.start import NEWER_MIRROR
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.spark.worker import new_copier
from klamm.mirror.topics.plan_output import print_plan
from klamm.properties import parse_properties
from klamm.protocol.records import Codec, Record, encode_batch
from tests.support.copiers import copy_all, is_done, run_until
from tests.support.equal_offsets import EqualFlow, LateWrite, SlowReplicas, contents, copy_until_kept
from tests.support.frame_proxy import FrameProxy
from tests.support.klamm import KlammBroker
from tests.support.long_tests import long_only
from tests.support.mirror import create_topic, delete_records, delete_topic, properties
from tests.support.processes import wait_until
from tests.support.transactional_clients import Aio
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from klamm.protocol.frames import RequestHeader

YEAR_2013 = 1_356_998_400_000


def produce(address: str, topic: str, first: int, count: int, codec: Codec = Codec.NONE) -> None:
    """Write a batch of records with keys, headers and tombstones."""
    records = [
        Record(
            key=b"k%d" % number if number % 3 else None,
            value=None if number % 5 == 4 else b"v%d" % number,
            headers=(("h", b"%d" % number), ("h", None)) if number % 2 else (),
            timestamp=YEAR_2013 + number,
            offset=at,
        )
        for at, number in enumerate(range(first, first + count))
    ]
    with WireClient(address) as client:
        client.produce(topic, 0, encode_batch(records, codec=codec))


@pytest.mark.parametrize("codec", Codec)
def test_records_of_each_codec_keep_their_offsets(address: str, codec: Codec) -> None:
    flow = EqualFlow(address, address)
    for first in range(0, 400, 20):
        produce(address, flow.topic, first, 20, codec)

    row = flow.copy()

    assert (row.state, row.next_offset) == (CopyState.COPYING, 400)
    assert len(flow.assert_equal()) == 400


def test_offsets_of_markers_and_aborted_records_are_filled(address: str) -> None:
    flow = EqualFlow(address, address)
    with Aio(address, f"{flow.topic}-1") as first, Aio(address, f"{flow.topic}-2") as second:
        for turn in range(5):
            first.begin()
            second.begin()
            for number in range(3):
                first.send(flow.topic, f"first {turn} {number}")
                second.send(flow.topic, f"second {turn} {number}")
            first.abort() if turn % 2 else first.commit()
            second.commit()
        produce(address, flow.topic, 0, 7)
    flow.copy()
    before = flow.assert_equal()
    produce(address, flow.topic, 7, 3)

    flow.copy()

    after = flow.assert_equal()
    assert len(before) == 31
    assert len(after) == len(before) + 3


def test_purged_beginning_within_a_batch_is_not_on_the_target_either(address: str) -> None:
    flow = EqualFlow(address, address)
    for first in range(0, 1000, 100):
        produce(address, flow.topic, first, 100, Codec.ZSTD)
    delete_records(address, flow.topic, 0, before=450)

    flow.copy()

    assert min(flow.assert_equal()) == 450


@pytest.mark.parametrize("commit", [True, False])
def test_log_start_within_a_transaction_is_kept(address: str, commit: bool) -> None:
    flow = EqualFlow(address, address)
    produce_transaction(address, flow.topic, 6, commit=commit)
    produce(address, flow.topic, 0, 5)
    delete_records(address, flow.topic, 0, before=3)

    flow.copy()

    assert list(flow.assert_equal()) == [*(range(3, 6) if commit else ()), *range(7, 12)]


def test_records_of_log_append_time_keep_their_timestamps(address: str) -> None:
    flow = EqualFlow(address, address, source_configs={"message.timestamp.type": "LogAppendTime"})
    produce(address, flow.topic, 0, 50)

    flow.copy()

    assert len(flow.assert_equal()) == 50


def test_record_of_another_producer_stops_the_partition(address: str) -> None:
    flow = EqualFlow(address, address)
    produce(address, flow.topic, 0, 10)
    flow.copy()
    producer = Producer({"bootstrap.servers": address})
    producer.produce(flow.remote_topic, b"stray")
    assert producer.flush(30) == 0
    produce(address, flow.topic, 10, 10)

    row = flow.copy()

    assert row.state is CopyState.STOPPED
    assert f"offset 10 of {flow.remote_topic}-0 was written by another producer" in row.reason
    assert (row.end_offset, row.next_offset) == (20, 11)


def produce_transaction(address: str, topic: str, count: int, *, commit: bool) -> None:
    """Write records in a transaction, and wait until its marker is in the log."""
    with Aio(address, f"{topic}-writer") as producer:
        producer.begin()
        for number in range(count):
            producer.send(topic, f"in a transaction {number}")
        producer.commit() if commit else producer.abort()
    with Aio(address, f"{topic}-writer"):
        """A new producer is accepted once the markers of the transaction before are written."""


def flow_with_holes(address: str) -> EqualFlow:
    """A topic whose log needs these writes: batch, first marker, three markers, last marker, batch, marker, batch."""
    flow = EqualFlow(address, address)
    produce(address, flow.topic, 0, 10)
    produce_transaction(address, flow.topic, 4, commit=False)
    produce(address, flow.topic, 10, 10)
    produce_transaction(address, flow.topic, 1, commit=True)
    produce(address, flow.topic, 20, 5)
    return flow


WRITES = range(7) if os.environ.get("KLAMM_SOAK") else (0, 1, 2, 3)
"""Numbers of the writes that arrive late: a batch, the first marker, three markers at once, the last marker."""
MOMENTS = ("during", *long_only("starting", "after"), *(("before",) if os.environ.get("KLAMM_SOAK") else ()))
"""Moments: before the next mirror writes, before it reads the state of the producer, when it has ended; or first."""
MARKERS = 27


@pytest.mark.parametrize("moment", MOMENTS)
def test_late_write_of_a_dead_mirror_never_moves_a_record(address: str, moment: str) -> None:
    outcomes = {}
    for number in WRITES:
        flow = flow_with_holes(address)
        with LateWrite(flow, number=number) as dead:
            assert copy_until_kept(flow, dead), f"write {number} was not sent"
            if moment == "before":
                dead.deliver()
            with LateWrite(
                flow,
                before_first=dead.deliver if moment == "during" else None,
                before_states=dead.deliver if moment == "starting" else None,
            ) as target:
                settings = flow.settings(target=target.bootstrap_servers)
                (row,) = copy_all(settings, flow.partition)
            if moment == "after":
                dead.deliver()
                produce(address, flow.topic, 25, 5)
                row = flow.copy()
        outcomes[number] = row.state
        if row.state is CopyState.STOPPED:
            assert moment == "during"
            assert dead.kept_key == MARKERS
            assert "a marker of an earlier mirror arrived late" in row.reason
        else:
            flow.assert_equal()
    stopped = [number for number, state in outcomes.items() if state is CopyState.STOPPED]
    assert len(stopped) <= 2, outcomes


def test_mirror_continues_behind_records_that_are_not_replicated(address: str) -> None:
    flow = EqualFlow(address, address)
    produce(address, flow.topic, 0, 5)
    produce(address, flow.topic, 5, 5)
    flow.copy()
    produce(address, flow.topic, 10, 10)

    with SlowReplicas(flow, high_watermark=5) as target:
        (row,) = copy_all(flow.settings(target=target.bootstrap_servers), flow.partition)

    assert row.state is CopyState.COPYING, row.reason
    assert len(flow.assert_equal()) == 20


@pytest.mark.parametrize("seed", range(20 if os.environ.get("KLAMM_SOAK") else 1))
def test_lost_responses_never_move_a_record(address: str, seed: int) -> None:
    flow, drawn = EqualFlow(address, address), random.Random(seed)
    lost = []

    def lose(header: RequestHeader, answer: memoryview) -> bytes | None:
        if drawn.random() < 0.35:
            lost.append(header.api_key)
            return None
        return bytes(answer)

    for turn in range(6):
        produce(address, flow.topic, turn * 10, 10)
        produce_transaction(address, flow.topic, 1 + turn % 3, commit=turn % 2 == 0)
    with FrameProxy(address, replacements=dict.fromkeys((0, MARKERS), lose)) as target:
        (row,) = copy_all(flow.settings(target=target.bootstrap_servers), flow.partition)

    assert row.state is not CopyState.STOPPED, row.reason
    assert lost
    assert len(flow.assert_equal()) == 60 + 1 + 3 + 2


def test_older_live_mirror_is_fenced_by_a_newer_one(address: str) -> None:
    flow = flow_with_holes(address)
    older = new_copier(flow.settings(), [flow.partition])
    newer = new_copier(flow.settings(), [flow.partition])
    try:
        run_until(older, lambda: all(map(is_done, older.progress())))
        produce(address, flow.topic, 100, 10)
        run_until(newer, lambda: all(map(is_done, newer.progress())))
        produce(address, flow.topic, 110, 10)
        run_until(older, lambda: older.progress()[0].state is CopyState.STOPPED)
        run_until(newer, lambda: newer.progress()[0].next_offset == 52)
        assert "a newer mirror of this flow writes this partition" in older.progress()[0].reason
        flow.assert_equal()
        # an operator lets the older one take over again
        older.restarts = {flow.topic: 1}
        produce_transaction(address, flow.topic, 2, commit=False)
        run_until(older, lambda: older.progress()[0].next_offset == 55)
        produce(address, flow.topic, 120, 10)
        run_until(older, lambda: older.progress()[0].next_offset == 65)
    finally:
        older.close()
        newer.close()
    flow.assert_equal()


def test_fenced_mirror_stays_stopped_after_its_remote_topic_was_created_again(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr(copiers, "_LOOK_EVERY_S", 0.0)
    flow = flow_with_holes(address)
    older = new_copier(flow.settings(), [flow.partition])
    newer = new_copier(flow.settings(), [flow.partition])
    try:
        run_until(older, lambda: all(map(is_done, older.progress())))
        produce(address, flow.topic, 100, 10)
        run_until(newer, lambda: all(map(is_done, newer.progress())))
        produce(address, flow.topic, 110, 10)
        run_until(older, lambda: older.progress()[0].state is CopyState.STOPPED)
        # when
        delete_topic(address, flow.remote_topic)
        create_topic(address, flow.remote_topic, 1, {"retention.ms": "-1"})
        run_until(newer, lambda: newer.progress()[0].next_offset == 52)
        turns = iter(range(5))
        run_until(older, lambda: next(turns, None) is None)
        # then
        (row,) = older.progress()
        assert (row.state, row.reason) == (CopyState.STOPPED, NEWER_MIRROR)
        produce(address, flow.topic, 120, 10)
        run_until(newer, lambda: newer.progress()[0].next_offset == 62)
        flow.assert_equal()
    finally:
        older.close()
        newer.close()


def test_open_transaction_is_copied_after_its_commit(address: str) -> None:
    flow = EqualFlow(address, address)
    with Aio(address, f"{flow.topic}-1") as producer:
        producer.begin()
        producer.send(flow.topic, "open")
        produce(address, flow.topic, 0, 5)
        assert flow.copy().next_offset == 0
        producer.commit()
    produce(address, flow.topic, 5, 5)

    flow.copy()

    assert len(flow.assert_equal()) == 11


def test_purged_beginning_of_a_compacted_topic_is_deleted_on_the_target(address: str) -> None:
    flow = EqualFlow(
        address,
        address,
        source_configs={"cleanup.policy": "compact,delete"},
        target_configs={"cleanup.policy": "compact", "retention.ms": "86400000"},
    )
    with WireClient(address) as client:
        for first, count in ((0, 100_000), (100_000, 10_000)):
            records = [
                Record(key=b"%d" % (first + at), value=b"", timestamp=YEAR_2013, offset=at) for at in range(count)
            ]
            client.produce(flow.topic, 0, encode_batch(records, codec=Codec.ZSTD))
    delete_records(address, flow.topic, 0, before=109_990)

    flow.copy()

    assert list(flow.assert_equal()) == list(range(109_990, 110_000))
    with AdminClient(address) as admin:
        configs = admin.describe_configs([ConfigResource(ResourceType.TOPIC, flow.remote_topic)]).all().result()
    (entries,) = configs.values()
    own = {name: entry.value for name, entry in entries.items() if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG}
    assert own == {"cleanup.policy": "compact", "retention.ms": "86400000"}


def test_gaps_of_compaction_are_kept(address: str) -> None:
    configs = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.001"}
    flow = EqualFlow(address, address, source_configs=configs, target_configs={"cleanup.policy": "compact"})
    with WireClient(address) as client:
        for at, keys in enumerate([b"abcdefgh", b"bdf", b"hx", b"y", b"z"]):
            # Records so much newer end the segment before them, which is then compacted.
            timestamp = YEAR_2013 + at // 2 * 10_000
            batch = [
                Record(key=b"%c" % key, value=b"%d" % at, timestamp=timestamp, offset=number)
                for number, key in enumerate(keys)
            ]
            client.produce(flow.topic, 0, encode_batch(batch, codec=Codec.LZ4))
    wait_until(lambda: len(contents(address, flow.topic, "read_committed")) < 12, timeout_s=60, what="compaction")

    flow.copy()

    assert 1 not in flow.assert_equal()


@pytest.mark.long
def test_empty_batch_that_compaction_leaves_of_a_producer_is_a_gap(address: str) -> None:
    configs = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.001"}
    flow = EqualFlow(address, address, source_configs=configs, target_configs={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    producer.produce(flow.topic, b"first", b"k", timestamp=YEAR_2013)
    assert producer.flush(30) == 0
    with WireClient(address) as client:
        for number, key in enumerate((b"k", b"a", b"b"), 1):  # much newer: each ends the segment before it
            record = Record(key=key, value=b"v", timestamp=YEAR_2013 + 10_000 * number, offset=0)
            client.produce(flow.topic, 0, encode_batch([record]))
    wait_until(lambda: 0 not in contents(address, flow.topic, "read_committed"), timeout_s=60, what="compaction")

    flow.copy()

    assert list(flow.assert_equal()) == [1, 2, 3]


def test_remote_topic_with_log_append_time_stops_the_partition(address: str) -> None:
    flow = EqualFlow(address, address, target_configs={"message.timestamp.type": "LogAppendTime"})
    produce(address, flow.topic, 0, 5)

    row = flow.copy()

    assert row.state is CopyState.STOPPED
    assert "message.timestamp.type=LogAppendTime" in row.reason
    assert contents(address, flow.remote_topic, "read_committed") == {}


def test_source_that_is_shorter_than_the_target_stops_the_partition(address: str) -> None:
    flow = EqualFlow(address, address)
    produce(address, flow.topic, 0, 10)
    flow.copy()
    with AdminClient(address) as admin:
        admin.delete_topics([flow.topic]).all().result(300)
    create_topic(address, flow.topic, 1, {"retention.ms": "-1"})
    produce(address, flow.topic, 100, 20)

    row = flow.copy()

    assert row.state is CopyState.STOPPED
    assert f"{flow.topic} was deleted and created again on the source" in row.reason


@pytest.mark.parametrize("count", [0, 15])
def test_source_that_lost_its_last_records_stops_the_partition(count: int) -> None:
    """A power cut took records that were only in the page cache, and ``count`` others got their offsets since."""
    with KlammBroker() as broker:
        # given
        address = broker.bootstrap_servers
        flow = EqualFlow(address, address)
        log = broker.data_dir / "logs" / f"{flow.topic}-0" / f"{0:020d}.log"
        produce(address, flow.topic, 0, 10)
        cut = log.stat().st_size
        produce(address, flow.topic, 10, 10)
        flow.copy()
        before = contents(address, flow.remote_topic, "read_committed")
        # when
        broker.kill()
        os.truncate(log, cut)
        broker.start()
        if count:
            produce(address, flow.topic, 100, count)
        row = flow.copy()
        # then
        assert row.state is CopyState.STOPPED
        where = f"offset 10 of {flow.remote_topic}-0 holds another record" if count else "the source lost records"
        assert where in row.reason
        assert contents(address, flow.remote_topic, "read_committed") == before


def test_plan_names_what_keeps_offsets_from_being_equal(address: str) -> None:
    flow, stray = EqualFlow(address, address), EqualFlow(address, address)
    producer = Producer({"bootstrap.servers": address})
    alias = f"S{uuid4().hex[:6]}"
    create_topic(address, f"{alias}.{flow.topic}", 1, {"compression.type": "gzip"})
    producer.produce(f"{alias}.{stray.topic}", b"stray", partition=0)
    assert producer.flush(30) == 0
    file = properties(
        address, address, "klamm.offsets = preserve\n", topics=f"{flow.topic}, {stray.topic}", alias=alias
    )
    out = StringIO()

    code = print_plan(parse_settings(parse_properties(file)), out, obstacles=obstacles)

    assert code == 1
    assert "offsets are kept by replay" in out.getvalue()
    assert f"! topic {alias}.{flow.topic}: keeping offsets would be rejected: compression.type=gzip" in out.getvalue()
    assert (
        f"! topic {alias}.{stray.topic}: keeping offsets would be rejected: offset 0 of partition 0 was written by "
        "another producer" in out.getvalue()
    )


def test_deleted_remote_topic_is_mirrored_again_from_the_log_start(address: str) -> None:
    flow = EqualFlow(address, address)
    produce(address, flow.topic, 0, 100)
    flow.copy()
    delete_records(address, flow.topic, 0, before=60)
    with AdminClient(address) as admin:
        admin.delete_topics([flow.remote_topic]).all().result(300)
    create_topic(address, flow.remote_topic, 1, {"retention.ms": "-1"})

    flow.copy()

    assert list(flow.assert_equal()) == list(range(60, 100))


def test_records_purged_before_they_were_mirrored_stop_the_partition(address: str) -> None:
    flow = EqualFlow(address, address)
    produce(address, flow.topic, 0, 10)
    flow.copy()
    produce(address, flow.topic, 10, 10)
    delete_records(address, flow.topic, 0, before=15)

    row = flow.copy()

    assert row.state is CopyState.STOPPED
    assert "offset 10 is no longer available" in row.reason
    (row,) = copy_all(replace(flow.settings(), continue_after_loss=True), flow.partition)
    assert row.next_offset == 20
    there = contents(address, flow.remote_topic, "read_uncommitted")
    assert sorted(there) == [*range(10), *range(15, 20)]


def test_markers_of_many_partitions_share_requests(address: str) -> None:
    flow = EqualFlow(address, address, partitions=20)
    producer = Producer({"bootstrap.servers": address, "transactional.id": f"{flow.topic}-writer"})
    producer.init_transactions(30)
    for turn in range(3):
        producer.begin_transaction()
        for partition in range(20):
            producer.produce(flow.topic, b"%d" % turn, partition=partition)
        producer.commit_transaction(30)
    with Aio(address, f"{flow.topic}-writer"):
        """A new producer is accepted once all markers are written."""

    with FrameProxy(address) as target:
        rows = copy_all(flow.settings(target=target.bootstrap_servers), *flow.partitions)
        requests = target.requests(MARKERS)

    assert {(row.state, row.next_offset) for row in rows} == {(CopyState.COPYING, 6)}
    assert len(requests) <= 20
    for partition in range(0, 20, 6):
        assert list(flow.assert_equal(partition)) == [0, 2, 4]


def test_other_record_at_the_same_offset_stops_the_partition(address: str) -> None:
    flow = EqualFlow(address, address)
    drawn = random.Random(1)
    values = [drawn.randbytes(10_000) for _ in range(40)]
    others = [*values[:39], drawn.randbytes(10_000)]
    with WireClient(address) as client:
        for topic, contained, producer_id in ((flow.topic, values, -1), (flow.remote_topic, others, flow.producer_id)):
            records = [
                Record(key=None, value=each, timestamp=YEAR_2013, offset=at) for at, each in enumerate(contained)
            ]
            sequence = -1 if producer_id < 0 else 0
            batch = encode_batch(records, producer_id=producer_id, producer_epoch=sequence, base_sequence=sequence)
            client.produce(topic, 0, batch)

    row = flow.copy()

    assert row.state is CopyState.STOPPED
    assert f"offset 39 of {flow.remote_topic}-0 holds another record than the source" in row.reason
