"""Query of Spark Structured Streaming from Kafka to JSON files, as an application that reads what is there, and ends.

Usage: ``python -m tests.support.spark_query BOOTSTRAP_SERVERS TOPIC DIRECTORY``. The checkpoint is in the directory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from klamm.java import require_java
from tests.support.java import QUICK_TO_START, spark_connector_jars

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_TIMEOUT_S: Final = 300.0


def run_query(address: str, topic: str, directory: Path) -> None:
    """Run the query in a process of its own.

    Raises:
        subprocess.CalledProcessError: The query failed. A note has its log.
    """
    command: list[str | Path] = [sys.executable, "-m", "tests.support.spark_query", address, topic, directory]
    environment = {**os.environ, "JAVA_HOME": str(require_java())}
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment)
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr[-4000:])
        raise


def query_output(directory: Path) -> list[tuple[int, int, int]]:
    """Return partition, offset and number of each record that the query has written."""
    lines = [line for file in (directory / "output").glob("*.json") for line in file.read_text().splitlines()]
    rows = map(json.loads, lines)
    return [(row["partition"], row["offset"], int(row["value"])) for row in rows]


def _main(words: Sequence[str]) -> None:
    address, topic, directory = words
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", ",".join(spark_connector_jars()))
        .config("spark.driver.extraJavaOptions", " ".join(QUICK_TO_START))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    records = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", topic)
        .option("kafka.isolation.level", "read_committed")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("partition", "offset", "CAST(value AS STRING) AS value")
    )
    written = records.writeStream.format("json").option("checkpointLocation", f"{directory}/checkpoint")
    written.trigger(availableNow=True).start(f"{directory}/output").awaitTermination()
    session.stop()


if __name__ == "__main__":
    _main(sys.argv[1:])
