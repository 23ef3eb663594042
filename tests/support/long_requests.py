"""Requests of every API with as many entries as wanted, in each place where a request can have many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from klamm.broker.routes import ROUTES
from klamm.protocol.api import ApiKey
from klamm.protocol.codec import ELEMENTS_GRANTED_TO_ALL, decode, encode
from klamm.protocol.errors import TooManyElementsError
from klamm.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from klamm.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from klamm.protocol.schema import Field, Message, Struct
    from klamm.server.route import Route

_OTHER_SHAPES: Final[dict[ApiKey, type[Message]]] = {
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: DescribeUserScramCredentialsRequest,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: AlterUserScramCredentialsRequest,
}
"""Requests that share their key with the request of the route."""
TOPIC: Final = "many"
PARTITIONS: Final = 500
"""Of the topic that the requests name when their many entries are something else."""
_SIMPLE: Final = {"bool": False, "float64": 3.0, "bytes": b"x", "records": b"", "uuid": UUID(int=3)}
_NAMES: Final = {
    "name": TOPIC,
    "topic": TOPIC,
    "topic_name": TOPIC,
    "resource_name": TOPIC,
    "group_id": "group",
    "member_id": "",
    "group_instance_id": None,
    "transactional_id": "t",
    "mechanism": "1",
    "value": "1",
    "key": "flush.ms",
    "entity_type": "client-id",
    "principal": "User:a",
    "host": "*",
    "cursor": None,
    "committed_metadata": "",
    "rack_id": "",
    "assignments": None,
}
_NUMBERS: Final = {
    "resource_type": 2,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "retention_time_ms": -1,
    "session_id": 0,
    "session_epoch": -1,
    "current_leader_epoch": -1,
    "last_fetched_epoch": -1,
    "replica_id": -1,
    "max_wait_ms": 0,
    "isolation_level": 0,
    "fetch_offset": 0,
    "config_operation": 0,
    "timestamp": -1,
    "timeout_ms": 100,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 2,
    "acks": -1,
    "operation": 3,
    "permission_type": 3,
    "pattern_type": 3,
    "resource_pattern_type": 3,
    "resource_type_filter": 2,
    "pattern_type_filter": 3,
}


class LongRequest(NamedTuple):
    """One request whose many entries are in one place."""

    route: Route
    place: str
    """The field, dotted."""
    request: Message
    version: int

    @property
    def name(self) -> str:
        """The API and the place."""
        return f"{self.route.api.key.name} {self.place}"


def long_requests(count: int, *, without: tuple[str, ...] = ()) -> Iterator[LongRequest]:
    """Yield a request for each place of each API, in its highest version.

    Args:
        count: How many entries.
        without: What the names of those begin with that are not wanted.
    """
    for route, cls, place in _all_places():
        if not f"{route.api.key.name} {place}".startswith(without):
            yield _long_request(route, cls, place, count)


def largest_requests(names: Collection[str] = ()) -> Iterator[LongRequest]:
    """Yield a request with as many entries as the decoder takes, for each place of each API.

    Args:
        names: Names of the wanted ones; empty for all.
    """
    for route, cls, place in _all_places():
        if not names or f"{route.api.key.name} {place}" in names:
            few = _long_request(route, cls, place, 1000)
            yield _long_request(route, cls, place, _most_entries(few))


def _most_entries(few: LongRequest) -> int:
    """Return how many entries a request may have that has 1000 now, if its frame is padded."""
    body = encode(few.request, few.version)
    too_few, elements = 0, len(body)
    while elements - too_few > 1:
        middle = (too_few + elements) // 2
        try:
            decode(type(few.request), few.version, body, max_elements=middle)
            elements = middle
        except TooManyElementsError:
            too_few = middle
    # The frames of some requests must not be padded.
    most = few.route.most_elements if few.route.decode_raw is None else ELEMENTS_GRANTED_TO_ALL
    return most * 1000 // (elements + 10)


def _all_places() -> Iterator[tuple[Route, type[Message], str]]:
    for route in ROUTES.values():
        others = [_OTHER_SHAPES[route.api.key]] if route.api.key in _OTHER_SHAPES else []
        for cls in (route.request, *others):
            if cls.VERSIONS[0] <= route.api.max_version <= cls.VERSIONS[1]:
                for place in _places(cls, route.api.max_version):
                    yield route, cls, ".".join(place)


def _long_request(route: Route, cls: type[Message], place: str, count: int) -> LongRequest:
    version = route.api.max_version
    return LongRequest(route, place, _fill(cls, version, tuple(place.split(".")), count, 0), version)


def _places(cls: type[Struct], version: int) -> Iterator[tuple[str, ...]]:
    for field in cls.FIELDS:
        if not field.in_version(version):
            continue
        if field.is_array:
            yield (field.name,)
        if field.struct is not None:
            yield from ((field.name, *inner) for inner in _places(field.struct, version))


def _fill(cls: type[Struct], version: int, place: tuple[str, ...], count: int, number: int) -> Any:
    """Build a struct; its ``number`` makes it differ from its neighbours."""
    return cls(
        **{
            field.name: _value(field, version, place[1:] if place[:1] == (field.name,) else (), count, number)
            if place[:1] == (field.name,)
            else _plain(field, version, number)
            for field in cls.FIELDS
            if field.in_version(version)
        }
    )


def _value(field: Field, version: int, rest: tuple[str, ...], count: int, number: int) -> Any:
    """Return what stands where the many entries are, or on the way there."""
    if rest:
        assert field.struct is not None
        inner = _fill(field.struct, version, rest, count, number)
        return [inner] if field.is_array else inner
    if field.struct is not None:
        return [_numbered(field.struct, version, index) for index in range(count)]
    return [_scalar(field, index, is_many=True) for index in range(count)]


def _numbered(cls: type[Struct], version: int, index: int) -> Any:
    """Build one of many: its first name or number is its own."""
    values = {field.name: _plain(field, version, index) for field in cls.FIELDS if field.in_version(version)}
    for field in cls.FIELDS:
        if field.name in values and not field.is_array and field.struct is None:
            is_index = field.kind in {"int32", "int64"} and "partition" in field.name
            if field.kind == "string" or is_index:
                values[field.name] = _scalar(field, index, is_many=True)
                break
    return cls(**values)


def _plain(field: Field, version: int, number: int) -> Any:
    if field.is_array:
        if field.name in _NAMES or (field.struct is None and field.kind == "string"):
            return None if field.name in _NAMES else []
        element = _fill(field.struct, version, (), 0, number) if field.struct is not None else _scalar(field, number)
        return [element]
    if field.struct is not None:
        return _fill(field.struct, version, (), 0, number)
    return _scalar(field, number)


def _scalar(field: Field, number: int, *, is_many: bool = False) -> Any:
    if field.kind in _SIMPLE:
        return UUID(int=number + 3) if field.kind == "uuid" and is_many else _SIMPLE[field.kind]
    if field.kind == "string":
        if is_many and field.name != "entity_type":
            return f"n{number:07}"
        return f"n{number:07}" if field.name == "entity_name" else _NAMES.get(field.name, "x")
    if is_many or ("partition" in field.name and field.name != "num_partitions"):
        return number % PARTITIONS if field.kind not in {"int8"} else number % 100
    return _NUMBERS.get(field.name, 1)
