"""Topics of the upstream for the gateway's page: requested with its own credentials, and kept for some seconds."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from klamm.admin import ConfigResource
from klamm.display import counted
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_words
from klamm.page.topics import config_documents, is_internal_name
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.admin import AdminClient, TopicDescription
    from klamm.page.views import Document

NAMES_KEPT_S: Final = 30.0
"""Seconds between two listings of all topics. With 10,000 topics a listing is a response of megabytes."""
TOPICS_KEPT_S: Final = 10.0
"""Seconds for which partitions and configs of a topic are kept."""
MAX_REQUESTS: Final = 10
"""Number of times that topics are described within ``TOPICS_KEPT_S``, however many pages are requested."""
MAX_KEPT: Final = 1000
_RETRY_S: Final = 5.0
_ASK_MS: Final = 3000


class UpstreamTopics:
    """Names, partitions and configs of the upstream's topics. Used on the event loop only.

    Args:
        admin: Admin client with the gateway's own credentials.
        now: Monotonic clock, in seconds.
    """

    def __init__(self, admin: AdminClient, now: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._now = now
        self._turn = asyncio.Lock()
        self._names: Sequence[str] = ()
        self._next_listing = -float("inf")
        self._documents: OrderedDict[str, tuple[float, Document]] = OrderedDict()
        self._described_at: deque[float] = deque(maxlen=MAX_REQUESTS)
        self.failure: str | None = None
        """Reason why the latest listing failed. The topics of the listing before it are shown."""

    async def names(self) -> Sequence[str]:
        """Return the names of all topics that the gateway's principal may describe: sorted, internal topics last."""
        async with self._turn:
            if self._now() >= self._next_listing:
                try:
                    names = await self._admin.list_topics(include_internal=True, timeout_ms=_ASK_MS)
                    self._names = sorted(names, key=lambda name: (is_internal_name(name), name))
                except CLUSTER_ERRORS as error:
                    self.failure = error_words(error)
                    self._next_listing = self._now() + _RETRY_S
                else:
                    self.failure = None
                    self._next_listing = self._now() + NAMES_KEPT_S
            return self._names

    async def documents(self, names: Sequence[str]) -> list[Document]:
        """Return partitions and configs of some topics as JSON objects. ``problem`` says why they are unknown."""
        async with self._turn:
            earliest = self._now() - TOPICS_KEPT_S
            wanted = [name for name in names if self._documents.get(name, (earliest, {}))[0] <= earliest]
            if wanted and self._may_describe(earliest):
                self._described_at.append(self._now())
                for name, document in zip(wanted, await self._describe(wanted), strict=True):
                    self._documents[name] = self._now(), document
                    self._documents.move_to_end(name)
            unknown = "too many requests, reload in some seconds"
            descriptions = [
                self._documents[name][1] if name in self._documents else _unknown(name, unknown) for name in names
            ]
            while len(self._documents) > MAX_KEPT:
                self._documents.popitem(last=False)
        return descriptions

    def _may_describe(self, earliest: float) -> bool:
        return len(self._described_at) < MAX_REQUESTS or self._described_at[0] <= earliest

    async def _describe(self, names: Sequence[str]) -> list[Document]:
        resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}
        topics = self._admin.describe_topics(names, timeout_ms=_ASK_MS).values()
        configs = self._admin.describe_configs(list(resources.values()), timeout_ms=_ASK_MS).values()
        documents = []
        for name in names:
            document = _unknown(name, None)
            try:
                document |= _partitions(await topics[name])
                document["configs"] = config_documents((await configs[resources[name]]).values())
            except CLUSTER_ERRORS as error:
                document["problem"] = error_words(error)
            documents.append(document)
        return documents


def _unknown(name: str, problem: str | None) -> Document:
    return {
        "name": name,
        "partitions": None,
        "leaderless": None,
        "under_replicated": None,
        "configs": None,
        "problem": problem,
    }


def _partitions(topic: TopicDescription) -> Document:
    return {
        "partitions": len(topic.partitions),
        "leaderless": sum(partition.leader < 0 for partition in topic.partitions),
        "under_replicated": sum(len(partition.isr) < len(partition.replicas) for partition in topic.partitions),
    }


def state_of(topic: Document) -> str:
    """Return the state of a topic in words."""
    if topic["partitions"] is None:
        return topic["problem"] or "unknown"
    if topic["leaderless"]:
        return f"{counted(topic['leaderless'], 'partition')} without a leader"
    if topic["under_replicated"]:
        return f"{counted(topic['under_replicated'], 'partition')} under-replicated"
    return topic["problem"] or "in sync"
