"""The transaction coordinator, used by the handlers of the transaction APIs and of Produce.

How a transaction ends (EndTxn, a fencing InitProducerId, or the transaction timeout):

1. The decision is made. In one turn of the event loop, the new state (PREPARE_COMMIT or PREPARE_ABORT), the first
   offset of the transaction in each partition (``decisions.py``) and the committed or dropped group offsets are applied
   in memory and submitted to the metadata store. The store writes all of one turn in a single SQL transaction.
2. When that commit is on disk, and not before, the coordinator appends a COMMIT or ABORT marker to every partition.
3. When every partition has its marker, the state becomes COMPLETE_COMMIT or COMPLETE_ABORT.
4. Later the decision is dropped, once the markers themselves are on disk (``_settle``).

A crash before the commit of step 1 leaves the transaction open, and it continues or times out after the restart. A
crash after it is completed at the next start: ``start`` writes the missing markers. A log that does not accept one yet
is not used until it does. So a transaction is committed in all partitions or in none, whenever the broker dies.

While the state is PREPARE_*, requests for the transactional id are rejected with CONCURRENT_TRANSACTIONS; clients
retry.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.broker.groups.errors import CoordinatorNotAvailableError
from klamm.broker.groups.registry import log_failure, until_durable
from klamm.broker.transactions import rules
from klamm.broker.transactions.decisions import Decisions
from klamm.broker.transactions.markers import end_lost, write_markers
from klamm.broker.transactions.model import (
    ConcurrentTransactionsError,
    Transaction,
    TransactionalIdNotFoundError,
    TransactionPartition,
    TransactionState,
    from_payload,
    to_payload,
)
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidProducerIdMappingError, StorageError
from klamm.server.time_slice import TimeSlice
from klamm.storage.errors import DataDirectoryError
from klamm.storage.log.housekeeping import ErrorReports
from klamm.storage.metadata.changes import DropTransaction, PutTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from klamm.broker.groups.offset_coordinator import OffsetCoordinator
    from klamm.broker.producer_ids import ProducerIdAllocator
    from klamm.protocol.types import ProducerIdentity
    from klamm.storage.log import LogManager, PartitionLog
    from klamm.storage.metadata.changes import Change
    from klamm.storage.metadata.store import MetadataStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Broker configs of transactions. The defaults are those of Kafka 4.4."""

    max_timeout_ms: int = 900_000
    """``transaction.max.timeout.ms``"""
    abort_interval_s: float = 10.0
    """``transaction.abort.timed.out.transaction.cleanup.interval.ms``, in seconds."""
    expiration_ms: int = 604_800_000
    """``transactional.id.expiration.ms``"""
    expiration_interval_s: float = 3600.0
    """``transaction.remove.expired.transaction.cleanup.interval.ms``, in seconds."""

    @classmethod
    def from_config(cls, get: Callable[[str], Any]) -> TransactionSettings:
        """Read every config by Kafka's name; ``get`` returns numbers, or strings that contain numbers."""
        return cls(
            max_timeout_ms=int(get("transaction.max.timeout.ms")),
            abort_interval_s=int(get("transaction.abort.timed.out.transaction.cleanup.interval.ms")) / 1000,
            expiration_ms=int(get("transactional.id.expiration.ms")),
            expiration_interval_s=int(get("transaction.remove.expired.transaction.cleanup.interval.ms")) / 1000,
        )


_SETTLE_S = 10.0
"""Interval in seconds at which markers are made durable, so that their decisions can be dropped."""
_SETTLED_AT_ONCE = 10_000
"""Number of remembered decisions at which the same is done before the interval ends."""
_MARKERS_AT_ONCE = 64
"""Largest number of partitions whose markers are written in one turn of the event loop."""
_RETRY_S = 1.0
"""Delay before a transaction is completed whose markers or last commit the disk rejected, in seconds."""


class TransactionCoordinator:
    """Owner of all transactional ids.

    Used on one event loop only, so it needs no lock. The rule that replaces a lock: there is no await between the check
    of a ``Transaction`` and its replacement. Where a method has to await (to open logs, or for a new producer id), it
    reads the ``Transaction`` again afterwards.
    """

    def __init__(
        self,
        store: MetadataStore,
        get_config: Callable[[str], Any],
        *,
        producer_ids: ProducerIdAllocator,
        logs: LogManager,
        offsets: OffsetCoordinator,
        now_ms: Callable[[], int],
    ) -> None:
        """Read the settings; nothing is loaded before ``start``.

        Args:
            store: Metadata store.
            get_config: Function that returns a broker config by Kafka's name.
            producer_ids: Source of new producer ids.
            logs: Log manager with the logs of all partitions.
            offsets: Pending offsets of all groups.
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
        self._owners: dict[int, str] = {}
        """Transactional ids by current and previous producer id."""
        self._started_ms = now_ms()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._retries: dict[str, asyncio.TimerHandle] = {}
        """Next attempts to complete a transaction after the disk failed, by transactional id. At most one for each."""
        self.decisions = Decisions(store, logs)
        self._reports = ErrorReports()
        self._settling: asyncio.Task[None] | None = None
        self._completions: dict[str, asyncio.Task[None]] = {}
        """Tasks that write the markers of transactions with many partitions, by transactional id."""
        self._is_running = False

    # ---- start and stop

    async def start(self) -> None:
        """Load the stored transactions, complete the decided ones, and start the periodic work.

        Raises:
            DataDirectoryError: A stored transaction or decision cannot be read.
        """
        self._started_ms = self._now_ms()
        self._load()
        if self._logs.was_clean:
            self.decisions.forget_written()
        self._logs.check_before_use(self._end_lost)
        self._complete_decided()
        self.decisions.all_written()
        # This must precede the first append: decisions refer to offsets, and after a crash that shortened a log the
        # next append reuses offsets behind its end for other transactions.
        await self.decisions.settle()
        self._is_running = True
        self._every("decisions", _SETTLE_S, self._settle)
        self._every("timeouts", self._settings.abort_interval_s, self.abort_timed_out)
        self._every("expiration", self._settings.expiration_interval_s, self.forget_expired)

    async def stop(self) -> None:
        """Stop all timers and tasks. Open transactions are stored and continue after the next start."""
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
        """Replace the state in memory with the stored state, after a commit of the metadata store failed."""
        self._load()
        for completion in self._completions.values():
            completion.cancel()
        if self._is_running:  # see ``on_decided``
            # Not at once: completing them needs a commit, and if that fails too, this method is called again.
            for name in filter(self._is_ending, self._transactions):
                self._complete_later(name)
        self.decisions.all_written()

    def _end_lost(self, log: PartitionLog) -> None:
        """End the transactions in a log whose markers a power cut lost, before the log is used.

        Raises:
            OSError: The disk rejected a marker. The log is not used until a later attempt succeeds.
        """
        try:
            end_lost(log, self.decisions, self._owner_of, self._now_ms())
        except StorageError as error:
            self._reports.report(log.name, "lacks the marker of an ended transaction and is not served", error)
            raise OSError(f"A transaction marker cannot be written: {error}") from error

    def _owner_of(self, producer_id: int) -> Transaction | None:
        """Return the transactional id with this current or previous producer id."""
        owner = self._transactions.get(self._owners.get(producer_id, ""))
        is_of_producer = owner is not None and producer_id in (owner.producer_id, owner.previous_producer_id)
        return owner if is_of_producer else None

    def _is_ending(self, transactional_id: str) -> bool:
        transaction = self._transactions.get(transactional_id)
        return transaction is not None and transaction.state.is_ending

    def _load(self) -> None:
        try:
            self._transactions = {
                row.transactional_id: from_payload(row.transactional_id, row.payload)
                for row in self._store.load_transactions()
            }
            self.decisions.load(self._is_ending)
        except ValueError as error:
            raise DataDirectoryError(str(error)) from error
        self._owners = {item.previous_producer_id: name for name, item in self._transactions.items()}
        self._owners |= {item.producer_id: name for name, item in self._transactions.items()}

    # ---- producer requests

    async def initialize(
        self, transactional_id: str, *, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        """Return a producer's id and epoch (InitProducerId), and fence the previous producer of the transactional id.

        An ongoing transaction is aborted first: the request that finds one starts the abort and is rejected with
        CONCURRENT_TRANSACTIONS. The client retries it until the abort is complete.

        Raises:
            ConcurrentTransactionsError: A transaction is being ended, possibly because of this request.
            KafkaApiError: Errors of ``rules.initialize``, ``rules.check_id`` and ``rules.check_timeout``.
        """
        self._check_running()
        rules.check_id(transactional_id)
        rules.check_timeout(timeout_ms, self._settings.max_timeout_ms)
        new_producer_id = None
        transaction = self._transactions.get(transactional_id)
        if transaction is not None:
            await self._open_logs(transaction)
            transaction = self._transactions.get(transactional_id)
        while rules.needs_new_producer_id(transaction, expected) and new_producer_id is None:
            new_producer_id = await self._producer_ids.allocate()
            transaction = self._transactions.get(transactional_id)
        now_ms = self._now_ms()
        if transaction is None and new_producer_id is not None:
            transaction = Transaction(
                transactional_id=transactional_id, producer_id=new_producer_id, timeout_ms=timeout_ms, updated_ms=now_ms
            )
        if transaction is None:
            raise ConcurrentTransactionsError("The transactional id has expired")
        rules.check_expected(transaction, expected)
        if transaction.state is TransactionState.ONGOING:
            await self._decide(rules.fence(transaction, now_ms=now_ms))
            raise ConcurrentTransactionsError("The transaction of the previous producer is being aborted")
        if new_producer_id is not None and rules.needs_new_producer_id(transaction, expected):
            begun = rules.rotate(transaction, new_producer_id, expected=expected, timeout_ms=timeout_ms, now_ms=now_ms)
        else:
            begun = rules.initialize(transaction, expected=expected, timeout_ms=timeout_ms, now_ms=now_ms)
        await until_durable(self._put(begun))
        return begun.identity

    async def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        *,
        partitions: AbstractSet[TransactionPartition] = frozenset(),
        groups: AbstractSet[str] = frozenset(),
    ) -> None:
        """Add partitions and groups to a transaction, and return when they are on disk.

        Raises:
            KafkaApiError: Errors of ``rules.add``; InvalidProducerIdMappingError if the transactional id is unknown.
        """
        transaction = self._existing(transactional_id)
        changed = rules.add(transaction, producer, partitions=partitions, groups=groups, now_ms=self._now_ms())
        # Without a change, the partitions may still be those of an earlier request whose commit is in progress and may
        # fail.
        await until_durable(self._store.submit(()) if changed is transaction else self._put(changed))

    def verify(self, transactional_id: str, producer: ProducerIdentity, wanted: TransactionPartition | str) -> None:
        """Check that a partition or a group belongs to a producer's transaction.

        Raises:
            KafkaApiError: Errors of ``rules.verify``; InvalidProducerIdMappingError if the transactional id is unknown.
        """
        rules.verify(self._existing(transactional_id), producer, wanted)

    @property
    def verifies_partitions(self) -> bool:
        """Return whether writes of old clients are verified too (``transaction.partition.verification.enable``)."""
        return str(self._get_config("transaction.partition.verification.enable")).lower() != "false"

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, *, is_commit: bool, bumps_epoch: bool
    ) -> ProducerIdentity:
        """Commit or abort a transaction (EndTxn), and return the producer id and epoch for the next transaction.

        Returns when the decision is on disk and the markers are written. If the disk rejects a marker, it returns
        without that marker, which is retried in the background.

        Raises:
            KafkaApiError: Errors of ``rules.end``; InvalidProducerIdMappingError if the transactional id is unknown.
        """
        await self._open_logs(self._existing(transactional_id))
        transaction = self._existing(transactional_id)
        next_producer_id = -1
        if rules.needs_next_producer_id(transaction, bumps_epoch=bumps_epoch):
            next_producer_id = await self._producer_ids.allocate()
            transaction = self._existing(transactional_id)
        decision = rules.end(
            transaction,
            producer,
            is_commit=is_commit,
            bumps_epoch=bumps_epoch,
            next_producer_id=next_producer_id,
            now_ms=self._now_ms(),
        )
        if decision.is_repeated:
            return transaction.identity
        await self._decide(decision.transaction)
        return rules.complete(decision.transaction, now_ms=self._now_ms()).identity

    # ---- admin requests

    def describe(self, transactional_id: str) -> Transaction:
        """Return the state of a transactional id.

        Raises:
            InvalidRequestError: The transactional id is empty.
            TransactionalIdNotFoundError: The transactional id is unknown.
        """
        self._check_running()
        rules.check_id(transactional_id)
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            raise TransactionalIdNotFoundError
        return transaction

    def all(self) -> Sequence[Transaction]:
        """Return all transactional ids."""
        self._check_running()
        return tuple(self._transactions.values())

    # ---- periodic work

    def abort_timed_out(self) -> None:
        """Abort ongoing transactions that exceed their transaction timeout."""
        now_ms = self._now_ms()
        for transaction in tuple(self._transactions.values()):
            if rules.is_timed_out(transaction, now_ms, counted_from_ms=self._started_ms):
                logger.info(
                    "Transactional id %s: the transaction timed out and is aborted", transaction.transactional_id
                )
                self._submit_decision(rules.fence(transaction, now_ms=now_ms))

    def forget_expired(self) -> None:
        """Remove transactional ids that are unused for ``transactional.id.expiration.ms``."""
        now_ms = self._now_ms()
        expired = [
            name
            for name, transaction in self._transactions.items()
            if rules.is_expired(transaction, now_ms, self._settings.expiration_ms)
        ]
        for name in expired:
            transaction = self._transactions.pop(name)
            for producer_id in (transaction.producer_id, transaction.previous_producer_id):
                self._owners.pop(producer_id, None)
        if expired:
            self._store.submit([DropTransaction(transactional_id=name) for name in expired]).add_done_callback(
                log_failure
            )

    # ---- internals

    def _check_running(self) -> None:
        if not self._is_running:
            raise CoordinatorNotAvailableError

    def _existing(self, transactional_id: str) -> Transaction:
        self._check_running()
        rules.check_id(transactional_id)
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            raise InvalidProducerIdMappingError("The transactional id is unknown")
        return transaction

    def _put(self, transaction: Transaction, *others: Change) -> asyncio.Future[None]:
        earlier = self._transactions.get(transaction.transactional_id)
        if earlier is not None:
            self._owners.pop(earlier.previous_producer_id, None)
        self._transactions[transaction.transactional_id] = transaction
        self._owners[transaction.previous_producer_id] = transaction.transactional_id
        self._owners[transaction.producer_id] = transaction.transactional_id
        change = PutTransaction(transactional_id=transaction.transactional_id, payload=to_payload(transaction))
        future = self._store.submit([change, *others])
        future.add_done_callback(log_failure)
        return future

    async def _open_logs(self, transaction: Transaction) -> None:
        """Open the logs of a transaction with many partitions, with pauses for other requests.

        The decision reads all of these logs in one turn of the event loop. Opening a closed log there would block it.
        """
        if transaction.state is not TransactionState.ONGOING or len(transaction.partitions) <= _MARKERS_AT_ONCE:
            return
        async for wanted in TimeSlice().over(transaction.partitions):
            with suppress(OSError):  # the decision handles the same error
                self._logs.get(wanted.topic_id, wanted.partition)

    async def _decide(self, prepared: Transaction) -> None:
        await until_durable(self._submit_decision(prepared))
        completion = self._completions.get(prepared.transactional_id)
        if completion is not None:
            await asyncio.wait({completion})  # the task continues even if this request is cancelled

    def _submit_decision(self, prepared: Transaction) -> asyncio.Future[None]:
        """Submit a decision with its group offsets. When it is on disk, the markers are written."""
        future = self._put(prepared, self.decisions.note(prepared))
        is_commit = prepared.state is TransactionState.PREPARE_COMMIT
        self._offsets.end_transaction(prepared.producer_id, is_commit=is_commit)
        # The markers are written from this callback, not by the request: a client that disconnects must not leave its
        # transaction half ended.
        future.add_done_callback(partial(self.on_decided, prepared.transactional_id))
        return future

    def on_decided(self, transactional_id: str, future: asyncio.Future[None]) -> None:
        """Write the markers of a transaction whose decision has been committed, or failed to be."""
        # A broker that is stopping may have closed its logs already. It completes the transaction at its next start.
        if self._is_running and not future.cancelled() and future.exception() is None:
            self._complete(transactional_id, is_replay=False)

    def _complete_decided(self) -> None:
        for name in tuple(filter(self._is_ending, self._transactions)):
            self._complete(name, is_replay=True, is_sliced=False)

    def _complete_later(self, transactional_id: str) -> None:
        if (retry := self._retries.pop(transactional_id, None)) is not None:
            retry.cancel()
        self._retries[transactional_id] = asyncio.get_running_loop().call_later(
            _RETRY_S, partial(self._complete, transactional_id, is_replay=True)
        )

    def _complete(self, transactional_id: str, *, is_replay: bool, is_sliced: bool = True) -> None:
        """Write the markers of a decided transaction; those that the disk rejects are retried.

        Args:
            transactional_id: Id of the decided transaction.
            is_replay: Whether some of the markers may already be in the logs.
            is_sliced: Whether to serve other requests in between if there are many partitions.
        """
        if (retry := self._retries.pop(transactional_id, None)) is not None:
            retry.cancel()  # this is the next attempt, and a later timer could meet the next transaction of the id
        transaction = self._transactions.get(transactional_id)
        if transaction is None or not transaction.state.is_ending:
            return
        steps = write_markers(self._logs, transaction, self._now_ms(), is_replay=is_replay)
        if is_sliced and len(transaction.partitions) > _MARKERS_AT_ONCE:
            self._completions[transactional_id] = asyncio.get_running_loop().create_task(
                self._complete_in_slices(transaction, steps), name=f"markers of {transactional_id}"
            )
            return
        failed = [error for error in steps if error is not None]
        self._on_markers(transaction, failed[0] if failed else None)

    async def _complete_in_slices(self, transaction: Transaction, steps: Iterator[StorageError | None]) -> None:
        """Write markers in steps. Meanwhile requests for this transactional id fail with CONCURRENT_TRANSACTIONS."""
        failed = None
        try:
            async for error in TimeSlice().over(steps):
                failed = failed or error
            if self._transactions.get(transaction.transactional_id) is transaction:
                self._on_markers(transaction, failed)
        finally:
            if self._completions.get(transaction.transactional_id) is asyncio.current_task():
                del self._completions[transaction.transactional_id]

    def _on_markers(self, transaction: Transaction, error: StorageError | None) -> None:
        """Complete a transaction after its markers were written, or schedule a retry if the disk rejected one."""
        transactional_id = transaction.transactional_id
        if error is not None:
            self._reports.report(f"The transaction of {transactional_id}", "lacks markers", error)
            self._complete_later(transactional_id)
            return
        self.decisions.markers_written(transactional_id)
        if len(self.decisions) % _SETTLED_AT_ONCE == 0:
            self._settle()
        # No request waits for this commit: after a crash, the next start finds the markers and completes the
        # transaction.
        self._put(rules.complete(transaction, now_ms=self._now_ms()))

    def _settle(self) -> None:
        """Make markers durable and drop their decisions, unless this is already running."""
        if self._is_running and len(self.decisions) and (self._settling is None or self._settling.done()):
            self._settling = asyncio.get_running_loop().create_task(
                self.decisions.settle(), name="durability of markers"
            )

    def _every(self, name: str, interval_s: float, step: Callable[[], None]) -> None:
        def run() -> None:
            self._every(name, interval_s, step)
            step()

        self._timers[name] = asyncio.get_running_loop().call_later(interval_s, run)
