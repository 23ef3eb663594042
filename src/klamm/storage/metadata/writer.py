"""The writer thread of the metadata store, which commits all queued batches in one transaction (group commit).

``metadata`` explains group commit and generations.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import StorageError
from klamm.storage.metadata.statements import PendingWrites

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from klamm.storage.metadata.changes import Change
    from klamm.storage.metadata.schema import Database

logger = logging.getLogger(__name__)

MAX_CHANGES_PER_COMMIT: Final = 20_000
"""Largest number of changes in a commit. It limits how long the first change of a commit waits for the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The changes submitted in one turn of the event loop. They are committed together."""

    generation: int
    """Number of failed commits that the event loop knew of when these changes were decided."""
    changes: list[Change]
    futures: list[asyncio.Future[None]]


class CommitWriter:
    """Group commit on a separate thread. Results reach the event loop in the order of the commits.

    A failed commit also fails all queued batches of its generation and of older ones, because they were decided on
    images that contain the failed changes. The connection is closed, and the next commit opens a new one.
    """

    def __init__(
        self,
        connect: Callable[[], Database],
        *,
        loop: asyncio.AbstractEventLoop,
        on_committed: Callable[[list[Batch]], None],
        on_failed: Callable[[list[Batch], StorageError], None],
        max_history: int = 0,
    ) -> None:
        self._max_history = max_history
        self.commits = 0
        """Number of committed transactions."""
        self._connect = connect
        self._loop = loop
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._database: Database | None = None
        self._queue: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._failed_generation = -1
        self._thread = threading.Thread(target=self._write_until_stopped, name="klamm-metadata-writer", daemon=True)
        self._thread.start()

    def put(self, batch: Batch) -> None:
        """Queue a batch. Never blocks."""
        self._queue.put(batch)

    def stop(self) -> None:
        """Commit the queued batches, close the connection and end the thread. Blocks until then."""
        self._queue.put(None)
        self._thread.join()

    def _write_until_stopped(self) -> None:
        is_open = True
        while is_open:
            batches, is_open = self._next_batches()
            if batches:
                self._commit_or_fail(batches)
        if self._database is not None:
            self._database.close()

    def _next_batches(self) -> tuple[list[Batch], bool]:
        """Wait for one batch, and take all further queued ones. False means that the writer stops after them."""
        batches: list[Batch] = []
        size = 0
        item = self._queue.get()
        while item is not None:
            batches.append(item)
            size += len(item.changes)
            if size >= MAX_CHANGES_PER_COMMIT:
                return batches, True
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batches, True
        return batches, False

    def _commit_or_fail(self, batches: list[Batch]) -> None:
        rejected = [batch for batch in batches if batch.generation <= self._failed_generation]
        if rejected:
            self._report(self._on_failed, rejected, StorageError("An earlier change could not be written"))
        batches = batches[len(rejected) :]
        if not batches:
            return
        try:
            self._commit(batches)
        except sqlite3.Error as error:
            self._fail(batches, error)
        except Exception as error:  # the thread must survive any error, and the futures must receive it
            logger.exception("Metadata could not be written")
            self._fail(batches, error)
        else:
            self._report(self._on_committed, batches)

    def _fail(self, batches: list[Batch], error: Exception) -> None:
        self._failed_generation = batches[0].generation
        self._drop_connection()
        self._report(self._on_failed, batches, StorageError(f"Metadata could not be written: {error}"))

    def _commit(self, batches: list[Batch]) -> None:
        if not any(batch.changes for batch in batches):
            return
        if self._database is None:
            self._database = self._connect()
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            writes = PendingWrites(database, max_history=self._max_history)
            for batch in batches:
                writes.apply(batch.changes)
            writes.flush()
            database.execute("COMMIT")
        except BaseException:
            self._roll_back(database)
            raise
        self.commits += 1

    def _roll_back(self, database: Database) -> None:
        try:
            database.execute("ROLLBACK")
        except sqlite3.Error as error:
            # After severe errors, SQLite has already rolled back.
            logger.debug("Metadata: rollback failed: %s", error)

    def _drop_connection(self) -> None:
        """Close the connection, in case it cannot recover from the error. The next commit opens a new one."""
        database, self._database = self._database, None
        try:
            if database is not None:
                database.close()
        except sqlite3.Error as error:
            logger.debug("Metadata: closing the connection failed: %s", error)

    def _report(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            logger.warning("Metadata: the event loop ended before the store was closed")
