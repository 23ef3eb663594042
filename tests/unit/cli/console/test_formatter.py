"""Records as klamm consume prints them."""

from __future__ import annotations

import struct

import pytest

from klamm.cli.connection import RequestError
from klamm.cli.console.formatter import ConsumedRecord, RecordFormatter


def record(key: bytes | None = b"k", value: bytes | None = b"v", timestamp_type: int = 0) -> ConsumedRecord:
    return ConsumedRecord("t", 1, 2, 3, timestamp_type, [("h", b"x"), ("n", None)], key, value)


@pytest.mark.parametrize(
    ("properties", "line"),
    [
        ({}, b"v\n"),
        ({"print.key": "true", "key.separator": "|"}, b"k|v\n"),
        ({"print.value": "false"}, b""),
        ({"print.timestamp": "true", "print.offset": "true"}, b"CreateTime:3\tOffset:2\tv\n"),
        ({"print.headers": "true", "headers.separator": ";", "null.literal": "-"}, b"h:x;n:-\tv\n"),
        ({"print.partition": "True", "line.separator": "."}, b"Partition:1\tv."),
    ],
)
def test_properties_select_columns(properties: dict[str, str], line: bytes) -> None:
    assert RecordFormatter.of(properties).line(record()) == line


def test_timestamp_types_are_distinguished() -> None:
    formatter = RecordFormatter.of({"print.timestamp": "true"})
    assert formatter.line(record(timestamp_type=1)) == b"LogAppendTime:3\tv\n"
    assert formatter.line(record(timestamp_type=-1)) == b"NO_TIMESTAMP\tv\n"


@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [
        ("StringDeserializer", "ü".encode(), "ü"),
        ("org.apache.kafka.common.serialization.LongDeserializer", struct.pack(">q", -5), "-5"),
        ("IntegerDeserializer", struct.pack(">i", 7), "7"),
        ("ShortDeserializer", struct.pack(">h", 7), "7"),
        ("DoubleDeserializer", struct.pack(">d", 1e10), "1.0E10"),
        ("FloatDeserializer", struct.pack(">f", 0.1), "0.1"),
        ("FloatDeserializer", struct.pack(">f", float("inf")), "Infinity"),
        ("BooleanDeserializer", b"\1", "true"),
        ("UUIDDeserializer", b"123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000"),
    ],
)
def test_values_are_deserialized(name: str, content: bytes, shown: str) -> None:
    assert RecordFormatter.of({"value.deserializer": name}).line(record(value=content)) == f"{shown}\n".encode()


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (0.001, "0.001"), (0.0001, "1.0E-4"), (1234567.0, "1234567.0"),
     (12345678.0, "1.2345678E7"), (-1e22, "-1.0E22"), (float("nan"), "NaN")],
)  # fmt: skip
def test_numbers_are_formatted_like_java(number: float, shown: str) -> None:
    for name, layout in (("FloatDeserializer", ">f"), ("DoubleDeserializer", ">d")):
        formatter = RecordFormatter.of({"value.deserializer": name})
        assert formatter.line(record(value=struct.pack(layout, number))) == f"{shown}\n".encode()


def test_null_needs_no_deserializer() -> None:
    assert RecordFormatter.of({"value.deserializer": "LongDeserializer"}).line(record(value=None)) == b"null\n"


def test_undeserializable_value_is_rejected() -> None:
    with pytest.raises(RequestError, match="The value b'v' does not fit its deserializer"):
        RecordFormatter.of({"value.deserializer": "LongDeserializer"}).line(record())
    with pytest.raises(RequestError, match="expected one of StringDeserializer"):
        RecordFormatter.of({"key.deserializer": "com.example.Mine"})


def test_document_encodes_binary_values() -> None:
    assert RecordFormatter.of({}).document(record(key=None, value=b"\xff")) == {
        "topic": "t",
        "partition": 1,
        "offset": 2,
        "timestamp": 3,
        "timestamp_type": "CreateTime",
        "headers": [{"key": "h", "value": "x"}, {"key": "n", "value": None}],
        "key": None,
        "value": {"base64": "/w=="},
    }


def test_document_has_deserialized_fields() -> None:
    formatter = RecordFormatter.of(
        {"key.deserializer": "StringDeserializer", "value.deserializer": "ShortDeserializer"}
    )
    document = formatter.document(record(key=b"\xff", value=b"\x00\x05"))
    assert (document["key"], document["value"]) == ("\ufffd", "5")
    with pytest.raises(RequestError, match="The value b'v' does not fit its deserializer"):
        formatter.document(record())
