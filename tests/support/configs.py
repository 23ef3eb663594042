"""Config service on a store in memory that can delay or fail its commits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from klamm.broker.configs.loggers import PythonLoggers
from klamm.broker.configs.rules import ResourceAlteration
from klamm.broker.configs.service import ConfigService
from klamm.broker.context import RequestContext
from klamm.broker.security.authorizer import AllowAll
from klamm.history.change import Author, RecordedChange
from klamm.protocol.errors import StorageError
from klamm.protocol.messages.describe_configs import DescribeConfigsResponse
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.types import ConfigOperation, ResourceType
from klamm.server.session import Session
from klamm.storage.metadata.changes import Change, PutConfig, PutTopic
from klamm.storage.metadata.store import MetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from klamm.broker.configs.guard import AlterConfigGuard
    from klamm.broker.handlers.api_032_describe_configs import DescribeConfigsAnswer
    from klamm.configs.operations import AlterOperation, ConfigDelta

NOON_MS = 1_700_000_000_000
ANNA = Author(principal="User:anna", client_id="tool")
SET, DELETE, APPEND, SUBTRACT = ConfigOperation


def message_of(answer: DescribeConfigsAnswer) -> DescribeConfigsResponse:
    """Return the message that an answer encodes in pieces."""
    for result in answer.results:
        result.head.configs = [answer.to_wire(result.head.resource_type, config) for config in result.configs]
    return DescribeConfigsResponse(
        throttle_time_ms=answer.throttle_time_ms, results=[result.head for result in answer.results]
    )


class MemoryConfigStore(MetadataStore):
    """Store in memory. ``hold`` delays commits until ``release``; ``fail_next`` makes the next commit fail."""

    def __init__(self, *, topics: Iterable[str] = ("t",), configs: Iterable[PutConfig] = ()) -> None:
        self.topics = list(topics)
        self.configs = {(c.resource_type, c.resource_name, c.name): c for c in configs}
        self.history: list[RecordedChange] = []
        self.committed: list[list[Change]] = []
        self.hold = False
        self.fail_next = False
        self._waiting: list[tuple[list[Change], asyncio.Future[None]]] = []

    def submit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((list(changes), future))
        if not self.hold:
            self.release()
        return future

    def release(self) -> None:
        """Complete all waiting commits, or fail them."""
        waiting, self._waiting = self._waiting, []
        for changes, future in waiting:
            if self.fail_next:
                future.set_exception(StorageError("disk full"))
                continue
            self.committed.append(changes)
            for change in changes:
                self._store(change)
            if not future.cancelled():
                future.set_result(None)
        self.fail_next = False

    def _store(self, change: Change) -> None:
        if isinstance(change, RecordedChange):
            self.history.append(change)
        elif isinstance(change, PutConfig):
            key = (change.resource_type, change.resource_name, change.name)
            if change.value is None:
                self.configs.pop(key, None)
            else:
                self.configs[key] = change

    def load_topics(self) -> list[PutTopic]:
        return [PutTopic(topic_id=uuid4(), name=name, partitions=((1,),)) for name in self.topics]

    def load_configs(self) -> list[PutConfig]:
        return list(self.configs.values())

    def values(self, resource_type: ResourceType, name: str) -> dict[str, str]:
        """Return the stored configs of a resource."""
        return {
            c.name: c.value or ""
            for (kind, resource, _), c in self.configs.items()
            if (kind, resource) == (resource_type, name)
        }


class MemoryLoggers(PythonLoggers):
    """Two loggers."""

    def __init__(self) -> None:
        self.set_levels: dict[str, str | None] = {"root": "INFO", "klamm.broker": None}

    def levels(self) -> Mapping[str, str]:
        root = self.set_levels["root"] or "INFO"
        return {name: level or root for name, level in self.set_levels.items()}

    def apply(self, changes: Sequence[ConfigDelta]) -> None:
        self.set_levels.update({change.name: change.value for change in changes})


def make_service(
    store: MemoryConfigStore | None = None,
    *,
    static: Mapping[str, str] | None = None,
    node_ids: Sequence[int] = (1,),
    loggers: MemoryLoggers | None = None,
    guards: Sequence[AlterConfigGuard] = (),
    topic: Callable[[str], object] = lambda _: None,
) -> ConfigService:
    return ConfigService(
        store=store or MemoryConfigStore(),
        static=static or {"num.partitions": "1"},
        started_with={node_id: {"node.id": str(node_id), "broker.id": str(node_id)} for node_id in node_ids},
        now_ms=lambda: NOON_MS,
        loggers=loggers or MemoryLoggers(),
        guards=guards,
        topic=topic,
    )


def make_context(
    service: ConfigService, *, api_version: int = 1, client_id: str | None = "tool", **services: Any
) -> RequestContext:
    return RequestContext(
        services=cast("Any", SimpleNamespace(configs=service, **{"authorizer": AllowAll(), **services})),
        session=Session(connection_id=1, node_id=1, principal="User:anna"),
        api_version=api_version,
        client_id=client_id,
    )


def operation(name: str, config_operation: int, value: str | None = None) -> AlterOperation:
    return IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=config_operation, value=value)


def alteration(resource_type: int, name: str, *operations: AlterOperation) -> ResourceAlteration:
    return ResourceAlteration(resource_type=resource_type, resource_name=name, operations=operations)


def topic(name: str, *operations: AlterOperation) -> ResourceAlteration:
    return alteration(ResourceType.TOPIC, name, *operations)


def replacement(resource_type: int, name: str, *configs: tuple[str, str | None]) -> ResourceAlteration:
    return ResourceAlteration(resource_type=resource_type, resource_name=name, operations=None, replacement=configs)
