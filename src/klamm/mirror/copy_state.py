"""State of a mirrored partition, shared by the data path and the status displays."""

from __future__ import annotations

from enum import StrEnum


class CopyState(StrEnum):
    """State of the copying of a partition.

    =========  =========  ==========================================================================================
    From       To         On
    =========  =========  ==========================================================================================
    (start)    COPYING    The start offset is known.
    COPYING    WAITING    A cluster is unavailable, the partition has no leader, or a fetch or a batch failed with a
                          retriable error. ``reason`` says which; nothing is tried before ``retry_at``.
    WAITING    COPYING    A fetch succeeds or the target acknowledges a batch, and no failed batch is left to resend.
    any        STOPPED    Continuing would lose or duplicate records: source records were purged or truncated, a batch
                          is damaged, the target rejects records for good, the topic was recreated on the source, or
                          the remote topic holds records of unknown origin.
    STOPPED    (start)    Only with a new copier, for example after a restart of the mirror.
    =========  =========  ==========================================================================================

    Partitions that could not be started yet are reported as WAITING, with ``next_offset`` -1.
    """

    COPYING = "COPYING"
    WAITING = "WAITING"
    """Something is unavailable. The copier retries until it is back."""
    STOPPED = "STOPPED"
    """Continuing would lose or duplicate records. An operator has to act."""
