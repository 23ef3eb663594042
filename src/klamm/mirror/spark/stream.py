"""The streaming query whose micro-batches are leases."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from klamm.mirror.errors import SparkFailedError
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
    """Runs the leases of a coordinator in Spark; starts the query again when it fails. Confined to one thread."""

    def __init__(self, spark: SparkSession, coordinator: Coordinator, *, checkpoint: str) -> None:
        """Give the workers what they need, register the source, and listen where tasks come from.

        Args:
            spark: where to run.
            coordinator: what to run.
            checkpoint: Spark's directory, a path or an address. It may go when the mirror ends: positions are on the
                target.

        Raises:
            SettingsError: this machine has no address ``spark.driver.bindAddress``.
        """
        self._spark = spark
        self._coordinator = coordinator
        self._checkpoint = checkpoint
        self._query: StreamingQuery | None = None
        self._restarts: deque[float] = deque(maxlen=_MAX_RESTARTS + 1)
        """When the query was started again, by the monotonic clock."""
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
            SettingsError: it does not start, as when the checkpoint directory can not be written, Spark's Python lacks
                klamm, or another mirror runs in the session.
        """
        if any(query.name == _NAME for query in self._spark.streams.active):
            # Each holds its slots for a lease: the other one might wait for minutes, and nobody would know why.
            raise SettingsError("a mirror runs in this Spark session already: give all flows to one, or stop it first")
        host, port = self._coordinator.server.address
        reader = self._spark.readStream.format(FORMAT).options(
            host=host, port=str(port), token=self._coordinator.server.token
        )
        # Progress comes by the side channel while a lease runs; its rows are counted by Spark and go nowhere.
        writer = self._load(reader).writeStream.format("noop").option("checkpointLocation", self._checkpoint)
        try:
            self._query = writer.queryName(_NAME).start()
        except (PySparkException, Py4JError) as error:
            said = f"Spark does not start the query with the checkpoint directory {self._checkpoint}"
            raise SettingsError(f"{said}: {first_line(error)}") from error
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
                f"Spark's Python, {python}, lacks what the mirror needs: {missing.partition(': ')[2]}. Name one that "
                "has klamm by PYSPARK_PYTHON or spark.pyspark.python before the session starts"
            ) from error

    def count_slots(self) -> None:
        """Let as many tasks be dealt as can run now: executors come and go."""
        self._coordinator.set_slots(slots(self._spark))

    def check(self) -> None:
        """Start the query again if it ended.

        Raises:
            SettingsError: no worker can run the mirror as things are.
            SparkFailedError: it ended more than ten times within ten minutes.
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
                f"Spark ended the query {len(self._restarts)} times within {_RESTARTS_WITHIN_S / 60:.0f} minutes, "
                f"the last time with: {reason}"
            )
        logger.warning("Spark ended the query, it is started again: %s", reason)
        self.start()

    def stop(self, patience_s: float = _STOP_S) -> None:
        """End the running lease in order, then the query.

        Args:
            patience_s: how long the tasks may take to end.

        """
        self.end_lease(patience_s)
        if self._query is not None:
            self._query.stop()
            self._query = None
        self._coordinator.close()

    def end_lease(self, patience_s: float) -> bool:
        """End the running lease in order; return whether its tasks were done within ``patience_s`` seconds."""
        self._coordinator.end()
        if self._query is None or not self._query.isActive or self._coordinator.wait_idle(patience_s):
            return True
        logger.warning("Tasks did not end within %g s; what they had in flight is copied again", patience_s)
        return False
