"""The bytes of the KIP-649 messages, compared with the KIP."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import ProtocolError
from klamm.protocol.messages.alter_client_configs import AlterClientConfigsRequest, AlterClientConfigsResponse
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse

if TYPE_CHECKING:
    from klamm.protocol.schema import Message

DESCRIBE_REQUEST = (
    "00000002 0004 75736572 00 0005 616c696365 0009 636c69656e742d6964 00 0004 61707031 ffffffff 00 01",
    DescribeClientConfigsRequest(
        components=[
            DescribeClientConfigsRequest.ComponentData(entity_type="user", match_type=0, match="alice"),
            DescribeClientConfigsRequest.ComponentData(entity_type="client-id", match_type=0, match="app1"),
        ],
        supported_configs=None,
        resolve_entity=False,
        strict=True,
    ),
)
DESCRIBE_RESPONSE = (
    "00000000 0000 ffff 00000001 00000002 0004 75736572 0005 616c696365 00000000 0009 636c69656e742d6964 0004 61707031 "
    "00000001 0017 6170616368652d6b61666b612d707974686f6e2f312e30 00000001 0004 61636b73 "
    "00000001 0004 61636b73 0003 616c6c",
    DescribeClientConfigsResponse(
        error_message=None,
        entries=[
            DescribeClientConfigsResponse.EntryData(
                entity=[
                    DescribeClientConfigsResponse.EntityData(entity_type="user", entity_name="alice"),
                    DescribeClientConfigsResponse.EntityData(
                        entity_type="client-id",
                        entity_name="app1",
                        entity_compatibility=[
                            DescribeClientConfigsResponse.VersionData(
                                client_information="apache-kafka-python/1.0", supported_configs=["acks"]
                            )
                        ],
                    ),
                ],
                values=[DescribeClientConfigsResponse.ValueData(key="acks", value="all")],
            )
        ],
    ),
)
FAILED_DESCRIBE_RESPONSE = (
    "00000000 002a 0002 6e6f ffffffff",
    DescribeClientConfigsResponse(error_code=42, error_message="no", entries=None),
)
ALTER_REQUEST = (
    "00000001 00000001 0004 75736572 0005 616c696365 00000001 0004 61636b73 0003 616c6c 00 00",
    AlterClientConfigsRequest(
        entries=[
            AlterClientConfigsRequest.EntryData(
                entity=[AlterClientConfigsRequest.EntityData(entity_type="user", entity_name="alice")],
                ops=[AlterClientConfigsRequest.OpData(key="acks", value="all", remove=False)],
            )
        ],
        validate_only=False,
    ),
)
ALTER_RESPONSE = (
    "00000000 00000001 0000 ffff 00000001 0004 75736572 0005 616c696365",
    AlterClientConfigsResponse(
        entries=[
            AlterClientConfigsResponse.EntryData(
                error_message=None,
                entity=[AlterClientConfigsResponse.EntityData(entity_type="user", entity_name="alice")],
            )
        ]
    ),
)
ALL = (DESCRIBE_REQUEST, DESCRIBE_RESPONSE, FAILED_DESCRIBE_RESPONSE, ALTER_REQUEST, ALTER_RESPONSE)


@pytest.mark.parametrize(("text", "message"), ALL)
def test_messages_have_the_bytes_of_the_kip(text: str, message: Message) -> None:
    """K649-03, K649-04, K649-05, K649-06, K649-07, K649-08, K649-09, K649-10, K649-11, K649-12, K649-13.

    Entity types and null entries: K649-14, K649-16.
    """
    data = bytes.fromhex(text)
    assert bytes(encode(message, 0)) == data
    assert decode(type(message), 0, data) == message


@pytest.mark.parametrize(("text", "message"), ALL)
def test_message_truncated_anywhere_is_rejected(text: str, message: Message) -> None:
    data = bytes.fromhex(text)
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            decode(type(message), 0, data[:size])


@pytest.mark.parametrize(
    ("message_class", "text"),
    [
        (DescribeClientConfigsRequest, "ffffffff ffffffff 00 00"),
        (DescribeClientConfigsRequest, "00000001 ffff 00 ffff ffffffff 00 00"),
        (AlterClientConfigsRequest, "00000001 00000000 00000001 0004 61636b73 ffff 01 00"),
        (AlterClientConfigsRequest, "ffffffff 00"),
    ],
    ids=["null components", "null entity type", "null value of an op", "null entries"],
)
def test_null_in_non_nullable_field_is_rejected(message_class: type[Message], text: str) -> None:
    """K649-03: Describe request field 1 ``Components``: array, not nullable.

    K649-15: Op.Value is a non-null string even for Remove; it is ignored then (clients send "").
    """
    with pytest.raises(ProtocolError):
        decode(message_class, 0, bytes.fromhex(text))


@pytest.mark.parametrize(
    ("message_class", "key"),
    [
        (DescribeClientConfigsRequest, 50),
        (DescribeClientConfigsResponse, 50),
        (AlterClientConfigsRequest, 51),
        (AlterClientConfigsResponse, 51),
    ],
)
def test_only_version_0_exists_and_is_not_flexible(message_class: type[Message], key: int) -> None:
    """K649-01: DescribeClientConfigs has api key 50, versions 0..0.

    K649-02: AlterClientConfigs has api key 51, versions 0..0.
    """
    assert (key, (0, 0)) == (message_class.API_KEY, message_class.VERSIONS)
    assert not message_class.is_flexible(0)


# ---- the schemas once more, declared by hand from the KIP, with a writer of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """INT16 length, UTF-8; -1 is null."""

    nullable: bool = False

    def values(self) -> st.SearchStrategy[Any]:
        text = st.text(max_size=12)
        return st.none() | text if self.nullable else text

    def write(self, value: Any) -> bytes:
        if value is None:
            return b"\xff\xff"
        data: bytes = value.encode()
        return struct.pack(">h", len(data)) + data

    def of(self, value: Any) -> Any:
        return value


@dataclass(frozen=True, slots=True)
class Fixed:
    """A number, or a boolean, of a fixed width."""

    code: str

    def values(self) -> st.SearchStrategy[Any]:
        if self.code == "?":
            return st.booleans()
        bits = 8 * struct.calcsize(f">{self.code}")
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def write(self, value: Any) -> bytes:
        return struct.pack(f">{self.code}", value)

    def of(self, value: Any) -> Any:
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """INT32 count, then the elements; -1 is null."""

    item: Text | Fields
    nullable: bool = False

    def values(self) -> st.SearchStrategy[Any]:
        many = st.lists(self.item.values(), max_size=3)
        return st.none() | many if self.nullable else many

    def write(self, value: Any) -> bytes:
        if value is None:
            return b"\xff\xff\xff\xff"
        return struct.pack(">i", len(value)) + b"".join(self.item.write(element) for element in value)

    def of(self, value: Any) -> Any:
        return None if value is None else [self.item.of(element) for element in value]


class Fields:
    """Fields one behind the other; its values are dictionaries, and ``made`` what the codec reads and writes."""

    def __init__(self, made: Any, **fields: Text | Fixed | Many) -> None:
        self._made = made
        self._fields = fields

    def values(self) -> st.SearchStrategy[Any]:
        return st.fixed_dictionaries({name: field.values() for name, field in self._fields.items()})

    def write(self, value: Any) -> bytes:
        return b"".join(field.write(value[name]) for name, field in self._fields.items())

    def of(self, value: Any) -> Any:
        return self._made(**{name: field.of(value[name]) for name, field in self._fields.items()})


INT8, INT16, INT32, BOOL, TEXT, NULLABLE = Fixed("b"), Fixed("h"), Fixed("i"), Fixed("?"), Text(), Text(nullable=True)
DECLARED = {
    "describe request": Fields(
        DescribeClientConfigsRequest,
        components=Many(
            item=Fields(DescribeClientConfigsRequest.ComponentData, entity_type=TEXT, match_type=INT8, match=NULLABLE)
        ),
        supported_configs=Many(item=TEXT, nullable=True),
        resolve_entity=BOOL,
        strict=BOOL,
    ),
    "describe response": Fields(
        DescribeClientConfigsResponse,
        throttle_time_ms=INT32,
        error_code=INT16,
        error_message=NULLABLE,
        entries=Many(
            nullable=True,
            item=Fields(
                DescribeClientConfigsResponse.EntryData,
                entity=Many(
                    item=Fields(
                        DescribeClientConfigsResponse.EntityData,
                        entity_type=TEXT,
                        entity_name=NULLABLE,
                        entity_compatibility=Many(
                            item=Fields(
                                DescribeClientConfigsResponse.VersionData,
                                client_information=TEXT,
                                supported_configs=Many(item=TEXT),
                            )
                        ),
                    )
                ),
                values=Many(item=Fields(DescribeClientConfigsResponse.ValueData, key=TEXT, value=TEXT)),
            ),
        ),
    ),
    "alter request": Fields(
        AlterClientConfigsRequest,
        entries=Many(
            item=Fields(
                AlterClientConfigsRequest.EntryData,
                entity=Many(item=Fields(AlterClientConfigsRequest.EntityData, entity_type=TEXT, entity_name=NULLABLE)),
                ops=Many(item=Fields(AlterClientConfigsRequest.OpData, key=TEXT, value=TEXT, remove=BOOL)),
            )
        ),
        validate_only=BOOL,
    ),
    "alter response": Fields(
        AlterClientConfigsResponse,
        throttle_time_ms=INT32,
        entries=Many(
            item=Fields(
                AlterClientConfigsResponse.EntryData,
                error_code=INT16,
                error_message=NULLABLE,
                entity=Many(item=Fields(AlterClientConfigsResponse.EntityData, entity_type=TEXT, entity_name=NULLABLE)),
            )
        ),
    ),
}


@pytest.mark.parametrize("name", DECLARED)
@given(data=st.data())
def test_any_message_has_the_bytes_of_an_independent_declaration(name: str, data: st.DataObject) -> None:
    """K649-03: Describe request field 1 ``Components``: array, not nullable.

    K649-05: Describe request field 2 ``SupportedConfigs``: array of string, nullable (-1).

    K649-07: Describe response: ThrottleTimeMs int32, ErrorCode int16, ErrorMessage nullable string, Entries nullable
    array.

    K649-09: Describe-response EntityData = EntityType string, EntityName nullable string (null = default),
    EntityCompatibility array (not nullable).

    K649-12: Alter request: Entries array{Entity array{EntityType string, EntityName nullable string}, Ops array{Key
    string, Value string, Remove bool}}, ValidateOnly bool last.

    K649-13: Alter response: ThrottleTimeMs int32, Entries array{ErrorCode int16, ErrorMessage nullable string, Entity
    array{EntityType, nullable EntityName}}.
    """
    declared = DECLARED[name]
    value = data.draw(declared.values())
    message = declared.of(value)
    assert bytes(encode(message, 0)) == declared.write(value)
    assert decode(type(message), 0, declared.write(value), is_whole=True) == message
