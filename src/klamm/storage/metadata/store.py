"""The metadata store: a queue of changes, and one thread that commits them to SQLite in durable transactions.

Group commit, step by step:

1. A service decides a change, applies it to its image in memory and calls ``submit``, without an await in between. It
   awaits the returned future before it sends its response.
2. All changes submitted in one turn of the event loop form one ``Batch``. At the end of the turn, the batch goes to the
   writer thread's queue.
3. The writer takes every queued batch (up to ``writer.MAX_CHANGES_PER_COMMIT`` changes) and commits them in one SQLite
   transaction with one fsync. Batches that arrive meanwhile wait for the next commit. So thousands of changes per
   second share a few hundred fsyncs.
4. The writer reports the result to the event loop, which completes the futures in the order of submission.

A batch is never split between two transactions: changes submitted in one turn are stored together or not at all.

Failed commits (disk full, I/O error) and generations: later changes were decided on images that contain the failed
ones, so they must fail too. Each batch carries the ``generation`` in which it was decided, the number of failures that
the event loop knew of. After a failure the writer rejects every batch of that generation or an older one. When the
event loop hears of the failure, it increments its generation, drops the batch that is being filled, calls
``on_failure`` (which reloads all images from the store, or ends the process if it cannot) and then fails all futures.
Changes submitted after that are committed normally.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.clock import wall_clock_ms
from klamm.protocol.errors import StorageError
from klamm.storage.errors import DAMAGED_VALUE, DataDirectoryError
from klamm.storage.lock import make_durable_directory
from klamm.storage.metadata import statements
from klamm.storage.metadata.identity import is_damage, metadata_lost
from klamm.storage.metadata.schema import Database, connect_sqlite, create_or_migrate, open_connection
from klamm.storage.metadata.writer import Batch, CommitWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from klamm.storage.metadata.changes import (
        Change,
        PutAcl,
        PutClientConfig,
        PutConfig,
        PutDecision,
        PutGroup,
        PutGroupOffset,
        PutPendingOffset,
        PutQuota,
        PutScramCredential,
        PutSetting,
        PutTopic,
        PutTransaction,
    )

T = TypeVar("T")

METADATA_FILE_NAME: Final = "metadata.sqlite"
_COMPLETED_AT_ONCE: Final = 32
"""Number of futures completed in one turn of the event loop. The code that waits for a future runs in the same turn."""


class MetadataStore:
    """Durable metadata of a broker. Used on one event loop only; the writer thread is internal.

    The module docstring explains group commit and what happens after a failed commit.
    """

    def __init__(
        self, path: Path, *, connect: Callable[[Path], Database] = connect_sqlite, max_history: int = 0
    ) -> None:
        self._max_history = max_history
        self.on_failure: Callable[[StorageError], None] | None = None
        """Called on the event loop after a failed commit, before any future fails, to reload all images."""
        self._path = path
        self._connect = connect
        self._reader = open_connection(path, connect)
        self._writer: CommitWriter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: Batch | None = None
        self._committed: deque[asyncio.Future[None]] = deque()
        self._generation = 0
        self._is_closed = False

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        connect: Callable[[Path], Database] = connect_sqlite,
        now_ms: Callable[[], int] = wall_clock_ms,
        max_history: int = 0,
    ) -> MetadataStore:
        """Open the database file at ``path``, and create or migrate it if necessary.

        Args:
            path: Database file. Missing directories are created.
            connect: Function that opens a connection. Crash tests pass their own.
            now_ms: Wall clock, milliseconds since the epoch.
            max_history: Largest number of entries in the change history; 0 for no limit.

        Raises:
            UnknownFormatError: The file was written by a newer klamm, or is not a database of klamm.
            DataDirectoryError: The file cannot be opened or written.
        """
        try:
            make_durable_directory(path.parent)
            store = cls(path, connect=connect, max_history=max_history)
        except (OSError, sqlite3.Error) as error:
            raise DataDirectoryError(f"Cannot open {path}: {error}") from error
        try:
            create_or_migrate(store._reader, path, now_ms=now_ms())
        except BaseException:
            store._reader.close()
            raise
        return store

    @property
    def commits(self) -> int:
        """Number of transactions committed since the store was opened."""
        return 0 if self._writer is None else self._writer.commits

    def submit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Queue changes. The future is done when all of them are on disk.

        Commits keep the order of submission. The future of an empty sequence is done when everything before it is on
        disk. Cancelling the future does not withdraw the changes.

        Raises:
            StorageError: The store is closed. If the commit fails, the future raises it.
        """
        if self._is_closed:
            raise StorageError("The metadata store is closed")
        loop = self._loop
        if loop is None:
            loop = self._start_writer()
        future: asyncio.Future[None] = loop.create_future()
        pending = self._pending
        if pending is None:
            pending = self._pending = Batch(generation=self._generation, changes=[], futures=[])
            loop.call_soon(self.hand_over)
        pending.changes.extend(changes)
        pending.futures.append(future)
        return future

    async def close(self) -> None:
        """Commit the queued changes and close the file. A second call has no effect."""
        if self._is_closed:
            return
        self._is_closed = True
        self.hand_over()
        if self._writer is not None:
            await asyncio.to_thread(self._writer.stop)
            # The writer's last callbacks were scheduled on the loop before the thread ended. One turn runs them.
            await asyncio.sleep(0)
            self._complete_futures(at_once=len(self._committed))
        self._reader.close()

    def load_topics(self) -> list[PutTopic]:
        """Return all topics by name."""
        return self.read(statements.read_topics)

    def load_configs(self) -> list[PutConfig]:
        """Return all dynamic configs by resource and name."""
        return self.read(statements.read_configs)

    def load_client_configs(self) -> list[PutClientConfig]:
        """Return all client configs by entity and name."""
        return self.read(statements.read_client_configs)

    def load_groups(self) -> list[PutGroup]:
        """Return all groups by id."""
        return self.read(statements.read_groups)

    def load_group_offsets(self) -> list[PutGroupOffset]:
        """Return all committed offsets by group, topic id and partition."""
        return self.read(statements.read_group_offsets)

    def load_transactions(self) -> list[PutTransaction]:
        """Return the stored transactional ids, by id."""
        return self.read(statements.read_transactions)

    def load_decisions(self) -> list[PutDecision]:
        """Return the decisions of transactions whose markers may not be durable, in order."""
        return self.read(statements.read_decisions)

    def load_pending_offsets(self) -> list[PutPendingOffset]:
        """Return all pending offsets of open transactions."""
        return self.read(statements.read_pending_offsets)

    def load_settings(self) -> list[PutSetting]:
        """Return all settings by name."""
        return self.read(statements.read_settings)

    def load_quotas(self) -> list[PutQuota]:
        """Return all client quotas by entity and name."""
        return self.read(statements.read_quotas)

    def load_acls(self) -> list[PutAcl]:
        """Return all ACL entries by resource."""
        return self.read(statements.read_acls)

    def load_scram_credentials(self) -> list[PutScramCredential]:
        """Return all SCRAM credentials by user and mechanism."""
        return self.read(statements.read_scram_credentials)

    def read(self, query: Callable[[Database], list[T]]) -> list[T]:
        """Return the rows of a query.

        Raises:
            StorageError: The database cannot be read at present.
            MetadataLostError: The database is damaged.
        """
        try:
            return query(self._reader)
        except (sqlite3.DatabaseError, *DAMAGED_VALUE) as error:
            if not is_damage(error):
                raise StorageError(f"Cannot read {self._path}: {error}") from error
            raise metadata_lost(self._path, f"is damaged ({error})") from error

    def _start_writer(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        self._writer = CommitWriter(
            lambda: open_connection(self._path, self._connect),
            loop=self._loop,
            on_committed=self._on_committed,
            on_failed=self._on_failed,
            max_history=self._max_history,
        )
        return self._loop

    def hand_over(self) -> None:
        """Give the submitted rows to the writer thread, which commits them together."""
        pending, self._pending = self._pending, None
        if pending is not None and self._writer is not None:
            self._writer.put(pending)

    def _on_committed(self, batches: list[Batch]) -> None:
        was_idle = not self._committed
        self._committed.extend(future for batch in batches for future in batch.futures)
        if was_idle:
            self._complete_futures()

    def _complete_futures(self, at_once: int = _COMPLETED_AT_ONCE) -> None:
        """Complete some futures in order, and schedule the rest, so that other requests are served in between."""
        for _ in range(min(at_once, len(self._committed))):
            future = self._committed.popleft()
            if not future.done():
                future.set_result(None)
        if self._committed and self._loop is not None:
            self._loop.call_soon(self._complete_futures)

    def _on_failed(self, batches: list[Batch], error: StorageError) -> None:
        """Start a new generation: all changes decided before this moment fail."""
        futures = [future for batch in batches for future in batch.futures]
        is_first_report = batches[0].generation == self._generation
        if is_first_report:
            self._generation += 1
            if self._pending is not None:
                futures.extend(self._pending.futures)
                self._pending.futures.clear()
                self._pending.changes.clear()
                self._pending = None
        try:
            if is_first_report and self.on_failure is not None:
                self.on_failure(error)
        finally:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
