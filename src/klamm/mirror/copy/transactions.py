"""Exactly once: transactions on the target that hold the records of a shard together with their source offsets.

A shard is a fixed subset of a flow's partitions with its own transactional id. A copier of a shard works in this order:

1. ``fence``: InitProducerId raises the producer epoch. Older copiers of the shard can no longer write, and the
   transaction that one of them left open is aborted (or its commit is completed).
2. Read the source offsets (``Start``). They are exactly the end of the committed records, because step 1 was first.
3. If the target stores another number of shards, ``take_over`` fences the transactional ids of that plan as well. Step
   2 is then repeated, because the old shards may have committed in between.
4. Copy in transactions, one after the other:

=======  =======  ====================================================================================================
Phase    Next     Condition and action
=======  =======  ====================================================================================================
IDLE     OPEN     A batch can be sent, or source offsets advanced without records. Not while the copier drains.
OPEN     OPEN     AddPartitionsToTxn for partitions with batches, along with the offsets-topic partitions of their
                  source offsets. Their batches are produced.
OPEN     CLOSING  ``interval_s`` has passed, or ``shortest_s`` has and since then each partition had no backlog for a
                  moment, or the copier drains. No new batches are sent, only retries.
CLOSING  ENDING   Every batch is acknowledged. The records with the source offsets are encoded.
CLOSING  (lost)   A partition's batches have failed for 15 s without any acknowledgement, ``transaction.timeout.ms``
                  has passed since the transaction was opened, or a partition with an unknown outcome stopped.
ENDING   IDLE     The source offsets are produced and EndTxn commits. ``committed_offset`` advances and the offset
                  syncs of the batches are released.
=======  =======  ====================================================================================================

Errors in any phase:

- ``ConnectionLostError``: the phase and all batches are kept, and the next ``drive`` repeats the step. Repetition is
  safe: AddPartitionsToTxn and EndTxn are idempotent, and produced batches keep their sequence numbers. After a repeated
  EndTxn, the next transaction gets a new producer epoch. With the old one, the first EndTxn could arrive late, and
  commit records of the next transaction without their source offsets.
- ``TransactionLostError`` (fenced, epoch or sequence unknown, transaction timed out, batch at an unexpected offset):
  the copier discards everything since the last commit, and begins at step 1 with new connections. If batches were not
  acknowledged in time although none had failed, it then sends at most half as many bytes at once (``InFlightLimit``).
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections import deque
from dataclasses import replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.data.records import RecordsRejectedError
from klamm.kafka_client.data.transactions import TransactionManager
from klamm.kafka_client.errors import ConnectionLostError, TransactionLostError
from klamm.kafka_client.internal_topic import PartitionWriter
from klamm.lazy_dataclass import dataclass
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.source_offsets import ShardPlan
from klamm.protocol.errors import ErrorCode, error_name
from klamm.protocol.records import encode_batch
from klamm.protocol.types import MAX_SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from klamm.kafka_client.data.batches import ProducerStamp
    from klamm.mirror.copy.batch import Outgoing
    from klamm.mirror.copy.partition import PartitionCopy, PartitionId
    from klamm.mirror.copy.source_offset_store import SourceOffsetStore
    from klamm.mirror.records.source_offsets import SourceOffset
    from klamm.protocol.records import Record
    from klamm.protocol.types import PartitionTuple

    Acknowledged = Callable[[PartitionId, Outgoing, int], None]
    from collections.abc import Callable, Iterator

_LAST_ONES: Final = 5


class TransactionOverhead:
    """Overhead of recent transactions in seconds. No record of the shard is sent during this time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of_this_one = 0.0
        self._of_the_last = deque[float](maxlen=_LAST_ONES)
        self.seconds = 0.0
        """Median overhead of the last five transactions, in seconds. A mean would let one slow broker response lengthen
        the next transactions and delay their records.
        """

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Add the duration of the block to the overhead of the current transaction."""
        began = self._clock()
        try:
            yield
        finally:
            self._of_this_one += self._clock() - began

    def next_one(self) -> None:
        """Finish the measurement of the current transaction."""
        self._of_the_last.append(self._of_this_one)
        self.seconds = statistics.median_low(self._of_the_last)
        self._of_this_one = 0.0


_TIMEOUT_S: Final = 10.0
_CLOSING_S: Final = 15.0
"""Seconds without an acknowledgement after which a transaction with failing partitions is given up."""
_RETRY_S: Final = 0.5
_NAMED: Final = 3
"""Most partitions named in a message."""
_NOTHING: Final = memoryview(b"")
_RECORDS_TO_OVERHEAD: Final = 3
"""Shortest ratio of the time in which a transaction accepts records to its overhead."""

_FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """Settings of the transactions of a flow. Serialized to Spark's tasks."""

    id_prefix: str
    shards: int
    shard: int
    interval_s: float
    """Longest time in seconds for which a transaction accepts records."""
    shortest_s: float
    """Time in seconds after which a transaction is committed if it holds all known source records.

    It is longer where the target is slow to start and commit transactions. Otherwise the overhead would dominate.
    """
    timeout_ms: int
    """Time in milliseconds after which the target aborts an open transaction (``transaction.timeout.ms``)."""

    @property
    def transactional_id(self) -> str:
        """Transactional id of this shard."""
        return shard_id(self.id_prefix, self.shards, self.shard)


def shard_id(prefix: str, shards: int, shard: int) -> str:
    """Return the transactional id of a shard. It contains the number of shards, so each shard plan has its own ids."""
    return f"{prefix}-{shards}-{shard}"


class HeldUpError(TransactionLostError):
    """Some partitions got no acknowledgement in time, so the transaction they share with others cannot be committed."""

    def __init__(
        self, late: Sequence[PartitionCopy], others: int, transactional_id: str, waited: str, *, is_slow: bool
    ) -> None:
        """Build the message: the first late partitions with their reasons, and the number of partitions they held up.

        Args:
            late: Partitions without acknowledgement.
            others: Number of other partitions in the transaction.
            transactional_id: Transactional id of the shard.
            waited: Limit of time that has passed, such as ``for 15 s``.
            is_slow: Whether no batch has failed: all of them only take too long.
        """
        named = "; ".join(
            f"{copy.partition_id.remote_topic}-{copy.partition_id.partition}: {copy.reason or 'no answer'}"
            for copy in late[:_NAMED]
        )
        more = f"; and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
        held_up = (
            f". Other partitions of transactional id {transactional_id} that had to wait: {others}" if others else ""
        )
        super().__init__(f"records were not acknowledged {waited} ({named}{more}){held_up}")
        self.is_slow = is_slow


class _Phase(Enum):
    IDLE = auto()
    OPEN = auto()
    CLOSING = auto()
    """No new batches are sent. Batches in flight have to be answered."""
    ENDING = auto()
    """All records are on the target. The source offsets are produced, then the transaction is committed."""


class ShardTransactions:
    """Transactions of one shard. Confined to one thread; calls block for a few seconds at most.

    Every call may raise ``ConnectionLostError`` (the coordinator or a leader does not answer: repeat the call) and
    ``TransactionLostError`` (everything that was not committed has to be copied again). The module docstring lists the
    phases.
    """

    def __init__(
        self,
        settings: ShardSettings,
        store: SourceOffsetStore,
        *,
        source_offsets_interval_s: float,
        on_acknowledged: Acknowledged,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the transactions of a shard. Call ``fence`` before the first one.

        Args:
            settings: Settings of the shard.
            store: Store of the source offsets.
            source_offsets_interval_s: Seconds between commits of source offsets that advanced without records.
            on_acknowledged: Called for each batch after the commit, with the target offset of its first record.
            clock: Monotonic clock in seconds.
        """
        self._settings = settings
        self._store = store
        self._on_acknowledged = on_acknowledged
        self._source_offsets_interval_s = source_offsets_interval_s
        self._coordinator = TransactionManager(store.cluster, settings.transactional_id)
        self._identity: ProducerStamp | None = None
        self._phase = _Phase.IDLE
        self._is_ending = False
        """Whether an EndTxn for the open transaction was sent and has no response."""
        self._added: set[PartitionTuple] = set()
        self._begun: set[PartitionTuple] = set()
        """Remote partitions with an acknowledged batch in the open transaction."""
        self._sequences: dict[int, int] = {}
        self._close_at = self._close_from = self._expires_at = 0.0
        self._acknowledged_before = 0
        """Number of acknowledged batches at the last check of a closing transaction."""
        self._overhead = TransactionOverhead(clock)
        self._source_offsets_due = 0.0
        self._touched: dict[PartitionTuple, PartitionCopy] = {}
        """Partitions whose source offset may have advanced since the last commit.

        The cost of a commit depends on their number, not on the number of all partitions.
        """
        self._behind: PartitionCopy | None = None
        """Partition that lagged at the last check. As long as it lags, no other partition is checked."""
        self._unchecked: Iterator[PartitionCopy] | None = None
        """Partitions that the open transaction has still to check. None: all of them."""
        self._moved: dict[PartitionTuple, SourceOffset] = {}
        self._records = PartitionWriter({})
        """Source offsets or other own records to produce before the open transaction is committed."""
        self._acknowledged: list[tuple[PartitionId, Outgoing, int]] = []

    @property
    def transactional_id(self) -> str:
        """Transactional id of the shard."""
        return self._settings.transactional_id

    @property
    def identity(self) -> ProducerStamp:
        """Producer id and epoch of the shard.

        Raises:
            TransactionLostError: ``fence`` was not called yet.
        """
        if self._identity is None:
            raise TransactionLostError(f"{self.transactional_id} has no epoch")
        return self._identity

    @property
    def is_idle(self) -> bool:
        """Return whether no transaction is open."""
        return self._phase is _Phase.IDLE

    def due_in_s(self, now: float) -> float:
        """Return the seconds until the open transaction may be committed. Infinity: it does not depend on time."""
        is_early = self._phase is _Phase.OPEN and now < self._close_from
        return self._close_from - now if is_early else math.inf

    def fence(self) -> None:
        """Obtain the producer id and a new epoch (InitProducerId), unless this object has them already."""
        if self._identity is None:
            self._identity = self._coordinator.init(timeout_ms=self._settings.timeout_ms)

    def renew_identity(self) -> None:
        """Discard the epoch, so that ``fence`` obtains the next one. No transaction may be open."""
        self._identity = None
        self._sequences.clear()

    def is_planned(self, plan: ShardPlan | None) -> bool:
        """Return whether the shard plan on the target has our number of shards and replaces no other plan."""
        return plan == ShardPlan(self._settings.shards)

    def take_over(self, plan: ShardPlan | None) -> None:
        """Fence the transactional ids of every other number of shards, and store our shard plan.

        The new plan is stored first, together with the numbers it replaces. If this process dies halfway, its successor
        finds both and finishes the work. Each process reads the plan after fencing its own id, so of two competing
        processes at least one sees the plan of the other.
        """
        theirs = sorted(({plan.shards, *plan.before} if plan else set()) - {self._settings.shards})
        if theirs:
            self.write(self._store.plan_records(ShardPlan(self._settings.shards, tuple(theirs))))
            for count in theirs:
                for shard in range(count):
                    old = TransactionManager(self._store.cluster, shard_id(self._settings.id_prefix, count, shard))
                    old.init(timeout_ms=self._settings.timeout_ms)
        self.write(self._store.plan_records(ShardPlan(self._settings.shards)))

    def write(self, records: Mapping[int, Sequence[Record]]) -> None:
        """Write records to the offsets topic in a separate transaction. No transaction may be open.

        Raises:
            TransactionLostError: The records may or may not be committed.
        """
        if not records:
            return
        try:
            self._add({(self._store.topic, number) for number in records})
            self._records = self._numbered(records)
            self._end()
        except ConnectionLostError as error:
            raise TransactionLostError(str(error)) from error

    def admits(self, copy: PartitionCopy) -> bool:
        """Return whether a batch of a partition may be sent in the current phase."""
        if self._phase is _Phase.OPEN:
            return _remote(copy) in self._added
        return self._phase is _Phase.CLOSING and copy.is_undecided

    def has_begun(self, copy: PartitionCopy) -> bool:
        """Return whether the target has acknowledged a batch of a partition in the open transaction."""
        return _remote(copy) in self._begun

    def acknowledged(self, copy: PartitionCopy, outgoing: Outgoing, base_offset: int) -> None:
        """Record an acknowledged batch.

        Raises:
            TransactionLostError: The target returned an old offset: it took the batch for a duplicate of an older one.
        """
        if base_offset < copy.next_base_offset:
            partition = copy.partition_id
            raise TransactionLostError(
                f"{partition.remote_topic}-{partition.partition}: the target has a batch at offset {base_offset}, "
                f"where {copy.next_base_offset} or more was expected"
            )
        copy.next_base_offset = base_offset + outgoing.record_count
        self._touched[_source(copy)] = copy
        self._begun.add(_remote(copy))
        light = replace(outgoing, view=_NOTHING, memory=None)
        self._acknowledged.append((copy.partition_id, light, base_offset))

    def drive(
        self,
        copies: Collection[PartitionCopy],
        active: Collection[PartitionCopy],
        now: float,
        *,
        busy: bool,
        ending: bool,
    ) -> None:
        """Advance the phases as far as possible: open a transaction, add partitions, close it, commit it.

        Args:
            copies: All partitions of the shard.
            active: Partitions with batches to send or in flight.
            now: Time of the copier's clock in seconds.
            busy: Whether produce requests are in flight.
            ending: Whether the copier drains, so that no transaction is opened.
        """
        if self._phase is _Phase.IDLE and not ending and self._is_wanted(copies, active, now):
            self.fence()
            self._close_at = now + self._settings.interval_s
            self._expires_at = now + self._settings.timeout_ms / 1000
            takes_records_s = max(self._settings.shortest_s, _RECORDS_TO_OVERHEAD * self._overhead.seconds)
            self._close_from = min(now + takes_records_s, self._close_at)
            self._unchecked = None
            self._phase = _Phase.OPEN
        if self._phase is _Phase.OPEN:
            if ending or now >= self._close_at or (now >= self._close_from and self._caught_up(copies)):
                self._phase = _Phase.CLOSING
                self._close_at = now + _CLOSING_S
            else:
                self._add_more(active, now)
        if self._phase is _Phase.CLOSING and self._is_settled(active, now, busy=busy):
            self._look_for_moved(copies, now)
            self._moved = {key: copy.source_offset for key, copy in self._touched.items() if _has_moved(copy)}
            self._records = self._numbered(self._store.records(self._moved))
            self._phase = _Phase.ENDING
        if self._phase is _Phase.ENDING:
            with self._overhead.counted():
                self._add({(self._store.topic, number) for number in self._records.partitions} - self._added)
                self._end()
            self._overhead.next_one()
            self._committed()

    def _is_wanted(self, copies: Iterable[PartitionCopy], active: Iterable[PartitionCopy], now: float) -> bool:
        if any(copy.can_send(now) for copy in active):
            return True
        self._look_for_moved(copies, now)
        return bool(self._touched)

    def _look_for_moved(self, copies: Iterable[PartitionCopy], now: float) -> None:
        """Find, at most once per interval, the partitions whose source offset advanced without records.

        Nothing else reports them: their batches were all dropped.
        """
        if now >= self._source_offsets_due:
            self._source_offsets_due = now + self._source_offsets_interval_s
            self._touched |= {_source(copy): copy for copy in copies if _has_moved(copy)}

    def _caught_up(self, copies: Collection[PartitionCopy]) -> bool:
        """Return whether each partition had, for a moment, all its known source records fetched and sent.

        While records arrive steadily, all of them are hardly ever in this state together.
        """
        if self._behind is None or _is_complete(self._behind):
            self._unchecked = self._unchecked or iter(tuple(copies))
            self._behind = next((copy for copy in self._unchecked if not _is_complete(copy)), None)
        return self._behind is None

    def _add_more(self, copies: Iterable[PartitionCopy], now: float) -> None:
        new = {_remote(copy): copy for copy in copies if copy.can_send(now) and _remote(copy) not in self._added}
        if not new:
            return
        wanted = set(new)
        # Add the offsets-topic partitions for their source offsets in the same request.
        wanted |= {(self._store.topic, self._store.partition_of(copy.partition_id)) for copy in new.values()}
        with self._overhead.counted():
            rejected = self._try_to_add(wanted - self._added)
        for key, code in rejected.items():
            if key in new and code != ErrorCode.OPERATION_NOT_ATTEMPTED:
                reason = f"the target did not add {key[0]}-{key[1]} to the transaction: {error_name(code)}"
                new[key].wait(reason, retry_at=now + _RETRY_S)

    def _add(self, partitions: set[PartitionTuple]) -> None:
        if partitions and (rejected := self._try_to_add(partitions)):
            names = ", ".join(sorted({error_name(code) for code in rejected.values()}))
            raise ConnectionLostError(f"{self._store.topic} cannot be added to a transaction: {names}")

    def _try_to_add(self, partitions: set[PartitionTuple]) -> dict[PartitionTuple, int]:
        rejected = self._coordinator.add(self.identity, sorted(partitions))
        if not rejected:
            self._added |= partitions
        return rejected

    def _is_settled(self, copies: Iterable[PartitionCopy], now: float, *, busy: bool) -> bool:
        undecided = [copy for copy in copies if copy.is_undecided]
        if any(copy.state is CopyState.STOPPED for copy in undecided):
            raise TransactionLostError(
                "a partition stopped while it was unknown whether the target has its last records"
            )
        if not busy and not undecided:
            return True
        failing = [copy for copy in copies if copy.is_undecided or (copy.in_flight and copy.is_target_failing)]
        if not failing or len(self._acknowledged) > self._acknowledged_before:
            # Batches that have not failed are on their way, which takes long on a slow link. A connection that carries
            # no byte is closed after ``request.timeout.ms``; its batches have failed then.
            self._close_at = now + _CLOSING_S
        self._acknowledged_before = len(self._acknowledged)
        if now >= min(self._close_at, self._expires_at):
            late = failing or [copy for copy in copies if copy.in_flight]
            others = {copy.partition_id for copy in (*copies, *self._touched.values()) if copy not in late}
            is_expired = now >= self._expires_at  # the target aborts the transaction
            timeout = f"within transaction.timeout.ms={self._settings.timeout_ms}"
            waited = timeout if is_expired else f"for {_CLOSING_S:g} s"
            raise HeldUpError(late, len(others), self.transactional_id, waited, is_slow=not failing)
        return False

    def _numbered(self, records: Mapping[int, Sequence[Record]]) -> PartitionWriter:
        """Return records encoded as transactional batches with the next sequence numbers."""

        def encode(number: int, some: Sequence[Record]) -> bytearray:
            return encode_batch(
                some,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.producer_epoch,
                base_sequence=self._sequences.get(number, 0),
                is_transactional=True,
            )

        def count(number: int, taken: int) -> None:
            self._sequences[number] = self._sequences.get(number, 0) + taken & MAX_SEQUENCE

        return PartitionWriter(records, encode, count)

    def _end(self) -> None:
        """Produce the source offsets and commit. A repeated call sends the same batches and sequence numbers."""
        try:
            self._records.write(
                self._store.cluster,
                self._store.topic,
                timeout_s=_TIMEOUT_S,
                transactional_id=self.transactional_id,
            )
        except RecordsRejectedError as error:
            if error.codes & _FENCED:
                raise TransactionLostError(str(error)) from error
            raise
        if self._added:
            is_repeated, self._is_ending = self._is_ending, True
            self._coordinator.commit(self.identity)
            self._is_ending = False
            self._added = set()
            if is_repeated:
                self.renew_identity()

    def _committed(self) -> None:
        for key, source_offset in self._moved.items():
            self._touched[key].committed_offset = source_offset.next_offset
        self._moved, self._touched = {}, {}
        self._begun.clear()
        for partition_id, outgoing, base_offset in self._acknowledged:
            self._on_acknowledged(partition_id, outgoing, base_offset)
        self._acknowledged = []
        self._acknowledged_before = 0
        self._phase = _Phase.IDLE


def _remote(copy: PartitionCopy) -> PartitionTuple:
    return copy.partition_id.remote_topic, copy.partition_id.partition


def _source(copy: PartitionCopy) -> PartitionTuple:
    return copy.partition_id.topic, copy.partition_id.partition


def _is_complete(copy: PartitionCopy) -> bool:
    """Return whether all known source records of a partition are fetched and sent, or it is STOPPED."""
    return copy.state is CopyState.STOPPED or (copy.is_caught_up and not copy.pending)


def _has_moved(copy: PartitionCopy) -> bool:
    return copy.acked_offset > copy.committed_offset
