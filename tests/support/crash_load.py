"""Load on a broker, with a ledger of acknowledged requests and of requests that the broker's crash left open."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from klamm.protocol.records import Record, decode_records, encode_batch
from tests.support.wire import APPEND, SET, SUBTRACT, RejectedError, WireClient
from tests.support.workers import Worker

if TYPE_CHECKING:
    import itertools
    from collections.abc import Iterable, Iterator
    from uuid import UUID

    from klamm.protocol.records import RecordBatch

LISTED: Final = "follower.replication.throttled.replicas"
PAIR: Final = ("retention.ms", "delete.retention.ms")
"""Two configs that every change sets to the same number. A reader must never see different numbers."""

_RECORDS_PER_BATCH: Final = 5
_BIG_BATCH_EVERY: Final = 40
_SMALL_BYTES: Final = 100
_BIG_BYTES: Final = 64 * 1024
_LISTED_AT_MOST: Final = 8
NOT_YET: Final = frozenset({3, 5, 6, 14, 15, 16})
"""Error codes of a broker that is starting: UNKNOWN_TOPIC_OR_PARTITION ... NOT_COORDINATOR."""


def record_value(producer: int, number: int) -> bytes:
    """Return the unique bytes of one record."""
    size = _BIG_BYTES if number // _RECORDS_PER_BATCH % _BIG_BATCH_EVERY == 0 else _SMALL_BYTES
    return (b"%d:%d:" % (producer, number)).ljust(size, b"%d" % (number % 10))


def identify(value: bytes) -> tuple[int, int]:
    """Return producer and number of a record after comparing all its bytes."""
    producer, number, _ = value.split(b":", 2)
    identity = int(producer), int(number)
    assert value == record_value(*identity), f"Record {identity} was changed"
    return identity


def identified(batches: Iterable[RecordBatch]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield offset and identity of every record."""
    for batch in batches:
        for record in decode_records(batch):
            assert record.value is not None
            yield record.offset, identify(bytes(record.value))


@dataclass(slots=True, kw_only=True)
class ProducerLedger:
    """Facts known to one producer. The ledger survives every crash of the broker."""

    number: int
    keeps_its_id: bool
    """True: unanswered batches are sent again with the same sequence. False: a new producer follows each crash."""
    producer_ids: list[int] = field(default_factory=list)
    epoch: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    next_record: int = 0
    in_flight: tuple[int, tuple[int, ...], bytearray] | None = None
    last: tuple[int, int, bytearray] | None = None
    """Partition, base offset and bytes of the last acknowledged batch."""
    acknowledged: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """(partition, offset) -> (producer, number of the record)."""


class LoadProducer(Worker):
    """Producer that sends batches until the broker has crashed."""

    def __init__(self, address: str, topic: str, partitions: int, ledger: ProducerLedger) -> None:
        self._address = address
        self._topic = topic
        self._partitions = partitions
        self._ledger = ledger
        super().__init__(f"producer {ledger.number}")

    def _work(self) -> None:
        try:
            with WireClient(self._address) as client:
                self._begin(client)
                while not self._stop.is_set():
                    self._send(client)
        except OSError:
            return  # requests in flight stay in the ledger

    def _begin(self, client: WireClient) -> None:
        ledger = self._ledger
        if not ledger.producer_ids or not ledger.keeps_its_id:
            producer_id, ledger.epoch = client.new_producer_id()
            ledger.producer_ids.append(producer_id)
            ledger.sequences.clear()
            ledger.in_flight = None
        elif ledger.last is not None:
            # As if its response had been lost: the broker recognizes the batch and returns its offset.
            partition, base_offset, batch = ledger.last
            assert self._produce(client, partition, batch) in {base_offset, None}, "A batch was appended twice"

    def _send(self, client: WireClient) -> None:
        ledger = self._ledger
        if ledger.in_flight is None:
            ledger.in_flight = self._next_batch()
        partition, numbers, batch = ledger.in_flight
        base_offset = self._produce(client, partition, batch)
        if base_offset is None:
            return
        for place, number in enumerate(numbers, start=base_offset):
            ledger.acknowledged[partition, place] = (ledger.number, number)
        ledger.sequences[partition] = ledger.sequences.get(partition, 0) + len(numbers)
        ledger.last = partition, base_offset, batch
        ledger.in_flight = None

    def _produce(self, client: WireClient, partition: int, batch: bytearray) -> int | None:
        """Return the base offset, or None when the broker is not ready."""
        try:
            return client.produce(self._topic, partition, batch)
        except RejectedError as error:
            if error.error_code not in NOT_YET:
                raise
            time.sleep(0.05)
            return None

    def _next_batch(self) -> tuple[int, tuple[int, ...], bytearray]:
        ledger = self._ledger
        numbers = tuple(range(ledger.next_record, ledger.next_record + _RECORDS_PER_BATCH))
        ledger.next_record += _RECORDS_PER_BATCH
        partition = (ledger.number + numbers[0] // _RECORDS_PER_BATCH) % self._partitions
        now = time.time_ns() // 1_000_000
        records = [
            Record(key=None, value=record_value(ledger.number, number), headers=(), timestamp=now, offset=place)
            for place, number in enumerate(numbers)
        ]
        batch = encode_batch(
            records,
            producer_id=ledger.producer_ids[-1],
            producer_epoch=ledger.epoch,
            base_sequence=ledger.sequences.get(partition, 0),
        )
        return partition, numbers, batch


class LoadReader(Worker):
    """Reader of one partition until the broker has crashed. Records that were read once must not change."""

    def __init__(self, address: str, topic: str, partition: int, offset: int) -> None:
        self._address = address
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self.seen: dict[tuple[int, int], tuple[int, int]] = {}
        super().__init__(f"reader of {partition}")

    def _work(self) -> None:
        try:
            with WireClient(self._address) as client:
                while not self._stop.is_set():
                    self._read(client)
        except OSError:
            return

    def _read(self, client: WireClient) -> None:
        try:
            batches, _ = client.fetch(self._topic, self._partition, self._offset)
        except RejectedError as error:
            if error.error_code not in NOT_YET:
                raise
            batches = ()
        for offset, identity in identified(batches):
            self.seen[self._partition, offset] = identity
        if batches:
            self._offset = batches[-1].last_offset + 1
        time.sleep(0.02)


@dataclass(slots=True, kw_only=True)
class Write:
    """One IncrementalAlterConfigs: a number for the pair, an entry added to or taken from the list."""

    number: int
    operation: int
    entry: str
    started: float
    ended: float | None = None
    """Time of the response, or of the detected crash; None while the outcome is unknown."""
    acknowledged: bool = False


@dataclass(slots=True, kw_only=True)
class AltererLedger:
    """Facts known to one client that alters configs. The ledger survives every crash of the broker."""

    number: int
    writes: list[Write] = field(default_factory=list)
    entries: list[str] = field(default_factory=list)
    """Its entries in the list according to the acknowledged changes."""


class LoadAlterer(Worker):
    """Client that changes three configs of one topic in one request, repeatedly, until the broker has crashed."""

    def __init__(self, address: str, topic: str, ledger: AltererLedger, numbers: itertools.count[int]) -> None:
        self._address = address
        self._topic = topic
        self._ledger = ledger
        self._numbers = numbers
        super().__init__(f"alterer {ledger.number}")

    def _work(self) -> None:
        try:
            with WireClient(self._address) as client:
                while not self._stop.is_set():
                    self._alter(client)
        except OSError:
            return

    def _alter(self, client: WireClient) -> None:
        ledger = self._ledger
        number = next(self._numbers)
        full = len(ledger.entries) >= _LISTED_AT_MOST
        write = Write(
            number=number,
            operation=SUBTRACT if full else APPEND,
            entry=ledger.entries[0] if full else f"{ledger.number}:{number}",
            started=time.monotonic(),
        )
        ledger.writes.append(write)
        changes = [*((name, SET, str(number)) for name in PAIR), (LISTED, write.operation, write.entry)]
        client.alter_topic(self._topic, changes)
        write.ended = time.monotonic()
        write.acknowledged = True
        apply_entry(ledger.entries, write)


def apply_entry(entries: list[str], write: Write) -> None:
    """Change a client's own list as the request did."""
    if write.operation == APPEND:
        entries.append(write.entry)
    else:
        entries.remove(write.entry)


@dataclass(slots=True, kw_only=True)
class TopicLedger:
    """Created and deleted topics. The ledger survives every crash of the broker."""

    alive: dict[str, UUID] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    """Topics whose creation or deletion was in progress during a crash."""
    names_by_id: dict[UUID, str] = field(default_factory=dict)


class LoadCreator(Worker):
    """Client that creates topics and deletes every second one until the broker has crashed."""

    def __init__(self, address: str, ledger: TopicLedger, numbers: itertools.count[int]) -> None:
        self._address = address
        self._ledger = ledger
        self._numbers = numbers
        super().__init__("creator")

    def _work(self) -> None:
        try:
            with WireClient(self._address) as client:
                while not self._stop.is_set():
                    self._create(client, f"made-{next(self._numbers)}")
                    self._delete(client, self._create(client, f"made-{next(self._numbers)}"))
                    time.sleep(0.05)
        except OSError:
            return

    def _create(self, client: WireClient, name: str) -> str:
        self._ledger.unknown.add(name)
        topic_id = client.create_topic(name)
        self._ledger.alive[name] = topic_id
        self._ledger.unknown.remove(name)
        assert self._ledger.names_by_id.setdefault(topic_id, name) == name, f"{name} was given a used id"
        return name

    def _delete(self, client: WireClient, name: str) -> None:
        self._ledger.unknown.add(name)
        client.delete_topic(name)
        del self._ledger.alive[name]
        self._ledger.unknown.remove(name)
        self._ledger.deleted.add(name)
