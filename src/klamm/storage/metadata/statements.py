"""SQL of the metadata changes: many changes become few statements, each executed once for many rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from klamm.history.change import RecordedChange
from klamm.storage.metadata.changes import (
    Change,
    DropAcl,
    DropConfigs,
    DropDecision,
    DropGroup,
    DropGroupOffset,
    DropPendingOffset,
    DropScramCredential,
    DropTopic,
    DropTransaction,
    PutAcl,
    PutClientConfig,
    PutConfig,
    PutDecision,
    PutGroup,
    PutGroupOffset,
    PutPendingOffset,
    PutQuota,
    PutScramCredential,
    PutSetting,
    PutTopic,
    PutTransaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from klamm.storage.metadata.schema import Database

Row = tuple[Any, ...]

TOPIC_RESOURCE_TYPE: Final = 2
HISTORY_STEP: Final = 1000
"""Smallest number of history entries that one commit deletes if there are too many."""
MAX_CLIENT_ID_CHARACTERS: Final = 255
"""Longest client id in the history. Clients choose it, and each changed config of a request has a copy of it."""
MAX_PRINCIPAL_CHARACTERS: Final = 1000
"""Longest principal in the history. It holds any name of a certificate that is in use."""

_UPSERT: Final[Mapping[str, str]] = {
    "settings": "INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
    "topics": "INSERT INTO topics (topic_id, name, is_internal, partitions) VALUES (?, ?, ?, ?) ON CONFLICT (topic_id)"
    " DO UPDATE SET name = excluded.name, is_internal = excluded.is_internal, partitions = excluded.partitions",
    "configs": "INSERT INTO configs (resource_type, resource_name, name, value) VALUES (?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET value = excluded.value",
    "client_configs": "INSERT INTO client_configs (entity, name, value) VALUES (?, ?, ?)"
    " ON CONFLICT DO UPDATE SET value = excluded.value",
    "groups": "INSERT INTO groups (group_id, payload) VALUES (?, ?)"
    " ON CONFLICT DO UPDATE SET payload = excluded.payload",
    "group_offsets": "INSERT INTO group_offsets (group_id, topic_id, partition, committed_offset, leader_epoch,"
    " metadata, commit_timestamp_ms, expire_timestamp_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,"
    " metadata = excluded.metadata, commit_timestamp_ms = excluded.commit_timestamp_ms,"
    " expire_timestamp_ms = excluded.expire_timestamp_ms",
    "client_quotas": "INSERT INTO client_quotas (entity, name, value) VALUES (?, ?, ?)"
    " ON CONFLICT DO UPDATE SET value = excluded.value",
    "acls": "INSERT INTO acls (resource_type, resource_name, pattern_type, principal, host, operation, permission)"
    " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    "scram_credentials": "INSERT INTO scram_credentials (user, mechanism, salt, stored_key, server_key, iterations)"
    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET salt = excluded.salt, stored_key = excluded.stored_key,"
    " server_key = excluded.server_key, iterations = excluded.iterations",
    "decisions": "INSERT INTO decisions (number, payload) VALUES (?, ?)"
    " ON CONFLICT DO UPDATE SET payload = excluded.payload",
    "transactions": "INSERT INTO transactions (transactional_id, payload) VALUES (?, ?)"
    " ON CONFLICT DO UPDATE SET payload = excluded.payload",
    "pending_offsets": "INSERT INTO pending_offsets (producer_id, group_id, topic_id, partition, committed_offset,"
    " leader_epoch, metadata, commit_timestamp_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,"
    " metadata = excluded.metadata, commit_timestamp_ms = excluded.commit_timestamp_ms",
}
_DELETE: Final[Mapping[str, str]] = {
    "configs": "DELETE FROM configs WHERE resource_type = ? AND resource_name = ? AND name = ?",
    "client_configs": "DELETE FROM client_configs WHERE entity = ? AND name = ?",
    "group_offsets": "DELETE FROM group_offsets WHERE group_id = ? AND topic_id = ? AND partition = ?",
    "client_quotas": "DELETE FROM client_quotas WHERE entity = ? AND name = ?",
    "acls": "DELETE FROM acls WHERE resource_type = ? AND resource_name = ? AND pattern_type = ? AND principal = ?"
    " AND host = ? AND operation = ? AND permission = ?",
    "scram_credentials": "DELETE FROM scram_credentials WHERE user = ? AND mechanism = ?",
    "decisions": "DELETE FROM decisions WHERE number = ?",
    "transactions": "DELETE FROM transactions WHERE transactional_id = ?",
    "pending_offsets": "DELETE FROM pending_offsets WHERE producer_id = ? AND group_id = ? AND topic_id = ?"
    " AND partition = ?",
}
_HISTORY: Final = (
    "INSERT INTO history (at_ms, resource, name, old, new, principal, client_id) VALUES (?, ?, ?, ?, ?, ?, ?)"
)


def entity_key(user: str | None, client_id: str | None, *, has_client_id: bool) -> str:
    """Return the stored key of a client entity. It distinguishes a missing ``client_id`` from the default one."""
    parts = {"user": user, "client_id": client_id} if has_client_id else {"user": user}
    return json.dumps(parts, ensure_ascii=False)


class PendingWrites:
    """The changes of one SQLite transaction, reduced to the last value of each row.

    Changes of different rows can be reordered; of two changes of the same row the last one wins. So rows are collected
    per table and written by one ``executemany`` each. A change that affects many rows (such as ``DropTopic``) first
    flushes the rows collected before it, to keep the order.
    """

    def __init__(self, database: Database, *, max_history: int = 0) -> None:
        self._database = database
        self._max_history = max_history
        self._rows: dict[str, dict[Row, Row | None]] = {table: {} for table in _UPSERT}
        self._history: list[Row] = []

    def apply(self, changes: Iterable[Change]) -> None:
        """Add changes, in order."""
        for change in changes:
            _APPLY[type(change)](self, change)

    def flush(self) -> None:
        """Write all collected rows."""
        for table, rows in self._rows.items():
            if not rows:
                continue
            removals = [key for key, row in rows.items() if row is None]
            if removals:
                self._database.executemany(_DELETE[table], removals)
            if len(removals) < len(rows):
                self._database.executemany(_UPSERT[table], [row for row in rows.values() if row is not None])
            rows.clear()
        if self._history:
            self._database.executemany(_HISTORY, self._history)
            self._forget_history()
            self._history.clear()

    def _forget_history(self) -> None:
        """Delete the oldest history entries beyond the limit, but only so many that the commit stays short."""
        if self._max_history:
            most = max(HISTORY_STEP, 2 * len(self._history))
            self._database.execute(
                "DELETE FROM history WHERE sequence <= (SELECT max(sequence) FROM history) - ?"
                " AND sequence < (SELECT min(sequence) FROM history) + ?",
                (self._max_history, most),
            )

    def _put_topic(self, change: PutTopic) -> None:
        topic_id = change.topic_id.bytes
        partitions = json.dumps(change.partitions, separators=(",", ":"))
        self._rows["topics"][(topic_id,)] = (topic_id, change.name, int(change.is_internal), partitions)

    def _drop_topic(self, change: DropTopic) -> None:
        topic_id = (change.topic_id.bytes,)
        self._run(
            "DELETE FROM configs WHERE resource_type = ? AND resource_name ="
            " (SELECT name FROM topics WHERE topic_id = ?)",
            (TOPIC_RESOURCE_TYPE, *topic_id),
        )
        self._run("DELETE FROM group_offsets WHERE topic_id = ?", topic_id)
        self._run("DELETE FROM pending_offsets WHERE topic_id = ?", topic_id)
        self._run("DELETE FROM topics WHERE topic_id = ?", topic_id)

    def _put_config(self, change: PutConfig) -> None:
        self._rows["configs"][change[:3]] = None if change.value is None else change

    def _drop_configs(self, change: DropConfigs) -> None:
        self._run(
            "DELETE FROM configs WHERE resource_type = ? AND resource_name = ?",
            (change.resource_type, change.resource_name),
        )

    def _put_client_config(self, change: PutClientConfig) -> None:
        key = (entity_key(change.user, change.client_id, has_client_id=change.has_client_id), change.name)
        self._rows["client_configs"][key] = None if change.value is None else (*key, change.value)

    def _put_group(self, change: PutGroup) -> None:
        self._rows["groups"][(change.group_id,)] = (change.group_id, change.payload)

    def _drop_group(self, change: DropGroup) -> None:
        self._run("DELETE FROM group_offsets WHERE group_id = ?", (change.group_id,))
        self._run("DELETE FROM pending_offsets WHERE group_id = ?", (change.group_id,))
        self._run("DELETE FROM groups WHERE group_id = ?", (change.group_id,))

    def _put_group_offset(self, change: PutGroupOffset) -> None:
        key = (change.group_id, change.topic_id.bytes, change.partition)
        self._rows["group_offsets"][key] = (
            *key,
            change.offset,
            change.leader_epoch,
            change.metadata,
            change.commit_timestamp_ms,
            change.expire_timestamp_ms,
        )

    def _drop_group_offset(self, change: DropGroupOffset) -> None:
        self._rows["group_offsets"][(change.group_id, change.topic_id.bytes, change.partition)] = None

    def _put_setting(self, change: PutSetting) -> None:
        self._rows["settings"][(change.name,)] = (change.name, change.value)

    def _put_history(self, change: RecordedChange) -> None:
        """Append an entry, with a shortened principal and client id if they are too long."""
        self._history.append(
            (
                change.at_ms,
                change.resource,
                change.name,
                change.old,
                change.new,
                _shortened(change.principal, MAX_PRINCIPAL_CHARACTERS),
                None if change.client_id is None else _shortened(change.client_id, MAX_CLIENT_ID_CHARACTERS),
            )
        )

    def _put_quota(self, change: PutQuota) -> None:
        key = (json.dumps(change.entity, ensure_ascii=False), change.name)
        self._rows["client_quotas"][key] = None if change.value is None else (*key, change.value)

    def _put_acl(self, change: PutAcl) -> None:
        row = _acl_row(change)
        self._rows["acls"][row] = row

    def _drop_acl(self, change: DropAcl) -> None:
        self._rows["acls"][_acl_row(change.acl)] = None

    def _put_scram_credential(self, change: PutScramCredential) -> None:
        key = (change.user, change.mechanism)
        row = (*key, change.salt, change.stored_key, change.server_key, change.iterations)
        self._rows["scram_credentials"][key] = row

    def _drop_scram_credential(self, change: DropScramCredential) -> None:
        self._rows["scram_credentials"][(change.user, change.mechanism)] = None

    def _put_transaction(self, change: PutTransaction) -> None:
        self._rows["transactions"][(change.transactional_id,)] = (change.transactional_id, change.payload)

    def _drop_transaction(self, change: DropTransaction) -> None:
        self._rows["transactions"][(change.transactional_id,)] = None

    def _put_pending_offset(self, change: PutPendingOffset) -> None:
        commit = change.commit
        key = (change.producer_id, commit.group_id, commit.topic_id.bytes, commit.partition)
        self._rows["pending_offsets"][key] = (
            *key,
            commit.offset,
            commit.leader_epoch,
            commit.metadata,
            commit.commit_timestamp_ms,
        )

    def _drop_pending_offset(self, change: DropPendingOffset) -> None:
        self._rows["pending_offsets"][
            (change.producer_id, change.group_id, change.topic_id.bytes, change.partition)
        ] = None

    def _put_decision(self, change: PutDecision) -> None:
        self._rows["decisions"][(change.number,)] = (change.number, change.payload)

    def _drop_decision(self, change: DropDecision) -> None:
        self._rows["decisions"][(change.number,)] = None

    def _run(self, sql: str, parameters: Row) -> None:
        self.flush()
        self._database.execute(sql, parameters)


_APPLY: Final[Mapping[type[Any], Callable[[PendingWrites, Any], None]]] = {
    PutTopic: PendingWrites._put_topic,
    DropTopic: PendingWrites._drop_topic,
    PutConfig: PendingWrites._put_config,
    DropConfigs: PendingWrites._drop_configs,
    PutClientConfig: PendingWrites._put_client_config,
    PutGroup: PendingWrites._put_group,
    DropGroup: PendingWrites._drop_group,
    PutGroupOffset: PendingWrites._put_group_offset,
    DropGroupOffset: PendingWrites._drop_group_offset,
    PutSetting: PendingWrites._put_setting,
    RecordedChange: PendingWrites._put_history,
    PutQuota: PendingWrites._put_quota,
    PutAcl: PendingWrites._put_acl,
    DropAcl: PendingWrites._drop_acl,
    PutScramCredential: PendingWrites._put_scram_credential,
    DropScramCredential: PendingWrites._drop_scram_credential,
    PutTransaction: PendingWrites._put_transaction,
    DropTransaction: PendingWrites._drop_transaction,
    PutPendingOffset: PendingWrites._put_pending_offset,
    DropPendingOffset: PendingWrites._drop_pending_offset,
    PutDecision: PendingWrites._put_decision,
    DropDecision: PendingWrites._drop_decision,
}


def _acl_row(acl: PutAcl) -> Row:
    return (
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )


def read_topics(database: Database) -> list[PutTopic]:
    """Return all topics by name."""
    rows = database.execute("SELECT topic_id, name, is_internal, partitions FROM topics ORDER BY name")
    return [
        PutTopic(
            topic_id=UUID(bytes=topic_id),
            name=name,
            is_internal=bool(is_internal),
            partitions=tuple(tuple(replicas) for replicas in json.loads(partitions)),
        )
        for topic_id, name, is_internal, partitions in rows
    ]


def read_configs(database: Database) -> list[PutConfig]:
    """Return all dynamic configs by resource and name."""
    rows = database.execute("SELECT resource_type, resource_name, name, value FROM configs ORDER BY 1, 2, 3")
    return [PutConfig(*row) for row in rows]


def read_client_configs(database: Database) -> list[PutClientConfig]:
    """Return all client configs by entity and name."""
    rows = database.execute("SELECT entity, name, value FROM client_configs ORDER BY 1, 2")
    return [_client_config(json.loads(entity), name, value) for entity, name, value in rows]


def _client_config(entity: Mapping[str, str | None], name: str, value: str) -> PutClientConfig:
    return PutClientConfig(
        user=entity["user"],
        client_id=entity.get("client_id"),
        has_client_id="client_id" in entity,
        name=name,
        value=value,
    )


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def read_groups(database: Database) -> list[PutGroup]:
    """Return all groups by id."""
    rows = database.execute("SELECT group_id, payload FROM groups ORDER BY 1")
    return [PutGroup(group_id=group_id, payload=bytes(payload)) for group_id, payload in rows]


def read_group_offsets(database: Database) -> list[PutGroupOffset]:
    """Return all committed offsets by group, topic id and partition."""
    rows = database.execute(
        "SELECT group_id, topic_id, partition, committed_offset, leader_epoch, metadata, commit_timestamp_ms,"
        " expire_timestamp_ms FROM group_offsets ORDER BY 1, 2, 3"
    )
    return [
        PutGroupOffset(
            group_id=group_id,
            topic_id=UUID(bytes=topic_id),
            partition=partition,
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=metadata,
            commit_timestamp_ms=commit_ms,
            expire_timestamp_ms=expire_ms,
        )
        for group_id, topic_id, partition, offset, leader_epoch, metadata, commit_ms, expire_ms in rows
    ]


def read_settings(database: Database) -> list[PutSetting]:
    """Return all settings by name."""
    rows: Iterable[Sequence[str]] = database.execute("SELECT name, value FROM settings ORDER BY 1")
    return [PutSetting(name=name, value=value) for name, value in rows]


def read_history(database: Database, *, resource: str | None, limit: int) -> list[RecordedChange]:
    """Return the newest ``limit`` history entries, newest first; of one resource, or of all if it is None."""
    rows = database.execute(
        "SELECT at_ms, resource, name, old, new, principal, client_id FROM history"
        " WHERE ? IS NULL OR resource = ? ORDER BY sequence DESC LIMIT ?",
        (resource, resource, limit),
    )
    return [
        RecordedChange(at_ms=at_ms, resource=of, name=name, old=old, new=new, principal=principal, client_id=client_id)
        for at_ms, of, name, old, new, principal, client_id in rows
    ]


def read_quotas(database: Database) -> list[PutQuota]:
    """Return all client quotas by entity and name."""
    rows = database.execute("SELECT entity, name, value FROM client_quotas ORDER BY 1, 2")
    return [
        PutQuota(entity=tuple((kind, name) for kind, name in json.loads(entity)), name=key, value=value)
        for entity, key, value in rows
    ]


def read_acls(database: Database) -> list[PutAcl]:
    """Return all ACL entries by resource."""
    rows = database.execute(
        "SELECT resource_type, resource_name, pattern_type, principal, host, operation, permission FROM acls"
        " ORDER BY 1, 2, 3, 4, 5, 6, 7"
    )
    return [
        PutAcl(
            resource_type=resource_type,
            resource_name=resource_name,
            pattern_type=pattern_type,
            principal=principal,
            host=host,
            operation=operation,
            permission=permission,
        )
        for resource_type, resource_name, pattern_type, principal, host, operation, permission in rows
    ]


def read_scram_credentials(database: Database) -> list[PutScramCredential]:
    """Return all SCRAM credentials by user and mechanism."""
    rows = database.execute(
        "SELECT user, mechanism, salt, stored_key, server_key, iterations FROM scram_credentials ORDER BY 1, 2"
    )
    return [
        PutScramCredential(
            user=user,
            mechanism=mechanism,
            salt=bytes(salt),
            stored_key=bytes(stored_key),
            server_key=bytes(server_key),
            iterations=iterations,
        )
        for user, mechanism, salt, stored_key, server_key, iterations in rows
    ]


def read_transactions(database: Database) -> list[PutTransaction]:
    """Return the stored transactional ids, by id."""
    rows = database.execute("SELECT transactional_id, payload FROM transactions ORDER BY 1")
    return [PutTransaction(transactional_id=name, payload=bytes(payload)) for name, payload in rows]


def read_decisions(database: Database) -> list[PutDecision]:
    """Return the decisions of transactions whose markers may not be durable, in order."""
    rows = database.execute("SELECT number, payload FROM decisions ORDER BY 1")
    return [PutDecision(number=number, payload=bytes(payload)) for number, payload in rows]


def read_pending_offsets(database: Database) -> list[PutPendingOffset]:
    """Return all pending offsets of open transactions."""
    rows = database.execute(
        "SELECT producer_id, group_id, topic_id, partition, committed_offset, leader_epoch, metadata,"
        " commit_timestamp_ms FROM pending_offsets ORDER BY 1, 2, 3, 4"
    )
    return [
        PutPendingOffset(
            producer_id=producer_id,
            commit=PutGroupOffset(
                group_id=group_id,
                topic_id=UUID(bytes=topic_id),
                partition=partition,
                offset=offset,
                leader_epoch=leader_epoch,
                metadata=metadata,
                commit_timestamp_ms=commit_ms,
            ),
        )
        for producer_id, group_id, topic_id, partition, offset, leader_epoch, metadata, commit_ms in rows
    ]
