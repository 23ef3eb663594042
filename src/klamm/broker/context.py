"""Context of a request to the broker: everything a handler receives besides the request, with all services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.lazy_dataclass import dataclass
from klamm.server.context import HandlerContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.broker.client_configs import ClientConfigService
    from klamm.broker.client_metrics import ClientMetricsService
    from klamm.broker.cluster import ClusterInfo
    from klamm.broker.configs.service import ConfigService
    from klamm.broker.fetch.sessions import FetchSessions
    from klamm.broker.groups.coordinator import GroupCoordinator
    from klamm.broker.producer_ids import ProducerIdAllocator
    from klamm.broker.quotas import MutationQuota, MutationQuotas, QuotaService
    from klamm.broker.security.authorizer import Authorizer
    from klamm.broker.security.credentials import ScramCredentials
    from klamm.broker.topics.catalog import TopicCatalog
    from klamm.broker.transactions.coordinator import TransactionCoordinator
    from klamm.client_config_runtime.enforcement import EnforcementService
    from klamm.policy_runtime import Policies
    from klamm.protocol.api import Api
    from klamm.storage.log import LogManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All services that handlers use. Created once when the broker starts."""

    apis: Sequence[Api]
    """Served APIs by ascending key, for ApiVersions."""
    now_ms: Callable[[], int]
    """Wall clock, in milliseconds since the epoch."""
    cluster: ClusterInfo
    topics: TopicCatalog
    configs: ConfigService
    client_configs: ClientConfigService
    enforcement: EnforcementService
    client_metrics: ClientMetricsService
    logs: LogManager
    fetch_sessions: FetchSessions
    groups: GroupCoordinator
    producer_ids: ProducerIdAllocator
    transactions: TransactionCoordinator
    quotas: QuotaService
    mutation_quotas: MutationQuotas
    policies: Policies
    authorizer: Authorizer
    credentials: ScramCredentials


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext(HandlerContext):
    """Context of one request to the broker."""

    services: Services

    def mutation_quota(self, *, is_strict: bool) -> MutationQuota:
        """Return the request's quota on created and deleted partitions.

        A strict quota rejects requests that exceed it.
        """
        return self.services.mutation_quotas.of(self.session, self.client_id, is_strict=is_strict)
