"""Heartbeats: one small record per second and pair of clusters, which shows that mirroring works.

Heartbeats also reveal other processes that mirror the same flow and would copy the same records. Workers of MirrorMaker
2 with the same properties file share the work. Processes of klamm do not: Spark distributes the work within one mirror.
Each heartbeat of a mirrored flow therefore carries a header with the identity of its writer. A process that finds
heartbeats of its own flow from another writer logs an error. MirrorMaker 2 writes no such header and ignores it.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import CLUSTER_ERRORS, ConnectionLostError, api_error, error_text
from klamm.mirror.cluster_admin import KNOWN_AFTER_S, check_reachable, create_internal_topic, new_client
from klamm.mirror.naming import HEARTBEATS_TOPIC
from klamm.mirror.records.formats import Heartbeat
from klamm.mirror.records.internal_topic import ControlConnection, TopicGoneError
from klamm.protocol.errors import UnsupportedVersionError
from klamm.protocol.records import Record
from klamm.retries import Backoff, LoggedReasons

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from klamm.admin import AdminClient
    from klamm.mirror.settings.groups import HeartbeatSettings

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


_FIRST_BACKOFF_S: Final = 1.0
_LAST_BACKOFF_S: Final = 30.0


class Heartbeats:
    """Heartbeats of one pair of clusters, written in a thread of their own.

    Failures never affect a flow. Each failure is logged once and retried, with a backoff of 1 s up to 30 s.
    """

    def __init__(
        self,
        settings: HeartbeatSettings,
        admin: AdminClient,
        writer: ControlConnection,
        *,
        others: OtherMirrors | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create the heartbeats without connecting to a cluster.

        Args:
            settings: Settings of the pair of clusters.
            admin: Admin client of the target.
            writer: Writer to the target.
            others: Detector of other mirrors of the flow. None: this process does not mirror the pair's flow.
            now: Seconds since the epoch.
        """
        self._settings = settings
        self._others = others
        self._admin = admin
        self._writer = writer
        self._now = now
        self._topic_exists = False
        self._is_known_at = 0.0
        self._logged = LoggedReasons()

    def run(self, stop: threading.Event) -> None:
        """Write heartbeats until ``stop`` is set."""
        interval_s = self._settings.interval.total_seconds()
        backoff = Backoff(_FIRST_BACKOFF_S, _LAST_BACKOFF_S)
        while not stop.is_set():
            if self.beat():
                backoff.reset()
                stop.wait(interval_s)
            else:
                stop.wait(max(backoff.next_s(), interval_s))

    def beat(self) -> bool:
        """Write one heartbeat. Return whether the target has acknowledged it."""
        settings = self._settings
        now_ms = int(self._now() * 1000)
        heartbeat = Heartbeat(source_alias=settings.source_alias, target_alias=settings.target_alias, timestamp=now_ms)
        headers = () if self._others is None else self._others.headers()
        record = Record(key=heartbeat.key(), value=heartbeat.value(), timestamp=now_ms, headers=headers)
        try:
            self._create_topic()
            self._writer.write(HEARTBEATS_TOPIC, [record])
        except CLUSTER_ERRORS as error:
            # Until all brokers know a new topic, writing to it fails.
            if not isinstance(error, ConnectionLostError) or self._now() >= self._is_known_at:
                self._log_once(error_text(error))
            return False
        if self._logged.clear():
            logger.info("%s: heartbeats are written again", settings.name)
        if self._others is not None:
            self._others.look(heartbeat.key())
        return True

    def _create_topic(self) -> None:
        if self._topic_exists:
            return
        check_reachable(self._admin, self._settings.target.alias)
        factor = self._settings.replication_factor
        rejected = create_internal_topic(self._admin, HEARTBEATS_TOPIC, replication_factor=factor)
        if rejected is not None:
            setting = f"heartbeats.topic.replication.factor={factor}"
            raise api_error(
                rejected.error_code, f"{HEARTBEATS_TOPIC} could not be created with {setting}: {error_text(rejected)}"
            )
        self._topic_exists = True
        self._is_known_at = self._now() + KNOWN_AFTER_S

    def _log_once(self, reason: str) -> None:
        if self._logged.is_new(reason):
            logger.warning(
                "%s: cannot write heartbeats to cluster %s: %s. Set emit.heartbeats.enabled=false to disable them",
                self._settings.name, self._settings.target.alias, reason,
            )  # fmt: skip


def write_heartbeats(settings: HeartbeatSettings, stop: threading.Event, *, instance: str | None = None) -> None:
    """Write the heartbeats of a pair of clusters until ``stop`` is set. Blocks.

    Args:
        settings: Settings of the pair of clusters.
        stop: Event that ends the heartbeats.
        instance: Identity of this process if it mirrors the pair's flow. None: it does not.
    """
    target = settings.target
    timeout_ms = int(settings.admin_timeout.total_seconds() * 1000)
    admin = new_client(target.bootstrap_servers, settings.clients["target.admin"], timeout_ms=timeout_ms)
    client_id = f"klamm-mirror-{settings.name}"
    connection, reader = (
        ControlConnection(
            ConnectionSettings.of(target.bootstrap_servers, settings.clients[f"target.{role}"], client_id)
        )
        for role in ("producer", "consumer")
    )
    others = None if instance is None else OtherMirrors(settings.name, instance, reader)
    try:
        Heartbeats(settings, admin, connection, others=others).run(stop)
    except Exception:  # a thread never dies silently
        logger.exception("%s: the heartbeat thread failed", settings.name)
    finally:
        connection.close()
        reader.close()
        admin.close()
