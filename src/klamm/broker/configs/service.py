"""Configs of topics, brokers, loggers, groups and client metrics: the single owner of their values."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from functools import partial
from reprlib import repr as short_repr
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from klamm.broker.configs.description import describe_resource
from klamm.broker.configs.image import CLUSTER_DEFAULT, ConfigImage
from klamm.broker.configs.rules import LegacyConfigs, ResourceAlteration, decide, overridden, parts
from klamm.configs.definitions import MIN_INSYNC_REPLICAS, is_secret, topic_configs
from klamm.configs.describe import DescribedConfig, select_keys
from klamm.configs.layers import NOTHING_SET
from klamm.configs.names import identity_of
from klamm.configs.operations import ConfigDecision, ConfigDelta, apply_changes
from klamm.configs.topics import validate_topic_configs
from klamm.history.change import BROKER_ITSELF, HIDDEN, Author, RecordedChange
from klamm.policy_runtime.decision import Revision, decide_and_check
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError, KafkaApiError, StorageError
from klamm.protocol.primitives import MAX_STRING_BYTES
from klamm.protocol.types import ResourceType
from klamm.server.time_slice import TimeSlice
from klamm.storage.metadata.changes import PutConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence, Set

    from klamm.broker.configs.guard import AlterConfigGuard
    from klamm.broker.configs.loggers import PythonLoggers
    from klamm.configs.values import ConfigValue
    from klamm.policy.answers import Override
    from klamm.storage.metadata.changes import Change
    from klamm.storage.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

_BROKERS: Final = (int(ResourceType.BROKER), CLUSTER_DEFAULT)
_Outcome: TypeAlias = "ConfigDecision | KafkaApiError"
_Altered: TypeAlias = "tuple[Sequence[KafkaApiError | str | None], asyncio.Future[None] | None]"
"""Error of each resource, or a text about what a policy changed, or None; and the commit to wait for."""


class ConfigsChanged(NamedTuple):
    """Event sent to listeners after a config change."""

    resource_type: ResourceType
    resource_name: str
    """Name of the resource; for brokers ``""`` is the cluster-wide default."""
    names: frozenset[str]


class _Part:
    """Part of a request, decided and applied in one step, with the overrides of a policy."""

    def __init__(self, alterations: Sequence[ResourceAlteration]) -> None:
        self.alterations = list(alterations)
        self.notes: dict[int, str] = {}
        """Text about what a policy changed, by position."""

    def override(self, index: int, override: Override) -> None:
        """Apply an override to the alteration at this position."""
        self.alterations[index] = overridden(self.alterations[index], override)
        self.notes[index] = override.note


class ConfigService:
    """Owner of all dynamic configs. Used on the event loop only, so it needs no lock.

    A change passes these steps:

    ======  ====================================================  ==================================================
    Step    What happens                                          Other requests meanwhile
    ======  ====================================================  ==================================================
    decide  ``rules.decide`` checks the change against the        not served
            current values.
    guard   Policy, policy settings and TLS check the decision    served if a guard waits
            (``decide_and_check``). If the revision changed
            meanwhile, decide and check again, until no
            decision differs from the checked one.
    apply   The image is replaced and listeners are notified.     not served
    commit  The rows are handed to the metadata store. The        served; they see the new values. Descriptions and
            response is sent when they are durable.               changes without effect wait for the commit, and
                                                                  so do retention and compaction.
    ======  ====================================================  ==================================================

    There is no ``await`` between the last decision and the hand-over to the store, so no update is lost. When the
    commit fails, ``load`` restores the stored values and notifies the listeners of the differences. A request with more
    than ``OPERATIONS_AT_ONCE`` operations is processed in parts, and other requests are served between them.

    Args:
        store: Metadata store that makes changes durable.
        static: Settings of the properties file.
        started_with: Configs that express the command line flags, by broker id; they outrank ``static``.
        now_ms: Clock, in milliseconds since the epoch.
        loggers: Loggers whose levels can be changed.
        guards: Final checks of changes, asked in this order. The first error rejects a change.
        topic: Function that returns a topic as it is now. A change that was checked for another one is checked again.
    """

    def __init__(
        self,
        *,
        store: MetadataStore,
        static: Mapping[str, str],
        started_with: Mapping[int, Mapping[str, str]],
        now_ms: Callable[[], int],
        loggers: PythonLoggers,
        guards: Sequence[AlterConfigGuard] = (),
        topic: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self._loggers = loggers
        self._image = ConfigImage({node_id: {**static, **own} for node_id, own in started_with.items()})
        self._guards = tuple(guards)
        self._topic = topic
        self._least_insync_replicas = static.get(MIN_INSYNC_REPLICAS, "1")
        self._listeners: Mapping[ResourceType, list[Callable[[ConfigsChanged], None]]] = {
            resource_type: [] for resource_type in ResourceType
        }
        self._last_commit: asyncio.Future[None] | None = None
        self._unsettled: Counter[tuple[int, str]] = Counter()
        """Requests in progress that change a topic, or any broker, which is counted as the cluster's default; and
        deletions of a topic in progress."""
        self._settled_listeners: list[Callable[[], None]] = []
        self.revision: Final = Revision()
        """Revision of the configs and of the topics, which the catalog advances as well."""
        self.load()

    def load(self) -> None:
        """Load all values from the metadata store: at start, and after a failed commit.

        Listeners are notified of every value that differs from the one before.
        """
        self.revision.roll_back()
        before = self._image.values
        configs: dict[tuple[int, str], dict[str, str]] = {}
        for row in self._store.load_configs():
            if row.value is not None and _fits_into_messages(row) and not _is_too_small_segment(row):
                configs.setdefault((row.resource_type, row.resource_name), {})[row.name] = row.value
        # Eligible leader replicas (KIP-966) require a cluster default that always exists. It is stored once it is set.
        cluster = configs.setdefault((ResourceType.BROKER, CLUSTER_DEFAULT), {})
        cluster.setdefault(MIN_INSYNC_REPLICAS, self._least_insync_replicas)
        self._image.reset((topic.name for topic in self._store.load_topics()), configs)
        after = self._image.values
        for kind, name in {*before, *after}:
            old, new = before.get((kind, name), NOTHING_SET), after.get((kind, name), NOTHING_SET)
            names = frozenset(key for key in {*old, *new} if old.get(key) != new.get(key))
            self._notify(ResourceType(kind), name, names)

    def subscribe(self, listener: Callable[[ConfigsChanged], None], *resource_types: ResourceType) -> None:
        """Call ``listener`` immediately after every change, before the change is durable.

        Args:
            listener: Function to call.
            resource_types: Types of resources whose changes to report; none means all types.
        """
        for resource_type in resource_types or ResourceType:
            self._listeners[resource_type].append(listener)

    def on_settled(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever the result of ``is_settled`` may have become True."""
        self._settled_listeners.append(listener)

    # -- effective values

    def topic_config(self, topic: str) -> Mapping[str, ConfigValue | None]:
        """Return the effective configs of a topic, typed: int, float, bool, str, or a tuple of str for lists."""
        return self._image.topic_config(topic)

    def topic_defaults(self) -> Mapping[str, str]:
        """Return the broker's value of every topic config that has one, as DescribeConfigs shows it."""
        return self._image.topic_default_texts()

    def group_config(self, group_id: str) -> Mapping[str, ConfigValue | None]:
        """Return the effective configs of a group, typed."""
        return self._image.group_config(group_id)

    def broker_value(self, name: str, *, node_id: int | None = None) -> ConfigValue | None:
        """Return an effective broker config, typed; None when it is not set and has no default.

        Args:
            name: Kafka's name of the config.
            node_id: Broker id; None means the first broker.
        """
        return self._image.layers(node_id).value(name)

    def cordoned_nodes(self) -> frozenset[int]:
        """Return the broker ids whose only log directory is cordoned, so that they get no new partitions (KIP-1066)."""
        return frozenset(
            node_id for node_id in self._image.node_ids if self._image.layers(node_id).value("cordoned.log.dirs")
        )

    def int_value(self, name: str) -> int:
        """Return an effective config of the first broker that is a whole number and always has a value.

        Raises:
            TypeError: The config is not of this kind. This is a bug of the caller.
        """
        value = self.broker_value(name)
        if not isinstance(value, int):
            raise TypeError(f"Broker config {name}: expected a whole number, got {value!r}")
        return value

    def set_on_broker(self, name: str) -> Mapping[str, str]:
        """Return the dynamic configs of a broker, including secrets. ``name`` is the broker id as text."""
        return self._image.current(ResourceType.BROKER, name)

    def set_on_topic(self, name: str) -> Mapping[str, str]:
        """Return the configs that a topic sets itself."""
        return self._image.current(ResourceType.TOPIC, name)

    def set_on_client_metrics(self, name: str) -> Mapping[str, str]:
        """Return the configs of a client metrics subscription (KIP-714)."""
        return self._image.current(ResourceType.CLIENT_METRICS, name)

    # -- creation and deletion of topics

    def validate_topic_configs(self, topic: str, configs: LegacyConfigs) -> Mapping[str, str]:
        """Validate the configs of a new topic and return those to set.

        Raises:
            InvalidConfigError: A value is null or not allowed, or a config is unknown.
            InvalidTopicError: The name is not a valid topic name.
        """
        return validate_topic_configs(topic, configs, self._image.layers())

    def create_topic(self, name: str, configs: Mapping[str, str], *, author: Author = BROKER_ITSELF) -> list[Change]:
        """Add a new topic; return the rows to store in the same commit as the topic."""
        self._image.add_topic(name, configs)
        changes = tuple(ConfigDelta(name=key, value=value) for key, value in configs.items())
        decision = ConfigDecision(resource_type=ResourceType.TOPIC, resource_name=name, changes=changes)
        self.revision.advance()
        self._notify(ResourceType.TOPIC, name, frozenset(configs))
        return _rows(decision, author, self._now_ms())

    def drop_topic(self, name: str, *, author: Author = BROKER_ITSELF) -> list[Change]:
        """Remove a topic and its configs; return the rows for the change history.

        The store drops the configs together with the topic. The caller passes that commit to ``hold_topic``.
        """
        current = self._image.current(ResourceType.TOPIC, name)
        changes = tuple(ConfigDelta(name=key, value=None) for key in current)
        decision = ConfigDecision(resource_type=ResourceType.TOPIC, resource_name=name, changes=changes, before=current)
        rows = _rows(decision, author, self._now_ms())
        self._image.drop_topic(name)
        self.revision.advance()
        return [row for row in rows if isinstance(row, RecordedChange)]

    def describe_new_topic(self, configs: Mapping[str, str], *, node_id: int) -> tuple[DescribedConfig, ...]:
        """Describe a topic for the CreateTopics response: sorted by name, without synonyms."""
        return self._image.created_topic_describer(node_id).describe(configs)

    # -- changes

    async def alter(
        self,
        alterations: Sequence[ResourceAlteration],
        *,
        node_id: int,
        author: Author,
        validate_only: bool,
        time_slice: TimeSlice | None = None,
    ) -> list[KafkaApiError | str | None]:
        """Alter resources, each one completely or not at all; return when the changes are durable.

        Args:
            alterations: One per resource of the request.
            node_id: Broker id that received the request.
            author: Requesting principal and client id.
            validate_only: Whether to decide without applying.
            time_slice: Time slice of the request; None creates one.

        Returns:
            For each alteration in order: its error; or None when it succeeded, or a text about what a policy changed.
        """
        with contextlib.nullcontext() if validate_only else self._in_progress(alterations):
            slices = TimeSlice() if time_slice is None else time_slice
            repeated = await _repeated(alterations, slices) if len(alterations) > 1 else frozenset()
            altered: list[_Altered] = []
            for some in parts(alterations):
                if altered:
                    await asyncio.sleep(0)
                types = {alteration.resource_type for alteration in some}
                guards = [guard for guard in self._guards if not types.isdisjoint(guard.resource_types)]
                if guards:
                    part = _Part(some)
                    decide_part = partial(self._decide, part.alterations, repeated, node_id)
                    altered.append(
                        await self._alter_guarded(guards, decide_part, part, author, validate_only=validate_only)
                    )
                else:
                    altered.append(
                        self._apply(self._decide(some, repeated, node_id), author, validate_only=validate_only)
                    )
            outcomes: list[KafkaApiError | str | None] = []
            for decided, durable in altered:
                try:
                    if durable is not None:
                        await asyncio.shield(durable)  # a request that is cancelled does not cancel the commit
                        slices.restart()
                    outcomes += decided
                except StorageError as failure:
                    outcomes += [outcome if isinstance(outcome, KafkaApiError) else failure for outcome in decided]
                await slices.give_way()
            await slices.free(altered)
            return outcomes

    @contextlib.contextmanager
    def _in_progress(self, alterations: Sequence[ResourceAlteration]) -> Iterator[None]:
        """Count the resources of a request as not settled until its last commit has ended, also if it is cancelled."""
        changing = [
            _BROKERS if a.resource_type == ResourceType.BROKER else (a.resource_type, a.resource_name)
            for a in alterations
        ]
        self._unsettled.update(changing)
        try:
            yield
        finally:
            self._settle_after(self._last_commit, changing)

    def hold_topic(self, topic: str, commit: asyncio.Future[None]) -> None:
        """Count a topic as not settled until the commit of its deletion has ended.

        Its logs exist until then, and stay if the commit fails. In the meantime, its name has no configs or those of a
        new topic.
        """
        changing = [(int(ResourceType.TOPIC), topic)]
        self._unsettled.update(changing)
        self._settle_after(commit, changing)
        self.follow_commit(commit)

    def follow_commit(self, commit: asyncio.Future[None]) -> None:
        """Let later responses wait for the commit that creates or deletes a topic: they rely on it."""
        self._last_commit = commit

    def _settle_after(self, commit: asyncio.Future[None] | None, changing: Sequence[tuple[int, str]]) -> None:
        def settle(_: object) -> None:
            self._unsettled.subtract(changing)
            for key in changing:
                if not self._unsettled[key]:
                    del self._unsettled[key]
            for listener in self._settled_listeners:
                listener()

        if commit is None or commit.done():
            settle(None)
        else:
            commit.add_done_callback(settle)

    def _decide(
        self, alterations: Sequence[ResourceAlteration], repeated: Set[tuple[int, str]], node_id: int
    ) -> list[_Outcome]:
        outcomes: list[_Outcome] = []
        for alteration in alterations:
            try:
                if repeated and identity_of(alteration.resource_type, alteration.resource_name) in repeated:
                    raise InvalidRequestError("Each resource must appear at most once.")
                if alteration.error is not None:
                    raise alteration.error
                outcomes.append(decide(alteration, node_id=node_id, image=self._image, levels=self._loggers.levels))
            except KafkaApiError as error:
                # Dropping the traceback avoids a reference cycle: its frame refers to ``outcomes``, which holds the
                # error.
                outcomes.append(error.with_traceback(None))
        return outcomes

    async def _alter_guarded(
        self,
        guards: Sequence[AlterConfigGuard],
        decide_part: Callable[[], Sequence[_Outcome]],
        part: _Part,
        author: Author,
        *,
        validate_only: bool,
    ) -> _Altered:
        """Apply decisions after the guards have checked them in their final form. Each guard's turn is held so long."""
        time_slice = TimeSlice()

        def details(decision: ConfigDecision) -> tuple[ConfigDecision, object]:
            is_topic = decision.resource_type is ResourceType.TOPIC
            return decision, self._topic(decision.resource_name) if is_topic else None

        async def check(checked: tuple[ConfigDecision, object], overridden: Override | None) -> Override | None:
            decision, _ = checked
            for guard in guards:
                if decision.resource_type in guard.resource_types:
                    await time_slice.give_way()
                    changes = await guard.check(decision, author, overridden, validate_only=validate_only)
                    if changes is not None:
                        return changes  # the other guards check the changed decision
            return None

        async def override(index: int, changes: Override) -> None:
            part.override(index, changes)

        async with contextlib.AsyncExitStack() as turns:
            for guard in guards:
                await turns.enter_async_context(guard.turn())
            outcomes = await decide_and_check(
                decide_part,
                details=details,
                check=check,
                revision=self.revision,
                override=override,
            )
            errors, durable = self._apply(outcomes, author, validate_only=validate_only)
            return [error or part.notes.get(index) for index, error in enumerate(errors)], durable

    def _apply(self, outcomes: Sequence[_Outcome], author: Author, *, validate_only: bool) -> _Altered:
        """Apply decisions unless ``validate_only``; return each one's error, and the commit to wait for, if any."""
        errors = [outcome if isinstance(outcome, KafkaApiError) else None for outcome in outcomes]
        if validate_only or all(errors):
            return errors, None
        rows: list[Change] = []
        at_ms = self._now_ms()
        for decision in outcomes:
            if isinstance(decision, KafkaApiError):
                continue
            if decision.resource_type is ResourceType.BROKER_LOGGER:
                self._loggers.apply(decision.changes)
                continue
            kind, name = decision.resource_type, decision.resource_name
            rows += _rows(decision, author, at_ms)
            self._image.replace(kind, name, apply_changes(decision.before, decision.changes))
            self._notify(kind, name, frozenset([change.name for change in decision.changes]))
        try:
            if rows:
                self._last_commit = self._store.submit(rows)
                return errors, self._last_commit
            # A change without effect must not be confirmed before the earlier change that caused this is durable.
            return errors, None if self._is_settled else self._store.submit(())
        except StorageError as failure:
            return [error or failure for error in errors], None

    def is_settled(self, topic: str) -> bool:
        """Return whether the effective values of a topic are durable, and no request has applied them in part.

        If not, nothing may be deleted by them: a commit may fail, and the next part of a request may keep what the
        first one does not. While a topic is being deleted, they are not durable either.
        """
        return _BROKERS not in self._unsettled and (ResourceType.TOPIC, topic) not in self._unsettled

    @property
    def _is_settled(self) -> bool:
        """Whether no commit is in progress."""
        return self._last_commit is None or self._last_commit.done()

    def _notify(self, resource_type: ResourceType, resource_name: str, names: frozenset[str]) -> None:
        """Advance the revision and notify the listeners of a change in the image."""
        if not names:
            return
        self.revision.advance()
        changed = ConfigsChanged(resource_type=resource_type, resource_name=resource_name, names=names)
        for listener in self._listeners[resource_type]:
            listener(changed)

    # -- descriptions

    async def settle(self) -> bool:
        """Wait for the commits in progress; return False when they failed, so values read before are outdated."""
        if self._is_settled:
            return True
        try:
            await self._store.submit(())
        except StorageError:
            return False
        return True

    def describe(
        self, resource_type: int, resource_name: str, keys: Sequence[str] | None, *, node_id: int
    ) -> tuple[DescribedConfig, ...]:
        """Describe a resource from the view of the broker ``node_id``.

        Args:
            resource_type: A ResourceType.
            resource_name: Name of the resource.
            keys: Configs to describe; None or empty means all.
            node_id: Broker id that received the request.

        Raises:
            KafkaApiError: The resource does not exist.
        """
        everything = describe_resource(
            self._image, self._loggers.levels, resource_type=resource_type, name=resource_name, node_id=node_id
        )
        return select_keys(everything, keys)

    def resource_names(self, resource_type: ResourceType) -> Sequence[str]:
        """Return the names of a type's resources: all topics or brokers; of other types those with dynamic configs."""
        match resource_type:
            case ResourceType.TOPIC:
                return self._image.topics
            case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
                return [str(node_id) for node_id in self._image.node_ids]
            case _:
                return self._image.names_set(resource_type)


def _fits_into_messages(row: PutConfig) -> bool:
    """Return whether a stored config can be described. An earlier version stored names of any length."""
    fits = max(len(row.name.encode()), len(row.resource_name.encode())) <= MAX_STRING_BYTES
    if not fits:
        logger.warning(
            "%s %s: skipping the stored config %s, because a name may have at most %d bytes",
            ResourceType(row.resource_type).name,
            short_repr(row.resource_name),
            short_repr(row.name),
            MAX_STRING_BYTES,
        )
    return fits


def _is_too_small_segment(row: PutConfig) -> bool:
    """Return whether a stored segment size is invalid. An earlier version created internal topics with any size."""
    if row.resource_type != ResourceType.TOPIC or row.name != "segment.bytes" or row.value is None:
        return False
    try:
        topic_configs()[row.name].parse(row.value)
    except InvalidConfigError as error:
        logger.warning("Topic %s: skipping a stored config: %s", row.resource_name, error.error_message)
        return True
    return False


def _rows(decision: ConfigDecision, author: Author, at_ms: int) -> list[Change]:
    """Return the values to store and their entries in the change history."""
    kind, name = decision.resource_type, decision.resource_name
    rows: list[Change] = []
    for change in decision.changes:
        old, new = decision.before.get(change.name), change.value
        rows.append(PutConfig(resource_type=kind, resource_name=name, name=change.name, value=new))
        if kind is ResourceType.BROKER and is_secret(change.name):
            old, new = old and HIDDEN, new and HIDDEN
        rows.append(
            RecordedChange(
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


async def _repeated(alterations: Sequence[ResourceAlteration], slices: TimeSlice) -> Set[tuple[int, str]]:
    """Return the identities of the resources that appear more than once."""
    seen: set[tuple[int, str]] = set()
    repeated: set[tuple[int, str]] = set()
    async for alteration in slices.over(alterations):
        identity = identity_of(alteration.resource_type, alteration.resource_name)
        (repeated if identity in seen else seen).add(identity)
    identities = list(seen)
    seen.clear()
    await slices.free(identities)
    return repeated
