"""Values of client configs that a server enforces, looked up by request (see ``client_configs.enforcement``)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from klamm.client_configs.definitions import ACKS, HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from klamm.client_configs.enforcement import (
    NOTHING_ENFORCED,
    enforced_values,
    held_acks,
    held_interval,
    is_enforced_anywhere,
)
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.kinds import GroupProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.client_config_runtime.source import ClientConfigSource
    from klamm.client_configs.definitions import BrokerLimits
    from klamm.client_configs.enforcement import Enforced, TimingLimits
    from klamm.monitoring.exposition import Page
    from klamm.server.session import Session


class EnforcementService:
    """Enforced values of all clients. Used on the event loop only.

    The values of a client are kept in its session until the configs change. While no client has enforced values, a
    request costs one comparison.

    Args:
        service: Configs of users and client ids.
        is_on: Function that returns whether ``client.config.enforcement`` is on. Call ``refresh`` when it changes.
        limits: Function that returns the server's limits for values.
        session_protocols: Group protocols whose session timeout the server can enforce.
    """

    def __init__(
        self,
        service: ClientConfigSource,
        *,
        is_on: Callable[[], bool],
        limits: Callable[[], BrokerLimits],
        session_protocols: frozenset[GroupProtocol] = frozenset(GroupProtocol),
    ) -> None:
        self._service = service
        self._is_on = is_on
        self._limits = limits
        self._session_protocols = session_protocols
        self._is_used = False
        self._revision = 0
        self.counts: Counter[str] = Counter()
        """Number of requests that were held to an enforced value, by config."""
        service.subscribe(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Discard the values in all sessions."""
        self._revision += 1
        self._is_used = is_enforced_anywhere(self._service.configs.values(), is_on=self._is_on())

    def of_application(self, application: ClientConfigEntity) -> Enforced:
        """Return the enforced values of a ``<user, client-id>``."""
        if not self._is_used:
            return NOTHING_ENFORCED
        return enforced_values(
            self._service.configs,
            application,
            is_on=self._is_on(),
            limits=self._limits(),
            session_protocols=self._session_protocols,
        )

    def of_session(self, session: Session, client_id: str | None) -> Enforced:
        """Return the enforced values of the client that sent a request."""
        if not self._is_used:
            return NOTHING_ENFORCED
        key = (self._revision, session.principal, client_id)
        cached = session.enforced
        if cached is None or cached[0] != key:
            application = ClientConfigEntity.of_client(session.principal_name, client_id or "")
            cached = session.enforced = (key, self.of_application(application))
        return cached[1]

    def acks(self, requested: int, session: Session, client_id: str | None) -> int:
        """Return the acks by which a Produce request is served, and count the request if they are raised."""
        if not self._is_used:
            return requested
        held = held_acks(requested, self.of_session(session, client_id))
        if held != requested:
            self.counts[ACKS] += 1
        return held

    def session_timeout_ms(self, session: Session, client_id: str | None) -> int | None:
        """Return the session timeout of a classic member that joins, and count it; None means the client's own."""
        enforced = self.of_session(session, client_id).session_timeout_ms
        if enforced is not None:
            self.counts[SESSION_TIMEOUT_MS] += 1
        return enforced

    def heartbeat_interval_ms(
        self, offered: int, session: Session, client_id: str | None, *, limits: TimingLimits
    ) -> int:
        """Return the interval for a member of a consumer group, and count the response if another one is offered."""
        held = held_interval(offered, self.of_session(session, client_id), limits)
        if held != offered:
            self.counts[HEARTBEAT_INTERVAL_MS] += 1
        return held

    def of_member(self, session: Session, client_id: str | None, *, is_joining: bool) -> Enforced:
        """Return the enforced values of a member of a consumer group (KIP-848), and count them when it joins."""
        enforced = self.of_session(session, client_id)
        if is_joining and enforced.session_timeout_ms is not None:
            self.counts[SESSION_TIMEOUT_MS] += 1
        if is_joining and enforced.heartbeat_interval_ms is not None:
            self.counts[HEARTBEAT_INTERVAL_MS] += 1
        return enforced


def report_client_configs(page: Page, service: ClientConfigSource, enforcement: EnforcementService) -> None:
    """Add the numbers of skipped records and of enforced values to a page of metrics."""
    page.family(
        "klamm_skipped_client_config_records",
        "gauge",
        "Stored client configs and registrations that cannot be used, at most 1,000 of each; the page lists them.",
        [({}, len(service.skipped))],
    )
    page.family(
        "klamm_enforced_client_configs_total",
        "counter",
        "Requests that were held to an enforced client config.",
        [({"config": name}, count) for name, count in sorted(enforcement.counts.items())],
    )
