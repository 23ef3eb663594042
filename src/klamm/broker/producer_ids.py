"""Producer ids: never given twice, also after a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.storage.changes import PutSetting

if TYPE_CHECKING:
    from klamm.storage.metadata import MetadataStore

SETTING: Final = "next_producer_id"
BLOCK_SIZE: Final = 1000
"""Ids reserved by one durable write; what is left of a block is lost at a restart."""


class ProducerIdAllocator:
    """Hands out producer ids from durably reserved blocks. Loop-confined."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = self._reserved = 0
        self.load()

    def load(self) -> None:
        """Go on behind every id that was ever reserved."""
        stored = {setting.name: setting.value for setting in self._store.load_settings()}
        self._next = self._reserved = max(int(stored.get(SETTING, "0")), self._reserved)

    async def allocate(self) -> int:
        """Return an id that nobody else has or had.

        Raises:
            StorageError: The reservation cannot be made durable.
        """
        while True:
            if self._next < self._reserved:
                self._next += 1
                return self._next - 1
            reserved = self._reserved + BLOCK_SIZE
            await self._store.submit([PutSetting(name=SETTING, value=str(reserved))])
            if reserved > self._reserved:
                self._next, self._reserved = max(self._next, self._reserved), reserved
