"""What is known of a connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.security.principals import ANONYMOUS

if TYPE_CHECKING:
    from klamm.broker.security.login import Login
    from klamm.client_configs.definitions import ClientKind

UNKNOWN_SOFTWARE = "unknown"


@dataclass(slots=True, kw_only=True)
class Session:
    """Facts of one connection. Owned by the connection; handlers of ApiVersions and SASL write to it."""

    connection_id: int
    """Unique in the life of the process."""
    node_id: int
    """The broker id whose port was connected to."""
    listener: str = "PLAINTEXT"
    """The name of the listener that was connected to."""
    client_host: str = ""
    client_port: int = 0
    principal: str = ANONYMOUS
    """``Type:name``, after Kafka's KafkaPrincipal."""
    software_name: str = UNKNOWN_SOFTWARE
    """From ApiVersions v3 or newer (KIP-511)."""
    software_version: str = UNKNOWN_SOFTWARE
    login: Login | None = None
    """None where clients do not log in."""
    client_id: str | None = None
    """Of the latest request, empty when it had none; None before the first."""
    last_seen_ms: int = 0
    """When the latest request came, milliseconds since the epoch."""
    fetched_configs: tuple[tuple[str, str], ...] | None = None
    """The dynamic configs that the client was told last, by key; None: it never asked (KIP-649)."""
    fetched_at_ms: int = 0
    kinds: frozenset[ClientKind] = frozenset()
    """The kinds of client that the requests of ``client_id`` reveal."""

    @property
    def principal_name(self) -> str:
        """The principal without its type."""
        return self.principal.partition(":")[2]
