"""Settings of a flow that keeps offsets, by replay or as a replica."""

from __future__ import annotations

import hashlib
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError
from klamm.security.principals import parse_super_users

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.kraft.image import BrokerEndpoint
    from klamm.mirror.copy.partition import PartitionId
    from klamm.server.listeners import Address
    from klamm.server.security.endpoints import Endpoint
    from klamm.server.security.login import FindScram

RESERVED_PRODUCER_IDS: Final = 1 << 62
"""Lowest reserved producer id. Brokers assign producer ids from 0 upwards and never reach it."""
MAX_EPOCH: Final = 32_766
"""Highest producer epoch in use. The transaction coordinator starts again with epoch 0 after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """Settings of a flow that keeps offsets by replay. Serialized to Spark's tasks."""

    id_prefix: str
    """Prefix of the transactional ids."""
    barrier_s: float = 35.0
    """Seconds to wait before the first marker of a writer if exactly one offset is missing.

    A marker of a dead writer may still arrive within this time: ``replica.lag.time.max.ms`` (30 s) and 5 s.
    """

    def transactional_id(self, partition_id: PartitionId) -> str:
        """Return the transactional id of a partition. Its producer epoch is the incarnation of the writer."""
        return f"{self.id_prefix}-{partition_id.topic}-{partition_id.partition}"

    def producer_id(self, partition_id: PartitionId) -> int:
        """Return the reserved producer id that writes a partition, the same for all incarnations."""
        digest = hashlib.sha256(self.transactional_id(partition_id).encode()).digest()
        return RESERVED_PRODUCER_IDS | int.from_bytes(digest[:8]) >> 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Settings of a flow that keeps offsets as a broker of the target. Serialized to Spark's tasks."""

    node_id: int
    """Broker id on the target."""
    controllers: ConnectionSettings
    """Connection to the controllers of the target."""
    listeners: tuple[BrokerEndpoint, ...]
    """Advertised listeners, as the brokers and clients of the target reach this broker."""
    bind: tuple[Address, ...]
    """Addresses to listen on, one for each listener."""
    configs: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Configs of the listeners for TLS, SASL and super users, as in Kafka's ``server.properties``."""

    @property
    def super_users(self) -> frozenset[str]:
        """Principals that may act as brokers without an ACL."""
        return parse_super_users(self.configs.get("super.users"))

    @property
    def allows_without_acl(self) -> bool:
        """Whether everybody may do what no ACL concerns."""
        return self.configs.get("allow.everyone.if.no.acl.found", "").strip().lower() == "true"

    def store_times(self) -> tuple[int, ...]:
        """Return the times at which the files of key and trust stores were changed last, in ns. 0: unreadable."""
        paths = [value for key, value in sorted(self.configs.items()) if key.endswith("store.location")]
        return tuple(map(_changed_at, paths))

    def endpoints(self, find_scram: FindScram) -> tuple[Endpoint, ...]:
        """Return the settings of all listeners, with the content of their key stores.

        Args:
            find_scram: Returns the SCRAM credential of a user.

        Raises:
            SettingsError: A setting is missing or not allowed, or a store cannot be read.
        """
        # Imported for this mode only: they need the server.
        from klamm.server.listeners import Listener, SecurityProtocol  # noqa: PLC0415
        from klamm.server.security.endpoints import open_endpoint  # noqa: PLC0415

        try:
            return tuple(
                open_endpoint(
                    Listener(
                        name=endpoint.name,
                        protocol=SecurityProtocol(endpoint.security_protocol),
                        listen=(address,),
                        advertise=None,
                    ),
                    self.configs,
                    find_scram,
                )
                for endpoint, address in zip(self.listeners, self.bind, strict=True)
            )
        except SettingsError as error:
            raise SettingsError(f"klamm.replica.listeners: {error} (these keys begin with klamm.replica.)") from error


def _changed_at(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except (OSError, ValueError):  # ValueError: the path contains a null character
        return 0
