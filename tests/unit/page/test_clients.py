"""Clients on the page: reported and central configs, and one row per client of several processes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from klamm.client_config_runtime.view import view_clients
from klamm.client_configs.definitions import ClientKind
from klamm.client_configs.entities import ClientConfigEntity
from klamm.page.clients import client_warnings, clients_section, merged_clients
from tests.support.client_configs import seen_client

if TYPE_CHECKING:
    from klamm.server.client_registry import SeenClient

HOSTILE = '<script>alert("x")</script>\x1b[2J&'
APP = ClientConfigEntity.of_client("alice", "app")


def documents(
    *clients: SeenClient, registered: tuple[str, ...] | None = None, **effective: str
) -> list[dict[str, Any]]:
    image = {} if registered is None else {APP: {"klamm-kafka-python/1.0": registered}}
    configs = {key.replace("_", "."): value for key, value in effective.items()}
    return [view.document() for view in view_clients(clients, image, lambda _: configs)]


@pytest.mark.parametrize(
    ("older", "other", "registered", "effective"),
    [
        pytest.param({}, {"last_seen_ms": 9, "connections": 3}, None, {}, id="nothing set"),
        pytest.param({"kinds": frozenset()}, {}, None, {"acks": "all"}, id="one has not produced so far"),
        pytest.param(
            {"fetched": (("acks", "1"),), "fetched_at_ms": 3},
            {"fetched": (("acks", "all"),), "fetched_at_ms": 7},
            ("acks",),
            {"acks": "all"},
            id="the later one fetched the latest configs",
        ),
        pytest.param(
            {"fetched": (("acks", "1"),), "fetched_at_ms": 3}, {}, ("acks",), {"acks": "all"}, id="only one fetched"
        ),
        pytest.param(
            {"kinds": frozenset({ClientKind.CONSUMER}), "reported": {"session.timeout.ms": 45_000}},
            {"reported": {"acks": 1}},
            ("acks",),
            {"acks": "all", "session_timeout_ms": "9000"},
            id="a producer here, a consumer there",
        ),
        pytest.param({}, {"reported": {"acks": -1}}, None, {"acks": "all"}, id="it cannot"),
    ],
)
def test_client_of_two_processes_is_shown_like_a_client_of_one(
    older: dict[str, Any], other: dict[str, Any], registered: tuple[str, ...] | None, effective: dict[str, str]
) -> None:
    first, second = seen_client(**older), seen_client(**other)
    # when
    apart = [documents(each, registered=registered, **effective) for each in (first, second)]
    # then
    together = documents(first.joined_with(second), registered=registered, **effective)
    assert asyncio.run(merged_clients(apart)) == together
    assert asyncio.run(merged_clients(reversed(apart))) == together


def test_clients_of_other_hosts_are_separate_and_sorted() -> None:
    clients = asyncio.run(
        merged_clients([documents(seen_client(host="10.0.0.2"), seen_client(client_id="a")), documents(seen_client())])
    )
    assert [(client["client_id"], client["host"]) for client in clients] == [
        ("a", "10.0.0.1"),
        ("app", "10.0.0.1"),
        ("app", "10.0.0.2"),
    ]


def test_row_shows_reported_central_and_supported_configs() -> None:
    client = seen_client(reported={"acks": 1}, client_id=HOSTILE, software_version=HOSTILE)
    (document,) = documents(client, acks="all")
    # when
    html = clients_section([document], {})
    # then
    assert "<script" not in html
    assert "\x1b" not in html
    cells = ["acks=1", "acks=all", "never registered", "ignores acks"]
    assert [html.index(f">{cell}<") for cell in cells] == sorted(html.index(f">{cell}<") for cell in cells)
    assert client_warnings([document]) == ["1 connected client cannot take configs that are set for them"]


def test_without_client_configs_the_page_lists_connections() -> None:
    plain = {"principal": "User:alice", "client_id": HOSTILE, "host": "10.0.0.1", "connections": 2}
    (merged,) = asyncio.run(merged_clients([[plain], [plain]]))
    html = clients_section([merged], {}, has_configs=False)
    assert "<script" not in html
    assert '<td class="number">4</td>' in html
    assert "Should run" not in html
    assert client_warnings([merged]) == []


def test_page_of_thousands_of_clients_is_short_and_filterable() -> None:
    clients = [
        {"principal": "User:alice", "client_id": f"app-{number}", "host": "h", "connections": 1}
        for number in range(10_000)
    ]
    html = clients_section(clients, {}, has_configs=False)
    assert len(html) < 5000
    assert "1 to 25 of 10,000" in html
    assert "app-9999" in clients_section(clients, {"q": "APP-9999"}, has_configs=False)
    assert "No connected client has this in its name." in clients_section(clients, {"q": "none"}, has_configs=False)
