"""Replies to heartbeats of consumer groups that are held back until another member has given up partitions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from klamm.broker.groups.consumer.model import Assignment

_Partition: TypeAlias = "tuple[UUID, int]"


class HeldReplies:
    """Held replies of one group, by the partitions that they wait for. Used on the event loop only."""

    def __init__(self) -> None:
        self._waiting: dict[_Partition, asyncio.Future[bool]] = {}
        self._has_ended = False

    async def wait(self, partitions: Sequence[_Partition], timeout_s: float) -> bool:
        """Wait until one of the partitions is released, and return whether it was."""
        if self._has_ended:
            return False
        released: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.update(dict.fromkeys(partitions, released))
        try:
            async with asyncio.timeout(timeout_s):
                return await released
        except TimeoutError:
            return False
        finally:
            for partition in partitions:
                if self._waiting.get(partition) is released:
                    del self._waiting[partition]

    def release(self, partitions: Assignment) -> None:
        """End the waits for some partitions, which have no owner now."""
        if not self._waiting:
            return
        for topic_id, indexes in partitions.items():
            for index in indexes:
                _end(self._waiting.get((topic_id, index)), is_released=True)

    def end(self) -> None:
        """End all waits without success, also those that would begin later."""
        self._has_ended = True
        for released in self._waiting.values():
            _end(released, is_released=False)


def _end(released: asyncio.Future[bool] | None, *, is_released: bool) -> None:
    if released is not None and not released.done():
        released.set_result(is_released)
