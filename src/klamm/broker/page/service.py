"""Contents of the broker's status page, read from its services when the page is requested.

A page has a bounded number of rows, and everything that grows with the number of partitions is done in time slices, so
that a page does not delay the requests of clients.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections import Counter
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.broker.page.html import (
    Cell,
    Table,
    document,
    filter_form,
    link_to,
    section,
    short,
    shown,
    size_text,
    table,
    warning_list,
)
from klamm.client_config_runtime.view import Standing, join_unnamed, view_client
from klamm.configs.values import format_value
from klamm.display import counted
from klamm.protocol.types import ConfigSource, ResourceType
from klamm.server.time_slice import TimeSlice
from klamm.storage.log.directories import segment_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.broker.groups.coordinator import DescribedGroup
    from klamm.broker.services import Services
    from klamm.broker.topics.catalog import Topic
    from klamm.client_config_runtime.view import ClientView
    from klamm.configs.describe import DescribedConfig
    from klamm.server.client_registry import ClientRegistry
    from klamm.storage.metadata.changes import PutGroupOffset

    Query = Mapping[str, str]

Row = TypeVar("Row")

ROWS: Final = 25
"""Rows of a table on the overview."""
DECISIONS: Final = 10
"""Number of policy decisions on the overview."""
DETAIL_ROWS: Final = 100
"""Rows of a table on the page of one topic or group."""
_MAX_DIRECTORIES: Final = 1000
"""Directories of closed logs whose sizes are read for one page. Sizes beyond them are lower bounds."""
_MAX_OPENED: Final = 100
"""Closed logs that are opened for one page to read their end. Lags beyond them are unknown."""
_NUMBER: Final = re.compile("[0-9]{1,9}")
_FULL: Final = 0.95
_UNKNOWN: Final = "unknown"
_STANDINGS: Final = {
    Standing.IN_LINE: "good",
    Standing.ENFORCED: "good",
    Standing.PENDING: "wait",
    Standing.IGNORES: "bad",
}
_BEHIND: Final = {
    Standing.IGNORES: "cannot take configs that are set for them",
    Standing.PENDING: "have not fetched the latest configs yet",
}
_ACTIONS: Final = {"allow": "good", "refuse": "wait", "fail": "bad", "timeout": "bad"}


class BrokerPage:
    """Status page of a broker. Used on the event loop only.

    Args:
        services: Services of the broker.
        client_registry: Connected and recently disconnected clients.
    """

    def __init__(self, services: Services, client_registry: ClientRegistry) -> None:
        self._services = services
        self._client_registry = client_registry

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
        return "text/html; charset=utf-8", document("klamm broker", [await self._head(slices), *parts])

    async def _head(self, slices: TimeSlice) -> str:
        services = self._services
        topics = await slices.listed(services.topics.all())
        partitions = sum(await slices.listed(len(topic.partitions) for topic in topics))
        at = datetime.fromtimestamp(services.now_ms() / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        counts = f"{counted(len(topics), 'topic')}, {counted(partitions, 'partition')}"
        cluster = shown(services.cluster.cluster_id)
        return f'<h1><a href="/">klamm broker</a></h1><p class="soft">cluster {cluster}, {counts}, {at}</p>'

    async def _overview(self, query: Query, slices: TimeSlice) -> list[str]:
        text = query.get("q", "")
        clients, standings = await self._clients(text, query, slices)
        return [
            warning_list(await self._warnings(standings)),
            filter_form(text),
            section("Topics", table(await self._topics(text, query, slices), query)),
            section("Groups", table(await self._groups(text, query, slices), query)),
            section("Clients", table(clients, query)),
            section("Policies", self._policies(query)),
        ]

    # -- warnings

    async def _warnings(self, standings: Mapping[Standing, int]) -> list[str]:
        logs = self._services.logs
        found = []
        if logs.offline_count:
            found.append(f"{counted(logs.offline_count, 'partition')} offline because an fsync failed")
        elif logs.flush_failures:
            found.append(f"{counted(logs.flush_failures, 'fsync')} failed since the start")
        try:
            directory = format_value(self._services.configs.broker_value("log.dirs") or "")
            room = await asyncio.to_thread(shutil.disk_usage, directory)
        except OSError as error:
            found.append(f"The data directory cannot be read: {error.strerror or error}")
        else:
            if room.used > _FULL * room.total:
                found.append(f"The disk of the data directory has only {size_text(room.free)} left")
        for standing, what in _BEHIND.items():
            if count := standings.get(standing, 0):
                found.append(f"{counted(count, 'connected client')} {what}")
        failed: Counter[str] = Counter()
        for decided, count in self._services.policies.decisions.items():
            if decided.action in ("fail", "timeout"):
                failed[decided.policy] += count
        found += [f"Policy {name}: {counted(count, 'decision')} failed or timed out" for name, count in failed.items()]
        return found

    # -- topics

    async def _topics(self, text: str, query: Query, slices: TimeSlice) -> Table:
        wanted = text.lower()
        everything = self._services.topics.all()
        topics = [topic async for topic in slices.over(everything) if wanted in topic.name.lower()]
        first, chosen = _page_of(topics, query.get("tp"), ROWS)
        sizes = await self._sizes(chosen, slices)
        rows = []
        async for topic in slices.over(chosen):
            own = [f"{each.name}={each.value}" for each in self._topic_configs(topic) if _is_own(each)]
            rows.append(
                (
                    Cell(topic.name, link_to({"topic": topic.name}), "name"),
                    Cell(f"{len(topic.partitions):,}", kind="number"),
                    Cell(sizes[topic.name], kind="number"),
                    Cell(", ".join(own) or "-", kind="extra"),
                )
            )
        heads = [("Topic", ""), ("Partitions", "number"), ("Size", "number"), ("Configs of the topic", "extra")]
        empty = "No topic." if not text else "No topic has this in its name."
        return Table(heads=heads, rows=rows, total=len(topics), first=first, size=ROWS, parameter="tp", empty=empty)

    def _topic_configs(self, topic: Topic) -> Sequence[DescribedConfig]:
        """Return all configs of a topic; none while it is being deleted."""
        if self._services.topics.get(topic.name) is None:
            return ()
        node_id = topic.leader(0)
        return self._services.configs.describe(ResourceType.TOPIC, topic.name, None, node_id=node_id)

    async def _sizes(self, topics: Sequence[Topic], slices: TimeSlice) -> dict[str, str]:
        """Return the size of each topic as text. Directories of closed logs are read in a thread."""
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
        return {topic.name: size_text(opened[topic.name], is_partial=topic.name in partial) for topic in topics}

    async def _topic_page(self, name: str, query: Query, slices: TimeSlice) -> list[str]:
        topic = self._services.topics.get(name)
        if topic is None:
            return [section(f"Topic {short(name)}", '<p class="soft">There is no such topic.</p>')]
        first, chosen = _page_of(range(len(topic.partitions)), query.get("p"), DETAIL_ROWS)
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
                    Cell(str(topic.leader(index)), kind="number"),
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
        configs = sorted(self._topic_configs(topic), key=lambda each: (not _is_own(each), each.name))
        return [
            section(f"Topic {short(name)}", table(partitions, query)),
            section("Configs", table(_configs_table(configs), query)),
        ]

    # -- groups

    async def _groups(self, text: str, query: Query, slices: TimeSlice) -> Table:
        wanted = text.lower()
        everything = self._services.groups.list_groups()
        groups = [group async for group in slices.over(everything) if wanted in group.group_id.lower()]
        groups.sort(key=lambda group: group.group_id)
        first, chosen = _page_of(groups, query.get("gp"), ROWS)
        rows, ends = [], _Ends(self._services)
        for group in chosen:
            lag, partitions = await self._lag(group, ends, slices)
            rows.append(
                (
                    Cell(group.group_id or "(empty)", link_to({"group": group.group_id}), "name"),
                    Cell(group.state.value),
                    Cell(f"{group.member_count:,}", kind="number"),
                    Cell(f"{partitions:,}", kind="number extra"),
                    Cell(_UNKNOWN if lag is None else f"{lag:,}", kind="number"),
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
        first, chosen = _page_of(named, query.get("p"), DETAIL_ROWS)
        rows, ends = [], _Ends(self._services)
        async for name, commit in slices.over(chosen):
            end = ends.of(commit)
            rows.append(
                (
                    Cell(name, link_to({"topic": name}), "name"),
                    Cell(str(commit.partition), kind="number"),
                    Cell(f"{commit.offset:,}", kind="number"),
                    Cell(_UNKNOWN if end is None else f"{end:,}", kind="number"),
                    Cell(_UNKNOWN if end is None else f"{max(0, end - commit.offset):,}", kind="number"),
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

    # -- clients

    async def _clients(self, text: str, query: Query, slices: TimeSlice) -> tuple[Table, Mapping[Standing, int]]:
        """Return the table of clients, and the number of connected ones by standing."""
        service, wanted = self._services.client_configs, text.lower()
        seen = join_unnamed(tuple(client for client in self._client_registry.clients() if client.connections))
        standings: Counter[Standing] = Counter()
        found: list[ClientView] = []
        async for client in slices.over(seen):
            view = view_client(client, service.registered, service.resolve, self._services.enforcement.of_application)
            standings[view.standing] += 1
            if wanted in f"{client.principal} {client.client_id}".lower():
                found.append(view)
        first, chosen = _page_of(found, query.get("cp"), ROWS)
        heads = [
            ("Client", ""), ("Software", "extra"), ("Address", "extra word"), ("Runs", ""), ("Should run", ""),
            ("Can take", "extra"), ("Standing", ""),
        ]  # fmt: skip
        empty = "No client is connected." if not text else "No connected client has this in its name."
        rows = [_client_row(view) for view in chosen]
        content = Table(heads=heads, rows=rows, total=len(found), first=first, size=ROWS, parameter="cp", empty=empty)
        return content, standings

    # -- policies

    def _policies(self, query: Query) -> str:
        policies = self._services.policies
        counts = Table(
            heads=[("Policy", ""), ("Mode", ""), ("Action", ""), ("Decisions", "number")],
            rows=[
                (
                    Cell(decided.policy), Cell(decided.mode),
                    Cell(decided.action, kind=_ACTIONS.get(decided.action, "")),
                    Cell(f"{count:,}", kind="number"),
                )
                for decided, count in sorted(policies.decisions.items())
            ],
            total=len(policies.decisions),
            empty="No decision yet." if policies.guards else "No policy is configured.",
        )  # fmt: skip
        latest = Table(
            heads=[("Time (UTC)", ""), ("Policy", ""), ("Action", ""), ("Subject", ""), ("Asked by", "extra"),
                   ("Reason", "extra")],
            rows=[
                (
                    Cell(datetime.fromtimestamp(each.at_s, UTC).strftime("%H:%M:%S")),
                    Cell(each.decided.policy, kind="word"),
                    Cell(each.decided.action, kind=_ACTIONS.get(each.decided.action, "")),
                    Cell(short(each.subject)),
                    Cell(f"{each.principal} ({each.client_id})", kind="extra"),
                    Cell(each.reason or "-", kind="extra"),
                )
                for each in islice(reversed(policies.latest), DECISIONS)
            ],
            total=len(policies.latest),
        )  # fmt: skip
        return table(counts, query) + (f"<h3>Last decisions</h3>{table(latest, query)}" if policies.latest else "")


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


def _page_of(rows: Sequence[Row], number: str | None, size: int) -> tuple[int, Sequence[Row]]:
    """Return the number of rows before a page, and the rows of the page. Any other number means the first page."""
    wanted = int(number) if number is not None and _NUMBER.fullmatch(number) else 1
    first = (wanted - 1) * size
    if not 0 <= first < len(rows):
        first = 0
    return first, rows[first : first + size]


def _is_own(config: DescribedConfig) -> bool:
    return config.source == ConfigSource.DYNAMIC_TOPIC_CONFIG


def _configs_table(configs: Sequence[DescribedConfig]) -> Table:
    rows = [
        (
            Cell(each.name, kind="name"),
            Cell("(hidden)" if each.is_sensitive else "-" if each.value is None else each.value),
            Cell(ConfigSource(each.source).origin, kind="good" if _is_own(each) else ""),
        )
        for each in configs
    ]
    return Table(heads=[("Config", ""), ("Value", ""), ("Origin", "")], rows=rows, total=len(rows))


def _client_row(view: ClientView) -> tuple[Cell, ...]:
    seen = view.client
    can_take = "never registered" if view.registered is None else ", ".join(view.registered) or "nothing"
    standing = view.standing
    text = f"{standing.value} {', '.join(view.ignored)}" if standing is Standing.IGNORES else standing.value
    return (
        Cell(f"{seen.principal} {short(seen.client_id) or '(none)'}", kind="name"),
        Cell(short(f"{seen.software_name} {seen.software_version}"), kind="extra"),
        Cell(f"{seen.host} x{seen.connections}", kind="extra word"),
        Cell(_UNKNOWN if seen.fetched is None else _pairs(dict(seen.fetched))),
        Cell(_pairs(view.effective)),
        Cell(can_take, kind="extra"),
        Cell(text, kind=_STANDINGS.get(standing, "")),
    )


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(values.items())) or "-"
