"""The registrations of clients: an internal topic that only grows by what is new, and its image in memory."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from klamm.client_configs.registrations import (
    Registration,
    RegistrationFormatError,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.client_configs.describing import Compatibility
    from klamm.client_configs.entities import ClientConfigEntity

logger = logging.getLogger(__name__)

MAX_ENTITIES: Final = 100_000
MAX_VERSIONS_PER_ENTITY: Final = 100
MAX_LISTS_PER_VERSION: Final = 16
MAX_BYTES: Final = 128 * 1024 * 1024
"""Of keys and values of all records together: names of clients and of configs may be long."""


class RegistrationRecords(Protocol):
    """Where the records are kept."""

    def read_all(self) -> Iterable[tuple[bytes | None, bytes | None]]:
        """Return key and value of every record, oldest first; nothing when the topic does not exist yet."""
        ...

    async def append(self, key: bytes, value: bytes) -> None:
        """Append a record, after making the topic if need be. It need not be on disk when this returns."""
        ...


class RegistrationLog:
    """What is registered. Loop-confined.

    A software version of an entity may register several lists (an application has a producer and a consumer under one
    client id): it supports their union. Only a list that is new becomes a record, so a client that restarts a
    thousand times leaves one. The bounds keep a broken client from filling memory and disk.
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
        self._is_full = False
        self._appending = asyncio.Lock()
        """One append at a time: the first one makes the topic."""

    @property
    def image(self) -> Mapping[ClientConfigEntity, Compatibility]:
        """The supported keys by client information, per ``<user, client-id>``."""
        return self._image

    def replay(self) -> None:
        """Take the image from the records; a record that cannot be read is passed over and logged.

        At start, and when the topic was deleted: whoever does that wants to see who registers from now on.
        """
        self._lists.clear()
        self._image.clear()
        self._bytes.clear()
        self._bytes_total = 0
        for key, value in self._records.read_all():
            try:
                entity = decode_key(key)
                if value is None:
                    self._lists.pop(entity, None)
                    self._image.pop(entity, None)
                    self._bytes_total -= self._bytes.pop(entity, 0)
                else:
                    self._learn(decode_value(entity, value))
            except RegistrationFormatError as error:
                logger.warning("A registration record was passed over: %s", error)

    async def register(self, registered: Registration) -> None:
        """Remember a registration; what is known already, or beyond the bounds, writes nothing.

        Raises:
            StorageError: The disk refuses; the client may register again.
        """
        if not self._learn(registered):
            return
        try:
            async with self._appending:
                await self._records.append(encode_key(registered.entity), encode_value(registered))
        except BaseException:
            self._forget(registered)
            raise
        self._learn(registered)  # the topic may have been deleted while this one waited for it

    def _learn(self, registered: Registration) -> bool:
        """Take a registration into the image; returns whether it was new."""
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
            self._say_it_is_full(registered)
            return False
        self._lists.setdefault(entity, {}).setdefault(information, set()).add(keys)
        self._count(entity, size)
        image = self._image.setdefault(entity, {})
        image[information] = tuple(dict.fromkeys((*image.get(information, ()), *registered.supported_configs)))
        return True

    def _count(self, entity: ClientConfigEntity, size: int) -> None:
        self._bytes[entity] = self._bytes.get(entity, 0) + size
        self._bytes_total += size

    def _say_it_is_full(self, registered: Registration) -> None:
        if not self._is_full:
            self._is_full = True
            logger.warning(
                "No room to register %s under %s; this is said once", registered.client_information, registered.entity
            )

    def _forget(self, registered: Registration) -> None:
        """Take back one registration that could not be written, so that the next attempt writes it."""
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
    """Return how many bytes of key and value the record of a registration has."""
    return len(encode_key(registered.entity)) + len(encode_value(registered))
