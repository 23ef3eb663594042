"""Who changed which config when: read from the data directory, also while the broker runs; and the way back.

The broker writes a line with every change, in the same transaction. Kafka has no request for it, so it is read where it
is; SQLite's write-ahead log lets readers in without holding the writer up.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from klamm.storage.errors import DataDirectoryError
from klamm.storage.metadata import METADATA_FILE_NAME
from klamm.storage.schema import APPLICATION_ID, BUSY_TIMEOUT_MS
from klamm.storage.statements import read_history

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from klamm.storage.changes import PutHistory

HIDDEN: Final = "[hidden]"
"""What the history holds in place of a secret."""
SCRAM_RESOURCE: Final = "SCRAM"
"""What a user's name stands behind in the history of SCRAM credentials; the names there are mechanisms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reversal:
    """What one config has to be set to so that a resource is as it was."""

    name: str
    value: str | None
    """None: it was not set on the resource."""
    replaces: str | None
    """What the newest line says it is now; None: it is not set."""

    @property
    def is_known(self) -> bool:
        """False for a secret, whose old value nobody knows."""
        return self.value != HIDDEN


def read_config_history(data_dir: Path, *, resource: str | None = None, limit: int = 1000) -> tuple[PutHistory, ...]:
    """Return the newest lines of a broker's history, the newest first.

    Args:
        data_dir: The broker's data directory; the broker may run.
        resource: ``TOPIC:orders``, ``BROKER:1``, ``BROKER:`` (the cluster's default), ``GROUP:g``, and for client
            configs, quotas and SCRAM credentials what their history says; None: all.
        limit: How many lines at most.

    Raises:
        DataDirectoryError: There is no such directory, or it is no broker's.
    """
    path = data_dir / METADATA_FILE_NAME
    if not path.is_file():
        raise DataDirectoryError(
            f"{data_dir} is not the data directory of a klamm broker: it has no {METADATA_FILE_NAME}"
        )
    try:
        uri = f"file:{quote(str(path.resolve()))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None)) as database:
            if database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise DataDirectoryError(f"{path} is not a metadata database of klamm")
            return tuple(read_history(database, resource=resource, limit=limit))
    except sqlite3.Error as error:
        raise DataDirectoryError(f"Cannot read {path}: {error}") from error


def plan_revert(history: Sequence[PutHistory], *, resource: str, to_ms: int) -> tuple[Reversal, ...]:
    """Return what brings a resource back to how it was at a time.

    Only what was changed after ``to_ms`` is touched, and only what would differ; what happened to a topic of the same
    name that was deleted since counts as its history too, and so does its deletion.

    Args:
        history: All lines since then, the newest first, as ``read_config_history`` returns them.
        resource: Which one; lines of others are passed over.
        to_ms: The time, in milliseconds since the epoch; what was changed in that very millisecond stays.
    """
    then: dict[str, str | None] = {}
    now: dict[str, str | None] = {}
    for line in history:
        if line.resource != resource or line.at_ms <= to_ms:
            continue
        now.setdefault(line.name, line.new)
        then[line.name] = line.old
    return tuple(
        Reversal(name=name, value=value, replaces=now[name])
        for name, value in sorted(then.items())
        if value != now[name] or value == HIDDEN
    )
