"""Brokers of the upstream cluster and the gateway's address for each of them.

The gateway's port for a broker is its base port plus the node id, or its host name contains the node id. So every
gateway with the same settings gives the same addresses, before and after a restart. The brokers' addresses are kept in
a file. A gateway that restarts while the upstream is down reads them from it.
"""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Final

from klamm.atomic_file import replace_file
from klamm.properties import SettingsError, file_error
from klamm.protocol.errors import ProtocolError
from klamm.server.listeners import MAX_PORT, Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


logger = logging.getLogger(__name__)

FILE_NAME: Final = "topology.json"
_MAX_NODE_ID: Final = 2**31 - 1


class Topology:
    """Addresses by node id. Used on the event loop only.

    Args:
        directory: Directory of the file; it is created when the first address is saved.
        hosts: Host names of the brokers on one port; None for a port of each broker.
    """

    def __init__(self, directory: Path, hosts: BrokerHosts | None = None) -> None:
        self._hosts = hosts
        self.base = Address(host="", port=0)
        """Host and base port that clients connect to. Set before the first connection is accepted."""
        self.listen_port = 0
        """Base port on which the gateway listens. Another one than that of ``base`` behind a load balancer."""
        self._path = directory / FILE_NAME
        self._nodes: dict[int, Address] = {}
        self._on_new_node: Callable[[int], None] | None = None
        self.cluster_id: str | None = None
        """Id of the upstream cluster; None before it is known."""
        self.file_fault: str | None = None
        """Why the file could not be used at the start; None if it could, or if there was none."""

    @property
    def nodes(self) -> Mapping[int, Address]:
        """Addresses of the brokers by node id, including those that are down."""
        return self._nodes

    def subscribe(self, on_new_node: Callable[[int], None]) -> None:
        """Call ``on_new_node`` with the node id of each broker that is not known so far."""
        self._on_new_node = on_new_node

    def advertised(self, node_id: int, host: str, port: int) -> tuple[str, int] | None:
        """Return host and port of the gateway for a broker, and store the broker's own address.

        Returns:
            None if a base port + node id is above the largest port. A warning is logged when such a broker joins.

        Raises:
            ProtocolError: This is not the address of a broker.
        """
        self.learn(node_id, host, port)
        if self._hosts is not None:
            return self._hosts.host_of(node_id), self.base.port
        if not self.has_port(node_id):
            return None
        return self.base.host, self.base.port + node_id

    def has_port(self, node_id: int) -> bool:
        """Return whether the gateway can have a port for a broker, also seen from outside."""
        return max(self.base.port, self.listen_port) + node_id <= MAX_PORT

    def learn(self, node_id: int, host: str, port: int) -> None:
        """Store the address of a broker, in the file too.

        Raises:
            ProtocolError: This is not the address of a broker.
        """
        address = self._nodes.get(node_id)
        if address is not None and address.port == port and address.host == host:
            return
        if node_id < 0 or not host or "\0" in host or not 0 < port <= MAX_PORT:
            raise ProtocolError(f"The upstream says that broker {node_id} is at {host}:{port}")
        self._nodes[node_id] = Address(host=host, port=port)
        logger.info("Broker %d is at %s", node_id, self._nodes[node_id])
        self.save()
        if address is None and self._on_new_node is not None:
            self._on_new_node(node_id)

    def set_cluster_id(self, cluster_id: str | None) -> None:
        """Store the id of the cluster. Addresses in the file that belong to another cluster are dropped."""
        if cluster_id is None or cluster_id == self.cluster_id:
            return
        if self.cluster_id is not None:
            logger.warning(
                "%s belongs to cluster %s, the upstream is cluster %s: its addresses are dropped",
                self._path,
                self.cluster_id,
                cluster_id,
            )
            self._nodes.clear()
        self.cluster_id = cluster_id
        self.save()

    def load(self) -> None:
        """Read the file. A missing file leaves the topology empty; so does a damaged one, with a warning."""
        try:
            self._nodes, self.cluster_id = _parsed(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as error:
            self.file_fault = f"{self._path} cannot be read and is ignored: {file_error(error)}"
            logger.warning("%s", self.file_fault)

    def save(self) -> None:
        """Replace the file. An error is logged: the gateway serves without it."""
        nodes = {str(node_id): [at.host, at.port] for node_id, at in sorted(self._nodes.items())}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps({"cluster_id": self.cluster_id, "nodes": nodes}, indent=1) + "\n")
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._path, error.strerror or error)


def _parsed(text: str) -> tuple[dict[int, Address], str | None]:
    """Return the addresses by node id and the cluster id in a file.

    Raises:
        ValueError, RecursionError: The file is damaged.
    """
    match json.loads(text):
        case {"nodes": dict(nodes), "cluster_id": None | str() as cluster_id} if cluster_id != "":
            (cluster_id or "").encode()  # fails for a lone surrogate, as below
        case _:
            raise ValueError("nodes and cluster_id are missing")
    return {_node_id(text): _address(at) for text, at in nodes.items()}, cluster_id


def _node_id(text: str) -> int:
    if not 0 <= (node_id := int(text)) <= _MAX_NODE_ID:
        raise ValueError(f"{text} is no node id")
    return node_id


def _address(at: object) -> Address:
    match at:
        case [str(host), int(port)] if host.encode() and 0 < port <= MAX_PORT:
            return Address(host=host, port=port)
        case _:
            raise ValueError("an address is not [HOST, PORT]")


PLACEHOLDER: Final = "$(nodeId)"
_HOST: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", re.IGNORECASE)


class BrokerHosts:
    """Host names of all brokers, made from a pattern with the node id.

    Args:
        pattern: Host name with ``$(nodeId)`` in the place of the node id.
        setting: Name of the setting, for error messages.

    Raises:
        SettingsError: The pattern is not a host name, or does not contain ``$(nodeId)`` exactly once.
    """

    def __init__(self, pattern: str, setting: str) -> None:
        before, placeholder, after = pattern.partition(PLACEHOLDER)
        if not placeholder or PLACEHOLDER in after or not _HOST.fullmatch(f"{before}0{after}"):
            raise SettingsError(f"{setting}={pattern}: expected a host name with {PLACEHOLDER} once")
        self._before = before
        self._after = after
        self._name = re.compile(rf"{re.escape(before)}(0|[1-9]\d{{0,9}}){re.escape(after)}\.?", re.IGNORECASE)

    def host_of(self, node_id: int) -> str:
        """Return the host name of a broker."""
        return f"{self._before}{node_id}{self._after}"

    def node_of(self, name: str | None) -> int | None:
        """Return the node id for a name that a client sent; None if it is not the name of a broker."""
        match = self._name.fullmatch(name or "")
        return None if match is None or (node_id := int(match[1])) > _MAX_NODE_ID else node_id
