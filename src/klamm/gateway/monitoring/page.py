"""Page of a gateway for browsers, and its documents: gateways, brokers, clients, policies, topics and changes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from klamm.client_config_runtime.view import CLIENTS_PAGE, clients_document
from klamm.clock import wall_clock_ms
from klamm.display import counted
from klamm.gateway.client_configs.config_log import HISTORY_TOPIC
from klamm.gateway.history.log import TOPIC
from klamm.gateway.monitoring.changes import LatestChanges
from klamm.gateway.monitoring.status import merged_status, process_status
from klamm.gateway.upstream.topics import NAMES_KEPT_S, TOPICS_KEPT_S, UpstreamTopics, state_of
from klamm.page.activity import activity_plots
from klamm.page.changes import changes_section
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
    page_of,
    section,
    short,
    shown,
    table,
    time_text,
    warning_list,
)
from klamm.page.plot import STYLE as PLOT_STYLE
from klamm.page.policies import policies_section, policy_warnings
from klamm.page.topics import configs_section, missing_topic, topics_document, topics_section
from klamm.page.views import HTML, POLICIES_PAGE, TOPICS_PAGE, json_view
from klamm.protocol.errors import ProtocolError
from klamm.server.listeners import Address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.gateway.app import GatewayApp
    from klamm.gateway.settings import GatewaySettings
    from klamm.monitoring.http import View
    from klamm.page.activity import ActivitySampler
    from klamm.page.html import Query
    from klamm.page.views import Document

GATEWAY_PAGE: Final = "/gateway.json"
_MAX_NAMED: Final = 5
"""Client ids that a warning names."""
_STATES: Final = {"up": "good", "not listed": "bad"}
_NOTE: Final = (
    f"Topics that the gateway's own principal may describe, at most {NAMES_KEPT_S:g} s old;"
    f" their states and configs at most {TOPICS_KEPT_S:g} s."
)


class GatewayPage:
    """Page of a gateway. Used on the event loop only.

    Args:
        app: The gateway.
        settings: Settings of the gateway.
        started_at: Start of the gateway, in seconds since the epoch.
        activity: Requests, denials and waiting time of this process.
    """

    def __init__(
        self, app: GatewayApp, settings: GatewaySettings, started_at: float, activity: ActivitySampler
    ) -> None:
        self._app = app
        self._settings = settings
        self._started_at = started_at
        self._topics = UpstreamTopics(app.upstream.admin)
        self._activity = activity
        self._has_client_configs = settings.client_configs is not None
        histories = {TOPIC: settings.records_history, HISTORY_TOPIC: self._has_client_configs}
        topics = [topic for topic, is_kept in histories.items() if is_kept]
        self._changes = LatestChanges(settings.upstream, topics) if topics else None

    @property
    def views(self) -> Mapping[str, View]:
        """Page and documents by path."""
        views: dict[str, View] = {
            "/": self.render,
            GATEWAY_PAGE: json_view(self._gateway_document),
            POLICIES_PAGE: json_view(self._policies_document),
            TOPICS_PAGE: json_view(self._topics_document),
        }
        if self._has_client_configs:
            views[CLIENTS_PAGE] = json_view(self._clients_document)
        return views

    async def render(self, query: Query) -> tuple[str, str]:
        """Return content type and text of the page for a query.

        Args:
            query: ``topic`` for the page of a topic; otherwise ``q`` filters the tables. ``tp``, ``cp`` and ``bp`` are
                numbers of pages, from 1.
        """
        topic = query.get("topic")
        parts = await self._overview(query) if topic is None else await self._topic_page(topic, query)
        return HTML, document("klamm gateway", [self._head(), *parts], style=PLOT_STYLE)

    async def close(self) -> None:
        """Close the connections over which changes are read."""
        if self._changes is not None:
            await self._changes.close()

    # -- documents

    async def _status(self) -> Document:
        """Return the status of all processes that serve connections."""
        pool = self._app.pool
        statuses = [await process_status(self._app, self._activity)] if pool is None else await pool.statuses()
        return await merged_status(statuses)

    async def _clients_document(self, _query: Query) -> Document:
        status = await self._status()
        document = clients_document(status["clients"], at_ms=wall_clock_ms())
        return {**document, "left_out": status["clients_left_out"], "silent_processes": status["silent"]}

    async def _policies_document(self, _query: Query) -> Document:
        status = await self._status()
        return {"version": 0, "at_ms": wall_clock_ms(), **status["policies"], "silent_processes": status["silent"]}

    async def _topics_document(self, query: Query) -> Document:
        """Return a page of the topics with the configs that they set; with ``topic``, one topic with all configs."""
        return await self._topics_on_page(query, DETAIL_ROWS)

    async def _topics_on_page(self, query: Query, size: int) -> Document:
        wanted, only = query.get("q", "").lower(), query.get("topic")
        everything = await self._topics.names()
        names = [name for name in everything if (wanted in name.lower() if only is None else name == only)]
        first, chosen = page_of(names, query.get("tp"), size)
        topics = await self._topics.documents(chosen)
        if only is None:
            topics = [
                {**topic, "configs": [each for each in topic["configs"] or () if each["is_own"]]} for topic in topics
            ]
        document = topics_document(topics, total=len(names), first=first, at_ms=wall_clock_ms())
        return {**document, "problem": self._topics.failure}

    async def _gateway_document(self, _query: Query) -> Document:
        return self._gateway(await self._status())

    def _gateway(self, status: Document) -> Document:
        """Return gateways, upstream and brokers as a JSON object."""
        app, settings = self._app, self._settings
        processes = [] if app.pool is None else app.pool.processes
        own = {
            "address": str(app.base_address),
            "why_not_ready": app.why_not_ready(),
            "topology_fault": app.topology.file_fault,
            "connections": sum(status["connections"].values()),
            "processes": processes,
            "started_at_ms": int(self._started_at * 1000),
            "admin_only": settings.admin_only,
        }
        return {
            "version": 0,
            "at_ms": wall_clock_ms(),
            "gateway": own,
            "other_gateways": list(settings.known_hosts),
            "upstream": {
                "bootstrap_servers": list(settings.upstream.bootstrap_servers),
                "cluster_id": app.topology.cluster_id,
                "is_reachable": app.upstream.is_reachable,
                "failure": app.upstream.failure,
            },
            "brokers": self._brokers(status),
            "bypassing_members": None if app.bypass.members is None else dict(app.bypass.members),
            "silent_processes": status["silent"],
        }

    def _brokers(self, status: Document) -> list[Document]:
        upstream = self._app.upstream
        attempts = {(address, is_open): count for address, is_open, count in status["attempts"]}
        return [
            {
                "node_id": node_id,
                "address": str(at),
                "client_address": self._client_address(node_id, at),
                "state": (UNKNOWN if not upstream.is_reachable else "up" if node_id in upstream.live else "not listed"),
                "connections": status["connections"].get(str(node_id), 0),
                "opened": attempts.get((str(at), True), 0),
                "failed": attempts.get((str(at), False), 0),
            }
            for node_id, at in sorted(self._app.topology.nodes.items())
        ]

    def _client_address(self, node_id: int, at: Address) -> str | None:
        """Return the address of the gateway for a broker; None if the broker has none."""
        try:
            advertised = self._app.topology.advertised(node_id, at.host, at.port)
        except ProtocolError:
            return None
        return None if advertised is None else str(Address(host=advertised[0], port=advertised[1]))

    # -- page

    def _head(self) -> str:
        app = self._app
        cluster = shown(app.topology.cluster_id or UNKNOWN)
        servers = shown(",".join(self._settings.upstream.bootstrap_servers))
        at = time_text(time.time())
        return f'<h1><a href="/">klamm gateway</a></h1><p class="soft">cluster {cluster} at {servers}, {at}</p>'

    async def _overview(self, query: Query) -> list[str]:
        status = await self._status()
        gateway, policies = self._gateway(status), status["policies"]
        clients = [client for client in status["clients"] if client["connections"]]
        topics = await self._topics_on_page(query, ROWS)
        warnings = [*_warnings(gateway, status, topics), *client_warnings(clients), *policy_warnings(policies)]
        return [
            warning_list(warnings),
            activity_plots(status["activity"], until_s=time.time()),
            filter_form(query.get("q", ""), hint="part of a topic or client"),
            section("Gateways", table(_gateways_table(gateway), query)),
            section("Upstream brokers", table(_brokers_table(gateway, query), query)),
            clients_section(clients, query, has_configs=self._has_client_configs),
            policies_section(policies, query),
            topics_section(topics, query, facts=[("State", "", state_of)], note=_NOTE),
            await self._changes_section(query),
        ]

    async def _changes_section(self, query: Query) -> str:
        """Return the part of the page with the latest changes; empty HTML for a gateway without a history."""
        if self._changes is None:
            return ""
        changes = await self._changes.latest()
        failure = self._changes.failure
        return changes_section(changes, query, problem=None if failure is None else f"The history: {failure}")

    async def _topic_page(self, name: str, query: Query) -> list[str]:
        topics = (await self._topics_on_page({"topic": name}, 1))["topics"]
        if not topics:
            failure = self._topics.failure
            return [missing_topic(name) if failure is None else warning_list([f"Topics are unknown: {failure}"])]
        topic = topics[0]
        partitions = UNKNOWN if topic["partitions"] is None else counted(topic["partitions"], "partition")
        content = f"<p>{shown(f'{partitions}, {state_of(topic)}')}</p>"
        return [section(f"Topic {short(name)}", content, note=_NOTE), configs_section(topic["configs"] or (), query)]


def _warnings(gateway: Document, status: Document, topics: Document) -> list[str]:
    upstream, own, warnings = gateway["upstream"], gateway["gateway"], []
    if not upstream["is_reachable"]:
        warnings.append(f"The upstream cannot be reached: {upstream['failure'] or 'no response yet'}")
    elif own["why_not_ready"]:
        warnings.append(f"The gateway is not ready: {own['why_not_ready']}")
    if own["topology_fault"]:
        warnings.append(own["topology_fault"])
    warnings += first_of(status["warnings"])
    if topics["problem"]:
        warnings.append(f"Topics cannot be listed: {topics['problem']}")
    if status["silent"]:
        warnings.append(f"Worker processes that did not answer in time: {status['silent']}; their part is missing")
    if status["clients_left_out"]:
        warnings.append(f"{counted(status['clients_left_out'], 'client')} left out, because there are too many")
    lost = [str(broker["node_id"]) for broker in gateway["brokers"] if broker["state"] == "not listed"]
    if lost:
        warnings.append(f"The cluster does not list {counted(len(lost), 'broker')}: {', '.join(lost)}")
    unserved = [
        str(broker["node_id"])
        for broker in gateway["brokers"]
        if broker["client_address"] is None and broker["state"] != "not listed"
    ]
    if unserved:
        warnings.append(
            f"Clients cannot reach {counted(len(unserved), 'broker')} without a port: {', '.join(unserved)};"
            " restart with a lower base port (--listen)"
        )
    if members := gateway["bypassing_members"]:
        count = sum(members.values())
        named = ", ".join(short(client_id) for client_id in sorted(members)[:_MAX_NAMED])
        more = ", ..." if len(members) > _MAX_NAMED else ""
        warnings.append(f"{counted(count, 'member')} of groups past the gateway, with client ids {named}{more}")
    return warnings


def _gateways_table(gateway: Document) -> Table:
    own = gateway["gateway"]
    rows = [
        (
            Cell(f"{own['address']} (this one)", kind="name"),
            _state(own["why_not_ready"]),
            Cell(f"{own['connections']:,}", kind="number"),
            Cell(time_text(own["started_at_ms"] / 1000), kind="extra word"),
        )
    ]
    rows += [
        (
            Cell(f"process {process['number']}", kind="name"),
            _state(process["why_not_ready"]),
            Cell(f"{process['connections']:,}", kind="number"),
            Cell("-", kind="extra"),
        )
        for process in own["processes"]
    ]
    rows += [
        (Cell(host, kind="name"), Cell("see its own page"), Cell("-", kind="number"), Cell("-", kind="extra"))
        for host in gateway["other_gateways"][:DETAIL_ROWS]
    ]
    heads = [("Gateway", ""), ("State", ""), ("Connections", "number"), ("Started", "extra")]
    return Table(heads=heads, rows=rows, total=len(rows))


def _state(why_not_ready: str | None) -> Cell:
    return Cell("ready", kind="good") if why_not_ready is None else Cell(why_not_ready, kind="bad")


def _brokers_table(gateway: Document, query: Query) -> Table:
    brokers = gateway["brokers"]
    first, chosen = page_of(brokers, query.get("bp"), DETAIL_ROWS)
    return Table(
        heads=[
            ("Node", "number"), ("Address", ""), ("Address for clients", "extra"), ("State", ""),
            ("Connections", "number"), ("Opened", "number extra"), ("Failed", "number extra"),
        ],
        rows=[
            (
                Cell(str(broker["node_id"]), kind="number"),
                Cell(broker["address"], kind="name"),
                Cell(broker["client_address"] or "none", kind="extra name"),
                Cell(broker["state"], kind=f"word {_STATES.get(broker['state'], 'wait')}"),
                Cell(f"{broker['connections']:,}", kind="number"),
                Cell(f"{broker['opened']:,}", kind="number extra"),
                Cell(f"{broker['failed']:,}", kind=f"number extra {'bad' if broker['failed'] else ''}"),
            )
            for broker in chosen
        ],
        total=len(brokers), first=first, size=DETAIL_ROWS, parameter="bp", empty="No broker is known.",
    )  # fmt: skip
