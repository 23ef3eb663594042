"""``klamm-kafka``: topics of klamm and Apache Kafka as a Spark source and sink, for batches and streams.

::

    from klamm.dataframes.spark import register

    register(spark)
    records = spark.read.format("klamm-kafka").option("kafka.bootstrap.servers", "localhost:9092")
    records.option("subscribe", "orders").load()
"""

from __future__ import annotations

from klamm.extras import require_extra

try:
    from klamm.dataframes.spark.source import FORMAT, KafkaSource, register
except ModuleNotFoundError:
    require_extra("spark", feature="klamm.dataframes.spark")
    raise

__all__ = ["FORMAT", "KafkaSource", "register"]
