"""Allocation of producer ids that are unique also across crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.storage.metadata.changes import PutSetting

if TYPE_CHECKING:
    from klamm.storage.metadata.store import MetadataStore

SETTING: Final = "next_producer_id"
BLOCK_SIZE: Final = 1000
"""Number of ids reserved by one durable write. The rest of a block is lost at a restart."""


class ProducerIdAllocator:
    """Allocator of producer ids from durably reserved blocks. Used on the event loop only."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = self._reserved = 0
        self.load()

    def load(self) -> None:
        """Continue after the largest id that was ever reserved."""
        stored = {setting.name: setting.value for setting in self._store.load_settings()}
        self._next = self._reserved = max(int(stored.get(SETTING, "0")), self._reserved)

    async def allocate(self) -> int:
        """Return an id that was never allocated before.

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
