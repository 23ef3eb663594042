"""The control loop of a flow: topics, partitions and configs on the target, then what is to be copied."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm.mirror.errors import FlowFailedError
from klamm.mirror.internal_topics import EXISTS, create_internal_topic
from klamm.mirror.model import AdminIncompatibleError, AdminRefusedError, ClusterAwayError, NewRemoteTopic
from klamm.mirror.naming import HEARTBEATS_TOPIC, is_heartbeats_topic
from klamm.mirror.progress import FlowState
from klamm.mirror.reasons import LoggedReasons
from klamm.mirror.settings.keys import SyncsLocation
from klamm.mirror.topics.acl_sync import AclSync
from klamm.mirror.topics.config_sync import ConfigSync, log_refusal
from klamm.mirror.topics.plans import plan_new_topic, plan_topics, selected_topics
from klamm.mirror.topics.worker_offsets import carry_positions

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from klamm.mirror.model import MirrorAdmin, TopicSummary
    from klamm.mirror.progress import MirrorStatus
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.settings.groups import HeartbeatSettings

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S: Final = 0.2
_LAST_BACKOFF_S: Final = 10.0
_TURN_S: Final = 0.2
_INVALID_CONFIG: Final = "INVALID_CONFIG"
_INVALID_REPLICATION_FACTOR: Final = "INVALID_REPLICATION_FACTOR"

Assignment = tuple[tuple[str, str, int], ...]
"""Source topic, remote topic, number of partitions."""


class FlowControl:
    """Keeps the target of one flow as its source demands. Runs in a thread of its own; ``publish`` is called there."""

    def __init__(
        self,
        settings: FlowSettings,
        source: MirrorAdmin,
        target: MirrorAdmin,
        *,
        status: MirrorStatus,
        publish: Callable[[Assignment], None],
        heartbeats: HeartbeatSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        carry: Callable[[FlowSettings], None] = carry_positions,
    ) -> None:
        """Prepare the loop.

        Args:
            settings: the flow.
            source: of its source.
            target: of its target.
            status: is told where the flow stands.
            publish: is told what is to be copied.
            heartbeats: those that are written to the source; None: none are.
            clock: seconds.
            carry: brings positions into the topic that the flow has of its own, before anything is copied.
        """
        self._settings = settings
        self._heartbeats = heartbeats
        self._source = source
        self._target = target
        self._status = status
        self._publish = publish
        self._clock = clock
        self._carry = carry
        self._configs = ConfigSync(settings, source, target)
        self._acls = AclSync(settings, source, target)
        self._are_reachable = False
        self._has_internal_topics = False
        self._refresh_due = 0.0
        self._sync_due = 0.0
        self._acl_sync_due = 0.0
        self._assignment: Assignment = ()
        self._is_none_selected = False
        self._refused: dict[str, str] = {}
        """Remote topics that were refused in the last round, and why."""
        self._told: dict[str, str] = {}
        """Those of the round before."""

    def run(self, stop: threading.Event) -> None:
        """Go round until ``stop``, or until the flow has failed."""
        backoff_s = _FIRST_BACKOFF_S
        logged = LoggedReasons()
        while not stop.is_set():
            try:
                self.turn()
            except FlowFailedError as error:
                logger.error("%s failed: %s", self._settings.name, error)  # noqa: TRY400 - the text says it all
                self._status.set_state(self._settings.name, FlowState.FAILED, str(error))
                self._publish(())
                return
            except (ClusterAwayError, AdminRefusedError, AdminIncompatibleError) as error:
                if logged.is_new(str(error)):
                    logger.warning("%s waits: %s", self._settings.name, error)
                self._status.set_state(self._settings.name, FlowState.WAITING, str(error))
                self._are_reachable = False
                stop.wait(backoff_s)
                backoff_s = min(backoff_s * 2, _LAST_BACKOFF_S)
            else:
                backoff_s = _FIRST_BACKOFF_S
                logged.clear()
                self._status.set_state(self._settings.name, FlowState.RUNNING)
                stop.wait(_TURN_S)
        self._status.set_state(self._settings.name, FlowState.STOPPED)

    def turn(self) -> None:
        """Do what is due now.

        Raises:
            FlowFailedError: the flow can not go on.
            ClusterAwayError: a cluster is away; the next turn tries again.
        """
        now = self._clock()
        if not self._are_reachable:
            self._source.check_reachable()
            self._target.check_reachable()
            self._are_reachable = True
        if not self._has_internal_topics:
            self._create_internal_topics()
            self._has_internal_topics = True
        if now >= self._refresh_due:
            self._refresh_topics()
            refresh = self._settings.refresh_topics_interval.total_seconds()
            self._refresh_due = now + refresh if self._settings.refresh_topics_enabled else float("inf")
        if now >= self._sync_due and self._settings.sync_topic_configs_enabled:
            self._configs.run([topic for topic, _, _ in self._assignment])
            self._sync_due = now + self._settings.sync_topic_configs_interval.total_seconds()
        if now >= self._acl_sync_due and self._settings.sync_topic_acls_enabled:
            self._acls.run([topic for topic, _, _ in self._assignment])
            self._acl_sync_due = now + self._settings.sync_topic_acls_interval.total_seconds()

    def _create_internal_topics(self) -> None:
        """Create the topics of positions, offset syncs and heartbeats; only the first one is needed for copying.

        Raises:
            AdminRefusedError: the topic of positions is not there.
            ClusterAwayError: a cluster is away, or positions can not be read now.
        """
        settings = self._settings
        factor = settings.positions_replication_factor
        refused = create_internal_topic(
            self._target,
            settings.positions_topic,
            replication_factor=factor,
            partition_count=settings.positions_partitions,
            configs=settings.positions_topic_configs,
        )
        if refused is not None:
            raise AdminRefusedError(
                refused.error_name,
                f"{settings.positions_topic} could not be created with "
                f"offset.storage.replication.factor={factor}: {refused}",
            )
        self._carry(settings)
        if settings.syncs_topic is not None:
            self._create_syncs_topic(settings.syncs_topic)
        if self._heartbeats is not None:
            # Whoever writes them does the same, and says what is wrong. But what is there before the topics are
            # looked at is mirrored from the start.
            factor = self._heartbeats.replication_factor
            create_internal_topic(self._source, HEARTBEATS_TOPIC, replication_factor=factor)

    def _create_syncs_topic(self, name: str) -> None:
        """Create the topic of offset syncs; without it records are copied all the same."""
        settings = self._settings
        on_source = settings.syncs_location is SyncsLocation.SOURCE
        factor = settings.syncs_replication_factor
        admin = self._source if on_source else self._target
        refused = create_internal_topic(admin, name, replication_factor=factor)
        if refused is not None:
            alias = settings.source.alias if on_source else settings.target.alias
            logger.warning(
                "%s: topic %s could not be created on cluster %s with offset-syncs.topic.replication.factor=%d: %s; "
                "offsets of groups cannot be translated until it is created",
                settings.name, name, alias, factor, refused,
            )  # fmt: skip

    def _refresh_topics(self) -> None:
        self._told, self._refused = self._refused, {}
        here = self._source.list_topics()
        selected = selected_topics(here, self._settings.selection)
        self._tell_if_none(here, selected)
        target = self._target.list_topics()
        plan = plan_topics(selected, target, self._settings.remote_topic)
        counts = {name: topic.partition_count for name, topic in target.items()}
        counts |= self._create(plan.create, {topic.name: topic for topic in selected})
        counts |= self._grow(plan.grow)
        self._status.set_refused(self._settings.name, self._refused)
        self._tell_gone(selected)
        self._assign(selected, counts)

    def _create(self, names: Sequence[str], topics: Mapping[str, TopicSummary]) -> dict[str, int]:
        """Create remote topics; returns the partition counts of those that exist now.

        A list of topics asked for right afterwards need not show them yet.
        """
        new = []
        for name, entries in self._source.describe_topic_configs(list(names)).items():
            if isinstance(entries, AdminRefusedError):
                what = f"describe the configs of topic {name} on cluster {self._settings.source.alias}"
                self._note_refusal(self._settings.remote_topic(name), entries, what)
                continue
            new.append(
                plan_new_topic(
                    topics[name],
                    entries,
                    remote_name=self._settings.remote_topic(name),
                    replication_factor=self._settings.replication_factor,
                    config_filter=self._settings.config_filter,
                )
            )
        outcomes = dict(self._target.create_topics(new))
        outcomes |= self._create_without_unknown_configs(
            [topic for topic in new if (refused := outcomes[topic.name]) and refused.error_name == _INVALID_CONFIG]
        )
        alias = self._settings.target.alias
        copied = {remote_name: count for _, remote_name, count in self._assignment}
        for name, refused in outcomes.items():
            if refused is None and name in copied:
                logger.warning(
                    "%s: topic %s was gone on cluster %s and is created again: what was mirrored to it before is not "
                    "mirrored again", self._settings.name, name, alias,
                )  # fmt: skip
            elif refused is None:
                logger.info("%s: created topic %s", self._settings.name, name)
            elif refused.error_name != EXISTS:
                self._note_refusal(name, self._with_remedy(refused), f"create topic {name} on cluster {alias}")
        counts = {topic.name: topic.partition_count for topic in new if outcomes.get(topic.name) is None}
        # A broker that learns of thousands of topics does not list them for a while, though they are there.
        unlisted = {name for name, refused in outcomes.items() if refused and refused.error_name == EXISTS}
        return counts | {name: copied[name] for name in unlisted & copied.keys()}

    def _create_without_unknown_configs(self, topics: Sequence[NewRemoteTopic]) -> dict[str, AdminRefusedError | None]:
        """Try again without the configs that the target does not know, such as those of another vendor."""
        if not topics:
            return {}
        # Any topic of the target names all the configs that it knows; this one is there.
        described = self._target.describe_topic_configs([self._settings.positions_topic])
        entries = described.get(self._settings.positions_topic)
        if entries is None or isinstance(entries, AdminRefusedError):
            return {}
        known = {entry.name for entry in entries}
        fewer = []
        for topic in topics:
            unknown = sorted(topic.configs.keys() - known)
            if unknown:
                alias, names = self._settings.target.alias, ", ".join(unknown)
                logger.warning(
                    "%s: topic %s: left out, cluster %s does not know it: %s",
                    self._settings.name, topic.name, alias, names,
                )  # fmt: skip
                configs = {name: value for name, value in topic.configs.items() if name in known}
                fewer.append(replace(topic, configs=configs))
        return dict(self._target.create_topics(fewer)) if fewer else {}

    def _grow(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Grow remote topics; returns the partition counts of those that did."""
        grown = {}
        for name, refused in self._target.create_partitions(counts).items():
            if refused is None:
                logger.info("%s: topic %s has %d partitions now", self._settings.name, name, counts[name])
                grown[name] = counts[name]
            else:
                alias = self._settings.target.alias
                self._note_refusal(name, refused, f"grow topic {name} to {counts[name]} partitions on cluster {alias}")
        return grown

    def _note_refusal(self, remote_topic: str, refused: AdminRefusedError, operation: str) -> None:
        """Keep why a topic is not mirrored, or not whole; log it once until the reason changes."""
        self._refused[remote_topic] = str(refused)
        if self._told.get(remote_topic) != str(refused):
            log_refusal(refused, operation)

    def _with_remedy(self, refused: AdminRefusedError) -> AdminRefusedError:
        if refused.error_name != _INVALID_REPLICATION_FACTOR:
            return refused
        setting = f"replication.factor={self._settings.replication_factor}"
        return AdminRefusedError(refused.error_name, f"{setting}: {str(refused).partition(': ')[2]}")

    def _tell_if_none(self, here: Mapping[str, TopicSummary], selected: Sequence[TopicSummary]) -> None:
        """Say once that nothing of the source is mirrored: an expression may be misspelt."""
        policy = self._settings.policy
        is_none = all(is_heartbeats_topic(policy, topic.name) for topic in selected)
        if is_none and not self._is_none_selected:
            logger.warning(
                "%s: no topic is mirrored: topics and topics.exclude select none of the %d topics of cluster %s",
                self._settings.name, sum(not policy.is_internal_topic(name) for name in here),
                self._settings.source.alias,
            )  # fmt: skip
        self._is_none_selected = is_none

    def _tell_gone(self, selected: Sequence[TopicSummary]) -> None:
        still = {topic.name for topic in selected}
        for topic, remote_topic, _ in self._assignment:
            if topic not in still:
                logger.warning(
                    "%s: topic %s is gone on cluster %s: %s stays on cluster %s as it is",
                    self._settings.name, topic, self._settings.source.alias, remote_topic, self._settings.target.alias,
                )  # fmt: skip

    def _assign(self, selected: Sequence[TopicSummary], counts: Mapping[str, int]) -> None:
        """Publish what can be copied: partitions that exist on both sides."""
        assignment = []
        for topic in selected:
            remote_name = self._settings.remote_topic(topic.name)
            if remote_name in counts:
                assignment.append((topic.name, remote_name, min(topic.partition_count, counts[remote_name])))
        if tuple(assignment) != self._assignment or not self._refresh_due:
            self._assignment = tuple(assignment)
            self._publish(self._assignment)
