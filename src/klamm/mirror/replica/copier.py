"""Copier of partitions that klamm leads on the target: it reads the source into memory for the replicas.

The copier's thread fetches each partition from the offset that the most advanced replica needs next, once for all
replicas, and passes the batches as they are to the ``LeaderPartition``. A second fetcher with connections of its own
reads the source again for a replica that is further behind. Both stop fetching a partition while the batches in memory
are not yet on all replicas that fetch.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.kraft.errors import MembershipError
from klamm.lazy_dataclass import dataclass
from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.fetcher import Fetcher
from klamm.mirror.copy.partition import PartitionCopy, PartitionId, stop_and_log
from klamm.mirror.copy.producer import CopyProducer
from klamm.mirror.progress.partition_progress import NO_REMOTE_TOPIC, STARTING, CopyState
from klamm.mirror.records.requested_states import RequestedState
from klamm.mirror.records.source_offsets import EpochFloor, SourceOffset, StoredPromotion, resume_offset
from klamm.mirror.replica.demotion import Demotion
from klamm.mirror.replica.errors import PromotionError, PromotionWaitsError
from klamm.mirror.replica.leader_partition import FIRST_FETCH_S, KEEP, UNKNOWN
from klamm.mirror.replica.node import ReplicaNode
from klamm.mirror.replica.promotion import HandedOver, Promotion, describe
from klamm.mirror.replica.source_logs import NOT_NAMED, SourceLogReader
from klamm.mirror.replica.start import ReplicaCopy, ReplicaStart
from klamm.mirror.replica.target_brokers import TargetBrokers
from klamm.mirror.replica.window import UNKNOWN_EPOCH, Window
from klamm.protocol.primitives import ZERO_UUID
from klamm.protocol.types import TopicPartition
from klamm.retries import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from klamm.kafka_client.connection.connection import Pollable
    from klamm.kraft.member import BrokerMember
    from klamm.mirror.copy.equal_offsets import ReplicaSettings
    from klamm.mirror.copy.settings import CopySettings
    from klamm.mirror.copy.source_offset_store import StoredSourceOffsets
    from klamm.mirror.copy.start import Start
    from klamm.mirror.progress.partition_progress import PartitionProgress
    from klamm.mirror.replica.leader_partition import LeaderPartition
    from klamm.mirror.replica.source_logs import SourceLogs
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)

_REFRESH_S: Final = 1.0
_PROMOTE_EVERY_S: Final = 0.5
_MAX_PROMOTE_PAUSE_S: Final = 30.0
"""Longest pause after failed attempts to promote a topic: each seals it, so its replicas wait."""
_NOT_FETCHED: Final = "its replicas do not fetch, or start again"


class _NoProducer(CopyProducer):
    """Producer that sends nothing: the replicas fetch."""

    @property
    def busy(self) -> bool:
        """Return False: nothing is ever in flight."""
        return False

    def send(self, now: float) -> None:
        """Do nothing."""

    def sweep(self, now: float) -> None:
        """Do nothing."""


class _Bell:
    """Socket that wakes the copier's thread. It looks like a connection that never writes."""

    wants_write = False

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._has_rung = False

    def ring(self) -> None:
        """Wake the copier. Called by any thread."""
        if not self._has_rung:
            self._has_rung = True
            self._sender.send(b"\0")

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._receiver.fileno()

    def drive(self, _events: int) -> None:
        """Note that the copier is awake."""
        self._receiver.recv(16)
        self._has_rung = False

    def close(self) -> None:
        """Close both sockets."""
        self._receiver.close()
        self._sender.close()


@dataclass(slots=True)
class _Change:
    """Promotion or demotion of a topic that an operator requests."""

    state: str
    """Requested state."""
    reason: str = ""
    """Why it is not done yet. Empty: it is done, or was not tried."""
    due: float = 0.0
    """Earliest time of the next attempt after a failure."""
    pauses: Backoff = field(default_factory=lambda: Backoff(_PROMOTE_EVERY_S, _MAX_PROMOTE_PAUSE_S))
    ends: Mapping[PartitionTuple, int] = field(default_factory=dict)
    """Log ends of the source when a promotion began."""
    is_unnamed: bool = False
    """Whether the results of a promotion do not say yet what the source got since."""


class ReplicaCopier(Copier):
    """Copier of the partitions that a broker without storage leads. Confined to one thread."""

    def __init__(
        self,
        settings: CopySettings,
        replica: ReplicaSettings,
        partitions: Iterable[PartitionId],
        *,
        new_member: Callable[[], BrokerMember],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        partitions = tuple(partitions)
        self._replica = replica
        self._bell = _Bell()
        self._news: deque[LeaderPartition] = deque()
        self._refresh_due = 0.0
        self._keys = _source_partitions(partitions)
        """Source partition by remote partition."""
        self._promote_due = 0.0
        self._changes: dict[str, _Change] = {}
        """Promotions and demotions that are requested, by topic."""
        self._stored: dict[str, StoredPromotion | None] = {}
        """Stored promotions of topics, as far as they were needed. None: there is none for this topic id."""
        self._stored_now: StoredSourceOffsets | None = None
        """Stored source offsets and promotions, read once per turn. None: no topic of this turn has needed them."""
        self._handed_over: dict[TopicPartition, HandedOver] = {}
        self._promoted: dict[PartitionTuple, PartitionProgress] = {}
        """Progress of the partitions that brokers of the target lead."""
        self.node = ReplicaNode(
            replica,
            new_member,
            self._keys,
            target=settings.target,
            may_lose=settings.continue_after_loss,
            on_news=self._note,
        )
        settings = replace(settings, replica=replica, buffer_bytes=settings.buffer_bytes // 2)
        super().__init__(settings, partitions, clock=clock)

    def _note(self, leader: LeaderPartition) -> None:
        self._news.append(leader)
        self._bell.ring()

    def _connect(self) -> None:
        super()._connect()
        self._lagging: dict[PartitionTuple, PartitionCopy] = {}
        """Partitions that are read again for replicas that are behind."""
        self._lagging_active: dict[PartitionTuple, PartitionCopy] = {}
        self._again = Cluster(self._settings.source, BufferPool(max_free_bytes=self._settings.buffer_bytes))
        self._again_fetcher = Fetcher(
            # What the source has purged, other replicas have: the one that is behind starts at the log start.
            replace(self._settings, continue_after_loss=True),
            self._again,
            self._lagging,
            self._lagging_active,
            self._clock,
            on_recreated=self._recreated_again,
            target_is_far=lambda: False,
            throttle=self.throttle,
        )
        node_id = self._replica.node_id
        brokers = TargetBrokers(self._target, node_id, self.node.live_brokers)
        self._promotion = Promotion(self.node, node_id, brokers, self._remember)
        self._demotion = Demotion(self.node, node_id, brokers, self._remember_floors)
        self._source_logs = SourceLogReader(self._settings.source, self._clock)

    def _new_producer(self) -> CopyProducer:
        return _NoProducer(
            self._settings,
            self._target,
            self._copies,
            self._active,
            self._clock,
            on_acknowledged=self._acknowledged,
        )

    def _new_start(self) -> Start:
        return ReplicaStart(
            self._settings,
            self._source,
            self._target,
            self._store,
            node=self.node,
            active=self._active,
        )

    def _start_more(self, now: float) -> None:
        """Take over the progress of the replicas, and fetch for those that are behind."""
        keys = self._changed(now)
        if self.node.error:
            reason = f"{self.node.error}. Restart the mirror to register again"
            for each in (each for each in self._copies.values() if each.state is not CopyState.STOPPED):
                stop_and_log(each, self._settings.flow, reason)
        for key in keys:
            if isinstance(copy := self._copies.get(key), ReplicaCopy):
                self._refresh_copy(key, copy, now)
        for key, copy in list(self._lagging.items()):
            if isinstance(copy, ReplicaCopy):
                self._refresh_lagging(key, copy)
        super()._start_more(now)
        self._again_fetcher.send(now)
        self._again_fetcher.sweep(now)

    def _changed(self, now: float) -> Iterable[PartitionTuple]:
        """Return the partitions of which the leader has news, and all of them every second."""
        leaders = set()
        while self._news:
            leaders.add(self._news.popleft())
        names = {(leader.topic, leader.partition): leader for leader in leaders}
        keys = {self._keys[name]: leader for name, leader in names.items() if name in self._keys}
        if any(leader.tail is not None and key not in self._copies for key, leader in keys.items()):
            self._start_due = now
        if now < self._refresh_due:
            return keys
        self._refresh_due = now + _REFRESH_S
        return list(self._copies)

    def _refresh_copy(self, key: PartitionTuple, copy: ReplicaCopy, now: float) -> None:
        leader = copy.leader
        if self._leader_of(copy) is not leader:
            self._start_again(key, copy, NO_REMOTE_TOPIC)
            return
        if copy.state is not CopyState.STOPPED:
            copy.refresh()
            if copy.state is CopyState.COPYING:
                copy.reason = self._missing_replicas(leader)
            if leader.halted:
                stop_and_log(copy, self._settings.flow, leader.halted)
        if not copy.pending_bytes:
            self._active.pop(key, None)
        if copy.state is CopyState.STOPPED:
            return
        if leader.tail is not copy.window:
            self._start_again(key, copy, _NOT_FETCHED)  # its leader goes on
        elif leader.catch_up is not None and key not in self._lagging:
            self._begin_lagging(key, copy, leader.catch_up)

    def _missing_replicas(self, leader: LeaderPartition) -> str:
        """Return which live replicas do not fetch, if klamm rejects clients at present. Empty: none."""
        if not (rejection := self.node.access.rejection):
            return ""
        if not (silent := leader.silent(time.monotonic(), FIRST_FETCH_S)):
            return ""
        return f"replicas {', '.join(map(str, sorted(silent)))} do not fetch; klamm rejected {rejection}"

    def _leader_of(self, copy: PartitionCopy) -> LeaderPartition | None:
        _, partition, remote_topic = copy.partition_id
        return self.node.partition(remote_topic, partition)

    def _starts_with_new_remote_topic(self, copy: PartitionCopy) -> bool:
        """Return False: the partition of a new remote topic has another leader, see ``_refresh_copy``."""
        _ = copy
        return False

    def _restart(self, key: PartitionTuple, copy: PartitionCopy) -> None:
        super()._restart(key, copy)
        if (leader := self._leader_of(copy)) is not None:
            self.node.post(leader.restart, time.monotonic())

    def assign(self, partitions: Sequence[PartitionId]) -> bool:
        """Copy these partitions from now on, as the same broker of the target."""
        self._keys = _source_partitions(partitions)
        self.node.assign(self._keys)
        for key, copy in list(self._copies.items()):
            if copy.partition_id not in partitions:
                self._start_again(key, copy, STARTING)
                self._end_lagging(key)
        self._promoted = {each[:2]: self._promoted[each[:2]] for each in partitions if each[:2] in self._promoted}
        started = {copy.partition_id for copy in self._copies.values()}
        started |= {PartitionId(*key, row.remote_topic) for key, row in self._promoted.items()}
        self._unstarted = {each: self._unstarted.get(each, STARTING) for each in partitions if each not in started}
        self._start_due = 0.0
        return True

    def _begin_lagging(self, key: PartitionTuple, copy: ReplicaCopy, window: Window) -> None:
        self._again.refresh([key[0]])
        again = ReplicaCopy(copy.partition_id, copy.leader, window, self.node, self._lagging_active)
        self._lagging[key] = again
        self._again_fetcher.add(key, self._fetcher.topic_id(key))  # the topic may have been created again since then

    def _recreated_again(self, keys: Iterable[PartitionTuple]) -> None:
        for key in keys:
            self._end_lagging(key)
        self._recreated(key for key in keys if key in self._copies)

    def _refresh_lagging(self, key: PartitionTuple, copy: ReplicaCopy) -> None:
        copy.refresh()
        if not copy.pending_bytes:
            self._lagging_active.pop(key, None)
        if copy.leader.catch_up is not copy.window:
            self._end_lagging(key)

    def _end_lagging(self, key: PartitionTuple) -> None:
        self._lagging.pop(key, None)
        self._lagging_active.pop(key, None)

    # --- promotion ----------------------------------------------------------------------------------------------------

    def _turn(self, now: float, *, ending: bool) -> None:
        if not ending:
            self._change_leaders(now)
        super()._turn(now, ending=ending)

    def _change_leaders(self, now: float) -> None:
        """Hand over the topics that an operator promotes, and take back or mirror on those that are not promoted."""
        requested = {**self.promoted, **dict.fromkeys(self.demoted, RequestedState.DEMOTED)}
        for topic in [topic for topic, change in self._changes.items() if requested.get(topic) != change.state]:
            self._withdraw(topic)
        self._changes = {topic: self._changes.get(topic) or _Change(state) for topic, state in requested.items()}
        for key in [key for key in self._promoted if key[0] not in self.promoted]:
            self._mirror_again(key)
        if now < self._promote_due or self.node.member is None:
            return
        self._promote_due = now + _PROMOTE_EVERY_S
        self._stored_now = None
        for topic, change in self._changes.items():
            if change.is_unnamed:
                self._name_later(topic)
            if now < change.due:
                continue
            keys = {TopicPartition(*at): key for at, key in self._keys.items() if key[0] == topic}
            try:
                self._change_leader(topic, change.state, keys)
                change.reason = ""
                change.pauses.reset()
            except PromotionWaitsError as error:
                change.reason = error_text(error)
            except (*CLUSTER_ERRORS, MembershipError, PromotionError) as error:
                change.reason = error_text(error)
                change.due = self._clock() + change.pauses.next_s()

    def _change_leader(self, topic: str, state: str, keys: Mapping[TopicPartition, PartitionTuple]) -> None:
        if state == RequestedState.DEMOTED:
            if due := {remote: key for remote, key in keys.items() if self._demotion.is_due(remote)}:
                self._take_back(topic, due)
        elif left := {remote: key for remote, key in keys.items() if key not in self._promoted}:
            self._promote_topic(topic, left, accepts_loss=state == RequestedState.FAILED_OVER)

    def _take_back(self, topic: str, keys: Mapping[TopicPartition, PartitionTuple]) -> None:
        """Let klamm lead the partitions of a topic again that brokers lead, and mirror them on."""
        self._demotion.check_metadata(keys)
        led = {remote: key for remote, key in keys.items() if not self._demotion.is_alone(remote)}
        logs = self._source_logs.read(topic) if led else None
        stored = self._read_stored(topic, keys)
        ends = self._promoted_ends(topic, keys, stored)
        if logs is not None:
            self._check_source(topic, led, stored, logs)
            for remote, key in led.items():
                logs.check_continues(key, remote, ends[remote])
        self._demotion.take_back(ends)
        logger.warning("%s: klamm leads %s again", self._settings.flow, next(iter(keys)).topic)

    def _check_source(
        self, topic: str, keys: Mapping[TopicPartition, PartitionTuple], stored: StoredSourceOffsets, logs: SourceLogs
    ) -> None:
        """Check that the source is the cluster and the topic from which klamm mirrored. Else it could only halt.

        Raises:
            PromotionError: It is not. The brokers keep the topic.
        """
        alias, cluster_id, topic_id = self._settings.source_alias, logs.cluster_id, logs.topic_id
        if stored.cluster_id not in (None, cluster_id):
            raise PromotionError(
                f"{alias} is cluster {cluster_id}, but {topic} was mirrored from cluster {stored.cluster_id}: correct "
                f"{alias}.bootstrap.servers"
            )
        if any(stored.topic_ids.get(key, topic_id) != topic_id for key in keys.values()) and topic_id != ZERO_UUID:
            raise PromotionError(
                f"{topic} was deleted and created again on the source: it cannot be mirrored on. Delete the remote "
                "topic to mirror the new one"
            )

    def _promoted_ends(
        self, topic: str, keys: Mapping[TopicPartition, PartitionTuple], stored: StoredSourceOffsets
    ) -> dict[TopicPartition, int]:
        """Return the stored log ends at which klamm handed partitions over. -1: it did not hand the topic over.

        Without a source offset, the partition was added by brokers after the promotion: it must be empty.
        """
        if self._stored[topic] is None:
            return dict.fromkeys(keys, UNKNOWN)
        return {remote: resume_offset(stored.offsets.get(key, -1)) for remote, key in keys.items()}

    def _read_stored(self, topic: str, keys: Mapping[TopicPartition, PartitionTuple]) -> StoredSourceOffsets:
        """Return what is stored on the target, and keep the promotion of a topic that has still the same id."""
        stored = self._read_store()
        promotion = stored.promotions.get(topic)
        if promotion is not None and self._topic_ids(keys) != {promotion.topic_id}:
            promotion = None
        self._stored[topic] = promotion
        return stored

    def _read_store(self) -> StoredSourceOffsets:
        """Return what is stored on the target, with the source offsets that are being written."""
        self._collect_source_offsets(wait=True)
        return self._store.read()

    def _remember_floors(self, floors: Mapping[TopicPartition, EpochFloor]) -> None:
        """Store the leader epochs from which on partitions of a topic are mirrored again."""
        stored = self._store.read()
        topic = self._topic_of(floors)
        promotion = self._stored[topic]
        stored_floors = {} if promotion is None else dict(promotion.floors)
        for remote, floor in floors.items():
            # An earlier attempt may have stored one for this offset, and mirrored nothing.
            before = [each for each in stored_floors.get(remote.partition, ()) if each.offset < floor.offset]
            source_epoch = stored.leader_epochs.get(self._keys[remote], UNKNOWN_EPOCH)
            stored_floors[remote.partition] = (*before, floor._replace(source_epoch=source_epoch))
        (topic_id,) = self._topic_ids(floors)
        self._write_promotion(topic, StoredPromotion(topic_id, False, stored_floors))

    def _write_promotion(self, topic: str, promotion: StoredPromotion) -> None:
        self._store.write_promotion(topic, promotion)
        self._stored[topic] = promotion

    def _promote_topic(self, topic: str, keys: Mapping[TopicPartition, PartitionTuple], *, accepts_loss: bool) -> None:
        led = {remote: key for remote, key in keys.items() if not self._promotion.is_handed_over(remote)}
        if due := {remote: key for remote, key in led.items() if self._demotion.is_due(remote)}:
            self._demotion.release(self._promoted_ends(topic, due, self._read_stored(topic, due)))
        if led and not accepts_loss:
            self._check_ends(topic, led)
        if led:
            if topic not in self._stored:
                self._read_stored(topic, keys)
            self._note_floors(topic, led)
            self._handed_over |= self._promotion.hand_over(led, accepts_loss=accepts_loss)
        elif self._is_promoted_before(topic, keys):
            return
        ends = self._log_ends(keys)
        ended = self._promotion.end_transactions(ends)
        self._note_promotion(topic, keys, is_finished=True)
        for remote, key in keys.items():
            result = describe(self._handed_over.get(remote), ended[remote], "" if accepts_loss else NOT_NAMED)
            self._release(key, remote, ends[remote], result)
            logger.warning("%s: promoted %s-%d: %s", self._settings.flow, *remote, result)
        if not accepts_loss:
            self._source_logs.forget(topic)  # requested before the log ended
            self._name_later(topic)

    def _note_floors(self, topic: str, remotes: Iterable[TopicPartition]) -> None:
        """Let the leaders know from where batches have raised epochs. A start without the source does not do it."""
        for remote in remotes:
            leader, promotion = self.node.partition(*remote), self._stored[topic]
            if leader is not None and promotion is not None:
                floors = promotion.floors_of(leader.topic_id, leader.partition)
                self.node.post(leader.begin, UNKNOWN, UNKNOWN, floors)

    def _is_promoted_before(self, topic: str, keys: Mapping[TopicPartition, PartitionTuple]) -> bool:
        """Return whether nothing is left to do for a topic that brokers lead: it is finished, or another topic now."""
        if keys.keys() <= self._handed_over.keys():
            return False
        if self._stored_now is None:
            self._stored_now = self._read_store()
        stored = self._stored_now
        promotion, topic_ids = stored.promotions.get(topic), self._topic_ids(keys)
        self._stored[topic] = promotion
        if promotion is None or (not promotion.is_finished and topic_ids == {promotion.topic_id}):
            return False
        reason = "handed over by an earlier process"
        if topic_ids != {promotion.topic_id}:
            reason += "; then deleted and created again on the target, so klamm changes nothing there"
        for remote, key in keys.items():
            self._release(key, remote, resume_offset(stored.offsets.get(key, -1)), reason)
        return True

    def _topic_ids(self, remotes: Iterable[TopicPartition]) -> set[UUID]:
        leaders = [self.node.partition(*remote) for remote in remotes]
        return {leader.topic_id for leader in leaders if leader is not None}

    def _topic_of(self, remotes: Iterable[TopicPartition]) -> str:
        """Return the source topic of partitions of one remote topic."""
        return self._keys[next(iter(remotes))][0]

    def _note_promotion(self, topic: str, remotes: Iterable[TopicPartition], *, is_finished: bool) -> None:
        """Store how far the promotion of a topic is."""
        before = self._stored.get(topic)
        for topic_id in self._topic_ids(remotes):
            floors = {} if before is None or before.topic_id != topic_id else before.floors
            self._write_promotion(topic, StoredPromotion(topic_id, is_finished, floors))

    def _check_ends(self, topic: str, keys: Mapping[TopicPartition, PartitionTuple]) -> None:
        """Check that the replicas have what the source had when the promotion began.

        Raises:
            PromotionError: They do not, or the source has partitions that they do not have.
            ConnectionLostError: The source is unavailable.
        """
        change = self._changes[topic]
        if any(key not in change.ends or self._has_lost(key, change.ends[key]) for key in keys.values()):
            logs, count = self._source_logs.read(topic), self._partition_count(topic)
            if not logs.bounds.keys() >= set(keys.values()):
                raise PromotionError(f"the source does not name the log ends of {topic}. {KEEP}")
            if logs.partitions > count:
                raise PromotionWaitsError(
                    f"{topic} has {logs.partitions} partitions on the source, and its remote topic has {count}: "
                    "withdraw the promotion, so that the mirror adds them"
                )
            change.ends = {key: min(each.stop, change.ends.get(key, each.stop)) for key, each in logs.bounds.items()}
        for remote, key in keys.items():
            leader, end = self.node.partition(*remote), change.ends[key]
            if leader is not None and leader.halted:
                raise PromotionWaitsError(leader.halted)
            if leader is None or leader.tail is None or leader.high_watermark < end:
                raise PromotionWaitsError(f"the replicas of {remote.name} do not have offset {end} yet")

    def _has_lost(self, key: PartitionTuple, end: int) -> bool:
        """Return whether a source partition may have lost the records before a former log end, which are awaited."""
        copy = self._copies.get(key)
        return copy is not None and 0 <= copy.end_offset < end

    def _partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic that are mirrored or promoted."""
        return sum(key[0] == topic for key in self._keys.values())

    def _name_later(self, topic: str) -> None:
        """Add to the results of a promotion what the source got since, once it has named its log ends."""
        change = self._changes[topic]
        change.is_unnamed = False
        try:
            logs = self._source_logs.read(topic)
        except PromotionWaitsError:
            change.is_unnamed = True
            return
        except CLUSTER_ERRORS as error:
            logger.warning("%s: %s: %s%s", self._settings.flow, topic, NOT_NAMED, error_text(error))
            return
        for key, row in self._promoted.items():
            if key[0] == topic and NOT_NAMED in row.reason:
                later = logs.describe_more(key, row.next_offset, self._partition_count(topic))
                self._promoted[key] = replace(row, reason=row.reason.replace(NOT_NAMED, later))
                logger.info("%s: %s-%d: %s", self._settings.flow, *key, later or "the source got nothing since")

    def _remember(self, ends: Mapping[TopicPartition, int]) -> None:
        """Store the log ends of partitions as their source offsets."""
        self._collect_source_offsets(wait=True)
        moved = {self._keys[remote]: SourceOffset(end, self._source_epoch(remote, end)) for remote, end in ends.items()}
        self._store.write(moved)
        self._note_promotion(self._topic_of(ends), ends, is_finished=False)
        for key in moved.keys() & self._copies.keys():
            self._copies[key].committed_offset = moved[key].next_offset

    def _source_epoch(self, remote: TopicPartition, log_end: int) -> int:
        """Return the leader epoch of the last batch before a log end on the source. -1: unknown.

        The replicas name it, unless it was raised. Then only the copy knows it, if it has read this batch itself.
        """
        if isinstance(copy := self._copies.get(self._keys[remote]), ReplicaCopy):
            copy.refresh()
            offset, leader_epoch = copy.source_offset
            if offset == log_end and leader_epoch != UNKNOWN_EPOCH:
                return leader_epoch
        leader = self.node.partition(*remote)
        return UNKNOWN_EPOCH if leader is None else self.node.call(leader.source_epoch_before, log_end)

    def _log_ends(self, keys: Mapping[TopicPartition, PartitionTuple]) -> dict[TopicPartition, int]:
        """Return the log ends at which partitions were handed over, by this process or an earlier one.

        Raises:
            PromotionError: klamm did not hand one of them over.
        """
        ends = {remote: each.log_end for remote, each in self._handed_over.items() if remote in keys}
        if keys.keys() - ends.keys():
            stored = self._read_store().offsets
            for remote in keys.keys() - ends.keys():
                if keys[remote] not in stored:
                    raise PromotionError(f"{remote.name} was never mirrored by klamm")
                ends[remote] = resume_offset(stored[keys[remote]])
        return ends

    def _release(self, key: PartitionTuple, remote: TopicPartition, log_end: int, reason: str) -> None:
        """Stop copying a partition, and keep its progress."""
        partition_id = PartitionId(*key, remote.topic)
        before = self._before.pop(partition_id, None)
        copy = self._copies.pop(key, None)
        row = self._not_started(partition_id, "", before) if copy is None else self._progress(copy, time.time() * 1000)
        for partitions in (self._active, self._lagging, self._lagging_active):
            partitions.pop(key, None)
        self._unstarted.pop(partition_id, None)
        self._promoted[key] = replace(
            row, state=CopyState.PROMOTED, reason=reason, next_offset=log_end, end_offset=log_end
        )

    def _mirror_again(self, key: PartitionTuple) -> None:
        row = self._promoted.pop(key)
        partition_id = PartitionId(*key, row.remote_topic)
        self._handed_over.pop(TopicPartition(row.remote_topic, row.partition), None)
        self._before[partition_id] = row
        self._unstarted[partition_id] = "demoted by an operator"

    def _withdraw(self, topic: str) -> None:
        del self._changes[topic]
        self._source_logs.forget(topic)
        for remote, key in self._keys.items():
            if key[0] == topic and (leader := self.node.partition(*remote)) is not None:
                self.node.post(leader.unseal)

    def progress(self) -> Sequence[PartitionProgress]:
        """Return the progress of each partition, with the reasons of promotions and demotions that have to wait."""
        return [*map(self._with_reason, super().progress()), *self._promoted.values()]

    def _with_reason(self, row: PartitionProgress) -> PartitionProgress:
        change = self._changes.get(row.topic)
        if change is None or not change.reason:
            return row
        what = "mirrored again" if change.state == RequestedState.DEMOTED else "promoted"
        return replace(row, reason=f"not {what} yet: {change.reason}")

    def _open_connections(self) -> Sequence[Pollable]:
        return [*super()._open_connections(), *self._again.connections(), self._bell]

    def close(self) -> None:
        """Leave the target as a broker, and close all connections."""
        self.node.close()
        super().close()
        self._bell.close()

    def _disconnect(self) -> None:
        super()._disconnect()
        self._again.close()
        self._source_logs.close()


def _source_partitions(partitions: Iterable[PartitionId]) -> dict[PartitionTuple, PartitionTuple]:
    return {(each.remote_topic, each.partition): each[:2] for each in partitions}
