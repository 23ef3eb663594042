"""Where groups stand on both sides, and why some of their offsets are not on the target; read by displays."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.mirror.record_ages import Ages


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredGroupOffset:
    """A group's offset of one partition, at one moment."""

    group: str
    topic: str
    """On the source, as ``partition``."""
    partition: int
    remote_topic: str
    source_offset: int
    """What the group committed on the source."""
    target_offset: int | None
    """What its newest checkpoint says; None: there is none."""
    again_at_most: int
    """So many records a consumer would read again on the target; 0: the translation is exact."""
    reason: str = ""
    """Why there is no newer checkpoint; empty: the checkpoint is up to date."""
    committed: int | None = None
    """What the group has on the target, as far as it was looked at; None: nothing, or not looked at."""
    sync_reason: str = ""
    """Why the group on the target was not given ``target_offset``; empty: it was, or has it, or nobody asked for it."""
    checkpoint_latency_ms: Ages | None = None
    """From asking for the group's offset to the checkpoint's acknowledgement, of late; None: none was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowGroups:
    """The groups of one flow."""

    offsets: tuple[MirroredGroupOffset, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    """Groups of the source without any checkpoint, and why."""
    problem: str = ""
    """Why nothing can be done now; empty: all is well."""


class GroupStatus:
    """The groups of all flows. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flows: dict[str, FlowGroups] = {}

    def set(self, flow: str, groups: FlowGroups) -> None:
        """Say where a flow's groups stand."""
        with self._lock:
            self._flows[flow] = groups

    def snapshot(self) -> Mapping[str, FlowGroups]:
        """Return where the groups stand, by flow; flows that do nothing about groups are missing."""
        with self._lock:
            return dict(self._flows)
