"""Records of all roll-outs in a compacted internal topic of the cluster, written by compare-and-set.

All writers share one transactional id. A writer fences the others and reads the topic to its end before it decides, so
a decision is always made on the latest records, and a record that was decided on older ones is never committed. ADR 22
has the reasons.

=========  =============================================================================================================
Part       Contents
=========  =============================================================================================================
key        Id of the roll-out
value      JSON: the whole record. ``version`` counts its writes. None: the roll-out ended long ago.
=========  =============================================================================================================
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.client_configs.json_records import RecordFormatError, decode_document, encode_document
from klamm.gateway.upstream.internal_topic import (
    InternalTopic,
    InternalTopicGoneError,
    TransactionalTopic,
    create_internal_topics,
    final_code,
)
from klamm.kafka_client.errors import CLUSTER_ERRORS, ConnectionLostError, TransactionLostError
from klamm.protocol.records import Record
from klamm.retries import Backoff
from klamm.rollout.record import RolloutRecord, conflict, from_document, to_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from klamm.admin import AdminClient
    from klamm.kafka_client.connection.transport import ConnectionSettings

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

TOPIC: Final = "__klamm_rollouts"
MAX_RECORD_BYTES: Final = 4 * 1024 * 1024
_RESERVED_BYTES: Final = 1024 * 1024
"""Space that the first record of a roll-out leaves for steps, reasons, baselines and values left alone."""
MAX_ENDED: Final = 100
"""Number of ended roll-outs whose records are kept. Each new roll-out removes the older ones."""
TOPIC_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    # Every command reads the whole topic. Small segments are compacted soon.
    "segment.bytes": str(8 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    "max.message.bytes": str(MAX_RECORD_BYTES + 64 * 1024),
}
_FIRST_BACKOFF_S: Final = 0.05
_MAX_BACKOFF_S: Final = 0.5
_RANDOM: Final = random.Random()  # noqa: S311 - no secret; of our own, because programs may seed the global one


class RolloutConflictError(Exception):
    """Another roll-out, or another process, has what this one needs. The message is for the operator."""


class StaleRecordError(RolloutConflictError):
    """Another process has changed the record of this roll-out.

    Args:
        latest: The record as it is now.
    """

    def __init__(self, latest: RolloutRecord) -> None:
        self.latest = latest
        super().__init__(f"roll-out {latest.id} was taken over by {latest.operator}: {latest.progress}")


class RolloutStore:
    """Records of the roll-outs of one cluster. Thread-confined.

    Calls retry for some time while the cluster does not respond, and then raise one of ``CLUSTER_ERRORS``, or
    ``RolloutConflictError`` if other processes kept writing.

    Args:
        settings: Settings of connections to the cluster.
        admin: Admin client, which creates the topic.
        patience_s: Seconds for which a call is tried again.
    """

    def __init__(self, settings: ConnectionSettings, admin: AdminClient, *, patience_s: float = 60.0) -> None:
        self._admin = admin
        self._patience_s = patience_s
        self._topic = InternalTopic(settings, TOPIC)
        self._writer = TransactionalTopic(settings, TOPIC)
        self._records: dict[str, RolloutRecord] = {}
        self._removed: set[str] = set()
        self._position = 0

    def close(self) -> None:
        """Close the connections."""
        self._topic.close()
        self._writer.close()

    def records(self) -> Sequence[RolloutRecord]:
        """Return the records of all roll-outs that are kept, oldest first. There are none before the first roll-out."""
        try:
            self._retry(self._load)
        except InternalTopicGoneError:
            return ()
        return sorted(self._records.values(), key=lambda record: record.steps[0].at_ms)

    def check_addition(self, record: RolloutRecord) -> None:
        """Check that the first record of a roll-out could be written, without writing it.

        Raises:
            RolloutConflictError: A roll-out that has not ended changes one of the entities, or the record is too large.
            KafkaApiError: The topic could not be created, for example because a policy denies its name.
        """
        asyncio.run(create_internal_topics(self._admin, {TOPIC: TOPIC_CONFIGS}, validate_only=True))
        _check_entities(record, self.records())
        _encoded(record)

    def add(self, record: RolloutRecord) -> RolloutRecord:
        """Write the first record of a roll-out, and remove those of all but the newest ``MAX_ENDED`` ended ones.

        Raises:
            RolloutConflictError: A roll-out that has not ended changes one of the entities, or the record is too large.
        """

        def decide(records: Mapping[str, RolloutRecord]) -> RolloutRecord:
            _check_entities(record, records.values())
            return record

        asyncio.run(create_internal_topics(self._admin, {TOPIC: TOPIC_CONFIGS}))
        return self._write(decide)

    def replace(self, old: RolloutRecord, new: RolloutRecord) -> RolloutRecord:
        """Replace a record if it is still the latest one.

        Raises:
            StaleRecordError: Another process has written the record since.
            RolloutConflictError: The roll-out has ended and its record was removed.
        """

        def decide(records: Mapping[str, RolloutRecord]) -> RolloutRecord:
            if old.id in self._removed:
                raise RolloutConflictError(f"roll-out {old.id} has ended, and its record was removed")
            latest = records.get(old.id, old)
            if _mark(latest) not in {_mark(old), _mark(new)}:
                raise StaleRecordError(latest)
            return new

        return self._write(decide)

    def check(self, record: RolloutRecord, *, timeout_s: float = 0.0) -> None:
        """Wait some time for another process to change a record.

        Returns after the time if none does. A cluster that does not respond counts as no change.

        Raises:
            StaleRecordError: Another process has written the record.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if timeout_s:
                    self._apply(*self._topic.poll(self._position))
                else:
                    self._apply(*self._topic.read_to_end(self._position))
            except (*CLUSTER_ERRORS, InternalTopicGoneError) as error:
                logger.debug("%s cannot be read: %s", TOPIC, error)
                time.sleep(min(_MAX_BACKOFF_S, max(deadline - time.monotonic(), 0)))
            latest = self._records.get(record.id, record)
            if latest.version > record.version:
                raise StaleRecordError(latest)
            if time.monotonic() >= deadline:
                return

    def _load(self) -> None:
        self._records.clear()
        self._apply(*self._topic.load())

    def _apply(self, records: Sequence[Record], position: int) -> None:
        for record in records:
            if record.value is None:
                removed = (record.key or b"").decode(errors="replace")
                self._records.pop(removed, None)
                self._removed.add(removed)
                continue
            try:
                decoded = from_document(decode_document(record.value))
            except (RecordFormatError, ValueError) as error:
                logger.warning("%s: skipping the record at offset %d: %s", TOPIC, record.offset, error)
                continue
            self._records[decoded.id] = decoded
        self._position = max(self._position, position)

    def _write(self, decide: Callable[[Mapping[str, RolloutRecord]], RolloutRecord]) -> RolloutRecord:
        """Commit the record that a function decides on the latest records. A new one replaces the oldest ended ones.

        After an error the outcome of a commit is unknown. The next attempt ends the transaction and reads it.
        """

        def attempt() -> RolloutRecord:
            try:
                if not self._records:
                    self._load()
                self._apply(*self._writer.take_over(self._position))
                record = decide(self._records)
                latest = self._records.get(record.id)
                if latest is None or _mark(latest) != _mark(record):
                    removed = () if latest else _too_old(self._records.values())
                    tombstones = [Record(each.id.encode(), None, timestamp=record.since_ms) for each in removed]
                    self._writer.commit({TOPIC: [_encoded(record), *tombstones]})
                    self._records[record.id] = record
            except InternalTopicGoneError as error:
                # A broker may learn of the topic only some time after its creation.
                raise ConnectionLostError(f"{error}, or is not known to every broker yet") from error
            return record

        return self._retry(attempt)

    def _retry(self, attempt: Callable[[], Result]) -> Result:
        deadline = time.monotonic() + self._patience_s
        backoff = Backoff(_FIRST_BACKOFF_S, _MAX_BACKOFF_S)
        while True:
            try:
                return attempt()
            except (*CLUSTER_ERRORS, TransactionLostError) as error:
                if final_code(error) is not None or time.monotonic() >= deadline:
                    if isinstance(error, TransactionLostError):
                        raise RolloutConflictError(
                            f"{TOPIC}: other processes write records at the same time ({error}); check the state with"
                            " klamm rollout list, then try again, perhaps with a longer --timeout"
                        ) from error
                    raise
                logger.debug("%s cannot be used, trying again: %s", TOPIC, error)
                time.sleep(_RANDOM.uniform(0, backoff.next_s()))


def _check_entities(record: RolloutRecord, records: Iterable[RolloutRecord]) -> None:
    """Raise RolloutConflictError if another roll-out that has not ended changes an entity of this one."""
    if (taken := conflict((each for each in records if each.id != record.id), record.entities)) is not None:
        other, entity = taken
        raise RolloutConflictError(
            f"{entity}: roll-out {other.id} of {other.operator} is {other.progress}; wait until it has ended, or end it"
            f" with klamm rollout abort {other.id}"
        )


def _mark(record: RolloutRecord) -> tuple[int, str]:
    """Return what identifies a write: no two processes write the same version of a record."""
    return record.version, record.runner


def _too_old(records: Iterable[RolloutRecord]) -> Sequence[RolloutRecord]:
    """Return the ended roll-outs whose records are not kept."""
    return sorted((each for each in records if each.is_over), key=lambda each: each.since_ms)[:-MAX_ENDED]


def _encoded(record: RolloutRecord) -> Record:
    value = encode_document(to_document(record))
    limit = MAX_RECORD_BYTES - (_RESERVED_BYTES if record.version == 1 else 0)
    if len(value) > limit:
        raise RolloutConflictError(
            f"the record of the roll-out has {len(value):,} bytes, at most {limit:,} are possible: divide"
            " the roll-out into several ones with fewer entities"
        )
    return Record(key=record.id.encode(), value=value, timestamp=record.since_ms)
