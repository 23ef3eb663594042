"""Handlers of the group APIs over a coordinator in memory, called through the codec."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from uuid import UUID

from klamm.broker.cluster import AdvertisedBroker, ClusterInfo
from klamm.broker.context import RequestContext
from klamm.broker.groups.coordinator import GroupCoordinator
from klamm.broker.security.authorizer import AllowAll
from klamm.broker.topics.catalog import Topic, TopicCatalog
from klamm.protocol.codec import decode, encode
from klamm.server.session import Session
from klamm.storage.metadata.store import MetadataStore
from tests.support.enforcement import SameForAll
from tests.support.groups import CONSUMER_DEFAULTS, GROUP_CONFIGS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet
    from types import TracebackType

    from klamm.protocol.schema import Message
    from klamm.security.acls import AclOperation, AclResourceType
    from klamm.server.route import Route
    from klamm.storage.metadata.changes import (
        Change,
        PutDecision,
        PutGroup,
        PutGroupOffset,
        PutPendingOffset,
        PutTransaction,
    )

Answer = TypeVar("Answer", bound="Message")

CONFIG: dict[str, Any] = {
    **CONSUMER_DEFAULTS,
    "group.min.session.timeout.ms": 6_000,
    "group.max.session.timeout.ms": 1_800_000,
    "offset.metadata.max.bytes": 4096,
    "offsets.retention.minutes": 60,
    "offsets.retention.check.interval.ms": 600_000,
    "group.initial.rebalance.delay.ms": 0,
    "group.max.size": 100,
}
TOPIC_ID = UUID(int=1)


TOPIC = Topic(name="t", topic_id=TOPIC_ID, partitions=((1,), (1,)))


class OneTopicCatalog(TopicCatalog):
    """Catalog with the topic ``t``."""

    def __init__(self) -> None:
        """Hold no store."""
        self.changes = 0

    def get(self, name: str) -> Topic | None:
        """Return the topic if its name is ``t``."""
        return TOPIC if name == "t" else None

    def existing(self, names: AbstractSet[str]) -> dict[str, Topic]:
        """Return the topic if ``t`` is among the names."""
        return {"t": TOPIC} if "t" in names else {}

    def by_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic if it has this id."""
        return TOPIC if topic_id == TOPIC_ID else None


class MemoryStore(MetadataStore):
    """Metadata store that keeps nothing and completes every commit at once."""

    def __init__(self) -> None:
        """Open no file."""

    def submit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Return a completed future."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def load_groups(self) -> list[PutGroup]:
        """Return nothing."""
        return []

    def load_group_offsets(self) -> list[PutGroupOffset]:
        """Return nothing."""
        return []

    def load_pending_offsets(self) -> list[PutPendingOffset]:
        """Return nothing."""
        return []

    def load_decisions(self) -> list[PutDecision]:
        """Return nothing."""
        return []

    def load_transactions(self) -> list[PutTransaction]:
        """Return nothing."""
        return []


class Denying(AllowAll):
    """Authorizer that denies some operations."""

    is_enabled = True  # type: ignore[misc]  # final in the class

    def __init__(self, denied: set[tuple[AclOperation, str]]) -> None:
        self._denied = denied

    def is_allowed(
        self, _session: Session, operation: AclOperation, _resource_type: AclResourceType, name: str
    ) -> bool:
        """Return whether an operation is not among the denied ones."""
        return (operation, name) not in self._denied


class GroupBroker:
    """Brokers 1..n with one group coordinator; a context manager."""

    def __init__(self, brokers: int = 1) -> None:
        self._runner = asyncio.Runner()
        nodes = tuple(
            AdvertisedBroker(node_id=number, host=f"host-{number}", port=9000 + number)
            for number in range(1, brokers + 1)
        )
        self.cluster = ClusterInfo(cluster_id="cluster", nodes=nodes)
        self.topics = OneTopicCatalog()
        self.enforcement = SameForAll()
        self.denied: set[tuple[AclOperation, str]] = set()
        """Operations that the principal may not perform, with the names of topics and groups."""
        self.groups = GroupCoordinator(
            MemoryStore(),
            CONFIG.__getitem__,
            self.topics,
            group_config=lambda _: GROUP_CONFIGS,
            now=time.monotonic,
            wall_ms=lambda: time.time_ns() // 1_000_000,
        )

    def __enter__(self) -> Self:
        """Start."""
        self._runner.run(self.groups.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self._runner.run(self.groups.stop())
        self._runner.close()

    def ask(self, route: Route, request: Message, answer: type[Answer], version: int, *, node_id: int = 1) -> Answer:
        """Send a request to one of the brokers and return what a client reads."""
        assert route.api.serves(version)
        # the internal topics exist
        topics = SimpleNamespace(
            get=lambda name: OneTopicCatalog().get(name) or name,
            by_id=OneTopicCatalog().by_id,
            all=lambda: [TOPIC],
        )
        services = SimpleNamespace(
            groups=self.groups,
            cluster=self.cluster,
            topics=topics,
            authorizer=Denying(self.denied) if self.denied else AllowAll(),
            enforcement=self.enforcement,
            now_ms=lambda: time.time_ns() // 1_000_000,
        )
        context = RequestContext(
            services=cast("Any", services),
            session=Session(connection_id=1, node_id=node_id, client_host="10.0.0.1"),
            api_version=version,
            client_id="tester",
        )
        received = decode(type(request), version, encode(request, version))
        response = cast("Message", self._runner.run(cast("Any", route.handle(received, context))))
        return decode(answer, version, encode(response, version))
