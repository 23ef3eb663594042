"""Training of Spark's class archive: ``python -m klamm.mirror.spark.class_training``, for images and installations.

It runs a batch and a stream in a small session, whose JVM writes the archive when it ends: about 30 s of CPU time. With
``--background``, it uses only CPU time that is idle, and ends if another process writes the archive.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from klamm.mirror.spark.class_archive import BACKGROUND, DRIVER_OPTIONS, OFF, QUICK, VARIABLE, find_archive
from klamm.mirror.spark.session import start_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_TIMEOUT_S: Final = 900
_BATCHES: Final = 3


def _yield_to_others() -> None:
    """Use only idle CPU time, end after 15 minutes, and be the first to be killed when memory is short."""
    signal.alarm(_TIMEOUT_S)
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


class _Reader(DataSourceReader, DataSourceStreamReader):
    """Reader of a few rows, as a table and as a stream."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802 - Spark's name
        _ = limit
        return {"batch": min(_BATCHES, start["batch"] + 1)}

    def partitions(self, *_: object) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        yield partition.value, b"value", 1_700_000_000_000


class _Source(DataSource):
    """Data source in Python, as those of klamm."""

    @classmethod
    def name(cls) -> str:
        return "klamm-training"

    def schema(self) -> str:
        return "partition int, value binary, at long"

    def reader(self, schema: StructType) -> _Reader:
        _ = schema
        return _Reader()

    def streamReader(self, schema: StructType) -> _Reader:  # noqa: N802 - Spark's name
        _ = schema
        return _Reader()


def _use(spark: SparkSession, directory: Path) -> None:
    """Run a batch and a stream like those of the mirror, of the data source and of the registration report."""
    spark.dataSource.register(_Source)
    rows = spark.read.format(_Source.name()).load()
    rows.groupBy(sf.window(sf.timestamp_millis("at"), "1 hour"), "value").count().write.parquet(str(directory / "rows"))
    stream = spark.readStream.format(_Source.name()).load().writeStream.format("noop")
    query = stream.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def _train(options: Sequence[str]) -> None:
    """Run a session in a JVM with these options, until the JVM has ended in order."""
    os.environ[VARIABLE] = OFF
    os.environ[DRIVER_OPTIONS] = " ".join(f'"{option}"' for option in (*QUICK, *options))
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="klamm-class-archive-") as directory:
                spark = start_session({"spark.master": "local[2]"}, Path(directory))
                try:
                    _use(spark.session, Path(directory))
                finally:
                    spark.stop(_TIMEOUT_S)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=run, name="training")
    thread.start()
    thread.join()
    if errors:
        raise RuntimeError(str(errors[0])) from errors[0]


def main(arguments: Sequence[str]) -> int:
    """Write the archive unless it exists, and print its path. Return 0 if it exists afterwards, else 1."""
    is_background = BACKGROUND in arguments
    if is_background:
        _yield_to_others()
    archive = find_archive()
    if archive is None:
        sys.stderr.write(f"No directory for the class archive: {VARIABLE} is {OFF}, or there is no home directory\n")
        return 1
    if archive.write(_train, waits=not is_background):
        sys.stdout.write(f"{archive.path}\n")
        return 0
    sys.stderr.write(f"{archive.path} cannot be written: {archive.failure}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
