"""Read a topic, leave out and mask what is not for everybody, and write the rest to another topic.

First as a batch, then as a stream that writes each record once.
Spark needs Java. With an address the topics of that cluster are used, as a stream until Ctrl-C:

    python masked_stream.py localhost:9092 orders orders-public /var/lib/masked
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import klamm
from klamm.admin import AdminClient, NewTopic
from klamm.dataframes.spark import FORMAT, register
from klamm.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def masked(orders: DataFrame) -> DataFrame:
    """Keep paid orders, without their cards; key, headers, partition and time stay as they are."""
    value = sf.col("value").cast("string")
    card = sf.regexp_replace(value, r'"card":"\d+(\d{4})"', '"card":"****$1"')
    paid = orders.where(sf.get_json_object(value, "$.state") == "paid")
    return paid.withColumn("value", card).select("key", "value", "headers", "partition", "timestamp")


def session() -> SparkSession:
    """Return a small session that knows topics."""
    os.environ["JAVA_HOME"] = str(require_java())
    builder = SparkSession.builder.master("local[2]").appName("masked").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.log.level", "ERROR").getOrCreate()
    register(spark)
    return spark


def stream(spark: SparkSession, servers: str, source: str, target: str, checkpoint: str, *, ends: bool) -> None:
    """Go on behind the checkpoint, each record once; until all is written that is there now, or for ever."""
    orders = (
        spark.readStream.format(FORMAT)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", os.environ.get("MASKED_PER_ROUND", "100000"))
        .load()
    )
    writer = (
        masked(orders)
        .writeStream.format(FORMAT)
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
    )
    writer = writer.trigger(availableNow=True) if ends else writer.trigger(processingTime="0 seconds")
    writer.start().awaitTermination()


def show(spark: SparkSession, servers: str, topic: str) -> None:
    """Print what a reader of committed records sees."""
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "kafka.isolation.level": "read_committed"}
    for row in spark.read.format(FORMAT).options(**options).load().orderBy("timestamp").collect():
        print(f"{topic}: {bytes(row.key).decode()} {bytes(row.value).decode()}")


def demonstrate() -> None:
    """Do both with a broker of its own."""
    with klamm.Broker() as broker, tempfile.TemporaryDirectory() as checkpoint:
        servers = broker.bootstrap_servers
        names = ("orders", "by-batch", "by-stream")
        with AdminClient(servers) as admin:
            admin.create_topics(
                [NewTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
            ).all().result()
        spark = session()
        placed = [
            ("1", '{"state":"paid","card":"4111111111111111"}', 0),
            ("2", '{"state":"open","card":"4222222222222222"}', 1),
            ("3", '{"state":"paid","card":"4333333333333333"}', 1),
        ]
        orders = spark.createDataFrame(placed, "key string, value string, partition int")
        to_cluster = {"kafka.bootstrap.servers": servers}
        orders.write.format(FORMAT).options(**to_cluster, topic="orders").mode("append").save()
        table = spark.read.format(FORMAT).options(**to_cluster, subscribe="orders").load()
        masked(table).write.format(FORMAT).options(**to_cluster, topic="by-batch").mode("append").save()
        show(spark, servers, "by-batch")
        stream(spark, servers, "orders", "by-stream", checkpoint, ends=True)
        show(spark, servers, "by-stream")
        spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        stream(session(), *sys.argv[1:5], ends=False)
    else:
        demonstrate()
