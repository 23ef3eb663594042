"""Fetch what tests need of Apache Kafka and write the archives of its classes, while no test waits for them yet.

Without Java or Maven nothing is done: the tests that need them say so.
"""

from __future__ import annotations

import contextlib

from tests.support.java import spark_connector_jars, streams_class_path
from tests.support.kafka import JavaUnavailableError, KafkaCluster
from tests.support.kafka_tools import KafkasTools


def main() -> None:
    """Start everything once."""
    with contextlib.suppress(JavaUnavailableError):
        streams_class_path()
        spark_connector_jars()
        with KafkaCluster(), KafkasTools():
            pass


if __name__ == "__main__":
    main()
