"""Sync of topic configs and ACLs.

Config sync: writes the configs of source topics to their remote topics (``use.incremental.alter.configs``, KIP-894).

=============  =======================================================================================================
value          API used on the target
=============  =======================================================================================================
``requested``  IncrementalAlterConfigs. If the target lacks this API, AlterConfigs until the flow is restarted.
``required``   IncrementalAlterConfigs. If the target lacks this API, the flow fails.
``never``      AlterConfigs.
=============  =======================================================================================================

AlterConfigs replaces all configs of a topic, so it also resets configs that were set on the target by hand.
IncrementalAlterConfigs changes single configs; ``klamm.mirror.topics.plans`` lists the rules.

With IncrementalAlterConfigs, the sync first describes the configs of the remote topic:

- It succeeds: only configs that differ are sent. Configs that the target does not know are left out and logged once,
  because one unknown config makes the broker reject all changes of the topic.
- It is denied: all configs are sent in every round, as MirrorMaker 2 does.
- A policy of the target stores another value: that is logged when one of the values changes. The config is sent again
  in each round, because the policy may change, too.
- It fails otherwise, mostly because the topic was just created: the topic is skipped in this round. It was created with
  its configs.

ACL sync: creates ACLs of remote topics from those of their source topics (``sync.topic.acls.enabled``).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm.admin import AclFilter, KafkaApiError, OpType, PolicyOverride
from klamm.configs.names import is_of_topic_characters
from klamm.kafka_client.errors import error_text, is_denial
from klamm.mirror.cluster_admin import (
    alter_topic_configs,
    check_incremental_alter_configs,
    outcome,
    rejections,
    replace_topic_configs,
    topic_configs,
)
from klamm.mirror.progress.flow_progress import FlowFailedError
from klamm.mirror.settings.definitions import IncrementalAlterConfigs
from klamm.mirror.topics.plans import complete_configs, plan_config_operations, plan_replacement
from klamm.protocol.errors import SecurityDisabledError, UnsupportedVersionError
from klamm.retries import LoggedReasons
from klamm.security.acls import WILDCARD, AclOperation, AclPermission, AclResourceType, PatternType

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.admin import AdminClient, ConfigEntry
    from klamm.mirror.cluster_admin import TopicConfigOperation

    Described = Mapping[str, Mapping[str, ConfigEntry]]
    """Configs by name, by topic."""
    from collections.abc import Callable, Iterable

    from klamm.mirror.settings.flow import FlowSettings
    from klamm.security.acls import Acl

logger = logging.getLogger(__name__)


class ConfigSync:
    """Config sync of one flow. Confined to the flow's thread.

    If the target lacks IncrementalAlterConfigs, a flow with ``requested`` uses AlterConfigs until it is restarted.
    """

    def __init__(self, settings: FlowSettings, source: AdminClient, target: AdminClient) -> None:
        self._settings = settings
        self._source = source
        self._target = target
        self.uses_legacy = settings.use_incremental_alter_configs is IncrementalAlterConfigs.NEVER
        self._is_offered = False
        self._logged_unknown: dict[tuple[str, str], str | None] = {}
        """Values already logged, by remote topic and name of a config that the target does not know."""
        self._logged_rejections: dict[str, str] = {}
        self._overridden: dict[tuple[str, str], tuple[str | None, str | None]] = {}
        """Values that were sent and that a policy stored instead, by remote topic and name of the config."""
        self._not_described = LoggedRejections()
        self._supported: dict[str, frozenset[str]] = {}
        """Names of all configs by remote topic. Contains the topics that could be described in the latest round."""

    def run(self, topics: Sequence[str]) -> None:
        """Sync the configs of source topics to remote topics that exist.

        Args:
            topics: Names of the source topics that are mirrored.

        Raises:
            FlowFailedError: IncrementalAlterConfigs is required, but the target lacks it.
            ConnectionError, TimeoutError: A cluster is unavailable. The rest of this round is skipped.
        """
        described = self._describe(topics)
        if not described:
            return
        if self.writes_single_configs(next(iter(described))):
            planned = self.plan(described)
            self._log_unknown(planned)
            try:
                self._apply(self.without_unknown(planned))
            except UnsupportedVersionError as error:  # not every broker of the target has the same release
                self._fall_back(error)
        if self.uses_legacy:
            for name, rejected in self.replace(described).items():
                self._log_rejected(name, rejected)

    def writes_single_configs(self, topic: str) -> bool:
        """Return whether IncrementalAlterConfigs is used. The first call asks the target, without any changes.

        Args:
            topic: Any mirrored source topic. The check needs the name of a remote topic that exists.

        Raises:
            FlowFailedError: IncrementalAlterConfigs is required, but the target lacks it.
            ConnectionError, TimeoutError: The target is unavailable.
        """
        if not self.uses_legacy and not self._is_offered:
            try:
                check_incremental_alter_configs(self._target, self._settings.remote_topic(topic))
                self._is_offered = True
            except UnsupportedVersionError as error:
                self._fall_back(error)
        return not self.uses_legacy

    def plan_replacement(self, described: Described) -> dict[str, tuple[TopicConfigOperation, ...]]:
        """Return the changes that AlterConfigs would make, by remote topic.

        Remote topics that cannot be described are left out.
        """
        remote = {self._settings.remote_topic(topic): topic for topic in described}
        current = topic_configs(self._target, remote)
        return {
            name: plan_replacement(described[topic].values(), self._settings.config_filter, target=entries.values())
            for name, topic in remote.items()
            if not isinstance(entries := current[name], KafkaApiError)
        }

    def plan(self, described: Described) -> dict[str, tuple[TopicConfigOperation, ...]]:
        """Return the incremental operations that change something, by remote topic.

        They include operations on configs that the target does not know; see ``without_unknown``.
        """
        remote = {self._settings.remote_topic(topic): topic for topic in described}
        current = topic_configs(self._target, remote)
        out = {}
        self._supported = {}
        for name, topic in remote.items():
            target = current[name]
            own: Collection[ConfigEntry] | None = None
            if not isinstance(target, KafkaApiError):
                self._supported[name], own = frozenset(target), target.values()
            elif not is_denial(target):
                continue  # the topic was just created with its configs, and not every broker knows it yet
            planned = plan_config_operations(described[topic].values(), self._settings.config_filter, target=own)
            if planned:
                out[name] = planned
        return out

    def is_known(self, remote_topic: str, name: str) -> bool:
        """Return whether the target knows a config, or True if the remote topic could not be described."""
        names = self._supported.get(remote_topic)
        return names is None or name in names

    def is_described(self, remote_topic: str) -> bool:
        """Return whether the planned remote topic could be described. If not, all configs are sent."""
        return remote_topic in self._supported

    def without_unknown(
        self, planned: Mapping[str, tuple[TopicConfigOperation, ...]]
    ) -> dict[str, tuple[TopicConfigOperation, ...]]:
        """Return the operations on configs that the target knows. A single unknown one would fail the whole topic."""
        supported = {
            topic: tuple(each for each in operations if self.is_known(topic, each.name))
            for topic, operations in planned.items()
        }
        return {topic: operations for topic, operations in supported.items() if operations}

    def _log_unknown(self, planned: Mapping[str, tuple[TopicConfigOperation, ...]]) -> None:
        """Log the configs that the target does not know. Each is logged again only when its value changes."""
        unknown = {
            (topic, each.name): each.value
            for topic, operations in planned.items()
            for each in operations
            if not self.is_known(topic, each.name)
        }
        for (topic, name), value in unknown.items():
            if (topic, name) not in self._logged_unknown or self._logged_unknown[topic, name] != value:
                logger.warning(
                    "Could not alter configuration of topic %s: cluster %s does not know %s, which is skipped",
                    topic, self._settings.target.alias, name,
                )  # fmt: skip
        self._logged_unknown = unknown

    def _describe(self, topics: Sequence[str]) -> dict[str, Mapping[str, ConfigEntry]]:
        out, rejected = {}, {}
        for topic, entries in topic_configs(self._source, topics).items():
            if isinstance(entries, KafkaApiError):
                alias = self._settings.source.alias
                rejected[f"describe the configs of topic {topic} on cluster {alias}"] = entries
            else:
                out[topic] = entries
        self._not_described.log(rejected)
        return out

    def _apply(self, planned: Mapping[str, Sequence[TopicConfigOperation]]) -> None:
        """Send the operations and log each change."""
        for name, changed in alter_topic_configs(self._target, planned).items():
            rejected = changed if isinstance(changed, KafkaApiError) else None
            self._log_rejected(name, rejected)
            if rejected is not None:
                continue
            if not self.is_described(name):
                logger.debug(
                    "%s: topic %s: sent %d configs without knowing the current ones",
                    self._settings.name,
                    name,
                    len(planned[name]),
                )
                continue
            for operation in planned[name]:
                if isinstance(changed, PolicyOverride) and operation.name in changed.values:
                    self._log_overridden(name, operation, changed)
                    continue
                old = "" if operation.old_value is None else f" (was {operation.old_value})"
                new = f" = {operation.value}" if operation.operation is OpType.SET else " back to its default"
                logger.info(
                    "%s: topic %s: %s%s%s: %s", self._settings.name, name, operation.name, new, old, operation.rule
                )

    def _log_overridden(self, remote_topic: str, operation: TopicConfigOperation, override: PolicyOverride) -> None:
        """Log that a policy stores another value. The same two values are not logged again."""
        values = operation.value, override.values[operation.name]
        if self._overridden.get((remote_topic, operation.name)) != values:
            self._overridden[remote_topic, operation.name] = values
            logger.warning(
                "%s: topic %s: %s",
                self._settings.name,
                remote_topic,
                overridden(operation.name, operation.value, override, self._settings.target.alias),
            )

    def _fall_back(self, error: UnsupportedVersionError) -> None:
        """Use AlterConfigs from now on, or fail the flow if IncrementalAlterConfigs is required."""
        alias = self._settings.target.alias
        if self._settings.use_incremental_alter_configs is IncrementalAlterConfigs.REQUIRED:
            message = (
                f"use.incremental.alter.configs was set to required, but the target cluster {alias} is not compatible "
                f"with IncrementalAlterConfigs API: {error}"
            )
            raise FlowFailedError(message) from error
        logger.warning(
            "The target cluster %s is not compatible with IncrementalAlterConfigs API. Therefore using deprecated "
            "AlterConfigs API for syncing topic configurations",
            alias,
        )
        self.uses_legacy = True

    def replace(self, described: Described, *, validate_only: bool = False) -> dict[str, KafkaApiError | None]:
        """Replace the configs of remote topics by AlterConfigs, or only validate that. Return the rejections."""
        complete = {
            self._settings.remote_topic(topic): complete_configs(entries.values(), self._settings.config_filter)
            for topic, entries in described.items()
        }
        return replace_topic_configs(self._target, complete, validate_only=validate_only)

    def _log_rejected(self, remote_topic: str, rejected: KafkaApiError | None) -> None:
        """Log that the configs of a topic could not be altered. The same reason is not logged again until a success."""
        if rejected is None:
            self._logged_rejections.pop(remote_topic, None)
            return
        reason = error_text(rejected)
        if self._logged_rejections.get(remote_topic) == reason:
            return
        self._logged_rejections[remote_topic] = reason
        logger.warning("Could not alter configuration of topic %s: %s", remote_topic, reason)
        if is_denial(rejected):
            log_rejection(
                rejected, f"alter the configs of topic {remote_topic} on cluster {self._settings.target.alias}"
            )


def overridden(name: str, requested: str | None, override: PolicyOverride, alias: str) -> str:
    """Return what a policy of the target stores in place of the requested value of a config, as text for messages."""
    stored = override.values[name]
    return (
        f"{name}: a policy of cluster {alias} stores {_or_default(stored)} in place of "
        f"{_or_default(requested)}: {override.reason}"
    )


def _or_default(value: str | None) -> str:
    return "(default)" if value is None else value


def log_rejection(rejected: KafkaApiError, operation: str) -> None:
    """Log a rejected operation. A denial is logged with Kafka's exception name, as MirrorMaker 2 does."""
    if is_denial(rejected):
        words = rejected.error_code.name.removesuffix("_FAILED").split("_")
        exception = "".join(word.capitalize() for word in words) + "Exception"
        logger.error("%s occurred while trying to %s: %s", exception, operation, error_text(rejected))
    else:
        logger.warning("Could not %s: %s", operation, error_text(rejected))


class LoggedRejections:
    """Rejections of one kind of operation. Each is logged once, and again with another reason or after a success."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        """Reasons of the latest round, by operation."""

    def log(self, rejected: Mapping[str, KafkaApiError]) -> None:
        """Log the rejections of a round that are new.

        Args:
            rejected: All rejections of this round, by operation, such as ``alter the configs of topic t``.
        """
        for operation, error in rejected.items():
            if self._reasons.get(operation) != error_text(error):
                log_rejection(error, operation)
        self._reasons = {operation: error_text(error) for operation, error in rejected.items()}


_TOPIC_ACLS: Final = AclFilter(
    resource_type=AclResourceType.TOPIC,
    resource_name=None,
    pattern_type=PatternType.ANY,
    principal=None,
    host=None,
    operation=AclOperation.ANY,
    permission=AclPermission.ANY,
)


def remote_acls(
    acls: Iterable[Acl], is_synced: Callable[[str], bool], remote_topic: Callable[[str], str]
) -> tuple[Acl, ...]:
    """Return the ACLs that the target should have for selected topics, as MirrorMaker 2 does.

    ACLs often exist before their topic. They are synced at once, so that clients can use the remote topic from the
    moment when it is created. An ACL of all topics (``*``) is synced only if remote topics keep their names.

    ======================================  ==========================================
    ACL of a source topic                   ACL of its remote topic
    ======================================  ==========================================
    ALLOW WRITE                             none: only the mirror writes remote topics
    ALLOW ALL                               ALLOW READ
    any other ALLOW, every DENY             the same
    pattern other than LITERAL              none
    ======================================  ==========================================

    Args:
        acls: ACLs of the source.
        is_synced: Returns whether the ACLs of a source topic are synced.
        remote_topic: Returns the name of a remote topic.
    """
    out = []
    for acl in acls:
        if acl.resource_type is not AclResourceType.TOPIC or acl.pattern_type is not PatternType.LITERAL:
            continue
        allows = acl.permission is AclPermission.ALLOW
        if not _names_topics(acl.resource_name, remote_topic) or (allows and acl.operation is AclOperation.WRITE):
            continue
        if not is_synced(acl.resource_name):
            continue
        reads_only = allows and acl.operation is AclOperation.ALL
        operation = AclOperation.READ if reads_only else acl.operation
        out.append(replace(acl, resource_name=remote_topic(acl.resource_name), operation=operation))
    return tuple(dict.fromkeys(out))


def _names_topics(name: str, remote_topic: Callable[[str], str]) -> bool:
    """Return whether an ACL with this name has a meaning on the target."""
    return remote_topic(name) == name if name == WILDCARD else is_of_topic_characters(name)


def in_words(acl: Acl) -> str:
    """Return permission, operation, principal and host of an ACL as text for messages."""
    return f"{acl.permission.name} {acl.operation.name} for {acl.principal} from {acl.host}"


class AclSync:
    """ACL sync of one flow. It creates ACLs and never deletes any. Confined to the flow's thread."""

    def __init__(self, settings: FlowSettings, source: AdminClient, target: AdminClient) -> None:
        self._settings = settings
        self._source = source
        self._target = target
        self._logged = LoggedReasons()
        self._not_described = LoggedRejections()
        self._not_created = LoggedRejections()

    def run(self, left_out: Collection[str] = ()) -> None:
        """Create the missing ACLs of remote topics.

        Args:
            left_out: Names of source topics whose ACLs are not synced, although the flow selects them.

        Raises:
            ConnectionError, TimeoutError: A cluster is unavailable. The rest of this round is skipped.
        """
        settings = self._settings
        not_created = {}
        for acl, rejected in self._create(self.missing(left_out)).items():
            description = in_words(acl)
            if rejected is None:
                logger.info("%s: topic %s: created ACL %s", settings.name, acl.resource_name, description)
            else:
                alias = settings.target.alias
                not_created[f"create ACL {description} on topic {acl.resource_name} of cluster {alias}"] = rejected
        self._not_created.log(not_created)

    def missing(self, left_out: Collection[str] = ()) -> list[Acl]:
        """Return the ACLs that remote topics lack.

        Args:
            left_out: As for ``run``.

        Raises:
            ConnectionError, TimeoutError: A cluster is unavailable.
        """
        acls = _topic_acls(self._source)
        if isinstance(acls, KafkaApiError):
            self._log_not_described(acls)
            return []
        self._not_described.log({})
        includes = self._settings.selection.includes
        wanted = remote_acls(acls, lambda topic: topic not in left_out and includes(topic), self._settings.remote_topic)
        existing = self._existing() if wanted else frozenset()
        return [acl for acl in wanted if acl not in existing]

    def _existing(self) -> frozenset[Acl]:
        """Return the ACLs of the target. Without the right to describe them, return none: all ACLs are then sent."""
        acls = _topic_acls(self._target)
        return frozenset() if isinstance(acls, KafkaApiError) else frozenset(acls)

    def _create(self, acls: Sequence[Acl]) -> dict[Acl, KafkaApiError | None]:
        if not acls:
            return {}
        try:
            return rejections(self._target.create_acls(acls))
        except UnsupportedVersionError as error:
            self._log_once(f"cluster {self._settings.target.alias} does not support ACLs: {error_text(error)}")
            return {}

    def _log_not_described(self, error: KafkaApiError) -> None:
        alias = self._settings.source.alias
        if isinstance(error, (SecurityDisabledError, UnsupportedVersionError)):
            self._log_once(f"cluster {alias} does not support ACLs")
        else:
            self._not_described.log({f"describe the ACLs of topics on cluster {alias}": error})

    def _log_once(self, reason: str) -> None:
        """Log once why no ACLs are synced."""
        if self._logged.is_new(reason):
            logger.info(
                "%s: no ACLs are synced: %s. Set sync.topic.acls.enabled=false to stop trying",
                self._settings.name,
                reason,
            )


def _topic_acls(admin: AdminClient) -> tuple[Acl, ...] | KafkaApiError:
    """Return the ACLs of topics, or why the cluster does not return them: no right, no authorizer or no such API."""
    try:
        return outcome(admin.describe_acls(_TOPIC_ACLS))
    except UnsupportedVersionError as error:
        return error
