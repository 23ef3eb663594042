"""Fetch sessions (KIP-227): the broker remembers the requested partitions, and the client sends only changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.kafka_client.data.fetch import fetch_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from klamm.kafka_client.data.fetch import FetchLimits, WantedRecords
    from klamm.protocol.messages.fetch import FetchRequest

Key = tuple[str, int]
"""Topic and partition."""

_NO_SESSION: Final = 0
_FIRST_EPOCH: Final = 0
_LAST_EPOCH: Final = 0x7FFFFFFF


class FetchSessionHandler:
    """Client side of the fetch session with one broker. No I/O; one request at a time.

    A broker that creates no session, or does not support them (before version 7), responds with session id 0. It then
    gets a full request each time.
    """

    def __init__(self) -> None:
        self._session_id = _NO_SESSION
        self._epoch = _FIRST_EPOCH
        self._wanted: dict[Key, WantedRecords] = {}
        self._changed: dict[Key, WantedRecords] = {}
        self._forgotten: dict[Key, UUID] = {}
        self.names: dict[UUID, str] = {}
        """Topic names by id, for all partitions ever requested."""

    def __len__(self) -> int:
        """Return the number of partitions."""
        return len(self._wanted)

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the partitions."""
        return iter(tuple(self._wanted))

    def __contains__(self, key: Key) -> bool:
        """Return whether a partition is being fetched."""
        return key in self._wanted

    def offset(self, key: Key) -> int:
        """Return the next fetch offset of a partition, or -1 if it is not being fetched."""
        found = self._wanted.get(key)
        return -1 if found is None else found.fetch_offset

    def want(self, wanted: WantedRecords) -> None:
        """Add a partition to the next request, or change its fetch offset."""
        key = (wanted.topic, wanted.partition)
        if self._wanted.get(key) == wanted:
            return
        self.names[wanted.topic_id] = wanted.topic
        self._wanted[key] = self._changed[key] = wanted
        self._forgotten.pop(key, None)

    def forget(self, key: Key) -> None:
        """Remove a partition from the session."""
        wanted = self._wanted.pop(key, None)
        self._changed.pop(key, None)
        if wanted is not None:
            self._forgotten[key] = wanted.topic_id

    def reset(self) -> None:
        """Send a full request next time: the session is lost because the broker or its connection has changed."""
        self._session_id, self._epoch = _NO_SESSION, _FIRST_EPOCH

    def request(self, limits: FetchLimits, *, read_committed: bool) -> FetchRequest:
        """Return the next request. After sending it, call ``answered`` with the response's session id, or ``reset``."""
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
        """Advance the session after a response without a top-level error."""
        if session_id == _NO_SESSION:
            self.reset()
            return
        self._session_id = session_id
        self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
