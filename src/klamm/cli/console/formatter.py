"""Pure formatting of records for ``klamm consume``, with the properties of Kafka's DefaultMessageFormatter."""

from __future__ import annotations

import base64
import math
import struct
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.cli.connection import RequestError
from klamm.configs.values import java_text
from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Deserializer = Callable[[bytes], str]

_COLUMNS: Final = (
    "print.timestamp",
    "print.partition",
    "print.offset",
    "print.delivery",
    "print.epoch",
    "print.headers",
    "print.key",
    "print.value",
)
_JAVA_PACKAGE: Final = "org.apache.kafka.common.serialization."
_TIMESTAMP_TYPES: Final = {0: "CreateTime", 1: "LogAppendTime"}


class ConsumedRecord(NamedTuple):
    """One record with its position."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    """0 for CreateTime, 1 for LogAppendTime, -1 for records of old formats without a timestamp."""
    headers: Sequence[tuple[str, bytes | None]]
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFormatter:
    """Formatter of records: as lines of Kafka's console consumer, or as documents for JSON and YAML."""

    columns: frozenset[str]
    """The properties ``print.*`` that are true."""
    separator: bytes
    line_separator: bytes
    headers_separator: bytes
    null_literal: bytes
    deserializers: Mapping[str, Deserializer]
    """Functions by ``key``, ``value`` and ``headers``. Lines have the bytes of fields without one."""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> RecordFormatter:
        """Return the formatter for properties; unknown ones are ignored, as in Kafka.

        Raises:
            RequestError: A deserializer is unknown.
        """
        shown = {"print.value": "true", **properties}
        deserializers = {
            field: _deserializer(f"{field}.deserializer", properties[f"{field}.deserializer"])
            for field in ("key", "value", "headers")
            if f"{field}.deserializer" in properties
        }
        return cls(
            columns=frozenset(name for name in _COLUMNS if shown.get(name, "").strip().lower() == "true"),
            separator=properties.get("key.separator", "\t").encode(),
            line_separator=properties.get("line.separator", "\n").encode(),
            headers_separator=properties.get("headers.separator", ",").encode(),
            null_literal=properties.get("null.literal", "null").encode(),
            deserializers=deserializers,
        )

    def line(self, record: ConsumedRecord) -> bytes:
        """Return the bytes to print for a record, with the end of the line.

        Raises:
            RequestError: A field does not fit its deserializer.
        """
        fields: dict[str, Callable[[], bytes]] = {
            "print.timestamp": lambda: _timestamp(record).encode(),
            "print.partition": lambda: b"Partition:%d" % record.partition,
            "print.offset": lambda: b"Offset:%d" % record.offset,
            "print.delivery": lambda: b"Delivery:NOT_PRESENT",
            "print.epoch": lambda: b"Epoch:NOT_PRESENT",
            "print.headers": lambda: self._headers(record.headers),
            "print.key": lambda: self._field("key", record.key),
            "print.value": lambda: self._field("value", record.value),
        }
        columns = [fields[name]() for name in _COLUMNS if name in self.columns]
        return self.separator.join(columns) + self.line_separator if columns else b""

    def document(self, record: ConsumedRecord) -> dict[str, Any]:
        """Return a record for JSON or YAML output.

        Fields without a deserializer are text; if they are not UTF-8, they become ``{"base64": ...}``.

        Raises:
            RequestError: A field does not fit its deserializer.
        """
        return {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestamp_type": _TIMESTAMP_TYPES.get(record.timestamp_type),
            "headers": [{"key": name, "value": self._plain("headers", value)} for name, value in record.headers],
            "key": self._plain("key", record.key),
            "value": self._plain("value", record.value),
        }

    def _headers(self, headers: Sequence[tuple[str, bytes | None]]) -> bytes:
        shown = [name.encode() + b":" + self._field("headers", value) for name, value in headers]
        return self.headers_separator.join(shown) or b"NO_HEADERS"

    def _field(self, field: str, content: bytes | None) -> bytes:
        if content is None:
            return self.null_literal
        return self._text(field, content).encode() if field in self.deserializers else content

    def _plain(self, field: str, content: bytes | None) -> str | dict[str, str] | None:
        if content is None:
            return None
        if field in self.deserializers:
            return self._text(field, content)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(content).decode()}

    def _text(self, field: str, content: bytes) -> str:
        try:
            return self.deserializers[field](content)
        except (struct.error, ValueError) as error:
            raise RequestError(f"The {field} {content!r} does not fit its deserializer: {error}") from error


def _timestamp(record: ConsumedRecord) -> str:
    kind = _TIMESTAMP_TYPES.get(record.timestamp_type)
    return "NO_TIMESTAMP" if kind is None else f"{kind}:{record.timestamp}"


def _deserializer(key: str, name: str) -> Deserializer:
    short = name.removeprefix(_JAVA_PACKAGE)
    if short not in _DESERIALIZERS:
        allowed = ", ".join(_DESERIALIZERS)
        raise RequestError(f"{key}={name}: expected one of {allowed}, with or without {_JAVA_PACKAGE}")
    return _DESERIALIZERS[short]


def _packed(layout: str) -> Deserializer:
    return lambda content: str(struct.unpack(layout, content)[0])


def _boolean(content: bytes) -> str:
    if content not in (b"\x00", b"\x01"):
        raise ValueError("expected one byte, 0 or 1")
    return "true" if content == b"\x01" else "false"


def _double(content: bytes) -> str:
    return java_text(struct.unpack(">d", content)[0])


def _float(content: bytes) -> str:
    (number,) = struct.unpack(">f", content)
    if not math.isfinite(number):
        return java_text(number)
    # The shortest text that gives the same four bytes again.
    candidates = (float(f"{number:.{digits}g}") for digits in range(1, 10))
    return java_text(next(candidate for candidate in candidates if struct.pack(">f", candidate) == content))


_DESERIALIZERS: Final[Mapping[str, Deserializer]] = {
    "StringDeserializer": lambda content: content.decode(errors="replace"),
    "ShortDeserializer": _packed(">h"),
    "IntegerDeserializer": _packed(">i"),
    "LongDeserializer": _packed(">q"),
    "FloatDeserializer": _float,
    "DoubleDeserializer": _double,
    "BooleanDeserializer": _boolean,
    "UUIDDeserializer": lambda content: str(uuid.UUID(content.decode())),
}
