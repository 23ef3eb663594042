"""Metrics in OpenTelemetry's protobuf format, encoded as clients do."""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def field(number: int, data: bytes) -> bytes:
    """Return a length-delimited field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def label(key: str, value: str | int | bool) -> bytes:
    """Return an attribute."""
    match value:
        case bool():
            encoded = b"\x10" + bytes([value])
        case int():
            encoded = b"\x18" + varint(value % 2**64)
        case _:
            encoded = field(1, value.encode())
    return field(1, key.encode()) + field(2, encoded)


def number(value: float, **labels: str | int | bool) -> bytes:
    """Return a data point with times, value and labels."""
    times = b"\x11" + struct.pack("<q", 5) + b"\x19" + struct.pack("<q", 6)
    encoded = b"\x31" + struct.pack("<q", value) if isinstance(value, int) else b"\x21" + struct.pack("<d", value)
    return times + encoded + b"".join(field(7, label(key, text)) for key, text in labels.items())


def gauge(name: str, *points: bytes) -> bytes:
    """Return a metric with a description and a unit, neither of which is read."""
    return (
        field(1, name.encode()) + field(2, b"about") + field(3, b"ms") + field(5, b"".join(field(1, p) for p in points))
    )


def counter(name: str, *points: bytes, is_delta: bool) -> bytes:
    """Return a monotonic sum."""
    data = b"".join(field(1, p) for p in points)
    return field(1, name.encode()) + field(7, data + b"\x10" + bytes([1 if is_delta else 2]) + b"\x18\x01")


def metrics_data(*metrics: bytes, rack: str = "r1") -> bytes:
    """Return a message with one resource and one scope."""
    resource = field(1, field(1, label("client_rack", rack)))
    scope = field(1, field(1, b"scope"))
    return field(1, resource + field(2, scope + b"".join(field(2, metric) for metric in metrics)))


def twenty_metrics() -> bytes:
    """Return about the metrics that KIP-714 requires of a client, with 20 data points."""
    gauges = [gauge(f"org.apache.kafka.producer.metric.{i}.avg", number(i * 1.5, node_id=i)) for i in range(10)]
    sums = [counter(f"org.apache.kafka.producer.metric.{i}.total", number(i), is_delta=True) for i in range(10)]
    return metrics_data(*gauges, *sums)
