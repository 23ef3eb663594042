"""Services of the broker, as handlers use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.broker.client_configs.service import ClientConfigService
    from klamm.broker.client_metrics.service import ClientMetricsService
    from klamm.broker.cluster import ClusterInfo
    from klamm.broker.configs.service import ConfigService
    from klamm.broker.fetch.sessions import FetchSessions
    from klamm.broker.groups.coordinator import GroupCoordinator
    from klamm.broker.producer_ids import ProducerIdAllocator
    from klamm.broker.quotas.mutations import MutationQuotas
    from klamm.broker.quotas.service import QuotaService
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
