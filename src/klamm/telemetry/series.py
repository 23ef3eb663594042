"""Time series of the metrics that clients push, limited in number, and their output in Prometheus' text format."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from klamm.monitoring.exposition import label_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from uuid import UUID

    from klamm.monitoring.exposition import Page
    from klamm.telemetry.otlp import Labels, MetricPoint

LONGEST_TEXT: Final = 256
"""Maximum length of a metric's name and of a label's value. Points with longer ones are dropped."""
MAX_LABELS: Final = 16
PUSH_AGE: Final = "klamm_client_metrics_push_age_seconds"
"""Name on a metrics page of the time since a client instance pushed. An age needs no clocks that agree."""
_KAFKA: Final = "org.apache.kafka."
_PREFIX: Final = "kafka_client_"
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")


class MetricSeries:
    """Current values of all pushed metrics. Used on the event loop only.

    A series belongs to a client instance. It ends with the instance, or with the first push that does not contain it:
    a push is all that a client has to report. Sums that arrive as deltas are added up, and they stay, because a client
    may leave out a sum that has not changed, as franz-go does.

    Args:
        most: Function that returns the maximum number of series. Further ones are dropped and counted.
        now_ms: Clock, in milliseconds.
    """

    def __init__(self, most: Callable[[], int], *, now_ms: Callable[[], int]) -> None:
        self._most = most
        self._now_ms = now_ms
        self._pushed_ms: dict[UUID, int] = {}
        """Time of the latest push of each instance, in milliseconds of the clock."""
        self.values_by_instance: dict[UUID, dict[tuple[str, Labels], float]] = {}
        self.labels_by_instance: dict[UUID, Mapping[str, str]] = {}
        self._counters: dict[UUID, set[tuple[str, Labels]]] = {}
        """Series of each instance that are counters."""
        self._deltas: dict[UUID, set[tuple[str, Labels]]] = {}
        """Series of each instance that arrive as deltas. Not all of them are counters: franz-go does not mark its sums
        as monotonic.
        """
        self.count = 0
        """Number of series."""
        self.dropped = 0
        """Number of data points that were dropped because of a limit."""

    def take(self, instance: UUID, labels: Mapping[str, str], points: Collection[MetricPoint]) -> None:
        """Store the data points of one push, and remove the series of the instance that it does not contain.

        Args:
            instance: Client instance.
            labels: Labels of all its series.
            points: Data points of the push.
        """
        most = self._most()
        self.labels_by_instance[instance] = labels
        self._pushed_ms[instance] = self._now_ms()
        values = self.values_by_instance.setdefault(instance, {})
        counters = self._counters.setdefault(instance, set())
        deltas = self._deltas.setdefault(instance, set())
        for key in values.keys() - deltas - {(point.name, point.labels) for point in points}:
            del values[key]
            counters.discard(key)
            self.count -= 1
        for point in points:
            key = (point.name, point.labels)
            before = values.get(key)
            if before is None:
                if self.count >= most or not _is_short(point):
                    self.dropped += 1
                    continue
                self.count += 1
                if point.is_counter:
                    counters.add(key)
                if point.is_delta:
                    deltas.add(key)
            values[key] = point.value + before if point.is_delta and before is not None else point.value

    def forget(self, instance: UUID) -> None:
        """Remove the series of a client instance."""
        self.count -= len(self.values_by_instance.pop(instance, ()))
        self.labels_by_instance.pop(instance, None)
        self._pushed_ms.pop(instance, None)
        self._counters.pop(instance, None)
        self._deltas.pop(instance, None)

    def write(self, page: Page) -> None:
        """Add the time since the latest push of each client instance to a page, and all series, ordered by metric."""
        now_ms = self._now_ms()
        ages = [
            (self.labels_by_instance[instance], (now_ms - pushed_ms) / 1000)
            for instance, pushed_ms in self._pushed_ms.items()
        ]
        page.family(PUSH_AGE, "gauge", "Time since the latest push of a client.", ages)
        families: defaultdict[str, dict[str, float]] = defaultdict(dict)  # names and labels may become equal
        counters = {family_of(name) for name in {name for keys in self._counters.values() for name, _ in keys}}
        for instance, values in self.values_by_instance.items():
            common = self.labels_by_instance[instance]
            for (name, labels), value in values.items():
                own = {_label_name(key): text for key, text in labels if key}
                families[family_of(name)][label_text({**own, **common})] = value
        for family, samples in sorted(families.items()):
            kind = "counter" if family in counters else "gauge"
            page.written_family(family, kind, "Pushed by clients (KIP-714).", samples.items())


def family_of(name: str) -> str:
    """Return the name on a metrics page of a metric that clients push."""
    return _PREFIX + _NOT_IN_NAMES.sub("_", name.removeprefix(_KAFKA))


def _label_name(key: str) -> str:
    """Return the name on a metrics page of an attribute, by OpenTelemetry's rules for Prometheus.

    Names that begin with ``__`` are reserved. With one label ``__name__``, Prometheus rejects the whole page.
    """
    name = _NOT_IN_NAMES.sub("_", key)
    return f"key_{name}" if name[0].isdigit() else f"key{name}" if name[0] == "_" else name


def _is_short(point: MetricPoint) -> bool:
    texts = [point.name, *(text for label in point.labels for text in label)]
    return bool(point.name) and len(point.labels) <= MAX_LABELS and max(map(len, texts)) <= LONGEST_TEXT
