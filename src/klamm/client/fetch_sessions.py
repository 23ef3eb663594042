"""Fetch sessions (KIP-227): a broker keeps what a client asks for, and is told only what changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.client.fetch import fetch_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from klamm.client.fetch import FetchLimits, WantedRecords
    from klamm.protocol.messages.fetch import FetchRequest

Key = tuple[str, int]
"""A topic and a partition."""

_NO_SESSION: Final = 0
_FIRST_EPOCH: Final = 0
_LAST_EPOCH: Final = 0x7FFFFFFF


class FetchSessionHandler:
    """What one broker is asked for again and again. No I/O; one request at a time.

    A broker that keeps no session, or knows none (before version 7), answers with the session id 0 and is told
    everything each time.
    """

    def __init__(self) -> None:
        self._session_id = _NO_SESSION
        self._epoch = _FIRST_EPOCH
        self._wanted: dict[Key, WantedRecords] = {}
        self._changed: dict[Key, WantedRecords] = {}
        self._forgotten: dict[Key, UUID] = {}
        self.names: dict[UUID, str] = {}
        """Topic names by id, of all that was ever wanted."""

    def __len__(self) -> int:
        """Count the partitions."""
        return len(self._wanted)

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the partitions."""
        return iter(tuple(self._wanted))

    def __contains__(self, key: Key) -> bool:
        """Tell whether a partition is wanted."""
        return key in self._wanted

    def offset(self, key: Key) -> int:
        """Return from where on a partition is wanted; -1: it is not."""
        found = self._wanted.get(key)
        return -1 if found is None else found.fetch_offset

    def want(self, wanted: WantedRecords) -> None:
        """Ask for a partition from the next request on, or from another offset."""
        key = (wanted.topic, wanted.partition)
        if self._wanted.get(key) == wanted:
            return
        self.names[wanted.topic_id] = wanted.topic
        self._wanted[key] = self._changed[key] = wanted
        self._forgotten.pop(key, None)

    def forget(self, key: Key) -> None:
        """Ask for a partition no more."""
        wanted = self._wanted.pop(key, None)
        self._changed.pop(key, None)
        if wanted is not None:
            self._forgotten[key] = wanted.topic_id

    def reset(self) -> None:
        """Tell everything anew with the next request: the broker, or its connection, is another one."""
        self._session_id, self._epoch = _NO_SESSION, _FIRST_EPOCH

    def request(self, limits: FetchLimits, *, read_committed: bool) -> FetchRequest:
        """Return the next request; whoever sends it calls ``answered`` with what comes back, or ``reset``."""
        is_full = self._epoch == _FIRST_EPOCH
        wanted = self._wanted if is_full else self._changed
        request = fetch_request(
            list(wanted.values()),
            limits,
            read_committed=read_committed,
            session_id=self._session_id,
            session_epoch=self._epoch,
            forgotten={} if is_full else self._forgotten,
        )
        self._changed, self._forgotten = {}, {}
        return request

    def answered(self, session_id: int) -> None:
        """Note an answer without an error of its own."""
        if session_id == _NO_SESSION:
            self.reset()
            return
        self._session_id = session_id
        self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
