"""The registration report on Spark: aggregation on rows, and end to end on a running broker."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import kafka

from klamm.admin import AdminClient, NewTopic
from klamm.client_configs.registrations import TOPIC
from klamm.clients import KafkaProducer
from klamm.registrations.report import IgnoringClient, Report, Scope, SupportRow, VersionWindow, run_report
from klamm.registrations.spark.job import Job, read_records, summarise
from klamm.registrations.spark.source import RECORD_SCHEMA
from tests.support.klamm import KlammBroker

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.kafka import KafkaCluster


def record(offset: int, user: str, client_id: str, information: str | None, *supported: str) -> tuple[Any, ...]:
    key = json.dumps({"client-id": client_id, "user": user}).encode()
    document = {"client_information": information, "supported_configs": supported, "version": 0}
    value = None if information is None else json.dumps(document).encode()
    return (0, offset, 1_000 + offset, key, value)


def records(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), RECORD_SCHEMA)


def reach(report: Report) -> dict[tuple[str, str, str], tuple[int, int, tuple[str, ...]]]:
    return {(row.software, row.version, row.config): (row.clients, row.clients_total, row.users) for row in report.rows}


def test_configs_are_counted_by_software_and_version(spark: SparkSession) -> None:
    """K649-22, K649-42."""
    report = summarise(
        records(
            spark,
            record(0, "alice", "app1", "klamm/1.0", "acks"),
            record(1, "alice", "app2", "klamm/1.0", "acks", "session.timeout.ms"),
            record(2, "bob", "app1", "klamm/1.1", "acks"),
            record(3, "bob", "app1", "klamm/1.1", "session.timeout.ms"),
            record(4, "carol", "app9", "other/7"),
        )
    )
    assert reach(report) == {
        ("klamm", "1.0", "acks"): (2, 2, ("alice",)),
        ("klamm", "1.0", "session.timeout.ms"): (1, 2, ("alice",)),
        ("klamm", "1.1", "acks"): (1, 1, ("bob",)),
        ("klamm", "1.1", "session.timeout.ms"): (1, 1, ("bob",)),
        ("other", "7", "acks"): (0, 1, ()),
        ("other", "7", "session.timeout.ms"): (0, 1, ()),
    }
    assert (report.clients, report.records) == (4, 5)


def test_a_tombstone_takes_back_what_came_before_it(spark: SparkSession) -> None:
    """O649-L."""
    report = summarise(
        records(
            spark,
            record(0, "alice", "app1", "klamm/1.0", "acks"),
            record(1, "bob", "app1", "klamm/1.0", "acks"),
            record(2, "alice", "app1", None),
            record(3, "alice", "app1", "klamm/2.0", "acks"),
        )
    )
    assert reach(report) == {
        ("klamm", "1.0", "acks"): (1, 1, ("bob",)),
        ("klamm", "2.0", "acks"): (1, 1, ("alice",)),
    }


def test_what_is_no_registration_is_left_out(spark: SparkSession) -> None:
    report = summarise(
        records(
            spark,
            (0, 0, 0, b"junk", b"junk"),
            (0, 1, 0, None, b"{}"),
            (0, 2, 0, b'{"user":"a","client-id":"b"}', b"[]"),
            record(3, "alice", "app1", "unknown", "acks"),
        )
    )
    assert reach(report) == {("unknown", "unknown", "acks"): (1, 1, ("alice",))}


def test_clients_that_support_nothing_are_counted_too(spark: SparkSession) -> None:
    """K649-47."""
    report = summarise(records(spark, record(0, "alice", "app1", "klamm/1.0")))
    assert report.rows == (
        SupportRow(
            software="klamm",
            version="1.0",
            config="(none)",
            clients=0,
            clients_total=1,
            users=(),
            last_registered_ms=1_000,
        ),
    )


def test_running_producers_appear_in_the_report(spark: SparkSession) -> None:
    """K649-22, K649-40."""
    with KlammBroker() as broker:
        before = io.StringIO()
        assert run_report(broker.bootstrap_servers, before) == 0
        assert "No client has registered yet" in before.getvalue()
        for number in range(3):
            client = KafkaProducer(
                bootstrap_servers=broker.bootstrap_servers, client_id=f"app{number}", acks=1, enable_idempotence=False
            )
            client.close()
        output = io.StringIO()
        assert run_report(broker.bootstrap_servers, output, output_format="json") == 0
        document = json.loads(output.getvalue())
        (row,) = document["rows"]
        assert (row["software"], row["config"], row["clients"], row["users"]) == (
            "klamm-kafka-python",
            "acks",
            3,
            ["ANONYMOUS"],
        )
        pieces = read_records(spark, broker.bootstrap_servers, {}, records_per_task="1")
        assert pieces.rdd.getNumPartitions() == 3
        assert sorted(row.offset for row in pieces.collect()) == [0, 1, 2]


def test_who_would_ignore_a_key_is_told_by_the_newest_version(spark: SparkSession, tmp_path: Path) -> None:
    """K649-22."""
    # given
    rows = records(
        spark,
        record(0, "alice", "app1", "klamm/1.0"),
        record(1, "alice", "app1", "klamm/2.0", "acks"),
        record(2, "alice", "app2", "klamm/2.0", "acks"),
        record(3, "alice", "app2", "klamm/1.0", "heartbeat.interval.ms"),
        record(4, "bob", "app3", "klamm/1.0"),
    )
    # when
    report = summarise(rows, scope=Scope(user="alice", config="acks"), parquet=tmp_path)
    # then
    ignores = IgnoringClient(config="acks", user="alice", client_id="app2", software="klamm", version="1.0")
    assert (report.ignoring, report.ignoring_total, report.clients) == ((ignores,), 1, 2)
    assert [(row.version, row.clients, row.clients_total) for row in report.rows] == [("1.0", 0, 2), ("2.0", 2, 2)]
    assert [row.client_id for row in spark.read.parquet(str(tmp_path / "ignoring")).collect()] == ["app2"]
    assert spark.read.parquet(str(tmp_path / "support")).count() == 2


def test_versions_are_counted_by_windows_of_time(spark: SparkSession) -> None:
    # given
    rows = records(
        spark,
        record(0, "alice", "app1", "klamm/1.0", "acks"),
        record(1, "alice", "app1", "klamm/1.0"),
        record(2, "alice", "app2", "klamm/1.0", "acks"),
        record(1_500, "alice", "app1", "klamm/2.0", "acks"),
    )
    # when
    report = summarise(rows, scope=Scope(window="1 second"))
    # then
    assert report.windows == (
        VersionWindow(start_ms=1_000, software="klamm", version="1.0", clients=2),
        VersionWindow(start_ms=2_000, software="klamm", version="2.0", clients=1),
    )


def test_a_report_that_follows_is_made_anew_when_somebody_registers(spark: SparkSession) -> None:
    """K649-39."""
    with KlammBroker() as broker:

        def register(client_id: str) -> None:
            KafkaProducer(
                bootstrap_servers=broker.bootstrap_servers, client_id=client_id, acks=1, enable_idempotence=False
            ).close()

        register("app-1")
        counts: list[int] = []

        def publish(report: Report) -> None:
            counts.append(report.clients)
            if len(counts) == 1:
                register("app-2")

        job = Job(broker.bootstrap_servers, {}, {}, scope=Scope())
        job.follow(publish, every_s=0.5, batches=2)
    assert counts == [1, 2]


def test_the_topic_is_read_from_apache_kafka_alike(
    spark: SparkSession, real_kafka: KafkaCluster, tmp_path: Path
) -> None:
    """The gateway keeps the topic in the Apache Kafka cluster behind it."""
    # given
    servers = real_kafka.bootstrap_servers
    with AdminClient(servers) as admin:
        admin.create_topics([NewTopic(name=TOPIC, num_partitions=2, replication_factor=1)]).all().result()
    producer = kafka.KafkaProducer(bootstrap_servers=servers)
    for offset, client_id in enumerate(("app1", "app2")):
        _, _, _, key, value = record(offset, "alice", client_id, "klamm/1.0", "acks")
        producer.send(TOPIC, key=key, value=value, partition=offset).get(20)
    producer.close()
    page = tmp_path / "report.html"
    # when
    output = io.StringIO()
    assert run_report(servers, output, output_format="json", html=page) == 0
    # then
    document = json.loads(output.getvalue())
    assert [(row["config"], row["clients"], row["clients_total"]) for row in document["rows"]] == [("acks", 2, 2)]
    assert "acks: 2 of 2" in page.read_text(encoding="utf-8")
