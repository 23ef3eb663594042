"""Access to the listeners of a broker without storage: key stores, logins, and the right to act as a broker.

Clients are authenticated and authorized as the target's brokers do it. SCRAM credentials and ACLs are those of the
metadata log; users of PLAIN and super users, which are not there, are configured as on the brokers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.errors import error_text
from klamm.mirror.replica.inter_broker import STANDARD_AUTHORIZER
from klamm.mirror.replica.rights import ReplicaRights
from klamm.properties import SettingsError
from klamm.retries import LoggedReasons
from klamm.security.acls import AclOperation, AclResourceType
from klamm.server.security.tls import ReplaceableContext, ServerContext

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from uuid import UUID

    from klamm.kraft.member import BrokerMember
    from klamm.mirror.copy.equal_offsets import ReplicaSettings
    from klamm.security.acls import Acl
    from klamm.security.scram import ScramCredential, ScramMechanism
    from klamm.server.security.endpoints import Endpoint
    from klamm.server.session import Session

logger = logging.getLogger(__name__)

_READ_AGAIN_S: Final = 10.0
"""Seconds after which a broker is asked again for its authorizer if it did not name it."""
_REJECTION_S: Final = 60.0
"""Seconds for which a rejected client may be the reason why a replica does not fetch. Brokers retry each second."""
_LOGGED_S: Final = 600.0
"""Seconds after which rejections are logged again."""
_MAX_LOGGED: Final = 100
"""Number of rejections to log in this time. More come from strangers, such as a port scanner."""


def _authorizer(classes: Collection[str | None]) -> str | None:
    """Return the authorizer to apply if brokers have these: one with unknown rules, the one of all, or None."""
    own = next((each for each in classes if each not in (None, "", STANDARD_AUTHORIZER)), None)
    return next(iter(classes)) if own is None and len(classes) == 1 else own


class OpenListener(NamedTuple):
    """Settings of a listener, with the content of its key store."""

    endpoint: Endpoint
    tls: ReplaceableContext | None
    """Context of its connections. None: they are not encrypted."""


class Access:
    """Access to the listeners of one broker. Used on the event loop, but for ``open`` and ``rejection``.

    Args:
        settings: Listeners and their configs.
        member: Returns the membership in the target. None: there is none yet.
    """

    def __init__(self, settings: ReplicaSettings, member: Callable[[], BrokerMember | None]) -> None:
        self._settings = settings
        self._member = member
        self.authorizer: str | None = None
        """Class of the authorizer of the target's live brokers. Empty: none has one. None: it is not known."""
        self._authorizers: Mapping[tuple[int, int], str] = {}
        """Class of the authorizer of brokers, by node id and broker epoch."""
        self._unread: Collection[tuple[int, int]] = ()
        """Live brokers without an entry at the last reading, which is repeated at ``_read_at``."""
        self._read_at = float("-inf")
        self._acls: Mapping[UUID, Acl] = {}
        self._rights = ReplicaRights(settings, None, ())
        """Rights by ``_acls``."""
        self._contexts: dict[str, ReplaceableContext] = {}
        """TLS contexts by listener."""
        self._store_times: tuple[int, ...] = ()
        """Times of the key stores in use."""
        self.renewal_failures = LoggedReasons()
        """Reasons why changed key stores are not in use."""
        self._logged: set[str] = set()
        """Rejections logged lately, with client, principal and reason."""
        self._forget_at = 0.0
        """Time at which they are logged again."""
        self._rejected = float("-inf"), ""
        """Time at which a client was rejected last, and the reason."""

    # --- key stores ---------------------------------------------------------------------------------------------------

    def open(self) -> tuple[OpenListener, ...]:
        """Return the settings of all listeners.

        Raises:
            SettingsError: A setting is missing or not allowed, or a store cannot be read.
        """
        self._store_times = self._settings.store_times()
        endpoints = self._settings.endpoints(self._find_scram)
        self._contexts = {
            endpoint.name: ReplaceableContext.around(endpoint.tls.context)
            for endpoint in endpoints
            if endpoint.tls is not None
        }
        self._use(endpoints)
        return tuple(OpenListener(endpoint, self._contexts.get(endpoint.name)) for endpoint in endpoints)

    def _use(self, endpoints: Iterable[Endpoint]) -> None:
        """Let new connections use the key stores of these endpoints."""
        for endpoint in endpoints:
            if endpoint.tls is not None:
                context = endpoint.tls.context
                if isinstance(context, ServerContext):
                    context.on_failure = partial(self.on_rejected, f"listener {endpoint.name}")
                self._contexts[endpoint.name].current = context

    async def renew_stores(self) -> None:
        """Read the key stores again if their files have changed. While one cannot be read, the old ones are used."""
        if not self._contexts:
            return
        times = await asyncio.to_thread(self._settings.store_times)  # a file system may hang
        if times == self._store_times:
            return
        try:
            endpoints = await asyncio.to_thread(self._settings.endpoints, self._find_scram)
        except (SettingsError, OSError, ValueError) as error:
            if self.renewal_failures.is_new(error_text(error)):
                logger.warning("Broker %d keeps its key stores: %s", self._settings.node_id, error_text(error))
            return
        self.renewal_failures.clear()
        self._store_times = times
        self._use(endpoints)
        logger.info("Broker %d: new connections use the changed key stores", self._settings.node_id)

    # --- logins and rights --------------------------------------------------------------------------------------------

    async def read_authorizers(self, member: BrokerMember) -> None:
        """Read the authorizer of live brokers that have registered since the last call, as after each restart.

        The config is read-only, so it lasts as long as a registration. Everything is allowed only while each live
        broker is known to have no authorizer. One that does not name it is asked again after some seconds.
        """
        live = {(each.node_id, each.broker_epoch) for each in member.observer.image.live_brokers}
        unread, now = live - self._authorizers.keys(), time.monotonic()
        if unread and (unread != self._unread or now >= self._read_at):
            read = await asyncio.to_thread(member.read_authorizers, sorted(node_id for node_id, _ in unread))
            new = {key: read[key[0]] for key in unread if key[0] in read}
            self._authorizers = {key: value for key, value in self._authorizers.items() if key in live} | new
            self._unread, self._read_at = unread - new.keys(), time.monotonic() + _READ_AGAIN_S
        self.authorizer = _authorizer({self._authorizers.get(key) for key in live})

    def _find_scram(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return the SCRAM credential that the target's brokers have for a user."""
        member = self._member()
        return None if member is None else member.observer.image.scram_credentials.get((user, mechanism))

    def is_broker(self, session: Session) -> bool:
        """Return whether a client may act as a broker: by CLUSTER_ACTION, on the listener of the brokers."""
        member = self._member()
        if member is None:
            return False
        if session.listener != (expected := member.inter_broker_listener):
            self.on_rejected(
                session.client_host,
                f"{session.principal} fetches as a broker on listener {session.listener}: expected {expected}, with "
                "which the brokers connect",
            )
            return False
        if self._rights_at(member).allow_broker(session.principal, session.client_host):
            return True
        self.on_rejected(
            session.client_host,
            f"{session.principal} lacks CLUSTER_ACTION on the cluster, which brokers need. If it is a super user of "
            "the brokers, add it to klamm.replica.super.users",
        )
        return False

    def may(self, session: Session, operation: AclOperation, topic: str) -> bool:
        """Return whether a client may do something with a topic."""
        member = self._member()
        return member is not None and self._rights_at(member).allow(
            session.principal, session.client_host, operation, AclResourceType.TOPIC, topic
        )

    def _rights_at(self, member: BrokerMember) -> ReplicaRights:
        acls = member.observer.image.acls
        if acls is not self._acls or self.authorizer != self._rights.authorizer:
            self._acls, self._rights = acls, ReplicaRights(self._settings, self.authorizer, acls.values())
        return self._rights

    # --- rejected clients ---------------------------------------------------------------------------------------------

    def on_rejected(self, client: str, reason: str) -> None:
        """Keep the reason for the status of partitions that a replica does not fetch. Log it once in ten minutes."""
        text = f"{client}: {reason}"
        now = time.monotonic()
        self._rejected = now, text
        if now >= self._forget_at:
            self._forget_at = now + _LOGGED_S
            self._logged.clear()
        if text not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(text)
            logger.warning("Broker %d rejected a client: %s", self._settings.node_id, text)

    @property
    def rejection(self) -> str:
        """Client that was rejected within the last minute, and why. Empty: there is none."""
        at, text = self._rejected
        return text if time.monotonic() - at < _REJECTION_S else ""
