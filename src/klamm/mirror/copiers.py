"""Choice of the copier of a flow, by its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.mirror.copy.copier import Copier
from klamm.mirror.replay.copier import ReplayCopier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.mirror.copy.partition import PartitionId
    from klamm.mirror.copy.settings import CopySettings


def new_copier(settings: CopySettings, partitions: Iterable[PartitionId]) -> Copier:
    """Return the copier of some partitions of a flow."""
    if (replica := settings.replica) is not None:
        # Imported for this mode only: they need the server.
        from klamm.mirror.replica.copier import ReplicaCopier  # noqa: PLC0415
        from klamm.mirror.replica.state import new_member  # noqa: PLC0415

        return ReplicaCopier(settings, replica, partitions, new_member=lambda: new_member(settings, replica))
    if settings.replay is not None:
        return ReplayCopier(settings, settings.replay, partitions)
    return Copier(settings, partitions)
