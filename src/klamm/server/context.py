"""Context of a request, as far as every server has it: connection, API version, client id and time slice."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from klamm.history.change import Author
from klamm.lazy_dataclass import dataclass
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from klamm.server.quotas.throttles import Throttles
    from klamm.server.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerContext:
    """Context of one request. A server derives its own class from this one, with the services of its handlers."""

    session: Session
    api_version: int
    client_id: str | None
    """Client id of the request header; None when the client sent null."""
    throttles: Throttles | None = None
    """Quotas on fetched records; None on a server without them."""
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
