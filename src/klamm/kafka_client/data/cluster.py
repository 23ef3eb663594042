"""Metadata of one cluster and connections to its brokers, for the data path."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, Self, TypeVar

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.login import HANDSHAKE_TIMEOUT_S, log_in, open_connection
from klamm.kafka_client.errors import (
    ConnectionLostError,
    DeniedError,
    SaslAuthenticationFailedError,
    SslAuthenticationFailedError,
)
from klamm.lazy_dataclass import dataclass
from klamm.properties import split_address
from klamm.protocol.errors import ErrorCode, error_name
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.primitives import ZERO_UUID
from klamm.protocol.types import CoordinatorType, by_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.protocol.schema import Message
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)

Response = TypeVar("Response", bound="Message")

EARLIEST: Final = -2
LATEST: Final = -1
DEBUGGING_REPLICA_ID: Final = -2
"""Replica id of a ListOffsets request for the log end. Without a replica id, brokers return the high watermark."""
_TIMEOUT_S: Final = 10.0
_TURN_S: Final = 30.0
"""Shortest time in seconds for which one broker gets the metadata requests."""
_KEYS_SINCE: Final = 4
"""First version of FindCoordinator that carries several keys."""
_REJECTIONS: Final = (SaslAuthenticationFailedError, SslAuthenticationFailedError)
_DENIED: Final = frozenset({ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """State of a topic in the latest Metadata response."""

    topic_id: UUID
    """Id of the topic; all zeros if the broker does not report it."""
    leaders: Mapping[int, int]
    """Leader's node id by partition. Partitions without a leader are missing."""
    partitions: tuple[int, ...]
    """All partitions, including those without a leader."""
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    """Leader epoch by partition; missing or -1 if the broker does not report it (before Kafka 2.1)."""


class Cluster:
    """Connections to one cluster, and its metadata. Thread-confined. Calls block for a few seconds at most."""

    def __init__(self, settings: ConnectionSettings, pool: BufferPool) -> None:
        self._settings = settings
        self._pool = pool
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[tuple[int, int], Connection] = {}
        """Connections by node id and lane."""
        self._bootstrap: Connection | None = None
        self._bootstrap_address: tuple[str, int] | None = None
        """Address of the broker to which the bootstrap connection was last opened, even if that failed."""
        self._turn_at = math.inf
        """Monotonic time in seconds from which on a refresh opens the bootstrap connection to the next broker."""
        self.cluster_id = ""
        """Cluster id in the latest Metadata response; empty before the first one."""
        self.topics: dict[str, TopicState] = {}
        self.topic_errors: dict[str, int] = {}
        """Error codes of the topics that the latest Metadata response did not describe."""
        self.round_trip_s = math.inf
        """Shortest time in seconds of a broker's first response on any connection. Infinite before the first
        response.
        """

    @classmethod
    @contextlib.contextmanager
    def connected(cls, settings: ConnectionSettings, topics: Iterable[str] = ()) -> Iterator[Self]:
        """Yield connections for a few calls, with the metadata of some topics. They are closed at the end.

        Raises:
            ConnectionLostError: No broker responds.
        """
        with contextlib.closing(cls(settings, BufferPool(max_free_bytes=0))) as cluster:
            cluster.refresh(topics)
            yield cluster

    def refresh(self, topics: Iterable[str]) -> None:
        """Refresh the metadata of topics. Topics that do not exist are missing in ``topics`` afterwards.

        A broker that is cut off from the controllers serves clients, but names former leaders. So a leader stays if the
        response has an older leader epoch for the same topic id (as in Kafka's ``Metadata``), and refreshes take turns
        between the brokers.

        Raises:
            ConnectionLostError: No broker responds.
        """
        names = list(topics)
        self._take_turns()
        response = self._call_any(names)
        self.cluster_id = response.cluster_id or ""
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        before = {name: self.topics.pop(name, None) for name in names}
        self.topic_errors = {topic.name or "": topic.error_code for topic in response.topics if topic.error_code}
        for topic in response.topics:
            if topic.error_code == ErrorCode.NONE and topic.name is not None:
                leaders = {p.partition_index: p.leader_id for p in topic.partitions if p.leader_id >= 0}
                partitions = tuple(sorted(p.partition_index for p in topic.partitions))
                epochs = {p.partition_index: p.leader_epoch for p in topic.partitions}
                state = TopicState(
                    topic_id=topic.topic_id, leaders=leaders, partitions=partitions, leader_epochs=epochs
                )
                self.topics[topic.name] = _with_later_leaders(state, before.get(topic.name))

    @property
    def node_ids(self) -> frozenset[int]:
        """Node ids of the live brokers at the last refresh."""
        return frozenset(self._addresses)

    def _take_turns(self) -> None:
        """Open the bootstrap connection to the next live broker if it has been open to the same one for some time."""
        if time.monotonic() < self._turn_at:
            return
        addresses = [self._addresses[node_id] for node_id in sorted(self._addresses)]
        last = addresses.index(self._bootstrap_address) if self._bootstrap_address in addresses else -1
        others = [*filter(self._is_reachable, [*addresses[last + 1 :], *addresses[: max(0, last)]])]
        if others:
            with contextlib.suppress(ConnectionLostError):  # the others follow in their turn
                self._reopen_bootstrap(*others[0])

    def _is_reachable(self, _address: tuple[str, int], /) -> bool:
        """Return whether a broker is worth a connection that another broker can replace."""
        return True

    def topic_names(self) -> list[str]:
        """Return the names of all topics that the principal may describe, without Kafka's internal topics.

        Raises:
            ConnectionLostError: No broker responds.
        """
        topics = self._call_any(None).topics
        return [topic.name for topic in topics if topic.name is not None and not topic.is_internal]

    def _call_any(self, names: list[str] | None) -> MetadataResponse:
        topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        failures: list[ConnectionLostError] = []
        for response in self._responses(request, MetadataResponse, failures, at_least=4):
            return response
        raise _combined(f"No broker of {','.join(self._settings.bootstrap_servers)} responds", failures)

    def _candidates(self, failures: list[ConnectionLostError]) -> Iterable[Connection]:
        """Iterate over open connections first, then over new ones to the bootstrap servers and to known nodes."""
        # The bootstrap connection comes first: on the others a response may queue behind a fetch that waits for data.
        opened = [self._bootstrap, *self._connections.values()]
        now = time.monotonic()
        yield from [c for c in opened if c is not None and not c.closed and now < c.login_due_at]
        advertised = list(self._addresses.values())
        bootstrap = filter(None, map(split_address, self._settings.bootstrap_servers))
        if self._bootstrap is not None:
            self._bootstrap.close()
        for host, port in [*bootstrap, *advertised]:
            try:
                yield self._reopen_bootstrap(host, port)
            except ConnectionLostError as error:
                failures.append(error)

    def _responses(
        self,
        request: Message,
        response_class: type[Response],
        failures: list[ConnectionLostError],
        *,
        at_least: int = 0,
        at_most: int = 0x7FFF,
    ) -> Iterator[Response]:
        """Send a request to one broker after the other, and yield the response of each that responds.

        Args:
            request: Request that any broker can answer.
            response_class: Class of its response.
            failures: Receiver of the errors of the brokers that do not respond.
            at_least: Lowest version of the request.
            at_most: Highest version of the request.
        """
        for connection in self._candidates(failures):
            try:
                version = connection.version_of(type(request), at_least=at_least, at_most=at_most)
                response = connection.call(request, response_class, version=version, timeout_s=_TIMEOUT_S)
            except ConnectionLostError as error:
                failures.append(error)
            else:
                yield response

    def _reopen_bootstrap(self, host: str, port: int) -> Connection:
        """Open the bootstrap connection to a broker. If that fails, one to another broker stays open."""
        self._bootstrap_address, self._turn_at = (host, port), time.monotonic() + _TURN_S
        opened = self._open(host, port)
        if self._bootstrap is not None:
            self._bootstrap.close()
        self._bootstrap = opened
        return opened

    def _open(self, host: str, port: int) -> Connection:
        opened = open_connection(host, port, self._settings, self._pool)
        self.round_trip_s = min(self.round_trip_s, opened.round_trip_s)
        return opened

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the node id of a partition's leader, or None if there is none or it is unknown."""
        state = self.topics.get(topic)
        return state.leaders.get(partition) if state is not None else None

    def by_leader(self, partitions: Iterable[PartitionTuple]) -> dict[int | None, list[PartitionTuple]]:
        """Return partitions by the node id of their leader. None: those without a leader, or with an unknown one."""
        grouped: dict[int | None, list[PartitionTuple]] = {}
        for partition in partitions:
            grouped.setdefault(self.leader(*partition), []).append(partition)
        return grouped

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the epoch of a partition's leader, or -1 if it is unknown."""
        state = self.topics.get(topic)
        return state.leader_epochs.get(partition, -1) if state is not None else -1

    def topic_id(self, topic: str) -> UUID:
        """Return a topic's id, or all zeros if it is unknown."""
        state = self.topics.get(topic)
        return state.topic_id if state is not None else ZERO_UUID

    def connection(self, node_id: int, lane: int = 0) -> Connection:
        """Return the connection to a node, and open it if necessary.

        Args:
            node_id: Node id of the broker.
            lane: Index of the connection to the broker. A broker handles the requests of one connection in order.

        Raises:
            ConnectionLostError: The node is unreachable or unknown.
        """
        connection = self._connections.get((node_id, lane))
        if connection is not None and not connection.closed:
            if time.monotonic() >= connection.login_due_at:
                if node_id not in self._addresses:
                    raise ConnectionLostError(f"Node {node_id} is unknown")
                host, _ = self._addresses[node_id]
                log_in(connection, self._settings.security, host=host, timeout_s=HANDSHAKE_TIMEOUT_S)
            return connection
        if node_id not in self._addresses:
            raise ConnectionLostError(f"Node {node_id} is unknown")
        opened = self._connections[node_id, lane] = self._open(*self._addresses[node_id])
        return opened

    def disconnect(self, node_id: int, lane: int) -> None:
        """Close one connection to a node, if it is open. Requests in flight on it get no response."""
        if (connection := self._connections.pop((node_id, lane), None)) is not None:
            connection.close()

    def connections(self) -> list[Connection]:
        """Return the open connections to nodes, without the bootstrap connection."""
        return [connection for connection in self._connections.values() if not connection.closed]

    def list_offsets(
        self,
        partitions: Sequence[PartitionTuple],
        timestamp: int,
        *,
        read_committed: bool = False,
        unreplicated: bool = False,
        with_epochs: bool = False,
    ) -> dict[PartitionTuple, int]:
        """Return the offsets of a timestamp. Partitions whose leader is unknown or does not respond are missing.

        An unreachable node does not fail the call, so that partitions of other nodes need not wait for it.

        Args:
            partitions: Partitions of topics whose metadata has been requested before.
            timestamp: ``EARLIEST``, ``LATEST``, or milliseconds since the epoch. Then the offset is that of the first
                record that is not older, or -1 if all are.
            read_committed: Whether the latest offset means the last stable offset.
            unreplicated: Whether the latest offset means the leader's log end instead of the high watermark.
            with_epochs: Whether brokers reject partitions whose leader epoch is another one than in the metadata.
        """
        offsets: dict[PartitionTuple, int] = {}
        for leader, led in self.by_leader(partitions).items():
            if leader is None:
                continue
            request = self.offsets_request(
                led, timestamp, read_committed=read_committed, unreplicated=unreplicated, with_epochs=with_epochs
            )
            try:
                response = self.connection(leader).call(request, ListOffsetsResponse, timeout_s=_TIMEOUT_S)
            except ConnectionLostError as error:
                logger.info("Node %d: cannot list the offsets of its partitions: %s", leader, error)
                continue
            for topic_answer in response.topics:
                for answer in topic_answer.partitions:
                    if answer.error_code == ErrorCode.NONE:
                        offsets[topic_answer.name, answer.partition_index] = answer.offset
        return offsets

    def offsets_request(
        self,
        partitions: Iterable[PartitionTuple],
        timestamp: int,
        *,
        read_committed: bool = False,
        unreplicated: bool = False,
        with_epochs: bool = False,
    ) -> ListOffsetsRequest:
        """Return the request for the offsets of partitions with the same leader. The arguments are as above.

        Followers answer the debugging replica id, too, and may lag behind. The leader epoch makes a broker reject the
        request if it does not lead the partition any more, so ``unreplicated`` implies ``with_epochs``.
        """
        with_epochs |= unreplicated
        return ListOffsetsRequest(
            replica_id=DEBUGGING_REPLICA_ID if unreplicated else -1,
            isolation_level=int(read_committed),
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(
                            partition_index=number,
                            current_leader_epoch=self.leader_epoch(topic, number) if with_epochs else -1,
                            timestamp=timestamp,
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(partitions).items()
            ],
        )

    def log_bounds(self, partitions: Sequence[PartitionTuple]) -> dict[PartitionTuple, range]:
        """Return the offsets from log start to log end, according to up-to-date metadata.

        Partitions without a known leader that responds, and has the leader epoch of the metadata, are missing.
        """
        first, ends = (self.list_offsets(partitions, timestamp, with_epochs=True) for timestamp in (EARLIEST, LATEST))
        return {partition: range(first[partition], ends[partition]) for partition in first.keys() & ends.keys()}

    def coordinator(self, key: str, kind: CoordinatorType) -> int:
        """Return the node id of the coordinator of a group or transactional id. Pass it to ``connection``.

        Raises:
            DeniedError: The principal lacks a required ACL.
            ConnectionLostError: No broker knows the coordinator at present.
        """
        what = f"the coordinator of {'group' if kind is CoordinatorType.GROUP else 'transactional id'} {key}"
        failures: list[ConnectionLostError] = []
        request = FindCoordinatorRequest(key=key, key_type=kind)
        # Versions 1 to 3 carry one key.
        for response in self._responses(request, FindCoordinatorResponse, failures, at_least=1, at_most=3):
            if response.error_code == ErrorCode.NONE:
                self._addresses[response.node_id] = (response.host, response.port)
                return response.node_id
            if response.error_code in _DENIED:
                raise DeniedError(f"Cannot find {what}: {error_name(response.error_code)}")
            failures.append(ConnectionLostError(response.error_message or error_name(response.error_code)))
            if response.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
                break
        raise _combined(f"Cannot find {what}", failures)

    def coordinators(self, keys: Sequence[str], kind: CoordinatorType) -> dict[str, int | ConnectionLostError]:
        """Return the node ids of the coordinators of several groups or transactional ids.

        Keys whose coordinator is unknown at present are missing. For keys that the principal may not describe, the
        value is a ``DeniedError``.

        Raises:
            ConnectionLostError: No broker responds, or none supports version 4 of FindCoordinator (KIP-699).
        """
        failures: list[ConnectionLostError] = []
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
        for response in self._responses(request, FindCoordinatorResponse, failures, at_least=_KEYS_SINCE):
            nodes: dict[str, int | ConnectionLostError] = {}
            for entry in response.coordinators:
                if entry.error_code == ErrorCode.NONE:
                    self._addresses[entry.node_id] = (entry.host, entry.port)
                    nodes[entry.key] = entry.node_id
                elif entry.error_code in _DENIED:
                    name = error_name(entry.error_code)
                    nodes[entry.key] = DeniedError(f"Cannot find the coordinator of {entry.key}: {name}")
            return nodes
        raise _combined("Cannot find the coordinators", failures)

    def init_producer_id(self) -> tuple[int, int]:
        """Return a new producer id and epoch for idempotent writes.

        Raises:
            DeniedError: The principal lacks a required ACL.
            ConnectionLostError: No broker assigns one at present.
        """
        failures: list[ConnectionLostError] = []
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0x7FFFFFFF)
        for response in self._responses(request, InitProducerIdResponse, failures):
            if response.error_code == ErrorCode.NONE:
                return response.producer_id, response.producer_epoch
            if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise DeniedError(
                    f"InitProducerId: {error_name(response.error_code)}: the principal may write to no topic, or lacks "
                    "IDEMPOTENT_WRITE on the cluster (before Kafka 2.8)"
                )
            failures.append(ConnectionLostError(error_name(response.error_code)))
        raise _combined("InitProducerId failed on all brokers", failures)

    def close(self) -> None:
        """Close all connections."""
        for connection in [*self._connections.values(), self._bootstrap]:
            if connection is not None:
                connection.close()
        self._connections.clear()


def _with_later_leaders(state: TopicState, before: TopicState | None) -> TopicState:
    """Return the state of a topic with the earlier leaders of partitions whose leader epoch was higher before.

    Without topic ids (before Kafka 2.8), a lower epoch may be that of a topic that was created again.
    """
    if before is None or before.topic_id != state.topic_id or state.topic_id == ZERO_UUID:
        return state
    later = {
        number: epoch
        for number, epoch in before.leader_epochs.items()
        if 0 <= state.leader_epochs.get(number, -1) < epoch
    }
    if not later:
        return state
    leaders = {number: leader for number, leader in state.leaders.items() if number not in later}
    leaders |= {number: before.leaders[number] for number in later.keys() & before.leaders.keys()}
    return replace(state, leaders=leaders, leader_epochs={**state.leader_epochs, **later})


def _combined(what: str, failures: Sequence[ConnectionLostError]) -> ConnectionLostError:
    """Return the error of a call that failed on every broker: a rejected client if there was one, else the last."""
    cause = next((error for error in failures if isinstance(error, _REJECTIONS)), failures[-1])
    error = (type(cause) if isinstance(cause, _REJECTIONS) else ConnectionLostError)(f"{what}: {cause}")
    error.__cause__ = cause
    return error
