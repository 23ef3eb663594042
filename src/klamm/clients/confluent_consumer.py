"""confluent-kafka's consumer with timeouts that can be changed: each change replaces librdkafka's consumer."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import confluent_kafka

from klamm.client_configs.definitions import HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from klamm.clients.confluent_producer import SOFTWARE_PROPERTIES, Inbox, connect
from klamm.clients.confluent_settings import (
    backoff_s,
    client_id,
    connection_settings,
    interval_s,
    is_true,
    split_properties,
    takes_dynamic_configs,
)
from klamm.clients.dynamic_config import ConfigUpdate, DynamicConfigs, Values, normalise_consumer
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import raise_for_code
from klamm.kafka_client.pool.keyed_calls import KeyedCall, find_coordinators, result_of
from klamm.kafka_client.pool.pool import ConnectionPool
from klamm.protocol.errors import ErrorCode, KafkaApiError, ProtocolError
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from klamm.clients.own_connection import OwnConnection
    from klamm.kafka_client.pool.calls import Deadline

logger = logging.getLogger(__name__)

Partition: TypeAlias = "tuple[str, int]"
_LOOK_UP_TIMEOUT_S: Final = 10.0
_JOIN_TIMEOUT_S: Final = 10.0
"""Maximum time in seconds that a commit waits until a new consumer has joined the group."""
_JOIN_CHECK_S: Final = 0.01
_RESETS_TO_THE_END: Final = frozenset({"largest", "latest", "end"})
_COMMITTED: Final = frozenset({confluent_kafka.OFFSET_INVALID, confluent_kafka.OFFSET_STORED})
"""Offsets of partitions that start at their committed offset."""
_TIMEOUT_MS: Final = 5_000
_FIRST_VERSION_WITH_INSTANCES: Final = 3
DEFAULT_SESSION_TIMEOUT_MS: Final = 45_000
DEFAULT_HEARTBEAT_INTERVAL_MS: Final = 3_000
DEFAULT_MAX_POLL_INTERVAL_MS: Final = 300_000
GROUP_INSTANCE_ID: Final = "group.instance.id"
Listener: TypeAlias = "Callable[[Any, list[Any]], None]"
"""Rebalance listener. Called with the consumer and partitions."""
_WAIT_STEP_S: Final = 0.5
"""Interval in seconds at which an unlimited poll checks for changes."""


class DeliveryProgress:
    """Positions and paused partitions of a consumer.

    librdkafka knows a position only for partitions from which a record was read. Other starting points (a seek, an
    offset in ``assign``, the end of a partition without a committed offset) are recorded here until the first record
    arrives. So is what the consumers before a replacement have read: the application may still have to commit it.

    Args:
        properties: librdkafka's properties, of which ``auto.offset.reset``, ``enable.auto.commit`` and
            ``enable.auto.offset.store`` are used.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.paused: set[Partition] = set()
        self._starts: dict[Partition, int] = {}
        self._read_before: dict[Partition, int] = {}
        """Positions behind records of former consumers. A record of the current consumer or a seek removes them."""
        self.is_stored_by_application = not is_true(properties, "enable.auto.offset.store", default="true")
        self.commits_automatically = is_true(properties, "enable.auto.commit", default="true")
        self.recorded: set[Partition] = set()
        """Partitions whose stored offsets librdkafka does not know yet."""
        self._uncommitted: dict[Partition, Any] = {}
        """Offsets for the next ``commit``, as ``TopicPartition``: those behind records of former consumers, or those
        that the application has stored. A commit that succeeds removes them."""
        self._begins_at_the_end = properties.get("auto.offset.reset", "largest") in _RESETS_TO_THE_END

    def begin(self, partitions: Iterable[Any]) -> None:
        """Record the offsets from which partitions are read, also their beginning.

        Those without an offset have none, nor those at their end: a later end would skip what came in between.
        """
        begun = {_name(one): one.offset for one in partitions}
        for partition, offset in begun.items():
            if offset >= 0 or offset == confluent_kafka.OFFSET_BEGINNING:
                self._starts[partition] = offset
            else:
                self._starts.pop(partition, None)
        for partition in begun.keys() & self._read_before.keys():
            if begun[partition] != self._read_before[partition]:
                self._remove_read_before(partition)

    def read(self, messages: Iterable[Any]) -> None:
        """Record that messages were returned. From here on librdkafka knows the position."""
        if self._starts or self._read_before:
            for message in messages:
                self._starts.pop((message.topic(), message.partition()), None)
                self._remove_read_before((message.topic(), message.partition()))

    def _remove_read_before(self, partition: Partition) -> None:
        self._read_before.pop(partition, None)
        if not self.is_stored_by_application:
            self._uncommitted.pop(partition, None)

    def store(self, partitions: Iterable[Any], *, is_recorded_only: bool) -> None:
        """Record offsets that the application has stored."""
        stored = {_name(one): _copy(one) for one in partitions}
        self._uncommitted.update(stored)
        if is_recorded_only:
            self.recorded |= stored.keys()

    def committed(self, partitions: Iterable[Any], *, is_certain: bool) -> None:
        """Record commits, so that no later ``commit`` goes back behind them.

        Args:
            partitions: Partitions with their offsets, and with the error of a failed commit.
            is_certain: Whether the commit has succeeded. An asynchronous one may still fail, so it is repeated.
        """
        for one in partitions:
            uncommitted = self._uncommitted.get(_name(one))
            if one.error is None and uncommitted is not None and uncommitted.offset <= one.offset:
                if is_certain:
                    del self._uncommitted[_name(one)]
                else:
                    self._uncommitted[_name(one)] = _copy(one)

    def forget(self, partitions: Iterable[Any]) -> None:
        """Remove revoked partitions."""
        for one in partitions:
            self.paused.discard(_name(one))
            for offsets in (self._starts, self._read_before, self._uncommitted):
                offsets.pop(_name(one), None)

    def positions(self, consumer: Any) -> dict[Partition, int]:
        """Return the next offset of each assigned partition, ``OFFSET_INVALID`` if unknown."""
        offsets = {_name(one): one.offset for one in consumer.position(consumer.assignment())}
        return offsets | {partition: offset for partition, offset in self._starts.items() if partition in offsets}

    def leave(self, consumer: Any) -> dict[Partition, int]:
        """Return the positions of a consumer that is to be replaced, and keep those behind records that it returned."""
        for one in consumer.position(consumer.assignment()):
            if one.offset >= 0 and _name(one) not in self._starts:
                self._read_before[_name(one)] = one.offset
                if not self.is_stored_by_application and not self.commits_automatically:
                    self._uncommitted[_name(one)] = confluent_kafka.TopicPartition(*_name(one), one.offset)
        return self.positions(consumer)

    def complete(self, positions: list[Any]) -> list[Any]:
        """Return librdkafka's positions, with those of former consumers where it has none."""
        for one in positions:
            if one.offset < 0:
                one.offset = self._read_before.get(_name(one), one.offset)
        return positions

    def uncommitted(self) -> list[Any]:
        """Return the offsets for the next ``commit`` that librdkafka's current consumer may not know."""
        return list(self._uncommitted.values())

    def fix_the_end(self, consumer: Any, partitions: Iterable[Any]) -> bool:
        """Give partitions that would start at their end the offset that the end has now.

        They have ``OFFSET_END``, or no offset while ``auto.offset.reset`` means the end and nothing is committed.
        Without this, a replacement before the first record would not know where they started. Return whether there were
        any; there are none if the cluster does not answer in time.
        """
        at_end, unknown = [], []
        for one in partitions:
            if one.offset == confluent_kafka.OFFSET_END:
                at_end.append(one)
            elif one.offset in _COMMITTED and self._begins_at_the_end:
                unknown.append(one)
        try:
            committed = consumer.committed(unknown, timeout=_LOOK_UP_TIMEOUT_S) if unknown else ()
            at_end += [one for one, commit in zip(unknown, committed, strict=True) if commit.offset < 0]
            for one in at_end:
                _, one.offset = consumer.get_watermark_offsets(one, timeout=_LOOK_UP_TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            logger.info("End offsets of new partitions are unknown; reading starts at their end then: %s", error)
            return False
        return bool(at_end)


def _name(partition: Any) -> Partition:
    return partition.topic, partition.partition


def _copy(offset: Any) -> Any:
    """Return a copy of a partition's offset, because the application may change its own object."""
    return _offset(*_name(offset), offset.offset, metadata=offset.metadata, leader_epoch=offset.leader_epoch)


def _behind(message: Any) -> Any:
    """Return the offset behind a message, with the message's leader epoch."""
    return _offset(message.topic(), message.partition(), message.offset() + 1, leader_epoch=message.leader_epoch())


def _offset(topic: str, partition: int, offset: int, **more: Any) -> Any:
    """Return a ``TopicPartition``, whose constructor does not accept None."""
    present = {name: value for name, value in more.items() if value is not None}
    return confluent_kafka.TopicPartition(topic, partition, offset, **present)


def leave_group(settings: dict[str, Any], group_id: str, group_instance_id: str) -> None:
    """Leave a group as a static member, unless it has left already.

    If that fails, the session timeout removes the member, as after a crash.

    Args:
        settings: kafka-python's settings for servers, security and ``client_id``.
        group_id: Id of the group.
        group_instance_id: Id of the static member.
    """
    settings = dict(settings)
    servers = settings.pop("bootstrap_servers")
    pool = ConnectionPool(ConnectionSettings.of_keywords(servers, settings), timeout_ms=_TIMEOUT_MS)
    try:
        pool.submit(lambda deadline: _leave(pool, deadline, group_id, group_instance_id)).result()
    except (KafkaApiError, ProtocolError, OSError) as error:
        if not isinstance(error, KafkaApiError) or error.error_code != ErrorCode.UNKNOWN_MEMBER_ID:
            logger.info("Member %s did not leave group %s: %s", group_instance_id, group_id, error)
    finally:
        pool.close()


async def _leave(pool: ConnectionPool, deadline: Deadline, group_id: str, group_instance_id: str) -> None:
    request = LeaveGroupRequest(
        group_id=group_id,
        members=[LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=group_instance_id)],
    )

    async def ask(node_id: int | None, keys: list[str], attempt: Deadline) -> Mapping[str, KafkaApiError | None]:
        response = await pool.send(
            request,
            LeaveGroupResponse,
            deadline=attempt,
            node_id=node_id,
            looked_up=True,
            min_version=_FIRST_VERSION_WITH_INSTANCES,
        )
        raise_for_code(response.error_code)
        rejected = next((member.error_code for member in response.members if member.error_code), ErrorCode.NONE)
        return {group_id: result_of(rejected, None, None)}

    def settle(_: str, outcome: Exception | None) -> None:
        if outcome is not None:
            raise outcome

    find = functools.partial(find_coordinators, pool, deadline)
    await KeyedCall(what="LeaveGroup", ask=ask, settle=settle, find=find).run(pool, deadline, [group_id])


class Consumer:
    """A ``confluent_kafka.Consumer`` that follows ``session.timeout.ms`` and ``heartbeat.interval.ms`` (KIP-649).

    Constructor and methods are the same. The constructor makes the first request, before the first JoinGroup, and waits
    for it at most five seconds. A change takes effect in the next ``poll`` or ``consume``: the old consumer is closed
    and a new one joins as the same static member, so the group does not rebalance. It continues behind the last
    returned record, or at the offset of a later ``seek``. Paused partitions stay paused. ``on_assign`` and
    ``on_revoke`` are not called. ``position`` and ``commit`` still count the records that the old consumer returned. If
    the application sets no ``group.instance.id``, one is generated, and ``close`` removes it from the group. If commits
    are automatic and the application has stored offsets before the new consumer has its assignment, ``close``,
    ``subscribe`` and ``unsubscribe`` commit them. They wait at most ten seconds until the new consumer has joined.

    Args:
        config: librdkafka's properties. ``metadata.max.age.ms`` is also the interval of requests (default 5 minutes).
        enable_dynamic_config: Whether to request dynamic configs, like the property ``enable.dynamic.config``.
        on_dynamic_config_change: Called after each change in a separate thread. It must not block.
        more: Further arguments of ``confluent_kafka.Consumer`` (``logger``, properties as keywords).

    Raises:
        ValueError: ``enable.dynamic.config`` is not a boolean.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        enable_dynamic_config: bool = True,
        on_dynamic_config_change: Callable[[ConfigUpdate], None] | None = None,
        **more: Any,
    ) -> None:
        self._properties, self._more = split_properties(config, more)
        is_wanted = takes_dynamic_configs(self._properties, enable_dynamic_config)
        self._inbox = Inbox(on_dynamic_config_change)
        self._topics: list[str] | None = None
        self._listener: dict[str, Listener] = {}
        self._progress = DeliveryProgress(self._properties)
        self._resumed_from: dict[Partition, int] | None = None
        """Positions at the replacement. None once the new consumer has its assignment."""
        self._is_closing_former = False
        """Whether the callbacks come from a consumer whose positions are in ``_resumed_from`` already."""
        self._is_assigned_by_application = False
        self._made_up_instance_id: str | None = None
        self._may_be_member = False
        """Whether it has subscribed, even if it has unsubscribed since. librdkafka leaves the group after the last
        commit of offsets, and a static member does not leave if the consumer is closed before.
        """
        self._connection: OwnConnection | None = None
        if is_wanted and self._properties.get("group.protocol", "classic") == "classic":
            self._properties |= SOFTWARE_PROPERTIES
            configs = _dynamic_configs(self._properties)
            self._connection = connect(self, self._properties, configs)
        if self._connection is not None and self._connection.is_on and GROUP_INSTANCE_ID not in self._properties:
            self._made_up_instance_id = f"{client_id(self._properties)}-{uuid.uuid4()}"
            self._properties[GROUP_INSTANCE_ID] = self._made_up_instance_id
        if (values := self._inbox.take()) is not None:
            self._properties |= values
        self._consumer = self._build(self._properties)

    # -- calls that are recorded on their way to librdkafka

    def subscribe(
        self,
        topics: list[str],
        on_assign: Listener | None = None,
        on_revoke: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Subscribe, as confluent-kafka does.

        Raises:
            KafkaException: librdkafka rejects.
            TypeError: The topics are not a list, or a listener is not callable.
        """
        if not isinstance(topics, list):
            raise TypeError("expected list of topic unicode strings")
        listener = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        self._listener = {name: call for name, call in listener.items() if call is not None}
        for name, call in self._listener.items():
            if not callable(call):
                raise TypeError(f"{name} expects a callable")
        self._end_replacement()
        self._topics = list(topics)
        self._subscribe()

    def unsubscribe(self) -> None:
        """Leave the group."""
        self._end_replacement()
        self._topics = None
        self._consumer.unsubscribe()

    def _end_replacement(self) -> None:
        """Drop the progress of a former consumer whose successor has no assignment. Otherwise on_revoke drops it."""
        self._commit_recorded()
        if self._resumed_from is not None:
            self._progress, self._resumed_from = DeliveryProgress(self._properties), None

    def pause(self, partitions: list[Any]) -> None:
        """Stop fetching these partitions until they are resumed."""
        self._consumer.pause(partitions)
        self._progress.paused.update((one.topic, one.partition) for one in partitions)

    def resume(self, partitions: list[Any]) -> None:
        """Fetch these partitions again."""
        self._consumer.resume(partitions)
        self._progress.paused.difference_update((one.topic, one.partition) for one in partitions)

    def seek(self, partition: Any) -> None:
        """Continue at the offset of ``partition``. ``OFFSET_END`` means the end at the time of this call."""
        (partition,) = self._with_end_offsets([partition])
        if self._resumed_from is not None and _name(partition) in self._resumed_from:
            self._resumed_from[_name(partition)] = partition.offset  # librdkafka would reject it until the assignment
        else:
            self._consumer.seek(partition)
        self._progress.begin([partition])

    def assignment(self) -> list[Any]:
        """Return the assigned partitions, during a replacement those of the former consumer."""
        if self._resumed_from is None:
            return list(self._consumer.assignment())
        return [confluent_kafka.TopicPartition(*one) for one in self._resumed_from]

    def assign(self, partitions: list[Any]) -> None:
        """Assign these partitions, starting at their offsets if they have any.

        Those that start at their end start at the end at the time of this call.
        """
        partitions = self._with_end_offsets(partitions)
        self._consumer.assign(partitions)
        self._is_assigned_by_application = True
        self._progress.begin(partitions)

    def incremental_assign(self, partitions: list[Any]) -> None:
        """Assign these partitions in addition (cooperative assignors). They start as in ``assign``."""
        partitions = self._with_end_offsets(partitions)
        self._consumer.incremental_assign(partitions)
        self._is_assigned_by_application = True
        self._progress.begin(partitions)

    def incremental_unassign(self, partitions: list[Any]) -> None:
        """Remove these partitions from the assignment (cooperative assignors)."""
        if self._resumed_from is None:  # otherwise the new consumer has none of them, and rejects
            self._consumer.incremental_unassign(partitions)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials for later connections, also after a replacement.

        Requests for dynamic configs still log in with the first credentials. If the broker no longer accepts these, the
        client keeps its latest values as soon as that connection ends.
        """
        self._consumer.set_sasl_credentials(username, password)
        self._properties |= {"sasl.username": username, "sasl.password": password}

    def store_offsets(self, message: Any = None, offsets: list[Any] | None = None) -> None:
        """Store an offset for a later commit (``enable.auto.offset.store=false``)."""
        stored = [_behind(message)] if message is not None else list(offsets or ())
        is_recorded_only = self._progress.is_stored_by_application and self._was_assigned(stored)
        if not is_recorded_only:
            self._consumer.store_offsets(message=message, offsets=offsets)
        self._progress.store(stored, is_recorded_only=is_recorded_only)

    def _was_assigned(self, partitions: list[Any]) -> bool:
        """Return whether all partitions are of a former consumer whose successor has no assignment yet.

        librdkafka would reject their offsets until then. ``_on_assign`` stores them.
        """
        return (
            bool(partitions)
            and self._resumed_from is not None
            and {_name(one) for one in partitions} <= self._resumed_from.keys()
        )

    def position(self, partitions: list[Any]) -> list[Any]:
        """Return the positions behind the last returned records."""
        return self._progress.complete(self._consumer.position(partitions))

    def commit(self, message: Any = None, offsets: list[Any] | None = None, asynchronous: bool = True) -> Any:
        """Commit the offset behind a message, offsets, or all stored offsets, as confluent-kafka does.

        Raises:
            KafkaException: librdkafka or the broker rejects the commit. REBALANCE_IN_PROGRESS: a consumer with new
                timeouts has not joined the group within ten seconds. Call ``poll``, then retry.
            ValueError: Both a message and offsets are passed.
        """
        if message is not None or offsets is not None:
            return self._commit(message=message, offsets=offsets, asynchronous=asynchronous)
        if self._progress.is_stored_by_application and self._resumed_from is None:
            uncommitted = []  # librdkafka has stored them
        else:
            uncommitted = self._progress.uncommitted()
        if not uncommitted:
            return self._commit(asynchronous=asynchronous)
        committed = self._commit(offsets=uncommitted, asynchronous=asynchronous)
        if any(one.offset >= 0 for one in self._consumer.position(self._consumer.assignment())):
            try:
                more = self._commit(asynchronous=asynchronous)
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() != confluent_kafka.KafkaError._NO_OFFSET:
                    raise
            else:
                return None if committed is None else committed + more
        return committed

    def _commit(self, *, asynchronous: bool, **offsets: Any) -> Any:
        if self._resumed_from is not None:
            self._wait_until_joined()
        committed = self._consumer.commit(**offsets, asynchronous=asynchronous)
        if committed is not None:
            self._progress.committed(committed, is_certain=True)
        elif offsets.get("message") is not None:
            self._progress.committed([_behind(offsets["message"])], is_certain=False)
        else:
            self._progress.committed(offsets.get("offsets") or (), is_certain=False)
        return committed

    def _commit_recorded(self) -> None:
        """Commit the offsets that the application has stored while the current consumer has no assignment.

        librdkafka rejects them until then, so they are only recorded and its automatic commits do not include them.
        """
        progress = self._progress
        if self._resumed_from is None or not (progress.is_stored_by_application and progress.commits_automatically):
            return
        if not (recorded := [one for one in progress.uncommitted() if _name(one) in progress.recorded]):
            return
        try:
            self._commit(offsets=recorded, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            offsets = ", ".join(f"{one.topic}-{one.partition}: {one.offset}" for one in recorded)
            logger.warning("Stored offsets are not committed, records may be read again (%s): %s", offsets, error)

    def consumer_group_metadata(self) -> Any:
        """Return the group metadata for ``send_offsets_to_transaction``.

        Raises:
            KafkaException: REBALANCE_IN_PROGRESS, as in ``commit``.
        """
        if self._resumed_from is not None:
            self._wait_until_joined()
        return self._consumer.consumer_group_metadata()

    def _wait_until_joined(self) -> None:
        """Wait until the group has a new member id for librdkafka's current consumer.

        A commit without it would fence the static member, and librdkafka does not recover from this. A transaction that
        commits without it is rejected.
        """
        ends_at = time.monotonic() + _JOIN_TIMEOUT_S
        while not self._consumer.memberid():
            if time.monotonic() >= ends_at:
                raise confluent_kafka.KafkaException(
                    confluent_kafka.KafkaError(
                        confluent_kafka.KafkaError.REBALANCE_IN_PROGRESS,
                        f"The consumer with new timeouts has not joined the group within {_JOIN_TIMEOUT_S:.0f} s."
                        " Call poll, then commit again.",
                    )
                )
            time.sleep(_JOIN_CHECK_S)

    def poll(self, timeout: float | None = None) -> Any:
        """Return the next message, or None if none arrives within ``timeout`` seconds (None or -1: no limit)."""
        ends_at = _end_of(timeout)
        while True:
            self._hand_over_if_due()
            message = self._consumer.poll(_step(ends_at))
            if message is not None and message.error() is None:
                self._progress.read([message])
            if message is not None or (ends_at is not None and time.monotonic() >= ends_at):
                return message

    def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[Any]:
        """Return up to ``num_messages`` messages, fewer after ``timeout`` seconds (None or -1: no limit).

        A change that arrives after some of the messages takes effect in the next call.
        """
        ends_at = _end_of(timeout)
        consumed: list[Any] = []
        while True:
            if consumed and self._is_change_due():  # the replacement may raise, and the messages would be lost
                return consumed
            self._hand_over_if_due()
            messages = self._consumer.consume(num_messages - len(consumed), _step(ends_at))
            self._progress.read(message for message in messages if message.error() is None)
            consumed += messages
            if len(consumed) >= num_messages or (ends_at is not None and time.monotonic() >= ends_at):
                return consumed

    def close(self) -> None:
        """Leave the group and stop requesting configs."""
        try:
            self._commit_recorded()
            _close(self._consumer)
        finally:  # also after an error of the application's on_commit or on_revoke
            if self._connection is not None:
                self._connection.close()
            if self._made_up_instance_id is not None and self._may_be_member:
                leave_group(
                    connection_settings(self._properties), str(self._properties["group.id"]), self._made_up_instance_id
                )
            self._topics, self._may_be_member, self._resumed_from = None, False, None

    # -- the replacement

    def _may_be_replaced(self) -> bool:
        return self._connection is not None and self._connection.is_on and self._topics is not None

    def _with_end_offsets(self, partitions: list[Any]) -> list[Any]:
        """Return the application's partitions with offsets that a replacement can repeat."""
        if not self._may_be_replaced():
            return partitions
        partitions = [_copy(one) for one in partitions]
        self._progress.fix_the_end(self._consumer, partitions)
        return partitions

    def _is_change_due(self) -> bool:
        return self._inbox.values is not None and self._topics is not None

    def _hand_over_if_due(self) -> None:
        if not self._is_change_due():
            return
        values = self._inbox.take()
        if values is None or all(self._properties.get(name) == value for name, value in values.items()):
            return
        properties = self._properties | dict(values)
        try:
            successor = self._build(properties)
        except confluent_kafka.KafkaException as error:
            logger.warning(
                "Dynamic configs %s are rejected by librdkafka, the last good ones stay: %s", dict(values), error
            )
            return
        if self._resumed_from is None:  # otherwise the latest consumer has no assignment yet and knows no positions
            self._resumed_from = self._progress.leave(self._consumer)
        self._is_closing_former = True
        try:
            _close(self._consumer)  # commits offsets; closing does not remove a static member from the group
        finally:  # also after an error of the application's on_commit, which poll raises
            self._is_closing_former = False
            self._properties, self._consumer = properties, successor
            self._subscribe()

    def _subscribe(self) -> None:
        """Subscribe with our own listeners, because librdkafka lets listeners decide about an assignment."""
        self._may_be_member = True
        own: dict[str, Any] = {"on_lost": self._forwarded("on_lost")} if "on_lost" in self._listener else {}
        self._consumer.subscribe(
            self._topics or [], on_assign=self._on_assign, on_revoke=self._forwarded("on_revoke"), **own
        )

    def _forwarded(self, name: str) -> Callable[[Any, list[Any]], None]:
        """Call the application's listener with this object as the consumer, unless a replacement is in progress."""

        def call(_: Any, partitions: list[Any]) -> None:
            if self._resumed_from is None:
                try:
                    if name in self._listener:  # it may commit
                        self._listener[name](self, partitions)
                finally:
                    self._progress.forget(partitions)

        return call

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        if self._is_closing_former:  # the assignment came too late: the successor gets it, and resumes
            return
        before = self._resumed_from
        if before is None:
            self._on_first_assign(consumer, partitions)
            return
        assigned = {_name(one) for one in partitions}
        listener = self._listener if assigned != before.keys() else {}
        try:
            if "on_revoke" in listener:  # it may commit
                listener["on_revoke"](self, [confluent_kafka.TopicPartition(*one) for one in before])
        finally:
            self._resumed_from = None
            self._progress.forget(confluent_kafka.TopicPartition(*one) for one in before.keys() - assigned)
            for one in partitions:
                one.offset = before.get(_name(one), one.offset)
            self._is_assigned_by_application = False
            try:
                if "on_assign" in listener:  # it may assign, at these offsets or at its own
                    listener["on_assign"](self, partitions)
            finally:  # also after an error of a listener: confluent-kafka would assign then, but at committed offsets
                self._resume(consumer, partitions, [one for one in partitions if _name(one) not in before])

    def _resume(self, consumer: Any, partitions: list[Any], gained: list[Any]) -> None:
        """Assign partitions at their offsets, unless the application has, then restore stored offsets and pauses."""
        if not self._is_assigned_by_application:
            self._progress.fix_the_end(consumer, gained)
            self._progress.begin(partitions)
            self._take(consumer, partitions)
        assigned = {_name(one): one for one in consumer.assignment()}
        if self._progress.is_stored_by_application:
            stored = [one for one in self._progress.uncommitted() if _name(one) in assigned]
            if stored:
                consumer.store_offsets(offsets=stored)
                self._progress.recorded.clear()
        paused = [one for name, one in assigned.items() if name in self._progress.paused]
        if paused:
            consumer.pause(paused)

    def _on_first_assign(self, consumer: Any, partitions: list[Any]) -> None:
        """Notify the application, and start partitions at offsets that a replacement can repeat."""
        self._is_assigned_by_application = False
        if "on_assign" in self._listener:
            self._listener["on_assign"](self, [_copy(one) for one in partitions])  # changes count if it assigns them
        if self._is_assigned_by_application or not self._may_be_replaced():
            return
        if self._progress.fix_the_end(consumer, partitions):
            self._progress.begin(partitions)
            self._take(consumer, partitions)

    def _take(self, consumer: Any, partitions: list[Any]) -> None:
        if str(self._properties.get("partition.assignment.strategy", "")).startswith("cooperative"):
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)

    def _build(self, properties: Mapping[str, Any]) -> Any:
        return confluent_kafka.Consumer(dict(properties), **self._more)

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to confluent-kafka: commit, seek, offsets, metadata."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._consumer, name)

    def __enter__(self) -> Self:
        """Return the consumer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the group and stop requesting configs."""
        self.close()


def _dynamic_configs(properties: Mapping[str, Any]) -> DynamicConfigs:
    max_poll_interval_ms = int(properties.get("max.poll.interval.ms", DEFAULT_MAX_POLL_INTERVAL_MS))

    def normalise(values: Values) -> Values:
        wanted = normalise_consumer(values)
        if int(wanted[SESSION_TIMEOUT_MS]) > max_poll_interval_ms:
            raise ValueError(f"{SESSION_TIMEOUT_MS} is above max.poll.interval.ms={max_poll_interval_ms}")
        return wanted

    return DynamicConfigs(
        client_id=client_id(properties),
        static={
            SESSION_TIMEOUT_MS: str(properties.get(SESSION_TIMEOUT_MS, DEFAULT_SESSION_TIMEOUT_MS)),
            HEARTBEAT_INTERVAL_MS: str(properties.get(HEARTBEAT_INTERVAL_MS, DEFAULT_HEARTBEAT_INTERVAL_MS)),
        },
        normalise=normalise,
        interval_s=interval_s(properties),
        retry_backoff_s=backoff_s(properties),
    )


def _close(consumer: confluent_kafka.Consumer) -> None:
    """Close librdkafka's consumer, after the callbacks that wait to be called, and without another record.

    With an assignment among them, ``close`` of librdkafka would not return: its callback asks the group for its
    protocol, and the group has ended by then.
    """
    try:
        with contextlib.suppress(RuntimeError):  # it is closed already
            consumer.pause(consumer.assignment())
            consumer.poll(0)
    finally:
        consumer.close()


def _end_of(timeout: float | None) -> float | None:
    return None if timeout is None or timeout < 0 else time.monotonic() + timeout


def _step(ends_at: float | None) -> float:
    return _WAIT_STEP_S if ends_at is None else min(_WAIT_STEP_S, max(0.0, ends_at - time.monotonic()))
