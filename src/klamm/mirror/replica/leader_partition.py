"""Leader of one mirrored partition: answers its followers with the batches of the source. No I/O.

klamm stores nothing. A follower is served from one of two windows of the source's log in memory:

============  ========================================================================================================
Window        Contents
============  ========================================================================================================
tail          The batches that the most advanced replica needs next. It starts where that replica ends.
catch-up      The batches for a follower whose offset is before the tail: it was down, or is new. They are read from the
              source a second time, and end where the tail begins.
============  ========================================================================================================

A follower believes its leader: it truncates its log if the leader's log is shorter or differs. So this leader never
says so. Where the source does not have what a replica has, it halts: it serves no replica until an operator has
decided.

==================================================  ==================================================================
Fetch of a follower                                 Answer
==================================================  ==================================================================
halted, or klamm does not lead the partition        NOT_LEADER_OR_FOLLOWER. The follower keeps its log and retries.
other leader epoch than klamm's                     FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH
offset after the end of the source                  NOT_LEADER_OR_FOLLOWER, and the partition halts.
leader epoch of its last batch differs from that    the same
of the source at this offset
the same, if the source may lose records            none yet: the source is read from that offset on, and compares
(``klamm.on.source.loss=continue``)
offset inside a batch, or after the tail            the same
log diverges from the source, which may lose        the diverging epoch (KIP-595): the follower truncates its log
records
offset before the log start of the source           OFFSET_OUT_OF_RANGE: the follower starts at the log start. If this
                                                    would lose mirrored records, the partition halts.
in a window                                         batches, up to the first one whose epoch exceeds klamm's
before the tail, or nothing read there yet          none yet: the source is read from that offset on
the source has not answered yet                     no batches, and the high watermark
==================================================  ==================================================================

The high watermark is the lowest offset of all live replicas. It is unknown until all of them have fetched, or for 10 s.
Until then no replica gets batches, because a follower that receives an unknown high watermark gives up. It needs
neither the source nor a partition that is not halted, so that clients can read what the replicas have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.lazy_dataclass import dataclass
from klamm.mirror.replica.window import UNKNOWN_EPOCH, Window
from klamm.protocol.errors import ErrorCode
from klamm.server.fetch_response import PartitionRead

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from klamm.mirror.records.source_offsets import EpochFloor
    from klamm.mirror.replica.window import Chunk
    from klamm.protocol.messages.fetch import FetchRequest

UNKNOWN: Final = -1
KEEP: Final = "To keep what the replicas have, promote the topic with --accept-loss"
"""Way out of a halt without a source."""
FIRST_FETCH_S: Final = 10.0
"""Seconds after the start of a leadership for which the first fetch of each live replica is awaited."""
LAGGING_S: Final = 10.0
"""Seconds without a fetch after which the batches that a follower needs are no longer kept for it."""


@dataclass(slots=True)
class Presence:
    """Time of the latest fetch of a follower. The partitions of a fetch session share one, so a fetch costs O(1)."""

    at: float
    """Monotonic time in seconds."""
    replica_epoch: int = UNKNOWN
    """Broker epoch that the follower named in it (KIP-903). -1: none."""


@dataclass(slots=True)
class ReplicaProgress:
    """Progress of one replica, as its fetches show it."""

    fetch_offset: int
    leader_epoch: int
    """Leader epoch of its last batch. -1: it has none."""
    presence: Presence
    log_start_offset: int = UNKNOWN
    """-1: it has not reported it."""

    def is_silent(self, now: float, limit_s: float = LAGGING_S) -> bool:
        """Return whether no fetch came for some seconds."""
        return now - self.presence.at > limit_s


class _Truncation(NamedTuple):
    """Leader epochs that ended later on the replicas, before they were truncated."""

    first_epoch: int
    last_epoch: int
    common: tuple[int, int]
    """Largest leader epoch that was left, and its end offset."""

    def without(self, ends: Mapping[int, int]) -> _Truncation:
        """Leave out the leader epochs that have records after the end again, by the end offsets of new batches."""
        valid = [
            epoch for epoch in ends if self.first_epoch <= epoch <= self.last_epoch and ends[epoch] > self.common[1]
        ]
        return self._replace(first_epoch=max(valid) + 1) if valid else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """State of the partition in the metadata of the target."""

    leader_epoch: int
    partition_epoch: int
    replicas: frozenset[int]
    """Node ids of all replicas without klamm."""
    live: frozenset[int]
    """Node ids of the replicas that are not fenced."""
    isr: frozenset[int] = frozenset()
    """Node ids of the replicas without klamm that may be elected: in-sync and eligible leader replicas."""
    is_leaving: bool = True
    """Whether a reassignment in progress removes klamm, which the promotion completes."""
    removing: frozenset[int] = frozenset()
    """Node ids of the replicas without klamm that a reassignment removes. They are served until then."""

    @property
    def remaining(self) -> frozenset[int]:
        """Return the node ids of the replicas that the partition has after its reassignment."""
        return self.replicas - self.removing

    @property
    def is_safe(self) -> bool:
        """Return whether no other replica can become leader, so that klamm may serve what only the source has."""
        return self.is_leaving and not self.isr


class LeaderPartition:
    """Leader of one partition. Used on the event loop only, except where a method says otherwise.

    Args:
        topic: Remote topic.
        topic_id: Id of the remote topic.
        partition: Partition number.
        may_lose: Whether to go on when the source lost records: it purged them before they were mirrored, or its log
            diverges from the replicas, which are then truncated.
        on_news: Called when waiting followers may get a new answer.
    """

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        partition: int,
        *,
        may_lose: bool = False,
        on_news: Callable[[LeaderPartition], None] = lambda _: None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.may_lose = may_lose
        self._on_news = on_news
        self._diverging: dict[int, tuple[int, int]] = {}
        """Largest leader epoch that a replica has in common with the source, and where it ends there, by the leader
        epoch of the replica's last batch. An epoch that the source delivers is removed: another unclean leader election
        has made its batches valid again."""
        self._truncations: Sequence[_Truncation] = ()
        self.leadership: Leadership | None = None
        """None: klamm does not lead the partition."""
        self._led_since = 0.0
        self.followers: dict[int, ReplicaProgress] = {}
        self.log_start = self.log_end = UNKNOWN
        """Log start offset and end offset (high watermark) of the source."""
        self.high_watermark = UNKNOWN
        self.halted = ""
        """Reason to serve no replica. Empty: there is none."""
        self.tail: Window | None = None
        self.catch_up: Window | None = None
        self._disputed: Window | None = None
        """Tail that begins where a follower ends whose log differs from the tail before. The source has not answered
        yet whether it diverges."""
        self.floors: Sequence[EpochFloor] = ()
        """Offsets from which on the batches have higher leader epochs than on the source, in ascending order."""
        self.wanted_epoch = UNKNOWN
        """Leader epoch that klamm needs to serve the next batch. -1: the current one suffices."""
        self._epoch_after_truncation = UNKNOWN
        """Leader epoch from which on clients know that the replicas were truncated. -1: they were not."""
        self.is_sealed = False
        """Whether batches of the source are no longer accepted. The log end stays where it is."""
        self.is_frozen = False
        """Whether replicas get no batches any more: their log ends no longer change."""
        self.in_doubt_epoch = UNKNOWN
        """Partition epoch with which the controller was requested to hand the partition over. -1: it was not, or has
        surely not done it. Metadata with a newer epoch decide, because it rejects the request from then on."""

    @property
    def name(self) -> str:
        """Topic and partition."""
        return f"{self.topic}-{self.partition}"

    # --- metadata of the target ---------------------------------------------------------------------------------------

    def lead(self, leadership: Leadership, now: float) -> None:
        """Lead the partition with the replicas and the leader epoch of the target's metadata."""
        before, self.leadership = self.leadership, leadership
        if before == leadership:
            return
        if self.is_in_doubt and self.in_doubt_epoch < leadership.partition_epoch:
            self.in_doubt_epoch = UNKNOWN  # klamm still leads, so it was not handed over
            self.unseal()
        if before is None or before.leader_epoch != leadership.leader_epoch:
            self._led_since = now
        if self.wanted_epoch <= leadership.leader_epoch:
            self.wanted_epoch = UNKNOWN
        for node_id in self.followers.keys() - leadership.replicas:
            del self.followers[node_id]
        self._advance(now)
        self._on_news(self)

    def resign(self, *, is_replaced: bool = False) -> None:
        """Stop leading the partition.

        Args:
            is_replaced: Whether another broker leads it. What the replicas have may change then, so a reason to halt
                no longer counts.
        """
        self.leadership = None
        if is_replaced:
            self.in_doubt_epoch = UNKNOWN
            self.is_sealed = self.is_frozen = False
            self._begin_again()
        self._on_news(self)

    def halt(self, reason: str) -> None:
        """Serve no replica from now on, and drop the batches in memory. The first reason counts.

        Args:
            reason: What the source lacks, and what an operator can do about it.
        """
        if not self.halted:
            self.halted = reason
            if not self.is_sealed:
                self.tail = self.catch_up = None
            self._on_news(self)

    def restart(self, now: float) -> None:
        """Compare the replicas with the source again after a halt, as a new process does.

        A sealed partition stays as it is, because its end is decided.
        """
        if self.is_sealed:
            return
        self._led_since = now
        self._begin_again()
        self._on_news(self)

    def _begin_again(self) -> None:
        """Forget what replicas and source have."""
        self.halted = ""
        self.tail = self.catch_up = None
        self.followers.clear()
        self._diverging.clear()
        self.log_start = self.log_end = self.high_watermark = UNKNOWN
        self.wanted_epoch = self._epoch_after_truncation

    # --- the source ---------------------------------------------------------------------------------------------------

    def begin(self, log_start: int, log_end: int, floors: Sequence[EpochFloor] = ()) -> None:
        """Note the bounds of the source, at the start and after records were purged there. A sealed one has its own.

        Args:
            log_start: Log start offset of the source.
            log_end: High watermark of the source.
            floors: Value for ``floors``. Empty: it stays as it is.
        """
        if self.is_sealed:
            return
        self.floors = floors or self.floors
        self.log_start = max(self.log_start, log_start)
        self.log_end = max(self.log_end, log_end)
        if self.tail is not None and self.tail.end < log_start:
            self.tail = self.catch_up = None  # the followers start again at the log start
        if self.catch_up is not None and self.catch_up.end < log_start:
            self.catch_up = None
        self._on_news(self)

    def open_tail(self, now: float) -> Window | None:
        """Return the tail, opened where the most advanced replica ends. None: that is not known, or none fetches.

        After a truncation, it stays closed until the leader epoch is raised. Before, clients would not validate their
        offsets: they would skip new records, or reset the offsets.
        """
        is_known = self.log_end != UNKNOWN and self._all_have_fetched(now)
        is_safe = (
            self.leadership is not None
            and self.leadership.is_safe
            and self.leadership.leader_epoch >= self._epoch_after_truncation
        )
        if self.tail is None and not self.halted and is_known and is_safe and self._served_from(0, now):
            follower = max(self.followers.values(), key=lambda each: each.fetch_offset)
            if follower.fetch_offset >= self.log_start:
                self.tail = self._window_after(follower)
        return self.tail

    @property
    def reason_of_closed_tail(self) -> str:
        """Reason why ``open_tail`` returns None, although the partition is not halted."""
        if self.leadership is not None and self.leadership.leader_epoch < self._epoch_after_truncation:
            return (
                f"{self.name} waits for leader epoch {self.wanted_epoch} after a truncation. klamm raises it once no "
                "partition that it leads has another in-sync or eligible replica"
            )
        return f"no replica of {self.name} fetches"

    def _window_after(self, follower: ReplicaProgress) -> Window:
        """Return a window that begins where a follower ends.

        At a floor, the follower may name the epoch of a broker that has led without writing. After it, the epoch on the
        source is known only if it is higher than the floor's.
        """
        offset, epoch = follower.fetch_offset, follower.leader_epoch
        source_epoch = epoch
        for floor in self.floors:
            if floor.offset == offset:
                epoch, source_epoch = UNKNOWN_EPOCH, floor.source_epoch
            elif floor.offset < offset and floor.leader_epoch == epoch:
                source_epoch = UNKNOWN_EPOCH
        return Window(offset, epoch, source_epoch)

    def epoch_of(self, follower: ReplicaProgress) -> int:
        """Return the leader epoch by which the log of a follower compares with others. -1: it has no batch.

        At a floor, that is the floor's epoch: what the brokers had there was the log from which klamm mirrored on.
        """
        floors = (each.leader_epoch for each in self.floors if each.offset == follower.fetch_offset)
        return max(floors, default=follower.leader_epoch)

    def source_epoch_before(self, offset: int) -> int:
        """Return the leader epoch that the source must have before an offset where followers end. -1: unknown."""
        followers = (each for each in self.followers.values() if each.fetch_offset == offset)
        latest = max(followers, key=self.epoch_of, default=None)
        return UNKNOWN_EPOCH if latest is None else self._window_after(latest).source_epoch

    def open_catch_up(self, now: float) -> Window | None:
        """Return the catch-up window, opened for the live follower that is furthest behind. None: none is needed."""
        if self.catch_up is None and self.tail is not None and not self.halted:
            tail = self.tail
            lagging = [
                each
                for each in self.followers.values()
                if self.log_start <= each.fetch_offset < tail.start and not each.is_silent(now)
            ]
            if lagging:
                follower = min(lagging, key=lambda each: each.fetch_offset)
                self.catch_up = self._window_after(follower)
        return self.catch_up

    def extend(self, window: Window, chunk: Chunk | None, log_end: int, now: float) -> None:
        """Append batches to a window.

        Args:
            window: The tail or the catch-up window. Batches for another one are dropped.
            chunk: Batches from the end of the window on. None: the source has no more.
            log_end: High watermark of the source.
            now: Monotonic time in seconds.
        """
        if self.is_sealed:
            return
        if window is self._disputed:
            self._disputed = None
            for node, follower in list(self.followers.items()):
                if follower.fetch_offset == window.start and follower.leader_epoch != window.last_epoch:
                    del self.followers[node]  # its next fetch is disputed
            self._on_news(self)
        # A leader may return records beyond the high watermark that it names: it reads that first.
        self.log_end = max(self.log_end, log_end, UNKNOWN if chunk is None else chunk.next_offset)
        if chunk is not None and window in (self.tail, self.catch_up) and not self.halted:
            window.append(chunk)
            if self._truncations:
                ends = {batch.leader_epoch: batch.next_offset for batch in chunk.batches}
                self._diverging = {epoch: common for epoch, common in self._diverging.items() if epoch not in ends}
                self._truncations = [each.without(ends) for each in self._truncations]
            self._trim(now)
            self._on_news(self)

    def truncate(self, window: Window, fetched_epoch: int, common: tuple[int, int], now: float) -> None:
        """Let the replicas drop what the source has lost. Then compare them with the source again.

        A higher leader epoch lets clients validate their offsets (KIP-320), as after an unclean leader election.

        Args:
            window: The tail or the catch-up window, which the source cannot continue.
            fetched_epoch: Leader epoch of the last batch in it.
            common: Largest leader epoch up to that one which the source has, and its end offset there.
            now: Monotonic time in seconds.
        """
        if not self.is_sealed and window in (self.tail, self.catch_up):
            diverging = self._diverging | {fetched_epoch: common}
            if self.leadership is not None:
                self._epoch_after_truncation = self.leadership.leader_epoch + 1
            self.restart(now)
            self._diverging = diverging
            kept = [each for each in self._truncations if each.last_epoch != fetched_epoch]
            self._truncations = [*kept, _Truncation(common[0], fetched_epoch, common)]

    def seal(self) -> None:
        """End the log after the batches that were read so far, and accept no more batches of the source.

        If nothing was read, because the source is away, the log ends where the most advanced replica ends.
        """
        self.is_sealed = True
        ends = [each.fetch_offset for each in self.followers.values()]
        self.log_end = max(ends, default=UNKNOWN) if self.tail is None or self.is_disputed else self.tail.end

    @property
    def is_in_doubt(self) -> bool:
        """Return whether the controller may have handed the partition over."""
        return self.in_doubt_epoch != UNKNOWN

    def unseal(self) -> None:
        """Accept batches of the source again. They are read again from where the followers end.

        A partition in doubt stays sealed until newer metadata decide. The next leader epoch brings these.
        """
        if self.is_in_doubt:
            if self.leadership is not None:
                self.wanted_epoch = max(self.wanted_epoch, self.leadership.leader_epoch + 1)
        elif self.is_sealed:
            self.is_sealed = self.is_frozen = False
            self.tail = self.catch_up = None

    # --- followers ----------------------------------------------------------------------------------------------------

    def fetch(
        self, node_id: int, wanted: FetchRequest.FetchPartition, max_bytes: int, presence: Presence
    ) -> PartitionRead | None:
        """Return the answer to a follower. None: there is none yet, and ``on_news`` reports when there may be.

        Args:
            node_id: Node id of the follower.
            wanted: Offset and epochs of the follower.
            max_bytes: Limit of the records' size. At least one batch is returned.
            presence: Time of the fetch.
        """
        leadership = self.leadership
        error = self._check_epoch(wanted.current_leader_epoch)
        if error or leadership is None or node_id not in leadership.replicas:
            return self.failed(error or ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if (answer := self._diverging_answer(wanted)) is not None:
            self.followers.pop(node_id, None)
            return answer
        before = self.followers.get(node_id)
        self.followers[node_id] = ReplicaProgress(
            wanted.fetch_offset, wanted.last_fetched_epoch, presence, wanted.log_start_offset
        )
        if before is None or before.fetch_offset != wanted.fetch_offset or self.high_watermark == UNKNOWN:
            self._advance(presence.at)
        if self.halted:
            return self.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        checked = ErrorCode.NONE if self.log_end == UNKNOWN else self._check_offset(node_id, wanted, presence.at)
        if checked:
            return self.failed(checked)
        self._open(presence.at)
        if checked is None or self.high_watermark == UNKNOWN:
            return None
        return self._answer(wanted.fetch_offset, min(max_bytes, wanted.partition_max_bytes), leadership)

    def _diverging_answer(self, wanted: FetchRequest.FetchPartition) -> PartitionRead | None:
        """Return the answer that lets a follower truncate its log. None: its log does not diverge as far as known."""
        common = self._diverging.get(wanted.last_fetched_epoch)
        if common is None or self.halted or self.is_sealed:
            return None
        if common[0] == wanted.last_fetched_epoch and wanted.fetch_offset <= common[1]:
            return None
        answer = self.failed(ErrorCode.NONE)
        answer.diverging_epoch = common
        answer.high_watermark = answer.last_stable_offset = common[1]
        answer.log_start_offset = 0
        return answer

    def failed(self, error_code: ErrorCode) -> PartitionRead:
        """Return an answer with an error code."""
        return PartitionRead(topic=self.topic, topic_id=self.topic_id, partition=self.partition, error_code=error_code)

    def _check_epoch(self, current_leader_epoch: int) -> ErrorCode:
        if self.leadership is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if 0 <= current_leader_epoch < self.leadership.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH if current_leader_epoch > self.leadership.leader_epoch else ErrorCode.NONE

    def _check_offset(self, node_id: int, wanted: FetchRequest.FetchPartition, now: float) -> ErrorCode | None:
        """Compare the log of a follower with the source. None: not decided yet."""
        offset = wanted.fetch_offset
        if offset > self.log_end and not (self.may_lose and wanted.last_fetched_epoch >= 0):
            self.halt(
                f"replica {node_id} of {self.name} ends at offset {offset}, but the source ends at offset "
                f"{self.log_end}: it is another source, or it lost records. Nothing is changed on the target. Point "
                f"the flow to the right source, or delete the remote topic to mirror it again. {KEEP}"
            )
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if offset < self.log_start:
            return self._check_purged(wanted, now)
        return (
            ErrorCode.NONE
            if wanted.last_fetched_epoch < 0
            else self._compare(node_id, offset, wanted.last_fetched_epoch)
        )

    def _compare(self, node_id: int, offset: int, fetched_epoch: int) -> ErrorCode | None:
        """Compare the last batch of a follower with the batches in memory. None: the source has to compare them."""
        epoch = self._expected_epoch(offset, fetched_epoch)
        differs = epoch not in (None, UNKNOWN_EPOCH, fetched_epoch)
        is_inside_a_batch = epoch is None and self._window_at(offset) is not None
        is_ahead = self.tail is not None and offset > self.tail.end and self._window_at(offset) is None
        if not self.floors and (is_inside_a_batch or is_ahead or (differs and self.may_lose)):
            self._dispute(node_id)
            return None
        if differs:
            self.halt(
                f"replica {node_id} of {self.name} has a batch of leader epoch {fetched_epoch} before offset {offset}, "
                f"the source one of epoch {epoch}: the records differ. Nothing is changed on the target. Delete the "
                f"remote topic to mirror it again. {KEEP}"
            )
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def _dispute(self, node_id: int) -> None:
        """Read the source from where a follower ends, so that it compares the logs. No replica is in sync until then.

        A sealed partition is not read. There, the follower counts as one that does not fetch, so a promotion fails.
        """
        if self.is_disputed or self.tail is None:
            return
        if self.is_sealed:
            del self.followers[node_id]
            return
        self.tail = self._disputed = self._window_after(self.followers[node_id])
        self.catch_up = None
        self._on_news(self)

    @property
    def is_disputed(self) -> bool:
        """Return whether the source has not answered yet if the follower at the start of the tail diverges."""
        return self.tail is not None and self.tail is self._disputed

    def _expected_epoch(self, offset: int, fetched_epoch: int) -> int | None:
        """Return the leader epoch that a follower's last batch must have. None: any.

        Where klamm took the partition back, it may be that of a broker which has led without writing. Behind that
        offset, a lower one is that of a batch which such a broker wrote.
        """
        lowest = max((floor.leader_epoch for floor in self.floors if floor.offset < offset), default=UNKNOWN_EPOCH)
        if any(floor.offset == offset for floor in self.floors):
            return None
        if fetched_epoch < lowest:
            return lowest
        window = self._window_at(offset)
        return None if window is None else window.epoch_before(offset)

    def _check_purged(self, wanted: FetchRequest.FetchPartition, now: float) -> ErrorCode | None:
        has_never_had_records = wanted.fetch_offset == 0  # retention may have emptied one that begins later
        if not (has_never_had_records or self.may_lose):
            if not self._all_have_fetched(now):
                return None
            end = max(each.fetch_offset for each in self.followers.values())
            if end < self.log_start:
                self.halt(
                    f"offsets {end} to {self.log_start - 1} of {self.name} were purged on the source before they were "
                    f"mirrored. klamm.on.source.loss=continue resumes at {self.log_start} and removes earlier records. "
                    f"{KEEP}"
                )
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.OFFSET_OUT_OF_RANGE

    def _window_at(self, offset: int) -> Window | None:
        return next((each for each in (self.tail, self.catch_up) if each is not None and offset in each), None)

    def _answer(self, offset: int, max_bytes: int, leadership: Leadership) -> PartitionRead:
        answer = self.failed(ErrorCode.NONE)
        window = self._window_at(offset)
        if window is not None and not self.is_frozen:
            answer.records = window.read(offset, max_bytes, leadership.leader_epoch)
            next_epoch = window.next_epoch(offset)
            if not answer.records and next_epoch is not None:
                self.wanted_epoch = max(self.wanted_epoch, next_epoch)
        answer.high_watermark = answer.last_stable_offset = self.high_watermark
        # A follower rejects a log start after its high watermark or its log end. Retention works on it alone.
        answer.log_start_offset = max(0, min(self.log_start, offset, self.high_watermark))
        return answer

    @property
    def needs_tick(self) -> bool:
        """Return whether batches are in memory, or replicas are awaited."""
        if self.leadership is None or self.halted:
            return False
        return self.tail is None or self.tail.start != self.tail.end or self.catch_up is not None

    def tick(self, now: float) -> None:
        """Drop what only silent replicas need, and await them no longer. Call it every second or so."""
        self._advance(now)
        self._open(now)

    def _open(self, now: float) -> None:
        before = self.tail, self.catch_up
        self.open_tail(now)
        self.open_catch_up(now)
        if before != (self.tail, self.catch_up):
            self._on_news(self)

    def _all_have_fetched(self, now: float) -> bool:
        if self.leadership is None or not self.followers:
            return False
        return self.leadership.live <= self.followers.keys() or now - self._led_since >= FIRST_FETCH_S

    def _advance(self, now: float) -> None:
        """Raise the high watermark to what all live replicas have, and drop batches that no follower needs."""
        if self.leadership is None or not self._all_have_fetched(now):
            return
        offsets = [each.fetch_offset for node, each in self.followers.items() if node in self.leadership.live]
        reached = min(offsets, default=UNKNOWN)
        if reached > self.high_watermark:
            self.high_watermark = reached
            self._on_news(self)
        self._trim(now)

    def _trim(self, now: float) -> None:
        """Drop the batches that every follower has which is served from the window.

        A follower that has not fetched for ``LAGGING_S`` is served from the catch-up window when it returns. The
        catch-up window ends when no follower uses it. If none fetches at all, the tail ends too: the batches in it
        would take memory from partitions whose replicas fetch.
        """
        if self.tail is None:
            return
        offsets = self._served_from(self.tail.start, now)
        if offsets:
            self.tail.drop_before(min(offsets))
        elif self.tail.start != self.tail.end and not self.is_sealed and not self._served_from(0, now):
            self.tail = self.catch_up = None
            self._on_news(self)
            return
        if self.catch_up is not None:
            start = self.tail.start
            offsets = [offset for offset in self._served_from(self.catch_up.start, now) if offset < start]
            if offsets:
                self.catch_up.drop_before(min(offsets))
            else:
                self.catch_up = None

    def _served_from(self, offset: int, now: float) -> list[int]:
        live = self.leadership.live if self.leadership is not None else frozenset[int]()
        return [
            each.fetch_offset
            for node, each in self.followers.items()
            if node in live and each.fetch_offset >= offset and not each.is_silent(now)
        ]

    def leave(self, node_id: int, presence: Presence) -> None:
        """Note that a follower no longer fetches the partition in a fetch session, whose time goes on.

        The follower may fetch it in another session already, which does not end.
        """
        if (progress := self.followers.get(node_id)) is not None and progress.presence is presence:
            progress.presence = replace(progress.presence)

    # --- offsets and promotion ----------------------------------------------------------------------------------------

    def end_offset(self, current_leader_epoch: int) -> tuple[ErrorCode, int]:
        """Return the log end for ListOffsets and OffsetForLeaderEpoch: that of the source, so no log is truncated."""
        return self._bound(current_leader_epoch, self.log_end)

    def start_offset(self, current_leader_epoch: int) -> tuple[ErrorCode, int]:
        """Return the log start for ListOffsets: that of the source."""
        return self._bound(current_leader_epoch, self.log_start)

    def end_offset_for_clients(self, current_leader_epoch: int) -> tuple[ErrorCode, int]:
        """Return the log end for OffsetForLeaderEpoch of a client, which reads from replicas: that of the longest log.

        It needs no source. A client whose offset is after the end would believe that the log was truncated.
        """
        error = self._check_epoch(current_leader_epoch)
        if not error and self.high_watermark == UNKNOWN:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        ends = (follower.fetch_offset for follower in self.followers.values())
        return error, UNKNOWN if error else max(self.log_end, *ends, self.high_watermark)

    def truncated_end(self, leader_epoch: int) -> tuple[int, int] | None:
        """Return a leader epoch up to that of a client, and the end offset at which the replicas were truncated there.

        None: no truncation is known. One before the start of this process is not.
        """
        ends = [each.common for each in self._truncations if each.first_epoch <= leader_epoch <= each.last_epoch]
        return min(ends, key=lambda common: common[1], default=None)

    def check_client_offset(self, offset: int, current_leader_epoch: int) -> ErrorCode:
        """Return the error of a client's fetch at an offset that no replica has.

        After OFFSET_OUT_OF_RANGE, the client resets its offset. So the offset must be before the log starts of all live
        replicas, or after all logs and the source, which klamm has read to its end. As long as a live replica has not
        fetched, or the source may have more, the client retries.
        """
        error, end = self.end_offset_for_clients(current_leader_epoch)
        if error or self.leadership is None:
            return error
        live = [self.followers.get(node) for node in self.leadership.live]
        if live and None not in live:
            is_purged = all(each is not None and offset < each.log_start_offset for each in live)
            if is_purged or (offset > end and self._has_read_source):
                return ErrorCode.OFFSET_OUT_OF_RANGE
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    @property
    def _has_read_source(self) -> bool:
        return not (self.tail is None or self.is_sealed or self.is_disputed) and self.tail.end >= self.log_end

    def _bound(self, current_leader_epoch: int, offset: int) -> tuple[ErrorCode, int]:
        error = self._check_epoch(current_leader_epoch)
        if not error and (self.halted or offset == UNKNOWN):
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return error, UNKNOWN if error else offset

    def in_sync(self) -> frozenset[int]:
        """Return the live replicas that have everything up to the log end, so that they may enter the ISR."""
        if self.leadership is None or self.halted or self.log_end == UNKNOWN or self.is_disputed:
            return frozenset()
        return frozenset(
            node
            for node in self.leadership.live
            if (follower := self.followers.get(node)) is not None and follower.fetch_offset >= self.log_end
        )

    def silent(self, now: float, limit_s: float) -> frozenset[int]:
        """Return the live replicas that have not fetched for some time: they may have given the partition up."""
        if self.leadership is None or self.halted or now - self._led_since < limit_s:
            return frozenset()
        return frozenset(
            node
            for node in self.leadership.live
            if (follower := self.followers.get(node)) is None or follower.is_silent(now, limit_s)
        )
