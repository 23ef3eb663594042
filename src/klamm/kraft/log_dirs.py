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


def log_dir_of(cluster_id: str, node_id: int) -> UUID:
    """Return the id of the log directory that a broker without storage claims to have, the same at each start."""
    return UUID(bytes=_MARK + uuid5(NAMESPACE_URL, f"klamm:{cluster_id}/{node_id}").bytes[len(_MARK) :])


def is_without_storage(log_dir: UUID) -> bool:
    """Return whether the log directory with an id stores nothing, because it is one of a klamm."""
    return log_dir.bytes.startswith(_MARK)
