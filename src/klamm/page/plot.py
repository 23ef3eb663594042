"""Samples of the last 15 minutes, taken only while a page is served, and their plots as inline SVG without a script."""

from __future__ import annotations

import threading
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.page.html import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

WINDOW_S: Final = 900.0
"""Seconds that the samples cover, and that a plot shows."""
SAMPLE_EVERY_S: Final = 5.0
_KEPT: Final = int(WINDOW_S / SAMPLE_EVERY_S) + 1


class Sample(NamedTuple):
    """Values of one moment. Each plot of a page shows one of them."""

    at_s: float
    """Seconds since the epoch."""
    values: tuple[float | None, ...]
    """None: unknown at that moment."""


class Samples:
    """Samples of the last 15 minutes by name, such as that of a flow. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, deque[Sample]] = {}

    def add(self, at_s: float, values: Mapping[str, tuple[float | None, ...]]) -> None:
        """Add one sample per name, and drop the oldest one of a full ring."""
        with self._lock:
            for name, some in values.items():
                self._by_name.setdefault(name, deque(maxlen=_KEPT)).append(Sample(at_s, some))

    def by_name(self) -> Mapping[str, Sequence[Sample]]:
        """Return the samples of each name, the oldest one first."""
        with self._lock:
            return {name: tuple(samples) for name, samples in self._by_name.items()}


_WIDTH: Final = 300
_HEIGHT: Final = 48

STYLE: Final = """
.plots { display: flex; flex-wrap: wrap; gap: 0 1.5rem; } .plots figure { flex: 1 1 12rem; max-width: 24rem;
  margin: .3rem 0; } .plots svg { display: block; width: 100%; height: 3rem; border-bottom: 1px solid var(--line); }
.plots polyline { fill: none; stroke: var(--link); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
"""


def plots(content: Sequence[str]) -> str:
    """Return plots side by side, or below each other on a narrow screen; empty HTML without plots."""
    figures = [plot for plot in content if plot]
    return f'<div class="plots">{"".join(figures)}</div>' if figures else ""


def plots_of(
    samples: Sequence[Sample], figures: Sequence[tuple[str, Callable[[float], str]]], *, until_s: float
) -> str:
    """Return a plot of each value of some samples over the last 15 minutes; empty HTML for less than two samples.

    Args:
        samples: The samples, the oldest one first.
        figures: Name of each value, and the function that returns it as plain text.
        until_s: Time at the right edge, in seconds since the epoch.
    """
    return plots(
        [
            plot(title, [(at_s, values[index]) for at_s, values in samples], until_s=until_s, text_of=text_of)
            for index, (title, text_of) in enumerate(figures)
        ]
    )


def count_text(value: float) -> str:
    """Return a value as a whole number."""
    return f"{value:,.0f}"


def plot(
    title: str, points: Sequence[tuple[float, float | None]], *, until_s: float, text_of: Callable[[float], str]
) -> str:
    """Return the plot of one value over the last 15 minutes; empty HTML for less than two known values.

    Args:
        title: Name of the value, plain text.
        points: Times in seconds since the epoch, ascending, with the values from 0. None: unknown, a gap in the line.
        until_s: Time at the right edge.
        text_of: Function that returns a value as plain text.
    """
    recent = [(at, value) for at, value in points if until_s - WINDOW_S <= at <= until_s]
    values = [value for _, value in recent if value is not None]
    if len(values) < 2:  # noqa: PLR2004  # a line needs two points
        return ""
    highest = max(values)
    lines = "".join(
        f'<polyline points="{" ".join(_point(at, value, until_s=until_s, highest=highest) for at, value in part)}"/>'
        for is_gap, part in groupby(recent, key=lambda each: each[1] is None)
        if not is_gap
    )
    now = "unknown" if recent[-1][1] is None else text_of(recent[-1][1])
    caption = shown(f"{title}: {now}, highest of 15 min {text_of(highest)}")
    return (
        f'<figure><figcaption class="soft">{caption}</figcaption><svg role="img" aria-label="{caption}"'
        f' viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none">{lines}</svg></figure>'
    )


def _point(at: float, value: float | None, *, until_s: float, highest: float) -> str:
    share = (value or 0.0) / highest if highest else 0.0
    x = (1 - (until_s - at) / WINDOW_S) * _WIDTH
    return f"{x:.1f},{_HEIGHT - 1 - share * (_HEIGHT - 2):.1f}"
