"""The metadata store: changes are queued in order, one thread commits what is queued in one durable transaction.

This is the *record* of decide -> record -> reply: a service applies its change to its image in memory, calls
``submit`` without an await in between, and awaits the returned future before it replies. While one commit waits for
the disk the next ones gather, so thousands of changes a second share a few hundred fsyncs.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.protocol.errors import StorageError
from klamm.storage import statements, transaction_rows
from klamm.storage.errors import DataDirectoryError
from klamm.storage.lock import make_durable_directory
from klamm.storage.schema import Database, connect_sqlite, create_or_migrate, open_connection
from klamm.storage.writer import Batch, CommitWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from klamm.storage.changes import (
        Change,
        PutAcl,
        PutClientConfig,
        PutConfig,
        PutDecision,
        PutGroup,
        PutGroupOffset,
        PutHistory,
        PutPendingOffset,
        PutQuota,
        PutScramCredential,
        PutSetting,
        PutTopic,
        PutTransaction,
    )

T = TypeVar("T")

METADATA_FILE_NAME: Final = "metadata.sqlite"
_TOLD_AT_ONCE: Final = 32
"""Changes whose ends others do not wait for: what follows a change is done when it is told."""


class MetadataStore:
    """Durable metadata of a broker. Confined to one event loop; only the writer thread is hidden inside.

    A commit that fails (disk full, I/O error) fails every change that was submitted until the event loop learns of it,
    because those were decided on images that held the failed ones. Then ``on_failure`` runs, still before any waiter
    sees its error, and the store goes on with what is submitted afterwards.
    """

    def __init__(
        self, path: Path, *, connect: Callable[[Path], Database] = connect_sqlite, max_history: int = 0
    ) -> None:
        self._max_history = max_history
        self.on_failure: Callable[[StorageError], None] | None = None
        """Called in the event loop after a failed commit; rebuilds the images by the ``load_`` methods."""
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
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        max_history: int = 0,
    ) -> MetadataStore:
        """Open the database file at ``path``, made or migrated as needed.

        Args:
            path: the file; missing directories are created.
            connect: opens a connection; crash tests pass their own.
            now_ms: wall clock, milliseconds since the epoch.
            max_history: how many lines of who changed what are kept; 0 keeps all.

        Raises:
            UnknownFormatError: a newer klamm wrote the file, or it is no database of klamm.
            DataDirectoryError: the file cannot be opened or written.
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
        """How many transactions this store has committed since it was opened."""
        return 0 if self._writer is None else self._writer.commits

    def submit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Queue changes; the future is done when they are on disk, all or none of them.

        Commits happen strictly in the order of submission. An empty sequence is done when everything before it is.
        A cancelled future does not take its changes back.

        Raises:
            StorageError: the store is closed. A failed commit is raised by the future.
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
            loop.call_soon(self._hand_over)
        pending.changes.extend(changes)
        pending.futures.append(future)
        return future

    async def close(self) -> None:
        """Commit what is queued, then close the file; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._hand_over()
        if self._writer is not None:
            await asyncio.to_thread(self._writer.stop)
            # The writer's last news were queued on the loop before the thread ended; let them arrive.
            await asyncio.sleep(0)
            self._tell_committed(at_once=len(self._committed))
        self._reader.close()

    def load_topics(self) -> list[PutTopic]:
        """Return all topics by name."""
        return self._read(statements.read_topics)

    def load_configs(self) -> list[PutConfig]:
        """Return all dynamic configs by resource and name."""
        return self._read(statements.read_configs)

    def load_client_configs(self) -> list[PutClientConfig]:
        """Return all client configs by entity and name."""
        return self._read(statements.read_client_configs)

    def load_groups(self) -> list[PutGroup]:
        """Return all groups by id."""
        return self._read(statements.read_groups)

    def load_group_offsets(self) -> list[PutGroupOffset]:
        """Return all committed offsets by group, topic id and partition."""
        return self._read(statements.read_group_offsets)

    def load_transactions(self) -> list[PutTransaction]:
        """Return what is stored of transactional ids, by id."""
        return self._read(transaction_rows.read_transactions)

    def load_decisions(self) -> list[PutDecision]:
        """Return how the transactions ended whose markers may not be durable, in the order of the decisions."""
        return self._read(transaction_rows.read_decisions)

    def load_pending_offsets(self) -> list[PutPendingOffset]:
        """Return all offsets that wait for the end of their transaction."""
        return self._read(transaction_rows.read_pending_offsets)

    def load_settings(self) -> list[PutSetting]:
        """Return all settings by name."""
        return self._read(statements.read_settings)

    def load_quotas(self) -> list[PutQuota]:
        """Return all client quotas by entity and name."""
        return self._read(statements.read_quotas)

    def load_acls(self) -> list[PutAcl]:
        """Return all access control entries by resource."""
        return self._read(statements.read_acls)

    def load_scram_credentials(self) -> list[PutScramCredential]:
        """Return all SCRAM credentials by user and mechanism."""
        return self._read(statements.read_scram_credentials)

    def load_history(self, *, resource: str | None = None, limit: int = 1000) -> list[PutHistory]:
        """Return the newest ``limit`` lines of who changed what, the newest first; None means every resource."""
        return self._read(lambda database: statements.read_history(database, resource=resource, limit=limit))

    def _read(self, query: Callable[[Database], list[T]]) -> list[T]:
        try:
            return query(self._reader)
        except sqlite3.Error as error:
            raise StorageError(f"Cannot read {self._path}: {error}") from error

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

    def _hand_over(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None and self._writer is not None:
            self._writer.put(pending)

    def _on_committed(self, batches: list[Batch]) -> None:
        was_idle = not self._committed
        self._committed.extend(future for batch in batches for future in batch.futures)
        if was_idle:
            self._tell_committed()

    def _tell_committed(self, at_once: int = _TOLD_AT_ONCE) -> None:
        """Tell some of those who wait, in order; others are served before the rest is told."""
        for _ in range(min(at_once, len(self._committed))):
            future = self._committed.popleft()
            if not future.done():
                future.set_result(None)
        if self._committed and self._loop is not None:
            self._loop.call_soon(self._tell_committed)

    def _on_failed(self, batches: list[Batch], error: StorageError) -> None:
        """Start a new generation: everything decided before this moment is void."""
        futures = [future for batch in batches for future in batch.futures]
        is_news = batches[0].generation == self._generation
        if is_news:
            self._generation += 1
            if self._pending is not None:
                futures.extend(self._pending.futures)
                self._pending.futures.clear()
                self._pending.changes.clear()
                self._pending = None
        try:
            if is_news and self.on_failure is not None:
                self.on_failure(error)
        finally:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
