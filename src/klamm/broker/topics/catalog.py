"""The topics of the cluster: the one owner of what exists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from klamm.broker.author import BROKER_ITSELF, Author
from klamm.broker.random_ids import random_uuid
from klamm.configs.names import INTERNAL_TOPICS
from klamm.protocol.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError
from klamm.storage.changes import DropTopic, PutTopic

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from klamm.broker.configs.service import ConfigService
    from klamm.storage.log import LogManager
    from klamm.storage.metadata import MetadataStore

LEADER_EPOCH: Final = 0
"""Leaders need no epoch: the first replica leads, and all replicas are this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic with its replicas."""

    name: str
    topic_id: UUID
    is_internal: bool = False
    partitions: tuple[tuple[int, ...], ...]
    """Broker ids of each partition's replicas, by partition index; the first one leads."""

    def leader(self, partition: int) -> int:
        """Return the broker id that leads ``partition``."""
        return self.partitions[partition][0]

    def has_partition(self, partition: int) -> bool:
        """Tell whether ``partition`` exists."""
        return 0 <= partition < len(self.partitions)


class TopicCatalog:
    """Topics by name and id, kept in memory and in the metadata store. Loop-confined, no lock.

    A change is applied to memory and queued for the store without an await in between, so that decisions that
    follow see it; callers answer only when it is on disk.
    """

    def __init__(
        self,
        *,
        store: MetadataStore,
        configs: ConfigService,
        logs: LogManager,
        new_topic_id: Callable[[], UUID] = random_uuid,
    ) -> None:
        self._store = store
        self._configs = configs
        self._logs = logs
        self.new_topic_id = new_topic_id
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._by_folded_name: dict[str, set[str]] = {}
        self._deletion_listeners: list[Callable[[Topic], None]] = []
        self.load()

    def load(self) -> None:
        """Take the topics from the store."""
        self._by_name.clear()
        self._by_id.clear()
        self._by_folded_name.clear()
        for row in self._store.load_topics():
            topic = Topic(
                name=row.name,
                topic_id=row.topic_id,
                is_internal=row.is_internal or row.name in INTERNAL_TOPICS,
                partitions=tuple(row.partitions),
            )
            self._remember(topic)
            self._open_logs(topic, range(len(topic.partitions)))

    # -- reading

    def get(self, name: str) -> Topic | None:
        """Return a topic by name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        """Return a topic by id."""
        return self._by_id.get(topic_id)

    def all(self) -> Sequence[Topic]:
        """Return all topics by name, ascending."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def __len__(self) -> int:
        """Count the topics."""
        return len(self._by_name)

    def colliding(self, name: str) -> str | None:
        """Return a topic whose name differs only in dots and underscores (they share a metric's name), if any."""
        return next((other for other in self._by_folded_name.get(_folded(name), ()) if other != name), None)

    # -- changing

    def on_deleted(self, listener: Callable[[Topic], None]) -> None:
        """Call ``listener`` with every topic that is deleted, at once; it is not in the catalog any more."""
        self._deletion_listeners.append(listener)

    async def create(
        self,
        name: str,
        partitions: Sequence[Sequence[int]],
        *,
        configs: Mapping[str, str],
        is_internal: bool = False,
        author: Author = BROKER_ITSELF,
    ) -> Topic:
        """Create a topic with its logs and configs; returns when it is durable.

        Raises:
            TopicAlreadyExistsError: Somebody else was faster.
            StorageError: The disk refuses.
        """
        topic, done = self.begin_create(name, partitions, configs=configs, is_internal=is_internal, author=author)
        await done
        return topic

    def begin_create(
        self,
        name: str,
        partitions: Sequence[Sequence[int]],
        *,
        configs: Mapping[str, str],
        is_internal: bool = False,
        author: Author = BROKER_ITSELF,
    ) -> tuple[Topic, asyncio.Future[None]]:
        """Create a topic in memory; the future is done when it is durable and has its logs.

        Raises:
            TopicAlreadyExistsError: Somebody else was faster.
            StorageError: The store is closed.
        """
        if name in self._by_name:
            raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")
        topic = Topic(
            name=name,
            topic_id=self.new_topic_id(),
            is_internal=is_internal,
            partitions=tuple(map(tuple, partitions)),
        )
        self._remember(topic)
        changes = [_row(topic), *self._configs.create_topic(name, configs, author=author)]
        commit = self._store.submit(changes)
        return topic, _followed(commit, lambda: self._open_logs(topic, range(len(topic.partitions))))

    async def delete(self, topic: Topic) -> None:
        """Delete a topic with its data, configs and committed offsets.

        Raises:
            UnknownTopicOrPartitionError: It is gone already.
            StorageError: The disk refuses.
        """
        await self.begin_delete(topic)

    def begin_delete(self, topic: Topic, *, author: Author = BROKER_ITSELF) -> asyncio.Future[None]:
        """Delete a topic in memory; the future is done when that is durable and its logs are put away.

        Raises:
            UnknownTopicOrPartitionError: It is gone already.
            StorageError: The store is closed.
        """
        if self._by_id.get(topic.topic_id) is None:
            raise UnknownTopicOrPartitionError
        self._forget(topic)
        history = self._configs.drop_topic(topic.name, author=author)
        for listener in self._deletion_listeners:
            listener(topic)
        commit = self._store.submit([*history, DropTopic(topic_id=topic.topic_id)])
        return _followed(commit, lambda: self._logs.delete_topic(topic.topic_id))

    async def grow(self, topic: Topic, added: Sequence[Sequence[int]]) -> None:
        """Add partitions.

        Raises:
            UnknownTopicOrPartitionError: The topic is gone or has changed.
            StorageError: The disk refuses.
        """
        await self.begin_grow(topic, added)

    def begin_grow(self, topic: Topic, added: Sequence[Sequence[int]]) -> asyncio.Future[None]:
        """Add partitions in memory; the future is done when they are durable and have their logs.

        Raises:
            UnknownTopicOrPartitionError: The topic is gone or has changed.
            StorageError: The store is closed.
        """
        grown = self._change(topic, (*topic.partitions, *map(tuple, added)))
        new = range(len(topic.partitions), len(grown.partitions))
        return _followed(self._store.submit([_row(grown)]), lambda: self._open_logs(grown, new))

    def begin_reassign(self, topic: Topic, replicas: Mapping[int, Sequence[int]]) -> asyncio.Future[None]:
        """Give partitions other replicas in memory; the future is done when that is durable.

        Raises:
            UnknownTopicOrPartitionError: The topic is gone or has changed.
            StorageError: The store is closed.
        """
        partitions = tuple(tuple(replicas.get(index, current)) for index, current in enumerate(topic.partitions))
        return self._store.submit([_row(self._change(topic, partitions))])

    def _change(self, topic: Topic, partitions: tuple[tuple[int, ...], ...]) -> Topic:
        """Give a topic other partitions in memory.

        Raises:
            UnknownTopicOrPartitionError: The topic is gone or has changed.
        """
        if self._by_id.get(topic.topic_id) is not topic:
            raise UnknownTopicOrPartitionError
        changed = replace(topic, partitions=partitions)
        self._remember(changed)
        return changed

    def _remember(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._by_folded_name.setdefault(_folded(topic.name), set()).add(topic.name)

    def _forget(self, topic: Topic) -> None:
        del self._by_name[topic.name], self._by_id[topic.topic_id]
        alike = self._by_folded_name[_folded(topic.name)]
        alike.discard(topic.name)
        if not alike:
            del self._by_folded_name[_folded(topic.name)]

    def _open_logs(self, topic: Topic, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._logs.create(topic.topic_id, topic.name, partition)


def _followed(commit: asyncio.Future[None], step: Callable[[], asyncio.Task[None] | None]) -> asyncio.Future[None]:
    """Return what is done when ``step`` is, which follows a commit also when nobody waits any more.

    A client that goes away in the middle must not leave a topic without logs. A step may return a task that does the
    rest of its work; its owner keeps it.
    """
    done: asyncio.Future[None] = commit.get_loop().create_future()

    def follow(commit: asyncio.Future[None]) -> None:
        error = commit.exception()
        if error is None:
            try:
                rest = step()
                if rest is not None:
                    rest.add_done_callback(settle)
                    return
            except Exception as failure:  # noqa: BLE001 -- told to who waits, as the commit's own error
                error = failure
        finish(error)

    def settle(rest: asyncio.Task[None]) -> None:
        finish(None if rest.cancelled() else rest.exception())

    def finish(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    commit.add_done_callback(follow)
    return done


def _row(topic: Topic) -> PutTopic:
    return PutTopic(
        topic_id=topic.topic_id, name=topic.name, is_internal=topic.is_internal, partitions=topic.partitions
    )


def _folded(name: str) -> str:
    return name.replace(".", "_")
