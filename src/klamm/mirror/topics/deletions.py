"""Deletion of remote topics whose source topics were deleted (``klamm.sync.topic.deletions``).

A remote topic is deleted only if all of these hold at each refresh of the topics during the grace period:

- The source was listed, and lists at least one topic apart from internal topics and heartbeats. An emptied cluster
  therefore deletes nothing.
- The source has the cluster id that it had at the first refresh with deletions, which is stored beside the source
  offsets. A cluster that replaces it deletes nothing.
- The source reports the topic as unknown. A topic that the principal may not describe is not taken for deleted.
- The flow has source offsets for the topic, and its filters select it.
- Neither the source topic nor the remote topic is internal or a heartbeats topic, and no other source topic is
  mirrored to the remote topic.
- No other flow of the mirror may write to the remote topic: flows that keep the names of topics and both select one
  share its remote topic, which holds the records of both sources.

A remote topic is not deleted while a task may still commit source offsets of its source topic. They would outlive the
deletion, and a later source topic with that name would be resumed there.

The start of each grace period and the deletions of the past hour are kept in memory. A restart of the mirror starts
both again, so it can only delay a deletion of a topic. Grace periods also start again after the topics were not
refreshed for some time: the source does not answer, the flow is stopped, or another process mirrors it. After a
deletion, the source offsets of the topic are deleted too. A later source topic with that name is mirrored from its
beginning, but not before. They stay if, before they are deleted, the mirror ends, an operator stops the flow or the
topic, or another process mirrors the flow: from then on, they may be those of a reset or of a later topic. Otherwise, a
later topic is STOPPED as one that was created again.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.mirror.cluster_admin import delete_topics, denied_topics, missing_topics
from klamm.mirror.naming import is_heartbeats_topic
from klamm.mirror.records.worker_offsets import first_cluster, forget_topics, mirrored_topics
from klamm.mirror.settings.definitions import TOPIC_DELETIONS, TOPIC_DELETIONS_PER_HOUR, TopicDeletions
from klamm.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from klamm.admin import AdminClient
    from klamm.mirror.settings.flow import FlowSettings

logger = logging.getLogger(__name__)

_HOUR_S: Final = 3600.0
_LONGEST_GAP: Final = 3.0
"""Refresh intervals without a refresh after which the grace periods begin again."""
_SHORTEST_GAP_S: Final = 60.0
"""Seconds that a refresh may take in any case."""


def log_gone(flow: FlowSettings, source: AdminClient, gone: Mapping[str, str]) -> None:
    """Log the source topics that are not mirrored any more, given with their remote topics, which are kept."""
    denied = denied_topics(source, gone)
    alias = flow.source.alias
    for topic, remote_topic in gone.items():
        is_gone = f"is gone on cluster {alias}"
        if topic in denied:
            why = error_text(denied[topic])
            is_gone = f"is not mirrored now, because cluster {alias} does not describe it ({why})"
        logger.warning(
            "%s: topic %s %s: topic %s on cluster %s is kept unchanged",
            flow.name, topic, is_gone, remote_topic, flow.target.alias,
        )  # fmt: skip


def plan_deletions(
    flow: FlowSettings, mirrored: Collection[str], source: Collection[str], target: Collection[str]
) -> dict[str, str]:
    """Return the remote topics whose source topics are gone, by source topic, sorted by name.

    Args:
        flow: Settings of the flow.
        mirrored: Source topics that the flow has source offsets for.
        source: Topics that the source lists.
        target: Topics that the target lists.
    """

    def is_own(topic: str) -> bool:
        return flow.policy.is_internal_topic(topic) or is_heartbeats_topic(flow.policy, topic)

    if all(is_own(topic) for topic in source):
        return {}
    used = {flow.remote_topic(topic) for topic in source if flow.selection.includes(topic)}
    remote_topics = {
        topic: flow.remote_topic(topic)
        for topic in sorted(mirrored)
        if topic not in source
        and not is_own(topic)
        and flow.selection.includes(topic)
        and not flow.flows_sharing(topic)
    }
    return {
        topic: remote_topic
        for topic, remote_topic in remote_topics.items()
        if remote_topic in target and remote_topic not in used and not is_own(remote_topic)
    }


class TopicDeletion:
    """Step of the control loop that deletes remote topics. Confined to the thread of the control loop."""

    def __init__(
        self,
        settings: FlowSettings,
        source: AdminClient,
        target: AdminClient,
        *,
        mirrored: Callable[[FlowSettings], Collection[str]] = mirrored_topics,
        forget: Callable[[FlowSettings, Collection[str]], None] = forget_topics,
        first_cluster: Callable[[FlowSettings, str], str] = first_cluster,
        is_released: Callable[[Collection[str]], bool] = lambda _topics: True,
    ) -> None:
        """Prepare the step.

        Args:
            settings: Settings of the flow.
            source: Admin client of the source cluster.
            target: Admin client of the target cluster.
            mirrored: Returns the source topics that the flow has source offsets for.
            forget: Deletes the source offsets of topics.
            first_cluster: Returns the cluster id that the source had at the first call, given that of now.
            is_released: Returns whether no task has partitions of these source topics any more.
        """
        self._settings = settings
        self._source = source
        self._target = target
        self._mirrored = mirrored
        self._forget = forget
        self._first_cluster = first_cluster
        self._is_released = is_released
        self._gone_since: dict[str, float] = {}
        """Time at which each deleted source topic was first missing."""
        self._cluster_id: str | None = None
        """Cluster id of the source at the first run for the flow, perhaps in another process. None: not read yet."""
        self._looked_at = math.inf
        """Time of the last run."""
        self._deleted_at: list[float] = []
        """Times of the deletions within the past hour."""
        self._unforgotten: set[str] = set()
        """Source topics whose remote topic is deleted, but not yet their source offsets. See ``mirrorable``."""

    def run(
        self, source: Mapping[str, int], target: Mapping[str, int], now: float, *, kept: Collection[str] = ()
    ) -> Collection[str]:
        """Start and cancel grace periods, and delete the remote topics whose grace period is over.

        Return the source topics that this step handles and has logged.

        Args:
            source: Partition counts of the topics that the source lists.
            target: Partition counts of the topics that the target lists.
            now: Monotonic time in seconds.
            kept: Source topics whose remote topics are kept in any case.

        Raises:
            ConnectionError, TimeoutError, ProtocolError, KafkaApiError: A cluster is unavailable.
        """
        settings = self._settings.deletions
        cluster_id = self._source.describe_cluster().result().cluster_id or ""
        if self._cluster_id is None:
            self._cluster_id = self._first_cluster(self._settings, cluster_id)
        if cluster_id != self._cluster_id:
            logger.warning(
                "%s: no remote topic is deleted, because %s is cluster %s and was %s before: mirror the other cluster "
                "under another alias, or delete remote topics yourself",
                self._settings.name, self._settings.source.alias, cluster_id, self._cluster_id,
            )  # fmt: skip
            self._gone_since.clear()
            return ()
        longest_s = max(_LONGEST_GAP * self._settings.refresh_topics_interval.total_seconds(), _SHORTEST_GAP_S)
        if now - self._looked_at > longest_s:
            self._gone_since.clear()
        self._looked_at = now
        planned = plan_deletions(self._settings, set(self._mirrored(self._settings)).difference(kept), source, target)
        missing = missing_topics(self._source, planned)
        planned = {topic: remote_topic for topic, remote_topic in planned.items() if topic in missing}
        self._note(planned, now)
        if settings.mode is TopicDeletions.PLAN:
            return planned.keys()
        grace_s = settings.grace.total_seconds()
        due = [topic for topic in planned if now - self._gone_since[topic] >= grace_s and self._is_released([topic])]
        self._deleted_at = [at for at in self._deleted_at if now - at < _HOUR_S]
        allowed = settings.max_per_hour - len(self._deleted_at)
        if due[allowed:]:
            logger.warning(
                "%s: %d remote topics are deleted later, because %s=%d",
                self._settings.name, len(due[allowed:]), TOPIC_DELETIONS_PER_HOUR.key, settings.max_per_hour,
            )  # fmt: skip
        self._delete({planned[topic]: topic for topic in due[:allowed]}, now)
        self._forget_deleted()
        return planned.keys()

    def mirrorable(self, topics: Mapping[str, int]) -> dict[str, int]:
        """Return topics without those whose source offsets are still to be deleted, after another attempt to do so.

        A later attempt would delete the source offsets of new topics with these names.

        Args:
            topics: Partition counts by source topic.
        """
        self._forget_deleted()
        return {topic: count for topic, count in topics.items() if topic not in self._unforgotten}

    def start_again(self) -> None:
        """Start all grace periods again and keep all source offsets: the flow is stopped, or another process has it."""
        self._gone_since.clear()
        self._unforgotten.clear()

    def keep_source_offsets(self, topics: Collection[str]) -> None:
        """Delete no source offsets of these topics for a past deletion: a reset may set them.

        Args:
            topics: Source topics that an operator stopped.
        """
        self._unforgotten.difference_update(topics)

    def _note(self, planned: Mapping[str, str], now: float) -> None:
        """Start the grace periods of topics that are newly gone, and cancel those of the others."""
        settings = self._settings
        grace_s = settings.deletions.grace.total_seconds()
        for topic in sorted(self._gone_since.keys() - planned.keys()):
            logger.warning("%s: topic %s: the deletion of its remote topic is cancelled", settings.name, topic)
            del self._gone_since[topic]
        for topic in sorted(planned.keys() - self._gone_since.keys()):
            self._gone_since[topic] = now
            if settings.deletions.mode is TopicDeletions.PLAN:
                then = f"would be deleted after {grace_s:g} s with {TOPIC_DELETIONS.key}=on"
            else:
                then = f"is deleted in {grace_s:g} s unless the topic comes back"
            logger.warning(
                "%s: topic %s is gone on cluster %s: topic %s on cluster %s %s",
                settings.name, topic, settings.source.alias, planned[topic], settings.target.alias, then,
            )  # fmt: skip

    def _delete(self, topics: Mapping[str, str], now: float) -> None:
        """Delete remote topics, given with their source topics. A rejected deletion is tried again later."""
        name, alias = self._settings.name, self._settings.target.alias
        for remote_topic, rejected in delete_topics(self._target, topics).items():
            if rejected is not None and rejected.error_code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                logger.warning(
                    "%s: topic %s could not be deleted on cluster %s: %s",
                    name, remote_topic, alias, error_text(rejected),
                )  # fmt: skip
                continue
            logger.warning("%s: deleted topic %s on cluster %s", name, remote_topic, alias)
            self._deleted_at.append(now)
            self._unforgotten.add(topics[remote_topic])
            del self._gone_since[topics[remote_topic]]

    def _forget_deleted(self) -> None:
        """Delete the source offsets of the topics whose remote topics were deleted. If that fails, keep the topics."""
        try:
            if self._unforgotten:
                self._forget(self._settings, frozenset(self._unforgotten))
                self._unforgotten.clear()
        except CLUSTER_ERRORS as error:
            logger.warning(
                "%s: the source offsets of %s, whose remote topics were deleted, cannot be deleted now. Until then, "
                "new topics with these names are not mirrored: %s",
                self._settings.name, ", ".join(sorted(self._unforgotten)), error_text(error),
            )  # fmt: skip
