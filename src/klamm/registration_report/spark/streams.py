"""Report as two streams over one topic: registrations as state by key, and versions per time window.

Spark's checkpoints contain offsets, state and watermark. The last report and the windows are stored beside them as
JSON, so that a resumed run can publish at once.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import tempfile
import time
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.atomic_file import replace_file
from klamm.client_configs.registrations import TOPIC
from klamm.dataframes.errors import DataLossError
from klamm.properties import SettingsError
from klamm.registration_report.report import MAX_WINDOWS, Report, VersionWindow, report_of
from klamm.registration_report.restarts import SteadyStream
from klamm.registration_report.spark import compatibility
from klamm.registration_report.spark.summary import summarise, version_windows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from klamm.registration_report.report import Following, Scope, Sighting

_POLL_S: Final = 0.2
_REPORT: Final = "report.json"
_WINDOWS: Final = "windows.json"
_ABOUT: Final = "about.json"
_TOPIC_ID: Final = "topic.id"

Window = tuple[int, str, str]


class Follower:
    """Publisher of a report whenever both streams have processed all records.

    Args:
        records: Result of ``parsed`` for a stream.
        scope: Scope of the report.
        following: Settings of the repetition.
        cluster: Id of the cluster. A checkpoint belongs to one cluster.
        parquet: Directory for the tables of each report; None writes none.
        sightings: Returns the clients that brokers have seen, called for each report.
        topic_id: Returns the id of the topic, None if it has none, called for each report.
    """

    def __init__(
        self,
        records: DataFrame,
        *,
        scope: Scope,
        following: Following,
        cluster: str,
        parquet: Path | None,
        sightings: Callable[[], Sequence[Sighting]],
        topic_id: Callable[[], str | None],
    ) -> None:
        self._records = records
        self._topic_id = topic_id
        self._scope = scope
        self._following = following
        self._about = {"cluster": cluster, **dataclasses.asdict(scope), "late": following.late}
        self._parquet = parquet
        self._sightings = sightings
        self._directory = Path()
        self._report: Report | None = None
        self._windows: dict[Window, int] = {}
        self._dirty = False

    def run(self, publish: Callable[[Report], None], *, reports: int | None = None) -> None:
        """Publish until ``reports`` reports are published, or until interrupted if None.

        Raises:
            SettingsError: The checkpoint belongs to another report.
        """
        if self._following.checkpoint is not None:
            self._following.checkpoint.mkdir(parents=True, exist_ok=True)
            self._run(self._following.checkpoint, publish, reports)
            return
        with tempfile.TemporaryDirectory(prefix="klamm-registrations-") as directory:
            self._run(Path(directory), publish, reports)

    def _run(self, directory: Path, publish: Callable[[Report], None], reports: int | None) -> None:
        self._directory = directory
        self._restore()
        streams = [
            SteadyStream(name, start, now=time.monotonic)
            for name, start in (("what stands", self._start_state), ("versions over time", self._start_windows))
        ]
        published = 0
        waited_until = time.monotonic() + self._following.every_s
        try:
            while reports is None or published < reports:
                for stream in streams:
                    stream.tend()
                is_whole = _in_step([stream.query for stream in streams])
                if self._dirty and self._report is not None and (is_whole or time.monotonic() > waited_until):
                    self._dirty = False
                    publish(self._whole(self._report))
                    published += 1
                if not self._dirty:
                    waited_until = time.monotonic() + self._following.every_s
                time.sleep(_POLL_S)
        finally:
            for stream in streams:
                stream.stop()

    def _restore(self) -> None:
        about = self._directory / _ABOUT
        if about.exists() and (before := json.loads(about.read_text(encoding="utf-8"))) != self._about:
            differing = ", ".join(name for name in self._about if before.get(name) != self._about[name])
            raise SettingsError(
                f"checkpoint {self._directory}: made for another report ({differing} differs); use another directory"
            )
        replace_file(about, json.dumps(self._about))
        if (kept := self._directory / _WINDOWS).exists():
            rows = json.loads(kept.read_text(encoding="utf-8"))
            self._windows = _largest(
                {(start, software, version): clients for start, software, version, clients in rows}
            )
        if (kept := self._directory / _REPORT).exists():
            self._report = report_of(json.loads(kept.read_text(encoding="utf-8")))
            self._dirty = True

    def _whole(self, report: Report) -> Report:
        windows = tuple(
            VersionWindow(start_ms=start, software=software, version=version, clients=clients)
            for (start, software, version), clients in sorted(self._windows.items())
        )
        return dataclasses.replace(report, windows=windows)

    def _start_state(self) -> StreamingQuery:
        rows = compatibility.latest(self._records, self._scope.window)
        # Output mode complete: each micro-batch emits all registrations from the state, and the topic is read once.
        return self._start(rows, "complete", "state", self._take_state)

    def _start_windows(self) -> StreamingQuery:
        mine = compatibility.of_user(self._records, self._scope.user)
        rows = compatibility.windows_of_stream(mine, self._scope.window, self._following.late)
        return self._start(rows, "update", "windows", self._take_windows)

    def _start(self, rows: DataFrame, mode: str, name: str, take: Callable[[DataFrame, int], None]) -> StreamingQuery:
        writer: Any = rows.writeStream.outputMode(mode).foreachBatch(take)
        writer = writer.option("checkpointLocation", str(self._directory / name))
        return writer.trigger(processingTime=f"{self._following.every_s} seconds").start()  # type: ignore[no-any-return]

    def _check_topic(self) -> None:
        """Check that the new records are of the topic to which the state belongs. Offsets alone do not show it.

        Raises:
            DataLossError: The topic was deleted and created again.
        """
        if (now := self._topic_id()) is None:
            return
        kept = self._directory / _TOPIC_ID
        if not kept.exists():
            replace_file(kept, now)
        elif kept.read_text(encoding="utf-8") != now:
            raise DataLossError(f"{TOPIC} was deleted and created again")

    def _take_state(self, rows: DataFrame, _: int) -> None:
        self._check_topic()
        self._report = summarise(rows, scope=self._scope, parquet=self._parquet, sightings=self._sightings())
        document = dataclasses.asdict(dataclasses.replace(self._report, windows=()))
        replace_file(self._directory / _REPORT, json.dumps(document))
        self._dirty = True

    def _take_windows(self, rows: DataFrame, _: int) -> None:
        # A batch that is repeated after a crash has the same result, because counts are totals, not differences.
        # A window that is left out is among the changed ones again when it has grown.
        changed = version_windows(rows)
        if not changed:
            return
        windows = {(window.start_ms, window.software, window.version): window.clients for window in changed}
        self._windows = _largest(self._windows | windows)
        rows_of_json = [[*key, clients] for key, clients in sorted(self._windows.items())]
        replace_file(self._directory / _WINDOWS, json.dumps(rows_of_json))
        self._dirty = True


def _largest(windows: dict[Window, int]) -> dict[Window, int]:
    """Return the windows that ``version_windows`` would keep: those with the most clients if there are too many."""
    return dict(heapq.nlargest(MAX_WINDOWS, windows.items(), key=itemgetter(1)))


def _in_step(queries: list[StreamingQuery]) -> bool:
    """Return whether all queries have processed the same records and are idle."""
    ends = [_end(query.lastProgress) for query in queries]
    return all(not query.status["isTriggerActive"] for query in queries) and all(end == ends[0] for end in ends)


def _end(progress: Mapping[str, Any] | None) -> Any:
    return progress["sources"][0]["endOffset"] if progress is not None and progress["sources"] else None
