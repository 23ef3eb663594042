"""A source log and replicas in memory. The replicas fetch as Kafka's AbstractFetcherThread and ReplicaFetcherThread."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self, cast
from uuid import UUID

from klamm.kafka_client.errors import api_error
from klamm.kraft.image import BrokerEndpoint, BrokerImage, ClusterImage, PartitionImage, TopicMetadata
from klamm.kraft.log_dirs import log_dir_of
from klamm.kraft.member import BrokerMember
from klamm.mirror.replica.leader_partition import LeaderPartition, Presence
from klamm.mirror.replica.window import Window, read_chunk
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.records import Record, encode_batch, iter_batches
from klamm.protocol.records.batch import patch_header
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from klamm.kraft.errors import MembershipError
    from klamm.kraft.member import IsrChange, IsrState, MembershipState
    from klamm.kraft.observer import MetadataObserver
    from klamm.protocol.errors import KafkaApiError

MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch in a log."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    data: bytes


def stored_batch(base_offset: int, count: int, leader_epoch: int) -> StoredBatch:
    """Return a batch of small records."""
    records = [Record(None, b"%d" % (base_offset + at), (), 1, at) for at in range(count)]
    data = bytearray(encode_batch(records))
    patch_header(data, base_offset=base_offset, partition_leader_epoch=leader_epoch)
    return StoredBatch(base_offset, base_offset + count, leader_epoch, bytes(data))


@dataclass
class SourceLog:
    """Log of a source partition."""

    batches: list[StoredBatch] = field(default_factory=list)
    log_start: int = 0
    end: int = 0
    leader_epoch: int = 0

    def produce(self, count: int = 1, hole: int = 0) -> None:
        """Append a batch, after offsets whose records compaction has removed."""
        batch = stored_batch(self.end + hole, count, self.leader_epoch)
        self.batches.append(batch)
        self.end = batch.next_offset

    def purge(self, offset: int) -> None:
        """Delete the records before an offset."""
        self.log_start = max(self.log_start, min(offset, self.end))
        self.batches = [batch for batch in self.batches if batch.next_offset > self.log_start]

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to one, and its end, as Kafka's LeaderEpochFileCache. -1 for both: unknown."""
        starts: dict[int, int] = {}
        for batch in self.batches:
            starts.setdefault(batch.leader_epoch, max(batch.base_offset, self.log_start))
        starts.setdefault(self.leader_epoch, self.end)
        if epoch == max(starts):
            return epoch, self.end
        higher = [start for other, start in starts.items() if other > epoch]
        if epoch < 0 or not higher:
            return -1, -1
        return max((other for other in starts if other <= epoch), default=epoch), min(higher)

    def read(self, offset: int, max_bytes: int = MAX_BYTES) -> bytes:
        """Return batches from the one with an offset on."""
        out = b""
        for batch in self.batches:
            if batch.next_offset > offset:
                if out and len(out) + len(batch.data) > max_bytes:
                    break
                out += batch.data
        return out


def copy_once(source: SourceLog, leader: LeaderPartition, now: float, max_bytes: int = MAX_BYTES) -> None:
    """Do what a copier does: read the source for each open window."""
    leader.begin(source.log_start, source.end)
    for window in (leader.open_tail(now), leader.open_catch_up(now)):
        if window is None:
            continue
        common = source.end_offset_for(window.source_epoch)
        is_other = 0 <= common[0] < window.source_epoch
        if common[1] < 0 <= window.source_epoch:
            leader.halt("the source rejects the fetch as out of range")
        elif is_other or 0 <= common[1] < window.end:
            if leader.may_lose and (is_other or common[1] > source.log_start):
                leader.truncate(window, window.source_epoch, common, now)
            else:
                leader.halt("the source diverges")
        elif window.end >= source.log_start:
            feed(source, leader, window, now, max_bytes)


def feed(source: SourceLog, leader: LeaderPartition, window: Window, now: float, max_bytes: int = MAX_BYTES) -> None:
    """Append what the source has after the end of a window."""
    chunk, _ = read_chunk(memoryview(source.read(window.end, max_bytes)), window.end, leader.floors)
    if chunk is not None:
        window.source_epoch = chunk.source_epoch  # the next fetch names it
    leader.extend(window, chunk, source.end, now)


@dataclass
class KafkaFollower:
    """Replica that does what a leader's answer makes Kafka's replica fetcher do."""

    node_id: int
    batches: list[StoredBatch] = field(default_factory=list)
    log_start: int = 0
    end: int = 0
    high_watermark: int = 0
    broker_epoch: int = 1
    led_at: int = -1
    """Offset at which it became leader. -1: never."""
    led_epoch: int = -1
    is_failed: bool = False
    """Whether the fetcher gave the partition up."""
    removed: list[StoredBatch] = field(default_factory=list)
    """Batches that the leader's answers removed."""

    @property
    def last_epoch(self) -> int:
        """Leader epoch of the last batch, -1 for none; or with which it has led since, or of a batch cut in two."""
        if self.led_at == self.end:
            return self.led_epoch
        return self.batches[-1].leader_epoch if self.batches else -1

    def request(self, leader_epoch: int) -> FetchRequest.FetchPartition:
        """Return the fetch of the partition."""
        return FetchRequest.FetchPartition(
            partition=0,
            current_leader_epoch=leader_epoch,
            fetch_offset=self.end,
            last_fetched_epoch=self.last_epoch,
            log_start_offset=self.log_start,
            partition_max_bytes=MAX_BYTES,
        )

    def fetch(self, leader: LeaderPartition, now: float, max_bytes: int = MAX_BYTES) -> ErrorCode | None:
        """Fetch once. Return the error code of the answer, None without an answer."""
        if self.is_failed or leader.leadership is None:
            return None
        epoch = leader.leadership.leader_epoch
        answer = leader.fetch(self.node_id, self.request(epoch), max_bytes, Presence(now, self.broker_epoch))
        if answer is None:
            return None
        if answer.diverging_epoch is not None:
            assert leader.may_lose
            self.truncate(*answer.diverging_epoch)
        elif answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._start_again(leader, epoch)
        elif answer.error_code == ErrorCode.FENCED_LEADER_EPOCH:
            self.is_failed = True
        elif answer.error_code == ErrorCode.NONE:
            self.append(bytes(cast("memoryview", answer.records)), epoch)
            self.high_watermark = max(self.log_start, min(answer.high_watermark, self.end))
            if answer.log_start_offset > self.high_watermark:
                self.is_failed = True
            self.log_start = max(self.log_start, answer.log_start_offset)
        return answer.error_code

    def append(self, records: bytes, leader_epoch: int) -> None:
        """Append the batches of an answer."""
        for batch in iter_batches(records):
            if batch.partition_leader_epoch > leader_epoch:
                return  # skipped, and fetched again at full speed
            if batch.base_offset < self.end:
                assert not self.batches, "Offset mismatch"
                self.log_start = batch.base_offset
            next_offset = batch.last_offset + 1
            self.batches.append(
                StoredBatch(batch.base_offset, next_offset, batch.partition_leader_epoch, bytes(batch.buffer))
            )
            self.end, self.led_at = next_offset, -1

    def _start_again(self, leader: LeaderPartition, leader_epoch: int) -> None:
        error, end = leader.end_offset(leader_epoch)
        if error:
            return
        if end < self.end:
            self._keep_before(end)
            return
        error, start = leader.start_offset(leader_epoch)
        if not error and start > self.end:
            self.start_again(start)

    def start_again(self, offset: int) -> None:
        """Remove all batches and start at an offset."""
        self._keep_before(0)
        self.log_start = self.end = offset

    def truncate(self, leader_epoch: int, end: int) -> None:
        """Remove what differs from a leader's log in which an epoch has this end (KIP-595)."""
        own = [batch.next_offset for batch in self.batches if batch.leader_epoch <= leader_epoch]
        self._keep_before(min(end, max(own, default=0)))

    def _keep_before(self, offset: int) -> None:
        for batch in self.batches:
            if batch.base_offset < offset < batch.next_offset:
                self.led_at, self.led_epoch = offset, batch.leader_epoch  # its epoch began before the offset
        self.removed += [batch for batch in self.batches if batch.next_offset > offset]
        self.batches = [batch for batch in self.batches if batch.next_offset <= offset]
        self.end = min(self.end, offset)


class MemoryMembershipStore:
    """State that ends with the process."""

    def __init__(self) -> None:
        self._state: MembershipState | None = None

    def load(self) -> MembershipState | None:
        """Return the stored state, or None if there is none."""
        return self._state

    def save(self, state: MembershipState | None) -> None:
        """Store a state, or remove it (None)."""
        self._state = state


class FakeMember(BrokerMember):
    """Membership in a target that exists only as an image. Fencing raises the leader epochs, as a controller does."""

    def __init__(self, image: ClusterImage, node_id: int) -> None:
        self.image = image
        self._node_id = node_id
        self._callbacks: list[Callable[[ClusterImage], None]] = []
        self.leased = True
        self.inter_broker_listener = "PLAINTEXT"
        self.authorizer: str | None = ""
        """Class of the authorizer of all brokers. Empty: they have none. None: they do not name it."""
        self.is_cordoned = True
        self.error: MembershipError | None = None
        self.next_producer_id = 0
        self.broker_epoch = 1
        self.observer = cast("MetadataObserver", self)

    def read_authorizers(self, node_ids: Collection[int]) -> Mapping[int, str]:
        """Return ``authorizer`` for each broker."""
        return {} if self.authorizer is None else dict.fromkeys(node_ids, self.authorizer)

    def subscribe(self, callback: Callable[[ClusterImage], None]) -> Callable[[], None]:
        """Call a function with each new image."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def start(self) -> None:
        """Do nothing."""

    def shut_down(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def is_leased(self, now: float | None = None) -> bool:
        """Return ``leased``."""
        return self.leased

    def wait_for(self, predicate: Callable[[ClusterImage], bool], timeout_s: float) -> ClusterImage:
        """Return the image, which must be as expected."""
        assert predicate(self.image)
        return self.image

    def unregister(self) -> None:
        """Do nothing, unless partitions have replicas here."""
        partitions = [each for topic in self.image.topics.values() for each in topic.partitions.values()]
        if any(self._node_id in each.replicas for each in partitions):
            raise ValueError

    def allocate_producer_ids(self) -> range:
        """Return the next block."""
        first = self.next_producer_id
        self.next_producer_id += 1000
        return range(first, first + 1000)

    def alter_partitions(
        self, changes: Mapping[tuple[UUID, int], IsrChange]
    ) -> Mapping[tuple[UUID, int], IsrState | KafkaApiError]:
        """Complete reassignments as the controller does when all added replicas are in the new ISR."""
        return {key: self._alter(*key, change) for key, change in changes.items()}

    def _alter(self, topic_id: UUID, index: int, change: IsrChange) -> IsrState | KafkaApiError:
        topic = self.image.topics[topic_id]
        before = topic.partitions[index]
        if (change.leader_epoch, change.partition_epoch) != (before.leader_epoch, before.partition_epoch):
            return api_error(ErrorCode.INVALID_UPDATE_VERSION)
        if any(epoch != self.image.brokers[node].broker_epoch for node, epoch in change.isr.items()):
            return api_error(ErrorCode.INELIGIBLE_REPLICA)
        assert set(before.adding) <= change.isr.keys()
        assert before.leader in change.isr
        brokers = tuple(node for node in before.replicas if node not in before.removing)
        after = PartitionImage(
            replicas=brokers,
            isr=brokers,
            leader=brokers[0],
            leader_epoch=before.leader_epoch + 1,
            partition_epoch=before.partition_epoch + 1,
        )
        self._publish({topic_id: replace(topic, partitions={**topic.partitions, index: after})})
        return api_error(ErrorCode.NEW_LEADER_ELECTED)

    def _publish(self, topics: Mapping[UUID, TopicMetadata]) -> None:
        self.publish(replace(self.image, topics={**self.image.topics, **topics}))

    def publish(self, image: ClusterImage) -> None:
        """Publish an image."""
        self.image = image
        for callback in list(self._callbacks):
            callback(self.image)

    def cordon(self, cordoned: bool) -> None:
        """Note whether new partitions are accepted."""
        self.is_cordoned = cordoned

    def fence(self, fenced: bool) -> None:
        """Publish an image in which this broker leads nothing, or everything again."""
        leader = -1 if fenced else self._node_id
        topics = {
            topic_id: replace(
                topic,
                partitions={
                    index: replace(partition, leader=leader, leader_epoch=partition.leader_epoch + 1)
                    for index, partition in topic.partitions.items()
                },
            )
            for topic_id, topic in self.image.topics.items()
        }
        self._publish(topics)


def image_of(
    topic: str, topic_id: UUID, node_id: int, replicas: Sequence[int], address: str = "", *, partitions: int = 1
) -> ClusterImage:
    """Return the metadata of a target in which a broker leads a topic, with live replicas.

    Args:
        topic: Remote topic.
        topic_id: Its id.
        node_id: Broker that leads it.
        replicas: Real brokers.
        address: Address of the real brokers for clients. Empty: they have none.
        partitions: Number of partitions.
    """
    host, _, port = address.split(",", maxsplit=1)[0].partition(":")
    endpoint = BrokerEndpoint(name="PLAINTEXT", host=host, port=int(port or 0), security_protocol="PLAINTEXT")
    brokers = {
        node: BrokerImage(
            node_id=node,
            broker_epoch=1,
            incarnation_id=UUID(int=node),
            registered_at=1,
            endpoints=(endpoint,) if address else (),
            features={},
            rack=None,
            is_fenced=False,
            in_controlled_shutdown=False,
            log_dirs=(log_dir_of("", node),) if node == node_id else (),
            cordoned_log_dirs=(),
        )
        for node in (node_id, *replicas)
    }
    partition = PartitionImage(
        replicas=(*replicas, node_id),
        isr=(node_id,),
        removing=(node_id,),
        leader=node_id,
        leader_epoch=0,
        partition_epoch=0,
    )
    image = TopicMetadata(name=topic, topic_id=topic_id, partitions=dict.fromkeys(range(partitions), partition))
    return ClusterImage(offset=1, brokers=brokers, topics={topic_id: image}, topic_ids={topic: topic_id})


class WireReplica:
    """Replica of one topic that fetches over TCP in a thread, as Kafka's replica fetcher does, in a fetch session."""

    def __init__(self, address: str, node_id: int, topic_id: UUID, member: FakeMember, partitions: int = 1) -> None:
        self.logs = {index: KafkaFollower(node_id) for index in range(partitions)}
        self.errors: list[int] = []
        self._address, self._node_id, self._topic_id, self._member = address, node_id, topic_id, member
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Start to fetch."""
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop fetching."""
        self._ended.set()
        self._thread.join(30)

    def _run(self) -> None:
        with WireClient(self._address) as client:
            session_id, epoch = 0, 0
            changed = set(self.logs)
            while not self._ended.is_set():
                leader_epoch = self._member.image.topics[self._topic_id].partitions[0].leader_epoch
                request = FetchRequest(
                    replica_state=FetchRequest.ReplicaState(replica_id=self._node_id, replica_epoch=1),
                    max_wait_ms=200,
                    min_bytes=1,
                    max_bytes=10 * MAX_BYTES,
                    session_id=session_id,
                    session_epoch=epoch,
                    topics=[
                        FetchRequest.FetchTopic(
                            topic_id=self._topic_id, partitions=[self._wanted(index, leader_epoch) for index in changed]
                        )
                    ],
                )
                response = client.ask(request, FetchResponse, 17)
                assert response.error_code == 0
                session_id, epoch = response.session_id, epoch + 1
                changed = set()
                for answer in (each for topic in response.responses for each in topic.partitions):
                    changed.add(answer.partition_index)
                    log = self.logs[answer.partition_index]
                    if answer.error_code:
                        self.errors.append(answer.error_code)
                        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                            self._start_at_the_log_start(client, log, answer.partition_index, leader_epoch)
                        continue
                    if answer.diverging_epoch.end_offset >= 0:
                        log.truncate(answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset)
                        continue
                    log.append(bytes(answer.records or b""), leader_epoch)
                    log.high_watermark = min(answer.high_watermark, log.end)

    def _wanted(self, index: int, leader_epoch: int) -> FetchRequest.FetchPartition:
        wanted = self.logs[index].request(leader_epoch)
        wanted.partition = index
        return wanted

    def _start_at_the_log_start(self, client: WireClient, log: KafkaFollower, index: int, leader_epoch: int) -> None:
        topic = self._member.image.topics[self._topic_id].name
        bounds = []
        for timestamp in (-1, -2):
            wanted = ListOffsetsRequest.ListOffsetsPartition(
                partition_index=index, current_leader_epoch=leader_epoch, timestamp=timestamp
            )
            request = ListOffsetsRequest(
                replica_id=self._node_id,
                topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])],
            )
            (answer,) = client.ask(request, ListOffsetsResponse, 9).topics[0].partitions
            assert answer.error_code == 0
            bounds.append(answer.offset)
        assert bounds[0] >= log.end
        log.start_again(bounds[1])
