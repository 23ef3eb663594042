"""Copier of partitions that keep their offsets."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.replay.producer import ReplayProducer
from klamm.mirror.replay.start import NEWER_MIRROR, Incarnation, ReplayStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from klamm.mirror.copy.equal_offsets import ReplaySettings
    from klamm.mirror.copy.partition import PartitionCopy
    from klamm.mirror.copy.producer import CopyProducer
    from klamm.mirror.copy.settings import CopySettings
    from klamm.mirror.copy.start import Start
    from klamm.mirror.replay.partition import ReplayCopy

logger = logging.getLogger(__name__)


class ReplayCopier(Copier):
    """Copier that writes each record at its source offset. Confined to one thread."""

    def __init__(
        self,
        settings: CopySettings,
        replay: ReplaySettings,
        partitions: Iterable[PartitionId],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replay = replay
        self._incarnations = defaultdict[PartitionId, Incarnation](Incarnation)
        """Writers of this process by partition."""
        super().__init__(settings, partitions, clock=clock)

    def _new_producer(self) -> CopyProducer:
        return ReplayProducer(
            self._settings,
            self._target,
            self._copies,
            self._active,
            self._clock,
            barrier_s=self._replay.barrier_s,
            on_failed=self._failed,
        )

    def _new_start(self) -> Start:
        return ReplayStart(
            self._settings,
            self._source,
            self._target,
            self._store,
            replay=self._replay,
            incarnations=self._incarnations,
        )

    def _starts_with_new_remote_topic(self, copy: PartitionCopy) -> bool:
        """Return whether no newer mirror has fenced this one: it would fence the newer one in turn."""
        return copy.reason != NEWER_MIRROR

    def _start_again(self, key: tuple[str, int], copy: PartitionCopy, reason: str) -> None:
        if copy.state is CopyState.STOPPED:  # by an operator, or for a new remote topic: its writer counts as a new one
            self._incarnations.pop(copy.partition_id, None)
        super()._start_again(key, copy, reason)

    def _failed(self, copy: ReplayCopy) -> None:
        """Discard a copy. A new one begins at the log end of the target."""
        topic, partition, _ = copy.partition_id
        logger.info("%s: %s-%d starts again: %s", self._settings.flow, topic, partition, copy.failure)
        self._incarnations[copy.partition_id].note(copy)
        self._discard((topic, partition), copy, copy.failure)
