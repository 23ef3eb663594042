"""Prometheus' text format."""

from __future__ import annotations

from klamm.monitoring.exposition import Histogram, Page


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
