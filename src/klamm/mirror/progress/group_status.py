"""Status of group offsets on both clusters, with the reasons why some are not on the target. For status displays."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.mirror.progress.partition_progress import Ages


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredGroupOffset:
    """Status of a group's offset of one partition."""

    group: str
    topic: str
    """Topic on the source; ``partition`` is its partition."""
    partition: int
    remote_topic: str
    source_offset: int
    """Offset that the group committed on the source."""
    target_offset: int | None
    """Target offset of its newest checkpoint. None: it has no checkpoint."""
    again_at_most: int
    """Most records that a consumer reads again on the target. 0: the translation is exact."""
    reason: str = ""
    """Reason why there is no newer checkpoint. Empty: the checkpoint is up to date."""
    committed: int | None = None
    """Last known committed offset of the group on the target. None: it has none, or it was not requested yet."""
    sync_reason: str = ""
    """Reason why ``target_offset`` was not committed on the target. Empty: it was, or it is not requested."""
    checkpoint_latency_ms: Ages | None = None
    """Recent times in milliseconds from the OffsetFetch of the group to the acknowledgement of its checkpoint. None: no
    checkpoint was written.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowGroups:
    """Status of the groups of one flow."""

    offsets: tuple[MirroredGroupOffset, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    """Source groups without any checkpoint, each with the reason."""
    problem: str = ""
    """Reason why offsets cannot be translated now. Empty: they can."""


class GroupStatus:
    """Status of the groups of all flows. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flows: dict[str, FlowGroups] = {}

    def set(self, flow: str, groups: FlowGroups) -> None:
        """Replace the status of a flow's groups."""
        with self._lock:
            self._flows[flow] = groups

    def snapshot(self) -> Mapping[str, FlowGroups]:
        """Return the status of the groups by flow. Flows that do not translate group offsets are missing."""
        with self._lock:
            return dict(self._flows)
