"""Control of a running broker by a test: faults, pauses, its clock, and what clients have written and requested."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import TypeAlias

    from klamm.embedded.channel import ControlChannel

    IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]

_ISOLATION_LEVELS = ("read_uncommitted", "read_committed")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A record of a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Timestamp in milliseconds since the epoch; -1 means none."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRequest:
    """A request that the broker has received."""

    api: str
    """Kafka's name of the API, for example ``ListOffsets``."""
    version: int
    client_id: str | None
    node_id: int
    """Broker id that received the request."""
    received_ms: int
    """Time by the broker's clock, in milliseconds since the epoch."""
    partitions: tuple[tuple[str, int | None], ...]
    """Topics and partitions that the request names. The partition is None if it names only the topic. For a Fetch
    request in a fetch session, all partitions of the session.
    """
    group_id: str | None
    transactional_id: str | None
    fault: str | None
    """Injected fault that the request met, for example the name of the error; None if it met none."""


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
        """Number of requests that the fault has affected so far, or before the broker's process ended.

        The latter is the number at the last call of this property or of ``remove``.
        """
        return self._ask("fault_count")

    def remove(self) -> None:
        """Remove the fault. Requests that it already affects are not released. Further calls do nothing."""
        self._ask("remove_fault")

    def _ask(self, command: str) -> int:
        """Send a command about the fault if it still exists, and return its last known count."""
        if not self._channel.is_closed:
            count, _ = self._channel.call(command, number=self._number)
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
    ) -> BrokerFault:
        """Let the next requests of an API fail, wait, lose their connection, or get no answer.

        A request meets at most one fault with ``error``, ``drop_connection`` or ``no_answer``, the one injected first.
        So two faults injected in a row affect two requests, one after the other. Faults for different topics or
        partitions affect the same request. A fault with only a ``delay`` applies in addition.

        Args:
            api: Kafka's name of the API, for example ``Produce``. None means every API.
            error: Kafka's name of an error, or its code. It is reported at the level where Kafka reports it: for the
                whole response, or for each topic, partition, group or resource. The other parts of the request are
                served.
            delay: Time to wait, in seconds or as a timedelta. May be combined with the other effects.
            drop_connection: Whether to close the connection.
            no_answer: Whether the connection stays open but never answers this request, nor any later one.
            times: Number of requests that the fault affects. None means no limit; then remove it with the returned
                object or with ``clear_faults``.
            topic: Only requests, or parts of requests, that name this topic.
            partition: Only parts of requests that name this partition.
            client_id: Only requests with this client id.
            acks: Only Produce requests that are served by these acks: 0, 1 or "all". With enforced client configs
                these may be higher than the requested ones.
            after_serving: Whether the request is served first, so that only its acknowledgement is lost or late.

        Raises:
            ValueError: The API or the error is unknown, or the arguments contradict each other.
        """
        channel = self._control_channel()
        number, _ = channel.call(
            "inject",
            api=api,
            error=error,
            delay_s=_seconds(delay or 0.0),
            drop_connection=drop_connection,
            no_answer=no_answer,
            times=times,
            topic=topic,
            partition=partition,
            client_id=client_id,
            acks=acks,
            after_serving=after_serving,
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
            by: Time in seconds, or a timedelta.

        Raises:
            ValueError: ``by`` is negative.
        """
        seconds = _seconds(by)
        if seconds < 0:
            raise ValueError(f"by={by}: the clock cannot be moved back")
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
        found = self._call("committed_offsets", group_id=group_id)
        return {(topic, partition): offset for topic, partition, offset in found}

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

    def create_topic(self, topic: str, *, partitions: int = 1, configs: Mapping[str, object] | None = None) -> None:
        """Create a topic, without a client, policy or ACL.

        Args:
            topic: Name of the topic.
            partitions: Number of partitions.
            configs: Topic configs with Kafka's names. True and False become true and false.

        Raises:
            ValueError: The topic exists, or its name, its number of partitions or a config is not allowed.
        """
        texts = {name: config_text(value) for name, value in (configs or {}).items()}
        self._call("create_topic", topic=topic, partitions=partitions, configs=texts)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its records and the group offsets committed for it.

        Raises:
            LookupError: The topic does not exist.
        """
        self._call("delete_topic", topic=topic)


def config_text(value: object) -> str:
    """Return the text of a config's value, as in a properties file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _seconds(time: float | timedelta) -> float:
    return time.total_seconds() if isinstance(time, timedelta) else float(time)


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
