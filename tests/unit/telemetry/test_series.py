from __future__ import annotations

from uuid import UUID

from klamm.monitoring.exposition import Page
from klamm.telemetry.otlp import MetricPoint
from klamm.telemetry.series import LONGEST_TEXT, MAX_LABELS, PUSH_AGE, MetricSeries

A, B = UUID(int=1000), UUID(int=1001)


def gauge(name: str, value: float, *labels: tuple[str, str]) -> MetricPoint:
    return MetricPoint(name, labels, value, is_counter=False, is_delta=False)


def counter(name: str, value: float, *, is_delta: bool) -> MetricPoint:
    return MetricPoint(name, (), value, is_counter=True, is_delta=is_delta)


def text(series: MetricSeries) -> list[str]:
    page = Page()
    series.write(page)
    lines = [line for line in page.text().splitlines() if not line.startswith("# HELP")]
    return [line for line in lines if PUSH_AGE not in line]


def test_series_are_written_by_metric_with_the_labels_of_their_client() -> None:
    series = MetricSeries(lambda: 10, now_ms=lambda: 0)
    series.take(
        A,
        {"client_id": "a"},
        [gauge("org.apache.kafka.x.avg", 1.5, ("node.id", "1"), ("client_id", "mine"), ("2nd", ""))],
    )
    series.take(B, {"client_id": 'b"'}, [gauge("org.apache.kafka.x.avg", 2), gauge("other/y", 3)])
    assert text(series) == [
        "# TYPE kafka_client_other_y gauge",
        'kafka_client_other_y{client_id="b\\""} 3',
        "# TYPE kafka_client_x_avg gauge",
        'kafka_client_x_avg{node_id="1",client_id="a",key_2nd=""} 1.5',
        'kafka_client_x_avg{client_id="b\\""} 2',
    ]


def test_label_with_reserved_name_gets_a_prefix() -> None:
    """Prometheus rejects the whole page because of a label ``__name__``."""
    # given
    series = MetricSeries(lambda: 10, now_ms=lambda: 0)
    # when
    series.take(A, {"client_id": "a"}, [gauge("m", 1, ("__name__", "up"), ("_x", "1"), ("..y", "2"), ("z", "3"))])
    # then
    assert text(series) == [
        "# TYPE kafka_client_m gauge",
        'kafka_client_m{key__name__="up",key_x="1",key__y="2",z="3",client_id="a"} 1',
    ]


def test_names_that_become_equal_are_written_once() -> None:
    # given
    series = MetricSeries(lambda: 10, now_ms=lambda: 0)
    points = [gauge("a.b", 1, ("node.id", "1"), ("node_id", "1")), gauge("a/b", 2, ("node-id", "1"))]
    # when
    series.take(A, {}, points)
    # then
    assert text(series) == ["# TYPE kafka_client_a_b gauge", 'kafka_client_a_b{node_id="1"} 2']


def test_deltas_are_added_up_and_totals_replaced() -> None:
    series = MetricSeries(lambda: 10, now_ms=lambda: 0)
    for _ in range(3):
        series.take(A, {}, [counter("d", 2, is_delta=True), counter("c", 7, is_delta=False), gauge("g", 1)])
    assert text(series) == [
        "# TYPE kafka_client_c counter",
        "kafka_client_c 7",
        "# TYPE kafka_client_d counter",
        "kafka_client_d 6",
        "# TYPE kafka_client_g gauge",
        "kafka_client_g 1",
    ]


def test_names_of_counters_are_forgotten_with_their_client() -> None:
    """The name of a gauge shows it. The names would otherwise fill the memory, however many series there may be."""
    series = MetricSeries(lambda: 10, now_ms=lambda: 0)
    series.take(A, {}, [counter("a", 1, is_delta=False), counter("b", 1, is_delta=False)])
    series.take(B, {}, [counter("b", 2, is_delta=False)])
    series.forget(A)
    series.take(B, {}, [gauge("a", 1), counter("b", 2, is_delta=False)])
    assert text(series) == [
        "# TYPE kafka_client_a gauge",
        "kafka_client_a 1",
        "# TYPE kafka_client_b counter",
        "kafka_client_b 2",
    ]


def test_number_of_series_is_limited_and_freed_by_disconnects() -> None:
    """K714-06."""
    series = MetricSeries(lambda: 2, now_ms=lambda: 0)
    series.take(A, {}, [gauge("one", 1), gauge("two", 1), gauge("three", 1), gauge("one", 5)])
    series.take(B, {}, [gauge("one", 1)])
    assert (series.count, series.dropped) == (2, 2)
    assert "kafka_client_one 5" in text(series)
    series.forget(A)
    assert (series.count, text(series)) == (0, [])
    series.take(B, {}, [gauge("one", 1)])
    assert series.count == 1
    series.forget(UUID(int=5))


def test_names_and_labels_are_limited() -> None:
    series = MetricSeries(lambda: 10, now_ms=lambda: 0)
    long = "x" * (LONGEST_TEXT + 1)
    many = [(f"label{i}", "v") for i in range(MAX_LABELS + 1)]
    series.take(A, {}, [gauge(long, 1), gauge("a", 1, ("k", long)), gauge("b", 1, *many), gauge("", 1)])
    assert (series.count, series.dropped) == (0, 4)


def test_time_since_the_latest_push_of_each_client_is_written_until_it_is_forgotten() -> None:
    # given
    now_ms = 1000
    series = MetricSeries(lambda: 10, now_ms=lambda: now_ms)
    for instance, client_id in ((A, "a"), (B, "b")):
        series.take(instance, {"client_id": client_id}, [gauge("g", 1)])
    # when
    now_ms = 3500
    series.take(A, {"client_id": "a"}, [])
    series.forget(B)
    now_ms = 4000
    page = Page()
    series.write(page)
    # then
    assert [line for line in page.text().splitlines() if line.startswith(PUSH_AGE)] == [
        PUSH_AGE + '{client_id="a"} 0.5'
    ]


def test_series_that_a_push_does_not_contain_ends_and_frees_its_room() -> None:
    # given
    series = MetricSeries(lambda: 2, now_ms=lambda: 0)
    first, third = (("partition", "1"),), (("partition", "3"),)
    series.take(A, {}, [gauge("lag", 1, *first), gauge("lag", 5, *third)])
    # when
    series.take(A, {}, [gauge("lag", 0, *first)])
    count = series.count
    series.take(B, {}, [gauge("lag", 2, *third)])
    # then
    assert (count, series.count, series.dropped) == (1, 2, 0)
    assert text(series) == [
        "# TYPE kafka_client_lag gauge",
        'kafka_client_lag{partition="1"} 0',
        'kafka_client_lag{partition="3"} 2',
    ]


def test_room_of_ended_series_is_used_by_the_same_push() -> None:
    # given
    series = MetricSeries(lambda: 1, now_ms=lambda: 0)
    series.take(A, {}, [gauge("before", 1)])
    # when
    series.take(A, {}, [gauge("after", 2)])
    # then
    assert (text(series), series.dropped) == (["# TYPE kafka_client_after gauge", "kafka_client_after 2"], 0)


def test_only_sums_with_deltas_stay_when_a_push_does_not_contain_them() -> None:
    """Clients leave out a sum that has not changed. Those of franz-go are not marked as monotonic."""
    # given
    series = MetricSeries(lambda: 10, now_ms=lambda: 0)
    delta, total = counter("delta", 2, is_delta=True), counter("total", 7, is_delta=False)
    series.take(A, {}, [delta, delta._replace(name="go", is_counter=False), total])
    # when
    series.take(A, {}, [])
    series.take(A, {}, [delta, gauge("total", 1)])
    # then
    assert text(series) == [
        "# TYPE kafka_client_delta counter",
        "kafka_client_delta 4",
        "# TYPE kafka_client_go gauge",
        "kafka_client_go 2",
        "# TYPE kafka_client_total gauge",
        "kafka_client_total 1",
    ]
