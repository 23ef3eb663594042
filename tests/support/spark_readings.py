"""What a Spark source reads with some options, run as a program: ``klamm-kafka`` and Spark's own in one session."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from klamm.dataframes.spark import FORMAT, register
from tests.support.java import class_path_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_POM: Final = Path(__file__).parents[2] / "benchmarks" / "java" / "pom.xml"
SPARKS: Final = "kafka"


def _reading(session: SparkSession, source: str, options: Mapping[str, str]) -> Any:
    """Return the offsets of a batch, with ``minPartitions`` also the number of tasks, or None if it fails."""
    try:
        table = session.read.format(source).options(**options).load().select("topic", "partition", "offset")
        tasks = table.rdd.getNumPartitions() if "minPartitions" in options else None
        return [tasks, sorted([*row] for row in table.collect())]
    except (PySparkException, Py4JJavaError):  # the latter from planning
        return None


def main() -> None:
    """Write the readings of each set of options in stdin, as JSON: those of klamm-kafka, then those of Spark's own."""
    jars = ",".join(class_path_of(_POM).split(":"))
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", jars)
    session = builder.config("spark.driver.host", "127.0.0.1").config("spark.log.level", "OFF").getOrCreate()
    register(session)
    readings = [[_reading(session, source, options) for source in (FORMAT, SPARKS)] for options in json.load(sys.stdin)]
    session.stop()
    sys.stdout.write(json.dumps(readings) + "\n")


if __name__ == "__main__":
    main()
