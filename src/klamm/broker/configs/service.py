"""Configs of topics, brokers, loggers, groups and client metrics: the one owner of what is set."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from klamm.broker.author import BROKER_ITSELF, Author
from klamm.broker.configs.decider import (
    AlterConfigGuard,
    ConfigDecider,
    ConfigDecision,
    LegacyConfigs,
    LoggerLevels,
    ResourceAlteration,
    parts,
)
from klamm.broker.configs.description import describe_resource
from klamm.broker.configs.image import CLUSTER_DEFAULT, ConfigImage
from klamm.broker.time_slice import TimeSlice
from klamm.configs.definitions import MIN_INSYNC_REPLICAS, find_broker_config
from klamm.configs.describe import DescribedConfig, select_keys
from klamm.configs.layers import NOTHING_SET
from klamm.configs.operations import ConfigDelta, apply_changes
from klamm.configs.topics import validate_topic_configs
from klamm.protocol.errors import InvalidRequestError, KafkaApiError, StorageError
from klamm.protocol.types import ResourceType
from klamm.storage.changes import PutConfig, PutHistory
from klamm.storage.history import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.configs.values import ConfigValue
    from klamm.storage.changes import Change, PutTopic


_Errors: TypeAlias = "tuple[KafkaApiError | None, ...]"


class ConfigStore(Protocol):
    """The part of the metadata store that configs need."""

    def submit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Queue changes; the future is done when they are on disk."""
        ...

    def load_topics(self) -> list[PutTopic]:
        """Return all topics."""
        ...

    def load_configs(self) -> list[PutConfig]:
        """Return all dynamic configs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigsChanged:
    """Told to listeners when something has changed."""

    resource_type: ResourceType
    resource_name: str
    """For brokers ``""`` when all are meant."""
    names: frozenset[str]


class ConfigService:
    """What is set, changed by requests and read by everybody. Loop-confined, no lock.

    A change is decided, applied in memory and handed to the store without an await in between, so that no update is
    lost; it is answered when it is on disk. A request with more than ``OPERATIONS_AT_ONCE`` is done in parts, and
    others are served in between.

    Args:
        store: Where changes become durable.
        static: The properties file; what each broker was started with is added to it.
        started_with: The configs that tell so, by the ids of the brokers that this process presents.
        now_ms: The clock, in milliseconds since the epoch.
        loggers: The loggers whose levels can change.
        guard: A policy's say on changes, asked last; None when there is no policy.
    """

    def __init__(
        self,
        *,
        store: ConfigStore,
        static: Mapping[str, str],
        started_with: Mapping[int, Mapping[str, str]],
        now_ms: Callable[[], int],
        loggers: LoggerLevels,
        guard: AlterConfigGuard | None = None,
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self._loggers = loggers
        self._image = ConfigImage({node_id: {**static, **own} for node_id, own in started_with.items()})
        self._decider = ConfigDecider(self._image, loggers)
        self._guard = guard
        self._least_insync_replicas = static.get(MIN_INSYNC_REPLICAS, "1")
        self._listeners: list[Callable[[ConfigsChanged], None]] = []
        self._last_commit: asyncio.Future[None] | None = None
        self.times_loaded = 0
        """Grows with every commit that failed: what was read before is void."""
        self.load()

    def load(self) -> None:
        """Take everything from the store; also after a commit that failed, when listeners hear what is taken back."""
        self.times_loaded += 1
        before = self._image.values
        configs: dict[tuple[int, str], dict[str, str]] = {}
        for row in self._store.load_configs():
            if row.value is not None:
                configs.setdefault((row.resource_type, row.resource_name), {})[row.name] = row.value
        # Eligible leader replicas rest on a cluster default that is always there (KIP-966); it is stored once set.
        cluster = configs.setdefault((ResourceType.BROKER, CLUSTER_DEFAULT), {})
        cluster.setdefault(MIN_INSYNC_REPLICAS, self._least_insync_replicas)
        self._image.reset((topic.name for topic in self._store.load_topics()), configs)
        after = self._image.values
        for kind, name in {*before, *after}:
            old, new = before.get((kind, name), NOTHING_SET), after.get((kind, name), NOTHING_SET)
            names = frozenset(key for key in {*old, *new} if old.get(key) != new.get(key))
            if names:
                self._notify(ConfigsChanged(resource_type=ResourceType(kind), resource_name=name, names=names))

    def subscribe(self, listener: Callable[[ConfigsChanged], None]) -> None:
        """Call ``listener`` at once after every change, before it is durable."""
        self._listeners.append(listener)

    # -- values in force

    def topic_config(self, topic: str) -> Mapping[str, ConfigValue | None]:
        """Return every config in force for a topic, typed: int, float, bool, str, or a tuple of str for lists."""
        return self._image.topic_config(topic)

    def topic_defaults(self) -> Mapping[str, str]:
        """Return the broker's value of every topic config that has one, as DescribeConfigs shows it."""
        return self._image.topic_default_texts()

    def group_config(self, group_id: str) -> Mapping[str, ConfigValue | None]:
        """Return every config in force for a group, typed."""
        return self._image.group_config(group_id)

    def broker_value(self, name: str, *, node_id: int | None = None) -> ConfigValue | None:
        """Return a broker config in force, typed; None when it is not set and has no default.

        Args:
            name: Kafka's name.
            node_id: The broker; the first one when it is not given.
        """
        return self._image.layers(node_id).value(name)

    def set_on_broker(self, name: str) -> Mapping[str, str]:
        """Return what is set on a broker while it runs, secrets too; its name is its id."""
        return self._image.current(ResourceType.BROKER, name)

    # -- topics that come and go

    def validate_topic_configs(self, topic: str, configs: LegacyConfigs) -> Mapping[str, str]:
        """Check the configs that a topic is to be created with and return what it will set.

        Raises:
            InvalidConfigError: A null value, an unknown config or a wrong value.
            InvalidTopicError: The name cannot be a topic's.
        """
        return validate_topic_configs(topic, configs, self._image.layers())

    def create_topic(self, name: str, configs: Mapping[str, str], *, author: Author = BROKER_ITSELF) -> list[Change]:
        """Take up a new topic; returns what is to be stored along with it."""
        self._image.add_topic(name, configs)
        changes = tuple(ConfigDelta(name=key, value=value) for key, value in configs.items())
        decision = ConfigDecision(resource_type=ResourceType.TOPIC, resource_name=name, changes=changes)
        self._tell(decision)
        return self._rows(decision, current={}, author=author)

    def drop_topic(self, name: str, *, author: Author = BROKER_ITSELF) -> list[Change]:
        """Forget a topic with its configs, which the store drops along with it; returns what the history tells."""
        current = self._image.current(ResourceType.TOPIC, name)
        changes = tuple(ConfigDelta(name=key, value=None) for key in current)
        decision = ConfigDecision(resource_type=ResourceType.TOPIC, resource_name=name, changes=changes)
        rows = self._rows(decision, current=current, author=author)
        self._image.drop_topic(name)
        return [row for row in rows if isinstance(row, PutHistory)]

    def describe_new_topic(self, configs: Mapping[str, str], *, node_id: int) -> tuple[DescribedConfig, ...]:
        """Describe a topic for the answer to CreateTopics, sorted by name, without synonyms."""
        return self._image.created_topic_describer(node_id).describe(configs)

    # -- changes

    async def alter(
        self, alterations: Sequence[ResourceAlteration], *, node_id: int, author: Author, validate_only: bool
    ) -> tuple[KafkaApiError | None, ...]:
        """Change resources, each one wholly or not at all; returns when what was changed is on disk.

        Args:
            alterations: One per resource of the request.
            node_id: The broker that was asked.
            author: Who asks.
            validate_only: Decide only.

        Returns:
            For each alteration in order: None when it succeeded, or why it did not.
        """
        copies = Counter(await TimeSlice().listed(alteration.identity for alteration in alterations))
        begun: list[tuple[_Errors, asyncio.Future[None] | None]] = []
        for part in parts(alterations):
            if begun:
                await asyncio.sleep(0)
            repeated = [copies[alteration.identity] > 1 for alteration in part]
            begun.append(await self._begin(part, repeated, node_id, author, validate_only=validate_only))
        return tuple([error for one in begun for error in await _ended(*one)])

    async def _begin(
        self,
        alterations: Sequence[ResourceAlteration],
        repeated: Sequence[bool],
        node_id: int,
        author: Author,
        *,
        validate_only: bool,
    ) -> tuple[_Errors, asyncio.Future[None] | None]:
        """Decide and apply some resources; returns their errors and what to wait for."""
        async with contextlib.nullcontext() if self._guard is None else self._guard.turn():
            decide = partial(self._decide, alterations, repeated, node_id)
            outcomes = await self._judged(decide, author, validate_only=validate_only)
            errors = tuple(outcome if isinstance(outcome, KafkaApiError) else None for outcome in outcomes)
            try:
                return errors, None if validate_only else self._replay(outcomes, author)
            except StorageError as error:
                return tuple(outcome or error for outcome in errors), None

    def _decide(
        self, alterations: Sequence[ResourceAlteration], repeated: Sequence[bool], node_id: int
    ) -> list[ConfigDecision | KafkaApiError]:
        outcomes: list[ConfigDecision | KafkaApiError] = []
        for alteration, is_repeated in zip(alterations, repeated, strict=True):
            try:
                if is_repeated:
                    raise InvalidRequestError("Each resource must appear at most once.")
                outcomes.append(self._decider.decide(alteration, node_id))
            except KafkaApiError as error:
                # Without what it came through: that holds the outcomes, and garbage collection would have to end it.
                outcomes.append(error.with_traceback(None))
        return outcomes

    async def _judged(
        self,
        decide: Callable[[], list[ConfigDecision | KafkaApiError]],
        author: Author,
        *,
        validate_only: bool,
    ) -> list[ConfigDecision | KafkaApiError]:
        """Decide, with a guard again and again until it has judged every decision as it stands now."""
        guard = self._guard
        if guard is None:
            return decide()
        judged: dict[int, tuple[ConfigDecision, KafkaApiError | None]] = {}
        time_slice = TimeSlice()
        while True:
            outcomes, is_settled, pauses = decide(), True, time_slice.pauses
            for index, decision in enumerate(outcomes):
                if isinstance(decision, KafkaApiError) or decision.resource_type is ResourceType.BROKER_LOGGER:
                    continue
                if index not in judged or judged[index][0] != decision:
                    await time_slice.give_way()
                    refusal, has_waited = await _ask(guard, decision, author, validate_only=validate_only)
                    judged[index] = decision, refusal
                    is_settled &= not has_waited
                outcomes[index] = judged[index][1] or decision
            if is_settled and pauses == time_slice.pauses:
                return outcomes

    def _replay(
        self, outcomes: Sequence[ConfigDecision | KafkaApiError], author: Author
    ) -> asyncio.Future[None] | None:
        """Carry decisions out; returns what is done when they are on disk, None when there is nothing to wait for."""
        decisions = [outcome for outcome in outcomes if isinstance(outcome, ConfigDecision)]
        if not decisions:
            return None
        rows: list[Change] = []
        for decision in decisions:
            if decision.resource_type is ResourceType.BROKER_LOGGER:
                self._loggers.apply(decision.changes)
                continue
            current = self._image.current(decision.resource_type, decision.resource_name)
            rows += self._rows(decision, current=current, author=author)
            after = apply_changes(current, decision.changes)
            self._image.replace(decision.resource_type, decision.resource_name, after)
            self._tell(decision)
        if rows:
            self._last_commit = self._store.submit(rows)
        # A change that alters nothing is answered no sooner than the one that made it so.
        commit = self._last_commit
        return None if commit is None or commit.done() else commit

    def _rows(self, decision: ConfigDecision, *, current: Mapping[str, str], author: Author) -> list[Change]:
        kind, name = decision.resource_type, decision.resource_name
        at_ms = self._now_ms()
        rows: list[Change] = []
        for change in decision.changes:
            old, new = current.get(change.name), change.value
            rows.append(PutConfig(resource_type=kind, resource_name=name, name=change.name, value=new))
            if kind is ResourceType.BROKER and _is_secret(change.name):
                old, new = old and HIDDEN, new and HIDDEN
            rows.append(
                PutHistory(
                    at_ms=at_ms,
                    resource=f"{kind.name}:{name}",
                    name=change.name,
                    old=old,
                    new=new,
                    principal=author.principal,
                    client_id=author.client_id,
                )
            )
        return rows

    def _tell(self, decision: ConfigDecision) -> None:
        kind, name = decision.resource_type, decision.resource_name
        if names := frozenset(change.name for change in decision.changes):
            self._notify(ConfigsChanged(resource_type=kind, resource_name=name, names=names))

    def _notify(self, changed: ConfigsChanged) -> None:
        for listener in self._listeners:
            listener(changed)

    # -- descriptions

    async def settle(self) -> bool:
        """Wait for the changes made so far; False when they failed and what was read before is void."""
        commit = self._last_commit
        if commit is None or commit.done():
            return True
        await asyncio.wait({commit})
        return not commit.cancelled() and commit.exception() is None

    def describe(
        self, resource_type: int, resource_name: str, keys: Sequence[str] | None, *, node_id: int
    ) -> tuple[DescribedConfig, ...]:
        """Describe a resource as the broker ``node_id`` sees it.

        Args:
            resource_type: A ResourceType.
            resource_name: Its name.
            keys: The configs to describe; all when None or empty.
            node_id: The broker that was asked.

        Raises:
            KafkaApiError: There is no such resource.
        """
        everything = describe_resource(
            self._image, self._loggers.levels, resource_type=resource_type, name=resource_name, node_id=node_id
        )
        return select_keys(everything, keys)

    def resource_names(self, resource_type: ResourceType) -> Sequence[str]:
        """Return the resources of a type: all topics and brokers, and whatever else has a config."""
        match resource_type:
            case ResourceType.TOPIC:
                return self._image.topics
            case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
                return [str(node_id) for node_id in self._image.node_ids]
            case _:
                return self._image.names_set(resource_type)


async def _ended(errors: _Errors, commit: asyncio.Future[None] | None) -> _Errors:
    """Wait until what was begun is on disk; what is not has failed."""
    if commit is None:
        return errors
    try:
        await asyncio.shield(commit)
    except StorageError as failure:
        return tuple(error or failure for error in errors)
    return errors


async def _ask(
    guard: AlterConfigGuard, decision: ConfigDecision, author: Author, *, validate_only: bool
) -> tuple[KafkaApiError | None, bool]:
    """Return why a guard refuses, and whether others may have been served meanwhile."""
    try:
        return None, await guard.check(decision, author, validate_only=validate_only)
    except KafkaApiError as error:
        return error, True


def _is_secret(name: str) -> bool:
    definition = find_broker_config(name)
    return definition is None or definition.is_sensitive
