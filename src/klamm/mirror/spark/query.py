"""Mirror as a streaming query in an existing Spark session, for notebooks and jobs."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from klamm.config_providers import resolve
from klamm.mirror.progress.flow_progress import FlowState
from klamm.mirror.settings.mirror import LiveKeys, parse_settings
from klamm.mirror.spark.driver import ControlLoops
from klamm.mirror.spark.session import check_session
from klamm.mirror.spark.stream import MirrorStream
from klamm.properties import SettingsError, read_properties

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from klamm.mirror.progress.flow_progress import FlowProgress
    from klamm.mirror.settings.mirror import MirrorSettings

logger = logging.getLogger(__name__)

_TURN_S: Final = 1


class MirrorQuery(StreamingQuery):
    """Streaming query of a mirror. When the query ends for any reason, all other parts of the mirror end as well."""

    def __init__(
        self, query: StreamingQuery, stream: MirrorStream, loops: ControlLoops, everything: contextlib.ExitStack
    ) -> None:
        super().__init__(query._jsq)  # a StreamingQuery consists of the handle of the JVM's query
        self._stream = stream
        self._loops = loops
        self._everything = everything
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="mirror-query", daemon=True).start()

    @property
    def flows(self) -> tuple[FlowProgress, ...]:
        """Progress and state of each flow, with the reason if it waits or has failed."""
        return self._loops.status.snapshot()

    def stop(self) -> None:
        """End the lease in order, then the query, and release all resources.

        An orderly end leaves no records in flight, so a later start copies nothing twice. The call blocks until
        everything is released.
        """
        self._release()

    def _release(self) -> None:
        with self._lock:
            self._everything.close()

    def _watch(self) -> None:
        """Update the slots every second until the query ends, then release everything. Fail it if all flows fail."""
        try:
            while not super().awaitTermination(_TURN_S):
                self._stream.count_slots()
                flows = self.flows
                if all(flow.state is FlowState.FAILED for flow in flows):
                    reasons = "; ".join(f"{flow.flow}: {flow.reason}" for flow in flows)
                    self._loops.coordinator.fail(reasons)
        except StreamingQueryException as error:
            logger.error("The mirror ended: %s", error)  # noqa: TRY400 - the message is complete
        except Exception as error:  # noqa: BLE001 - a stopped session raises many types
            logger.error("The mirror ended: %s", error)  # noqa: TRY400 - the trace has no frame of klamm
        with contextlib.suppress(Exception):
            self._release()


def start(
    spark: SparkSession,
    properties: Mapping[str, object] | str | Path,
    clusters: Sequence[str] = (),
    *,
    strict: bool = False,
    ignore_transforms: bool = False,
) -> MirrorQuery:
    """Run a mirror as a streaming query in this session until ``query.stop()``.

    Args:
        spark: Running session. Its master determines where the tasks run.
        properties: Path of MirrorMaker's properties file, or its keys and values. Values may also be integers,
            booleans or paths. Keys ``spark.*`` have no effect, because the session already runs.
        clusters: Aliases of the target clusters to mirror to. Empty means all.
        strict: Whether keys without an effect are errors, instead of warnings.
        ignore_transforms: Whether to copy records unchanged although the properties set transforms.

    Returns:
        The query. It fails when every flow has failed: ``exception()`` and ``awaitTermination()`` then report the
        reasons. If only some flows have failed, ``flows`` reports them.

    Raises:
        SettingsError: A setting is invalid or not supported. The message names key, value and what is allowed.
        SparkFailedError: Spark cannot start the query, for example in the checkpoint directory.
    """
    live_keys = None
    if isinstance(properties, str | Path):
        keys = read_properties(Path(properties))
        live_keys = LiveKeys(Path(properties))
    else:
        keys = {key: _as_in_a_file(key, value) for key, value in properties.items()}
    settings = parse_settings(resolve(keys), target_aliases=clusters)
    settings.require_flows()
    settings.check_keys(strict=strict, ignore_transforms=ignore_transforms)
    settings.check_clients()
    check_session(spark)
    settings.log_notes(logger)
    if settings.spark:
        logger.warning("%s: no effect, because the Spark session already runs", ", ".join(sorted(settings.spark)))
    return _start(spark, settings, live_keys)


def _as_in_a_file(key: str, value: object) -> str:
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | Path():
            return str(value)
        case _:
            raise SettingsError(
                f"{key}={value!r}: expected a string, an integer or a boolean, got {type(value).__name__}"
            )


def _start(spark: SparkSession, settings: MirrorSettings, live_keys: LiveKeys | None) -> MirrorQuery:
    with contextlib.ExitStack() as starting:
        prefix = "klamm-mirror-"
        directory = starting.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True))
        loops = starting.enter_context(ControlLoops(settings, live_keys=live_keys))
        checkpoint = settings.checkpoint_dir or (Path(directory) / "checkpoint").as_uri()
        stream = MirrorStream(spark, loops.coordinator, checkpoint=checkpoint)
        starting.callback(stream.stop)
        return MirrorQuery(stream.start(), stream, loops, starting.pop_all())
