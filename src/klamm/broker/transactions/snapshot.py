"""The stored form of a transactional id: readable JSON."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from klamm.broker.transactions.model import Transaction, TransactionPartition, TransactionState
from klamm.storage.errors import DAMAGED_VALUE

_PLAIN = (
    "producer_id",
    "producer_epoch",
    "last_producer_epoch",
    "previous_producer_id",
    "next_producer_id",
    "timeout_ms",
    "started_ms",
    "updated_ms",
    "bumps_epoch",
)


def to_payload(transaction: Transaction) -> bytes:
    """Return the stored form of a transactional id; ``from_payload`` reverses it."""
    facts: dict[str, Any] = {"state": transaction.state.value}
    facts |= {name: getattr(transaction, name) for name in _PLAIN}
    facts["partitions"] = [[item.topic_id.hex, item.partition] for item in sorted(transaction.partitions)]
    facts["groups"] = sorted(transaction.groups)
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def from_payload(transactional_id: str, payload: bytes) -> Transaction:
    """Return the transactional id of a stored form.

    Raises:
        ValueError: The payload is damaged or of another format.
    """
    try:
        facts = json.loads(payload)
        return Transaction(
            transactional_id=transactional_id,
            state=TransactionState(facts["state"]),
            partitions=frozenset(TransactionPartition(UUID(hex=topic), index) for topic, index in facts["partitions"]),
            groups=frozenset(facts["groups"]),
            **{name: facts[name] for name in _PLAIN},
        )
    except DAMAGED_VALUE as error:
        raise ValueError(f"Stored transactional id {transactional_id!r} cannot be read: {error!r}") from error
