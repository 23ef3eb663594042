"""A valid-looking request of any API and version, with two parts wherever a request lists parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from klamm.protocol.records import Record, encode_batch

if TYPE_CHECKING:
    from klamm.protocol.schema import Field, Message, Struct

AnyMessage = TypeVar("AnyMessage", bound="Message")

TOPICS: Final = ("apples", "pears")
"""Topics that the requests name; each has two partitions."""
TOPIC_IDS: Final = (UUID(int=1001), UUID(int=1002))
_TOPIC_FIELDS: Final = ("name", "topic", "resource_name")
_PARTITION_FIELDS: Final = ("index", "partition", "partition_index", "partition_id")
_STRINGS: Final[dict[str, str | None]] = {
    "member_id": "",
    "group_instance_id": None,
    "committed_metadata": "",
    "config_operation": "0",
    "value": "1",
    "key": "group",
    "host": "*",
    "principal": "User:a",
    "entity_type": "user",
    "match": None,
    "cluster_id": None,
    "principal_filter": None,
    "host_filter": None,
    "transactional_id_pattern": None,
}
_NUMBERS: Final = {
    "resource_type": 2,
    "acks": -1,
    "timeout_ms": 1000,
    "session_epoch": -1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "current_leader_epoch": -1,
    "last_fetched_epoch": -1,
    "timestamp": -1,
    "num_partitions": 1,
    "replication_factor": 1,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "transaction_timeout_ms": 10_000,
    "operation": 3,
    "permission_type": 3,
    "resource_pattern_type": 3,
    "pattern_type_filter": 3,
    "resource_type_filter": 2,
    "partition_max_bytes": 1000,
    "max_bytes": 1000,
    "count": 3,
    "retention_time_ms": -1,
    "response_partition_limit": 100,
}
_EMPTY: Final = ("assignments", "configs", "supported_configs", "state_filters", "producer_id_filters", "states_filter")
"""Arrays that stay empty: they list nothing that has a result of its own."""


def sample(request: type[AnyMessage], version: int) -> AnyMessage:
    """Return a request with two parts at each level."""
    filled: AnyMessage = _filled(request, version, 0)
    return filled


def _filled(cls: type[Any], version: int, number: int) -> Any:
    fields: tuple[Field, ...] = cls.FIELDS
    return cls(**{field.name: _value(field, version, number) for field in fields if field.in_version(version)})


def _value(field: Field, version: int, number: int) -> Any:
    if field.is_array:
        if field.name in _EMPTY or field.name == "forgotten_topics_data":
            return []
        struct: type[Struct] | None = field.struct
        if struct is not None:
            return [_filled(struct, version, index) for index in range(2)]
        return [_scalar(field, index) for index in range(2)]
    if field.struct is not None:
        return None if field.is_nullable(version) else _filled(field.struct, version, number)
    return _scalar(field, number)


def _scalar(field: Field, number: int) -> Any:
    if field.kind == "string":
        return _string(field, number)
    if field.kind == "records":
        return bytes(encode_batch([Record(key=None, value=b"1", timestamp=1)]))
    if field.kind == "uuid":
        return TOPIC_IDS[number] if field.name == "topic_id" else UUID(int=0)
    plain = {"bytes": b"", "bool": field.name == "validate_only", "float64": 1.0}
    return plain.get(field.kind, _number(field, number))


def _number(field: Field, number: int) -> int:
    is_partition = field.name in _PARTITION_FIELDS or field.name in {"partitions", "partition_indexes"}
    return _NUMBERS.get(field.name, number if is_partition or field.name == "producer_id" else 0)


def _string(field: Field, number: int) -> str | None:
    if field.name in _STRINGS:
        return _STRINGS[field.name]
    if field.name in _TOPIC_FIELDS or field.name == "topic_names":
        return TOPICS[number]
    return f"{field.name}-{number}"
