"""Connected clients on the page, drawn from the documents of ``/clients.json``."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from klamm.client_config_runtime.view import Standing
from klamm.display import counted
from klamm.page.html import ROWS, UNKNOWN, Cell, Table, page_of, section, short, table
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.page.html import Query
    from klamm.page.views import Document

_KINDS: Final = {
    Standing.IN_LINE: "good",
    Standing.ENFORCED: "good",
    Standing.PENDING: "wait",
    Standing.IGNORES: "bad",
}
_BEHIND: Final = {
    Standing.IGNORES: "cannot take configs that are set for them",
    Standing.PENDING: "have not fetched the latest configs yet",
}
_SURER: Final = (
    Standing.PENDING,
    Standing.IGNORES,
    Standing.ENFORCED,
    Standing.IN_LINE,
    Standing.NOT_CONCERNED,
    Standing.UNKNOWN,
    Standing.NOTHING_SET,
)
"""Standings in the order in which they count when processes that serve the same client disagree."""
_KEY: Final = ("principal", "client_id", "software_name", "software_version", "host")


def clients_section(clients: Sequence[Document], query: Query, *, has_configs: bool = True) -> str:
    """Return the part of the page with the connected clients.

    Args:
        clients: Documents of connected clients. Without client configs, they have a principal, a client id, a host and
            a number of connections only.
        query: Query of the page: ``q`` filters by a part of principal or client id, ``cp`` is the number of the page.
        has_configs: Whether client configs are served.
    """
    text = query.get("q", "").lower()
    matching = [one for one in clients if text in f"{one['principal']} {one['client_id']}".lower()]
    first, chosen = page_of(matching, query.get("cp"), ROWS)
    if has_configs:
        heads = [
            ("Client", ""), ("Software", "extra"), ("Address", "extra word"), ("Runs", ""), ("Should run", ""),
            ("Can take", "extra"), ("Standing", ""),
        ]  # fmt: skip
    else:
        heads = [("Client", ""), ("Address", "word"), ("Connections", "number")]
    content = Table(
        heads=heads,
        rows=[_row(one) if has_configs else _plain_row(one) for one in chosen],
        total=len(matching),
        first=first,
        size=ROWS,
        parameter="cp",
        empty="No connected client has this in its name." if text else "No client is connected.",
    )
    return section("Clients", table(content, query))


def client_warnings(clients: Iterable[Document]) -> list[str]:
    """Return how many connected clients do not follow their configs, one line for each reason."""
    standings = Counter(client.get("standing") for client in clients)
    return [
        f"{counted(standings[standing], 'connected client')} {what}"
        for standing, what in _BEHIND.items()
        if standings[standing]
    ]


async def merged_clients(documents: Iterable[Sequence[Document]]) -> list[Document]:
    """Return each client once, from the documents of several processes that serve connections of the same clients.

    It is done in time slices.
    """
    by_key: dict[tuple[str, ...], Document] = {}
    async for client in TimeSlice().over(chain.from_iterable(documents)):
        key = tuple(client.get(name, "") for name in _KEY)
        merged = by_key.get(key)
        by_key[key] = client if merged is None else _joined(merged, client)
    return [by_key[key] for key in sorted(by_key)]


def _joined(one: Document, other: Document) -> Document:
    """Return one document of a client that two processes serve. A process knows its own connections only."""
    connections = one["connections"] + other["connections"]
    if "standing" not in one or "standing" not in other:
        return {**one, "connections": connections}
    older, newer = sorted((one, other), key=lambda each: each["told_at_ms"] or 0)
    standings = [newer["standing"], older["standing"]]
    if older["standing"] == Standing.PENDING and (newer["told_at_ms"] or 0) > (older["told_at_ms"] or 0):
        standings = standings[:1]  # it fetched the latest configs over another connection
    joined = {
        "connections": connections,
        "last_seen_ms": max(one["last_seen_ms"], other["last_seen_ms"]),
        "compliance": {**older["compliance"], **newer["compliance"]},
        "reported": {**older["reported"], **newer["reported"]},
        "client_instance_id": newer["client_instance_id"] or older["client_instance_id"],
        "standing": min(standings, key=lambda each: _SURER.index(Standing(each))),
    }
    for name in ("kinds", "enforceable", "drift", "ignored"):
        joined[name] = sorted({*older[name], *newer[name]})
    return {**newer, **joined}


def _row(client: Document) -> tuple[Cell, ...]:
    registered, standing = client["registered"], Standing(client["standing"])
    can_take = "never registered" if registered is None else ", ".join(registered) or "nothing"
    text = f"{standing.value} {', '.join(client['ignored'])}" if standing is Standing.IGNORES else standing.value
    runs = {**(client["told"] or {}), **client["reported"]}
    return (
        _name(client),
        Cell(short(f"{client['software_name']} {client['software_version']}"), kind="extra"),
        Cell(f"{client['host']} x{client['connections']}", kind="extra word"),
        Cell(UNKNOWN if client["told"] is None and not runs else _pairs(runs), kind="wait" if client["drift"] else ""),
        Cell(_pairs(client["effective"])),
        Cell(can_take, kind="extra"),
        Cell(text, kind=_KINDS.get(standing, "")),
    )


def _plain_row(client: Document) -> tuple[Cell, ...]:
    return (
        _name(client),
        Cell(client["host"], kind="word"),
        Cell(f"{client['connections']:,}", kind="number"),
    )


def _name(client: Document) -> Cell:
    return Cell(f"{client['principal']} {short(client['client_id']) or '(none)'}", kind="name")


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(values.items())) or "-"
