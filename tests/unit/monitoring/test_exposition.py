"""Prometheus' text format."""

from __future__ import annotations

from klamm.monitoring.exposition import Histogram, Page, merged


def test_samples_have_their_labels_escaped() -> None:
    page = Page()
    page.family("a_total", "counter", "Some.", [({"x": 'a"b\\c\nd'}, 3), ({}, 0.5)])
    assert page.text() == '# HELP a_total Some.\n# TYPE a_total counter\na_total{x="a\\"b\\\\c\\nd"} 3\na_total 0.5\n'


def test_buckets_of_a_histogram_are_cumulative() -> None:
    histogram = Histogram()
    for seconds in (0.0001, 0.001, 0.002, 60.0):
        histogram.observe(seconds)
    page = Page()
    page.histogram("t_seconds", "Time.", [({"api": "FETCH"}, histogram)])
    lines = page.text().splitlines()
    assert 't_seconds_bucket{api="FETCH",le="0.0005"} 1' in lines
    assert 't_seconds_bucket{api="FETCH",le="0.001"} 2' in lines
    assert 't_seconds_bucket{api="FETCH",le="0.0025"} 3' in lines
    assert 't_seconds_bucket{api="FETCH",le="10"} 3' in lines
    assert 't_seconds_bucket{api="FETCH",le="+Inf"} 4' in lines
    assert 't_seconds_count{api="FETCH"} 4' in lines


def page(requests: int, brokers: int, connections: int, *, client_id: str = "a b") -> str:
    made = Page()
    made.family(
        "requests_total", "counter", "Requests.", [({"client_id": client_id}, requests), ({"client_id": ""}, 1)]
    )
    made.family("brokers", "gauge", "Brokers.", [({}, brokers)])
    made.family("connections", "gauge", "Connections.", [({}, connections)])
    histogram = Histogram()
    histogram.observe(0.3)
    made.histogram("seconds", "Time.", [({}, histogram)])
    return made.text()


def test_counters_and_named_gauges_are_added_and_other_gauges_are_the_largest() -> None:
    lines = merged([page(2, 3, 4), page(5, 2, 1), page(7, 0, 0, client_id="c")], summed_gauges=["connections"]).split(
        "\n"
    )
    assert lines[:5] == [
        "# HELP requests_total Requests.",
        "# TYPE requests_total counter",
        'requests_total{client_id="a b"} 7',
        'requests_total{client_id=""} 3',
        'requests_total{client_id="c"} 7',
    ]
    assert "brokers 3" in lines
    assert "connections 5" in lines
    assert 'seconds_bucket{le="0.5"} 3' in lines
    assert "seconds_sum 0.9" in [line.replace("0.8999999999999999", "0.9") for line in lines]


def test_single_page_is_unchanged() -> None:
    assert merged([page(1, 2, 3)]) == page(1, 2, 3)


def test_client_ids_may_contain_all_line_separators() -> None:
    document = page(1, 2, 3, client_id="a\r\x0b\x0c\x1c\x85\u2028b\nc")
    assert merged([document]) == document
