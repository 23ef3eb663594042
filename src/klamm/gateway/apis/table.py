"""Table of all APIs that the gateway serves: those of the modules of this package, and those that only pass.

A version is listed only when it is known to carry no broker address, or when the gateway rewrites the addresses in it.
The versions that clients see are those that the upstream offers, too.

Left out on purpose:

=====================================================  ===============================================================
API                                                    Reason
=====================================================  ===============================================================
Fetch v16 and newer                                    See ``api_001_fetch``.
DescribeQuorum v2 and newer                            Addresses of controllers, which clients cannot reach.
ShareFetch, ShareAcknowledge, ShareGroupHeartbeat      Broker addresses behind the records; without them a share
                                                       consumer could only join a group (KIP-932).
SaslHandshake v0                                       See ``api_017_sasl_handshake``.
all APIs between brokers and controllers               Never forwarded.
=====================================================  ===============================================================
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.gateway import apis
from klamm.gateway.relay.api import RelayedApi
from klamm.policy.kinds import CREATE_TOPIC, FLOW
from klamm.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.gateway.client_configs.feature import ClientConfigFilters
    from klamm.gateway.history.recorded_api import RecordedApi
    from klamm.gateway.policies.policy_api import PolicyApi
    from klamm.policy.kinds import PolicyKind

_PASSED: Final[Mapping[int, tuple[int, int]]] = MappingProxyType(
    {
        ApiKey.OFFSET_FETCH: (0, 10),
        ApiKey.LEAVE_GROUP: (0, 5),
        ApiKey.SYNC_GROUP: (0, 5),
        ApiKey.DESCRIBE_GROUPS: (0, 6),
        ApiKey.LIST_GROUPS: (0, 5),
        ApiKey.DELETE_RECORDS: (0, 2),
        ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
        ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
        ApiKey.END_TXN: (0, 5),
        ApiKey.WRITE_TXN_MARKERS: (0, 2),
        ApiKey.DESCRIBE_ACLS: (0, 3),
        ApiKey.CREATE_ACLS: (0, 3),
        ApiKey.DELETE_ACLS: (0, 3),
        ApiKey.DESCRIBE_CONFIGS: (0, 4),
        34: (0, 2),  # AlterReplicaLogDirs
        ApiKey.DESCRIBE_LOG_DIRS: (0, 5),
        ApiKey.DELETE_GROUPS: (0, 3),
        ApiKey.ELECT_LEADERS: (0, 2),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
        ApiKey.OFFSET_DELETE: (0, 0),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
        ApiKey.DESCRIBE_QUORUM: (0, 1),
        ApiKey.UPDATE_FEATURES: (0, 2),
        ApiKey.DESCRIBE_PRODUCERS: (0, 0),
        64: (0, 0),  # UnregisterBroker
        ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
        ApiKey.LIST_TRANSACTIONS: (0, 2),
        69: (0, 1),  # ConsumerGroupDescribe
        71: (0, 0),  # GetTelemetrySubscriptions
        72: (0, 0),  # PushTelemetry
        ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
        77: (0, 1),  # ShareGroupDescribe
        80: (0, 1),  # AddRaftVoter
        81: (0, 0),  # RemoveRaftVoter
        88: (0, 0),  # StreamsGroupHeartbeat
        89: (0, 0),  # StreamsGroupDescribe
        90: (0, 0),  # DescribeShareGroupOffsets
        91: (0, 0),  # AlterShareGroupOffsets
        92: (0, 0),  # DeleteShareGroupOffsets
    }
)
"""First and last version of each API that is forwarded unread."""
_DELEGATION_TOKENS: Final[Mapping[int, tuple[int, int]]] = MappingProxyType(
    {
        38: (0, 3),  # CreateDelegationToken
        39: (0, 2),  # RenewDelegationToken
        40: (0, 2),  # ExpireDelegationToken
        41: (0, 3),  # DescribeDelegationToken
    }
)
"""First and last version of the APIs of delegation tokens."""
_MODULES: Final = tuple(
    import_module(f"{apis.__name__}.{name}") for _, name, _ in iter_modules(apis.__path__) if name.startswith("api_")
)
"""Modules of this package, one per API key, in the order of the keys."""
APIS: Final[tuple[RelayedApi, ...]] = (
    *(module.API for module in _MODULES),
    *(RelayedApi(key=key, versions=versions) for key, versions in _PASSED.items()),
    *(RelayedApi(key=key, versions=versions, gives_identity=True) for key, versions in _DELEGATION_TOKENS.items()),
)
"""All APIs that a gateway can serve."""
POLICIES: Final[tuple[PolicyApi, ...]] = tuple(module.POLICY for module in _MODULES if hasattr(module, "POLICY"))
"""APIs that policies decide on."""
UNFILTERED: Final[Mapping[int, tuple[PolicyKind, ...]]] = MappingProxyType(
    {
        76: (FLOW,),  # ShareGroupHeartbeat
        88: (FLOW, CREATE_TOPIC),  # StreamsGroupHeartbeat, which creates internal topics, too
    }
)
"""APIs that policies of these kinds would have to decide on, and for which there is no filter."""
RECORDED: Final[tuple[RecordedApi, ...]] = tuple(module.RECORDED for module in _MODULES if hasattr(module, "RECORDED"))
"""APIs that change something, which the history records."""
CLIENT_CONFIG_FILTERS: Final[ClientConfigFilters] = {
    module.API.key: module.client_config_filter for module in _MODULES if hasattr(module, "client_config_filter")
}
"""Filters of the requests for client configs (KIP-649), by API key."""
