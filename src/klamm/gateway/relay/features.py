"""Features of a gateway that its settings enable: policies, client configs, the history of changes."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.admin import AdminClient
    from klamm.gateway.frames.peer import ConnectionWatch, Peer
    from klamm.gateway.relay.filter import Filter, FilterContext, Wait
    from klamm.monitoring.exposition import Page
    from klamm.policy_runtime import Policies
    from klamm.server.attempt import ApiError


class Feature:
    """One feature: its filters, and what it does beside them. Used on the event loop only.

    The defaults of this class are those of a feature that does nothing.
    """

    filters: Mapping[int, Filter] = MappingProxyType({})
    """Filter of each API that the feature concerns. Features are asked in the order of their list."""
    withheld: frozenset[int] = frozenset()
    """API keys left out of ApiVersions, because their requests would bypass the filters."""
    last_versions: Mapping[int, int] = MappingProxyType({})
    """Highest version to offer in ApiVersions, by API key. Keys that are missing have no such limit."""
    supported_features: Mapping[str, tuple[int, int]] = MappingProxyType({})
    """First and last version of features to add to ApiVersions, by name."""
    admit: Callable[[FilterContext], ApiError | Wait | None] | None = None
    """Decides about the client id of the first request on a connection, and about each further client id, before any
    filter. Returns the error for a client that must not be served. None admits all.
    """
    admit_request: Callable[[FilterContext], ApiError | Wait | None] | None = None
    """Decides about every request of an admitted client, because its API matters, before any filter. None admits all.
    """
    policies: Policies | None = None
    """Policies that decide about requests; None if this is another feature."""
    opens_watch: bool = False
    """Whether ``watch`` observes connections. Without it, observation costs nothing."""
    lists_clients: bool = False
    """Whether ``clients`` lists the known clients."""

    def watch(self, peer: Peer) -> ConnectionWatch:
        """Return the observer of a new connection. At most one feature has one."""
        raise NotImplementedError

    def observe(self, context: FilterContext) -> FilterContext:
        """Return the context through which the requests of a ``Serve`` go upstream."""
        return context

    async def clients(self) -> list[dict[str, Any]]:
        """Return the known clients as JSON objects (``/clients.json``)."""
        raise NotImplementedError

    async def start(self, admin: AdminClient) -> None:
        """Start before the gateway listens, with its own admin client. The upstream may be unreachable."""

    def why_not_ready(self) -> str | None:
        """Return the reason why clients should not connect at present; None if they may."""
        return None

    def reload(self) -> None:
        """Load changed files again, as on SIGHUP."""

    def report(self, page: Page) -> None:
        """Add the feature's metrics to the gateway's page."""

    def warnings(self) -> Sequence[str]:
        """Return warnings for the gateway's page."""
        return ()

    async def close(self) -> None:
        """Stop. Called when the gateway stops, after the last connection was closed."""
