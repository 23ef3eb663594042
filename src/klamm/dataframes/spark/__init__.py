"""``klamm-kafka``: topics of klamm and of Apache Kafka as source and sink of Spark, batch and streaming.

::

    from klamm.dataframes.spark import register

    register(spark)
    records = spark.read.format("klamm-kafka").option("kafka.bootstrap.servers", "localhost:9092")
    records.option("subscribe", "orders").load()
"""

from __future__ import annotations

from klamm.dataframes.spark.source import FORMAT, KafkaSource, register

__all__ = ["FORMAT", "KafkaSource", "register"]
