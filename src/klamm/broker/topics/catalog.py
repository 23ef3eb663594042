"""The catalog of topics, the only owner of the list of topics and their replicas."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from klamm.configs.names import INTERNAL_TOPICS
from klamm.history.change import BROKER_ITSELF, Author
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import StorageError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from klamm.protocol.primitives import random_uuid
from klamm.storage.metadata.changes import DropTopic, PutTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from klamm.broker.configs.service import ConfigsChanged, ConfigService
    from klamm.storage.log import LogManager
    from klamm.storage.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic with its replicas."""

    name: str
    topic_id: UUID
    is_internal: bool = False
    partitions: tuple[tuple[int, ...], ...]
    """Broker ids of each partition's replicas, by partition index. The first replica on a live broker is the leader."""

    def has_partition(self, partition: int) -> bool:
        """Return whether ``partition`` exists."""
        return 0 <= partition < len(self.partitions)


class TopicCatalog:
    """Topics by name and id, in memory and in the metadata store. Used on the event loop only, so it needs no lock.

    A change is applied in memory and submitted to the store without an await in between, so later decisions see it.
    Callers send their response only after the change is on disk.
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
        self.changes = 0
        """Number of changes so far: topics created, changed and deleted."""
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._by_folded_name: dict[str, set[str]] = {}
        self._deletion_listeners: list[Callable[[Topic], None]] = []
        self._last_commit: asyncio.Future[None] | None = None
        """Commit of the latest creation, deletion or growth; None if it has failed."""
        self.load()

    def load(self) -> None:
        """Replace all topics with the stored ones."""
        self._configs.revision.roll_back()
        self.changes += 1
        self._last_commit = None
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

    # -- reads

    @property
    def rollbacks(self) -> int:
        """Number of times the stored topics replaced the current ones, because a change could not be stored."""
        return self._configs.revision.rollbacks

    def get(self, name: str) -> Topic | None:
        """Return a topic by name; None if it does not exist."""
        return self._by_name.get(name)

    def existing(self, names: AbstractSet[str]) -> dict[str, Topic]:
        """Return the topics among ``names`` by name. Names of topics that do not exist cost next to nothing."""
        return {name: self._by_name[name] for name in self._by_name.keys() & names}

    def by_id(self, topic_id: UUID) -> Topic | None:
        """Return a topic by id; None if it does not exist."""
        return self._by_id.get(topic_id)

    def replication_factor(self, name: str) -> int | None:
        """Return the number of replicas of the topic's partition with the fewest; None if it does not exist."""
        topic = self._by_name.get(name)
        return None if topic is None else min(map(len, topic.partitions))

    def all(self) -> Sequence[Topic]:
        """Return all topics by name, ascending."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def __len__(self) -> int:
        """Return the number of topics."""
        return len(self._by_name)

    def colliding(self, name: str) -> str | None:
        """Return a topic whose name differs only in dots and underscores, if any.

        Kafka rejects such a pair, because both topics would have the same metric name.
        """
        return next((other for other in self._by_folded_name.get(_folded(name), ()) if other != name), None)

    # -- changes

    def follow(self, change: ConfigsChanged) -> None:
        """Apply changed configs of a topic to its logs."""
        topic = self._by_name.get(change.resource_name)
        if topic is not None:
            self._logs.update_config(topic.topic_id)

    def on_deleted(self, listener: Callable[[Topic], None]) -> None:
        """Call ``listener`` for every deleted topic, right after its removal from the catalog."""
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
        """Create a topic with its logs and configs, and return when it is on disk.

        Raises:
            TopicAlreadyExistsError: The topic exists.
            StorageError: The change could not be written to disk.
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
        """Create a topic in memory. The future is done when the topic is on disk and its logs exist.

        Raises:
            TopicAlreadyExistsError: The topic exists.
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
        commit = self._last_commit = self._store.submit(changes)
        self._configs.follow_commit(commit)
        return topic, _after_commit(commit, lambda: self._open_logs(topic, range(len(topic.partitions))))

    def begin_delete(self, topic: Topic, *, author: Author = BROKER_ITSELF) -> asyncio.Future[None]:
        """Delete a topic in memory. The future is done when that is on disk and the logs are marked for deletion.

        Raises:
            UnknownTopicOrPartitionError: The topic no longer exists.
            StorageError: The store is closed.
        """
        if self._by_id.get(topic.topic_id) is None:
            raise UnknownTopicOrPartitionError
        self._forget(topic)
        history = self._configs.drop_topic(topic.name, author=author)
        for listener in self._deletion_listeners:
            listener(topic)
        commit = self._last_commit = self._store.submit([*history, DropTopic(topic_id=topic.topic_id)])
        self._configs.hold_topic(topic.name, commit)
        return _after_commit(commit, lambda: self._logs.delete_topic(topic.topic_id))

    def begin_grow(self, topic: Topic, added: Sequence[Sequence[int]]) -> asyncio.Future[None]:
        """Add partitions in memory. The future is done when they are on disk and their logs exist.

        Raises:
            UnknownTopicOrPartitionError: The topic was deleted or changed meanwhile.
            StorageError: The store is closed.
        """
        grown = self._change(topic, (*topic.partitions, *map(tuple, added)))
        new = range(len(topic.partitions), len(grown.partitions))
        commit = self._last_commit = self._store.submit([_row(grown)])
        return _after_commit(commit, lambda: self._open_logs(grown, new))

    async def settle(self, rollbacks: int) -> None:
        """Wait until the topics that were created, deleted or changed so far are on disk.

        A client may rely on the response that a topic exists or was deleted, so neither a power cut nor a failed commit
        may undo it.

        Args:
            rollbacks: Value of ``rollbacks`` before the topics were read.

        Raises:
            StorageError: A change could not be written and was undone.
        """
        if self._last_commit is not None and not self._last_commit.done():
            await asyncio.shield(self._last_commit)
        if self.rollbacks != rollbacks:
            raise StorageError("Changes could not be written to disk and were undone. Send the request again.")

    def begin_reassign(self, topic: Topic, replicas: Mapping[int, Sequence[int]]) -> asyncio.Future[None]:
        """Change the replicas of partitions in memory. The future is done when the change is on disk.

        Raises:
            UnknownTopicOrPartitionError: The topic was deleted or changed meanwhile.
            StorageError: The store is closed.
        """
        partitions = tuple(tuple(replicas.get(index, current)) for index, current in enumerate(topic.partitions))
        return self._store.submit([_row(self._change(topic, partitions))])

    def _change(self, topic: Topic, partitions: tuple[tuple[int, ...], ...]) -> Topic:
        """Replace the partitions of a topic in memory.

        Raises:
            UnknownTopicOrPartitionError: The topic was deleted or changed meanwhile.
        """
        if self._by_id.get(topic.topic_id) is not topic:
            raise UnknownTopicOrPartitionError
        changed = replace(topic, partitions=partitions)
        self._remember(changed)
        return changed

    def _remember(self, topic: Topic) -> None:
        self._configs.revision.advance()
        self.changes += 1
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._by_folded_name.setdefault(_folded(topic.name), set()).add(topic.name)

    def _forget(self, topic: Topic) -> None:
        self._configs.revision.advance()
        self.changes += 1
        del self._by_name[topic.name], self._by_id[topic.topic_id]
        alike = self._by_folded_name[_folded(topic.name)]
        alike.discard(topic.name)
        if not alike:
            del self._by_folded_name[_folded(topic.name)]

    def _open_logs(self, topic: Topic, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._logs.create(topic.topic_id, topic.name, partition)


def _after_commit(commit: asyncio.Future[None], step: Callable[[], asyncio.Task[None] | None]) -> asyncio.Future[None]:
    """Return a future that is done when the commit is on disk and ``step`` has run after it.

    The step runs even if the request is cancelled: a client that disconnects must not leave a topic without logs. A
    step may return a task with the rest of its work, which the step's owner keeps alive; the future then also waits for
    that task.
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
            except Exception as failure:  # noqa: BLE001 -- the future raises it, like an error of the commit
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
