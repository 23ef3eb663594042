from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from klamm.storage.errors import DataDirectoryError, UnknownFormatError
from klamm.storage.metadata.changes import PutGroupOffset, PutQuota, PutSetting
from klamm.storage.metadata.schema import FORMAT_VERSION, MIGRATIONS
from klamm.storage.metadata.store import MetadataStore

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.storage.metadata.schema import Database

FORMAT_1 = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (topic_id BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, is_internal INTEGER NOT NULL,
    partitions TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE configs (resource_type INTEGER NOT NULL, resource_name TEXT NOT NULL, name TEXT NOT NULL,
    value TEXT NOT NULL, PRIMARY KEY (resource_type, resource_name, name)) WITHOUT ROWID;
CREATE TABLE client_configs (entity TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (entity, name)) WITHOUT ROWID;
CREATE TABLE groups (group_id TEXT PRIMARY KEY, payload BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE group_offsets (group_id TEXT NOT NULL, topic_id BLOB NOT NULL, partition INTEGER NOT NULL,
    committed_offset INTEGER NOT NULL, leader_epoch INTEGER NOT NULL, metadata TEXT NOT NULL,
    PRIMARY KEY (group_id, topic_id, partition)) WITHOUT ROWID;
CREATE INDEX group_offsets_of_topic ON group_offsets (topic_id);
CREATE TABLE history (sequence INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, resource TEXT NOT NULL,
    name TEXT NOT NULL, old TEXT, new TEXT, principal TEXT NOT NULL, client_id TEXT);
INSERT INTO settings VALUES ('cluster_id', 'abc');
INSERT INTO group_offsets VALUES ('g', x'00000000000000000000000000000001', 3, 42, -1, 'note');
PRAGMA application_id = 1802264941;
PRAGMA user_version = 1;
"""
"""A database as format 1 wrote it: a committed offset has no time."""


def layout(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        return [(name, " ".join(sql.replace('"', "").split())) for name, sql in rows]


def execute(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)


async def open_and_close(path: Path) -> None:
    await MetadataStore.open(path).close()


async def test_format_1_is_migrated_without_loss(tmp_path: Path) -> None:
    # given
    path = tmp_path / "metadata.sqlite"
    execute(path, FORMAT_1)

    # when
    store = MetadataStore.open(path, now_ms=lambda: 1_700_000_000_000)
    # then
    assert store.load_settings() == [PutSetting(name="cluster_id", value="abc")]
    assert store.load_group_offsets() == [
        PutGroupOffset(
            group_id="g",
            topic_id=UUID(int=1),
            partition=3,
            offset=42,
            leader_epoch=-1,
            metadata="note",
            commit_timestamp_ms=1_700_000_000_000,
        )
    ]
    await store.close()


async def test_migrated_database_has_the_current_schema(tmp_path: Path) -> None:
    # given
    migrated, new = tmp_path / "migrated.sqlite", tmp_path / "new.sqlite"
    execute(migrated, FORMAT_1)
    # when
    await open_and_close(migrated)
    await open_and_close(new)
    # then
    assert layout(migrated) == layout(new)


def test_failed_migration_keeps_the_old_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    path = tmp_path / "metadata.sqlite"
    execute(path, FORMAT_1)
    before = layout(path)

    complete = MIGRATIONS[1]

    def fails_at_the_end(database: Database, now_ms: int) -> None:
        complete(database, now_ms)
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("klamm.storage.metadata.schema.MIGRATIONS", {1: fails_at_the_end})
    # when
    with pytest.raises(DataDirectoryError, match="disk is full"):
        MetadataStore.open(path)
    # then
    assert layout(path) == before


async def test_newer_format_is_rejected_by_number(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    await open_and_close(path)
    execute(path, f"PRAGMA user_version = {FORMAT_VERSION + 5}")

    with pytest.raises(UnknownFormatError, match=f"format {FORMAT_VERSION + 5}, this klamm knows formats 1 to"):
        MetadataStore.open(path)


def test_database_of_another_program_is_rejected_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    execute(path, "CREATE TABLE holidays (name TEXT)")

    with pytest.raises(UnknownFormatError, match="not a metadata database of klamm"):
        MetadataStore.open(path)
    assert [name for name, _ in layout(path)] == ["holidays"]


def test_file_that_is_not_a_database_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"this is not a database, whatever its name says" * 100)

    with pytest.raises(DataDirectoryError, match=r"metadata\.sqlite"):
        MetadataStore.open(path)


def test_database_is_fully_synchronous(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / "metadata.sqlite")

    names = ("journal_mode", "synchronous")
    (pragmas,) = store.read(lambda database: [[row[0] for name in names for row in database.execute(f"PRAGMA {name}")]])

    assert pragmas == ["wal", 2]
    asyncio.run(store.close())


FORMAT_2 = (
    FORMAT_1.replace("    PRIMARY KEY (group_id, topic_id, partition)", "    commit_timestamp_ms INTEGER NOT NULL,"
    " expire_timestamp_ms INTEGER,\n    PRIMARY KEY (group_id, topic_id, partition)")
    .replace("-1, 'note')", "-1, 'note', 1600000000000, NULL)")
    .replace("user_version = 1", "user_version = 2")
)  # fmt: skip
"""A database as format 2 wrote it: no ACLs and no credentials."""


async def test_format_2_is_migrated_to_acls_and_credentials_without_loss(tmp_path: Path) -> None:
    # given
    path, new = tmp_path / "metadata.sqlite", tmp_path / "new.sqlite"
    execute(path, FORMAT_2)
    await open_and_close(new)

    # when
    store = MetadataStore.open(path, now_ms=lambda: 1_700_000_000_000)
    # then
    assert store.load_settings() == [PutSetting(name="cluster_id", value="abc")]
    assert [offset.commit_timestamp_ms for offset in store.load_group_offsets()] == [1_600_000_000_000]
    assert store.load_acls() == []
    assert store.load_scram_credentials() == []
    await store.close()
    assert layout(path) == layout(new)


async def test_database_of_format_3_gets_the_quotas_table(tmp_path: Path) -> None:
    # given
    path, new = tmp_path / "metadata.sqlite", tmp_path / "new.sqlite"
    execute(path, FORMAT_2)
    database = sqlite3.connect(path, isolation_level=None)
    MIGRATIONS[2](database, 0)
    database.execute("PRAGMA user_version = 3")
    database.close()
    await open_and_close(new)

    # when
    store = MetadataStore.open(path)
    # then
    assert store.load_quotas() == []
    quota = PutQuota(entity=(("user", None), ("client-id", "ä")), name="request_percentage", value=0.5)
    await store.submit([quota])
    assert store.load_quotas() == [quota]
    await store.submit([replace(quota, value=None)])
    assert store.load_quotas() == []
    await store.close()
    assert layout(path) == layout(new)
