"""Real SQLite with commits that can fail, for metadata stores on a failing disk."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from klamm.storage.metadata.schema import connect_sqlite

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from klamm.storage.metadata.schema import Database


class FailingDatabase:
    """Real connection. Its next commits fail, as many as ``disk.failures`` says, and reads of ``disk.unreadable``."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._real = connect_sqlite(path)
        self._disk = disk

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterable[Sequence[Any]]:
        """Execute a statement, or fail a commit or a read."""
        if sql == "COMMIT" and self._disk.failures > 0:
            self._disk.failures -= 1
            raise sqlite3.OperationalError("disk I/O error")
        if self._disk.unreadable and f"FROM {self._disk.unreadable}" in sql:
            raise sqlite3.OperationalError("disk I/O error")
        return self._real.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object:
        """Execute for each."""
        return self._real.executemany(sql, parameters)

    def close(self) -> None:
        """Close the connection."""
        self._real.close()


class Disk:
    """Commits that are still to fail, and a table that cannot be read. ``connect`` is for ``MetadataStore.open``."""

    def __init__(self) -> None:
        self.failures = 0
        self.unreadable = ""
        """Table that cannot be read; empty for none."""

    def connect(self, path: Path) -> Database:
        """Open a connection."""
        return FailingDatabase(path, self)
