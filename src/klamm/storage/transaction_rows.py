"""Tables of transactions in the metadata database, and the conversion between changes and rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from klamm.storage.changes import (
    DropDecision,
    DropPendingOffset,
    DropTransaction,
    PutDecision,
    PutGroupOffset,
    PutPendingOffset,
    PutTransaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.storage.schema import Database

DECISIONS: Final = ("CREATE TABLE decisions (number INTEGER PRIMARY KEY, payload BLOB NOT NULL)",)
"""Added in format 6."""
TABLES: Final = (
    "CREATE TABLE transactions (transactional_id TEXT PRIMARY KEY, payload BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE pending_offsets (producer_id INTEGER NOT NULL, group_id TEXT NOT NULL, topic_id BLOB NOT NULL,"
    " partition INTEGER NOT NULL, committed_offset INTEGER NOT NULL, leader_epoch INTEGER NOT NULL,"
    " metadata TEXT NOT NULL, commit_timestamp_ms INTEGER NOT NULL,"
    " PRIMARY KEY (producer_id, group_id, topic_id, partition)) WITHOUT ROWID",
)
UPSERT: Final[Mapping[str, str]] = {
    "decisions": "INSERT INTO decisions (number, payload) VALUES (?, ?)"
    " ON CONFLICT DO UPDATE SET payload = excluded.payload",
    "transactions": "INSERT INTO transactions (transactional_id, payload) VALUES (?, ?)"
    " ON CONFLICT DO UPDATE SET payload = excluded.payload",
    "pending_offsets": "INSERT INTO pending_offsets (producer_id, group_id, topic_id, partition, committed_offset,"
    " leader_epoch, metadata, commit_timestamp_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,"
    " metadata = excluded.metadata, commit_timestamp_ms = excluded.commit_timestamp_ms",
}
DELETE: Final[Mapping[str, str]] = {
    "decisions": "DELETE FROM decisions WHERE number = ?",
    "transactions": "DELETE FROM transactions WHERE transactional_id = ?",
    "pending_offsets": "DELETE FROM pending_offsets WHERE producer_id = ? AND group_id = ? AND topic_id = ?"
    " AND partition = ?",
}

PutRow: TypeAlias = "Callable[[str, tuple[Any, ...], tuple[Any, ...] | None], None]"
"""Function that takes a table, the key of a row, and the row; None removes the row."""


def put_transaction(put: PutRow, change: PutTransaction) -> None:
    """Store the state of a transactional id."""
    put("transactions", (change.transactional_id,), (change.transactional_id, change.payload))


def drop_transaction(put: PutRow, change: DropTransaction) -> None:
    """Remove a transactional id."""
    put("transactions", (change.transactional_id,), None)


def put_pending_offset(put: PutRow, change: PutPendingOffset) -> None:
    """Store a pending offset of a transaction."""
    commit = change.commit
    key = (change.producer_id, commit.group_id, commit.topic_id.bytes, commit.partition)
    put(
        "pending_offsets",
        key,
        (*key, commit.offset, commit.leader_epoch, commit.metadata, commit.commit_timestamp_ms),
    )


def drop_pending_offset(put: PutRow, change: DropPendingOffset) -> None:
    """Remove a pending offset of a transaction."""
    put("pending_offsets", (change.producer_id, change.group_id, change.topic_id.bytes, change.partition), None)


def put_decision(put: PutRow, change: PutDecision) -> None:
    """Store the outcome of a transaction."""
    put("decisions", (change.number,), (change.number, change.payload))


def drop_decision(put: PutRow, change: DropDecision) -> None:
    """Remove the outcome of a transaction."""
    put("decisions", (change.number,), None)


APPLY: Final[Mapping[type[Any], Callable[[PutRow, Any], None]]] = {
    PutTransaction: put_transaction,
    DropTransaction: drop_transaction,
    PutPendingOffset: put_pending_offset,
    DropPendingOffset: drop_pending_offset,
    PutDecision: put_decision,
    DropDecision: drop_decision,
}


def read_transactions(database: Database) -> list[PutTransaction]:
    """Return the stored transactional ids, by id."""
    rows = database.execute("SELECT transactional_id, payload FROM transactions ORDER BY 1")
    return [PutTransaction(transactional_id=name, payload=bytes(payload)) for name, payload in rows]


def read_decisions(database: Database) -> list[PutDecision]:
    """Return the decisions of transactions whose markers may not be durable, in order."""
    rows = database.execute("SELECT number, payload FROM decisions ORDER BY 1")
    return [PutDecision(number=number, payload=bytes(payload)) for number, payload in rows]


def read_pending_offsets(database: Database) -> list[PutPendingOffset]:
    """Return all pending offsets of open transactions."""
    rows = database.execute(
        "SELECT producer_id, group_id, topic_id, partition, committed_offset, leader_epoch, metadata,"
        " commit_timestamp_ms FROM pending_offsets ORDER BY 1, 2, 3, 4"
    )
    return [
        PutPendingOffset(
            producer_id=producer_id,
            commit=PutGroupOffset(
                group_id=group_id,
                topic_id=UUID(bytes=topic_id),
                partition=partition,
                offset=offset,
                leader_epoch=leader_epoch,
                metadata=metadata,
                commit_timestamp_ms=commit_ms,
            ),
        )
        for producer_id, group_id, topic_id, partition, offset, leader_epoch, metadata, commit_ms in rows
    ]
