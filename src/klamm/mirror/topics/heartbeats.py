"""Heartbeats: one small record per second and pair of clusters, which shows that mirroring works.

Workers of MirrorMaker 2 with the same properties file share the work of a flow. Processes of klamm do not: Spark
distributes the work within one mirror. So one process mirrors a flow and writes its heartbeats, and others stand by.
The heartbeats carry that claim in a header; see ``claims``. MirrorMaker 2 writes no such header and ignores it.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import CLUSTER_ERRORS, ConnectionLostError, api_error, error_text
from klamm.mirror.cluster_admin import (
    KNOWN_AFTER_S,
    check_reachable,
    create_internal_topic,
    missing_topics,
    new_client,
)
from klamm.mirror.naming import HEARTBEATS_TOPIC
from klamm.mirror.records.formats import Heartbeat
from klamm.mirror.records.internal_topic import ControlConnection, TopicGoneError
from klamm.mirror.topics.claims import Claimant
from klamm.protocol.records import Record
from klamm.retries import Backoff, LoggedReasons

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from klamm.admin import AdminClient
    from klamm.mirror.settings.groups import HeartbeatSettings
    from klamm.mirror.topics.claims import FlowClaim

logger = logging.getLogger(__name__)


def new_instance() -> str:
    """Return an identity of this process that is unique among all mirrors."""
    return f"{socket.gethostname()}, process {os.getpid()}, {secrets.token_hex(4)}"


_FIRST_BACKOFF_S: Final = 1.0
_LAST_BACKOFF_S: Final = 30.0
_LAST_CLAIM_BACKOFF_S: Final = 2.0
"""Longest backoff of a flow's own heartbeats: nothing is mirrored until they are written again."""
_STANDBY_S: Final = 0.5
"""Interval at which a process that stands by reads the claims."""


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
        claimant: Claimant | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the heartbeats without connecting to a cluster.

        Args:
            settings: Settings of the pair of clusters.
            admin: Admin client of the target.
            writer: Writer to the target.
            claimant: Claimant of the flow. None: this process does not mirror the pair's flow.
            now: Seconds since the epoch.
            clock: Monotonic time in seconds.
        """
        self._settings = settings
        self._claimant = claimant
        self._admin = admin
        self._writer = writer
        self._now = now
        self._clock = clock
        self._topic_exists = False
        self._may_be_deleted = False
        """Whether a failure since the topic was created can mean that it was deleted."""
        self._is_known_at = 0.0
        self._logged = LoggedReasons()

    def run(self, stop: threading.Event) -> None:
        """Write heartbeats until ``stop`` is set."""
        interval_s = self._settings.interval.total_seconds()
        last_backoff_s = _LAST_BACKOFF_S if self._claimant is None else _LAST_CLAIM_BACKOFF_S
        backoff = Backoff(_FIRST_BACKOFF_S, last_backoff_s)
        while not stop.is_set():
            if self.beat():
                backoff.reset()
                stop.wait(_STANDBY_S if self._claimant is not None and self._claimant.stands_by else interval_s)
            else:
                stop.wait(backoff.next_s() if self._claimant else max(backoff.next_s(), interval_s))

    def beat(self) -> bool:
        """Write one heartbeat, unless another process mirrors the flow. Return False if the target did not answer."""
        claimant, headers = self._claimant, None
        try:
            self._create_topic()
            headers = () if claimant is None else claimant.headers()
            if headers is None:
                return True
            sent_at = self._clock()
            self._write(headers)
            if claimant is not None and headers:
                claimant.confirm(sent_at)
        except (*CLUSTER_ERRORS, TopicGoneError) as error:
            # Until all brokers know a new topic, reading it and writing to it fail.
            if not isinstance(error, (ConnectionLostError, TopicGoneError)) or self._now() >= self._is_known_at:
                self._log_once(error_text(error))
            # Without a claim the topic is not read, so any failed write can mean that it was deleted. With a claim,
            # only the reads decide: another request after each failed write could delay the next one too long.
            self._may_be_deleted |= isinstance(error, TopicGoneError) or headers == ()
            if claimant is not None:
                claimant.fail(error)
            return False
        if self._logged.clear():
            logger.info("%s: heartbeats are written again", self._settings.name)
        return True

    def release(self) -> None:
        """Write a last heartbeat, so that a process that stands by takes over at once."""
        headers = None if self._claimant is None else self._claimant.release()
        if headers is None:
            return
        try:
            self._write(headers)
        except CLUSTER_ERRORS as error:
            logger.debug("%s: the flow could not be released: %s", self._settings.name, error_text(error))

    def _write(self, headers: tuple[tuple[str, bytes | None], ...]) -> None:
        settings = self._settings
        now_ms = int(self._now() * 1000)
        heartbeat = Heartbeat(source_alias=settings.source_alias, target_alias=settings.target_alias, timestamp=now_ms)
        record = Record(key=heartbeat.key(), value=heartbeat.value(), timestamp=now_ms, headers=headers)
        self._writer.write(HEARTBEATS_TOPIC, [record])

    def _create_topic(self) -> None:
        """Create the topic at the start, and again after it was deleted."""
        if self._topic_exists and not self._may_be_deleted:
            return
        check_reachable(self._admin, self._settings.target.alias)
        if self._topic_exists and not missing_topics(self._admin, [HEARTBEATS_TOPIC]):
            self._may_be_deleted = False
            return
        factor = self._settings.replication_factor
        rejected = create_internal_topic(self._admin, HEARTBEATS_TOPIC, replication_factor=factor)
        if rejected is not None:
            setting = f"heartbeats.topic.replication.factor={factor}"
            raise api_error(
                rejected.error_code, f"{HEARTBEATS_TOPIC} could not be created with {setting}: {error_text(rejected)}"
            )
        self._topic_exists, self._may_be_deleted = True, False
        self._is_known_at = self._now() + KNOWN_AFTER_S

    def _log_once(self, reason: str) -> None:
        if self._logged.is_new(reason):
            logger.warning(
                "%s: cannot write heartbeats to cluster %s: %s. Set emit.heartbeats.enabled=false to disable them",
                self._settings.name, self._settings.target.alias, reason,
            )  # fmt: skip


def write_heartbeats(
    settings: HeartbeatSettings,
    stop: threading.Event,
    *,
    claim: FlowClaim | None = None,
    instance: str = "",
    may_release: Callable[[], bool] = lambda: False,
) -> None:
    """Write the heartbeats of a pair of clusters until ``stop`` is set. Blocks.

    Args:
        settings: Settings of the pair of clusters.
        stop: Event that ends the heartbeats.
        claim: Claim of the pair's flow. None: this process does not mirror it.
        instance: Identity of this process; see ``new_instance``.
        may_release: Returns at the end whether no task of this process mirrors any more.
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
    claimant = None
    if claim is not None:
        interval_s = settings.interval.total_seconds()
        claimant = Claimant(settings.name, instance, reader, claim, interval_s=interval_s, identity=settings.identity)
    try:
        heartbeats = Heartbeats(settings, admin, connection, claimant=claimant)
        heartbeats.run(stop)
        if may_release():
            heartbeats.release()
    except Exception:  # a thread never dies silently
        logger.exception("%s: the heartbeat thread failed", settings.name)
    finally:
        connection.close()
        reader.close()
        admin.close()
