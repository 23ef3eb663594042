"""Transactions on a broker whose disk is recorded, and the checks after a power cut."""

from __future__ import annotations

import asyncio
import copy
import errno
import random
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, cast
from unittest import mock

from klamm.broker.app import BrokerApp
from klamm.broker.cluster import AdvertisedBroker
from klamm.broker.context import RequestContext
from klamm.broker.routes import ROUTES
from klamm.broker.settings import parse_arguments
from klamm.broker.transactions.model import ConcurrentTransactionsError
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.records import Record, encode_batch
from klamm.server.session import Session
from klamm.storage.log.recovery import open_partition
from klamm.storage.metadata.identity import check_metadata
from klamm.storage.metadata.store import MetadataStore
from tests.support.raw_logs import Committed, read_committed_raw
from tests.support.transaction_wire import TransactionClient, Who
from tests.support.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path
    from types import TracebackType

    from klamm.broker.context import Services
    from klamm.protocol.schema import Message
    from klamm.storage.log import PartitionLog
    from klamm.storage.metadata.schema import Database
    from tests.support.recorded_disk import Cut, RecordedDisk
    from tests.support.wire import WireClient

T = TypeVar("T")
Answer = TypeVar("Answer", bound="Message")

TOPIC: Final = "transfers"
PARTITIONS: Final = 3
PRODUCERS: Final = 3
DURABLE: Final = ("--set", "log.flush.interval.messages=1")
COMMITTED, ABORTED, UNKNOWN, OPEN = "committed", "aborted", "unknown", "open"
_PATIENCE_S: Final = 60.0


class LocalBroker:
    """Broker in this process whose handlers are called through the codec. Its event loop has its own thread."""

    def __init__(self, data_dir: Path, *options: str, connect: Callable[[Path], Database] | None = None) -> None:
        self._settings = parse_arguments(["--listen", "127.0.0.1:0", "--data-dir", str(data_dir), *options])
        self._connect = connect
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self._routes = {route.request: route for route in ROUTES.values()}
        self._app: BrokerApp | None = None

    @property
    def services(self) -> Services:
        """Services of the broker. Use them on its event loop only."""
        assert self._app is not None
        return self._app.services

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        name = self._settings.listeners[0].name
        nodes = {name: (AdvertisedBroker(node_id=1, host="127.0.0.1", port=9092),)}
        try:
            with self._over_disk():
                self._app = self.run(BrokerApp.start(self._settings, nodes))
        except BaseException:
            self._end_loop()
            raise
        return self

    @contextmanager
    def _over_disk(self) -> Iterator[None]:
        if self._connect is None:
            yield
            return
        opened = partial(MetadataStore.open, connect=self._connect)
        checked = partial(check_metadata, connect=self._connect)
        with (
            mock.patch.object(MetadataStore, "open", opened),
            mock.patch("klamm.broker.data_directory.check_metadata", checked),
        ):
            yield

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop in order."""
        if self._app is not None:
            self.run(self._app.stop())
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_PATIENCE_S)

    def ask(self, request: Message, answer: type[Answer], version: int) -> Answer:
        """Send a request through the codec and return the response."""
        return self.run(self._ask(request, answer, version))

    async def _ask(self, request: Message, answer: type[Answer], version: int) -> Answer:
        route = self._routes[type(request)]
        context = RequestContext(
            services=self.services, session=Session(connection_id=1, node_id=1), api_version=version, client_id="test"
        )
        response = await route.handle(decode(route.request, version, memoryview(encode(request, version))), context)
        return decode(answer, version, encode(cast("Message", response), version))

    def produce(self, partition: int, sent: Sent) -> int:
        """Append a batch outside of transactions; return the error code."""
        batch = encode_batch(
            [Record(None, sent.value.encode(), (), time.time_ns() // 1_000_000, 0)],
            producer_id=sent.producer.producer_id,
            producer_epoch=sent.producer.epoch,
            base_sequence=sent.sequence,
        )
        data = ProduceRequest.PartitionProduceData(index=partition, records=batch)
        topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
        answer = self.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), ProduceResponse, 9)
        return answer.responses[0].partition_responses[0].error_code

    def transactional(self, transactional_id: str) -> TransactionClient:
        """Return a client for a transactional id."""
        return TransactionClient(cast("WireClient", self), transactional_id)


class Sent(NamedTuple):
    """A batch with one record of an idempotent producer."""

    producer: Who
    sequence: int
    value: str


@dataclass(slots=True)
class Ledger:
    """Facts known to the clients: the outcome of each transaction, as far as they received responses."""

    ends: dict[tuple[int, int], str] = field(default_factory=dict)
    """By producer and number of the transaction."""
    written: dict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    """Partitions with an acknowledged record."""
    plain: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Acknowledged records outside of transactions, by partition."""
    sent: dict[int, Sent] = field(default_factory=dict)
    """The last batch outside of transactions, by partition: its producer sends it again after a crash."""
    epochs: dict[int, int] = field(default_factory=dict)
    """Largest epoch that a client received, by producer id."""

    def take(self, fact: tuple[Any, ...]) -> None:
        """Add a fact."""
        match fact:
            case ("end", producer, number, how):
                self.ends[producer, number] = how
            case ("written", producer, number, partition):
                self.written[producer, number].add(partition)
            case ("sent", partition, sent):
                self.sent[partition] = sent
            case ("plain", partition, value):
                self.plain[partition].append(value)
            case ("identity", producer_id, epoch):
                self.epochs[producer_id] = max(epoch, self.epochs.get(producer_id, -1))
            case _:
                raise AssertionError(fact)

    def at(self, cut: Cut) -> Ledger:
        """Return the facts that clients knew at the moment of a power cut."""
        copied = copy.deepcopy(self)
        for fact in cut.facts:
            copied.take(fact)
        return copied


def value_of(producer: int, number: int, partition: int) -> str:
    """Return the record of a transaction in a partition."""
    return f"{producer}:{number}:{partition}"


class Transferring(Worker):
    """One producer with consecutive transactions. Half of the producers use the old protocol."""

    def __init__(self, broker: LocalBroker, disk: RecordedDisk, ledger: Ledger, producer: int, count: int) -> None:
        self._broker = broker
        self._note = disk.note
        self._producer = producer
        self._first = 1 + max((number for of, number in ledger.ends if of == producer), default=-1)
        self._count = count
        self._knows_v2 = producer % 2 == 0
        self._sequences: dict[int, int] = {}
        super().__init__(f"producer {producer}")

    def _work(self) -> None:
        ours = self._broker.transactional(f"transfer-{self._producer}")
        identity = self._init(ours)
        for number in range(self._first, self._first + self._count):
            if random.random() < 0.15:
                identity = self._init(ours)
            identity = self._transfer(ours, identity, number)

    def _init(self, ours: TransactionClient) -> Who:
        code, identity = ours.init(4)
        assert code == 0
        self._note(("identity", *identity))
        self._sequences.clear()
        return identity

    def _transfer(self, ours: TransactionClient, identity: Who, number: int) -> Who:
        producer = self._producer
        self._note(("end", producer, number, OPEN))
        partitions = [(number + step) % PARTITIONS for step in range(1 + number % PARTITIONS)]
        group = f"group-{producer}"
        if not self._knows_v2:
            assert ours.add(identity, 3, TOPIC, *partitions) == [0] * len(partitions)
            assert ours.add_offsets(identity, 3, group) == 0
        is_empty = random.random() < 0.3  # a lost marker of the previous transaction is still written again
        for partition in () if is_empty else partitions:
            sequence = self._sequences.get(partition, 0)
            value = value_of(producer, number, partition)
            code = ours.produce(identity, 12 if self._knows_v2 else 9, TOPIC, partition, value, sequence=sequence)
            assert code == 0, f"{identity} may not write {value} with sequence {sequence}: error code {code}"
            self._sequences[partition] = sequence + 1
            self._note(("written", producer, number, partition))
        assert ours.commit_offset(identity, 5 if self._knows_v2 else 3, group, TOPIC, number) == 0
        if random.random() < 0.1:
            return self._init(ours)  # aborts it
        is_commit = random.random() < 0.7
        self._note(("end", producer, number, UNKNOWN if is_commit else ABORTED))
        code, following = ours.end(identity, 5 if self._knows_v2 else 4, commit=is_commit)
        assert code == 0
        if is_commit:
            self._note(("end", producer, number, COMMITTED))
        if not self._knows_v2:
            return identity
        self._note(("identity", *following))
        self._sequences.clear()
        return following


class Writing(Worker):
    """Records outside of transactions, and the broker's background work, earlier than it would be due."""

    def __init__(self, broker: LocalBroker, disk: RecordedDisk, life: int) -> None:
        self._broker = broker
        self._note = disk.note
        self._life = life
        super().__init__("plain records")

    def _work(self) -> None:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
        )
        answer = self._broker.ask(request, InitProducerIdResponse, 4)
        assert answer.error_code == 0
        identity = Who(answer.producer_id, answer.producer_epoch)
        self._note(("identity", *identity))
        number = 0
        while not self._stop.is_set():
            sequence, partition = divmod(number, PARTITIONS)
            sent = Sent(identity, sequence, f"plain:{self._life}:{number}")
            self._note(("sent", partition, sent))
            code = self._broker.produce(partition, sent)
            assert code == 0, f"{sent} is rejected: error code {code}"
            self._note(("plain", partition, sent.value))
            number += 1
            self._broker.run(self._keep_house(random.choice(("tick", "check", "settle", "checkpoint", "", ""))))
            time.sleep(random.uniform(0, 0.01))

    async def _keep_house(self, task: str) -> None:
        services = self._broker.services
        if task == "settle":
            await services.transactions.decisions.settle()
        elif task == "checkpoint":
            await services.logs.checkpoint()
        elif task:
            await getattr(services.logs.housekeeper, task)()


def live(data_dir: Path, disk: RecordedDisk, ledger: Ledger, *options: str, life: int, transactions: int) -> None:
    """Run a broker and its clients for a while. The disk's journal records everything."""
    with disk.recording(), LocalBroker(data_dir, *options, connect=disk.connect) as broker:
        if broker.services.topics.get(TOPIC) is None:
            configs = {"internal.segment.bytes": "2000", "flush.ms": "20"}
            broker.run(broker.services.topics.create(TOPIC, [[1]] * PARTITIONS, configs=configs))
        clients = [Transferring(broker, disk, ledger, number, transactions) for number in range(PRODUCERS)]
        writing = Writing(broker, disk, life)
        for client in clients:
            client.join(_PATIENCE_S)
        writing.stop(_PATIENCE_S)


@dataclass(frozen=True, slots=True)
class Found:
    """State of a broker after its start on the remains of a power cut."""

    partitions: list[Committed]
    offsets: dict[str, int]
    identities: list[Who]
    new_producer_id: int
    resent: dict[int, int]
    """Error codes of the batches that were sent again, by partition."""


def start_after(data_dir: Path, ledger: Ledger, *options: str, opens_late: bool = False) -> Found:
    """Start a broker on the remains of a power cut, end open transactions, repeat unacknowledged batches, stop it.

    Args:
        data_dir: Remains of the power cut.
        ledger: Facts known to clients.
        options: Options of the broker.
        opens_late: Whether no log can be opened during the start. The disk may be full, for example.
    """
    is_failing = opens_late
    retry = mock.patch("klamm.broker.transactions.coordinator._RETRY_S", 0.01)

    def opened(**arguments: Any) -> PartitionLog:
        if is_failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_partition(**arguments)

    opening = mock.patch("klamm.storage.log.manager.open_partition", opened)
    with mock.patch("os.fsync"), retry, opening, LocalBroker(data_dir, *options) as broker:
        is_failing = False
        if broker.services.topics.get(TOPIC) is None:
            return Found([Committed([], {}, [], 0)] * PARTITIONS, {}, [], 2**62, {})
        identities = [broker.run(_initialize(broker.services, number)) for number in range(PRODUCERS)]
        new_producer_id = broker.run(broker.services.producer_ids.allocate())
        topic = broker.services.topics.get(TOPIC)
        assert topic is not None
        for partition in range(PARTITIONS):
            log = broker.services.logs.get(topic.topic_id, partition)
            assert log is not None
            assert log.last_stable_offset == log.end_offset, f"Readers of {log.name} wait for ever"
        resent = {partition: broker.produce(partition, sent) for partition, sent in ledger.sent.items()}
        offsets = {row.group_id: row.offset for row in broker.run(_offsets(broker))}
    partitions = [read_committed_raw(data_dir / "logs" / f"{TOPIC}-{number}") for number in range(PARTITIONS)]
    return Found(partitions, offsets, identities, new_producer_id, resent)


async def _offsets(broker: LocalBroker) -> list[Any]:
    assert broker._app is not None
    store = broker._app.store
    await store.submit([])
    assert not store.load_pending_offsets(), "an offset waits for a transaction that has ended"
    return list(store.load_group_offsets())


async def _initialize(services: Services, producer: int) -> Who:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            name = f"transfer-{producer}"
            return Who(*await services.transactions.initialize(name, timeout_ms=60_000, expected=None))
        except ConcurrentTransactionsError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)


def violations_of(ledger: Ledger, recovered: Found, *, is_durable: bool) -> list[str]:
    """Compare the facts known to clients with the state after the restart.

    Args:
        ledger: Facts known to clients at the moment of the power cut.
        found: State after the start.
        is_durable: Acknowledged records were on disk (``flush.messages=1``), so none may be missing.
    """
    return [
        *_wrong_partitions(ledger, recovered, is_durable=is_durable),
        *_wrong_transactions(ledger, recovered, is_durable=is_durable),
        *_wrong_identities(ledger, recovered),
    ]


def _wrong_partitions(ledger: Ledger, recovered: Found, *, is_durable: bool) -> list[str]:
    wrong = []
    for number, partition in enumerate(recovered.partitions):
        values = partition.values
        if len(partition.all_values) != len(set(partition.all_values)):
            wrong.append(f"partition {number} holds a record twice")
        if partition.open_producers:
            wrong.append(f"partition {number} holds open transactions: {partition.open_producers}")
        for producer in range(PRODUCERS):
            own = [int(value.split(":")[1]) for value in values if value.startswith(f"{producer}:")]
            if own != sorted(own):
                wrong.append(f"partition {number} is out of order for producer {producer}: {own}")
        if is_durable and recovered.resent.get(number, 0) != 0:
            wrong.append(f"partition {number} rejects {ledger.sent[number]}: error code {recovered.resent[number]}")
        if is_durable and (lost := set(ledger.plain[number]) - set(values)):
            wrong.append(f"partition {number} has lost acknowledged records: {sorted(lost)}")
    return wrong


def _wrong_transactions(ledger: Ledger, recovered: Found, *, is_durable: bool) -> list[str]:
    wrong = []
    visible: dict[int, int] = {}
    committed = [set(partition.values) for partition in recovered.partitions]
    survived = [set(partition.all_values) for partition in recovered.partitions]
    for (producer, number), how in ledger.ends.items():
        values = {index: value_of(producer, number, index) for index in range(PARTITIONS)}
        there = {index for index, value in values.items() if value in committed[index]}
        left = {index for index, value in values.items() if value in survived[index]}
        written = ledger.written.get((producer, number), set())
        full = written if is_durable else left
        allowed = {COMMITTED: [full], UNKNOWN: [full, set()]}.get(how, [set()])
        if there not in allowed:
            wrong.append(f"transaction {number} of {producer} ({how}, written to {written}) is in {there} of {left}")
        if how == COMMITTED or there:
            visible[producer] = number
    for producer, number in visible.items():
        if recovered.offsets.get(f"group-{producer}") not in _allowed_offsets(ledger, producer, number):
            wrong.append(f"group-{producer} has {recovered.offsets}, the last visible transaction is {number}")
    return wrong


def _allowed_offsets(ledger: Ledger, producer: int, number: int) -> set[int]:
    """Return the offsets of the last visible transaction. One that may be committed may have lost its records."""
    later = (
        of for (identity, of), how in ledger.ends.items() if identity == producer and of > number and how == UNKNOWN
    )
    return {number, *later}


def _wrong_identities(ledger: Ledger, recovered: Found) -> list[str]:
    wrong = [
        f"producer id {identity.producer_id} has epoch {identity.epoch} again"
        for identity in recovered.identities
        if identity.epoch <= ledger.epochs.get(identity.producer_id, -1)
    ]
    if recovered.new_producer_id <= max(ledger.epochs, default=-1):
        wrong.append(f"producer id {recovered.new_producer_id} is given again")
    return wrong
