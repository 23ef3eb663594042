"""The gateway's page: warnings, several processes, and no secret of its settings."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.gateway.monitoring.page import GatewayPage
from klamm.gateway.settings import read_settings
from klamm.gateway.upstream.topology import FILE_NAME, Topology
from klamm.kafka_client.errors import ConnectionLostError
from klamm.page.activity import ActivitySampler
from klamm.server.listeners import Address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from klamm.gateway.app import GatewayApp
    from klamm.monitoring.http import View

HOSTILE = '<script>alert("x")</script>\x1b[2J&'
STATUS: dict[str, Any] = {
    "clients": [
        {"principal": HOSTILE, "client_id": HOSTILE, "host": HOSTILE, "connections": 1},
    ],
    "clients_left_out": 3,
    "policies": [],
    "warnings": [f"topic: {HOSTILE}{number}" for number in range(7)],
    "connections": {"1": 1},
    "attempts": [["kafka-1:9092", True, 4], ["kafka-1:9092", False, 2]],
    "activity": [],
}
STARTED_AT = 1_767_225_600.0
CONFIGS = {
    "upstream.bootstrap.servers": "kafka-1:9092",
    "upstream.security.protocol": "SASL_SSL",
    "upstream.sasl.mechanism": "PLAIN",
    "upstream.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="gateway" password="hunter2";',
    "bypass.known.hosts": HOSTILE,
}


class Pool:
    """Two worker processes, of which one does not answer."""

    processes = ({"number": 0, "connections": 1, "why_not_ready": HOSTILE},)

    async def statuses(self) -> list[dict[str, Any] | None]:
        return [STATUS, None]


class LostAdmin:
    """Admin client of an upstream that is down."""

    async def list_topics(self, **_: object) -> Any:
        raise ConnectionLostError(HOSTILE)


def page(
    directory: Path,
    *,
    is_reachable: bool = True,
    configs: Mapping[str, str] = CONFIGS,
    nodes: Iterable[int] = (1, 2),
    live: Iterable[int] = (1,),
) -> GatewayPage:
    topology = Topology(directory)
    (directory / FILE_NAME).write_text("{damaged")
    topology.load()
    topology.base = Address(host="gateway", port=19092)
    for node_id in nodes:
        topology.learn(node_id, HOSTILE if node_id > 1 else "kafka-1", 9092)
    app = SimpleNamespace(
        topology=topology,
        upstream=SimpleNamespace(admin=LostAdmin(), is_reachable=is_reachable, failure=HOSTILE, live=frozenset(live)),
        bypass=SimpleNamespace(members={HOSTILE: 2}),
        pool=Pool(),
        base_address=topology.base,
        why_not_ready=lambda: None,
    )
    activity = ActivitySampler(lambda: 0, lambda: ())
    return GatewayPage(cast("GatewayApp", app), read_settings(configs), STARTED_AT, activity)


def test_names_are_escaped_and_credentials_are_on_no_page(tmp_path: Path) -> None:
    views = page(tmp_path).views
    assert set(views) == {"/", "/gateway.json", "/policies.json", "/topics.json"}
    for path, view in views.items():
        for query in (dict[str, str](), {"topic": HOSTILE}, {"q": HOSTILE}):
            text = asyncio.run(viewed(view, query))
            assert "hunter2" not in text
            assert path != "/" or "<script" not in text
            assert "q" in query or "\x1b" not in text


async def viewed(view: View, query: Mapping[str, str]) -> str:
    return (await view(query))[1]


@pytest.mark.parametrize("is_reachable", [True, False])
def test_faults_are_shown_as_warnings(tmp_path: Path, *, is_reachable: bool) -> None:
    # when
    _, html = asyncio.run(page(tmp_path, is_reachable=is_reachable).render({}))
    # then
    warnings = html.partition('<ul class="warnings bad">')[2].partition("</ul>")[0]
    assert "Topics cannot be listed: " in warnings
    assert "Worker processes that did not answer in time: 1;" in warnings
    assert "3 clients left out" in warnings
    assert "topology.json cannot be read and is ignored: " in warnings
    assert "<li>... and 2 more of this kind</li>" in warnings
    assert "2 members of groups past the gateway" in warnings
    assert ("The upstream cannot be reached: " in warnings) is not is_reachable
    assert ("The cluster does not list 1 broker: 2" in warnings) is is_reachable


def test_listed_broker_without_port_is_shown_as_warning(tmp_path: Path) -> None:
    # given
    shown = page(tmp_path, nodes=(1, 2, 60_001, 60_002), live=(1, 2, 60_001))
    # when
    _, html = asyncio.run(shown.render({}))
    # then
    assert "Clients cannot reach 1 broker without a port: 60001; restart with a lower base port" in html


def test_brokers_page_shows_client_address_and_connection_outcomes(tmp_path: Path) -> None:
    text = asyncio.run(viewed(page(tmp_path).views["/gateway.json"], {}))
    first, other = json.loads(text)["brokers"]
    assert first == {
        "node_id": 1,
        "address": "kafka-1:9092",
        "client_address": "gateway:19093",
        "state": "up",
        "connections": 1,
        "opened": 4,
        "failed": 2,
    }
    assert (other["state"], other["connections"]) == ("not listed", 0)


def test_clients_are_served_as_json_only_with_client_configs(tmp_path: Path) -> None:
    with_configs = page(tmp_path, configs={**CONFIGS, "client.configs.enable": "true"})
    assert set(with_configs.views) - set(page(tmp_path).views) == {"/clients.json"}
