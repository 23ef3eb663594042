"""Workarounds for two losses of kafka-python 3.0 in the tests.

It loses an assignment that arrives between two polls. A poll that times out leaves its JoinGroup in flight, and the
next poll awaits it. But when the join completes between the two polls, ``need_rejoin`` is False already: the consumer
never takes over the assignment, and without heartbeats it is removed from its group 45 s later. With the workaround
such a consumer joins again with its next poll. On a busy machine, one in twenty consumers is affected.

It loses the need for the metadata of a topic that a client names while a metadata request without that topic is in
flight: the response resets the need. The client then knows no partitions until ``metadata.max.age.ms``, five minutes.
With the workaround it requests the metadata again. On a busy machine, one in some thousand clients is affected.
"""

from __future__ import annotations

import functools
from typing import Any

from kafka.cluster import ClusterMetadata
from kafka.coordinator.base import BaseCoordinator


def mend_kafka_python() -> None:
    """Let clients of kafka-python in this process join, or request metadata, again after such a loss."""
    need_rejoin, update_metadata = BaseCoordinator.need_rejoin, ClusterMetadata.update_metadata
    if hasattr(need_rejoin, "__wrapped__"):
        return

    @functools.wraps(need_rejoin)
    def need_rejoin_also_if_lost(self: Any) -> bool:
        lost = self._join_task is not None and self._join_task.is_done
        return bool(need_rejoin(self) or lost)

    @functools.wraps(update_metadata)
    def update_metadata_and_keep_need(self: Any, metadata: Any) -> None:
        update_metadata(self, metadata)
        if not self.need_all_topic_metadata and not self._topics <= {topic.name for topic in metadata.topics}:
            self.request_update()

    BaseCoordinator.need_rejoin = need_rejoin_also_if_lost
    ClusterMetadata.update_metadata = update_metadata_and_keep_need
