"""Broker configs of transactions, read once. Configs that are dynamic are read where they are used instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Broker configs of transactions. The defaults are those of Kafka 4.4."""

    max_timeout_ms: int = 900_000
    """``transaction.max.timeout.ms``"""
    abort_interval_s: float = 10.0
    """``transaction.abort.timed.out.transaction.cleanup.interval.ms``, in seconds."""
    expiration_ms: int = 604_800_000
    """``transactional.id.expiration.ms``"""
    expiration_interval_s: float = 3600.0
    """``transaction.remove.expired.transaction.cleanup.interval.ms``, in seconds."""

    @classmethod
    def from_config(cls, get: Callable[[str], Any]) -> TransactionSettings:
        """Read every config by Kafka's name; ``get`` returns numbers, or strings that contain numbers."""
        return cls(
            max_timeout_ms=int(get("transaction.max.timeout.ms")),
            abort_interval_s=int(get("transaction.abort.timed.out.transaction.cleanup.interval.ms")) / 1000,
            expiration_ms=int(get("transactional.id.expiration.ms")),
            expiration_interval_s=int(get("transaction.remove.expired.transaction.cleanup.interval.ms")) / 1000,
        )
