"""The same options on klamm-kafka and on Spark's own source return the same records. Two minutes: ``make soak``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import kafka

from tests.support.klamm import KlammBroker
from tests.support.mirror import create_topic

OPTIONS = (
    {"subscribe": "one"},
    {"subscribePattern": "o.*"},
    {"subscribePattern": "on"},
    {"subscribePattern": "^ne"},
    {"assign": '{"one":[1],"other":[0]}'},
    {"subscribe": "one", "minPartitions": "5"},
    {"subscribe": "one,other", "minPartitions": "7", "maxRecordsPerPartition": "20"},
    {"subscribe": "one", "startingTimestamp": "1025"},
    {"subscribe": "one", "startingTimestamp": "1025", "endingTimestamp": "1035"},
    {"subscribe": "one", "startingTimestamp": "1100"},
    {"subscribe": "one", "startingTimestamp": "1100", "startingOffsetsByTimestampStrategy": "latest"},
    {
        "subscribe": "one",
        "startingOffsetsByTimestamp": '{"one":{"0":1100,"1":1000}}',
        "endingOffsetsByTimestamp": '{"one":{"0":1200,"1":9000}}',
    },
    {"subscribe": "one", "startingOffsetsByTimestamp": '{"one":{"0":1100}}'},
    {"subscribe": "one", "startingTimestamp": "1200", "endingTimestamp": "1100"},
    {"subscribe": "one", "startingOffsets": '{"one":{"0":-1,"1":0}}'},
    {"subscribe": "one", "startingOffsets": "latest"},
    {"subscribe": "one", "startingOffsets": '{"one":{"0":3,"1":-2}}', "endingOffsets": '{"one":{"0":9,"1":-1}}'},
    {"subscribe": "one", "endingOffsets": "earliest"},
    {"subscribe": "one", "assign": '{"one":[1]}'},
    {"subscribe": "one", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"},
    {"subscribe": "one", "kafka.vendor.extension": "x"},
    {"subscribe": "one", "kafka.auto.offset.reset": "earliest"},
)
TIMEOUT_S = 900.0


def fill(servers: str) -> None:
    for topic, partitions in (("one", 2), ("other", 1)):
        create_topic(servers, topic, partitions, {"retention.ms": "-1"})
    producer = kafka.KafkaProducer(bootstrap_servers=servers)
    for topic, partition, count in (("one", 0, 60), ("one", 1, 5), ("other", 0, 5)):
        for number in range(count):
            producer.send(topic, partition=partition, value=b"v", timestamp_ms=1_000 + 10 * number)
    producer.close()


if os.environ.get("KLAMM_SOAK"):

    def test_batch_equals_spark_kafka_source(java: None) -> None:
        with KlammBroker() as broker:
            fill(broker.bootstrap_servers)
            all_options = [{"kafka.bootstrap.servers": broker.bootstrap_servers} | options for options in OPTIONS]
            command = [sys.executable, "-m", "tests.support.spark_readings"]
            done = subprocess.run(
                command, input=json.dumps(all_options), capture_output=True, text=True, timeout=TIMEOUT_S, check=True
            )
        readings = json.loads(done.stdout.splitlines()[-1])
        differing = [(options, *both) for options, both in zip(OPTIONS, readings, strict=True) if both[0] != both[1]]
        assert not differing
