"""Context of a request to the broker: everything a handler receives besides the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.server.context import HandlerContext

if TYPE_CHECKING:
    from klamm.broker.quotas.mutations import MutationQuota
    from klamm.broker.services import Services


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext(HandlerContext):
    """Context of one request to the broker."""

    services: Services

    def mutation_quota(self, *, is_strict: bool) -> MutationQuota:
        """Return the request's quota on created and deleted partitions.

        A strict quota rejects requests that exceed it.
        """
        return self.services.mutation_quotas.of(self.session, self.client_id, is_strict=is_strict)
