"""Image of an internal topic, kept up to date while the gateway runs."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

from klamm.gateway.upstream.internal_topic import InternalTopicGoneError
from klamm.gateway.upstream.topic_worker import TopicWorker
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_words
from klamm.retries import LoggedReasons
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from klamm.gateway.upstream.internal_topic import InternalTopic
    from klamm.protocol.records import Record

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
_AT_ONCE: Final = 256
"""Number of new records that are applied between two looks at the clock. They take some milliseconds."""
_STALE_S: Final = 12 * 3600.0
"""Time without a successful read after which the topic is loaded again. Tombstones are kept for twice as long
(``delete.retention.ms``).
"""


class TopicImage(Protocol):
    """State that results from the records of a topic."""

    async def on_load(self, records: Sequence[Record], slices: TimeSlice) -> None:
        """Replace the state by that of all records of the topic, at once, after any pauses."""
        ...

    def on_records(self, records: Sequence[Record]) -> None:
        """Apply further records."""
        ...


class FollowedTopic:
    """Reader of an internal topic: all records at first, then each new one. Used on the event loop only.

    Blocking calls run in a separate thread. Records may also come from another reader of the same topic, by
    ``take``; each is applied once, in the order of the log.

    Args:
        topic: The topic. It is used in the reader's thread only.
    """

    def __init__(self, topic: InternalTopic) -> None:
        self.name = topic.name
        """Name of the topic."""
        self._image: TopicImage | None = None
        self._topic = topic
        self._worker = TopicWorker(topic.name, topic.close)
        self._loaded = asyncio.Event()
        self._read_at = 0.0
        self.failure = ""
        """Why the topic cannot be read at present; empty if it can."""
        self.position = 0
        """Offset of the next record to apply."""
        self.loads = 0
        """Number of times that the image was replaced. Positions of different loads cannot be compared."""

    @property
    def is_loaded(self) -> bool:
        """Return whether the image has been loaded."""
        return self._loaded.is_set()

    def start(self, image: TopicImage, create: Callable[[], Awaitable[None]]) -> None:
        """Load the topic into an image, then apply new records until ``close``.

        Args:
            image: The image.
            create: Coroutine function that creates the topic if it does not exist.
        """
        self._image = image
        self._worker.start(self._run(image, create), "Client configs: a task")

    async def loaded(self, timeout_s: float) -> bool:
        """Wait until the image is loaded; return whether it was loaded in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._loaded.wait()
        except TimeoutError:
            return False
        return True

    def take(self, records: Sequence[Record], position: int, *, load: int) -> None:
        """Apply the records that are new.

        Args:
            records: Records in the order of the log.
            position: Offset after them.
            load: ``loads`` at the time when they were requested.
        """
        if load != self.loads:
            return
        if self._image is not None and (new := [record for record in records if record.offset >= self.position]):
            self._image.on_records(new)
        self.position = max(self.position, position)

    async def close(self) -> None:
        """Stop reading, and close the connections."""
        await self._worker.close()

    async def _run(self, image: TopicImage, create: Callable[[], Awaitable[None]]) -> None:
        is_current = False
        failures = 0
        logged = LoggedReasons()
        while True:
            try:
                if not is_current or time.monotonic() - self._read_at > _STALE_S:
                    await create()
                    records, position = await self._worker.call(self._topic.load)
                    await image.on_load(records, TimeSlice())
                    self.position, self.loads = position, self.loads + 1
                    self._loaded.set()
                    is_current = True
                else:
                    load = self.loads
                    records, position = await self._worker.call(self._topic.poll, self.position)
                    slices = TimeSlice()
                    for at in range(0, len(records), _AT_ONCE):
                        some = records[at : at + _AT_ONCE]
                        self.take(some, some[-1].offset + 1, load=load)
                        await slices.give_way()
                    self.take((), position, load=load)
                self._read_at = time.monotonic()
                failures, self.failure = 0, ""
                logged.clear()
            except (*CLUSTER_ERRORS, InternalTopicGoneError) as error:
                is_current = is_current and not isinstance(error, InternalTopicGoneError)
                self.failure = error_words(error)
                failures += 1  # the first may only mean that a broker does not know a new topic yet
                if failures > 1 and logged.is_new(str(error)):
                    logger.warning("Internal topic %s cannot be read, trying again: %s", self.name, error)
                await asyncio.sleep(_RETRY_S)
