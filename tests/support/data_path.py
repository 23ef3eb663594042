"""Handlers of the data path over real logs: two broker ids, some topics, responses as a client decodes them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from klamm.broker.cluster import AdvertisedBroker, ClusterInfo
from klamm.broker.context import RequestContext
from klamm.broker.fetch.sessions import FetchSessions
from klamm.broker.groups.offset_coordinator import OffsetCoordinator
from klamm.broker.producer_ids import ProducerIdAllocator
from klamm.broker.security.authorizer import AllowAll
from klamm.broker.topics.catalog import Topic
from klamm.broker.transactions.coordinator import TransactionCoordinator
from klamm.protocol.codec import decode, encode
from klamm.server.session import Session
from klamm.storage.log import LogManager, PartitionLog
from tests.support.enforcement import SameForAll
from tests.support.group_broker import MemoryStore
from tests.support.logs import Clock, FailingPool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from klamm.protocol.schema import Message
    from klamm.server.route import Piece, Route

Answer = TypeVar("Answer", bound="Message")

HERE, ELSEWHERE = 1, 2
TRANSACTION_CONFIG = {
    "transaction.max.timeout.ms": 900_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
    "transactional.id.expiration.ms": 604_800_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 3_600_000,
    "transaction.partition.verification.enable": True,
}


def joined(pieces: Sequence[Piece]) -> bytes:
    """Return the bytes of a response, including those read from files."""
    return b"".join(
        piece if isinstance(piece, bytes | bytearray | memoryview) else piece.read(0, len(piece)) for piece in pieces
    )


class Topics:
    """Topics by name and id."""

    def __init__(self) -> None:
        self.known: dict[str, Topic] = {}

    def get(self, name: str) -> Topic | None:
        return self.known.get(name)

    def all(self) -> list[Topic]:
        return list(self.known.values())

    def by_id(self, topic_id: UUID) -> Topic | None:
        return next((topic for topic in self.known.values() if topic.topic_id == topic_id), None)


class ProducerIds(ProducerIdAllocator):
    """Allocator of ascending producer ids."""

    def __init__(self) -> None:
        self.given = 41

    async def allocate(self) -> int:
        self.given += 1
        return self.given


class NoOffsets(OffsetCoordinator):
    """Offset service without pending offsets of transactions."""

    def __init__(self) -> None:
        """Hold no groups."""

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Do nothing."""


class DataPath:
    """Two broker ids over one data directory. ``ask`` sends encoded requests through the route."""

    def __init__(self, data_dir: Path) -> None:
        self.configs: dict[str, str] = {}
        self.clock = Clock()
        self.pool = FailingPool()
        self.topics = Topics()
        self.logs = LogManager(data_dir, configs_of=lambda _: self.configs, now_ms=self.clock, pool=self.pool)
        self.sessions = FetchSessions(now_ms=self.clock, max_sessions=2)
        nodes = (
            AdvertisedBroker(node_id=HERE, host="a", port=1),
            AdvertisedBroker(node_id=ELSEWHERE, host="b", port=2, rack="r"),
        )
        self.broker_configs = {"fetch.max.bytes": 57_671_680}
        self.services = SimpleNamespace(
            configs=SimpleNamespace(int_value=self.broker_configs.__getitem__),
            now_ms=self.clock,
            cluster=ClusterInfo(cluster_id="c", nodes=nodes),
            topics=self.topics,
            logs=self.logs,
            fetch_sessions=self.sessions,
            producer_ids=ProducerIds(),
            authorizer=AllowAll(),
            enforcement=SameForAll(),
        )
        self.transactions = TransactionCoordinator(
            MemoryStore(),
            TRANSACTION_CONFIG.__getitem__,
            producer_ids=self.services.producer_ids,
            logs=self.logs,
            offsets=NoOffsets(),
            now_ms=self.clock,
        )
        self.services.transactions = self.transactions
        self.add_topic("t", partitions=2)

    def add_topic(self, name: str, *, partitions: int = 1, leader: int = HERE, is_internal: bool = False) -> Topic:
        """Create a topic. Its id is derived from the number of topics."""
        topic = Topic(
            name=name,
            topic_id=UUID(int=len(self.topics.known) + 100),
            is_internal=is_internal,
            partitions=((leader,),) * partitions,
        )
        self.topics.known[name] = topic
        for partition in range(partitions):
            self.logs.create(topic.topic_id, name, partition)
        return topic

    def replace_topic(self, name: str) -> Topic:
        """Delete a topic and create one of the same name."""
        topic = self.topics.known[name]
        self.logs.delete_topic(topic.topic_id)
        again = self.topics.known[name] = replace(topic, topic_id=UUID(int=topic.topic_id.int + 1000))
        self.logs.create(again.topic_id, name, 0)
        return again

    def log(self, topic: str = "t", partition: int = 0) -> PartitionLog:
        log = self.logs.get(self.topics.known[topic].topic_id, partition)
        assert log is not None
        return log

    def start_epoch(self, leader_epoch: int) -> None:
        """Raise the leader epoch, as a restart after an unclean shutdown does."""
        self.services.cluster = replace(self.services.cluster, leader_epoch=leader_epoch)
        for topic in self.topics.known.values():
            for partition in range(len(topic.partitions)):
                self.log(topic.name, partition).leader_epoch = leader_epoch

    def context(self, version: int, *, node_id: int = HERE) -> RequestContext:
        return RequestContext(
            services=cast("Any", self.services),
            session=Session(connection_id=1, node_id=node_id),
            api_version=version,
            client_id="test",
        )

    async def call(
        self, route: Route, request: Message, answer: type[Answer], version: int, *, node_id: int = HERE
    ) -> Answer | None:
        """Send a request through the codec and read the response, as over a connection."""
        frame = memoryview(encode(request, version))
        decoded = decode(route.request, version, frame)
        response = await route.handle(decoded, self.context(version, node_id=node_id))
        if response is None:
            return None
        if isinstance(response, answer):
            return decode(answer, version, encode(response, version))
        return decode(answer, version, joined(cast("Any", response).buffers(version)))

    def ask(self, route: Route, request: Message, answer: type[Answer], version: int, *, node_id: int = HERE) -> Answer:
        """Like ``call``, in a new event loop, for requests that have a response."""
        response = asyncio.run(self.call(route, request, answer, version, node_id=node_id))
        assert response is not None
        return response


def opened(tmp_path: Path) -> Iterator[DataPath]:
    """Data path below ``tmp_path``, whose log files are closed at the end: ``broker = pytest.fixture(opened)``."""
    path = DataPath(tmp_path)
    yield path
    asyncio.run(path.logs.close())
