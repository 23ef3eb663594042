"""Writes positions and offset syncs beside the copying: where they are taken slowly, or not at all, nobody waits."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.client.connection import ApiMissingError, ConnectionLostError
from klamm.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.mirror.copy.source_offset_store import PositionStore
    from klamm.mirror.groups.offset_sync_writer import SyncWriter
    from klamm.mirror.source_offsets import SourceOffset
    from klamm.protocol.records import Record
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)

_REFUSALS: Final = (ConnectionLostError, ApiMissingError, ProtocolError)


class _Outcome(NamedTuple):
    """What became of what was to be written."""

    positions: Mapping[PartitionTuple, SourceOffset]
    """Those that are on the target."""
    syncs: Exception | None
    """Why the offset syncs are not."""


class PositionWriter:
    """Writes in a thread of its own, one bundle after the other. Its methods are for the copier's thread alone.

    A failure is no loss: positions and syncs are written later, or records are copied again.
    """

    def __init__(self, store: PositionStore, syncs: SyncWriter | None, *, flow: str) -> None:
        """Make one.

        Args:
            store: where positions go; nobody else uses it while ``is_busy``.
            syncs: what offset syncs are due, and where they go; None: nobody wants them.
            flow: to be named in the log.
        """
        self._store = store
        self._syncs = syncs
        self._flow = flow
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="positions")
        self._running: Future[_Outcome] | None = None
        self._told = ""
        """Why positions are not written, as the log has it; confined to the thread that writes."""

    @property
    def is_busy(self) -> bool:
        """Tell whether something is being written, or was and nobody has collected it."""
        return self._running is not None

    def begin(self, positions: Mapping[PartitionTuple, SourceOffset]) -> None:
        """Begin to write positions and the offset syncs that are due; not while ``is_busy``.

        Args:
            positions: by source topic and partition.
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
                self._told = ""
        except _REFUSALS as error:
            if str(error) != self._told:
                logger.warning("%s: positions could not be written: %s", self._flow, error)
                self._told = str(error)
            positions = {}
        return _Outcome(positions, refusal)

    def collect(self, *, wait: bool = False) -> Mapping[PartitionTuple, SourceOffset]:
        """Return the positions that are on the target since this was asked last; with ``wait`` when that is decided."""
        running = self._running
        if running is None or not (wait or running.done()):
            return {}
        self._running = None
        outcome = running.result()
        if self._syncs is not None:
            self._syncs.settle(outcome.syncs)
        return outcome.positions

    def close(self) -> None:
        """Wait for what is being written."""
        self.collect(wait=True)
        self._thread.shutdown()
