"""Answers of a policy other than to allow or to reject a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """Answer that changes the request: of a policy on new topics, on configs or on flows.

    The request is changed, checked by the broker, and the policy is asked about the changed request. It must then
    return None or raise. A response entry without an error carries ``reason`` as its message.
    """

    reason: str
    """Text for the client: which value was wrong, and the value in its place."""
    configs: Mapping[str, str | None] = field(default_factory=dict)
    """Values of configs. None leaves a config out of a new topic, and removes it from an existing resource."""
    num_partitions: int | None = None
    """Number of partitions of a new topic. None leaves it as requested."""
    replication_factor: int | None = None
    """Replication factor of a new topic. None leaves it as requested."""
    acks: int | None = None
    """``acks`` of a Produce request: -1 means all. None leaves it as requested."""

    def __post_init__(self) -> None:
        """Replace the caller's mapping with a read-only copy."""
        object.__setattr__(self, "configs", MappingProxyType(dict(self.configs)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """Answer of a policy on flows that slows a client down: the request is allowed, the response asks for a pause."""

    reason: str
    """Text for the log."""
    delay_ms: int
    """Pause of the client after the response, in milliseconds (``throttle_time_ms``, KIP-219)."""


Answer: TypeAlias = "Override | Throttle"
