"""The codec against two other codecs, and the decoder contract, point by point."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import random
import re
import struct
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import kio.serial as kio
import pytest

import klamm.protocol.messages as generated
from klamm.protocol.api import ApiKey
from klamm.protocol.codec import decode, encode, granted_elements
from klamm.protocol.errors import ProtocolError
from klamm.protocol.messages.alter_configs import AlterConfigsRequest
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.messages.offset_commit import OffsetCommitRequest
from klamm.protocol.primitives import random_uuid, skip_tagged_fields, uuid_text, write_uvarint
from klamm.protocol.schema import Field, Message, Struct
from tests.support.cases import case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OWN_SCHEMAS = {"describe_client_configs", "alter_client_configs"}
MEGABYTE = 1 << 20
IS_SOAK = bool(os.environ.get("KLAMM_SOAK"))
FEW = 50 if IS_SOAK else 5
"""Random examples of each of the hundred messages."""


def _messages() -> list[type[Message]]:
    names = sorted(path.stem for path in Path(generated.__path__[0]).glob("*.py") if path.stem != "__init__")
    return [
        value
        for name in names
        if name not in OWN_SCHEMAS
        for value in vars(importlib.import_module(f"klamm.protocol.messages.{name}")).values()
        if isinstance(value, type) and issubclass(value, Message) and value is not Message
    ]


MESSAGES = _messages()
APIS = [cls for cls in MESSAGES if not cls.__name__.endswith("Record")]
"""Requests and responses. The records of the metadata log are in neither of the other codecs."""
UNKNOWN_TO_KAFKA_PYTHON = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
    ApiKey.ALTER_PARTITION,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.BROKER_REGISTRATION,
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.ALLOCATE_PRODUCER_IDS,
}
"""Messages that kafka-python does not have; kio has them."""
RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}


def _drawn_value(field: Field, version: int, drawn: random.Random) -> Any:
    if field.is_nullable(version) and drawn.random() < 0.2:
        return None
    if field.is_array:
        return [_drawn_item(field, version, drawn) for _ in range(drawn.randrange(4))]
    return _drawn_item(field, version, drawn)


def _drawn_item(field: Field, version: int, drawn: random.Random) -> Any:
    if field.kind in RANGES:
        low, high = RANGES[field.kind]
        return drawn.choice((low, high, 0, 1, drawn.randint(low, high)))
    if field.kind == "struct":
        assert field.struct is not None
        return drawn_struct(field.struct, version, drawn)
    size = drawn.randrange(9)
    values: dict[str, Callable[[], object]] = {
        "bool": lambda: drawn.random() < 0.5,
        "float64": lambda: drawn.choice((0.0, -0.5, math.inf, drawn.uniform(-1e300, 1e300))),
        "string": lambda: "".join(drawn.choices("a\0 ~é\uffff\U0010ffff", k=size)),
        "bytes": lambda: drawn.randbytes(size),
        "records": lambda: drawn.randbytes(size),
        "uuid": lambda: UUID(bytes=drawn.randbytes(16)),
    }
    return values[field.kind]()


def drawn_struct(cls: type[Struct], version: int, drawn: random.Random) -> Struct:
    """Draw a value of each field that exists in ``version``; the others keep their default."""
    return cls(**{field.name: _drawn_value(field, version, drawn) for field in cls.FIELDS if field.in_version(version)})


def drawn_messages(cls: type[Message], last_version: int) -> Iterator[tuple[int, Any]]:
    """Yield some versions, each with a message; the same ones in each run but the soak."""
    drawn = random.Random(None if IS_SOAK else cls.__name__)
    for _ in range(FEW):
        version = drawn.randint(cls.VERSIONS[0], last_version)
        yield version, drawn_struct(cls, version, drawn)


def test_whole_body_round_trips_and_truncated_body_is_a_protocol_error() -> None:
    for cls in MESSAGES:
        for version, message in drawn_messages(cls, cls.VERSIONS[1]):
            with case(message, version):
                body = bytes(encode(message, version))
                assert decode(cls, version, body) == message
                for length in range(0, len(body), 1 + len(body) // 50):
                    with pytest.raises(ProtocolError):
                        decode(cls, version, body[:length])


def test_random_bytes_decode_or_raise_protocol_error() -> None:
    for cls in MESSAGES:
        with case(cls.__name__):
            drawn = random.Random(None if IS_SOAK else cls.__name__)
            for _ in range(10 * FEW):
                noise = drawn.randbytes(drawn.randrange(200))
                for version in range(cls.VERSIONS[0], cls.VERSIONS[1] + 1):
                    with contextlib.suppress(ProtocolError):
                        decode(cls, version, noise)


@pytest.mark.long
def test_messages_round_trip_through_kio() -> None:
    for cls in APIS:
        with case(cls.__name__):
            module, name = cls.__module__.rpartition(".")[2], cls.__name__
            kind = "request" if name.endswith("Request") else "response"
            first, last = cls.VERSIONS
            for version in range(first, last + 1) if IS_SOAK else {first, (first + last) // 2, last}:
                try:
                    theirs = getattr(importlib.import_module(f"kio.schema.{module}.v{version}.{kind}"), name)
                except ModuleNotFoundError:
                    continue  # kio knows a narrower range of versions
                message = cls()
                body = bytes(encode(message, version))
                value, size = kio.entity_reader(theirs)(body, 0)
                assert size == len(body)
                out = io.BytesIO()
                kio.entity_writer(theirs)(out, value)
                assert decode(cls, version, out.getvalue()) == message


@pytest.mark.long
def test_kafka_python_writes_the_same_bytes() -> None:
    for cls in (cls for cls in APIS if cls.API_KEY not in UNKNOWN_TO_KAFKA_PYTHON):
        theirs = _kafka_python_class(cls)
        for version, message in drawn_messages(cls, min(cls.VERSIONS[1], theirs.max_version)):
            with case(message, version):
                if isinstance(message, ApiVersionsResponse):
                    message.error_code = 0  # kafka-python reads every other answer as v0
                written = bytes(encode(message, version))
                read = theirs.decode(written, version=version)
                read._header = None  # what decode without a header leaves unset and encode looks at
                assert bytes(read.encode(version=version)) == written


def _kafka_python_class(cls: type[Message]) -> Any:
    for part in ("admin", "consumer", "producer", "metadata", "sasl"):
        module = importlib.import_module(f"kafka.protocol.{part}")
        if hasattr(module, cls.__name__):
            return getattr(module, cls.__name__)
    raise AssertionError(f"kafka-python has no {cls.__name__}")


def _alter(body: str) -> bytes:
    return bytes.fromhex(body.replace(" ", ""))


def test_kip_339_example_decodes_field_by_field() -> None:
    """K339-02: Request v0 body = array resources{int8 type, string name, array configs{string name, int8 op, nullable
    string value}}, then bool validate_only (after the array, not before).
    """
    body = _alter(
        "00000001 02 0002 7431 00000002 000c 726574656e74696f6e2e6d73 00 0004 31303030"
        "000e 636c65616e75702e706f6c696379 02 0007 636f6d70616374 00"
    )
    request = decode(IncrementalAlterConfigsRequest, 0, body)
    (resource,) = request.resources
    assert (resource.resource_type, resource.resource_name, request.validate_only) == (2, "t1", False)
    assert [(config.name, config.config_operation, config.value) for config in resource.configs] == [
        ("retention.ms", 0, "1000"),
        ("cleanup.policy", 2, "compact"),
    ]
    assert encode(request, 0) == body


@pytest.mark.parametrize(
    ("cls", "version", "body"),
    [
        pytest.param(IncrementalAlterConfigsRequest, 0, "00000001 02 ffff 00000000 00", id="null string"),
        pytest.param(IncrementalAlterConfigsRequest, 0, "ffffffff 00", id="null array"),
        pytest.param(IncrementalAlterConfigsRequest, 1, "00 00 00", id="null compact array"),
        pytest.param(IncrementalAlterConfigsRequest, 1, "02 02 00 01 00 00 00", id="null compact string"),
        pytest.param(IncrementalAlterConfigsRequest, 0, "fffffffe 00", id="negative count"),
        pytest.param(IncrementalAlterConfigsRequest, 0, "00000001 02 fffe 00000000 00", id="negative string length"),
        pytest.param(IncrementalAlterConfigsRequest, 0, "7fffffff 00", id="count beyond the bytes left"),
        pytest.param(IncrementalAlterConfigsRequest, 1, "8180808080 00 00 00", id="varint of six bytes"),
        pytest.param(IncrementalAlterConfigsRequest, 1, "ffffffff7f 00 00", id="varint of more than 32 bits"),
        pytest.param(IncrementalAlterConfigsRequest, 0, "00000001 02 0001 ff 00000000 00", id="invalid UTF-8"),
        pytest.param(IncrementalAlterConfigsRequest, 1, "01 00 01 20 09 61", id="tagged field beyond the end"),
        pytest.param(ApiVersionsRequest, 3, "00 00 00", id="null software name"),
        pytest.param(CreateTopicsRequest, 7, "00 00000000 00 00", id="null topics"),
    ],
)
def test_malformed_body_is_rejected(cls: type[Message], version: int, body: str) -> None:
    with pytest.raises(ProtocolError):
        decode(cls, version, _alter(body))


def test_string_that_fits_no_older_version_is_rejected() -> None:
    """As in Kafka. Stored under such a name, a config would make every description in an older version fail."""

    def compact(text: str) -> bytearray:
        data = bytearray()
        write_uvarint(data, len(text.encode()) + 1)
        return data + text.encode()

    def read(resource_name: str, name: str, value: str) -> IncrementalAlterConfigsRequest:
        config = b"\x02" + compact(name) + b"\x00" + compact(value) + b"\x00"
        resource = b"\x02\x04" + compact(resource_name) + config + b"\x00"
        return decode(IncrementalAlterConfigsRequest, 1, resource + b"\x00\x00")

    for arguments in (("x" * 32_768, "a", "1"), ("1", "x" * 32_768, "1"), ("1", "ü" * 16_384, "1")):
        with pytest.raises(ProtocolError, match="name has more than 32767 bytes"):
            read(*arguments)
    longest = read("x" * 32_767, "ü" * 16_383, "x" * 40_000)  # the handler answers with INVALID_CONFIG
    assert decode(IncrementalAlterConfigsRequest, 1, encode(longest, 1)) == longest


@pytest.mark.parametrize("version", [1, 2, 5, 6])
def test_string_that_fits_no_older_version_is_not_written(version: int) -> None:
    name = "ü" * 16_384
    state = DeleteTopicsRequest.DeleteTopicState(name=name)
    with pytest.raises(ValueError, match=r"^DeleteTopicsRequest v. cannot be written: a value does not fit"):
        encode(DeleteTopicsRequest(topics=[state], topic_names=[name]), version)


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        ({"resource_type": "TOPIC"}, "resources[0].resource_type is 'TOPIC', which is no int8"),
        ({"resource_type": 200}, "resources[0].resource_type is 200, which is no int8"),
        ({"resource_name": 7}, "resources[0].resource_name is of type int, not str"),
        ({"configs": [("name", "SET")]}, "resources[0].configs[0] is of type tuple, not AlterableConfig"),
    ],
    ids=["text-for-number", "number-out-of-range", "number-for-text", "tuple-for-struct"],
)
def test_encode_error_names_field_and_unsuitable_value(resource: dict[str, Any], message: str) -> None:
    request = IncrementalAlterConfigsRequest(
        resources=[IncrementalAlterConfigsRequest.AlterConfigsResource(**resource)]
    )
    with pytest.raises(
        ValueError, match=rf"^IncrementalAlterConfigsRequest v1 cannot be written: {re.escape(message)}$"
    ):
        encode(request, 1)


def test_unknown_tagged_fields_and_trailing_bytes_are_ignored() -> None:
    request = decode(IncrementalAlterConfigsRequest, 1, _alter("01 01 01 20 03 616263 ffff"))
    assert request == IncrementalAlterConfigsRequest(resources=[], validate_only=True)


@pytest.mark.parametrize("filler", [b"\xff", b"\x7f", b"\x80", b"\x01"], ids=lambda filler: filler.hex())
@pytest.mark.parametrize(
    "cls", [ApiVersionsRequest, IncrementalAlterConfigsRequest, AlterConfigsRequest, MetadataRequest]
)
def test_megabyte_of_one_byte_is_decoded_in_bounded_time_and_memory(cls: type[Message], filler: bytes) -> None:
    """Each is rejected, or decoded if the bytes are valid, in bounded time and memory."""
    for version in range(cls.VERSIONS[0], cls.VERSIONS[1] + 1):
        body = filler * MEGABYTE
        with contextlib.suppress(ProtocolError):
            decode(cls, version, b"")
        tracemalloc.start()
        began = time.thread_time()
        with contextlib.suppress(ProtocolError):
            decode(cls, version, body)
        spent = time.thread_time() - began
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10 * MEGABYTE
        assert spent < 0.5, f"v{version} took {spent:.3f} s under tracemalloc"


def test_invalid_value_is_named_when_encoding() -> None:
    with pytest.raises(ValueError, match="resource_name is None"):
        encode(
            IncrementalAlterConfigsRequest(
                resources=[IncrementalAlterConfigsRequest.AlterConfigsResource(resource_name=None)]  # type: ignore[arg-type]
            ),
            1,
        )


def test_zero_uuid_means_null() -> None:
    topic = MetadataRequest.MetadataRequestTopic(name="t")
    request = decode(MetadataRequest, 12, encode(MetadataRequest(topics=[topic]), 12))
    assert request.topics is not None
    assert request.topics[0].topic_id == UUID(int=0)


def _topics(count: int, *, name: str = "topic-{:05}") -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[topic(name=name.format(index), num_partitions=1, replication_factor=1) for index in range(count)]
    )


def _alterations(count: int) -> IncrementalAlterConfigsRequest:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=0, value="1")
        for name in ("flush.ms", "retention.ms", "segment.ms")
    ]
    return IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=2, resource_name=f"t{index}", configs=configs) for index in range(count)]
    )


def _commits(count: int, partitions: int) -> OffsetCommitRequest:
    partition, topic = OffsetCommitRequest.OffsetCommitRequestPartition, OffsetCommitRequest.OffsetCommitRequestTopic
    rows = [partition(partition_index=index, committed_offset=1) for index in range(partitions)]
    return OffsetCommitRequest(
        group_id="g", topics=[topic(name=f"t{index}", partitions=rows) for index in range(count)]
    )


def _names(count: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=f"t{index}") for index in range(count)])


@pytest.mark.parametrize(
    ("message", "version"),
    [
        pytest.param(_topics(10_000, name="t{}"), 7, id="CreateTopics"),
        pytest.param(_alterations(10_000), 1, id="IncrementalAlterConfigs"),
        pytest.param(_commits(10_000, 1), 8, id="OffsetCommit, topics"),
        pytest.param(_commits(1, 50_000), 8, id="OffsetCommit, partitions"),
        pytest.param(_names(10_000), 1, id="Metadata"),
    ],
)
def test_large_valid_requests_are_decoded(message: Message, version: int) -> None:
    body = bytes(encode(message, version))
    assert decode(type(message), version, body, max_elements=granted_elements(len(body))) == message


def test_frame_of_tiny_elements_is_rejected_before_decoding() -> None:
    body = struct.pack(">i", 349_000) + struct.pack(">h", 1).join([b"", *[b"a"] * 349_000])
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="Arrays hold more elements than"):
            decode(MetadataRequest, 1, body, max_elements=granted_elements(len(body)))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_frame_of_empty_tagged_fields_is_rejected_before_decoding() -> None:
    body = b"\x01" + b"\x00" + b"\x00" + b"\x00" + b"\xff\xff\x7f" + b"\x05\x00" * 500_000
    with pytest.raises(ProtocolError, match="Arrays hold more elements than"):
        decode(MetadataRequest, 9, body, max_elements=granted_elements(len(body)))
    with pytest.raises(ProtocolError, match="Tagged section"):
        skip_tagged_fields(memoryview(b"\xe9\x07" + b"\x05\x00" * 1001), 0, 2004)
    assert skip_tagged_fields(memoryview(b"\xe8\x07" + b"\x05\x00" * 1000), 0, 2002) == 2002


def test_elements_of_nested_arrays_are_counted() -> None:
    body = bytes(encode(_commits(100, 300), 8))
    assert decode(OffsetCommitRequest, 8, body, max_elements=30_100)
    with pytest.raises(ProtocolError, match="Arrays hold more elements than"):
        decode(OffsetCommitRequest, 8, body, max_elements=30_099)


def test_largest_allowed_malformed_request_takes_bounded_memory() -> None:
    body = bytes(encode(_topics(20_000, name="a"), 2))[:-1]
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(CreateTopicsRequest, 2, body, max_elements=granted_elements(len(body)))
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


def test_random_uuid_text_never_starts_with_a_dash() -> None:
    dashed, plain = UUID("f8000000-0000-4000-8000-000000000000"), UUID("00000000-0000-4000-8000-000000000000")
    assert uuid_text(dashed).startswith("-")
    drawn = iter([dashed, dashed, plain])
    assert random_uuid(lambda: next(drawn)) == plain
    assert not [text for text in (uuid_text(random_uuid()) for _ in range(2_000)) if text.startswith("-")]


def test_uuid_text_matches_kafka() -> None:
    assert uuid_text(UUID(int=1)) == "AAAAAAAAAAAAAAAAAAAAAQ"
