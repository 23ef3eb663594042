"""Tables of the metadata database, their format version, and the migrations from older formats.

The version is SQLite's ``user_version``, so it changes in the same transaction as the tables:

    format   change
    1        first format
    2        commit time of committed offsets, for offset retention (KIP-211)
    3        ACLs and SCRAM credentials
    4        client quotas
    5        transactions
    6        decisions of transactions whose markers may not be durable
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Final, Protocol

from klamm.storage.errors import DataDirectoryError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

FORMAT_VERSION: Final = 6
APPLICATION_ID: Final = 0x6B6C616D
"""``klam`` in the file header, which distinguishes this database from other SQLite files."""

BUSY_TIMEOUT_MS: Final = 10_000
"""Time that a commit waits for another process that reads the file with other tools, in milliseconds."""

GROUP_OFFSETS: Final = (
    "CREATE TABLE group_offsets (group_id TEXT NOT NULL, topic_id BLOB NOT NULL, partition INTEGER NOT NULL,"
    " committed_offset INTEGER NOT NULL, leader_epoch INTEGER NOT NULL, metadata TEXT NOT NULL,"
    " commit_timestamp_ms INTEGER NOT NULL, expire_timestamp_ms INTEGER,"
    " PRIMARY KEY (group_id, topic_id, partition)) WITHOUT ROWID",
    "CREATE INDEX group_offsets_of_topic ON group_offsets (topic_id)",
)

SECURITY: Final = (
    "CREATE TABLE acls (resource_type INTEGER NOT NULL, resource_name TEXT NOT NULL, pattern_type INTEGER NOT NULL,"
    " principal TEXT NOT NULL, host TEXT NOT NULL, operation INTEGER NOT NULL, permission INTEGER NOT NULL,"
    " PRIMARY KEY (resource_type, resource_name, pattern_type, principal, host, operation, permission)) WITHOUT ROWID",
    "CREATE TABLE scram_credentials (user TEXT NOT NULL, mechanism INTEGER NOT NULL, salt BLOB NOT NULL,"
    " stored_key BLOB NOT NULL, server_key BLOB NOT NULL, iterations INTEGER NOT NULL,"
    " PRIMARY KEY (user, mechanism)) WITHOUT ROWID",
)

DECISIONS: Final = ("CREATE TABLE decisions (number INTEGER PRIMARY KEY, payload BLOB NOT NULL)",)
"""Added in format 6."""

TRANSACTIONS: Final = (
    "CREATE TABLE transactions (transactional_id TEXT PRIMARY KEY, payload BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE pending_offsets (producer_id INTEGER NOT NULL, group_id TEXT NOT NULL, topic_id BLOB NOT NULL,"
    " partition INTEGER NOT NULL, committed_offset INTEGER NOT NULL, leader_epoch INTEGER NOT NULL,"
    " metadata TEXT NOT NULL, commit_timestamp_ms INTEGER NOT NULL,"
    " PRIMARY KEY (producer_id, group_id, topic_id, partition)) WITHOUT ROWID",
)

QUOTAS: Final = (
    "CREATE TABLE client_quotas (entity TEXT NOT NULL, name TEXT NOT NULL, value REAL NOT NULL,"
    " PRIMARY KEY (entity, name)) WITHOUT ROWID",
)

TABLES: Final = (
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE topics (topic_id BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, is_internal INTEGER NOT NULL,"
    " partitions TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE configs (resource_type INTEGER NOT NULL, resource_name TEXT NOT NULL, name TEXT NOT NULL,"
    " value TEXT NOT NULL, PRIMARY KEY (resource_type, resource_name, name)) WITHOUT ROWID",
    "CREATE TABLE client_configs (entity TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,"
    " PRIMARY KEY (entity, name)) WITHOUT ROWID",
    "CREATE TABLE groups (group_id TEXT PRIMARY KEY, payload BLOB NOT NULL) WITHOUT ROWID",
    *GROUP_OFFSETS,
    *SECURITY,
    *QUOTAS,
    *TRANSACTIONS,
    *DECISIONS,
    "CREATE TABLE history (sequence INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, resource TEXT NOT NULL,"
    " name TEXT NOT NULL, old TEXT, new TEXT, principal TEXT NOT NULL, client_id TEXT)",
)


class Database(Protocol):
    """The part of a database connection that the store needs: ``sqlite3.Connection``, or a fake in crash tests."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Iterable[Sequence[Any]]:
        """Run one statement and return its rows."""
        ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object:
        """Run one statement once per row of parameters."""
        ...

    def close(self) -> None:
        """Close the connection. An open transaction is rolled back."""
        ...


def connect_sqlite(path: Path) -> Database:
    """Open a connection without implicit transactions. Only one thread may use it at a time.

    Raises:
        sqlite3.Error: The file cannot be opened.
    """
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)


def open_connection(path: Path, connect: Callable[[Path], Database]) -> Database:
    """Open a connection with durable commits: a write-ahead log, and an fsync before each commit returns.

    Raises:
        sqlite3.Error: The file cannot be opened, or is not a database.
    """
    database = connect(path)
    try:
        _prepare(database)
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: Database) -> None:
    database.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    _scalar(database, "PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    # On macOS, fsync leaves data in the drive's cache; this setting flushes it. No effect on other systems.
    database.execute("PRAGMA fullfsync = ON")
    database.execute("PRAGMA wal_autocheckpoint = 4000")


def create_or_migrate(database: Database, path: Path, *, now_ms: int) -> None:
    """Create the tables or migrate them to ``FORMAT_VERSION``, in one transaction.

    Args:
        database: Connection from ``open_connection``.
        path: Database file, for messages.
        now_ms: Wall clock, milliseconds since the epoch. It becomes the commit time of offsets without one.

    Raises:
        UnknownFormatError: The file was written by a newer klamm, or is not a database of klamm.
        DataDirectoryError: The file is damaged.
    """
    try:
        version = _version(database, path)
        if version == FORMAT_VERSION:
            return
        database.execute("BEGIN IMMEDIATE")
        try:
            if version == 0:
                for statement in TABLES:
                    database.execute(statement)
            for step in range(max(version, 1), FORMAT_VERSION if version else 0):
                MIGRATIONS[step](database, now_ms)
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            database.execute("COMMIT")
        except BaseException:
            database.execute("ROLLBACK")
            raise
    except sqlite3.DatabaseError as error:
        raise DataDirectoryError(f"Cannot use {path}: {error}") from error


def _version(database: Database, path: Path) -> int:
    """Return the format version; 0 for an empty file."""
    version: int = _scalar(database, "PRAGMA user_version")
    is_ours = _scalar(database, "PRAGMA application_id") == APPLICATION_ID
    is_empty = _scalar(database, "SELECT count(*) FROM sqlite_master") == 0
    if is_empty and version == 0:
        return 0
    if not is_ours:
        raise UnknownFormatError(f"{path} is not a metadata database of klamm; choose another --data-dir")
    if version > FORMAT_VERSION:
        raise UnknownFormatError(
            f"{path} has format {version}, this klamm knows formats 1 to {FORMAT_VERSION}; use the klamm that wrote it"
        )
    return version


def _scalar(database: Database, sql: str) -> Any:
    return next(iter(database.execute(sql)))[0]


def _migrate_1_to_2(database: Database, now_ms: int) -> None:
    """Set the commit time of every committed offset to the time of the migration; retention counts from it."""
    columns = "group_id, topic_id, partition, committed_offset, leader_epoch, metadata"
    database.execute("DROP INDEX group_offsets_of_topic")
    database.execute("ALTER TABLE group_offsets RENAME TO group_offsets_1")
    for statement in GROUP_OFFSETS:
        database.execute(statement)
    database.execute(
        f"INSERT INTO group_offsets ({columns}, commit_timestamp_ms) SELECT {columns}, ? FROM group_offsets_1",  # noqa: S608 - constants
        (now_ms,),
    )
    database.execute("DROP TABLE group_offsets_1")


def _migrate_2_to_3(database: Database, _now_ms: int) -> None:
    """Add the tables of ACLs and SCRAM credentials."""
    for statement in SECURITY:
        database.execute(statement)


def _migrate_3_to_4(database: Database, _now_ms: int) -> None:
    """Add the table of client quotas."""
    for statement in QUOTAS:
        database.execute(statement)


def _migrate_4_to_5(database: Database, _now_ms: int) -> None:
    """Add the tables of transactions."""
    for statement in TRANSACTIONS:
        database.execute(statement)


def _migrate_5_to_6(database: Database, _now_ms: int) -> None:
    """Add the table of decisions."""
    for statement in DECISIONS:
        database.execute(statement)


MIGRATIONS: Final[Mapping[int, Callable[[Database, int], None]]] = {
    1: _migrate_1_to_2,
    2: _migrate_2_to_3,
    3: _migrate_3_to_4,
    4: _migrate_4_to_5,
    5: _migrate_5_to_6,
}
"""Migrations by the format from which they start."""
