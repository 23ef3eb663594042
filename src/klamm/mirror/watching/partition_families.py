"""Families with a sample for each partition, ten thousand of them: what a page of metrics mostly consists of.

A partition has the same labels in each of a dozen families, and all but the last of them are those of its topic. They
are written once a page instead of once a sample; nothing is kept from one page to the next, as topics come and go.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from klamm.monitoring.exposition import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from klamm.mirror.progress import PartitionStatus

_topic_of: Final = attrgetter("remote_topic")


class PartitionFamilies:
    """Families by partition, one text after the other, each to the byte as ``Page`` would write it."""

    def __init__(self, flows: Iterable[tuple[Mapping[str, str], Sequence[PartitionStatus]]]) -> None:
        """Write the labels.

        Args:
            flows: of each flow its labels and its partitions; in this order are the samples.
        """
        self._partitions: list[PartitionStatus] = []
        self._labels: list[str] = []
        for labels, partitions in flows:
            self._partitions += partitions
            self._labels += _label_texts(labels, partitions)

    def text(self, name: str, kind: str, description: str, figure: Callable[[PartitionStatus], float | None]) -> str:
        """Return a family.

        Args:
            name: of the metric, as ``kind`` and ``description``.
            kind: counter or gauge.
            description: one line.
            figure: tells the value of a partition; None: it has no sample.
        """
        page = Page()
        page.family(name, kind, description, ())
        # A call for each number, if only to write it, would take as long as all the rest.
        samples = [
            f"{name}{labels} {(value if type(value) is int else int(value) if value.is_integer() else value)!r}\n"
            for labels, value in zip(self._labels, map(figure, self._partitions), strict=True)
            if value is not None
        ]
        return page.text() + "".join(samples)


def _label_texts(of_flow: Mapping[str, str], partitions: Sequence[PartitionStatus]) -> Iterator[str]:
    """Yield the labels of partitions as they stand in a sample; how they are escaped is known to ``Page`` alone."""
    runs = [(topic, list(some)) for topic, some in groupby(partitions, _topic_of)]
    page = Page()
    page.family("", "", "", (({**of_flow, "topic": topic, "partition": ""}, 0) for topic, _ in runs))
    _, _, *lines, _ = page.text().split("\n")
    for line, (_, some) in zip(lines, runs, strict=True):
        before, after = line.removesuffix('"} 0'), '"}'
        for partition in some:
            yield f"{before}{partition.partition}{after}"
