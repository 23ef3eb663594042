from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.telemetry.otlp import MAX_ADDED_BYTES, MAX_POINTS, MetricPoint, OtlpError, decode_metrics, with_attributes
from tests.support.otlp import counter, field, gauge, metrics_data, number, twenty_metrics


def test_gauges_and_sums_are_read_with_their_labels() -> None:
    data = metrics_data(
        gauge("a.avg", number(1.5, node="1", is_leader=True), number(7, node_id=-1)),
        counter("a.total", number(3), is_delta=True),
        counter("b.total", number(math.inf), is_delta=False),
    )
    assert decode_metrics(data) == [
        MetricPoint("a.avg", (("node", "1"), ("is_leader", "true")), 1.5, is_counter=False, is_delta=False),
        MetricPoint("a.avg", (("node_id", "-1"),), 7, is_counter=False, is_delta=False),
        MetricPoint("a.total", (), 3, is_counter=True, is_delta=True),
        MetricPoint("b.total", (), math.inf, is_counter=True, is_delta=False),
    ]


def test_other_kinds_of_metrics_and_unknown_fields_are_skipped() -> None:
    histogram = field(1, b"h") + field(9, field(1, b"\x21" + bytes(8)))
    later = b"\xa0\x06\x07" + b"\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4) + field(100, b"x")
    data = later + metrics_data(histogram, later + gauge("g", number(1.0) + later))
    assert [point.name for point in decode_metrics(data)] == ["g"]
    assert decode_metrics(b"") == []


@given(st.binary(max_size=200))
def test_any_bytes_are_metrics_or_an_error(data: bytes) -> None:
    try:
        decode_metrics(metrics_data(data) if len(data) % 2 else data)
        with_attributes(data, {"a": "b"})
    except OtlpError:
        pass


def test_cut_metrics_are_an_error_or_fewer_points() -> None:
    whole = metrics_data(gauge("name", number(1.0, key="value")))
    for end in range(1, len(whole)):
        with pytest.raises(OtlpError):
            decode_metrics(whole[:end])


def test_number_of_points_is_limited() -> None:
    point = number(1.0)
    assert len(decode_metrics(metrics_data(gauge("g", *[point] * MAX_POINTS)))) == MAX_POINTS
    with pytest.raises(OtlpError, match="More than"):
        decode_metrics(metrics_data(gauge("g", *[point] * MAX_POINTS), gauge("h", point)))


def test_number_of_resources_is_limited() -> None:
    """Each one is exported with the attributes of the client, which are a hundred times as long as an empty one."""
    most = field(1, b"") * MAX_POINTS
    assert decode_metrics(most) == []
    with pytest.raises(OtlpError, match="More than"):
        decode_metrics(most + field(1, b""))


def test_length_of_added_attributes_is_limited() -> None:
    data = field(1, b"") * 1000
    assert len(with_attributes(data, {"client_id": "x" * 8000})) < MAX_ADDED_BYTES
    with pytest.raises(OtlpError, match="add more than"):
        with_attributes(data, {"client_id": "x" * 9000})


def test_exported_metrics_have_added_attributes() -> None:
    data = twenty_metrics()
    longer = with_attributes(data, {"client_id": "x" * 300, "principal": "User:ä"})
    assert decode_metrics(longer) == decode_metrics(data)
    assert b"client_rack" in longer
    assert field(1, field(1, field(1, b"client_id") + field(2, field(1, b"x" * 300)))).startswith(b"\x0a")
    assert "User:ä".encode() in longer


def test_exported_metrics_keep_fields_with_large_numbers() -> None:
    data = field(31, b"one") + field(32, b"two") + field(2**29 - 1, b"three")
    assert with_attributes(data, {"a": "b"}) == data
