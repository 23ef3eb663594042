"""Every kind of record on klamm, and on Apache Kafka in ``make test-long``: target and source have equal records.

Two flows copy all of them, without Spark: at least once to ``A<run>.<topic>``, exactly once to ``A<run>-<topic>``.
Source and target are the same cluster of three brokers, under different aliases.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from confluent_kafka import Producer

from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.source_offsets import SourcePartition, key_bytes, value_bytes
from klamm.mirror.settings.mirror import parse_settings
from klamm.properties import parse_properties
from klamm.protocol.partitioner import partition_for_key
from klamm.protocol.records import Record, RecordBatch, encode_batch
from tests.support.klamm import KlammBroker
from tests.support.long_tests import long_only
from tests.support.mirror import Seen, create_topic, delete_records, produce, read, replica_counts
from tests.support.mirror_groups import copy_flow
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique
from tests.support.wire import RejectedError, WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm.mirror.progress.partition_progress import PartitionProgress

YEAR_2013: Final = 1_356_998_400_000
FOREVER: Final = {"retention.ms": "-1"}
RUN: Final = unique("")
POSITIONS: Final = {f"A{RUN}.": f"mm2-offsets.A{RUN}.internal", f"A{RUN}-": f"mm2-offsets.A{RUN}.exact.internal"}
"""The topic of positions by how remote topics begin."""
TOO_LARGE: Final = "the record at offset 0 is larger than the target's max.message.bytes"

Partitions = dict[int, list[Seen]]


def stored(cluster: str, topic: str) -> list[RecordBatch]:
    """Return the stored batches of partition 0, from its leader."""
    with WireClient(leader_of(cluster, topic)) as client:
        return list(client.read_to_end(topic, 0))


def leader_of(cluster: str, topic: str) -> str:
    """Return the address of the leader of partition 0."""
    for node in cluster.split(","):
        with contextlib.suppress(RejectedError), WireClient(node) as client:
            client.end_offset(topic, 0)
            return node
    raise AssertionError(f"Nobody leads {topic}")


def seen(record: Record) -> Seen:
    headers = tuple((name, None if value is None else bytes(value)) for name, value in record.headers)
    key, value = record.key, record.value
    return Seen(None if key is None else bytes(key), None if value is None else bytes(value), headers, record.timestamp)


def write_batches(cluster: str, topic: str, *batches: bytes | bytearray) -> None:
    with WireClient(leader_of(cluster, topic)) as client:
        for batch in batches:
            client.produce(topic, 0, batch)


def records(first: int, *values: bytes | None, timestamp: int = YEAR_2013, key: str = "k") -> list[Record]:
    return [
        Record(key=b"%s%d" % (key.encode(), at), value=value, timestamp=timestamp + at, offset=at)
        for at, value in enumerate(values, first)
    ]


def all_of(codec: str) -> Callable[[str, str], Partitions]:
    """Keys, values, nulls, empty ones, headers that repeat or are null, in three partitions."""

    def write(cluster: str, topic: str) -> Partitions:
        special = [
            Seen(None, b"no key", (), YEAR_2013),
            Seen(b"k", None, (), YEAR_2013 - 5),
            Seen(b"", b"", (), 1),
            Seen(None, None, (), YEAR_2013),
            Seen(b"k", b"h", (("a", b"1"), ("a", b"2"), ("n", None), ("e", b""), ("a", b"1")), YEAR_2013),
        ]
        wanted = {0: list(special), 1: [], 2: []}
        for number in range(600):
            wanted[number % 3].append(Seen(b"k%d" % number, b"v%d" % number, (), YEAR_2013 + number))
        create_topic(cluster, topic, 3, FOREVER)
        pairs = [(partition, record) for partition, of_it in wanted.items() for record in of_it]
        produce(cluster, topic, pairs, {"compression.type": codec})
        return wanted

    return write


def times(cluster: str, topic: str) -> Partitions:
    """Out of order, none at all, 1970, 2013, and as far ahead as brokers accept."""
    soon = int(time.time() * 1000) + 50 * 60_000
    stamps = [YEAR_2013, 0, soon, 1, YEAR_2013 - 1, -1, YEAR_2013]
    given = [Record(key=None, value=b"%d" % at, timestamp=stamp, offset=at) for at, stamp in enumerate(stamps)]
    create_topic(cluster, topic, 1, FOREVER)
    write_batches(cluster, topic, encode_batch(given), encode_batch(given[::-1], base_offset=0, last_offset=6))
    return read(cluster, topic, {0: 14})


def appended(cluster: str, topic: str) -> Partitions:
    """LogAppendTime: the source's broker has given the times."""
    create_topic(cluster, topic, 1, {"message.timestamp.type": "LogAppendTime"})
    produce(cluster, topic, [(0, seen(record)) for record in records(0, b"a", b"b", b"c")])
    return read(cluster, topic, {0: 3})


def compacted(cluster: str, topic: str) -> Partitions:
    """Gaps, a batch that compaction has emptied, tombstones with a delete horizon."""
    configs = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.001"}
    create_topic(cluster, topic, 1, configs)
    with WireClient(leader_of(cluster, topic)) as client:
        (first_id, first_epoch), (second_id, second_epoch) = client.new_producer_id(), client.new_producer_id()
    emptied = encode_batch(
        records(0, b"old", b"old"), producer_id=first_id, producer_epoch=first_epoch, base_sequence=0
    )
    gaps = encode_batch(
        records(0, b"1", b"1", b"gone", b"1", b"gone", None),
        producer_id=second_id,
        producer_epoch=second_epoch,
        base_sequence=0,
    )
    again = encode_batch([records(2, b"2")[0]._replace(offset=0), records(4, b"2")[0]._replace(offset=1)])
    # Records so much newer end the segment: what stands before it is compacted.
    newer = [encode_batch(records(0, b"n", timestamp=YEAR_2013 + at, key=f"n{at}-")) for at in (10_000, 20_000)]
    write_batches(cluster, topic, emptied, gaps, again, *newer)
    wait_until(lambda: _is_compacted(stored(cluster, topic)), timeout_s=60, what="compaction", interval_s=0.2)
    return read(cluster, topic, {0: 8})


def _is_compacted(batches: list[RecordBatch]) -> bool:
    empty = any(batch.record_count == 0 for batch in batches)
    gaps = any(0 < batch.record_count < batch.last_offset_delta + 1 for batch in batches)
    return empty and gaps and any(batch.has_delete_horizon for batch in batches)


def transactions(cluster: str, topic: str) -> Partitions:
    """Two producers in turns, of whose transactions some are aborted, and one without transactions."""
    create_topic(cluster, topic, 1, FOREVER)
    writers = [
        Producer({"bootstrap.servers": cluster, "transactional.id": f"{topic}-{at}", "linger.ms": 0}) for at in range(2)
    ]
    for writer in writers:
        writer.init_transactions(30)
    wanted = []
    for number in range(6):
        for at, writer in enumerate(writers):
            writer.begin_transaction()
            writer.produce(topic, value=b"%d of %d" % (number, at), partition=0, timestamp=YEAR_2013)
            writer.flush(30)
        produce(cluster, topic, [(0, Seen(None, b"plain %d" % number, (), YEAR_2013))])
        order = (b"%d of 0" % number, b"%d of 1" % number)
        kept = [value for at, value in enumerate(order) if (number + at) % 3]
        for at, writer in enumerate(writers):
            if (number + at) % 3:
                writer.commit_transaction(30)
            else:
                writer.abort_transaction(30)
        wanted += [*kept, b"plain %d" % number]
    return {0: [Seen(None, value, (), YEAR_2013) for value in wanted]}


def straddling(cluster: str, topic: str) -> Partitions:
    """The position lies in the middle of a batch."""
    create_topic(cluster, topic, 1, FOREVER)
    given = records(0, *(b"%d" % at for at in range(10)))
    write_batches(cluster, topic, encode_batch(given))
    for positions in POSITIONS.values():
        position = Seen(key_bytes(SourcePartition(f"A{RUN}", topic, 0)), value_bytes(4), (), YEAR_2013)
        create_topic(cluster, positions, 25, {"cleanup.policy": "compact"})
        produce(cluster, positions, [(partition_for_key(position.key or b"", 25), position)])
    return {0: [seen(record) for record in given[5:]]}


def large(cluster: str, topic: str) -> Partitions:
    """A batch larger than the target takes is split; a record larger than that stops its partition (see below)."""
    create_topic(cluster, topic, 2, FOREVER)
    for prefix in POSITIONS:
        create_topic(cluster, f"{prefix}{topic}", 2, {**FOREVER, "max.message.bytes": "10000"})
    given = records(0, *(b"%04d" % at * 750 for at in range(50)))
    write_batches(cluster, topic, encode_batch(given))
    produce(cluster, topic, [(1, Seen(b"k", b"x" * 20_000, (), YEAR_2013))])
    return {0: [seen(record) for record in given], 1: []}


def purged(cluster: str, topic: str) -> Partitions:
    """What the source has purged before the first round is nothing that is missing."""
    create_topic(cluster, topic, 1, FOREVER)
    given = records(0, *(b"%d" % at for at in range(10)))
    write_batches(cluster, topic, encode_batch(given))
    delete_records(cluster, topic, 0, before=3)
    return {0: [seen(record) for record in given[3:]]}


KINDS: Final[dict[str, Callable[[str, str], Partitions]]] = {
    **{codec: all_of(codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd")},
    "times": times,
    "appended": appended,
    "compacted": compacted,
    "transactions": transactions,
    "straddling": straddling,
    "large": large,
    "purged": purged,
}


class Mirrored(NamedTuple):
    """The records on the source before the mirror ran, and the records that it wrote."""

    cluster: str
    family: str
    """Start of the names of the topics."""
    wanted: dict[str, Partitions]
    arrived: dict[str, Partitions]
    """By remote topic."""
    rows: list[PartitionProgress]
    """Last progress of each partition of both flows."""


@pytest.fixture(scope="module", params=["klamm", *long_only("kafka")])
def cluster(request: pytest.FixtureRequest) -> Iterator[str]:
    """Three brokers of each kind, which are source and target."""
    if request.param == "kafka":
        yield request.getfixturevalue("real_kafka_3").bootstrap_servers
        return
    with KlammBroker({"log.cleaner.backoff.ms": "500"}, brokers=3) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def mirrored(cluster: str) -> Mirrored:
    family = f"kinds-{RUN}"
    wanted = {kind: write(cluster, f"{family}.{kind}") for kind, write in KINDS.items()}
    file = f"""
clusters = A{RUN}, B{RUN}, C{RUN}
A{RUN}.bootstrap.servers = {cluster}
B{RUN}.bootstrap.servers = {cluster}
C{RUN}.bootstrap.servers = {cluster}
A{RUN}->B{RUN}.enabled = true
A{RUN}->C{RUN}.enabled = true
A{RUN}->C{RUN}.klamm.exactly.once = true
A{RUN}->C{RUN}.replication.policy.separator = -
C{RUN}.offset.storage.topic = {POSITIONS[f"A{RUN}-"]}
A{RUN}.consumer.isolation.level = read_committed
topics = {family}\\\\..*
replication.factor = 2
offset.storage.replication.factor = 2
offset-syncs.topic.replication.factor = 1
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
config.properties.exclude = max\\\\.message\\\\.bytes, message\\\\.timestamp\\\\.type
"""
    rows = [row for flow in parse_settings(parse_properties(file)).flows for row in copy_flow(flow)]
    return Mirrored(cluster, family, wanted, _arrived(cluster, family, wanted), rows)


def _arrived(cluster: str, family: str, wanted: dict[str, Partitions]) -> dict[str, Partitions]:
    return {
        (name := f"{prefix}{family}.{kind}"): read(cluster, name, {at: len(of) for at, of in partitions.items()})
        for prefix in POSITIONS
        for kind, partitions in wanted.items()
    }


@pytest.mark.parametrize("prefix", POSITIONS, ids=["at_least_once", "exactly_once"])
@pytest.mark.parametrize("kind", KINDS)
def test_records_of_every_kind_are_copied_unchanged(mirrored: Mirrored, kind: str, prefix: str) -> None:
    """K894-37: partitions, order, keys, tombstones, headers, timestamps; no aborted record, no marker."""
    assert mirrored.arrived[f"{prefix}{mirrored.family}.{kind}"] == mirrored.wanted[kind]


def test_target_has_no_control_batches_of_source(mirrored: Mirrored) -> None:
    """K894-37: at least once, nothing of the source's transactions is left but its records."""
    for kind in ("transactions", "compacted"):
        batches = stored(mirrored.cluster, f"A{RUN}.{mirrored.family}.{kind}")
        assert batches
        assert not any(batch.is_control or batch.is_transactional for batch in batches), kind


def test_too_large_record_stops_only_its_partition(mirrored: Mirrored) -> None:
    """K894-38: nothing is left out silently."""
    stopped = [(row.topic, row.partition, row.reason) for row in mirrored.rows if row.state is CopyState.STOPPED]
    assert [(topic, partition) for topic, partition, _ in stopped] == [(f"{mirrored.family}.large", 1)] * 2
    assert all(TOO_LARGE in reason for _, _, reason in stopped)


def test_remote_topics_have_configured_replication_factor(mirrored: Mirrored) -> None:
    """K894-35: Target topic: same partition count, RF = replication.factor (2), configs after the filter at creation;
    created before data flows.
    """
    assert replica_counts(mirrored.cluster, f"A{RUN}.{mirrored.family}.zstd") == [2, 2, 2]
