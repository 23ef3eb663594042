"""Streaming query whose micro-batches are leases."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from klamm.mirror.progress.flow_progress import SparkFailedError
from klamm.mirror.spark.session import channel_addresses, first_line, slots
from klamm.mirror.spark.shipping import ship
from klamm.mirror.spark.source import FORMAT, MirrorSource
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from klamm.mirror.spark.coordinator import Coordinator

logger = logging.getLogger(__name__)

_NAME: Final = "klamm-mirror"
_STOP_S: Final = 25.0
_MAX_RESTARTS: Final = 10
_RESTARTS_WITHIN_S: Final = 600.0


class MirrorStream:
    """Runner of the coordinator's leases as a query in a session. Restarts a failed query. Confined to one thread."""

    def __init__(self, spark: SparkSession, coordinator: Coordinator, *, checkpoint: str) -> None:
        """Send klamm to the workers, register the data source, and listen on the side channel.

        Args:
            spark: Session to run in.
            coordinator: Coordinator whose leases are run.
            checkpoint: Spark's checkpoint directory, a path or a URI. It may be deleted when the mirror has
                ended, because the source offsets are stored on the target cluster.

        Raises:
            SettingsError: This machine does not have the address in ``spark.driver.bindAddress``.
        """
        self._spark = spark
        self._coordinator = coordinator
        self._checkpoint = checkpoint
        self._query: StreamingQuery | None = None
        self._restarts: deque[float] = deque(maxlen=_MAX_RESTARTS + 1)
        """Monotonic times of the latest restarts of the query."""
        ship(spark)
        spark.dataSource.register(MirrorSource)
        host, advertised = channel_addresses(spark)
        try:
            coordinator.server.listen(host, advertised=advertised)
        except OSError as error:
            raise SettingsError(f"spark.driver.bindAddress={host}: {error.strerror or error}") from error
        self.count_slots()

    def start(self) -> StreamingQuery:
        """Start the query.

        Raises:
            SettingsError: Spark's Python lacks klamm, or another mirror runs in the same session.
            SparkFailedError: The query does not start. For example, the checkpoint directory is not writable.
        """
        if any(query.name == _NAME for query in self._spark.streams.active):
            # A mirror holds its slots for a whole lease. A second mirror might wait for minutes without any visible
            # reason.
            raise SettingsError(
                "this Spark session already runs a mirror: stop that mirror first, or run all flows in it"
            )
        host, port = self._coordinator.server.address
        reader = self._spark.readStream.format(FORMAT).options(
            host=host, port=str(port), token=self._coordinator.server.token
        )
        # Live progress arrives on the side channel. The rows of the stream are only counted by Spark, then discarded.
        writer = self._load(reader).writeStream.format("noop").option("checkpointLocation", self._checkpoint)
        try:
            self._query = writer.queryName(_NAME).start()
        except (PySparkException, Py4JError) as error:
            failure = f"Spark cannot start the query with checkpoint directory {self._checkpoint}"
            raise SparkFailedError(f"{failure}: {first_line(error)}") from error
        return self._query

    def _load(self, reader: DataStreamReader) -> DataFrame:
        try:
            return reader.load()
        except (PySparkException, Py4JError) as error:
            lines = [line.strip() for line in str(error).splitlines()]
            missing = next((line for line in reversed(lines) if line.startswith("ModuleNotFoundError: ")), None)
            if missing is None:
                raise
            python = self._spark.sparkContext.pythonExec
            raise SettingsError(
                f"Spark's Python {python} cannot import a module that the mirror needs: {missing.partition(': ')[2]}. "
                "Before the session starts, set PYSPARK_PYTHON or spark.pyspark.python to a Python that has klamm"
            ) from error

    def count_slots(self) -> None:
        """Set the coordinator's slots to the tasks that can run at the same time now. Executors come and go."""
        self._coordinator.set_slots(slots(self._spark))

    def check(self) -> None:
        """Restart the query if it has ended.

        Raises:
            SettingsError: No worker can run the mirror, for example because klamm is not installed there.
            SparkFailedError: The query ended more than ten times within ten minutes.
        """
        if self._coordinator.failure is not None:
            raise SettingsError(self._coordinator.failure)
        if self._query is None or self._query.isActive:
            return
        error = self._query.exception()
        reason = "no error" if error is None else first_line(error)
        now = time.monotonic()
        self._restarts.append(now)
        if len(self._restarts) > _MAX_RESTARTS and now - self._restarts[0] < _RESTARTS_WITHIN_S:
            raise SparkFailedError(
                f"Spark's query ended {len(self._restarts)} times within {_RESTARTS_WITHIN_S / 60:.0f} minutes. "
                f"Last error: {reason}"
            )
        logger.warning("Spark's query ended and is restarted: %s", reason)
        self.start()

    def stop(self, patience_s: float = _STOP_S) -> None:
        """End the running lease in order, then stop the query and close the side channel.

        Args:
            patience_s: Maximum time to wait for the tasks, in seconds.
        """
        self.end_lease(patience_s)
        if self._query is not None:
            self._query.stop()
            self._query = None
        self._coordinator.close()

    def end_lease(self, patience_s: float) -> bool:
        """End the running lease in order. Return whether its tasks ended within ``patience_s`` seconds."""
        self._coordinator.end()
        if self._query is None or not self._query.isActive or self._coordinator.wait_idle(patience_s):
            return True
        logger.warning("Tasks did not end within %g s; their records in flight are copied again", patience_s)
        return False
