"""Commands of the parent process: faults, clock, topics, and reads of the broker's contents."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.broker.groups.classic.model import GroupState
from klamm.broker.groups.consumer.consumer_protocol import read_assignment
from klamm.broker.groups.coordinator import CLASSIC_TYPE
from klamm.broker.requests.topic_creation import check_new_name
from klamm.broker.topics.placement import check_request_size, place
from klamm.clock import wall_clock_ms
from klamm.display import counted
from klamm.faults.fault import FaultError, find_api, parse_fault
from klamm.lazy_dataclass import dataclass
from klamm.properties import did_you_mean
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.records import iter_batches
from klamm.storage.log import aborted_in, find_committed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from klamm.broker.context import Services
    from klamm.broker.faults.requests import RequestLog
    from klamm.broker.topics.catalog import Topic
    from klamm.faults.fault import FaultQueue
    from klamm.protocol.records import RecordBatch
    from klamm.storage.log import PartitionLog


@dataclass(slots=True)
class MovableClock:
    """Wall clock and event loop clock with a common shift. Used on the event loop only."""

    moved_s: float = 0.0
    """Seconds by which the clock is ahead of the machine's clock."""

    def now_ms(self) -> int:
        """Return the wall clock time, in milliseconds since the epoch."""
        return wall_clock_ms() + int(self.moved_s * 1000)

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Return an event loop whose timers follow this clock.

        It is asyncio's own loop. The clock of uvloop cannot be moved.
        """
        return _MovableLoop(self)


class _MovableLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: MovableClock) -> None:
        self._clock_of_parent = clock
        super().__init__()

    def time(self) -> float:
        """Return the time by which timers are due, in seconds."""
        return super().time() + self._clock_of_parent.moved_s


READ_BYTES: Final = 1024 * 1024
"""Bytes of a log in one answer."""
_FIRST_STEP_S: Final = 3600.0
_SETTLE_S: Final = 0.002
_SETTLE_ROUNDS: Final = 2_500


class Answer(NamedTuple):
    """Answer to a command."""

    result: Any = None
    """Plain value that JSON can express."""
    data: bytes = b""
    """Record batches."""


class CommandError(Exception):
    """A command failed. The message is for the user of ``klamm.Broker``.

    Args:
        kind: ``value`` for a wrong argument, ``lookup`` for a topic or partition that does not exist.
        message: What failed, and what is allowed.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Commands:
    """Commands on a running broker. Used on the event loop only.

    Args:
        services: Services of the broker.
        faults: Injected faults.
        requests: Log of the received requests.
        clock: Clock of the broker.
        filters: Filters that each served API allows, by Kafka's name of the API.
    """

    def __init__(
        self,
        services: Services,
        *,
        faults: FaultQueue,
        requests: RequestLog,
        clock: MovableClock,
        filters: Mapping[str, frozenset[str]],
    ) -> None:
        self._services = services
        self._faults = faults
        self._requests = requests
        self._clock = clock
        self._filters = filters

    async def run(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        """Run a command.

        Raises:
            CommandError: An argument is wrong, or the broker rejects the command.
        """
        try:
            answer: Answer = await getattr(self, f"_on_{name}")(**arguments)
        except FaultError as error:
            raise CommandError("value", str(error)) from error
        except KafkaApiError as error:
            raise CommandError("value", f"{error.error_code.name}: {error.error_message}") from error
        return answer

    # ---- faults

    async def _on_inject(self, **options: Any) -> Answer:
        fault = parse_fault(options, apis=self._filters)
        if fault.node_id is not None:
            self._check_node(fault.node_id)
        return Answer(self._faults.add(fault).number)

    async def _on_fault_count(self, number: int) -> Answer:
        injected = self._faults.get(number)
        return Answer(None if injected is None else injected.count)

    async def _on_remove_fault(self, number: int) -> Answer:
        injected = self._faults.get(number)
        self._faults.remove(number)
        return Answer(None if injected is None else injected.count)

    async def _on_faults(self) -> Answer:
        return Answer(
            [f"{injected.fault.description} ({counted(injected.count, 'request')})" for injected in self._faults]
        )

    async def _on_clear_faults(self) -> Answer:
        self._faults.clear()
        return Answer()

    async def _on_resume(self) -> Answer:
        """Do nothing: a paused broker has continued because a command arrived."""
        return Answer()

    # ---- clock

    async def _on_advance_clock(self, seconds: float) -> Answer:
        """Move the clock and return when everything that is due by then has been done.

        A timeout may begin another period: the offsets of a group expire some time after its last session. So the
        first hour, in which sessions and transactions time out, is a step of its own.
        """
        first_s = min(seconds, _FIRST_STEP_S)
        await self._advance_clock(first_s)
        if seconds > first_s:
            await self._advance_clock(seconds - first_s)
        return Answer()

    async def _advance_clock(self, seconds: float) -> None:
        self._clock.moved_s += seconds
        services = self._services
        services.groups.expire_sessions()  # before a heartbeat that waits in a socket extends one
        for _ in range(3):  # the event loop runs timers that are due, and then the tasks that these have woken
            await asyncio.sleep(0)
        await services.groups.offsets.expire()
        services.transactions.abort_timed_out()
        for _ in range(_SETTLE_ROUNDS):
            if not any(transaction.state.is_ending for transaction in services.transactions.all()):
                break
            await asyncio.sleep(_SETTLE_S)
        await services.logs.check_retention()

    async def _on_now_ms(self) -> Answer:
        return Answer(self._services.now_ms())

    # ---- contents

    async def _on_create_topic(
        self, topic: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> Answer:
        services = self._services
        check_new_name(topic, services.topics)
        if not isinstance(partitions, int) or partitions < 1:
            raise CommandError("value", f"partitions={partitions!r}: must be a number from 1")
        check_request_size(partitions)  # the event loop would place them for hours
        checked = services.configs.validate_topic_configs(topic, list(configs.items()))
        node_ids = services.cluster.node_ids
        if not isinstance(replication_factor, int) or not 1 <= replication_factor <= len(node_ids):
            raise CommandError(
                "value",
                f"replication_factor={replication_factor!r}: must be a number from 1 to {len(node_ids)}, the number of"
                " brokers; brokers=N starts N of them",
            )
        replicas = place(partitions, replication_factor, node_ids=node_ids, first=0)
        await services.topics.create(topic, replicas, configs=checked)
        return Answer()

    async def _on_has_topic(self, topic: str) -> Answer:
        return Answer(self._services.topics.get(topic) is not None)

    async def _on_produce(self, topic: str, partition: int | None, batch: str) -> Answer:
        """Append a batch in base64 as the leader does, and return its partition, base offset and append time.

        None as the partition means the one with the fewest records.
        """
        stored_in = self._topic(topic)
        if partition is None:
            ends = [self._log(stored_in, index).end_offset for index in range(len(stored_in.partitions))]
            partition = ends.index(min(ends))
        log = self._log(stored_in, partition)
        if self._services.logs.is_new(stored_in.topic_id, partition):
            await self._services.logs.create_directories([(stored_in.topic_id, partition)])
        appended = log.append(memoryview(base64.b64decode(batch)))
        return Answer((partition, appended.base_offset, appended.log_append_time_ms))

    async def _on_delete_topic(self, topic: str) -> Answer:
        await self._services.topics.begin_delete(self._topic(topic))
        return Answer()

    # ---- brokers

    async def _on_stop_node(self, node_id: int) -> Answer:
        cluster = self._services.cluster
        self._check_node(node_id)
        if cluster.node_ids == (node_id,):
            raise CommandError("value", f"node_id={node_id}: it is the last live one, use stop(), kill() or pause()")
        cluster.down |= {node_id}
        return Answer()

    async def _on_start_node(self, node_id: int) -> Answer:
        self._check_node(node_id)
        self._services.cluster.down -= {node_id}
        return Answer()

    async def _on_start_nodes(self) -> Answer:
        self._services.cluster.down = frozenset()
        return Answer()

    async def _on_move_leader(self, topic: str, partition: int, node_id: int) -> Answer:
        moved = self._topic(topic)
        self._log(moved, partition)
        self._check_node(node_id)
        replicas = moved.partitions[partition]
        others = [each for each in replicas if each != node_id] if node_id in replicas else replicas[1:]
        await self._services.topics.begin_reassign(moved, {partition: (node_id, *others)})
        return Answer()

    async def _on_move_coordinator(self, key: str, node_id: int) -> Answer:
        self._check_node(node_id)
        self._services.cluster.moved_coordinators[key] = node_id
        return Answer()

    async def _on_members(self, group_id: str) -> Answer:
        """Return the state of a group, and the client id, member id and assigned partitions of each of its members.

        As in DescribeGroups, an unknown group is ``Dead`` and has no members.
        """
        groups, topics = self._services.groups, self._services.topics
        group = next((each for each in groups.list_groups() if each.group_id == group_id), None)
        if group is None:
            return Answer((GroupState.DEAD.value, []))
        if group.group_type == CLASSIC_TYPE:
            members = [
                (member.client_id, member.member_id, _listed(_partitions_of(member.assignment)))
                for member in groups.describe(group_id).members
            ]
            return Answer((group.state.value, members))
        named = {topic.topic_id: topic.name for topic in topics.all()}
        members = [
            (
                member.client_id,
                member.member_id,
                _listed({named[topic_id]: each for topic_id, each in member.assigned.items() if topic_id in named}),
            )
            for member in groups.consumers.describe(group_id).members.values()
        ]
        return Answer((group.state.value, members))

    def _check_node(self, node_id: int) -> None:
        node_ids = [node.node_id for node in self._services.cluster.nodes]
        if node_id not in node_ids:
            allowed = ", ".join(map(str, node_ids))
            raise CommandError("value", f"node_id={node_id!r}: broker ids are {allowed}; brokers=N starts N of them")

    async def _on_partition_count(self, topic: str) -> Answer:
        return Answer(len(self._topic(topic).partitions))

    async def _on_records(self, topic: str, partition: int, offset: int, *, is_committed: bool) -> Answer:
        """Return batches from an offset on, with the first offset that counts and the next offset.

        None as the next offset means the end of the log.
        """
        log = self._log(self._topic(topic), partition)
        offset = max(offset, log.log_start_offset)
        end = log.last_stable_offset if is_committed else log.end_offset
        if offset >= end:
            return Answer((offset, None))
        batches = find_committed(log, offset, READ_BYTES) if is_committed else log.find(offset, READ_BYTES)
        if batches is None:
            return Answer((offset, None))
        aborted = aborted_in(log, offset, batches) if is_committed else []
        kept, next_offset = [], offset
        for batch in _data_batches(batches.read()):
            next_offset = batch.last_offset + 1
            is_aborted = batch.is_transactional and any(
                each.producer_id == batch.producer_id and each.first_offset <= batch.base_offset <= each.last_offset
                for each in aborted
            )
            if not batch.is_control and not is_aborted:
                kept.append(bytes(batch.buffer))
        return Answer((offset, next_offset if offset < next_offset < end else None), b"".join(kept))

    async def _on_committed_offsets(self, group_id: str) -> Answer:
        services = self._services
        names = {topic.topic_id: topic.name for topic in services.topics.all()}
        commits = services.groups.offsets.of_group(group_id)
        return Answer(
            [
                (names[topic_id], partition, commit.offset)
                for topic_id, partitions in commits.items()
                for partition, commit in sorted(partitions.items())
                if topic_id in names
            ]
        )

    async def _on_requests(self, api: str | None) -> Answer:
        if api is not None:
            api = find_api(api, self._filters)
        return Answer([entry for entry in self._requests if api in {None, entry["api"]}])

    async def _on_clear_requests(self) -> Answer:
        self._requests.clear()
        return Answer()

    def _topic(self, name: str) -> Topic:
        topic = self._services.topics.get(name)
        if topic is None:
            names = [each.name for each in self._services.topics.all()]
            raise CommandError("lookup", f"Topic {name!r} does not exist{did_you_mean(name, names)}")
        return topic

    def _log(self, topic: Topic, partition: int) -> PartitionLog:
        if not isinstance(partition, int) or not topic.has_partition(partition):
            raise CommandError(
                "lookup", f"Topic {topic.name!r} has no partition {partition!r}, it has {len(topic.partitions)}"
            )
        log = self._services.logs.get(topic.topic_id, partition)
        if log is None:
            raise CommandError("lookup", f"Topic {topic.name!r} is being created or deleted")
        return log


def _partitions_of(assignment: bytes) -> Mapping[str, Sequence[int]]:
    """Return the partitions in an assignment. Groups of other programs, such as Connect, assign something else."""
    try:
        return read_assignment(assignment)
    except ValueError:
        return {}


def _listed(partitions: Mapping[str, Iterable[int]]) -> list[tuple[str, int]]:
    return sorted((topic, partition) for topic, indexes in partitions.items() for partition in indexes)


def _data_batches(data: bytes) -> Iterator[RecordBatch]:
    return iter_batches(data, allow_partial_tail=True)
