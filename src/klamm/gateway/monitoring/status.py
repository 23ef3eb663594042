"""Status of one process of a gateway, as a JSON object, and the sum of several."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from klamm.page.activity import merged_activity
from klamm.page.clients import merged_clients
from klamm.page.policies import merged_policies, policies_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.gateway.app import GatewayApp
    from klamm.gateway.relay.shared import Shared
    from klamm.page.activity import ActivitySampler
    from klamm.page.views import Document

MAX_CLIENTS: Final = 10_000
"""Clients in the status of one process. Connected ones come first."""


async def process_status(app: GatewayApp, activity: ActivitySampler) -> Document:
    """Return what this process knows about its clients, policies, activity and connections to the brokers."""
    shared = app.shared
    lister = next((each for each in shared.features if each.lists_clients), None)
    clients = _plain_clients(shared) if lister is None else await lister.clients()
    clients.sort(key=lambda client: not client["connections"])
    return {
        "clients": clients[:MAX_CLIENTS],
        "clients_left_out": max(0, len(clients) - MAX_CLIENTS),
        "policies": [policies_document(each.policies) for each in shared.features if each.policies is not None],
        "warnings": [warning for each in shared.features for warning in each.warnings()],
        "connections": dict(Counter(str(relay.peer.node_id) for relay in shared.connections)),
        "attempts": [[address, is_open, count] for (address, is_open), count in app.upstream.attempts.items()],
        "activity": list(activity.samples),
    }


def _plain_clients(shared: Shared) -> list[Document]:
    """Return the connected clients without client configs, from their connections."""
    connections = Counter(
        (relay.peer.principal, relay.peer.client_id or "", relay.peer.host) for relay in shared.connections
    )
    return [
        {"principal": principal, "client_id": client_id, "host": host, "connections": count}
        for (principal, client_id, host), count in connections.items()
    ]


async def merged_status(statuses: Sequence[Document | None]) -> Document:
    """Return the status of all processes together.

    Args:
        statuses: Status of each process; None if it did not answer.
    """
    received = [status for status in statuses if status is not None]
    connections: Counter[str] = Counter()
    attempts: Counter[tuple[str, bool]] = Counter()
    for status in received:
        connections.update(status["connections"])
        for address, is_open, count in status["attempts"]:
            attempts[address, is_open] += count
    return {
        "clients": await merged_clients(status["clients"] for status in received),
        "clients_left_out": sum(status["clients_left_out"] for status in received),
        "policies": merged_policies([policies for status in received for policies in status["policies"]]),
        "warnings": list(dict.fromkeys(warning for status in received for warning in status["warnings"])),
        "connections": dict(connections),
        "attempts": [[address, is_open, count] for (address, is_open), count in attempts.items()],
        "activity": merged_activity(status["activity"] for status in received),
        "silent": len(statuses) - len(received),
    }
