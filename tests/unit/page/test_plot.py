"""Plots of recent values."""

from __future__ import annotations

import re

from klamm.page.plot import WINDOW_S, plot, plots

NOW = 10_000.0


def draw(*points: tuple[float, float | None]) -> str:
    return plot("rate <b>", points, until_s=NOW, text_of=lambda value: f"{value:.0f}/s")


def test_plot_spans_window_and_highest_value() -> None:
    html = draw((NOW - WINDOW_S - 1, 99), (NOW - WINDOW_S, 0), (NOW - WINDOW_S / 2, 4), (NOW, 2))
    assert re.findall('points="(.*?)"', html) == ["0.0,47.0 150.0,1.0 300.0,24.0"]
    assert "rate &lt;b&gt;: 2/s, highest of 15 min 4/s" in html


def test_unknown_value_is_a_gap() -> None:
    html = draw((NOW - 4, 1), (NOW - 3, 1), (NOW - 2, None), (NOW - 1, 1), (NOW, None))
    assert html.count("<polyline") == 2
    assert "unknown, highest" in html


def test_constant_zero_is_a_line_at_the_bottom() -> None:
    assert re.findall('points="(.*?)"', draw((NOW - WINDOW_S, 0), (NOW, 0))) == ["0.0,47.0 300.0,47.0"]


def test_single_value_has_no_plot() -> None:
    assert plots([draw((NOW, 1))]) == ""
