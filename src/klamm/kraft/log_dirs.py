"""Log directories of brokers without storage: the mark by which each klamm knows the others in a cluster.

A broker registers with the id of its log directory. The controllers check only that no other node has it, keep it in
the metadata log, and name it to every observer. A broker also sends it when it fetches the metadata log, and
DescribeQuorum names it to clients. A rack would be handed out too, but placement by racks and tools that read racks
would follow it; an unknown feature is handed out to observers only.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

_MARK: Final = b64decode("klammdir")
"""First bytes of these ids. Kafka prints ids in Base64, so they begin with ``klammdir``."""


def log_dir_of(cluster_id: str, node_id: int, owner: str = "") -> UUID:
    """Return the id of the log directory that a broker without storage claims to have, the same at each start.

    A controller elects a broker only for partitions in the log directories of its registration. So what serves other
    partitions under the same node id does not lead these.

    Args:
        cluster_id: Cluster id as the brokers report it.
        node_id: Node id.
        owner: Name of what the broker serves, such as a flow of the mirror.
    """
    name = f"klamm:{cluster_id}/{node_id}/{owner}"
    return UUID(bytes=_MARK + uuid5(NAMESPACE_URL, name).bytes[len(_MARK) :])


def is_without_storage(log_dir: UUID) -> bool:
    """Return whether the log directory with an id stores nothing, because it is one of a klamm."""
    return log_dir.bytes.startswith(_MARK)
