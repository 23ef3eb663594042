"""Progress of a mirrored partition: its one declaration, and the forms in which it leaves a task. No I/O.

A task reports it to the driver as JSON and yields it to Spark as a row. Both forms derive from the fields of
``PartitionProgress``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from klamm.mirror.record_ages import Ages

if TYPE_CHECKING:
    from collections.abc import Mapping

_AGES: Final = f"struct<{', '.join(f'{name} double' for name in Ages._fields)}>"
_SPARK_TYPES: Final = {"str": "string", "int": "long", "CopyState": "string", "Ages | None": _AGES}
"""Types of Spark by the annotation of a field."""
_SPARK: Final = "spark"
"""Key in the metadata of a field whose type in Spark is another one."""


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
                          is damaged (the batches before it are copied first), the target rejects records for good,
                          the topic was recreated on the source, or the remote topic holds records of unknown origin.
    STOPPED    (start)    Only with a new copier, for example after a restart of the mirror.
    =========  =========  ==========================================================================================

    Partitions that could not be started yet are reported as WAITING, with ``next_offset`` -1.
    """

    COPYING = "COPYING"
    WAITING = "WAITING"
    """Something is unavailable. The copier retries until it is back."""
    STOPPED = "STOPPED"
    """Continuing would lose or duplicate records. An operator has to act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """Progress of one partition, as a task reports it to the driver."""

    flow: str
    """Name of the flow, ``A->B``."""
    topic: str
    partition: int = field(metadata={_SPARK: "int"})
    remote_topic: str
    next_offset: int
    """Source offset before which all records are on the target (exactly once: committed). -1: not started."""
    end_offset: int
    """End offset of the source partition. -1: not known yet."""
    records: int
    """Number of records copied by this copier. ``bytes`` counts the same records."""
    bytes: int
    last_timestamp: int
    """Newest record timestamp copied, in milliseconds since the epoch. -1: none."""
    state: CopyState
    reason: str
    record_age: Ages | None = None
    """Age of recent records when they were fetched."""
    replication_latency: Ages | None = None
    """Age of recent records when the target acknowledged them."""

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> PartitionProgress:
        """Return the progress that ``to_json`` described. Ages may be missing."""
        ages = {name: Ages(*row[name]) for name in ("record_age", "replication_latency") if row.get(name) is not None}
        return cls(**{**row, "record_age": None, "replication_latency": None, **ages, "state": CopyState(row["state"])})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def spark_schema() -> str:
    """Return the fields of ``PartitionProgress`` as a schema of Spark, in their order."""
    types = {each.name: each.metadata.get(_SPARK) or _SPARK_TYPES[str(each.type)] for each in fields(PartitionProgress)}
    return ", ".join(f"{name} {kind}" for name, kind in types.items())
