"""Noticing that the same flow is mirrored by another process, too: both would copy the same records.

Processes of MirrorMaker 2 with the same file share the work; those of klamm do not: Spark does that within one.
Heartbeats of a flow that is mirrored tell in a header who writes them. MirrorMaker has no such header, and ignores it.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from klamm.client.connection import ApiMissingError, ConnectionLostError
from klamm.mirror.control_records import TopicGoneError
from klamm.mirror.naming import HEARTBEATS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.protocol.records import Record

logger = logging.getLogger(__name__)

INSTANCE_HEADER: Final = "klamm.mirror"
_LOOK_EVERY: Final = 5
_IS_RUNNING_AFTER: Final = 3
"""So many heartbeats of another process are no farewell: one that was told to stop writes none any more."""


def new_instance() -> str:
    """Return what names this process among all mirrors."""
    return f"{socket.gethostname()}, process {os.getpid()}, {secrets.token_hex(4)}"


class RecordReader(Protocol):
    """Reads a topic of the mirror's own."""

    def end_offsets(self, partitions: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        """Return log end offsets."""
        ...

    def read(self, topic: str, from_offset: int) -> tuple[list[Record], int]:
        """Return the records of partition 0 from an offset to the end, and where to go on."""
        ...


class OtherMirrors:
    """Looks for heartbeats of one flow that somebody else writes. Confined to the thread of the heartbeats."""

    def __init__(self, flow: str, instance: str, reader: RecordReader) -> None:
        """Prepare to look.

        Args:
            flow: ``A->B``.
            instance: who writes here; see ``new_instance``.
            reader: of the flow's target.
        """
        self._flow = flow
        self._instance = instance.encode()
        self._reader = reader
        self._beats = 0
        self._at: int | None = None
        self._seen: Counter[bytes] = Counter()

    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Return the headers of a heartbeat that is written here."""
        return ((INSTANCE_HEADER, self._instance),)

    def look(self, key: bytes) -> None:
        """Look at what came since, after every few heartbeats; what can not be read tells nothing.

        Args:
            key: of the flow's heartbeats.
        """
        self._beats += 1
        if self._at is not None and self._beats % _LOOK_EVERY:
            return
        try:
            if self._at is None:
                self._at = self._reader.end_offsets([(HEARTBEATS_TOPIC, 0)]).get((HEARTBEATS_TOPIC, 0))
                return
            records, self._at = self._reader.read(HEARTBEATS_TOPIC, self._at)
        except (ConnectionLostError, TopicGoneError, ApiMissingError) as error:
            logger.debug("%s: can not look for other mirrors: %s", self._flow, error)
            self._at = None
            return
        for record in records:
            writer = dict(record.headers).get(INSTANCE_HEADER) if record.key == key else None
            if writer is not None and writer != self._instance:
                self._count(writer)

    def _count(self, writer: bytes) -> None:
        self._seen[writer] += 1
        if self._seen[writer] == _IS_RUNNING_AFTER:
            host_and_process = writer.decode(errors="replace").rpartition(", ")[0]
            logger.error(
                "%s: another process mirrors this flow, too (%s): both copy the same records; stop one of them",
                self._flow, host_and_process,
            )  # fmt: skip
