"""Transactions in the metadata database: storage, replacement, removal and migration."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING
from uuid import UUID

from klamm.storage.metadata.changes import (
    DropDecision,
    DropGroup,
    DropPendingOffset,
    DropTransaction,
    PutDecision,
    PutGroupOffset,
    PutPendingOffset,
    PutTransaction,
)
from klamm.storage.metadata.store import MetadataStore

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = UUID(int=1)


def pending(offset: int, *, group_id: str = "g", producer_id: int = 7) -> PutPendingOffset:
    commit = PutGroupOffset(
        group_id=group_id, topic_id=TOPIC, partition=0, offset=offset, leader_epoch=3, metadata="note",
        commit_timestamp_ms=1,
    )  # fmt: skip
    return PutPendingOffset(producer_id=producer_id, commit=commit)


async def test_last_stored_state_is_loaded(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    await store.submit([PutTransaction(transactional_id=name, payload=b"1") for name in "ab"])
    await store.submit([PutTransaction(transactional_id="a", payload=b"2"), DropTransaction(transactional_id="b")])
    assert store.load_transactions() == [PutTransaction(transactional_id="a", payload=b"2")]
    await store.submit([pending(1), pending(2), pending(3, producer_id=8), pending(4, group_id="h")])
    assert store.load_pending_offsets() == [pending(2), pending(4, group_id="h"), pending(3, producer_id=8)]
    await store.submit(
        [DropPendingOffset(producer_id=8, group_id="g", topic_id=TOPIC, partition=0), DropGroup(group_id="h")]
    )
    assert store.load_pending_offsets() == [pending(2)]
    await store.close()


async def test_decision_is_stored_until_dropped(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    await store.submit([PutDecision(number=number, payload=b"{}") for number in (9, 10, 11)])
    await store.submit([DropDecision(number=10), DropDecision(number=12)])
    assert [row.number for row in store.load_decisions()] == [9, 11]
    await store.close()


async def test_database_without_transactions_gets_their_tables(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"

    await MetadataStore.open(path).close()
    with sqlite3.connect(path) as database:
        for table in ("transactions", "pending_offsets", "decisions"):
            database.execute(f"DROP TABLE {table}")
        database.execute("PRAGMA user_version = 4")
    database.close()
    store = MetadataStore.open(path)
    await store.submit([PutTransaction(transactional_id="a", payload=b"1")])
    assert len(store.load_transactions()) == 1
    await store.close()
