"""The transaction coordinator: what the handlers of the transaction APIs and of Produce talk to.

A decision is applied in memory and submitted to the metadata store in one piece. When it is on disk, and not before,
markers are written; a start completes what was decided. So a transaction is committed everywhere or nowhere, whenever
the broker dies.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from klamm.broker.groups.errors import CoordinatorNotAvailableError, NotCoordinatorError
from klamm.broker.time_slice import TimeSlice
from klamm.broker.transactions import rules
from klamm.broker.transactions.decisions import Decisions
from klamm.broker.transactions.errors import ConcurrentTransactionsError, TransactionalIdNotFoundError
from klamm.broker.transactions.markers import Logs, end_decided, end_hanging, write_markers
from klamm.broker.transactions.model import Transaction, TransactionPartition, TransactionState
from klamm.broker.transactions.settings import TransactionSettings
from klamm.broker.transactions.snapshot import from_payload, to_payload
from klamm.protocol.errors import InvalidProducerIdMappingError, StorageError
from klamm.storage.changes import DropTransaction, PutDecision, PutTransaction
from klamm.storage.errors import DataDirectoryError
from klamm.storage.log.error_reports import ErrorReports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from klamm.protocol.types import ProducerIdentity
    from klamm.storage.changes import Change

logger = logging.getLogger(__name__)

_SETTLE_S = 10.0
"""How often the partitions of ended transactions are made durable, so that their decisions can be forgotten."""
_SETTLED_AT_ONCE = 10_000
"""Decisions that are remembered before this is done earlier."""
_MARKERS_AT_ONCE = 64
"""Markers that are written before other requests are served."""
_RETRY_S = 1.0
"""How soon markers are tried again that the disk has refused."""


class Store(Protocol):
    """What transactions need of the metadata store."""

    def submit(self, changes: Sequence[Change], /) -> asyncio.Future[None]:
        """Queue changes; the future is done when they are on disk. Those of one turn of the loop go in one piece."""
        ...

    def load_transactions(self) -> list[PutTransaction]:
        """Return the stored transactional ids."""
        ...

    def load_decisions(self) -> list[PutDecision]:
        """Return the stored decisions, ascending by number."""
        ...


class ProducerIds(Protocol):
    """Where new producer ids come from."""

    async def allocate(self) -> int:
        """Return an id that nobody else has or had."""
        ...


class PendingOffsets(Protocol):
    """What the groups do when a transaction ends."""

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Commit or forget the offsets that waited, and submit that to the store right here."""
        ...


class TransactionCoordinator:
    """All transactional ids. Confined to one event loop: no lock, and no await between a check and its change."""

    def __init__(
        self,
        store: Store,
        get_config: Callable[[str], Any],
        *,
        producer_ids: ProducerIds,
        logs: Logs,
        offsets: PendingOffsets,
        now_ms: Callable[[], int],
    ) -> None:
        """Read the settings; nothing is loaded before ``start``.

        Args:
            store: The metadata store.
            get_config: Returns a broker config by Kafka's name.
            producer_ids: Gives new ones.
            logs: Of all partitions.
            offsets: Of all groups.
            now_ms: Wall clock, milliseconds since the epoch.
        """
        self._store = store
        self._get_config = get_config
        self._settings = TransactionSettings.from_config(get_config)
        self._producer_ids = producer_ids
        self._logs = logs
        self._offsets = offsets
        self._now_ms = now_ms
        self._transactions: dict[str, Transaction] = {}
        self._started_ms = now_ms()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self._decisions = Decisions(store, logs)
        self._reports = ErrorReports()
        self._settling: asyncio.Task[None] | None = None
        self._completions: dict[str, asyncio.Task[None]] = {}
        """Transactions of many partitions whose markers are being written, by transactional id."""
        self._is_running = False

    # ---- life

    async def start(self) -> None:
        """Load what is stored, complete what was decided, and begin to look for what takes too long.

        Raises:
            DataDirectoryError: What is stored cannot be read.
        """
        self._started_ms = self._now_ms()
        self._load()
        if self._logs.was_clean:
            self._decisions.forget_written()
        self._end_open()
        # Before anything is appended: offsets behind the end of a log will belong to other transactions.
        await self._decisions.settle()
        self._is_running = True
        self._every("decisions", _SETTLE_S, self._settle)
        self._every("timeouts", self._settings.abort_interval_s, self.abort_timed_out)
        self._every("expiration", self._settings.expiration_interval_s, self.forget_expired)

    async def stop(self) -> None:
        """Stop all timers; a transaction that is open goes on after the next start."""
        self._is_running = False
        for timers in (self._timers, self._retries):
            for timer in timers.values():
                timer.cancel()
            timers.clear()
        tasks = {*self._completions.values(), *(() if self._settling is None else (self._settling,))}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def reload(self) -> None:
        """Go back to what the store holds, after a commit has failed."""
        self._load()
        for completion in self._completions.values():
            completion.cancel()
        self._complete_decided()
        self._decisions.all_written()

    def _end_open(self) -> None:
        """End what is open in the logs and was decided, or is known to no transactional id.

        Remembered decisions come first, because a later transaction of the same producer may end otherwise.
        """
        if not end_decided(self._logs, self._decisions, self._now_ms()):
            self._timers["open transactions"] = asyncio.get_running_loop().call_later(_RETRY_S, self._end_open)
            return
        self._complete_decided()
        end_hanging(self._logs, self._transactions, self._now_ms())
        self._decisions.all_written()

    def _is_ending(self, transactional_id: str) -> bool:
        known = self._transactions.get(transactional_id)
        return known is not None and known.state.is_ending

    def _load(self) -> None:
        try:
            self._transactions = {
                row.transactional_id: from_payload(row.transactional_id, row.payload)
                for row in self._store.load_transactions()
            }
            self._decisions.load(self._is_ending)
        except ValueError as error:
            raise DataDirectoryError(str(error)) from error

    # ---- what producers ask

    async def initialize(
        self, transactional_id: str, *, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        """Give a producer its id and epoch; whoever used the transactional id before is fenced.

        Raises:
            ConcurrentTransactionsError: A transaction is just being ended, perhaps because of this very request.
            KafkaApiError: As of ``rules.initialize`` and the checks before it.
        """
        self._check_running()
        rules.check_id(transactional_id)
        rules.check_timeout(timeout_ms, self._settings.max_timeout_ms)
        new_producer_id = None
        known = self._transactions.get(transactional_id)
        if known is not None:
            await self._open_logs(known)
            known = self._transactions.get(transactional_id)
        while rules.needs_new_producer_id(known, expected) and new_producer_id is None:
            new_producer_id = await self._producer_ids.allocate()
            known = self._transactions.get(transactional_id)
        now_ms = self._now_ms()
        if known is None and new_producer_id is not None:
            known = Transaction(
                transactional_id=transactional_id, producer_id=new_producer_id, timeout_ms=timeout_ms, updated_ms=now_ms
            )
        if known is None:
            raise ConcurrentTransactionsError("The transactional id has just expired")
        rules.check_expected(known, expected)
        if known.state is TransactionState.ONGOING:
            await self._decide(rules.fence(known, now_ms=now_ms))
            raise ConcurrentTransactionsError("The transaction of the producer before is being aborted")
        if new_producer_id is not None and rules.needs_new_producer_id(known, expected):
            begun = rules.rotate(known, new_producer_id, expected=expected, timeout_ms=timeout_ms, now_ms=now_ms)
        else:
            begun = rules.initialize(known, expected=expected, timeout_ms=timeout_ms, now_ms=now_ms)
        await _settled(self._put(begun))
        return begun.identity

    async def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        *,
        partitions: AbstractSet[TransactionPartition] = frozenset(),
        groups: AbstractSet[str] = frozenset(),
    ) -> None:
        """Take partitions and groups into a transaction; returns when that is on disk.

        Raises:
            KafkaApiError: As of ``rules.add``; InvalidProducerIdMappingError if the id is not known at all.
        """
        known = self._known(transactional_id)
        changed = rules.add(known, producer, partitions=partitions, groups=groups, now_ms=self._now_ms())
        if changed is not known:
            await _settled(self._put(changed))

    def verify(self, transactional_id: str, producer: ProducerIdentity, wanted: TransactionPartition | str) -> None:
        """Check that a partition, or a group, belongs to the transaction of a producer.

        Raises:
            KafkaApiError: As of ``rules.verify``; InvalidProducerIdMappingError if the id is not known at all.
        """
        rules.verify(self._known(transactional_id), producer, wanted)

    @property
    def verifies_partitions(self) -> bool:
        """``transaction.partition.verification.enable``: whether old clients, too, are asked what they have added."""
        return str(self._get_config("transaction.partition.verification.enable")).lower() != "false"

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, *, is_commit: bool, bumps_epoch: bool
    ) -> ProducerIdentity:
        """Commit or abort, and return with what the producer goes on: the decision is on disk, markers are written.

        Raises:
            KafkaApiError: As of ``rules.end``; InvalidProducerIdMappingError if the id is not known at all.
        """
        await self._open_logs(self._known(transactional_id))
        known = self._known(transactional_id)
        next_producer_id = -1
        if rules.needs_next_producer_id(known, bumps_epoch=bumps_epoch):
            next_producer_id = await self._producer_ids.allocate()
            known = self._known(transactional_id)
        decision = rules.end(
            known,
            producer,
            is_commit=is_commit,
            bumps_epoch=bumps_epoch,
            next_producer_id=next_producer_id,
            now_ms=self._now_ms(),
        )
        if decision.is_repeated:
            return known.identity
        await self._decide(decision.transaction)
        return rules.complete(decision.transaction, now_ms=self._now_ms()).identity

    # ---- what tools ask

    def describe(self, transactional_id: str) -> Transaction:
        """Return what is known of a transactional id.

        Raises:
            InvalidRequestError: The id is empty.
            TransactionalIdNotFoundError: Nothing is.
        """
        self._check_running()
        rules.check_id(transactional_id)
        known = self._transactions.get(transactional_id)
        if known is None:
            raise TransactionalIdNotFoundError
        return known

    def all(self) -> Sequence[Transaction]:
        """Return all transactional ids."""
        self._check_running()
        return tuple(self._transactions.values())

    # ---- what time brings

    def abort_timed_out(self) -> None:
        """Abort transactions that take longer than their producer said."""
        now_ms = self._now_ms()
        for known in tuple(self._transactions.values()):
            if rules.is_timed_out(known, now_ms, counted_from_ms=self._started_ms):
                logger.info("The transaction of %s has timed out and is aborted", known.transactional_id)
                self._submit_decision(rules.fence(known, now_ms=now_ms))

    def forget_expired(self) -> None:
        """Forget transactional ids that nobody has used for long."""
        now_ms = self._now_ms()
        expired = [
            name
            for name, known in self._transactions.items()
            if rules.is_expired(known, now_ms, self._settings.expiration_ms)
        ]
        for name in expired:
            del self._transactions[name]
        if expired:
            self._store.submit([DropTransaction(transactional_id=name) for name in expired]).add_done_callback(_hear)

    # ---- inside

    def _check_running(self) -> None:
        if not self._is_running:
            raise CoordinatorNotAvailableError

    def _known(self, transactional_id: str) -> Transaction:
        self._check_running()
        rules.check_id(transactional_id)
        known = self._transactions.get(transactional_id)
        if known is None:
            raise InvalidProducerIdMappingError("The transactional id is not known")
        return known

    def _put(self, transaction: Transaction, *others: Change) -> asyncio.Future[None]:
        self._transactions[transaction.transactional_id] = transaction
        change = PutTransaction(transactional_id=transaction.transactional_id, payload=to_payload(transaction))
        future = self._store.submit([change, *others])
        future.add_done_callback(_hear)
        return future

    async def _open_logs(self, known: Transaction) -> None:
        """Open the logs of a transaction with many partitions in slices, because its decision needs all at once."""
        if known.state is not TransactionState.ONGOING or len(known.partitions) <= _MARKERS_AT_ONCE:
            return
        async for wanted in TimeSlice().over(known.partitions):
            with suppress(OSError):  # which the decision meets again
                self._logs.get(wanted.topic_id, wanted.partition)

    async def _decide(self, prepared: Transaction) -> None:
        await _settled(self._submit_decision(prepared))
        completion = self._completions.get(prepared.transactional_id)
        if completion is not None:
            await asyncio.wait({completion})  # which goes on when the client leaves

    def _submit_decision(self, prepared: Transaction) -> asyncio.Future[None]:
        """Submit how a transaction ends, with its offsets; markers follow as soon as that is on disk."""
        future = self._put(prepared, *self._decisions.note(prepared))
        is_commit = prepared.state is TransactionState.PREPARE_COMMIT
        self._offsets.end_transaction(prepared.producer_id, is_commit=is_commit)
        # Not by whoever asked: a client that goes away must not leave its transaction half ended.
        future.add_done_callback(partial(self._on_decided, prepared.transactional_id))
        return future

    def _on_decided(self, transactional_id: str, future: asyncio.Future[None]) -> None:
        # A broker that stops completes it at its next start: the logs may be closed already.
        if self._is_running and not future.cancelled() and future.exception() is None:
            self._complete(transactional_id, is_replay=False)

    def _complete_decided(self) -> None:
        for name, known in tuple(self._transactions.items()):
            if known.state.is_ending:
                self._complete(name, is_replay=True, is_sliced=False)

    def _complete(self, transactional_id: str, *, is_replay: bool, is_sliced: bool = True) -> None:
        """Write the markers of a decided transaction; what the disk refuses is tried again.

        Args:
            transactional_id: Whose transaction.
            is_replay: Some of the markers may be there already.
            is_sliced: Serve other requests while the markers of many partitions are written.
        """
        known = self._transactions.get(transactional_id)
        if known is None or not known.state.is_ending:
            return
        steps = write_markers(self._logs, known, self._now_ms(), is_replay=is_replay)
        if is_sliced and len(known.partitions) > _MARKERS_AT_ONCE:
            self._completions[transactional_id] = asyncio.get_running_loop().create_task(
                self._complete_in_slices(known, steps), name=f"markers of {transactional_id}"
            )
            return
        refused = [error for error in steps if error is not None]
        self._on_markers(known, refused[0] if refused else None)

    async def _complete_in_slices(self, known: Transaction, steps: Iterator[StorageError | None]) -> None:
        """Write markers step by step. Meanwhile the transactional id answers CONCURRENT_TRANSACTIONS."""
        refused = None
        try:
            async for error in TimeSlice().over(steps):
                refused = refused or error
            if self._transactions.get(known.transactional_id) is known:
                self._on_markers(known, refused)
        finally:
            if self._completions.get(known.transactional_id) is asyncio.current_task():
                del self._completions[known.transactional_id]

    def _on_markers(self, known: Transaction, error: StorageError | None) -> None:
        """Complete a transaction whose markers are written, or try those again that the disk has refused."""
        transactional_id = known.transactional_id
        if error is not None:
            self._reports.report(f"The transaction of {transactional_id}", "lacks markers", error)
            loop = asyncio.get_running_loop()
            self._retries[transactional_id] = loop.call_later(
                _RETRY_S, partial(self._complete, transactional_id, is_replay=True)
            )
            return
        self._decisions.markers_written(transactional_id)
        if len(self._decisions) % _SETTLED_AT_ONCE == 0:
            self._settle()
        # Nobody waits for this to be on disk: a start would find the markers and come to the same.
        self._put(rules.complete(known, now_ms=self._now_ms()))

    def _settle(self) -> None:
        """Make markers durable and forget their decisions, unless that is going on already."""
        if self._is_running and len(self._decisions) and (self._settling is None or self._settling.done()):
            self._settling = asyncio.get_running_loop().create_task(
                self._decisions.settle(), name="durability of markers"
            )

    def _every(self, name: str, interval_s: float, step: Callable[[], None]) -> None:
        def run() -> None:
            self._every(name, interval_s, step)
            step()

        self._timers[name] = asyncio.get_running_loop().call_later(interval_s, run)


async def _settled(future: asyncio.Future[None]) -> None:
    """Wait until a change is on disk.

    Raises:
        NotCoordinatorError: It could not be written, and is void.
    """
    try:
        await asyncio.shield(future)
    except StorageError as error:
        raise NotCoordinatorError(error.error_message) from error


def _hear(change: asyncio.Future[None]) -> None:
    """Take note of an error that perhaps nobody waits for."""
    if not change.cancelled() and change.exception() is not None:
        logger.warning("A transaction could not be stored: %s", change.exception())
