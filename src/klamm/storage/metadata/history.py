"""Reader of the change history in a data directory: which principal changed which config and when.

The broker writes an entry with every change, in the same transaction. Kafka has no request that returns it, so the
history is read directly from the data directory, even while the broker runs: with SQLite's write-ahead log, readers do
not block the writer. A client id of more than 255 characters, or a principal of more than 1,000, ends in ``...``
there.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from klamm.display import counted
from klamm.storage.errors import DataDirectoryError
from klamm.storage.metadata.schema import APPLICATION_ID, BUSY_TIMEOUT_MS
from klamm.storage.metadata.statements import read_history
from klamm.storage.metadata.store import METADATA_FILE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from klamm.history.change import RecordedChange

logger = logging.getLogger(__name__)

_ALL: Final = -1
"""SQLite's limit for all rows."""


def read_config_history(
    data_dir: Path, *, resource: str | None = None, limit: int = 1000
) -> tuple[RecordedChange, ...]:
    """Return the newest entries of a broker's change history, newest first. Damaged ones are logged and left out.

    Args:
        data_dir: Data directory of the broker, which may be running.
        resource: ``TOPIC:orders``, ``BROKER:1``, ``BROKER:`` (the cluster's default), ``GROUP:g``; for client configs,
            quotas and SCRAM credentials the resource as the history shows it. None for all resources.
        limit: Largest number of entries.

    Raises:
        DataDirectoryError: The directory does not exist, or is not a broker's data directory.
    """
    entries, damaged = read_sound_history(data_dir, resource=resource, limit=limit)
    if damaged:
        logger.warning("%s is damaged: %s skipped", data_dir / METADATA_FILE_NAME, counted(damaged, "history item"))
    return entries


def read_sound_history(
    data_dir: Path, *, resource: str | None = None, limit: int = 1000
) -> tuple[tuple[RecordedChange, ...], int]:
    """Return the newest entries that are not damaged, as ``read_config_history`` does, and the number of damaged ones.

    Raises:
        DataDirectoryError: As there.
    """
    with _opened(data_dir) as database:
        entries = read_history(database, resource=resource, limit=limit)
    sound = tuple(entry for entry in entries if entry.is_readable)
    return sound, len(entries) - len(sound)


def read_history_start(data_dir: Path) -> int | None:
    """Return the time of the oldest entry in milliseconds since the epoch. None: no older ones were removed.

    Raises:
        DataDirectoryError: As in ``read_config_history``.
    """
    with _opened(data_dir) as database:
        (first,) = database.execute("SELECT min(sequence) FROM history").fetchone()
        if first in (None, 1):
            return None
        entries = read_history(database, resource=None, limit=_ALL)
    return next((entry.at_ms for entry in reversed(entries) if entry.is_readable), None)


@contextmanager
def _opened(data_dir: Path) -> Iterator[sqlite3.Connection]:
    """Open the metadata database of a broker to read it.

    Raises:
        DataDirectoryError: The directory does not exist, or is not a broker's data directory.
    """
    path = data_dir / METADATA_FILE_NAME
    if not path.is_file():
        raise DataDirectoryError(
            f"{data_dir} is not the data directory of a klamm broker: it has no {METADATA_FILE_NAME}"
        )
    try:
        with closing(
            sqlite3.connect(_uri(path), uri=True, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None)
        ) as database:
            if database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise DataDirectoryError(f"{path} is not a metadata database of klamm")
            yield database
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise DataDirectoryError(f"Cannot read {path}: {error}") from error


def _uri(path: Path) -> str:
    """Return the name by which SQLite opens the database to read it.

    SQLite shares memory between a database's users by a file beside it. Where it cannot create that file, such as on a
    read-only mount, it opens the database only as one that does not change. While a broker runs, its write-ahead log is
    there, and so is the shared file.
    """
    is_at_rest = not path.with_name(f"{path.name}-wal").exists()
    fixed = "&immutable=1" if is_at_rest and not os.access(path.parent, os.W_OK) else ""
    return f"file:{quote(str(path.resolve()))}?mode=ro{fixed}"
