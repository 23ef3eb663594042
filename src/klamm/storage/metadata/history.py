"""The change history of configs: which principal changed which config and when, and how to revert it.

The broker writes an entry with every change, in the same transaction. Kafka has no request that returns it, so the
history is read directly from the data directory, even while the broker runs: with SQLite's write-ahead log, readers do
not block the writer.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from klamm.display import counted
from klamm.storage.errors import DataDirectoryError
from klamm.storage.metadata.changes import HIDDEN, PARTITIONS, TOO_LONG, UNKNOWN
from klamm.storage.metadata.schema import APPLICATION_ID, BUSY_TIMEOUT_MS
from klamm.storage.metadata.statements import read_history
from klamm.storage.metadata.store import METADATA_FILE_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from klamm.storage.metadata.changes import PutHistory

logger = logging.getLogger(__name__)

NOT_KEPT: Final = frozenset({HIDDEN, UNKNOWN, TOO_LONG})
"""Values in place of those that the history does not keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reversal:
    """The value that one config needs so that its resource is as it was before."""

    name: str
    value: str | None
    """None if the config was not set on the resource."""
    replaces: str | None
    """Current value: the live one if it is known, else that of the newest entry. None if it is not set."""

    @property
    def is_known(self) -> bool:
        """False for a value that is not recorded: a secret, for example."""
        return self.value not in NOT_KEPT


def read_config_history(data_dir: Path, *, resource: str | None = None, limit: int = 1000) -> tuple[PutHistory, ...]:
    """Return the newest entries of a broker's change history, newest first.

    Args:
        data_dir: Data directory of the broker, which may be running.
        resource: ``TOPIC:orders``, ``BROKER:1``, ``BROKER:`` (the cluster's default), ``GROUP:g``; for client configs,
            quotas and SCRAM credentials the resource as the history shows it. None for all resources.
        limit: Largest number of entries.

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
            entries = read_history(database, resource=resource, limit=limit)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise DataDirectoryError(f"Cannot read {path}: {error}") from error
    readable = tuple(entry for entry in entries if entry.is_readable)
    if len(readable) < len(entries):
        logger.warning("%s is damaged: %s skipped", path, counted(len(entries) - len(readable), "history item"))
    return readable


def _uri(path: Path) -> str:
    """Return the name by which SQLite opens the database to read it.

    SQLite shares memory between a database's users by a file beside it. Where it cannot create that file, such as on a
    read-only mount, it opens the database only as one that does not change. While a broker runs, its write-ahead log is
    there, and so is the shared file.
    """
    is_at_rest = not path.with_name(f"{path.name}-wal").exists()
    fixed = "&immutable=1" if is_at_rest and not os.access(path.parent, os.W_OK) else ""
    return f"file:{quote(str(path.resolve()))}?mode=ro{fixed}"


def plan_revert(
    history: Sequence[PutHistory], *, resource: str, to_ms: int, live: Mapping[str, str] | None = None
) -> tuple[Reversal, ...]:
    """Return the changes that restore a resource to its state at a given time.

    Only configs that changed after ``to_ms`` and would differ are included. The history of a deleted topic with the
    same name counts as well, including its deletion. Numbers of partitions are left out, because they cannot be
    restored.

    Args:
        history: All entries since then, newest first, as ``read_config_history`` returns them.
        resource: Resource to restore; entries of other resources are skipped.
        to_ms: Time in milliseconds since the epoch. Changes within this very millisecond are kept.
        live: Values that are set on the resource now, which may have been changed without a record. None if unknown.
    """
    then: dict[str, str | None] = {}
    now: dict[str, str | None] = {}
    for line in history:
        if line.resource != resource or line.at_ms <= to_ms or line.name == PARTITIONS:
            continue
        now.setdefault(line.name, line.new)
        then[line.name] = line.old
    if live is not None:
        now |= {name: live.get(name) for name, value in now.items() if value not in NOT_KEPT}
    return tuple(
        Reversal(name=name, value=value, replaces=now[name])
        for name, value in sorted(then.items())
        if value != now[name] or value in NOT_KEPT
    )
