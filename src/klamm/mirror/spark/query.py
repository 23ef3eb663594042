"""A mirror as a streaming query of a session that somebody else has started: notebooks and jobs."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from klamm.mirror.progress import FlowState
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.settings.providers import resolve
from klamm.mirror.spark.driver import ControlLoops
from klamm.mirror.spark.session import check_session
from klamm.mirror.spark.stream import MirrorStream
from klamm.properties import SettingsError, read_properties

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from klamm.mirror.progress import FlowProgress
    from klamm.mirror.settings.mirror import MirrorSettings

logger = logging.getLogger(__name__)

_TURN_S: Final = 1


class MirrorQuery(StreamingQuery):
    """Spark's query of a mirror. When it ends, however it does, everything else of the mirror ends too."""

    def __init__(
        self, query: StreamingQuery, stream: MirrorStream, loops: ControlLoops, everything: contextlib.ExitStack
    ) -> None:
        super().__init__(query._jsq)  # a subclass holds what its class holds
        self._stream = stream
        self._loops = loops
        self._everything = everything
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="mirror-query", daemon=True).start()

    @property
    def flows(self) -> tuple[FlowProgress, ...]:
        """How far each flow is, and why it waits or has failed."""
        return self._loops.status.snapshot()

    def stop(self) -> None:
        """End the lease in order, so that nothing is copied twice, then the query; returns when all is released."""
        self._release()

    def _release(self) -> None:
        with self._lock:
            self._everything.close()

    def _watch(self) -> None:
        """Follow the executors, end with the query, and let it fail when nothing is left to do."""
        try:
            while not super().awaitTermination(_TURN_S):
                self._stream.count_slots()
                flows = self.flows
                if all(flow.state is FlowState.FAILED for flow in flows):
                    reasons = "; ".join(f"{flow.flow}: {flow.reason}" for flow in flows)
                    self._loops.coordinator.fail(reasons)
        except StreamingQueryException as error:
            logger.error("The mirror ended: %s", error)  # noqa: TRY400 - the text says it all
        except Exception as error:  # noqa: BLE001 - whatever a session says that is gone
            logger.error("The mirror ended: %s", error)  # noqa: TRY400 - nothing of klamm stands in the trace
        with contextlib.suppress(Exception):
            self._release()


def start(
    spark: SparkSession, properties: Mapping[str, object] | str | Path, clusters: Sequence[str] = ()
) -> MirrorQuery:
    """Mirror as a query of this session until ``query.stop()``.

    Args:
        spark: the session; its master decides where the tasks run.
        properties: MirrorMaker's file, or its keys and values, which may be whole numbers and booleans, too. Keys
            ``spark.*`` have no effect: the session runs.
        clusters: only flows to these clusters; empty means all.

    Returns:
        The query. It fails, as ``exception()`` and ``awaitTermination()`` tell, when every flow has failed; of one flow
        among several ``flows`` tells.

    Raises:
        SettingsError: what is asked for cannot be; names key, value and what is allowed.
    """
    if isinstance(properties, str | Path):
        keys = read_properties(Path(properties))
    else:
        keys = {key: _as_in_a_file(key, value) for key, value in properties.items()}
    settings = parse_settings(resolve(keys), target_aliases=clusters)
    settings.require_flows()
    settings.check_clients()
    check_session(spark)
    settings.tell(logger)
    if settings.spark:
        logger.warning("%s: no effect, the session runs already", ", ".join(sorted(settings.spark)))
    return _start(spark, settings)


def _as_in_a_file(key: str, value: object) -> str:
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | Path():
            return str(value)
        case _:
            raise SettingsError(f"{key}={value!r}: expected a text, a whole number, True or False")


def _start(spark: SparkSession, settings: MirrorSettings) -> MirrorQuery:
    with contextlib.ExitStack() as starting:
        prefix = "klamm-mirror-"
        directory = starting.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True))
        loops = starting.enter_context(ControlLoops(settings))
        checkpoint = settings.checkpoint_dir or (Path(directory) / "checkpoint").as_uri()
        stream = MirrorStream(spark, loops.coordinator, checkpoint=checkpoint)
        starting.callback(stream.stop)
        return MirrorQuery(stream.start(), stream, loops, starting.pop_all())
