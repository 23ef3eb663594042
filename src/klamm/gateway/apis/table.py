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

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.gateway.apis import (
    api_000_produce,
    api_001_fetch,
    api_002_list_offsets,
    api_003_metadata,
    api_010_find_coordinator,
    api_011_join_group,
    api_012_heartbeat,
    api_017_sasl_handshake,
    api_018_api_versions,
    api_022_init_producer_id,
    api_023_offset_for_leader_epoch,
    api_036_sasl_authenticate,
    api_060_describe_cluster,
    api_068_consumer_group_heartbeat,
)
from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

_PASSED: Final[Mapping[int, tuple[int, int]]] = MappingProxyType(
    {
        ApiKey.OFFSET_COMMIT: (0, 10),
        ApiKey.OFFSET_FETCH: (0, 10),
        ApiKey.LEAVE_GROUP: (0, 5),
        ApiKey.SYNC_GROUP: (0, 5),
        ApiKey.DESCRIBE_GROUPS: (0, 6),
        ApiKey.LIST_GROUPS: (0, 5),
        ApiKey.CREATE_TOPICS: (0, 7),
        ApiKey.DELETE_TOPICS: (0, 6),
        ApiKey.DELETE_RECORDS: (0, 2),
        ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
        ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
        ApiKey.END_TXN: (0, 5),
        ApiKey.WRITE_TXN_MARKERS: (0, 2),
        ApiKey.TXN_OFFSET_COMMIT: (0, 6),
        ApiKey.DESCRIBE_ACLS: (0, 3),
        ApiKey.CREATE_ACLS: (0, 3),
        ApiKey.DELETE_ACLS: (0, 3),
        ApiKey.DESCRIBE_CONFIGS: (0, 4),
        ApiKey.ALTER_CONFIGS: (0, 2),
        34: (0, 2),  # AlterReplicaLogDirs
        ApiKey.DESCRIBE_LOG_DIRS: (0, 5),
        ApiKey.CREATE_PARTITIONS: (0, 3),
        ApiKey.DELETE_GROUPS: (0, 3),
        ApiKey.ELECT_LEADERS: (0, 2),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
        ApiKey.OFFSET_DELETE: (0, 0),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
        ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
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
_TWO_REQUESTS: Final[Mapping[int, tuple[int, int]]] = MappingProxyType(
    {
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    }
)
"""First and last version of the APIs whose keys have a second kind of requests (KIP-649)."""
APIS: Final = (
    api_000_produce.API,
    api_001_fetch.API,
    api_002_list_offsets.API,
    api_003_metadata.API,
    api_010_find_coordinator.API,
    api_011_join_group.API,
    api_012_heartbeat.API,
    api_017_sasl_handshake.API,
    api_018_api_versions.API,
    api_022_init_producer_id.API,
    api_023_offset_for_leader_epoch.API,
    api_036_sasl_authenticate.API,
    api_060_describe_cluster.API,
    api_068_consumer_group_heartbeat.API,
    *(RelayedApi(key=key, versions=versions) for key, versions in _PASSED.items()),
    *(RelayedApi(key=key, versions=versions, gives_identity=True) for key, versions in _DELEGATION_TOKENS.items()),
    *(RelayedApi(key=key, versions=versions, has_two_requests=True) for key, versions in _TWO_REQUESTS.items()),
)
"""All APIs that a gateway can serve."""
