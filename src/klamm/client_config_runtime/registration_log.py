"""Registrations of clients (KIP-649): an internal topic that grows only by new facts, and its image in memory."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import field
from typing import TYPE_CHECKING, Final, Protocol

from klamm.client_config_runtime.skipped_records import SkippedRecords
from klamm.client_configs.json_records import RecordFormatError
from klamm.client_configs.registrations import (
    TOPIC,
    Registration,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from klamm.lazy_dataclass import dataclass
from klamm.server.time_slice import TimeSlice, run_at_once

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.client_configs.description import Compatibility
    from klamm.client_configs.entities import ClientConfigEntity

logger = logging.getLogger(__name__)

MAX_ENTITIES: Final = 100_000
MAX_VERSIONS_PER_ENTITY: Final = 100
MAX_LISTS_PER_VERSION: Final = 16
MAX_BYTES: Final = 128 * 1024 * 1024
"""Maximum total size of all records' keys and values, in bytes. Names of clients and of configs may be long."""


class RegistrationRecords(Protocol):
    """Records of the registration topic."""

    def read_all(self) -> Iterable[tuple[bytes | None, bytes | None]]:
        """Return key and value of every record, oldest first; nothing when the topic does not exist."""
        ...

    async def append(self, key: bytes, value: bytes) -> None:
        """Append a record.

        Raises:
            KafkaApiError: The record cannot be written.
        """
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class _Append:
    """Append of a registration."""

    ended: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None
    """Why it failed. None: it did not, or it was canceled."""


class RegistrationLog:
    """All registrations. Used on the event loop only.

    One software version of an entity may register several lists of keys, for example a producer and a consumer with the
    same client id. The version then supports their union. Only a new list is written as a record, so a client that
    restarts a thousand times leaves one record. The limits keep a faulty client from filling memory and disk.

    ==================  ==========================================================================================
    Event               Effect
    ==================  ==========================================================================================
    register            The image is updated first. A second client with the same list waits for the append of the
                        first one and has its outcome, so that only one record is written.
    append fails        The registration is removed from the image, so that the next attempt writes it.
    append canceled     As above, and the next client that waits appends the record.
    topic deleted       ``replay`` empties the image. A registration whose append was in progress is added again.
    limit reached       The registration is dropped. This is logged once.
    ==================  ==========================================================================================
    """

    def __init__(
        self, records: RegistrationRecords, *, max_entities: int = MAX_ENTITIES, max_bytes: int = MAX_BYTES
    ) -> None:
        self._records = records
        self._max_entities = max_entities
        self._max_bytes = max_bytes
        self._bytes: dict[ClientConfigEntity, int] = {}
        self._bytes_total = 0
        self._lists: dict[ClientConfigEntity, dict[str, set[frozenset[str]]]] = {}
        self._image: dict[ClientConfigEntity, dict[str, tuple[str, ...]]] = {}
        self.skipped = SkippedRecords(TOPIC)
        """Records that cannot be read."""
        self._is_full = False
        self._appends: dict[tuple[ClientConfigEntity, str, frozenset[str]], _Append] = {}
        """Appends in progress, by entity, client information and supported keys."""
        self._appending = asyncio.Lock()
        """Serializes appends, because the first one creates the topic."""

    @property
    def image(self) -> Mapping[ClientConfigEntity, Compatibility]:
        """Supported keys by client information, for each ``<user, client-id>``."""
        return self._image

    def replay(self) -> None:
        """Rebuild the image from the records. Unreadable records are skipped and logged.

        This happens at start, and after the topic was deleted. An operator deletes it to see who registers from now on.
        """
        run_at_once(self.load(TimeSlice(math.inf)))

    async def load(self, slices: TimeSlice) -> None:
        """Rebuild the image as ``replay`` does, with pauses. It is replaced at the end, so it is complete at any time.

        Args:
            slices: Time slice of the load.
        """
        loaded = RegistrationLog(self._records, max_entities=self._max_entities, max_bytes=self._max_bytes)
        loaded.skipped, loaded._is_full = self.skipped, self._is_full
        self.skipped.begin()
        async for key, value in slices.over(self._records.read_all()):
            loaded.apply(key, value)
        self._lists, self._image, self._is_full = loaded._lists, loaded._image, loaded._is_full
        self._bytes, self._bytes_total = loaded._bytes, loaded._bytes_total

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Update the image by one record. A record that cannot be read is skipped and logged."""
        try:
            entity = decode_key(key)
            if value is None:
                self._lists.pop(entity, None)
                self._image.pop(entity, None)
                self._bytes_total -= self._bytes.pop(entity, 0)
            else:
                self._learn(decode_value(entity, value))
        except RecordFormatError as error:
            self.skipped.put((key, value), str(error))

    async def register(self, registered: Registration) -> None:
        """Record a registration. One that is known already, or exceeds a limit, writes nothing.

        Raises:
            KafkaApiError: The record cannot be written. After a StorageError the client may register again.
        """
        key = registered.entity, registered.client_information, frozenset(registered.supported_configs)
        while (earlier := self._appends.get(key)) is not None:
            await earlier.ended.wait()
            if earlier.error is not None:
                raise earlier.error.with_traceback(None)
        if not self._learn(registered):
            return
        self._appends[key] = append = _Append()
        try:
            async with self._appending:
                await self._records.append(encode_key(registered.entity), encode_value(registered))
        except BaseException as error:
            self._forget(registered)
            append.error = error if isinstance(error, Exception) else None
            raise
        finally:
            del self._appends[key]
            append.ended.set()
        self._learn(registered)  # the topic may have been deleted while the append waited

    def _learn(self, registered: Registration) -> bool:
        """Add a registration to the image; return whether it was new."""
        entity, information = registered.entity, registered.client_information
        versions = self._lists.get(entity, {})
        lists = versions.get(information, set())
        keys = frozenset(registered.supported_configs)
        if keys in lists:
            return False
        size = record_size(registered)
        if (
            (not versions and len(self._lists) >= self._max_entities)
            or (not lists and len(versions) >= MAX_VERSIONS_PER_ENTITY)
            or len(lists) >= MAX_LISTS_PER_VERSION
            or self._bytes_total + size > self._max_bytes
        ):
            self._log_once_that_it_is_full(registered)
            return False
        self._lists.setdefault(entity, {}).setdefault(information, set()).add(keys)
        self._count(entity, size)
        image = self._image.setdefault(entity, {})
        image[information] = tuple(dict.fromkeys((*image.get(information, ()), *registered.supported_configs)))
        return True

    def _count(self, entity: ClientConfigEntity, size: int) -> None:
        self._bytes[entity] = self._bytes.get(entity, 0) + size
        self._bytes_total += size

    def _log_once_that_it_is_full(self, registered: Registration) -> None:
        if not self._is_full:
            self._is_full = True
            logger.warning(
                "No room to register %s under %s: a limit is reached; further ones are not logged",
                registered.client_information,
                registered.entity,
            )

    def _forget(self, registered: Registration) -> None:
        """Remove a registration whose append failed, so that the next attempt writes it."""
        lists = self._lists.get(registered.entity, {}).get(registered.client_information, set())
        keys = frozenset(registered.supported_configs)
        if keys not in lists:  # the topic was deleted meanwhile
            return
        lists.discard(keys)
        self._count(registered.entity, -record_size(registered))
        left = tuple(
            key
            for key in self._image[registered.entity][registered.client_information]
            if any(key in keys for keys in lists)
        )
        self._image[registered.entity][registered.client_information] = left
        if not lists:
            del self._lists[registered.entity][registered.client_information]
            del self._image[registered.entity][registered.client_information]
        if not self._lists[registered.entity]:
            del self._lists[registered.entity], self._image[registered.entity], self._bytes[registered.entity]


def record_size(registered: Registration) -> int:
    """Return the size of a registration's key and value in bytes."""
    return len(encode_key(registered.entity)) + len(encode_value(registered))
