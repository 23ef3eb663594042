"""Decoder for metrics in OpenTelemetry's protobuf format, as far as Kafka's clients use it (OTLP v1's ``MetricsData``).

The numbers of gauges and sums are decoded. The nesting is MetricsData, ResourceMetrics, ScopeMetrics, Metric, data
point. Histograms and summaries are skipped, because no client sends them. The decoder is written by hand: protobuf's
own library is 1.6 MB, starts slowly, and would be used for these few fields only.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_POINTS: Final = 10_000
"""Maximum number of data points in one push, and of resources: Java clients send one resource per metric."""
MAX_ADDED_BYTES: Final = 8 * 1024 * 1024
"""Maximum number of bytes by which the attributes of a client make a push longer."""
DELTA: Final = 1
"""Aggregation temporality of a sum that starts again at zero after each push."""

Labels: TypeAlias = tuple[tuple[str, str], ...]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types, the low three bits of a tag."""
_SCOPES, _METRICS, _KEY, _VALUE = 2, 2, 1, 2
_NAME, _NUMBERS = 0x0A, frozenset({0x2A, 0x3A})
"""Tags of the fields of a metric: its name, and a gauge or a sum."""
_DATA_POINT, _TEMPORALITY, _IS_MONOTONIC = 0x0A, 0x10, 0x18
_TIMES, _DOUBLE, _INTEGER, _LABELS = frozenset({0x11, 0x19}), 0x21, 0x31, 7
_STRING, _BOOL, _INT = 0x0A, 0x10, 0x18
"""Tags of the fields of a gauge or sum, of a data point (``_LABELS`` is a number) and of a label's value."""
_LONGEST_VARINT = 10
_SHORT = 512
"""Size of encoded labels in bytes up to which their decoded text is cached."""
_TOO_LONG = "A field ends after its message"
_CONTINUES = 0x80
_double = struct.Struct("<d").unpack_from
_int64 = struct.Struct("<q").unpack_from


class OtlpError(ValueError):
    """The bytes are not metrics in protobuf format."""


class MetricPoint(NamedTuple):
    """The current value of one metric with one set of labels."""

    name: str
    labels: Labels
    value: float
    is_counter: bool
    is_delta: bool


def decode_metrics(data: bytes) -> list[MetricPoint]:
    """Return the data points of pushed metrics.

    Raises:
        OtlpError: The data is damaged, or has more than ``MAX_POINTS`` data points or resources.
    """
    points: list[MetricPoint] = []
    resources = 0
    try:
        for number, start, end in _messages(data, 0, len(data)):
            if number == 1:
                resources += 1
                if resources > MAX_POINTS:
                    raise OtlpError(f"More than {MAX_POINTS} resources")
                _read_resource(data, start, end, points)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise OtlpError(f"Damaged metrics: {error}") from error
    return points


def with_attributes(data: bytes, attributes: Mapping[str, str]) -> bytes:
    """Return pushed metrics whose resources have further attributes, for an export.

    Protobuf merges a field that occurs twice, so the attributes are appended as a second resource.

    Raises:
        OtlpError: The data is damaged, or the attributes would add more than ``MAX_ADDED_BYTES``.
    """
    pairs = b"".join(
        _framed(1, _framed(1, key.encode()) + _framed(2, _framed(1, value.encode())))
        for key, value in attributes.items()
    )
    resource = _framed(1, pairs)
    try:
        fields = tuple(_messages(data, 0, len(data)))
        if sum(number == 1 for number, _, _ in fields) * len(resource) > MAX_ADDED_BYTES:
            raise OtlpError(f"The attributes of the client add more than {MAX_ADDED_BYTES} bytes")
        return b"".join(
            _framed(number, data[start:end] + resource if number == 1 else data[start:end])
            for number, start, end in fields
        )
    except IndexError as error:
        raise OtlpError(f"Damaged metrics: {error}") from error


def _read_resource(data: bytes, at: int, end: int, points: list[MetricPoint]) -> None:
    for number, scope_at, scope_end in _messages(data, at, end):
        if number == _SCOPES:
            for inner, metric_at, metric_end in _messages(data, scope_at, scope_end):
                if inner == _METRICS:
                    _read_metric(data, metric_at, metric_end, points)


def _read_metric(data: bytes, at: int, end: int, points: list[MetricPoint]) -> None:
    name = ""
    while at < end:
        tag = data[at]
        if tag & 0x87 != _BYTES:  # another type, or a tag of several bytes
            at = _skip(data, at, end)
            continue
        size, start = data[at + 1], at + 2
        if size >= _CONTINUES:
            size, start = _varint(data, at + 1)
        at = start + size
        if at > end:
            raise OtlpError(_TOO_LONG)
        if tag == _NAME:
            name = data[start:at].decode()
        elif tag in _NUMBERS:
            _read_numbers(name, data, start, at, points)


def _read_numbers(name: str, data: bytes, at: int, end: int, points: list[MetricPoint]) -> None:
    numbers: list[tuple[Labels, float]] = []
    temporality = is_monotonic = 0
    while at < end:
        tag = data[at]
        if tag == _DATA_POINT:
            size, start = data[at + 1], at + 2
            if size >= _CONTINUES:
                size, start = _varint(data, at + 1)
            at = start + size
            if at > end:
                raise OtlpError(_TOO_LONG)
            numbers.append(_read_point(data, start, at))
        elif tag == _TEMPORALITY:
            temporality, at = _varint(data, at + 1)
        elif tag == _IS_MONOTONIC:
            is_monotonic, at = _varint(data, at + 1)
        else:
            at = _skip(data, at, end)
    if len(points) + len(numbers) > MAX_POINTS:
        raise OtlpError(f"More than {MAX_POINTS} data points")
    is_counter, is_delta = bool(is_monotonic), temporality == DELTA
    for labels, value in numbers:
        points.append(MetricPoint(name, labels, value, is_counter, is_delta))


def _read_point(data: bytes, at: int, end: int) -> tuple[Labels, float]:
    """Return the labels and the value of a data point. Encoders write times and value first, as protobuf recommends."""
    if at == end:
        return (), 0.0
    while data[at] in _TIMES:
        at += 9
    value = 0.0
    if data[at] == _DOUBLE:
        (value,) = _double(data, at + 1)
        at += 9
    elif data[at] == _INTEGER:
        (value,) = _int64(data, at + 1)
        at += 9
    if at > end:
        raise OtlpError(_TOO_LONG)
    encoded = data[at:end]
    return (_known_labels if end - at <= _SHORT else _labels)(encoded), value


def _labels(data: bytes) -> Labels:
    return tuple(_label(data[start:end]) for number, start, end in _messages(data, 0, len(data)) if number == _LABELS)


_known_labels = lru_cache(maxsize=4096)(_labels)


def _label(pair: bytes) -> tuple[str, str]:
    key = value = ""
    for number, start, end in _messages(pair, 0, len(pair)):
        if number == _KEY:
            key = pair[start:end].decode()
        elif number == _VALUE:
            value = _any_value(pair, start, end)
    return key, value


def _any_value(data: bytes, at: int, end: int) -> str:
    """Return a string, bool or integer as text; other values are empty."""
    if at == end:
        return ""
    tag = data[at]
    if tag == _STRING:
        size, at = _varint(data, at + 1)
        return data[at : _checked(at + size, end)].decode()
    if tag == _BOOL:
        return "true" if data[at + 1] else "false"
    if tag == _INT:
        number, _ = _varint(data, at + 1)
        return str(number - 2**64 if number >= 2**63 else number)
    return ""


def _messages(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each length-delimited field between two positions; other fields are skipped."""
    while at < end:
        start = at
        tag, at = _varint(data, at)
        if tag & 7 == _BYTES:
            size, at = _varint(data, at)
            stop = _checked(at + size, end)
            yield tag >> 3, at, stop
            at = stop
        else:
            at = _skip(data, start, end)


def _skip(data: bytes, at: int, end: int) -> int:
    """Return the position after a field of any kind."""
    tag, at = _varint(data, at)
    kind = tag & 7
    if kind == _VARINT:
        _, at = _varint(data, at)
    elif kind == _BYTES:
        size, at = _varint(data, at)
        at += size
    elif kind in {_FIXED64, _FIXED32}:
        at += 8 if kind == _FIXED64 else 4
    else:
        raise OtlpError(f"Unknown wire type {kind}")
    return _checked(at, end)


def _checked(position: int, end: int) -> int:
    if position > end:
        raise OtlpError(_TOO_LONG)
    return position


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    if value < _CONTINUES:
        return value, at + 1
    value &= 0x7F
    for index in range(1, _LONGEST_VARINT):
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < _CONTINUES:
            return value, at + index + 1
    raise OtlpError("A number is longer than ten bytes")


def _framed(number: int, data: bytes) -> bytes:
    return _varint_bytes(number << 3 | _BYTES) + _varint_bytes(len(data)) + data


def _varint_bytes(value: int) -> bytes:
    varint = bytearray()
    while value >= _CONTINUES:
        varint.append(value & 0x7F | _CONTINUES)
        value >>= 7
    varint.append(value)
    return bytes(varint)
