"""Facts about a client connection (principal, addresses, listener, software), and the author of a change."""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.security.principals import ANONYMOUS

if TYPE_CHECKING:
    from uuid import UUID

    from klamm.client_configs.definitions import ClientKind
    from klamm.client_configs.enforcement import Enforced
    from klamm.client_configs.kinds import GroupProtocol
    from klamm.server.security.login import Login

UNKNOWN_SOFTWARE: Final = "unknown"
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@dataclass(slots=True, kw_only=True)
class Session:
    """One connection: address, listener, principal, client software and state of the login.

    Owned by the connection. The handlers of ApiVersions and SASL write to it.
    """

    connection_id: int
    """Number of the connection, unique within the process."""
    node_id: int
    """Broker id of the port that the client connected to."""
    listener: str = "PLAINTEXT"
    """Name of the listener that the client connected to."""
    client_host: str = ""
    client_port: int = 0
    principal: str = ANONYMOUS
    """``Type:name``, as in Kafka's KafkaPrincipal."""
    software_name: str = UNKNOWN_SOFTWARE
    """Client software by ApiVersions v3 or newer (KIP-511)."""
    software_version: str = UNKNOWN_SOFTWARE
    login: Login | None = None
    """State of the SASL login; None when the listener has no SASL."""
    client_id: str | None = None
    """Client id of the latest request, empty when it had none; None before the first request."""
    last_seen_ms: int = 0
    """Time of the latest request, in milliseconds since the epoch."""
    fetched_configs: tuple[tuple[str, str], ...] | None = None
    """Dynamic configs last sent to the client, by key; None when it never requested them (KIP-649)."""
    fetched_at_ms: int = 0
    kinds: frozenset[ClientKind] = frozenset()
    """Kinds of client that the requests with ``client_id`` reveal."""
    reported: dict[str, int] = field(default_factory=dict)
    """Client configs that the requests with ``client_id`` reveal, by key: ``acks`` of Produce, the session timeout of
    JoinGroup, and the time between the last two heartbeats.
    """
    last_heartbeat_ms: int = 0
    """Time of the last Heartbeat of a classic member, in milliseconds since the epoch; 0 before the first one."""
    client_instance_id: UUID | None = None
    """Instance whose metrics the client pushes (KIP-714)."""
    protocols: frozenset[GroupProtocol] = frozenset()
    """Group protocols that the requests with ``client_id`` reveal."""
    enforced: tuple[tuple[int, str, str | None], Enforced] | None = None
    """Client configs that are enforced for the client, with their revision, the principal and the client id that they
    were resolved for; None before the first request that needs them.
    """

    @property
    def principal_name(self) -> str:
        """Name of the principal without its type."""
        return self.principal.partition(":")[2]


def is_software(name: str, version: str) -> bool:
    """Return whether name and version of client software are those of a valid ApiVersions request (KIP-511)."""
    return _SOFTWARE.fullmatch(name) is not None and _SOFTWARE.fullmatch(version) is not None
