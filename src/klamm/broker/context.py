"""Context of a request: everything a handler receives besides the request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from klamm.broker.author import Author
from klamm.broker.time_slice import TimeSlice

if TYPE_CHECKING:
    from klamm.broker.quotas.mutations import MutationQuota
    from klamm.broker.services import Services
    from klamm.broker.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Context of one request."""

    services: Services
    session: Session
    api_version: int
    client_id: str | None
    """Client id of the request header; None when the client sent null."""
    time_slice: TimeSlice = field(default_factory=TimeSlice)
    """Time slice by which a long request pauses for others."""

    @property
    def author(self) -> Author:
        """Principal, client id and listener of the request."""
        session = self.session
        return Author(principal=session.principal, client_id=self.client_id, listener=session.listener)

    @property
    def node_id(self) -> int:
        """Broker id that received the request."""
        return self.session.node_id

    def mutation_quota(self, *, is_strict: bool) -> MutationQuota:
        """Return the request's quota on created and deleted partitions.

        A strict quota rejects requests that exceed it.
        """
        return self.services.mutation_quotas.of(self.session, self.client_id, is_strict=is_strict)
