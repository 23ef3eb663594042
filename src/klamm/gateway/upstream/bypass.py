"""Clients that go past the gateway: members of groups that are connected to the brokers from other addresses.

The gateway asks the cluster for its groups every so often. A member whose host is no address of a gateway has a
connection of its own to the brokers. Clients that are in no group, as producers, are not seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from typing import TYPE_CHECKING, Final

from klamm.hosts import plain_host
from klamm.kafka_client.errors import CLUSTER_ERRORS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from klamm.admin import AdminClient
    from klamm.gateway.upstream.topology import Topology
    from klamm.server.listeners import Address

logger = logging.getLogger(__name__)

MAX_GROUPS: Final = 1000
"""Groups that are described in one check. Of more groups, others are described in the next one; until their turn comes
again, their members count as they were."""
MAX_CLIENT_IDS: Final = 100
_OTHERS: Final = "(other)"
_EMPTY: Final = frozenset({"Empty", "Dead"})


class BypassCheck:
    """Members of groups that go past the gateway. Used on the event loop only.

    Args:
        admin: Admin client with the gateway's own credentials.
        topology: Brokers of the upstream.
        known_hosts: Addresses of other gateways, and those by which the brokers see this one if they are translated.
    """

    def __init__(self, admin: AdminClient, topology: Topology, known_hosts: Collection[str]) -> None:
        self._admin = admin
        self._topology = topology
        self._known_hosts = frozenset(map(_host, known_hosts))
        self._next = 0
        self._by_group: dict[str, Counter[str]] = {}
        """Members that go past the gateway by client id, of each group that has some."""
        self._is_denied = False
        self.members: Mapping[str, int] | None = None
        """Members of groups that go past the gateway, by client id. None before the first check, and after a failure.
        """

    async def keep_checking(self, interval_s: float) -> None:
        """Check every so often, until cancelled. Errors are logged once."""
        while True:
            try:
                await self.check()
            except CLUSTER_ERRORS as error:
                if not self._is_denied:
                    logger.warning("Clients that go past the gateway are not counted: %s", error)
                self._is_denied = True
                self.members = None
            except Exception:
                logger.exception("Clients that go past the gateway are not counted, trying again in %g s", interval_s)
                self.members = None
            else:
                self._is_denied = False
            await asyncio.sleep(interval_s)

    async def check(self) -> None:
        """Count the members that go past the gateway.

        Raises:
            KafkaApiError: The gateway may not list or describe groups.
            ConnectionError: The upstream cannot be reached.
            TimeoutError: The upstream does not respond.
        """
        listed = await self._admin.list_groups()
        groups = [group.group_id for group in listed if group.state not in _EMPTY]
        start = self._next % len(groups) if len(groups) > MAX_GROUPS else 0
        checked = (groups[start:] + groups[:start])[:MAX_GROUPS]
        self._next = start + len(checked)
        # in a thread, because the names of the brokers have to be resolved
        own = self._known_hosts | await asyncio.to_thread(own_addresses, tuple(self._topology.nodes.values()))
        described = self._admin.describe_groups(checked).values() if checked else {}
        kept = set(groups) - set(checked)
        self._by_group = {group: members for group, members in self._by_group.items() if group in kept}
        for group_id, outcome in described.items():
            try:
                group = await outcome
            except CLUSTER_ERRORS:  # it has gone, or may not be described
                continue
            if past := _bounded(member.client_id for member in group.members if _host(member.host) not in own):
                self._by_group[group_id] = past
        members = _bounded(client for past in self._by_group.values() for client in past.elements())
        for client_id in sorted(members.keys() - (self.members or {}).keys()):
            logger.warning("Client %s goes past the gateway: a member of a group is at another address", client_id)
        self.members = dict(members)


def _bounded(client_ids: Iterable[str]) -> Counter[str]:
    """Count client ids. Those beyond the first ``MAX_CLIENT_IDS`` count as one."""
    counts: Counter[str] = Counter()
    for client_id in client_ids:
        is_new = client_id not in counts and len(counts) >= MAX_CLIENT_IDS
        counts[_OTHERS if is_new else client_id] += 1
    return counts


def own_addresses(brokers: Iterable[Address]) -> frozenset[str]:
    """Return the addresses of this machine from which it reaches the brokers, by IPv4 and IPv6. Nothing is sent.

    Names of the brokers are resolved, which may block. Those that cannot be resolved are left out.
    """
    addresses = set()
    for at in brokers:
        with contextlib.suppress(OSError, UnicodeError):  # UnicodeError: an empty label, or one of more than 63 bytes
            for family, kind, _, _, target in socket.getaddrinfo(at.host, at.port, type=socket.SOCK_DGRAM):
                with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                    probe.connect(target)
                    addresses.add(_host(probe.getsockname()[0]))
    return frozenset(addresses)


def _host(text: str) -> str:
    """Return an address as Kafka shows it, without the prefix that Kafka puts before it."""
    return plain_host(text.lstrip("/"))
