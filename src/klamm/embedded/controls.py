"""Control of a running broker by a test: faults, pauses, its clock, and what clients have written and requested."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from numbers import Number
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from klamm.configs.values import config_text
from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType
    from typing import TypeAlias

    from klamm.embedded.channel import ControlChannel

    IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
    Topics: TypeAlias = Mapping[str, int | Mapping[str, Any]] | Iterable[str]
    """Topics to create: names, or by name the number of partitions or the arguments of ``create_topic``."""
    Headers: TypeAlias = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]

__tracebackhide__ = True
"""Let pytest show the line of the test that failed, not the lines below it. ``--full-trace`` shows them."""
_ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
_MAX_ADVANCE: Final = timedelta(days=36_500)
_TIMESTAMP_BITS: Final = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A record of a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Timestamp in milliseconds since the epoch; -1 means none."""
    key: bytes | None
    """Key; None if the record has none."""
    value: bytes | None
    """Value; None is a tombstone."""
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRequest:
    """A request that the broker has received."""

    api: str
    """Kafka's name of the API, for example ``ListOffsets``."""
    version: int
    client_id: str | None
    """Client id; None if the client sends none."""
    node_id: int
    """Broker id that received the request."""
    received_ms: int
    """Time by the broker's clock, in milliseconds since the epoch."""
    partitions: tuple[tuple[str, int | None], ...]
    """Topics and partitions that the request names. The partition is None if it names only the topic. For a Fetch
    request in a fetch session, all partitions of the session.
    """
    group_id: str | None
    """Group id; None if the request names none, or several."""
    transactional_id: str | None
    """Transactional id; None if the request names none."""
    fault: str | None
    """Injected fault that the request met, for example the name of the error; None if it met none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAssignment:
    """A member of a consumer group, with the partitions that it has been assigned."""

    client_id: str
    member_id: str
    partitions: tuple[tuple[str, int], ...]
    """Topics and partitions, ascending."""


class BrokerFault:
    """A fault that was injected into a broker. It ends with the broker's process.

    As a context manager, it is removed on exit.
    """

    def __init__(self, channel: ControlChannel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._last_count = 0

    @property
    def count(self) -> int:
        """Number of requests that the fault has affected so far. Removing the fault does not change it.

        After the broker's process has ended: the number that the last call of this property or of ``remove`` has read.

        Raises:
            RuntimeError: The broker is paused.
        """
        return self._ask("fault_count")

    def remove(self) -> None:
        """Remove the fault. Requests that it already affects are not released. Further calls do nothing.

        Raises:
            RuntimeError: The broker is paused.
        """
        self._ask("remove_fault")

    def _ask(self, command: str) -> int:
        """Send a command about the fault if it still exists, and return its last known count."""
        count = None
        if not self._channel.is_closed:
            try:
                count, _ = self._channel.call(command, number=self._number)
            except RuntimeError:
                if not self._channel.is_closed:  # the broker is paused, for example
                    raise
        self._last_count = self._last_count if count is None else count
        return self._last_count

    def __enter__(self) -> Self:
        """Return the fault."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the fault."""
        self.remove()


class BrokerControls:
    """Methods of ``klamm.Broker`` that need ``control=True``. They may be called from any thread.

    Raises:
        RuntimeError: The broker is not running or paused, or was created without ``control=True``.
    """

    _moved_s: float = 0.0

    def _control_channel(self) -> ControlChannel:
        raise NotImplementedError

    def _call(self, command: str, **arguments: object) -> Any:
        return self._control_channel().call(command, **arguments)[0]

    # --- faults -------------------------------------------------------------------------------------------------------

    def inject(
        self,
        api: str | None = None,
        *,
        error: str | int | None = None,
        delay: float | timedelta | None = None,
        drop_connection: bool = False,
        no_answer: bool = False,
        times: int | None = 1,
        topic: str | None = None,
        partition: int | None = None,
        client_id: str | None = None,
        acks: str | int | None = None,
        after_serving: bool = False,
        throttle: float | timedelta | None = None,
        node_id: int | None = None,
        group_id: str | None = None,
        probability: float = 1.0,
        when: Callable[[Mapping[str, Any]], object] | None = None,
    ) -> BrokerFault:
        """Let the next requests of an API fail, wait, be throttled, lose their connection, or get no answer.

        A request meets at most one fault with ``error``, ``drop_connection`` or ``no_answer``, the one injected first.
        So two faults injected in a row affect two requests, one after the other. Faults for different topics or
        partitions affect the same request. One fault with only a ``delay`` and one with only a ``throttle`` apply in
        addition.

        Args:
            api: Kafka's name of the API, for example ``Produce``. None means every API.
            error: Kafka's name of an error, or its code. It is reported at the level where Kafka reports it: for the
                whole response, or for each topic, partition, group or resource. The other parts of the request are
                served.
            delay: Time to wait, in seconds or as a timedelta. May be combined with the other effects; a connection is
                closed after the delay.
            drop_connection: Whether to close the connection.
            no_answer: Whether the connection stays open but never answers this request, nor any later one.
            times: Number of requests that the fault affects. None means no limit; then remove it with the returned
                object or with ``clear_faults``.
            topic: Only requests, or parts of requests, that name this topic or ask for all topics.
            partition: Only parts of requests that name this partition or ask for all partitions.
            client_id: Only requests with this client id.
            acks: Only Produce requests that are served by these acks: 0, 1 or "all". With enforced client configs
                these may be higher than the requested ones.
            after_serving: Whether the request is served first, so that only its acknowledgement is lost or late.
            throttle: Throttle time that the response reports, in seconds or as a timedelta. Clients wait for it before
                their next request.
            node_id: Only requests to this broker id.
            group_id: Only requests that name this group.
            probability: Share of the matching requests that the fault affects, above 0 and at most 1. ``times`` counts
                the affected ones.
            when: Function that decides whether the fault affects a request. It runs in the broker's process, so it
                must be a function of a module that can be imported there, such as the test module. Its argument has
                the fields of ``SeenRequest`` by name.

        Raises:
            TypeError: ``delay`` or ``throttle`` is neither a number nor a timedelta.
            ValueError: The API, the error or the broker id is unknown, an argument has a type or value that is not
                allowed, or the arguments contradict each other.
        """
        channel = self._control_channel()
        number, _ = channel.call(
            "inject",
            api=api,
            error=error,
            delay_s=_seconds("delay", delay or 0.0),
            drop_connection=drop_connection,
            no_answer=no_answer,
            times=times,
            topic=topic,
            partition=partition,
            client_id=client_id,
            acks=acks,
            after_serving=after_serving,
            throttle_s=_seconds("throttle", throttle or 0.0),
            node_id=node_id,
            group_id=group_id,
            probability=probability,
            when=None if when is None else _import_path(when),
        )
        return BrokerFault(channel, number)

    def clear_faults(self) -> None:
        """Remove all faults. Requests that a fault already affects are not released."""
        self._call("clear_faults")

    def pause(self) -> None:
        """Let the whole broker stand still: it accepts no data, answers nothing, and its timers do not run.

        Connections stay open. As after a pause of the process or of the machine, group members whose heartbeats waited
        meanwhile keep their sessions. Stopping a paused broker resumes it first.
        """
        self._call("pause")

    def resume(self) -> None:
        """Let a paused broker continue. Does nothing if it is not paused."""
        self._call("resume")

    def advance_clock(self, by: float | timedelta) -> None:
        """Move the broker's clock forward, and return when everything that is due by then has been done.

        Group sessions and transactions time out, and retention and expired group offsets are applied at once, without
        waiting for Kafka's check intervals. Records keep their timestamps. The clock stays ahead until the process of
        the program ends, also after ``restart``.

        Args:
            by: Time in seconds, or a timedelta; from 0 to 36,500 days.

        Raises:
            TypeError: ``by`` is neither a number nor a timedelta.
            ValueError: ``by`` is negative or too large.
        """
        seconds = _seconds("by", by)
        if not 0 <= seconds <= _MAX_ADVANCE.total_seconds():
            raise ValueError(f"by={by}: must be from 0 to {_MAX_ADVANCE.days} days; the clock cannot be moved back")
        self._call("advance_clock", seconds=seconds)
        self._moved_s += seconds

    # --- contents -----------------------------------------------------------------------------------------------------

    def records(
        self, topic: str, *, partition: int | None = None, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> list[StoredRecord]:
        """Return the records of a topic by partition and offset, without a client and whatever faults are injected.

        Args:
            topic: Name of the topic.
            partition: Partition; None means all.
            isolation_level: ``read_committed`` leaves out records of aborted and open transactions.

        Raises:
            LookupError: The topic or the partition does not exist.
            ValueError: ``isolation_level`` has another value.
        """
        if isolation_level not in _ISOLATION_LEVELS:
            raise ValueError(f"isolation_level={isolation_level!r}: expected {' or '.join(_ISOLATION_LEVELS)}")
        channel = self._control_channel()
        count, _ = channel.call("partition_count", topic=topic)
        wanted = range(count) if partition is None else (partition,)
        is_committed = isolation_level == "read_committed"
        return [record for each in wanted for record in _records_of(channel, topic, each, is_committed=is_committed)]

    def committed_offsets(self, group_id: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a group by topic and partition. Empty if the group has none."""
        committed = self._call("committed_offsets", group_id=group_id)
        return {(topic, partition): offset for topic, partition, offset in committed}

    def requests(
        self,
        api: str | None = None,
        *,
        topic: str | None = None,
        partition: int | None = None,
        client_id: str | None = None,
    ) -> list[SeenRequest]:
        """Return the last 10,000 requests in the order of their arrival, or those of them that pass the filters.

        Args:
            api: Kafka's name of the API; None means every API.
            topic: Only requests that name this topic.
            partition: Only requests that name this partition, of ``topic`` if that is given.
            client_id: Only requests with this client id.

        Raises:
            ValueError: The API is unknown.
        """
        seen = [
            SeenRequest(**{**entry, "partitions": tuple((name, index) for name, index in entry["partitions"])})
            for entry in self._call("requests", api=api)
        ]
        return [
            request
            for request in seen
            if client_id in {None, request.client_id}
            and (
                (topic is None and partition is None)
                or any(topic in {None, name} and partition in {None, index} for name, index in request.partitions)
            )
        ]

    def clear_requests(self) -> None:
        """Forget the requests that were received so far."""
        self._call("clear_requests")

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists."""
        return bool(self._call("has_topic", topic=topic))

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic.

        Raises:
            LookupError: The topic does not exist.
        """
        return int(self._call("partition_count", topic=topic))

    def faults(self) -> list[str]:
        """Return a description of each injected fault with the number of requests that it has affected."""
        return list(self._call("faults"))

    def assignments(self, group_id: str) -> list[MemberAssignment]:
        """Return the members of a consumer group with their partitions, by client id. Empty for an unknown group."""
        _, members = self._state_and_members(group_id)
        return members

    def _state_and_members(self, group_id: str) -> tuple[str, list[MemberAssignment]]:
        """Return Kafka's name of the state of a group, and its members as of the same moment."""
        state, members = self._call("members", group_id=group_id)
        return state, [
            MemberAssignment(
                client_id=client_id,
                member_id=member_id,
                partitions=tuple((topic, partition) for topic, partition in partitions),
            )
            for client_id, member_id, partitions in sorted(members)
        ]

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: datetime | int | None = None,
    ) -> StoredRecord:
        """Write a record without a client, ACL or fault, and return it as it is stored.

        A topic that does not exist is created with one partition.

        Args:
            topic: Name of the topic.
            value: Value, as bytes or as text in UTF-8; None is a tombstone.
            key: Key, as bytes or as text.
            headers: Headers by name, or pairs of name and value.
            partition: Partition. None means that of the key, as Kafka's clients choose it, or without a key the one
                with the fewest records.
            timestamp: Time of the record, as a datetime with time zone or in milliseconds since the epoch. None means
                now, by the broker's clock.

        Raises:
            LookupError: The partition does not exist.
            TypeError: An argument has a wrong type: a value, key or header that is neither bytes nor text, for example,
                or a timestamp without a time zone.
            ValueError: The timestamp is no 64-bit number, a new topic cannot have this name, or the broker rejects the
                record: it is too large, or the topic is compacted and ``key`` is None.
        """
        from klamm.protocol.partitioner import partition_for_key  # noqa: PLC0415 - only tests that write
        from klamm.protocol.records import Record, encode_batch  # noqa: PLC0415

        if not isinstance(topic, str):
            raise TypeError(f"topic={topic!r}: expected the name of a topic, got {type(topic).__name__}")
        if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int)):
            raise TypeError(f"partition={partition!r}: expected a number or None, got {type(partition).__name__}")
        record = Record(
            key=_bytes("key", key),
            value=_bytes("value", value),
            headers=tuple((name, _bytes(f"headers: {name}", each)) for name, each in _pairs(headers)),
            timestamp=self._call("now_ms") if timestamp is None else _timestamp_ms(timestamp),
        )
        if not self.has_topic(topic):
            try:
                self.create_topic(topic)
            except ValueError:
                if not self.has_topic(topic):  # otherwise another thread or a client has just created it
                    raise
        if partition is None and record.key is not None:
            partition = partition_for_key(record.key, self.partition_count(topic))
        stored_in, offset, append_time_ms = self._call(
            "produce",
            topic=topic,
            partition=partition,
            batch=base64.b64encode(encode_batch([record])).decode(),
        )
        return StoredRecord(
            topic=topic,
            partition=stored_in,
            offset=offset,
            timestamp_ms=record.timestamp if append_time_ms < 0 else append_time_ms,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )

    # --- brokers ------------------------------------------------------------------------------------------------------

    def stop_node(self, node_id: int) -> None:
        """Let one of several broker ids go down: each request to it closes its connection.

        Other brokers lead its partitions if they have a replica, and coordinate its groups. Partitions without another
        replica have no leader. Clients find out as in Kafka: by a closed connection and by Metadata.

        Raises:
            ValueError: There is no such broker id, or it is the last one that is up.
        """
        self._call("stop_node", node_id=node_id)

    def start_node(self, node_id: int) -> None:
        """Let a broker id serve again after ``stop_node``. It leads the partitions of which it is the first replica.

        Raises:
            ValueError: There is no such broker id.
        """
        self._call("start_node", node_id=node_id)

    def start_nodes(self) -> None:
        """Let all broker ids serve again."""
        self._call("start_nodes")

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make a broker id the leader of a partition. It replaces the present leader if it has no replica yet.

        Raises:
            LookupError: The topic or the partition does not exist.
            ValueError: There is no such broker id.
        """
        self._call("move_leader", topic=topic, partition=partition, node_id=node_id)

    def move_coordinator(self, key: str, node_id: int) -> None:
        """Make a broker id the coordinator of a group id or transactional id, until the broker's process ends.

        Raises:
            ValueError: There is no such broker id.
        """
        self._call("move_coordinator", key=key, node_id=node_id)

    # --- topics -------------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, object] | None = None,
    ) -> None:
        """Create a topic, without a client, policy or ACL.

        Args:
            topic: Name of the topic.
            partitions: Number of partitions.
            replication_factor: Number of broker ids that have a replica of each partition.
            configs: Topic configs with Kafka's names. True and False become true and false, lists are joined by commas.

        Raises:
            TypeError: ``configs`` are not a mapping, or a value cannot be a config, such as None.
            ValueError: The topic exists, or its name, its number of partitions or replicas or a config is not allowed.
                As in Kafka, a name may not differ from that of another topic only in dots and underscores.
        """
        create_topic(
            self._control_channel(),
            topic,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs or {},
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its records and the group offsets committed for it.

        Raises:
            LookupError: The topic does not exist.
        """
        self._call("delete_topic", topic=topic)


_TOPIC_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType({"partitions": 1, "replication_factor": 1, "configs": {}})


def create_topic(
    channel: ControlChannel, topic: str, *, partitions: int, replication_factor: int, configs: Mapping[str, object]
) -> None:
    """Create a topic over a control channel. ``BrokerControls.create_topic`` describes arguments and errors."""
    if not isinstance(configs, Mapping):
        raise TypeError(f"configs={configs!r}: expected values by name, got {type(configs).__name__}")
    channel.call(
        "create_topic",
        topic=topic,
        partitions=partitions,
        replication_factor=replication_factor,
        configs={name: config_text(name, value) for name, value in configs.items()},
    )


def new_topics(topics: Topics) -> dict[str, Mapping[str, Any]]:
    """Return the arguments of ``create_topic`` by name of the topic.

    Raises:
        TypeError: It is neither a mapping nor names.
        ValueError: An argument of a topic does not exist.
    """
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise TypeError(f"topics={topics!r}: expected a list of names or a mapping, got {type(topics).__name__}")
    by_name = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
    return {name: _new_topic(name, of) for name, of in by_name.items()}


def _new_topic(name: object, of: object) -> Mapping[str, Any]:
    if not isinstance(name, str):
        raise TypeError(f"topics: expected names, got {name!r}")
    arguments = of if isinstance(of, Mapping) else {"partitions": of}
    if unknown := arguments.keys() - _TOPIC_DEFAULTS.keys():
        raise ValueError(
            f"topics: {name} has the unknown argument {', '.join(sorted(map(repr, unknown)))},"
            f" expected some of {', '.join(_TOPIC_DEFAULTS)}"
        )
    return {**_TOPIC_DEFAULTS, **arguments}


def _import_path(function: object) -> str:
    """Return ``module:name`` of a function that another process can import.

    Raises:
        ValueError: It is a lambda, a method or a function inside another one.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not callable(function) or not module or module == "__main__" or not name.isidentifier():
        raise ValueError(f"when={function!r}: must be a function at the top level of an importable module")
    return f"{module}:{name}"


def _pairs(headers: Headers) -> Iterable[tuple[str, bytes | str | None]]:
    pairs: object = headers.items() if isinstance(headers, Mapping) else headers
    if isinstance(pairs, Iterable):
        items = tuple(pairs)
        if all(isinstance(item, (tuple, list)) and len(item) == 2 and isinstance(item[0], str) for item in items):  # noqa: PLR2004  # a pair
            return items
    raise TypeError(f"headers={headers!r}: expected values by name, or pairs of name and value; a name is a str")


def _bytes(name: str, value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"{name}={value!r}: expected bytes, str or None, got {type(value).__name__}")


def _timestamp_ms(time: datetime | int) -> int:
    if isinstance(time, int) and not isinstance(time, bool):
        if not -1 << _TIMESTAMP_BITS <= time < 1 << _TIMESTAMP_BITS:
            raise ValueError(f"timestamp={time}: must be milliseconds in 64 bits")
        return time
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise TypeError(f"timestamp={time!r}: expected milliseconds, or a datetime with a time zone")
    return round(time.timestamp() * 1000)


def _seconds(name: str, time: float | timedelta) -> float:
    if isinstance(time, timedelta):
        return time.total_seconds()
    if isinstance(time, bool | complex) or not isinstance(time, Number):
        raise TypeError(f"{name}={time!r}: expected seconds as a number, or a timedelta, got {type(time).__name__}")
    return float(time)


def _records_of(channel: ControlChannel, topic: str, partition: int, *, is_committed: bool) -> Iterator[StoredRecord]:
    from klamm.protocol.records import decode_records, iter_batches  # noqa: PLC0415 - only tests that read need it

    offset: int | None = 0
    while offset is not None:
        (start, offset), data = channel.call(
            "records", topic=topic, partition=partition, offset=offset, is_committed=is_committed
        )
        for batch in iter_batches(data):
            for record in decode_records(batch):
                if record.offset < start:  # deleted, or read before: a batch is returned as a whole
                    continue
                yield StoredRecord(
                    topic=topic,
                    partition=partition,
                    offset=record.offset,
                    timestamp_ms=record.timestamp,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                )
