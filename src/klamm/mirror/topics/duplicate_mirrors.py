"""Detection of other processes that mirror the same flow and would copy the same records.

Workers of MirrorMaker 2 with the same properties file share the work. Processes of klamm do not: Spark distributes the
work within one mirror. Each heartbeat of a mirrored flow therefore carries a header with the identity of its writer.
A process that finds heartbeats of its own flow from another writer logs an error. MirrorMaker 2 writes no such header
and ignores it.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections import Counter
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.control_connection import TopicGoneError
from klamm.mirror.naming import HEARTBEATS_TOPIC
from klamm.protocol.errors import UnsupportedVersionError

if TYPE_CHECKING:
    from klamm.mirror.control_connection import ControlConnection

logger = logging.getLogger(__name__)

INSTANCE_HEADER: Final = "klamm.mirror"
_LOOK_EVERY: Final = 5
_IS_RUNNING_AFTER: Final = 3
"""Number of heartbeats after which another process counts as running. A process that is stopping writes fewer."""


def new_instance() -> str:
    """Return an identity of this process that is unique among all mirrors."""
    return f"{socket.gethostname()}, process {os.getpid()}, {secrets.token_hex(4)}"


class OtherMirrors:
    """Detector of other writers of one flow's heartbeats. Confined to the heartbeat thread."""

    def __init__(self, flow: str, instance: str, reader: ControlConnection) -> None:
        """Create a detector. It starts to read at the log end, with the first ``look``.

        Args:
            flow: Name of the flow, ``A->B``.
            instance: Identity of this process; see ``new_instance``.
            reader: Reader on the flow's target cluster.
        """
        self._flow = flow
        self._instance = instance.encode()
        self._reader = reader
        self._beats = 0
        self._at: int | None = None
        self._seen: Counter[bytes] = Counter()

    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Return the headers for a heartbeat that this process writes."""
        return ((INSTANCE_HEADER, self._instance),)

    def look(self, key: bytes) -> None:
        """Read the new heartbeats in every fifth call. If they cannot be read, start over at the log end.

        Args:
            key: Record key of the flow's heartbeats.
        """
        self._beats += 1
        if self._at is not None and self._beats % _LOOK_EVERY:
            return
        try:
            if self._at is None:
                self._at = self._reader.end_offsets([(HEARTBEATS_TOPIC, 0)]).get((HEARTBEATS_TOPIC, 0))
                return
            records, self._at = self._reader.read(HEARTBEATS_TOPIC, self._at)
        except (ConnectionLostError, TopicGoneError, UnsupportedVersionError) as error:
            logger.debug("%s: cannot look for other mirrors: %s", self._flow, error)
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
                "%s: another process mirrors this flow as well (%s), so both copy the same records. Stop one of them",
                self._flow, host_and_process,
            )  # fmt: skip
