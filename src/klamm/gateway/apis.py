"""APIs that the gateway serves: their versions, and those that it leaves out of ApiVersions.

A version is listed only when it is known to carry no broker address, or when the gateway rewrites the addresses in it.
The versions that clients see are those that the upstream offers, too.

Left out on purpose:

=====================================================  ===============================================================
API                                                    Reason
=====================================================  ===============================================================
Fetch v16 and newer                                    Broker addresses behind the records (KIP-951). Clients find a
                                                       new leader by Metadata, as they did before.
DescribeQuorum v2 and newer                            Addresses of controllers, which clients cannot reach.
ShareFetch, ShareAcknowledge, ShareGroupHeartbeat      Broker addresses behind the records; without them a share
                                                       consumer could only join a group (KIP-932).
SaslHandshake v0                                       Tokens without a request header; v1 dates from Kafka 1.0.
all APIs between brokers and controllers               Never forwarded.
=====================================================  ===============================================================
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA_APIS: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
"""APIs that carry records. ``--admin-only`` leaves them out."""

DELEGATION_TOKENS: Final = frozenset({38, 39, 40, 41})
"""APIs of delegation tokens. A token that a client gets by the gateway's own login would make the client the gateway:
it could log in at the brokers with it, past the gateway.
"""

SERVED: Final[Mapping[int, tuple[int, int]]] = MappingProxyType(
    {
        ApiKey.PRODUCE: (0, 13),
        ApiKey.FETCH: (0, 15),
        ApiKey.LIST_OFFSETS: (0, 11),
        ApiKey.METADATA: (0, 13),
        ApiKey.OFFSET_COMMIT: (0, 10),
        ApiKey.OFFSET_FETCH: (0, 10),
        ApiKey.FIND_COORDINATOR: (0, 6),
        ApiKey.JOIN_GROUP: (0, 9),
        ApiKey.HEARTBEAT: (0, 4),
        ApiKey.LEAVE_GROUP: (0, 5),
        ApiKey.SYNC_GROUP: (0, 5),
        ApiKey.DESCRIBE_GROUPS: (0, 6),
        ApiKey.LIST_GROUPS: (0, 5),
        ApiKey.SASL_HANDSHAKE: (1, 1),
        ApiKey.API_VERSIONS: (0, 5),
        ApiKey.CREATE_TOPICS: (0, 7),
        ApiKey.DELETE_TOPICS: (0, 6),
        ApiKey.DELETE_RECORDS: (0, 2),
        ApiKey.INIT_PRODUCER_ID: (0, 6),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, 4),
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
        ApiKey.SASL_AUTHENTICATE: (0, 2),
        ApiKey.CREATE_PARTITIONS: (0, 3),
        38: (0, 3),  # CreateDelegationToken
        39: (0, 2),  # RenewDelegationToken
        40: (0, 2),  # ExpireDelegationToken
        41: (0, 3),  # DescribeDelegationToken
        ApiKey.DELETE_GROUPS: (0, 3),
        ApiKey.ELECT_LEADERS: (0, 2),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
        ApiKey.OFFSET_DELETE: (0, 0),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
        ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
        ApiKey.DESCRIBE_QUORUM: (0, 1),
        ApiKey.UPDATE_FEATURES: (0, 2),
        ApiKey.DESCRIBE_CLUSTER: (0, 2),
        ApiKey.DESCRIBE_PRODUCERS: (0, 0),
        64: (0, 0),  # UnregisterBroker
        ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
        ApiKey.LIST_TRANSACTIONS: (0, 2),
        68: (0, 1),  # ConsumerGroupHeartbeat
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
"""First and last version of each API."""


NO_LIMITS: Final[Mapping[int, int]] = MappingProxyType({})


def served_apis(
    *, admin_only: bool, withheld: frozenset[int] = frozenset(), limits: Mapping[int, int] = NO_LIMITS
) -> Mapping[int, tuple[int, int]]:
    """Return the first and last version of each API that a gateway serves.

    Args:
        admin_only: Whether to leave out the APIs that carry records.
        withheld: Further API keys to leave out.
        limits: Highest version to serve, by API key. Keys that are missing have no such limit.
    """
    left_out = withheld | (DATA_APIS if admin_only else frozenset())
    return {
        key: (first, min(last, limits.get(key, last))) for key, (first, last) in SERVED.items() if key not in left_out
    }
