"""Background writer of source offsets and offset syncs, so that a slow or failing write does not delay the copying."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.progress.logged_reasons import LoggedReasons
from klamm.protocol.errors import ProtocolError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.mirror.copy.offset_sync_writer import SyncWriter
    from klamm.mirror.copy.source_offset_store import SourceOffsetStore
    from klamm.mirror.records.source_offsets import SourceOffset
    from klamm.protocol.records import Record
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)

_REFUSALS: Final = (ConnectionLostError, UnsupportedVersionError, ProtocolError)


class _Outcome(NamedTuple):
    """Result of one write."""

    positions: Mapping[PartitionTuple, SourceOffset]
    """Source offsets that are on the target."""
    syncs: Exception | None
    """Error that kept the offset syncs from being written. None: they are written."""


class SourceOffsetWriter:
    """Writer with its own thread, which writes one bundle at a time. Call its methods from the copier's thread only.

    A failed write loses nothing: source offsets and syncs are written later, or records are copied again.
    """

    def __init__(self, store: SourceOffsetStore, syncs: SyncWriter | None, *, flow: str) -> None:
        """Start the writer thread.

        Args:
            store: Store of the source offsets. Used by this writer only while ``is_busy``.
            syncs: Offset syncs to write and where they go. None: no offset syncs are written.
            flow: Name of the flow, for log messages.
        """
        self._store = store
        self._syncs = syncs
        self._flow = flow
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="positions")
        self._running: Future[_Outcome] | None = None
        self._logged = LoggedReasons()
        """Logged reasons of failed writes. Confined to the writer thread."""

    @property
    def is_busy(self) -> bool:
        """Return whether a write is running, or its result was not collected yet."""
        return self._running is not None

    def begin(self, positions: Mapping[PartitionTuple, SourceOffset]) -> None:
        """Start to write source offsets and the offset syncs that are due. Not allowed while ``is_busy``.

        Args:
            positions: Source offsets by source topic and partition number.
        """
        syncs = [] if self._syncs is None else self._syncs.take()
        if positions or syncs:
            self._running = self._thread.submit(self._write, positions, syncs)

    def _write(self, positions: Mapping[PartitionTuple, SourceOffset], syncs: Sequence[Record]) -> _Outcome:
        refusal: Exception | None = None
        if self._syncs is not None and syncs:
            try:
                self._syncs.send(syncs)
            except _REFUSALS as error:
                refusal = error
        try:
            if positions:
                self._store.write(positions)
                self._logged.clear()
        except _REFUSALS as error:
            if self._logged.is_new(str(error)):
                logger.warning("%s: source offsets could not be committed: %s", self._flow, error)
            positions = {}
        return _Outcome(positions, refusal)

    def collect(self, *, wait: bool = False) -> Mapping[PartitionTuple, SourceOffset]:
        """Return the source offsets written since the last call.

        Args:
            wait: Whether to wait for the running write.
        """
        running = self._running
        if running is None or not (wait or running.done()):
            return {}
        self._running = None
        outcome = running.result()
        if self._syncs is not None:
            self._syncs.settle(outcome.syncs)
        return outcome.positions

    def close(self) -> None:
        """Wait for the running write and end the thread."""
        self.collect(wait=True)
        self._thread.shutdown()
