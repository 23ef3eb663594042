"""Order of the requests in a shard's transactions; the target is a list of calls."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any
from unittest.mock import create_autospec
from uuid import UUID

import pytest

from klamm.kafka_client import internal_topic
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.data.cluster import TopicState
from klamm.kafka_client.data.records import RecordsRejectedError
from klamm.kafka_client.errors import ConnectionLostError, TransactionLostError
from klamm.mirror.copy import transactions as module
from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.partition import PartitionCopy, PartitionId
from klamm.mirror.copy.source_offset_store import SourceOffsetStore
from klamm.mirror.copy.transactions import HeldUpError, ShardSettings, ShardTransactions
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.source_offsets import ShardPlan, parse_key, parse_own_key, parse_shard_plan, parse_value
from klamm.protocol.errors import ErrorCode
from klamm.protocol.records import Record, RecordBatch, decode_records, encode_batch
from tests.support.copiers import copy_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from klamm.mirror.copy.batch import Outgoing

TOPIC = "mm2-offsets.A.internal"
POOL = BufferPool(max_free_bytes=1 << 20)
SETTINGS = ShardSettings(
    id_prefix="A-mm2-klamm-A", shards=4, shard=1, interval_s=1.0, shortest_s=0.1, timeout_ms=60_000
)


class Target:
    """Target that succeeds unless a test has put an error into ``errors``, and records its calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.positions: dict[tuple[str, int], int] = {}
        self.plans: list[ShardPlan | None] = []
        self.errors: list[Exception] = []
        self.rejected: dict[tuple[str, int], int] = {}
        self.now = 0.0
        """The time; it goes on while the target is asked, by ``takes_s`` each time."""
        self.takes_s = 0.0

    def clock(self) -> float:
        return self.now

    def fail(self) -> None:
        self.now += self.takes_s
        if self.errors:
            raise self.errors.pop(0)

    def write(self, _: object, topic: str, batches: Mapping[int, bytes], **about: Any) -> None:
        self.asked.append("write")
        self.fail()
        assert topic == TOPIC
        assert about["transactional_id"] == "A-mm2-klamm-A-4-1"
        for data in batches.values():
            batch = RecordBatch(memoryview(data))
            assert batch.is_transactional
            assert batch.producer_id == 7
            for record in decode_records(batch):
                if (key := parse_key(record.key)) is not None:
                    self.positions[key.topic, key.partition] = parse_value(record.value) or 0
                elif parse_own_key(record.key) == "A":
                    self.plans.append(parse_shard_plan(record.value))


class Coordinator:
    """Stands for ``TransactionCoordinator``."""

    target: Target

    def __init__(self, _: object, transactional_id: str) -> None:
        self._id = transactional_id
        self._epoch = 0

    def init(self, *, timeout_ms: int) -> ProducerStamp:
        assert timeout_ms == 60_000
        self.target.asked.append(f"init {self._id}")
        self._epoch += 1
        return ProducerStamp(7, self._epoch, is_transactional=True)

    def add(self, identity: ProducerStamp, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        assert identity.is_transactional
        data = [f"{topic}-{partition}" for topic, partition in partitions if topic != TOPIC]
        self.target.asked.append(" ".join(["add", *data]))
        self.target.fail()
        return dict(self.target.rejected)

    def commit(self, _: ProducerStamp) -> None:
        self.target.asked.append("commit")
        self.target.fail()


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    made = Target()
    monkeypatch.setattr(Coordinator, "target", made, raising=False)
    monkeypatch.setattr(module, "TransactionManager", Coordinator)
    monkeypatch.setattr(internal_topic, "write_batches", made.write)
    return made


class Counted(list[PartitionCopy]):
    """Collection that counts its full iterations, which are slow with thousands of partitions."""

    passes = 0

    def __iter__(self) -> Iterator[PartitionCopy]:
        self.passes += 1
        return super().__iter__()

    def quietly(self) -> Iterator[PartitionCopy]:
        return super().__iter__()


class Shard:
    """Two partitions and their transactions."""

    def __init__(self, target: Target) -> None:
        connection = ConnectionSettings(bootstrap_servers=("h:1",), client_id="c")
        self.store = SourceOffsetStore(connection, POOL, topic=TOPIC, source_alias="A")
        numbers = tuple(range(25))
        self.store.cluster.topics[TOPIC] = TopicState(topic_id=UUID(int=1), leaders={}, partitions=numbers)
        self.heard: list[int] = []
        self.transactions = ShardTransactions(
            SETTINGS,
            self.store,
            source_offsets_interval_s=5.0,
            on_acknowledged=lambda _, __, base_offset: self.heard.append(base_offset),
            clock=target.clock,
        )
        self.transactions.fence()
        self.copies = Counted(
            PartitionCopy(PartitionId("t", at, "A.t"), start_offset=0, committed=True) for at in range(2)
        )

    def fetch(self, partition: int = 0, count: int = 3) -> None:
        copy = self.copies[partition]
        first = copy.fetch_offset
        records = [Record(key=None, value=b"v", timestamp=at, offset=at) for at in range(first, first + count)]
        data = encode_batch(records)
        memory = POOL.take(len(data))
        memory.data[: len(data)] = data
        copy.take(memoryview(memory.data)[: len(data)], memory, None)

    def expect_more(self) -> None:
        """Let the source have more than was fetched."""
        for copy in self.copies.quietly():
            copy.fetched(end_offset=copy.fetch_offset + 1)

    def expect_no_more(self) -> None:
        """Let all that the source has be fetched."""
        for copy in self.copies.quietly():
            copy.fetched(end_offset=copy.fetch_offset)

    def send(self, partition: int = 0) -> Outgoing:
        copy = self.copies[partition]
        assert self.transactions.admits(copy)
        return copy.next_batch(self.transactions.identity)

    def acknowledge(self, outgoing: Outgoing, base_offset: int, partition: int = 0) -> None:
        self.transactions.acknowledged(self.copies[partition], outgoing, base_offset)
        self.copies[partition].acknowledge(outgoing)

    def drive(self, now: float, *, busy: bool = False, ending: bool = False) -> None:
        self.transactions.drive(self.copies, list(self.copies.quietly()), now, busy=busy, ending=ending)


@pytest.fixture
def shard(target: Target) -> Shard:
    made = Shard(target)
    target.asked.clear()
    return made


def test_records_and_source_offsets_commit_in_one_transaction(shard: Shard, target: Target) -> None:
    """K894-39: the position stands in the transaction of the records, and offset syncs wait for its end."""
    shard.fetch()
    shard.expect_more()
    assert not shard.transactions.admits(shard.copies[0]), "nothing goes out before its partition is added"
    shard.drive(10.0)
    sent = shard.send()
    assert RecordBatch(sent.view).is_transactional
    shard.acknowledge(sent, 100)
    shard.drive(10.5)
    assert target.asked == ["add A.t-0"], "it takes more records until its time is over"
    shard.drive(11.0)
    assert target.asked == ["add A.t-0", "write", "commit"]
    assert target.positions == {("t", 0): 2}
    assert shard.copies[0].committed_offset == 3
    assert shard.heard == [100]
    assert shard.transactions.is_idle


def test_caught_up_shard_commits_early(shard: Shard, target: Target) -> None:
    # given
    shard.fetch()
    shard.expect_no_more()
    shard.drive(10.0)
    assert shard.transactions.due_in_s(10.04) == pytest.approx(0.06)
    sent = shard.send()
    shard.expect_more()
    shard.drive(10.2)
    assert shard.transactions.due_in_s(10.2) == math.inf
    assert target.asked == ["add A.t-0"], "not while the next fetch brings more"
    # when
    shard.expect_no_more()
    shard.drive(10.3, busy=True)
    # then
    shard.fetch(1)
    assert not shard.transactions.admits(shard.copies[1]), "the transaction closes"
    assert target.asked == ["add A.t-0"], "when the last batch is acknowledged"
    shard.acknowledge(sent, 100)
    shard.drive(10.4)
    assert target.asked == ["add A.t-0", "write", "commit"]


def test_steady_load_commits_early_although_no_moment_is_without_backlog(shard: Shard, target: Target) -> None:
    # given
    shard.fetch()
    shard.expect_more()
    shard.drive(10.0)
    shard.acknowledge(shard.send(), 100)
    first, second = shard.copies.quietly()
    # when
    first.fetched(end_offset=first.fetch_offset)
    shard.drive(10.2)
    assert target.asked == ["add A.t-0"]
    first.fetched(end_offset=first.fetch_offset + 1)
    second.fetched(end_offset=second.fetch_offset)
    shard.drive(10.3)
    # then
    assert target.asked == ["add A.t-0", "write", "commit"]


@pytest.mark.parametrize(("takes_s", "least_s"), [(0.001, 0.1), (0.05, 0.45), (0.3, 1.0)])
def test_transaction_accepts_records_longer_than_its_overhead(
    shard: Shard, target: Target, takes_s: float, least_s: float
) -> None:
    """Of three calls each; not for less than asked for, and not for longer."""
    # given
    shard.expect_no_more()
    target.takes_s = takes_s
    for number in range(30):
        shard.fetch()
        shard.expect_no_more()
        shard.drive(now := 10.0 * number)
        shard.acknowledge(shard.send(), 3 * number)
        shard.drive(now + 1.0)
        assert shard.transactions.is_idle
    # when
    shard.fetch()
    shard.drive(1000.0)
    # then
    assert shard.transactions.due_in_s(1000.0) == pytest.approx(least_s, abs=0.001)


def test_one_slow_transaction_does_not_lengthen_next(shard: Shard, target: Target) -> None:
    """A broker is busy with something else now and then; records that come later need not wait for that as well."""
    # given
    for number, takes_s in enumerate([0.04] * 10 + [2.0, 0.04]):
        target.takes_s = takes_s
        shard.fetch()
        shard.expect_no_more()
        shard.drive(now := 10.0 * number)
        # then
        assert shard.transactions.due_in_s(now) == pytest.approx(0.36 if number else 0.1, abs=0.001)
        shard.acknowledge(shard.send(), 3 * number)
        shard.drive(now + 5.0)


def test_partition_is_added_to_open_transaction_when_it_has_records(shard: Shard, target: Target) -> None:
    shard.fetch(0)
    shard.drive(10.0)
    shard.fetch(1)
    assert not shard.transactions.admits(shard.copies[1])
    shard.drive(10.1)
    assert target.asked == ["add A.t-0", "add A.t-1"]
    assert shard.transactions.admits(shard.copies[1])


def test_unknown_batch_outcome_delays_commit(shard: Shard, target: Target) -> None:
    shard.fetch()
    shard.drive(10.0)
    sent = shard.send()
    shard.drive(11.0, busy=True)
    shard.copies[0].put_back(sent, "the connection broke", retry_at=0.0)
    shard.fetch(1)
    shard.drive(11.1)
    assert "commit" not in target.asked
    assert not shard.transactions.admits(shard.copies[1]), "nothing new begins in a transaction that is to end"
    again = shard.send()
    assert again is sent, "it goes again with the same numbers"
    shard.acknowledge(again, 100)
    shard.drive(11.2)
    assert target.asked[-1] == "commit"


def test_unacknowledged_batch_loses_transaction(shard: Shard) -> None:
    shard.fetch()
    shard.drive(10.0)
    shard.send()
    shard.drive(11.0, busy=True)
    reason = "records were not acknowledged within transaction.timeout.ms=60000 (A.t-0: no answer)"
    with pytest.raises(HeldUpError, match=re.escape(reason)) as lost:
        shard.drive(70.0, busy=True)
    assert lost.value.is_slow


def test_slow_link_keeps_transaction_until_its_timeout(shard: Shard, target: Target) -> None:
    # given
    shard.fetch()
    shard.drive(10.0)
    sent = shard.send()
    # when no batch fails, but the acknowledgement takes long
    for now in range(11, 70):
        shard.drive(float(now), busy=True)
    # then
    shard.acknowledge(sent, 100)
    shard.drive(69.5)
    assert target.asked == ["add A.t-0", "write", "commit"]
    assert shard.copies[0].committed_offset == 3


def test_acknowledgements_keep_transaction_with_failed_batch_open(shard: Shard) -> None:
    # given
    for number in (0, 1):
        shard.fetch(number)
    shard.drive(10.0)
    slow, failed = shard.send(1), shard.send(0)
    shard.copies[0].target_failed("the connection broke", 11.0, failed)
    # when
    shard.drive(11.0, busy=True)
    shard.drive(25.0, busy=True)
    shard.acknowledge(slow, 100, 1)
    shard.drive(26.0, busy=True)
    shard.drive(40.0, busy=True)
    # then
    assert not shard.transactions.is_idle
    with pytest.raises(HeldUpError, match="for 15 s") as lost:
        shard.drive(41.0, busy=True)
    assert not lost.value.is_slow, "fewer bytes in flight would not help"


def test_retry_in_flight_counts_as_failing(shard: Shard) -> None:
    # given
    shard.fetch()
    shard.drive(10.0)
    shard.copies[0].target_failed("NOT_ENOUGH_REPLICAS", 11.0, shard.send())
    shard.drive(11.0)
    # when
    shard.send()
    # then
    with pytest.raises(HeldUpError, match="for 15 s"):
        shard.drive(26.0, busy=True)


def test_partition_delaying_commit_is_reported_with_reason(shard: Shard) -> None:
    """One partition below min.insync.replicas: the message names it, and counts those that wait for it."""
    for number in (0, 1):
        shard.fetch(number)
    shard.drive(10.0)
    sound, sick = shard.send(1), shard.send(0)
    shard.acknowledge(sound, 100, 1)
    shard.drive(11.0, busy=True)
    shard.copies[0].put_back(sick, "the target rejected records: NOT_ENOUGH_REPLICAS", retry_at=0.0)
    shard.drive(11.1)
    reason = (
        "records were not acknowledged for 15 s (A.t-0: the target rejected records: NOT_ENOUGH_REPLICAS). "
        "Other partitions of transactional id A-mm2-klamm-A-4-1 that had to wait: 1"
    )
    with pytest.raises(HeldUpError, match=re.escape(reason)):
        shard.drive(60.0)


def test_stopped_partition_with_unknown_outcome_loses_transaction(shard: Shard) -> None:
    shard.fetch()
    shard.drive(10.0)
    sent = shard.send()
    shard.copies[0].stop("damaged")
    shard.copies[0].put_back(sent, "the connection broke", retry_at=0.0)
    with pytest.raises(TransactionLostError):
        shard.drive(11.0)


def test_stopped_partition_before_retry_loses_transaction(shard: Shard) -> None:
    """K894-39: the target may have the batch, and its source offset would not be committed with it."""
    shard.fetch()
    shard.drive(10.0)
    shard.copies[0].put_back(shard.send(), "the connection broke", retry_at=0.0)
    shard.copies[0].stop("a later batch of the source is damaged")
    assert not shard.copies[0].is_idle
    with pytest.raises(TransactionLostError):
        shard.drive(11.0)


def test_restart_of_partition_with_unknown_outcome_loses_transaction(
    shard: Shard, target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    made = iter((shard.transactions, create_autospec(ShardTransactions, instance=True, is_idle=True)))
    monkeypatch.setattr("klamm.mirror.copy.copier.ShardTransactions", lambda *_, **__: next(made))
    copier = Copier(copy_settings("h:1", "h:2", alias="A", shards=4, shard=1), [], clock=target.clock)
    shard.fetch()
    shard.drive(0.0)
    shard.copies[0].put_back(shard.send(), "UNKNOWN_SERVER_ERROR", retry_at=0.0)
    shard.copies[0].stop("UNKNOWN_SERVER_ERROR")
    copier.add(shard.copies[0])
    # when
    copier.restarts = {"t": 1}
    copier.restart_stopped()
    copier.run(lambda: True)
    copier.close()
    # then
    assert "a transaction is lost and its records are copied again" in caplog.text
    assert "commit" not in target.asked


def test_rejected_batch_keeps_transaction(shard: Shard, target: Target) -> None:
    for number in (0, 1):
        shard.fetch(number)
    shard.drive(10.0)
    shard.acknowledge(shard.send(1), 100, 1)
    shard.copies[0].put_back(shard.send(0), "INVALID_RECORD", retry_at=0.0, in_doubt=False)
    shard.copies[0].stop("INVALID_RECORD")
    assert shard.copies[0].is_idle
    shard.drive(11.0)
    assert target.asked[-1] == "commit"


def test_response_with_old_base_offset_loses_transaction(shard: Shard) -> None:
    """A broker that takes a batch for one of an earlier transaction answers well and writes nothing."""
    shard.fetch()
    shard.fetch()
    shard.drive(10.0)
    first, second = shard.send(), shard.send()
    shard.acknowledge(first, 100)
    with pytest.raises(TransactionLostError, match="offset 100"):
        shard.acknowledge(second, 100)


@pytest.mark.parametrize("lost", ["write", "commit"])
def test_interrupted_commit_resends_same_source_offsets(shard: Shard, target: Target, lost: str) -> None:
    shard.fetch()
    shard.drive(10.0)
    shard.acknowledge(shard.send(), 100)
    target.errors = [ConnectionLostError("gone")] if lost == "write" else []
    if lost == "commit":
        shard.fetch(1)
        target.asked.clear()
        commits = [ConnectionLostError("gone")]
        original = target.fail
        target.fail = lambda: _raise(commits) if target.asked[-1] == "commit" and commits else original()  # type: ignore[method-assign]
    with pytest.raises(ConnectionLostError):
        shard.drive(11.0)
    shard.drive(11.5)
    assert target.asked.count("write") == (2 if lost == "write" else 1)
    assert target.asked[-1] == "commit"
    assert target.positions == {("t", 0): 2}
    assert shard.copies[0].committed_offset == 3


def _raise(errors: list[ConnectionLostError]) -> None:
    raise errors.pop()


def test_repeated_end_txn_gives_next_transaction_new_epoch(shard: Shard, target: Target) -> None:
    """K894-39: the first EndTxn may still arrive. With the old epoch it would commit the next transaction."""
    # given
    shard.fetch()
    shard.drive(10.0)
    shard.acknowledge(shard.send(), 100)
    commits = [ConnectionLostError("gone")]
    target.fail = lambda: _raise(commits) if target.asked[-1] == "commit" and commits else None  # type: ignore[method-assign]
    with pytest.raises(ConnectionLostError):
        shard.drive(11.0)
    shard.drive(11.5)
    assert shard.transactions.is_idle
    target.asked.clear()
    # when
    shard.fetch()
    shard.drive(12.0)
    sent = shard.send()
    # then
    assert target.asked == ["init A-mm2-klamm-A-4-1", "add A.t-0"]
    assert sent.producer == ProducerStamp(7, 2, is_transactional=True)
    assert sent.base_sequence == 0
    shard.acknowledge(sent, 103)
    shard.drive(13.0)
    assert shard.copies[0].committed_offset == 6


def test_acknowledged_end_txn_keeps_epoch(shard: Shard, target: Target) -> None:
    for number in range(3):
        shard.fetch()
        shard.drive(10.0 + number)
        shard.acknowledge(shard.send(), 100 + 3 * number)
        shard.drive(10.9 + number, ending=True)
    assert not [call for call in target.asked if call.startswith("init")]


def test_fenced_shard_loses_transaction(shard: Shard, target: Target) -> None:
    shard.fetch()
    shard.drive(10.0)
    shard.acknowledge(shard.send(), 100)
    target.errors = [RecordsRejectedError(TOPIC, [ErrorCode.INVALID_PRODUCER_EPOCH])]
    with pytest.raises(TransactionLostError):
        shard.drive(11.0)


def test_partition_rejected_by_add_partitions_waits(shard: Shard, target: Target) -> None:
    shard.fetch(0)
    shard.fetch(1)
    target.rejected = {
        ("A.t", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ("A.t", 1): ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
    shard.drive(10.0)
    assert shard.copies[0].state is CopyState.WAITING
    assert "TOPIC_AUTHORIZATION_FAILED" in shard.copies[0].reason
    target.rejected = {}
    shard.drive(10.1)
    assert target.asked == ["add A.t-0 A.t-1", "add A.t-1"]
    assert shard.transactions.admits(shard.copies[1])
    assert not shard.transactions.admits(shard.copies[0])


def test_source_offset_advanced_without_records_is_committed_periodically(shard: Shard, target: Target) -> None:
    shard.copies[0].skip_to(9)
    shard.drive(10.0)
    shard.drive(11.0)
    assert target.positions == {("t", 0): 8}
    shard.copies[0].skip_to(10)
    shard.drive(11.1)
    assert target.asked.count("commit") == 1, "markers of the source alone are no reason for a transaction at once"


def test_commit_cost_depends_on_touched_partitions(shard: Shard, target: Target) -> None:
    # given
    shard.expect_more()
    shard.drive(10.0)
    shard.copies.passes = 0
    # when
    for number in range(4):
        shard.fetch()
        shard.expect_more()
        shard.drive(now := 10.2 + number)
        shard.acknowledge(shard.send(), 3 * number)
        for turn in range(1, 10):
            shard.drive(now + turn / 10)
        shard.drive(now + 1.0)
    # then
    assert target.asked.count("commit") == 4
    assert shard.copies[0].committed_offset == 12
    assert shard.copies.passes == 1, "who is behind; those whose positions moved without records are not due yet"


def test_idle_shard_checks_source_offsets_once_per_interval(shard: Shard) -> None:
    for turn in range(100):
        shard.drive(10.0 + turn / 10)
    assert shard.copies.passes == 2, "the interval is 5 s"


def test_stopped_partition_does_not_delay_commit(shard: Shard, target: Target) -> None:
    # given
    shard.expect_more()
    shard.copies[1].stop("its records were purged")
    shard.fetch(0)
    shard.copies[0].fetched(end_offset=shard.copies[0].fetch_offset)
    shard.drive(10.0)
    shard.acknowledge(shard.send(), 100)
    # when
    shard.drive(10.1)
    # then
    assert target.asked == ["add A.t-0", "write", "commit"]


def test_draining_copier_commits_at_once(shard: Shard, target: Target) -> None:
    shard.fetch()
    shard.drive(10.0)
    shard.acknowledge(shard.send(), 100)
    shard.drive(10.1, ending=True)
    assert target.asked[-1] == "commit"
    shard.fetch()
    shard.drive(10.2, ending=True)
    assert shard.transactions.is_idle


def test_changed_shard_count_fences_all_previous_ids(shard: Shard, target: Target) -> None:
    """K894-39: our number is known on the target before theirs are fenced, so that a crash between is made good."""
    assert not shard.transactions.is_planned(ShardPlan(2))
    assert not shard.transactions.is_planned(None)
    shard.transactions.take_over(ShardPlan(2, (3,)))
    assert target.plans == [ShardPlan(4, (2, 3)), ShardPlan(4)]
    fenced = [f"init A-mm2-klamm-A-{count}-{at}" for count in (2, 3) for at in range(count)]
    assert target.asked == ["add", "write", "commit", *fenced, "add", "write", "commit"]
    assert shard.transactions.is_planned(target.plans[-1])
    assert not shard.transactions.is_planned(ShardPlan(4, (2,))), "somebody died before all were fenced"
