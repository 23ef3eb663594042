"""Reader for topics: bounds of their partitions, and their batches, prefetched by one request."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.dataframes.errors import DataLossError, ReadingError
from klamm.dataframes.positions import EARLIEST, LATEST, Timestamps
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data.batches import Treatment, walk
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.data.fetch import (
    LAST_VERSION,
    TOPIC_IDS_FROM,
    FetchedPartition,
    FetchLimits,
    WantedRecords,
    fetch_request,
    fetched_partitions,
    throttled_s,
)
from klamm.kafka_client.errors import FATAL_ERRORS, ConnectionLostError
from klamm.protocol.codec import encode
from klamm.protocol.errors import ErrorCode, UnsupportedVersionError, error_name
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.primitives import ZERO_UUID
from klamm.protocol.records.layout import MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from klamm.dataframes.options import ReadOptions
    from klamm.dataframes.positions import Numbers, OffsetRange, Positions
    from klamm.kafka_client.connection.buffers import FrameBuffer
    from klamm.kafka_client.connection.connection import Connection
    from klamm.protocol.records import RecordBatch
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)

_LIMITS: Final = FetchLimits(max_bytes=4 << 20, partition_max_bytes=4 << 20, min_bytes=1, max_wait_ms=500)
_POOLED_BYTES: Final = 16 << 20
_RETRY_S: Final = 0.2
_MAX_THROTTLED: Final = 10
"""Longest time that a quota may allow no records, in multiples of ``default.api.timeout.ms``."""
_UNKNOWN_TOPIC: Final = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class TopicReader:
    """Connections of one task, or of one query's planning, to a cluster. Confined to one thread; its calls block."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster = Cluster(options.connection, BufferPool(max_free_bytes=_POOLED_BYTES))
        self._was_reached = False
        self._topics = options.topics
        """Topics to read; with a pattern, those that matched in the latest refresh."""

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def partitions(self) -> list[PartitionTuple]:
        """Return the partitions to read, in order.

        Raises:
            ReadingError: A topic or an assigned partition does not exist, and ``failOnMissingTopic`` is true. Or the
                partitions of a topic are unknown for another reason, such as a missing ACL: a stream would forget how
                far it was read.
            ConnectionLostError: The cluster cannot be reached.
        """
        self._refresh()
        missing = [topic for topic in self._topics if topic not in self._cluster.topics]
        errors = {topic: self._cluster.topic_errors.get(topic, _UNKNOWN_TOPIC) for topic in missing}
        if rejected := [f"{topic} ({error_name(code)})" for topic, code in errors.items() if code != _UNKNOWN_TOPIC]:
            raise ReadingError(f"{', '.join(rejected)}: not described by {self._servers}")
        if missing and self._options.fail_on_missing_topic and self._options.pattern is None:
            raise ReadingError(
                f"{', '.join(missing)}: not a topic on {self._servers}, or the principal may not describe it"
            )
        partitions = [
            (topic, partition)
            for topic in sorted(set(self._topics) - set(missing))
            for partition in self._cluster.topics[topic].partitions
        ]
        return partitions if self._options.assigned is None else self._assigned(self._options.assigned, partitions)

    def _assigned(
        self, assigned: Mapping[str, Sequence[int]], partitions: Sequence[PartitionTuple]
    ) -> list[PartitionTuple]:
        wanted = [(topic, number) for topic, numbers in sorted(assigned.items()) for number in numbers]
        missing = [
            f"{topic}-{number}"
            for topic, number in wanted
            if topic in self._cluster.topics and (topic, number) not in partitions
        ]
        if missing:
            raise ReadingError(f"assign: {', '.join(missing)}: not a partition on {self._servers}")
        return [where for where in wanted if where in partitions]

    def _refresh(self) -> None:
        """Refresh the metadata. Once the cluster was reached, wait for it, so that a stream outlives its restart."""
        deadline = time.monotonic() + self._options.patience_s
        while True:
            try:
                if (pattern := self._options.pattern) is not None:
                    self._topics = tuple(sorted(filter(pattern.fullmatch, self._cluster.topic_names())))
                self._cluster.refresh(self._topics)
            except FATAL_ERRORS:
                raise
            except ConnectionLostError:
                if not self._was_reached or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_S)
            else:
                self._was_reached = True
                return

    @property
    def _servers(self) -> str:
        return ",".join(self._options.connection.bootstrap_servers)

    def offsets(self, partitions: Sequence[PartitionTuple], where: int) -> dict[PartitionTuple, int]:
        """Return the first (``EARLIEST``) or end offsets (``LATEST``), or those of a timestamp. Wait for leaders.

        Raises:
            ReadingError: A partition has had no leader for too long. Its records must not be missing silently.
            ConnectionLostError: The cluster cannot be reached.
        """
        offsets = self._reported(partitions, where, read_committed=self._options.read_committed)
        if missing := [one for one in partitions if one not in offsets]:
            raise self._leaderless(missing)
        return offsets

    def _leaderless(self, partitions: Sequence[PartitionTuple]) -> ReadingError:
        names = ", ".join(f"{topic}-{number}" for topic, number in partitions)
        return ReadingError(f"{names}: no leader reported its offsets within {self._options.patience_s:g} s")

    def _is_gone(self, where: PartitionTuple) -> bool:
        """Return whether the latest Metadata response says that a partition does not exist."""
        topic, partition = where
        if (state := self._cluster.topics.get(topic)) is not None:
            return partition not in state.partitions
        return self._cluster.topic_errors.get(topic) == _UNKNOWN_TOPIC

    def _reported(
        self, partitions: Sequence[PartitionTuple], where: int, *, read_committed: bool = False
    ) -> dict[PartitionTuple, int]:
        """Return the offsets that the leaders report until all have, or for ``default.api.timeout.ms``.

        If some are missing, the metadata is newer than the call. It covers all ``partitions``: those of a planned
        micro-batch may be of a topic that no longer matches ``subscribePattern`` because it was deleted.
        """
        topics = {*self._topics, *(topic for topic, _ in partitions)}
        deadline = time.monotonic() + self._options.patience_s
        while True:
            try:
                offsets = self._cluster.list_offsets(partitions, where, read_committed=read_committed)
            except ConnectionLostError:
                if time.monotonic() > deadline:
                    raise
                offsets = {}
            if len(offsets) == len(partitions):
                return offsets
            with contextlib.suppress(ConnectionLostError):
                self._cluster.refresh(topics)
            if time.monotonic() > deadline:
                return offsets
            time.sleep(_RETRY_S)

    def resolve(self, positions: Positions, partitions: Sequence[PartitionTuple]) -> dict[PartitionTuple, int]:
        """Return offsets for the requested positions.

        Raises:
            ReadingError: The positions do not match the existing partitions, or no record has the requested timestamp.
        """
        return self.resolve_special(self.requested(positions, partitions))

    def requested(self, positions: Positions, partitions: Sequence[PartitionTuple]) -> dict[PartitionTuple, int]:
        """Return the requested position of each partition: an offset, ``EARLIEST`` or ``LATEST``.

        Raises:
            ReadingError: See ``resolve``.
        """
        if isinstance(positions, int):
            return dict.fromkeys(partitions, positions)
        if isinstance(positions, Timestamps):
            return self._at_timestamps(positions, partitions)
        return _flat(positions, partitions)

    def resolve_special(self, offsets: Mapping[PartitionTuple, int]) -> dict[PartitionTuple, int]:
        """Return the offsets, with the current ones in place of ``EARLIEST`` and ``LATEST``."""
        resolved = dict(offsets)
        for where in (EARLIEST, LATEST):
            resolved |= self.offsets([one for one, at in offsets.items() if at == where], where)
        return resolved

    def _at_timestamps(self, positions: Timestamps, partitions: Sequence[PartitionTuple]) -> dict[PartitionTuple, int]:
        """Return the offsets of the first records with these timestamps, ``LATEST`` where there is none."""
        at = positions.at
        timestamps = dict.fromkeys(partitions, at) if isinstance(at, int) else _flat(at, partitions)
        offsets: dict[PartitionTuple, int] = {}
        for timestamp in sorted(set(timestamps.values())):
            offsets |= self.offsets([where for where in timestamps if timestamps[where] == timestamp], timestamp)
        if not positions.is_latest_allowed and (none := [where for where in offsets if offsets[where] < 0]):
            (topic, number), timestamp = none[0], timestamps[none[0]]
            raise ReadingError(
                f"{topic}-{number}: no record has a timestamp of {timestamp} or later; set "
                "startingOffsetsByTimestampStrategy=latest to start at the end of such a partition"
            )
        return {where: LATEST if offset < 0 else offset for where, offset in offsets.items()}

    def not_before(
        self, start: Mapping[PartitionTuple, int], end: Mapping[PartitionTuple, int]
    ) -> dict[PartitionTuple, int]:
        """Return the end offsets, but the start where an open transaction hides the records before it.

        So it is when ``isolation.level`` becomes read_committed after a query has read beyond the last stable offset.
        """
        before = [where for where, to in end.items() if start.get(where, to) > to]
        if not before or not self._options.read_committed:
            return dict(end)
        uncommitted = self._reported(before, LATEST)
        return dict(end) | {where: start[where] for where in before if start[where] <= uncommitted.get(where, -1)}

    def checked(
        self,
        start: Mapping[PartitionTuple, int],
        end: Mapping[PartitionTuple, int],
        *,
        begins_again: bool = True,
    ) -> dict[PartitionTuple, tuple[int, int]]:
        """Return start and end offset by partition, after checking that the records between them still exist.

        Args:
            start: Start offsets. A partition without one was added since, so all of its records are due: from 0 on.
            end: End offsets.
            begins_again: Whether to read a partition that ends before its start from its beginning, as a topic that was
                created again. A batch query did not ask for those records.

        Raises:
            ReadingError: Records are gone and ``failOnDataLoss`` is true.
        """
        first = self._reported(list(end), EARLIEST)
        bounds = {}
        # Unless a pattern selects the topics, ``partitions`` has decided about those that do not exist.
        existing = self._cluster.topics.keys() & self._topics
        topics = existing if self._options.pattern is None else {topic for topic, _ in start}
        gone = {where: at for where, at in start.items() if where not in end and where[0] in topics}
        for (topic, partition), at in gone.items():
            self._lost(f"{topic}-{partition} does not exist any more: the records from {at} on are gone")
        for where, to in end.items():
            if where not in first:
                if not self._is_gone(where):
                    raise self._leaderless([where])
                self._lost(f"{where[0]}-{where[1]} does not exist any more: the records up to {to} are gone")
                continue
            begin = start.get(where, 0)
            if begin > to:
                self._lost(f"{where[0]}-{where[1]} ends at {to}, before {begin}: was the topic created again?")
                begin = first[where] if begins_again else to
            elif begin < first[where] and begin < to:
                self._lost(f"{where[0]}-{where[1]} begins at {first[where]}: the records from {begin} on are gone")
                begin = min(first[where], to)
            bounds[where] = (begin, to)
        return bounds

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(what)
        logger.warning("%s", what)

    def read(self, wanted: OffsetRange) -> Iterator[list[RecordBatch]]:
        """Yield batches that cover a range. The first and last may contain records outside it.

        Batches are views of reused memory: each is valid until the next one is requested.

        Raises:
            ReadingError: Records are gone, or none arrives for too long.
            CorruptBatchError: The bytes are damaged.
        """
        fetch = _Fetch(self._cluster, self._options, wanted)
        try:
            while fetch.offset < wanted.end:
                fetch.send()
                yield from fetch.take()
        finally:
            fetch.drop()


def _flat(numbers: Numbers, partitions: Sequence[PartitionTuple]) -> dict[PartitionTuple, int]:
    """Return the numbers by partition.

    Raises:
        ReadingError: They do not match the existing partitions.
    """
    flat = {(topic, partition): number for topic, by in numbers.items() for partition, number in by.items()}
    if set(flat) != set(partitions):
        differing = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(set(flat) ^ set(partitions)))
        raise ReadingError(
            "startingOffsets, endingOffsets and those by timestamp must name all partitions that are read and no "
            f"other; these differ: {differing}"
        )
    return flat


class _Answer(NamedTuple):
    fetched: FetchedPartition | None
    throttled_s: float
    """Time in seconds after which to repeat the fetch because of a quota. 0: no wait."""
    memory: FrameBuffer


class _Fetch:
    """Fetches of one range. The next request is in flight while the batches of the previous response are processed."""

    def __init__(self, cluster: Cluster, options: ReadOptions, wanted: OffsetRange) -> None:
        self._cluster = cluster
        self._options = options
        self._wanted = wanted
        self.offset = wanted.start
        self._replica: int | None = None
        """Node id of the preferred read replica that the leader named (KIP-392). None: fetch from the leader.

        It counts until it fails or brings no records. The leader then names the replica that has them, as it would
        when the metadata age of a consumer has passed.
        """
        self._in_flight: tuple[Connection, list[_Answer]] | None = None
        self._moved_at = time.monotonic()
        self._throttled_s = 0.0
        """Seconds that a quota made the reader wait since the last records."""

    @property
    def _name(self) -> str:
        return f"{self._wanted.topic}-{self._wanted.partition}"

    def send(self) -> None:
        """Send a fetch from ``offset``, unless one is in flight. Retry while the partition has no leader."""
        while self._in_flight is None:
            try:
                self._in_flight = self._submit()
            except FATAL_ERRORS as error:
                raise ReadingError(f"{self._name}: {error}") from error
            except (ConnectionLostError, UnsupportedVersionError) as error:
                self._wait(str(error))

    def _submit(self) -> tuple[Connection, list[_Answer]]:
        topic, partition = self._wanted.topic, self._wanted.partition
        leader = self._cluster.leader(topic, partition)
        if leader is None:
            self._cluster.refresh([topic])
            leader = self._cluster.leader(topic, partition)
        if leader is None:
            state = self._cluster.topics.get(topic)
            exists = state is not None and partition in state.partitions
            raise ConnectionLostError("it has no leader" if exists else "it does not exist any more")
        connection = self._cluster.connection(leader if self._replica is None else self._replica)
        topic_id = self._cluster.topic_id(topic)
        at_most = LAST_VERSION if topic_id != ZERO_UUID else TOPIC_IDS_FROM - 1
        version = connection.version_of(FetchRequest, at_least=4, at_most=at_most)
        committed = self._options.read_committed
        request = fetch_request(
            [WantedRecords(topic, topic_id, partition, self.offset)], _LIMITS, read_committed=committed
        )
        answers: list[_Answer] = []

        def on_response(response: FetchResponse, memory: FrameBuffer) -> None:
            partitions = fetched_partitions(
                response, {topic_id: topic}, with_topic_ids=version >= TOPIC_IDS_FROM, read_committed=committed
            )
            memory.retain()
            fetched = None if response.error_code else next(iter(partitions), None)
            answers.append(_Answer(fetched, throttled_s(response), memory))

        connection.submit(FetchRequest, version, [encode(request, version)], FetchResponse, on_response)
        connection.write()
        return connection, answers

    def take(self) -> Iterator[list[RecordBatch]]:
        """Yield the batches of the response. The next request is already in flight when the caller processes them."""
        if self._in_flight is None:
            return
        connection, answers = self._in_flight
        try:
            connection.wait_for(
                lambda: bool(answers),
                timeout_s=self._options.connection.request_timeout_s,
                what=f"Fetch of {self._name}",
            )
        except ConnectionLostError as error:
            self._in_flight = None
            self._wait(str(error))
            return
        self._in_flight = None
        fetched, wait_s, memory = answers[0]
        try:
            if wait_s:
                self._wait_for_quota(wait_s)
                return
            batches = self._batches(fetched)
            if batches:
                self._moved_at, self._throttled_s = time.monotonic(), 0.0
            if batches and self.offset < self._wanted.end:
                # The next send notices a connection that breaks here, and replaces it.
                with contextlib.suppress(ConnectionLostError, UnsupportedVersionError):
                    self._in_flight = self._submit()
            kept = [batch for batch in batches if batch is not None]
            if kept:
                yield kept
                self._moved_at = time.monotonic()  # the time that the query took is not the cluster's
        finally:
            memory.release()

    def _batches(self, fetched: FetchedPartition | None) -> list[RecordBatch | None]:
        """Return the batches of a response, None for those to skip, and advance the offset."""
        if fetched is None or fetched.error_code != ErrorCode.NONE:
            self._rejected(fetched)
            return []
        if fetched.preferred_read_replica >= 0:
            self._redirected(fetched.preferred_read_replica)
            return []
        batches: list[RecordBatch | None] = []
        for batch, treatment, next_offset in walk(fetched.records, self.offset, fetched.aborted):
            # The offset of a compressed message set of magic 0 or 1 is that of its last message.
            is_behind = batch.magic == MAGIC and batch.base_offset >= self._wanted.end
            batches.append(None if is_behind or treatment is Treatment.DROP else batch)
            self.offset = next_offset
            if self.offset >= self._wanted.end:
                break
        if not batches:
            self._replica = None
            if not self._is_cut_off():
                self._check_patience("it brings no records", fetched.end_offset)
        return batches

    def _redirected(self, replica: int) -> None:
        if self._replica is None:
            self._replica = replica
        else:
            self._wait(f"node {self._replica} is a preferred read replica and names another one")

    def _rejected(self, fetched: FetchedPartition | None) -> None:
        code = fetched.error_code if fetched is not None else ErrorCode.UNKNOWN_SERVER_ERROR
        if code == ErrorCode.OFFSET_OUT_OF_RANGE and self._replica is None:  # a replica may lag
            self._out_of_range()
            return
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise ReadingError(f"{self._name}: reading it is not allowed (TOPIC_AUTHORIZATION_FAILED)")
        self._wait(error_name(code))

    def _out_of_range(self) -> None:
        where = (self._wanted.topic, self._wanted.partition)
        first = self._cluster.list_offsets([where], EARLIEST).get(where)
        if first is None:
            self._wait("its leader does not report where it begins")
            return
        what = f"{self._name}: offset {self.offset} is not there any more, it begins at {first}"
        if self._options.fail_on_data_loss:
            raise DataLossError(what)
        logger.warning("%s", what)
        self.offset = self._wanted.end if first <= self.offset else min(first, self._wanted.end)

    def _is_cut_off(self) -> bool:
        """Skip the rest of the range if the log has ended before it for too long, and records may be lost.

        The topic was created again, or its log truncated, after the range had been planned. A leader that has just been
        elected may report an earlier end for a moment.
        """
        if self._options.fail_on_data_loss or not self._is_late():
            return False
        where = (self._wanted.topic, self._wanted.partition)
        end = self._cluster.list_offsets([where], LATEST).get(where)  # not hidden by an open transaction
        if end is None or end > self.offset:
            return False
        logger.warning("%s ends at %d: the records up to %d are gone", self._name, end, self._wanted.end)
        self.offset = self._wanted.end
        return True

    def _is_late(self) -> bool:
        return time.monotonic() - self._moved_at > self._options.patience_s

    def _wait(self, reason: str) -> None:
        self._check_patience(reason, None)
        time.sleep(_RETRY_S)
        self._replica = None
        self._cluster.topics.pop(self._wanted.topic, None)

    def _wait_for_quota(self, wait_s: float) -> None:
        """Wait until the quota allows the next fetch. The time does not count as that of a cluster without progress.

        Raises:
            ReadingError: The quota allows none: others use it up, or the next batch is larger than it ever allows.
        """
        self._throttled_s += wait_s
        if self._throttled_s > _MAX_THROTTLED * self._options.patience_s:
            raise ReadingError(
                f"{self._name}: the quota consumer_byte_rate has allowed no records for {self._throttled_s:g} s. "
                "Raise it, or read with another client.id or user"
            )
        time.sleep(wait_s)
        self._moved_at += wait_s

    def _check_patience(self, reason: str, end_offset: int | None) -> None:
        if self._is_late():
            ends = "" if end_offset is None else f", it ends at {end_offset}"
            raise ReadingError(
                f"{self._name}: nothing from offset {self.offset} up to {self._wanted.end} for "
                f"{self._options.patience_s:g} s: {reason}{ends}"
            )

    def drop(self) -> None:
        """Discard a pending response together with its connection."""
        if self._in_flight is not None:
            connection, answers = self._in_flight
            connection.close()
            for answer in answers:
                answer.memory.release()
            self._in_flight = None


def as_json(offsets: Mapping[PartitionTuple, int]) -> dict[str, dict[str, int]]:
    """Return offsets as Spark's checkpoints store them: JSON by topic and partition."""
    out: dict[str, dict[str, int]] = {}
    for (topic, partition), at in sorted(offsets.items()):
        out.setdefault(topic, {})[str(partition)] = at
    return out


def from_json(document: Mapping[str, Mapping[str, Any]]) -> dict[PartitionTuple, int]:
    """Return the offsets of a checkpoint."""
    return {(topic, int(partition)): int(at) for topic, by in document.items() for partition, at in by.items()}
