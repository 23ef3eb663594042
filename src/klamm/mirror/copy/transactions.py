"""Exactly once: the records of a shard and its positions, in one transaction after the other on the target.

A shard is a fixed part of a flow's partitions with a transactional id of its own. Whoever begins to copy a shard
takes a new epoch of that id first: a predecessor that still lives can write nothing more, and what it left open is
decided before positions are read. So a position that is read is the end of what was committed, and nothing follows it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from klamm.client.connection import ConnectionLostError
from klamm.client.records import RecordsRefusedError
from klamm.client.transactions import TransactionLostError, TransactionManager
from klamm.mirror.copy.partition import CopyState
from klamm.mirror.copy.transaction_cost import Overhead
from klamm.mirror.own_records import OwnRecords
from klamm.mirror.source_offsets import ShardPlan
from klamm.protocol.errors import ErrorCode, error_name
from klamm.protocol.records import encode_batch
from klamm.protocol.types import MAX_SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from klamm.client.batches import ProducerStamp
    from klamm.mirror.copy.batch import Outgoing
    from klamm.mirror.copy.partition import PartitionCopy, PartitionId
    from klamm.mirror.copy.source_offset_store import PositionStore
    from klamm.mirror.source_offsets import SourceOffset
    from klamm.protocol.records import Record
    from klamm.protocol.types import PartitionTuple

    Acknowledged = Callable[[PartitionId, Outgoing, int], None]

_TIMEOUT_S: Final = 10.0
_CLOSING_S: Final = 15.0
_RETRY_S: Final = 0.5
_NAMED: Final = 3
"""Partitions named in a message."""
_NOTHING: Final = memoryview(b"")
_RECORDS_TO_OVERHEAD: Final = 3
"""A transaction takes records for so many times as long as beginning and ending one takes."""

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
    """How a flow writes in transactions. Travels to Spark's tasks."""

    id_prefix: str
    shards: int
    shard: int
    interval_s: float
    """How long a transaction takes records before it is committed."""
    shortest_s: float
    """After which it is committed if all that the source has is in it: nobody waits for records that may not come.

    Later where the target is slow to begin and end transactions: with more of them it would do nothing else.
    """
    timeout_ms: int
    """After which the target aborts a transaction that nobody ends."""

    @property
    def transactional_id(self) -> str:
        """The id of this shard."""
        return shard_id(self.id_prefix, self.shards, self.shard)


def shard_id(prefix: str, shards: int, shard: int) -> str:
    """Return the transactional id of a shard; plans with other numbers of shards have other ids."""
    return f"{prefix}-{shards}-{shard}"


class HeldUpError(TransactionLostError):
    """Records of some partitions were not acknowledged, so a transaction of others could not end."""

    def __init__(self, late: Sequence[PartitionCopy], others: int, transactional_id: str) -> None:
        """Name the late partitions, with what the target says of each, and count those that waited for them."""
        named = "; ".join(
            f"{copy.partition_id.remote_topic}-{copy.partition_id.partition}: {copy.reason or 'no answer'}"
            for copy in late[:_NAMED]
        )
        more = f"; and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
        waited = (
            f". Other partitions of transactional id {transactional_id} that had to wait: {others}" if others else ""
        )
        super().__init__(f"records were not acknowledged for {_CLOSING_S:g} s ({named}{more}){waited}")


class _Phase(Enum):
    IDLE = auto()
    OPEN = auto()
    CLOSING = auto()
    """Takes nothing new; what is in flight has to be answered."""
    ENDING = auto()
    """All records are on the target; positions are written, then it is committed."""


class ShardTransactions:
    """The transactions of one shard. Thread-confined; calls block for a few seconds at most.

    Every call may raise ``ConnectionLostError`` (nobody answers now: repeat it) and ``TransactionLostError`` (all
    that was not committed has to be copied again).
    """

    def __init__(
        self,
        settings: ShardSettings,
        store: PositionStore,
        *,
        positions_interval_s: float,
        on_acknowledged: Acknowledged,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make them.

        Args:
            settings: of the shard.
            store: where positions go.
            positions_interval_s: how often positions are written that moved without records.
            on_acknowledged: called for each batch once it is committed.
            clock: seconds that never go back.
        """
        self._settings = settings
        self._store = store
        self._on_acknowledged = on_acknowledged
        self._positions_interval_s = positions_interval_s
        self._coordinator = TransactionManager(store.cluster, settings.transactional_id)
        self._identity: ProducerStamp | None = None
        self._phase = _Phase.IDLE
        self._added: set[PartitionTuple] = set()
        self._begun: set[PartitionTuple] = set()
        """Of which the target has a batch in the open transaction."""
        self._sequences: dict[int, int] = {}
        self._close_at = self._close_from = 0.0
        self._overhead = Overhead(clock)
        self._positions_due = 0.0
        self._touched: dict[PartitionTuple, PartitionCopy] = {}
        """Those whose positions may have moved since the last commit: it costs what they are, not what there are."""
        self._behind: PartitionCopy | None = None
        """Who was behind when it was asked last; while it is, nobody else is looked at."""
        self._moved: dict[PartitionTuple, SourceOffset] = {}
        self._records = OwnRecords({})
        """Positions, or what else is to be written before the open transaction is committed."""
        self._acknowledged: list[tuple[PartitionId, Outgoing, int]] = []

    @property
    def transactional_id(self) -> str:
        """The id of the shard."""
        return self._settings.transactional_id

    @property
    def identity(self) -> ProducerStamp:
        """Who we are for the target's brokers.

        Raises:
            TransactionLostError: we are nobody yet.
        """
        if self._identity is None:
            raise TransactionLostError(f"{self.transactional_id} has no epoch")
        return self._identity

    @property
    def is_idle(self) -> bool:
        """Tell whether no transaction is open."""
        return self._phase is _Phase.IDLE

    def due_in_s(self, now: float) -> float:
        """Return how many seconds there are until a transaction may be ended; infinity: it depends on others."""
        is_early = self._phase is _Phase.OPEN and now < self._close_from
        return self._close_from - now if is_early else math.inf

    def fence(self) -> None:
        """Become the only writer of the shard, if we are not yet."""
        if self._identity is None:
            self._identity = self._coordinator.init(timeout_ms=self._settings.timeout_ms)

    def is_planned(self, plan: ShardPlan | None) -> bool:
        """Tell whether the number of shards that is remembered on the target is ours, and no other may write."""
        return plan == ShardPlan(self._settings.shards)

    def take_over(self, plan: ShardPlan | None) -> None:
        """Fence the ids of every other number of shards, and remember ours.

        Ours is written first and theirs with it, so that whoever dies in the middle is followed by somebody who goes
        on; and a predecessor that takes a new epoch after it was fenced reads ours then.
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
        """Write records to the topic of positions in a transaction of their own; none may be open."""
        if not records:
            return
        try:
            self._add({(self._store.topic, number) for number in records})
            self._records = self._numbered(records)
            self._end()
        except ConnectionLostError as error:
            raise TransactionLostError(str(error)) from error

    def admits(self, copy: PartitionCopy) -> bool:
        """Tell whether a batch of a partition may be sent now."""
        if self._phase is _Phase.OPEN:
            return _remote(copy) in self._added
        return self._phase is _Phase.CLOSING and copy.is_undecided

    def has_begun(self, copy: PartitionCopy) -> bool:
        """Tell whether the target has a batch of a partition in the open transaction."""
        return _remote(copy) in self._begun

    def acknowledged(self, copy: PartitionCopy, outgoing: Outgoing, base_offset: int) -> None:
        """Note a batch that the target has.

        Raises:
            TransactionLostError: it tells an offset of the past: the batch was taken for an older one.
        """
        if base_offset < copy.next_base_offset:
            partition = copy.partition_id
            raise TransactionLostError(
                f"{partition.remote_topic}-{partition.partition}: the target has a batch at offset {base_offset}, "
                f"where {copy.next_base_offset} or more was due"
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
        """Do what is due: open a transaction, add partitions, end it.

        Args:
            copies: all partitions of the shard.
            active: those of them that have something to send or to be answered.
            now: by the clock of the copies.
            busy: whether batches are on their way.
            ending: whether nothing new is to begin.
        """
        if self._phase is _Phase.IDLE and not ending and self._is_wanted(copies, active, now):
            self._close_at = now + self._settings.interval_s
            takes_records_s = max(self._settings.shortest_s, _RECORDS_TO_OVERHEAD * self._overhead.seconds)
            self._close_from = min(now + takes_records_s, self._close_at)
            self._phase = _Phase.OPEN
        if self._phase is _Phase.OPEN:
            if ending or now >= self._close_at or (now >= self._close_from and not busy and self._has_all(copies)):
                self._phase = _Phase.CLOSING
                self._close_at = now + _CLOSING_S
            else:
                self._add_more(active, now)
        if self._phase is _Phase.CLOSING and self._is_settled(active, now, busy=busy):
            self._look_for_moved(copies, now)
            self._moved = {key: copy.position for key, copy in self._touched.items() if _has_moved(copy)}
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
        """Find out, when it is due, which positions moved without records: of those nobody else tells."""
        if now >= self._positions_due:
            self._positions_due = now + self._positions_interval_s
            self._touched |= {_source(copy): copy for copy in copies if _has_moved(copy)}

    def _has_all(self, copies: Iterable[PartitionCopy]) -> bool:
        """Tell whether all that the source was known to hold is fetched and sent."""
        if self._behind is None or _is_complete(self._behind):
            self._behind = next((copy for copy in copies if not _is_complete(copy)), None)
        return self._behind is None

    def _add_more(self, copies: Iterable[PartitionCopy], now: float) -> None:
        new = {_remote(copy): copy for copy in copies if copy.can_send(now) and _remote(copy) not in self._added}
        if not new:
            return
        wanted = set(new)
        # The partitions of their positions go with them: one call for both.
        wanted |= {(self._store.topic, self._store.partition_of(copy.partition_id)) for copy in new.values()}
        with self._overhead.counted():
            refused = self._try_to_add(wanted - self._added)
        for key, code in refused.items():
            if key in new and code != ErrorCode.OPERATION_NOT_ATTEMPTED:
                reason = f"the target takes no transaction for {key[0]}-{key[1]}: {error_name(code)}"
                new[key].wait(reason, retry_at=now + _RETRY_S)

    def _add(self, partitions: set[PartitionTuple]) -> None:
        if partitions and (refused := self._try_to_add(partitions)):
            names = ", ".join(sorted({error_name(code) for code in refused.values()}))
            raise ConnectionLostError(f"{self._store.topic} cannot be added to a transaction: {names}")

    def _try_to_add(self, partitions: set[PartitionTuple]) -> dict[PartitionTuple, int]:
        refused = self._coordinator.add(self.identity, sorted(partitions))
        if not refused:
            self._added |= partitions
        return refused

    def _is_settled(self, copies: Iterable[PartitionCopy], now: float, *, busy: bool) -> bool:
        undecided = [copy for copy in copies if copy.is_undecided]
        if any(copy.state is CopyState.STOPPED for copy in undecided):
            raise TransactionLostError("a partition stopped while the fate of its records was not known")
        if not busy and not undecided:
            return True
        if now >= self._close_at:
            late = undecided or [copy for copy in copies if copy.in_flight]
            others = {copy.partition_id for copy in (*copies, *self._touched.values()) if copy not in late}
            raise HeldUpError(late, len(others), self.transactional_id)
        return False

    def _numbered(self, records: Mapping[int, Sequence[Record]]) -> OwnRecords:
        """Return records in batches with the sequence numbers that follow."""

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

        return OwnRecords(records, encode, count)

    def _end(self) -> None:
        """Write the positions and commit. Goes on where it was interrupted: the same batches are taken once."""
        try:
            self._records.write(
                self._store.cluster,
                self._store.topic,
                timeout_s=_TIMEOUT_S,
                transactional_id=self.transactional_id,
            )
        except RecordsRefusedError as error:
            if error.codes & _FENCED:
                raise TransactionLostError(str(error)) from error
            raise
        if self._added:
            self._coordinator.commit(self.identity)
            self._added = set()

    def _committed(self) -> None:
        for key, position in self._moved.items():
            self._touched[key].committed_offset = position.next_offset
        self._moved, self._touched = {}, {}
        self._begun.clear()
        for partition_id, outgoing, base_offset in self._acknowledged:
            self._on_acknowledged(partition_id, outgoing, base_offset)
        self._acknowledged = []
        self._phase = _Phase.IDLE


def _remote(copy: PartitionCopy) -> PartitionTuple:
    return copy.partition_id.remote_topic, copy.partition_id.partition


def _source(copy: PartitionCopy) -> PartitionTuple:
    return copy.partition_id.topic, copy.partition_id.partition


def _is_complete(copy: PartitionCopy) -> bool:
    """Tell whether all that the source was known to hold is fetched and sent, or nothing more will be."""
    return copy.state is CopyState.STOPPED or (copy.is_caught_up and not copy.pending)


def _has_moved(copy: PartitionCopy) -> bool:
    return copy.acked_offset > copy.committed_offset
