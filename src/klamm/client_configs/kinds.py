"""Rules that determine which configs concern a client. Its requests and its registration reveal its kinds."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.client_configs.definitions import DEFINITIONS, ClientKind
from klamm.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


KIND_OF_CONFIG: Final[Mapping[str, ClientKind]] = MappingProxyType(
    {name: definition.kind for name, definition in DEFINITIONS.items()}
)

_APIS: Final[Mapping[ClientKind, frozenset[ApiKey]]] = {
    ClientKind.PRODUCER: frozenset(
        {
            ApiKey.PRODUCE,
            ApiKey.INIT_PRODUCER_ID,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            ApiKey.ADD_OFFSETS_TO_TXN,
            ApiKey.END_TXN,
            ApiKey.TXN_OFFSET_COMMIT,
        }
    ),
    ClientKind.CONSUMER: frozenset(
        {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT}
    ),
    ClientKind.ADMIN: frozenset(
        {
            ApiKey.CREATE_TOPICS,
            ApiKey.DELETE_TOPICS,
            ApiKey.DELETE_RECORDS,
            ApiKey.CREATE_PARTITIONS,
            ApiKey.DESCRIBE_CONFIGS,
            ApiKey.ALTER_CONFIGS,
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            ApiKey.LIST_CONFIG_RESOURCES,
            ApiKey.DESCRIBE_GROUPS,
            ApiKey.LIST_GROUPS,
            ApiKey.DELETE_GROUPS,
            ApiKey.OFFSET_DELETE,
            ApiKey.DESCRIBE_ACLS,
            ApiKey.CREATE_ACLS,
            ApiKey.DELETE_ACLS,
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            ApiKey.ALTER_CLIENT_QUOTAS,
            ApiKey.DESCRIBE_LOG_DIRS,
            ApiKey.ELECT_LEADERS,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            ApiKey.DESCRIBE_CLUSTER,
            ApiKey.DESCRIBE_PRODUCERS,
            ApiKey.DESCRIBE_TRANSACTIONS,
            ApiKey.LIST_TRANSACTIONS,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        }
    ),
}
"""API keys that only one kind of client sends. ListOffsets, OffsetCommit, OffsetFetch and LeaveGroup are left out
because consumers and admin clients both send them; requests that every client sends at its start are left out
too.
"""
KIND_OF_API: Final[Mapping[int, ClientKind]] = MappingProxyType(
    {int(key): kind for kind, keys in _APIS.items() for key in keys}
)


class GroupProtocol(StrEnum):
    """Group protocol that a consumer uses."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    """KIP-848."""


GROUP_PROTOCOL_OF_API: Final[Mapping[int, GroupProtocol]] = MappingProxyType(
    {int(ApiKey.JOIN_GROUP): GroupProtocol.CLASSIC, int(ApiKey.CONSUMER_GROUP_HEARTBEAT): GroupProtocol.CONSUMER}
)
"""Group protocol that a request reveals, by API key."""


def kinds_of_configs(names: Iterable[str]) -> frozenset[ClientKind]:
    """Return the kinds of a client that can apply these configs while it runs."""
    return frozenset(KIND_OF_CONFIG[name] for name in names if name in KIND_OF_CONFIG)


def concerns(name: str, kinds: frozenset[ClientKind]) -> bool:
    """Return whether a config concerns a client of these kinds.

    A client without a known kind is concerned by every config.
    """
    return not kinds or name not in KIND_OF_CONFIG or KIND_OF_CONFIG[name] in kinds
