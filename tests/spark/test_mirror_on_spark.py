"""The mirror between klamm's brokers: the work of Spark's driver and tasks, and failures of each."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from klamm.admin import AdminClient, OffsetSpec, TopicPartition
from klamm.mirror.records.formats import OffsetSync
from tests.support.klamm import KlammBroker
from tests.support.mirror import (
    MirrorProcess,
    Seen,
    create_topic,
    delete_records,
    produce,
    properties,
    read,
    wait_for_records,
)
from tests.support.processes import free_port, wait_until
from tests.support.recording_proxy import RecordingProxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psutil  # type: ignore[import-untyped]

PRODUCE, FETCH = 0, 1
FOREVER = {"retention.ms": "-1"}
YEAR_2013 = 1_356_998_400_000
TWO_TASKS = "spark.master = local[2,4]\ntasks.max = 2\n"


@pytest.fixture(scope="module")
def source() -> Iterator[KlammBroker]:
    with KlammBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def target() -> Iterator[KlammBroker]:
    with KlammBroker() as broker:
        yield broker


def numbered(count: int, partitions: int, first: int = 0) -> list[tuple[int, Seen]]:
    return [
        (number % partitions, Seen(b"k%d" % number, b"v%d" % number, (("n", b"%d" % number),), YEAR_2013 + number))
        for number in range(first, first + count)
    ]


def of(records: list[tuple[int, Seen]], partition: int) -> list[Seen]:
    return [record for at, record in records if at == partition]


def ends(address: str, topic: str, partitions: int) -> list[int]:
    specs = {TopicPartition(topic, partition): int(OffsetSpec.LATEST) for partition in range(partitions)}
    with AdminClient(address) as admin:
        return [listed.result(300).offset for listed in admin.list_offsets(specs).values().values()]


@pytest.mark.long
def test_only_tasks_fetch_and_produce_and_partitions_move_between_them_without_loss(tmp_path: Path) -> None:
    # given: leases of one second, so that partitions move from task to task
    ports = free_port(), free_port()
    records = numbered(3_000, 3)
    with (
        RecordingProxy(ports[0]) as before_source,
        RecordingProxy(ports[1]) as before_target,
        _broker(ports[0], before_source) as here,
        _broker(ports[1], before_target),
    ):
        create_topic(here.bootstrap_servers, "t", 3, FOREVER)
        produce(before_source.address, "t", records)
        for proxy in (before_source, before_target):
            proxy.asked.clear()
        # when
        no_control_records = "emit.heartbeats.enabled = false\nemit.checkpoints.enabled = false\n"
        more = f"{no_control_records}{TWO_TASKS}klamm.lease.seconds = 1\n"
        file = properties(before_source.address, before_target.address, more, topics="t")
        with MirrorProcess(file, tmp_path) as mirror:
            mirror.wait_for("3,000/3,000 records")
            workers = {worker.pid for worker in mirror.workers(before_source.port)}
            deadline = time.monotonic() + 4
            while time.monotonic() < deadline:
                some = numbered(30, 3, first=len(records))
                produce(before_source.address, "t", some)
                records += some
                workers |= {worker.pid for worker in mirror.workers(before_source.port)}
            mirror.wait_for(f"{len(records):,}/{len(records):,} records")
            workers |= {worker.pid for worker in mirror.workers(before_source.port)}
            driver = {mirror.process.pid}
            jvm = mirror.jvm().pid
            # then
            entries = {
                entry for entry in before_source.asked | before_target.asked if entry.pid != os.getpid()
            }  # this test produces, too
            assert mirror.stop() == 0
        wanted = {partition: of(records, partition) for partition in range(3)}
        counts = {partition: len(those) for partition, those in wanted.items()}
        assert read(before_target.address, "A.t", counts) == wanted
    by_data = {entry.pid for entry in entries if entry.api_key in (PRODUCE, FETCH)}
    assert by_data <= workers
    assert by_data
    assert {entry.pid for entry in entries} & driver, "the driver asks for topics and configs"
    assert jvm not in {entry.pid for entry in entries}


def _broker(port: int, proxy: RecordingProxy) -> KlammBroker:
    broker = KlammBroker(options=("--advertise", proxy.address))
    broker.ports = (port,)
    return broker


@pytest.mark.long
def test_killed_worker_interrupts_only_its_partitions(source: KlammBroker, target: KlammBroker, tmp_path: Path) -> None:
    # given
    create_topic(source.bootstrap_servers, "killed", 2, FOREVER)
    file = properties(source.bootstrap_servers, target.bootstrap_servers, TWO_TASKS, topics="killed")
    sent: list[tuple[int, Seen]] = []
    done = threading.Event()

    def produce_steadily() -> None:
        while not done.wait(0.02):
            more = numbered(20, 2, first=len(sent))
            produce(source.bootstrap_servers, "killed", more)
            sent.extend(more)

    producer = threading.Thread(target=produce_steadily)
    with MirrorProcess(file, tmp_path) as mirror:
        producer.start()
        try:
            workers: list[psutil.Process] = []

            def two_tasks_copy() -> bool:
                workers[:] = mirror.workers(source.ports[0])
                return len(workers) == 2 and min(ends(target.bootstrap_servers, "A.killed", 2)) > 0

            wait_until(two_tasks_copy, timeout_s=180, what="two tasks", interval_s=0.2)
            # when
            workers[0].kill()
            series = _watch(source, target, until_both_grew_by=200)
        finally:
            done.set()
            producer.join()
        # then
        dead, alive = sorted((0, 1), key=lambda partition: _longest_stall(series, partition), reverse=True)
        assert _growth_while_stalled(series, dead, alive) > 0, "the other partition stood still too"
        wanted = {partition: of(sent, partition) for partition in (0, 1)}
        counts = {partition: len(records) for partition, records in wanted.items()}
        arrived: dict[int, list[Seen]] = {}

        def all_arrived() -> bool:
            arrived.update(read(target.bootstrap_servers, "A.killed", counts))
            return all(len({*arrived[at]}) >= counts[at] for at in counts)

        wait_until(all_arrived, timeout_s=60, what="all records")
        assert mirror.stop() == 0
    # Some are there twice, so that as many as were sent are not yet all of them.
    arrived = read(target.bootstrap_servers, "A.killed", {at: len(records) for at, records in arrived.items()})
    assert arrived[alive] == wanted[alive], "the partition whose worker lives has every record once"
    assert list(dict.fromkeys(arrived[dead])) == wanted[dead]


class Sample(NamedTuple):
    """Ends of both partitions at a moment."""

    at: float
    copied: list[int]
    written: list[int]


def _watch(source: KlammBroker, target: KlammBroker, *, until_both_grew_by: int) -> list[Sample]:
    series: list[Sample] = []
    deadline = time.monotonic() + 60
    while not series or any(
        now - then < until_both_grew_by for now, then in zip(series[-1].copied, series[0].copied, strict=True)
    ):
        assert time.monotonic() < deadline, "a partition does not come back"
        time.sleep(0.05)
        copied = ends(target.bootstrap_servers, "A.killed", 2)
        series.append(Sample(time.monotonic(), copied, ends(source.bootstrap_servers, "killed", 2)))
    return series


def _stalls(series: list[Sample], partition: int) -> list[tuple[int, int]]:
    """Return first and last index of each stretch without growth."""
    out = []
    begin = 0
    for at in range(1, len(series) + 1):
        if at == len(series) or series[at].copied[partition] != series[begin].copied[partition]:
            out.append((begin, at - 1))
            begin = at
    return out


def _duration(series: list[Sample], partition: int, stall: tuple[int, int]) -> float:
    """Return the seconds of a stretch in which there were records to copy."""
    steps = zip(series[stall[0] : stall[1]], series[stall[0] + 1 : stall[1] + 1], strict=True)
    return sum(then.at - now.at for now, then in steps if now.written[partition] > now.copied[partition])


def _longest_stall(series: list[Sample], partition: int) -> tuple[float, tuple[int, int]]:
    return max((_duration(series, partition, stall), stall) for stall in _stalls(series, partition))


def _growth_while_stalled(series: list[Sample], dead: int, alive: int) -> int:
    _, (first, last) = _longest_stall(series, dead)
    return series[last].copied[alive] - series[first].copied[alive]


@pytest.mark.soak
def test_mirror_survives_brokers_unavailable_at_start_and_restarted(tmp_path: Path) -> None:
    """Shorter forms are the rig's restarts, and ``tests/unit/mirror/topics/test_control.py`` for a silent target."""
    # given
    with KlammBroker() as here, KlammBroker() as there:
        there.stop()
        create_topic(here.bootstrap_servers, "restarts", 2, FOREVER)
        first = numbered(2_000, 2)
        produce(here.bootstrap_servers, "restarts", first)
        more = "admin.timeout.ms = 2000\n"
        file = properties(here.bootstrap_servers, there.bootstrap_servers, more, topics="restarts")
        with MirrorProcess(file, tmp_path) as mirror:
            # when
            mirror.wait_for("A->B WAITING")
            there.start()
            # then
            mirror.wait_for("2,000/2,000 records")
            # when
            there.kill()
            second = numbered(2_000, 2, first=2_000)
            produce(here.bootstrap_servers, "restarts", second)
            time.sleep(1)
            there.start()
            mirror.wait_for("4,000/4,000 records")
            here.restart(kill=True)
            third = numbered(2_000, 2, first=4_000)
            produce(here.bootstrap_servers, "restarts", third)
            mirror.wait_for("6,000/6,000 records")
            # then
            assert mirror.stop() == 0
        records = first + second + third
        arrived = read(there.bootstrap_servers, "A.restarts", {0: 3_000, 1: 3_000})
    assert arrived == {partition: of(records, partition) for partition in (0, 1)}


@pytest.mark.long
def test_failing_partitions_stop_and_others_are_copied_with_offset_syncs(
    source: KlammBroker, target: KlammBroker, tmp_path: Path
) -> None:
    """K894-38, K894-40: a remote topic of unknown origin, and a source topic that was deleted and created again."""
    # given
    here, there = source.bootstrap_servers, target.bootstrap_servers
    create_topic(here, "strange", 1, FOREVER)
    create_topic(there, "A.strange", 1, FOREVER)
    for address, topic in ((here, "strange"), (there, "A.strange")):
        produce(address, topic, numbered(10, 1))
    create_topic(here, "again", 1, FOREVER)
    records = numbered(20, 1)
    produce(here, "again", records)
    create_topic(here, "synced", 2, FOREVER)
    produce(here, "synced", numbered(40, 2))
    delete_records(here, "synced", 1, before=15)
    file = properties(here, there, "offset.lag.max = 0\n", topics="strange,again,synced")
    with MirrorProcess(file, tmp_path) as mirror:
        # when
        mirror.wait_for("1 partition stopped")
        # then: records whose position is unknown are never doubled
        assert "strange-0 stopped" in mirror.text()
        assert read(there, "A.again", {0: 20}) == {0: of(records, 0)}
        assert {at: len(arrived) for at, arrived in read(there, "A.synced", {0: 20, 1: 5}).items()} == {0: 20, 1: 5}
        # when
        with AdminClient(here) as admin:
            admin.delete_topics(["again"]).all().result(300)
        create_topic(here, "again", 1, FOREVER)
        produce(here, "again", numbered(50, 1, first=100))
        # then
        mirror.wait_for("2 partitions stopped")
        assert mirror.stop() == 1
    assert "again-0 stopped: again was deleted and created again on the source" in mirror.text()
    assert ends(there, "A.strange", 1) == [10]
    assert read(there, "A.again", {0: 20}) == {0: of(records, 0)}
    written = wait_for_records(here, "mm2-offset-syncs.B.internal", 2)
    syncs = [OffsetSync.parse(record.key or b"", record.value or b"") for record in written]
    newest = {
        sync.partition: (sync.upstream_offset, sync.downstream_offset) for sync in syncs if sync.topic == "synced"
    }
    assert newest == {0: (19, 19), 1: (19, 4)}
