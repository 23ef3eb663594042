"""Contents of the broker's status page, read from its services when the page is requested.

A page has a bounded number of rows, and everything that grows with the number of partitions is done in time slices, so
that a page does not delay the requests of clients.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.client_config_runtime.view import CLIENTS_PAGE, client_documents, clients_document
from klamm.configs.values import format_value
from klamm.display import counted
from klamm.page.activity import activity_plots
from klamm.page.changes import MAX_CHANGES, changes_section
from klamm.page.clients import client_warnings, clients_section
from klamm.page.html import (
    DETAIL_ROWS,
    ROWS,
    UNKNOWN,
    Cell,
    Table,
    document,
    filter_form,
    first_of,
    link_to,
    page_of,
    section,
    short,
    shown,
    size_text,
    table,
    time_text,
    warning_list,
)
from klamm.page.plot import STYLE as PLOT_STYLE
from klamm.page.policies import policies_document, policies_section, policy_warnings
from klamm.page.topics import (
    config_documents,
    configs_section,
    is_internal_name,
    missing_topic,
    topics_document,
    topics_section,
)
from klamm.page.views import HTML, POLICIES_PAGE, TOPICS_PAGE, json_view
from klamm.protocol.types import ResourceType
from klamm.server.time_slice import TimeSlice
from klamm.storage.errors import DataDirectoryError
from klamm.storage.log.directories import segment_bytes
from klamm.storage.metadata.history import read_sound_history

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.broker.context import Services
    from klamm.broker.groups.coordinator import DescribedGroup
    from klamm.broker.topics.catalog import Topic
    from klamm.monitoring.http import View
    from klamm.page.activity import ActivitySampler
    from klamm.page.html import Query
    from klamm.page.views import Document
    from klamm.server.client_registry import ClientRegistry
    from klamm.storage.metadata.changes import PutGroupOffset

_MAX_DIRECTORIES: Final = 1000
"""Directories of closed logs whose sizes are read for one page. Sizes beyond them are lower bounds."""
_MAX_OPENED: Final = 100
"""Closed logs that are opened for one page to read their end. Lags beyond them are unknown."""
_FULL: Final = 0.95
"""Used share of a disk from which on the page has a warning. Blocks reserved for root do not count."""


class BrokerPage:
    """Status page of a broker. Used on the event loop only.

    Args:
        services: Services of the broker.
        client_registry: Connected and recently disconnected clients.
        activity: Requests, denials and waiting time of the last 15 minutes.
    """

    def __init__(self, services: Services, client_registry: ClientRegistry, activity: ActivitySampler) -> None:
        self._services = services
        self._client_registry = client_registry
        self._activity = activity

    @property
    def views(self) -> Mapping[str, View]:
        """Page and documents by path."""
        return {
            "/": self.render,
            CLIENTS_PAGE: json_view(self._clients_document),
            POLICIES_PAGE: json_view(self._policies_document),
            TOPICS_PAGE: json_view(self._topics_document),
        }

    async def render(self, query: Query) -> tuple[str, str]:
        """Return content type and text of the page for a query.

        Args:
            query: ``topic`` or ``group`` for the page of one of them; otherwise ``q`` filters the tables. ``tp``,
                ``gp``, ``cp`` and ``p`` are numbers of pages, from 1.
        """
        slices = TimeSlice()
        if (topic := query.get("topic")) is not None:
            parts = await self._topic_page(topic, query, slices)
        elif (group := query.get("group")) is not None:
            parts = await self._group_page(group, query, slices)
        else:
            parts = await self._overview(query, slices)
        return HTML, document("klamm broker", [await self._head(slices), *parts], style=PLOT_STYLE)

    async def _clients_document(self, _query: Query) -> Document:
        """Return the document of ``GET /clients.json``."""
        return clients_document(await self._clients(), at_ms=self._services.now_ms())

    async def _policies_document(self, _query: Query) -> Document:
        """Return the document of ``GET /policies.json``."""
        return {"version": 0, "at_ms": self._services.now_ms(), **policies_document(self._services.policies)}

    async def _topics_document(self, query: Query) -> Document:
        """Return the document of ``GET /topics.json``.

        Args:
            query: ``topic`` for all configs of one topic; otherwise ``q`` filters, and ``tp`` is the number of the
                page.
        """
        return await self._topics(query, TimeSlice(), DETAIL_ROWS)

    async def _head(self, slices: TimeSlice) -> str:
        services = self._services
        topics = await slices.listed(services.topics.all())
        partitions = sum(await slices.listed(len(topic.partitions) for topic in topics))
        at = time_text(services.now_ms() / 1000)
        counts = f"{counted(len(topics), 'topic')}, {counted(partitions, 'partition')}"
        cluster = shown(services.cluster.cluster_id)
        return f'<h1><a href="/">klamm broker</a></h1><p class="soft">cluster {cluster}, {counts}, {at}</p>'

    async def _overview(self, query: Query, slices: TimeSlice) -> list[str]:
        text = query.get("q", "")
        clients = await self._clients(connected_only=True)
        policies = policies_document(self._services.policies)
        return [
            warning_list([*await self._warnings(), *client_warnings(clients), *policy_warnings(policies)]),
            activity_plots(self._activity.samples, until_s=time.time()),
            filter_form(text, hint="part of a topic, group or client"),
            topics_section(await self._topics(query, slices, ROWS), query, facts=[("Size", "number", _size)]),
            section("Groups", table(await self._groups(text, query, slices), query)),
            clients_section(clients, query),
            policies_section(policies, query),
            await self._changes_section(query),
        ]

    async def _clients(self, *, connected_only: bool = False) -> list[Document]:
        services = self._services
        return await client_documents(
            self._client_registry, services.client_configs, services.enforcement, connected_only=connected_only
        )

    # -- warnings

    async def _warnings(self) -> list[str]:
        logs = self._services.logs
        warnings = first_of(self._services.client_configs.skipped)
        if logs.offline_count:
            warnings.append(f"{counted(logs.offline_count, 'partition')} offline because of a disk error")
        elif logs.flush_failures:
            warnings.append(f"{counted(logs.flush_failures, 'fsync')} failed since the start")
        try:
            directory = format_value(self._services.configs.broker_value("log.dirs") or "")
            room = await asyncio.to_thread(shutil.disk_usage, directory)
        except OSError as error:
            warnings.append(f"The data directory cannot be read: {error.strerror or error}")
        else:
            if room.used > _FULL * (room.used + room.free):
                warnings.append(f"The disk of the data directory has only {size_text(room.free)} left")
        return warnings

    async def _changes_section(self, query: Query) -> str:
        directory = Path(format_value(self._services.configs.broker_value("log.dirs") or ""))
        try:
            changes, damaged = await asyncio.to_thread(read_sound_history, directory, limit=MAX_CHANGES)
        except DataDirectoryError as error:
            return changes_section((), query, problem=str(error))
        return changes_section(changes, query, damaged=damaged)

    # -- topics

    async def _topics(self, query: Query, slices: TimeSlice, size: int) -> Document:
        """Return one page of the topics with the configs that they set; with ``topic``, one topic with all configs."""
        wanted, name = query.get("q", "").lower(), query.get("topic")
        everything = self._services.topics.all()
        topics = [
            topic
            async for topic in slices.over(everything)
            if (wanted in topic.name.lower() if name is None else topic.name == name)
        ]
        topics.sort(key=lambda topic: topic.is_internal or is_internal_name(topic.name))
        first, chosen = page_of(topics, query.get("tp"), size)
        sizes, partial = await self._sizes(chosen, slices)
        documents = []
        async for topic in slices.over(chosen):
            configs = self._topic_configs(topic)
            documents.append(
                {
                    "name": topic.name,
                    "partitions": len(topic.partitions),
                    "size_bytes": sizes[topic.name],
                    "size_is_lower_bound": topic.name in partial,
                    "configs": [each for each in configs if each["is_own"] or name is not None],
                }
            )
        return topics_document(documents, total=len(topics), first=first, at_ms=self._services.now_ms())

    def _topic_configs(self, topic: Topic) -> list[Document]:
        """Return all configs of a topic; none while it is being deleted."""
        if self._services.topics.get(topic.name) is None:
            return []
        configs = self._services.configs.describe(ResourceType.TOPIC, topic.name, None, node_id=topic.partitions[0][0])
        return config_documents(configs)

    async def _sizes(self, topics: Sequence[Topic], slices: TimeSlice) -> tuple[Mapping[str, int], set[str]]:
        """Return the size of each topic in bytes, and the topics for which it is a lower bound.

        Directories of closed logs are read in a thread.
        """
        opened: Counter[str] = Counter()
        closed: list[tuple[str, Path]] = []
        partial: set[str] = set()
        partitions = ((topic, index) for topic in topics for index in range(len(topic.partitions)))
        async for topic, index in slices.over(partitions):
            footprint = self._services.logs.footprint(topic.topic_id, index)
            if isinstance(footprint, int):
                opened[topic.name] += footprint
            elif footprint is not None and len(closed) < _MAX_DIRECTORIES:
                closed.append((topic.name, footprint))
            elif footprint is not None:
                partial.add(topic.name)
        for (name, _), size in zip(closed, await _read_sizes([path for _, path in closed]), strict=True):
            opened[name] += size
        return opened, partial

    async def _topic_page(self, name: str, query: Query, slices: TimeSlice) -> list[str]:
        topic = self._services.topics.get(name)
        if topic is None:
            return [missing_topic(name)]
        first, chosen = page_of(range(len(topic.partitions)), query.get("p"), DETAIL_ROWS)
        logs = self._services.logs
        offline = logs.offline_partitions(topic.topic_id)
        footprints = {index: logs.footprint(topic.topic_id, index) for index in chosen}
        paths = {index: path for index, path in footprints.items() if isinstance(path, Path)}
        sizes = dict(zip(paths, await _read_sizes(list(paths.values())), strict=True))
        rows = []
        async for index in slices.over(chosen):
            footprint = footprints[index]
            size = sizes.get(index, 0) if isinstance(footprint, Path) else footprint or 0
            log = logs.get(topic.topic_id, index) if index not in offline and index not in paths else None
            rows.append(
                (
                    Cell(str(index), kind="number"),
                    Cell(str(self._services.cluster.leader(topic.partitions[index])), kind="number"),
                    Cell(", ".join(map(str, topic.partitions[index])), kind="extra"),
                    Cell("-" if log is None else f"{log.log_start_offset:,}", kind="number"),
                    Cell("-" if log is None else f"{log.high_watermark:,}", kind="number"),
                    Cell(size_text(size), kind="number"),
                    Cell("offline" if index in offline else "closed" if index in paths else "open", kind="extra"),
                )
            )
        partitions = Table(
            heads=[
                ("Partition", "number"), ("Leader", "number"), ("Replicas", "extra"), ("Start offset", "number"),
                ("End offset", "number"), ("Size", "number"), ("Log", "extra"),
            ],
            rows=rows, total=len(topic.partitions), first=first, size=DETAIL_ROWS, parameter="p",
        )  # fmt: skip
        return [
            section(f"Topic {short(name)}", table(partitions, query)),
            configs_section(self._topic_configs(topic), query),
        ]

    # -- groups

    async def _groups(self, text: str, query: Query, slices: TimeSlice) -> Table:
        wanted = text.lower()
        everything = self._services.groups.list_groups()
        groups = [group async for group in slices.over(everything) if wanted in group.group_id.lower()]
        groups.sort(key=lambda group: group.group_id)
        first, chosen = page_of(groups, query.get("gp"), ROWS)
        rows, ends = [], _Ends(self._services)
        for group in chosen:
            lag, partitions = await self._lag(group, ends, slices)
            rows.append(
                (
                    Cell(group.group_id or "(empty)", link_to({"group": group.group_id}), "name"),
                    Cell(group.state.value),
                    Cell(f"{group.member_count:,}", kind="number"),
                    Cell(f"{partitions:,}", kind="number extra"),
                    Cell(UNKNOWN if lag is None else f"{lag:,}", kind="number"),
                )
            )
        heads = [("Group", ""), ("State", ""), ("Members", "number"), ("Partitions", "number extra"), ("Lag", "number")]
        empty = "No group." if not text else "No group has this in its name."
        return Table(heads=heads, rows=rows, total=len(groups), first=first, size=ROWS, parameter="gp", empty=empty)

    async def _lag(self, group: DescribedGroup, ends: _Ends, slices: TimeSlice) -> tuple[int | None, int]:
        """Return the lag of a group, None if it is unknown, and the number of partitions with committed offsets."""
        lag: int | None = 0
        partitions = 0
        async for commit in slices.over(self._commits(group.group_id)):
            partitions += 1
            end = ends.of(commit)
            lag = None if lag is None or end is None else lag + max(0, end - commit.offset)
        return lag, partitions

    def _commits(self, group_id: str) -> list[PutGroupOffset]:
        by_topic = self._services.groups.offsets.of_group(group_id)
        return [commit for commits in by_topic.values() for commit in commits.values()]

    async def _group_page(self, group_id: str, query: Query, slices: TimeSlice) -> list[str]:
        topics = self._services.topics
        named = [
            (topic.name if (topic := topics.by_id(commit.topic_id)) else "(deleted)", commit)
            async for commit in slices.over(self._commits(group_id))
        ]
        named.sort(key=lambda each: (each[0], each[1].partition))
        first, chosen = page_of(named, query.get("p"), DETAIL_ROWS)
        rows, ends = [], _Ends(self._services)
        async for name, commit in slices.over(chosen):
            end = ends.of(commit)
            rows.append(
                (
                    Cell(name, link_to({"topic": name}), "name"),
                    Cell(str(commit.partition), kind="number"),
                    Cell(f"{commit.offset:,}", kind="number"),
                    Cell(UNKNOWN if end is None else f"{end:,}", kind="number"),
                    Cell(UNKNOWN if end is None else f"{max(0, end - commit.offset):,}", kind="number"),
                )
            )
        content = Table(
            heads=[
                ("Topic", ""), ("Partition", "number"), ("Committed", "number"), ("End offset", "number"),
                ("Lag", "number"),
            ],
            rows=rows, total=len(named), first=first, size=DETAIL_ROWS, parameter="p", empty="No committed offsets.",
        )  # fmt: skip
        return [section(f"Group {short(group_id) or '(empty)'}", table(content, query))]


class _Ends:
    """Ends of partitions for one page. It opens a limited number of closed logs."""

    def __init__(self, services: Services) -> None:
        self._logs = services.logs
        self._opened = 0

    def of(self, commit: PutGroupOffset) -> int | None:
        """Return the high watermark of the partition of a committed offset, or None if it is unknown."""
        footprint = self._logs.footprint(commit.topic_id, commit.partition)
        if footprint is None or commit.partition in self._logs.offline_partitions(commit.topic_id):
            return None
        if isinstance(footprint, Path):
            self._opened += 1
            if self._opened > _MAX_OPENED:
                return None
        try:
            log = self._logs.get(commit.topic_id, commit.partition)
        except OSError:
            return None
        return None if log is None else log.high_watermark


async def _read_sizes(paths: Sequence[Path]) -> Sequence[int]:
    if not paths:
        return ()
    try:
        return await asyncio.to_thread(segment_bytes, paths)
    except OSError:  # a directory was removed meanwhile
        return [0] * len(paths)


def _size(topic: Document) -> str:
    return size_text(topic["size_bytes"], is_partial=topic["size_is_lower_bound"])
