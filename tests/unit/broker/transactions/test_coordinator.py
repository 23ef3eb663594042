"""The transaction coordinator with real logs and a real store: every decision is completed after any failure."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import Mock
from uuid import UUID

import pytest

from klamm.broker.groups.errors import CoordinatorNotAvailableError, NotCoordinatorError
from klamm.broker.transactions import rules
from klamm.broker.transactions.coordinator import TransactionCoordinator
from klamm.broker.transactions.model import (
    ConcurrentTransactionsError,
    ProducerFencedError,
    TransactionPartition,
    TransactionState,
)
from klamm.protocol.errors import InvalidProducerIdMappingError, InvalidTxnStateError, StorageError
from klamm.protocol.types import ProducerIdentity
from klamm.storage.metadata.store import MetadataStore
from klamm.storage.metadata.writer import CommitWriter
from tests.support.data_path import TRANSACTION_CONFIG, NoOffsets, ProducerIds
from tests.support.logs import TOPIC_ID, CrashableLogs, FailingPool
from tests.support.transactions import ABORT, committed_values, end, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

PARTITION = TransactionPartition(TOPIC_ID, 0)


@dataclass
class CoordinatorHost:
    """A data directory with a coordinator over it, which may be started again and again."""

    directory: Path
    config: dict[str, object] = field(default_factory=lambda: dict(TRANSACTION_CONFIG))

    def __post_init__(self) -> None:
        logs = self.directory / "logs"
        logs.mkdir()
        self.crashable = CrashableLogs(logs)
        self.ids = ProducerIds()

    async def start(self) -> None:
        """Open everything, as after a crash."""
        self.store = MetadataStore.open(self.directory / "metadata.sqlite")
        self.coordinator = TransactionCoordinator(
            self.store,
            self.config.__getitem__,
            producer_ids=self.ids,
            logs=self.crashable.open(),
            offsets=NoOffsets(),
            now_ms=self.crashable.clock,
        )
        self.crashable.manager.recover()
        await self.coordinator.start()

    async def stop(self) -> None:
        """Close the store; logs are left as a crash would."""
        await self.coordinator.stop()
        await self.store.close()

    async def restart(self) -> None:
        """Begin again."""
        await self.stop()
        await self.start()

    async def begin(self, *values: str, transactional_id: str = "x") -> ProducerIdentity:
        """Begin a transaction with some records."""
        identity = await self.coordinator.initialize(transactional_id, timeout_ms=1000, expected=None)
        await self.coordinator.add(transactional_id, identity, partitions={PARTITION})
        if values:
            write(self.crashable.log, identity.producer_id, *values, sequence=0, epoch=identity.producer_epoch)
        return identity

    async def finish(
        self, identity: ProducerIdentity, *, commit: bool = True, knows_v2: bool = True
    ) -> ProducerIdentity:
        """End it."""
        return await self.coordinator.end("x", identity, is_commit=commit, bumps_epoch=knows_v2)

    def state(self) -> TransactionState:
        """The state of the transactional id."""
        return self.coordinator.describe("x").state


@pytest.fixture
def host(tmp_path: Path) -> CoordinatorHost:
    return CoordinatorHost(tmp_path)


@asynccontextmanager
async def running(host: CoordinatorHost) -> AsyncIterator[None]:
    await host.start()
    try:
        yield
    finally:
        await host.stop()


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_transaction_end_is_written_to_partitions(host: CoordinatorHost, commit: bool) -> None:
    async with running(host):
        identity = await host.begin("a")
        assert await host.finish(identity, commit=commit) == (identity.producer_id, 1)
        assert committed_values(host.crashable.log) == (["a"] if commit else [])
        await host.restart()
        assert host.state() is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)


async def test_open_transaction_continues_after_a_restart(host: CoordinatorHost) -> None:
    async with running(host):
        identity = await host.begin("a")
        await host.restart()
        assert host.state() is TransactionState.ONGOING
        host.coordinator.verify("x", identity, PARTITION)
        await host.finish(identity)
        assert committed_values(host.crashable.log) == ["a"]


async def test_restart_completes_decided_transactions(host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(host):
        identity = await host.begin("a")
        # when: the broker dies between the decision and the first marker
        with monkeypatch.context() as patch:
            patch.setattr(host.coordinator, "on_decided", lambda *_: None)
            await host.finish(identity)
        assert committed_values(host.crashable.log) == []
        await host.restart()
        # then
        assert committed_values(host.crashable.log) == ["a"]
        assert host.state() is TransactionState.COMPLETE_COMMIT
        # and: also when the markers were there and only this was not noted
        end_offset = host.crashable.log.end_offset
        await host.restart()
        assert host.crashable.log.end_offset == end_offset


async def test_markers_lost_in_a_power_cut_are_written_again(host: CoordinatorHost) -> None:
    async with running(host):
        identity = await host.begin("a")
        await host.finish(identity)
        log = host.crashable.log
        log.segments[-1].truncate(log.segments[-1].size - 78)  # the marker, which was not on disk yet
        write(log, 99, "of nobody", sequence=0)
        await host.restart()
        assert committed_values(host.crashable.log) == ["a"]
        assert host.crashable.log.last_stable_offset == host.crashable.log.end_offset


@pytest.mark.parametrize("knows_v2", [True, False], ids=["v2", "old"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("then", ["initialized", "in the next transaction", "next transaction ended"])
async def test_lost_marker_is_written_again_after_later_transactions(
    host: CoordinatorHost, commit: bool, knows_v2: bool, then: str
) -> None:
    """The records are on disk (``flush.messages=1``), the marker is not, and the producer has gone on elsewhere."""
    async with running(host):
        identity = await host.begin("a")
        host.crashable.flush_log()
        identity = await host.finish(identity, commit=commit, knows_v2=knows_v2)
        if then == "initialized":
            await host.coordinator.initialize("x", timeout_ms=1000, expected=None)
        else:
            await host.coordinator.add("x", identity, partitions={PARTITION})
        if then == "next transaction ended":
            await host.finish(identity, commit=not commit, knows_v2=knows_v2)
        # when
        position = host.crashable.log.segments[-1].position_of(1)  # of what follows the record
        assert position is not None
        host.crashable.log.segments[-1].truncate(position)
        await host.restart()
        # then
        if then == "in the next transaction":
            assert host.state() is TransactionState.ONGOING
            await host.finish(identity, commit=not commit, knows_v2=knows_v2)
        assert committed_values(host.crashable.log) == (["a"] if commit else [])
        assert host.crashable.log.last_stable_offset == host.crashable.log.end_offset


@pytest.mark.parametrize("knows_v2", [True, False], ids=["v2", "old"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("added", [{"partitions": {PARTITION}}, {"groups": {"g"}}], ids=["partition", "group"])
async def test_lost_marker_is_written_again_if_a_later_empty_transaction_is_being_ended(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch, added: dict[str, Any], commit: bool, knows_v2: bool
) -> None:
    async with running(host):
        # given
        identity = await host.begin("a")
        host.crashable.flush_log()
        identity = await host.finish(identity, commit=commit, knows_v2=knows_v2)
        await host.coordinator.add("x", identity, **added)
        with monkeypatch.context() as patch:
            patch.setattr(host.coordinator, "on_decided", lambda *_: None)
            await host.finish(identity, commit=not commit, knows_v2=knows_v2)
        # when: the power is cut before the second transaction is complete
        position = host.crashable.log.segments[-1].position_of(1)  # of the marker
        assert position is not None
        host.crashable.log.segments[-1].truncate(position)
        await host.restart()
        # then
        assert committed_values(host.crashable.log) == (["a"] if commit else [])
        assert host.crashable.log.last_stable_offset == host.crashable.log.end_offset


async def _with_lost_marker(host: CoordinatorHost, *, commit: bool, knows_v2: bool) -> ProducerIdentity:
    """End a transaction, stop, and cut the power: the disk has the record ``first``, but not the marker behind it."""
    identity = await host.begin("first")
    host.crashable.flush_log()
    identity = await host.finish(identity, commit=commit, knows_v2=knows_v2)
    position = host.crashable.log.segments[-1].position_of(1)
    assert position is not None
    host.crashable.log.segments[-1].truncate(position)
    await host.stop()
    return identity


@contextmanager
def _failing_start(monkeypatch: pytest.MonkeyPatch, step: str) -> Iterator[None]:
    """Let each opening of a log fail, or each write to one."""
    with monkeypatch.context() as patch:
        if step == "open":
            error = OSError(errno.ENOMEM, "Cannot allocate memory")
            patch.setattr("klamm.storage.log.manager.open_partition", Mock(side_effect=error))
        else:
            patch.setattr(FailingPool, "room", 0)
        yield


@pytest.mark.parametrize("knows_v2", [True, False], ids=["v2", "old"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("step", ["open", "write"])
async def test_lost_marker_precedes_the_next_transaction_after_a_failed_start(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch, step: str, commit: bool, knows_v2: bool
) -> None:
    async with running(host):
        identity = await _with_lost_marker(host, commit=commit, knows_v2=knows_v2)
        with _failing_start(monkeypatch, step):
            await host.start()
            await host.coordinator.add("x", identity, partitions={PARTITION})
            with pytest.raises(OSError, match=r"Cannot allocate memory|No space left"):
                host.crashable.manager.get(*PARTITION)
        # when: the disk works again, and the producer writes before anything else happens
        sequence = 0 if knows_v2 else 1
        write(host.crashable.log, identity.producer_id, "next", sequence=sequence, epoch=identity.producer_epoch)
        await host.finish(identity, commit=not commit, knows_v2=knows_v2)
        # then
        assert committed_values(host.crashable.log) == (["first"] if commit else ["next"])
        assert host.crashable.log.last_stable_offset == host.crashable.log.end_offset
        # and: both decisions can be dropped without another start
        await host.coordinator.decisions.settle()
        await host.store.submit([])
        assert host.store.load_decisions() == []


@pytest.mark.parametrize("step", ["open", "write"])
async def test_lost_marker_is_written_after_an_orderly_stop_that_could_not_write_it(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with running(host):
        await _with_lost_marker(host, commit=True, knows_v2=True)
        with _failing_start(monkeypatch, step):
            await host.start()
            await host.coordinator.initialize("x", timeout_ms=1000, expected=None)
            await host.coordinator.stop()
            with monkeypatch.context() as patch:
                patch.setattr(FailingPool, "room", None)  # so that this is no reason for an unclean stop
                await host.crashable.manager.close()
            await host.store.close()
        # when
        await host.start()
        # then
        assert committed_values(host.crashable.log) == ["first"]


@contextmanager
def _failing_commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let each commit of the metadata store wait for an event and then fail."""
    may_fail = threading.Event()

    def fail(*_: object) -> None:
        may_fail.wait()
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr("klamm.storage.metadata.writer.CommitWriter._commit", fail)
        yield may_fail


async def test_log_that_opens_during_the_commit_of_a_decision_gets_no_marker_yet(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(host):
        identity = await host.begin("a")
        await host.stop()
        with ExitStack() as failures:
            with _failing_start(monkeypatch, "open"):
                await host.start()
                host.store.on_failure = lambda _: host.coordinator.reload()
                may_fail = failures.enter_context(_failing_commits(monkeypatch))
                ending = asyncio.create_task(host.finish(identity))
                await asyncio.sleep(0)
            log = host.crashable.log
            may_fail.set()
            with pytest.raises(NotCoordinatorError):
                await ending
        assert (host.state(), log.last_stable_offset, log.end_offset) == (TransactionState.ONGOING, 0, 1)


async def test_decision_is_removed_once_its_markers_are_durable(host: CoordinatorHost) -> None:
    async with running(host):
        identity = await host.begin("a")
        identity = await host.finish(identity)
        log = host.crashable.log
        assert (len(host.store.load_decisions()), log.recovery_point) == (1, 0)
        await host.coordinator.decisions.settle()
        await host.store.submit([])
        assert (host.store.load_decisions(), log.recovery_point) == ([], log.end_offset)
        # and: a transaction without records has no marker to wait for
        await host.coordinator.add("x", identity, partitions={PARTITION})
        await host.finish(identity)
        await host.coordinator.decisions.settle()
        await host.store.submit([])
        assert host.store.load_decisions() == []


async def test_unsynced_log_keeps_its_decision(host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with running(host):
        identity = await host.begin("a")
        await host.finish(identity)
        with monkeypatch.context() as patch:
            patch.setattr("klamm.storage.log.flusher.fsync_path", fail)
            await host.coordinator.decisions.settle()
            await host.store.submit([])
        assert len(host.store.load_decisions()) == 1
        # and: a start finds the marker, makes it durable and forgets the decision
        end_offset = host.crashable.log.end_offset
        await host.restart()
        assert (host.crashable.log.end_offset, host.crashable.log.recovery_point) == (end_offset, end_offset)
        await host.store.submit([])
        assert host.store.load_decisions() == []


async def test_reused_offsets_after_a_power_cut_belong_to_the_new_transaction(host: CoordinatorHost) -> None:
    async with running(host):
        identity = await host.begin("lost")
        identity = await host.finish(identity, knows_v2=False)
        host.crashable.log.segments[-1].truncate(0)
        await host.restart()
        # when: the next transaction of the same producer and epoch begins at the same offset
        await host.coordinator.add("x", identity, partitions={PARTITION})
        write(host.crashable.log, identity.producer_id, "open", sequence=0, epoch=identity.producer_epoch)
        await host.restart()
        # then
        assert (host.state(), committed_values(host.crashable.log)) == (TransactionState.ONGOING, [])
        await host.finish(identity, commit=False, knows_v2=False)
        assert committed_values(host.crashable.log) == []


async def test_reused_offsets_of_a_log_that_opens_late_belong_to_the_new_transaction(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(host):
        identity = await host.begin("lost")
        identity = await host.finish(identity)
        host.crashable.log.segments[-1].truncate(0)
        await host.stop()
        with _failing_start(monkeypatch, "open"):
            await host.start()
        # when: the process is killed before the decision about the lost records is dropped
        await host.coordinator.add("x", identity, partitions={PARTITION})
        write(host.crashable.log, identity.producer_id, "open", sequence=0, epoch=identity.producer_epoch)
        await host.restart()
        # then
        assert (host.state(), committed_values(host.crashable.log)) == (TransactionState.ONGOING, [])
        await host.finish(identity, commit=False)
        assert committed_values(host.crashable.log) == []


async def test_full_disk_delays_only_the_markers(host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.broker.transactions.coordinator._RETRY_S", 0.01)
    async with running(host):
        identity = await host.begin("a")
        host.crashable.pool.room = 0
        assert await host.finish(identity) == (identity.producer_id, 1)
        assert host.state() is TransactionState.PREPARE_COMMIT
        with pytest.raises(ConcurrentTransactionsError):
            await host.coordinator.add("x", ProducerIdentity(identity.producer_id, 1), partitions={PARTITION})
        host.crashable.pool.room = None
        await _until(lambda: host.state() is TransactionState.COMPLETE_COMMIT)
        assert committed_values(host.crashable.log) == ["a"]


async def test_offline_partition_does_not_block_markers_of_others(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("klamm.broker.transactions.coordinator._RETRY_S", 0.01)
    other = TransactionPartition(UUID(int=8), 0)
    host.crashable.partitions.append((other.topic_id, "other", 0))
    async with running(host):
        identity = await host.begin("a")
        await host.coordinator.add("x", identity, partitions={other})
        log = host.crashable.manager.get(*other)
        assert log is not None
        write(log, identity.producer_id, "b", sequence=0, epoch=identity.producer_epoch)
        host.crashable.log.take_offline(OSError(errno.EIO, "Input/output error"))
        await host.finish(identity)
        await _until(lambda: committed_values(log) == ["b"] and "lacks markers" in caplog.text)
        await asyncio.sleep(0.1)  # ten more attempts
        assert (host.state(), committed_values(log)) == (TransactionState.PREPARE_COMMIT, ["b"])
        assert len([record for record in caplog.records if "lacks markers" in record.message]) == 1
        # and: a restart has checked the log
        await host.restart()
        assert host.state() is TransactionState.COMPLETE_COMMIT
        assert committed_values(host.crashable.log) == ["a"]


async def test_full_disk_at_start_keeps_decisions(host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.broker.transactions.coordinator._RETRY_S", 0.01)
    async with running(host):
        identity = await host.begin("a")
        write(host.crashable.log, 99, "of nobody", sequence=0)
        with monkeypatch.context() as patch:
            patch.setattr(host.coordinator, "on_decided", lambda *_: None)
            await host.finish(identity)
        await host.stop()
        with monkeypatch.context() as patch:
            patch.setattr(FailingPool, "room", 0)
            await host.start()
            assert host.state() is TransactionState.PREPARE_COMMIT
        await _until(lambda: host.state() is TransactionState.COMPLETE_COMMIT)
        await host.restart()
        assert committed_values(host.crashable.log) == ["a"]


async def test_timed_out_transaction_is_aborted_and_its_producer_continues(host: CoordinatorHost) -> None:
    async with running(host):
        identity = await host.begin("a")
        host.crashable.clock.now_ms += 1001
        await host.restart()
        host.coordinator.abort_timed_out()
        assert host.state() is TransactionState.ONGOING, "the time for which the broker was away does not count"
        host.crashable.clock.now_ms += 1001
        host.coordinator.abort_timed_out()
        assert host.state() is TransactionState.PREPARE_ABORT
        await _until(lambda: host.state() is TransactionState.COMPLETE_ABORT)
        assert committed_values(host.crashable.log) == []
        assert host.crashable.log.last_stable_offset == host.crashable.log.end_offset
        with pytest.raises(InvalidTxnStateError):
            await host.finish(identity)
        again = await host.coordinator.initialize("x", timeout_ms=1000, expected=identity)
        assert again == (identity.producer_id, 1)


async def test_next_producer_waits_for_the_abort_of_the_open_transaction(host: CoordinatorHost) -> None:
    async with running(host):
        zombie = await host.begin("a")
        with pytest.raises(ConcurrentTransactionsError):
            await host.coordinator.initialize("x", timeout_ms=1000, expected=None)
        following = await host.begin("b")
        assert following == (zombie.producer_id, 2)
        with pytest.raises(ProducerFencedError):
            await host.coordinator.add("x", zombie, partitions={PARTITION})
        await host.finish(following)
        assert committed_values(host.crashable.log) == ["b"]


async def test_deleted_topic_does_not_block_the_end_of_a_transaction(host: CoordinatorHost) -> None:
    async with running(host):
        identity = await host.begin("a")
        host.crashable.manager.delete_topic(TOPIC_ID)
        await host.finish(identity)
        assert host.state() is TransactionState.COMPLETE_COMMIT


async def test_unused_transactional_ids_expire(host: CoordinatorHost) -> None:
    async with running(host):
        identity = await host.begin()
        await host.begin(transactional_id="open")
        await host.finish(identity)
        host.crashable.clock.now_ms += int(str(TRANSACTION_CONFIG["transactional.id.expiration.ms"]))
        host.coordinator.forget_expired()
        await host.restart()
        assert [item.transactional_id for item in host.coordinator.all()] == ["open"]


async def test_rotated_producer_ids_are_forgotten(host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr(rules, "needs_new_producer_id", lambda *_: True)
    async with running(host):
        # when
        ids = [(await host.coordinator.initialize("x", timeout_ms=1000, expected=None)).producer_id for _ in range(4)]
        rotated = set(host.coordinator._owners)
        host.crashable.clock.now_ms += int(str(TRANSACTION_CONFIG["transactional.id.expiration.ms"]))
        host.coordinator.forget_expired()
        # then
        assert len(set(ids)) == 4
        assert rotated == set(ids[-2:])
        assert host.coordinator._owners == {}


async def test_failed_write_leaves_the_transaction_unchanged(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(host):
        host.store.on_failure = lambda _: host.coordinator.reload()
        identity = await host.begin("a")
        with _failing_commits(monkeypatch) as may_fail:
            may_fail.set()
            with pytest.raises(NotCoordinatorError):
                await host.finish(identity)
        assert (host.state(), committed_values(host.crashable.log)) == (TransactionState.ONGOING, [])
        await host.finish(identity)
        assert committed_values(host.crashable.log) == ["a"]


async def test_repeated_addition_waits_for_the_commit_of_the_first(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(host):
        host.store.on_failure = lambda _: host.coordinator.reload()
        identity = await host.coordinator.initialize("x", timeout_ms=1000, expected=None)
        with _failing_commits(monkeypatch) as may_fail:
            adding = [
                asyncio.create_task(host.coordinator.add("x", identity, partitions={PARTITION})) for _ in range(2)
            ]
            await asyncio.sleep(0)
            adding[0].cancel()  # the client has closed the connection and repeats the request on another one
            is_confirmed = adding[1].done()
            may_fail.set()
            with pytest.raises(NotCoordinatorError):
                await adding[1]
        assert not is_confirmed
        assert host.state() is TransactionState.EMPTY


class _Retry(NamedTuple):
    """A scheduled attempt to complete a transaction. The test runs it."""

    handle: asyncio.TimerHandle
    run: Callable[[], None]


@contextmanager
def _recorded_retries(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[_Retry]]:
    """Record the attempts that are scheduled, and let none of them become due."""
    call_later, retries = asyncio.get_running_loop().call_later, list[_Retry]()

    def recorded(delay_s: float, run: Callable[[], None]) -> asyncio.TimerHandle:
        retries.append(_Retry(call_later(delay_s, run), run))
        return retries[-1].handle

    with monkeypatch.context() as patch:
        patch.setattr("klamm.broker.transactions.coordinator._RETRY_S", 3600.0)
        patch.setattr(asyncio.get_running_loop(), "call_later", recorded)
        yield retries


async def test_failed_commits_leave_one_retry_of_missing_markers(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(host):
        identity = await host.begin("a")
        with _recorded_retries(monkeypatch) as retries:
            host.crashable.pool.room = 0
            await host.finish(identity)
            for _ in range(3):  # commits of others fail
                host.coordinator.reload()
            assert [retry.handle.cancelled() for retry in retries] == [True, True, True, False]
            # and: none is left that could meet the next transaction
            host.crashable.pool.room = None
            retries[-1].run()
        assert all(retry.handle.cancelled() for retry in retries)
        assert host.state() is TransactionState.COMPLETE_COMMIT


async def test_failed_commit_of_a_completed_transaction_is_retried_after_a_delay(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(host):
        # given: the decision is committed, and from then on the disk is full
        identity = await host.begin("a")
        commit, batches, has_failed = CommitWriter._commit, list[object](), asyncio.Event()

        def commit_once(writer: CommitWriter, *arguments: Any) -> None:
            batches.append(arguments)
            if len(batches) > 1:
                raise sqlite3.OperationalError("database or disk is full")
            commit(writer, *arguments)

        def reload(_: StorageError) -> None:
            host.coordinator.reload()
            has_failed.set()

        host.store.on_failure = reload
        # when
        with _recorded_retries(monkeypatch) as retries:
            with monkeypatch.context() as patch:
                patch.setattr(CommitWriter, "_commit", commit_once)
                await host.finish(identity)
                await has_failed.wait()
                states = [host.state()]
            retries[-1].run()
        await host.store.submit([])
        # then
        assert (len(batches), len(retries)) == (2, 1)
        assert [*states, host.state()] == [TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT]
        assert committed_values(host.crashable.log) == ["a"]


async def test_stopped_coordinator_is_not_available(host: CoordinatorHost) -> None:
    async with running(host):
        await host.coordinator.stop()
        with pytest.raises(CoordinatorNotAvailableError):
            await host.begin()


async def test_stopped_coordinator_leaves_missing_markers_to_the_next_start(host: CoordinatorHost) -> None:
    async with running(host):
        identity = await host.begin("a")
        host.crashable.pool.room = 0
        await host.finish(identity)
        await host.coordinator.stop()
        host.crashable.pool.room = None
        host.coordinator.reload()  # a commit of another service fails
        assert committed_values(host.crashable.log) == []
        await host.restart()
        assert committed_values(host.crashable.log) == ["a"]


async def test_unknown_transactional_id_has_no_transaction(host: CoordinatorHost) -> None:
    async with running(host):
        with pytest.raises(InvalidProducerIdMappingError):
            host.coordinator.verify("x", ProducerIdentity(1, 0), PARTITION)


async def test_marker_of_an_administrator_takes_precedence(host: CoordinatorHost) -> None:
    async with running(host):
        identity = await host.begin("a")
        end(host.crashable.log, identity.producer_id, ABORT, epoch=5)
        await host.finish(identity)
        assert committed_values(host.crashable.log) == []
        assert host.state() is TransactionState.COMPLETE_COMMIT
