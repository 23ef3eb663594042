"""The registration report on Spark: aggregation on rows, and end to end on a running broker."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import json
from typing import TYPE_CHECKING, Any

import kafka
import pytest

from klamm.admin import AdminClient, NewTopic
from klamm.cli import registrations
from klamm.client_configs.registrations import TOPIC
from klamm.clients import KafkaProducer
from klamm.dataframes.errors import ReadingError
from klamm.properties import SettingsError
from klamm.registration_report import restarts
from klamm.registration_report.main import run_report
from klamm.registration_report.report import (
    Following,
    IgnoringClient,
    Reach,
    Report,
    Scope,
    Sighting,
    VersionWindow,
)
from klamm.registration_report.spark import compatibility, summary
from klamm.registration_report.spark.job import COLUMNS, Job, report_over
from tests.support.klamm import KlammBroker
from tests.support.mirror import delete_topic
from tests.support.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.kafka import KafkaCluster


def record(
    offset: int, user: str, client_id: str, information: str | None, *supported: str, partition: int = 0
) -> tuple[Any, ...]:
    key = json.dumps({"client-id": client_id, "user": user}).encode()
    document = {"client_information": information, "supported_configs": supported, "version": 0}
    value = None if information is None else json.dumps(document).encode()
    return (key, value, partition, offset, at(1_000 + offset))


def at(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms / 1000, tz=datetime.UTC)


def summarise(
    rows: DataFrame, *, scope: Scope | None = None, parquet: Path | None = None, sightings: Sequence[Sighting] = ()
) -> Report:
    return report_over(rows, scope=scope or Scope(), parquet=parquet, sightings=sightings)


def seen(user: str, client_id: str, version: str, seen_ms: int = 9_000, kinds: tuple[str, ...] = ()) -> Sighting:
    return Sighting(
        user=user, client_id=client_id, software="librdkafka", version=version, seen_ms=seen_ms, kinds=kinds
    )


def records(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), COLUMNS)


def reach(report: Report, *software: str, config: str = "acks") -> dict[str, tuple[int, int, tuple[str, ...]]]:
    """Return by version: supporting clients, all clients and users of supporting clients."""
    rows = [row for row in report.rows if row.software in software and row.config == config]
    return {f"{row.software}/{row.version}": (row.clients, row.clients_total, row.users) for row in rows}


def of_user(report: Report, user: str) -> dict[str, tuple[int, int, int]]:
    """Return by config: following clients, all clients and those that never registered."""
    return {row.config: (row.following, row.clients, row.unknown) for row in report.users if row.user == user}


KEY = b'{"user":"a","client-id":"b"}'
ODD = (
    (b"junk", b"junk"),
    (None, b"{}"),
    (None, None),
    (KEY, b"[]"),
    (KEY, b""),
    (KEY, b"\xff\xfe\x00"),
    (b'{"user":"\xff', b"{}"),
    (KEY, b"[" * 5_000),
    (KEY, b'{"client_information":7'),
    (KEY, b'{"client_information":"x/1","supported_configs":["acks",null]}'),
    (KEY, b'{"supported_configs":["acks"]}'),
)
"""Keys and values of records that are not registrations: arbitrary bytes, in any nesting."""
ROWS = (
    record(0, "alice", "app1", "klamm/1.0", "acks"),
    record(1, "alice", "app2", "klamm/1.0", "acks", "session.timeout.ms"),
    record(2, "bob", "app1", "klamm/1.1", "acks"),
    record(3, "bob", "app1", "klamm/1.1", "session.timeout.ms"),
    record(4, "carol", "app9", "other/7"),
    # A producer does not ignore a session timeout, and a consumer does not ignore acks.
    record(0, "kim", "writer", "kinds/1.0", "acks", partition=1),
    record(1, "kim", "reader", "kinds/1.0", "session.timeout.ms", "heartbeat.interval.ms", partition=1),
    record(2, "kim", "half", "kinds/1.0", "session.timeout.ms", partition=1),
    record(3, "kim", "both", "kinds/1.0", "acks", "session.timeout.ms", partition=1),
    record(4, "kim", "nothing", "kinds/1.0", partition=1),
    record(5, "kim", "writes-only", "kinds/2.0", "acks", partition=1),
    record(0, "dave", "app1", "withdrawn/1.0", "acks", partition=2),
    record(1, "erin", "app1", "withdrawn/1.0", "acks", partition=2),
    record(2, "dave", "app1", None, partition=2),
    record(3, "dave", "app1", "withdrawn/2.0", "acks", partition=2),
    *((key, value, 3, offset, at(5)) for offset, (key, value) in enumerate(ODD)),
    record(99, "frank", "app1", "unknown", "acks", partition=3),
    (b'{"user":"gail","client-id":"old"}', b'{"client_information":"rdkafka/1.9","version":0}', 4, 7, at(7)),
    record(0, "gail", "new", "known/1.0", partition=4),
    record(1, "gail", "newer", "known/1.0", "acks", partition=4),
    record(0, "hugo", "app1", "timed/1.0", "acks", partition=5),
    record(1, "hugo", "app1", "timed/1.0", partition=5),
    record(2, "hugo", "app2", "timed/1.0", "acks", partition=5),
    record(1_500, "hugo", "app1", "timed/2.0", "acks", partition=5),
    # Appended later with an earlier timestamp: the offset decides which version is the newest.
    (*record(0, "ida", "app1", "clocks/1.0", "acks", partition=6)[:-1], at(9_000)),
    (*record(1, "ida", "app1", "clocks/0.9", partition=6)[:-1], at(1_000)),
    record(0, "jane", "app1", "newest/1.0", partition=7),
    record(1, "jane", "app1", "newest/2.0", "acks", partition=7),
    record(2, "jane", "app2", "newest/2.0", "acks", partition=7),
    record(3, "jane", "app2", "newest/1.0", "heartbeat.interval.ms", partition=7),
    # Written to several partitions: one client. A tombstone of another partition withdraws nothing.
    record(5, "lena", "app1", "scattered/1.0", "acks", partition=8),
    record(900, "lena", "app1", "scattered/2.0", partition=9),
    record(999, "lena", "app1", None, partition=10),
    (*record(0, "lena", "app1", "scattered/3.0", "acks", partition=11)[:-1], at(9_000)),
)
"""Registrations of several users, one for each rule."""
SIGHTINGS = (
    seen("kim", "old", "3", 9, kinds=("producer",)),
    seen("kim", "old", "3", 8, kinds=("consumer",)),
    seen("kim", "older", "2", 8, kinds=("consumer",)),
)


@pytest.fixture(scope="module")
def report(spark: SparkSession) -> Report:
    """One report over all rows. A report of a few rows takes three seconds."""
    return summarise(records(spark, *ROWS), scope=Scope(window="1 second"), sightings=SIGHTINGS)


def test_report_counts_configs_by_software_and_version(report: Report) -> None:
    """K649-22: EntityCompatibility lists, per software name+version that registered under the entity, the configs it
    supports.

    K649-42: Record value = the supported keys appended to the ClientInformation (software name and version).
    """
    assert reach(report, "klamm", "other") == {
        "klamm/1.0": (2, 2, ("alice",)),
        "klamm/1.1": (1, 1, ("bob",)),
        "other/7": (0, 1, ()),
    }
    assert reach(report, "klamm", "other", config="session.timeout.ms") == {
        "klamm/1.0": (1, 1, ("alice",)),
        "klamm/1.1": (1, 1, ("bob",)),
        "other/7": (0, 1, ()),
    }
    assert (report.clients, report.users_total) == (22 + len({"old", "older"}), 12)


def test_config_counts_only_clients_it_applies_to(report: Report) -> None:
    assert of_user(report, "kim") == {
        "acks": (3, 5, 1),
        "session.timeout.ms": (3, 6, 2),
        "heartbeat.interval.ms": (1, 6, 2),
    }
    ignoring = {(row.config, row.client_id) for row in report.ignoring if row.user == "kim"}
    assert ignoring == {
        ("acks", "nothing"),
        ("acks", "old"),
        *(
            (key, name)
            for key in ("session.timeout.ms", "heartbeat.interval.ms")
            for name in ("nothing", "old", "older")
        ),
        ("heartbeat.interval.ms", "half"),
        ("heartbeat.interval.ms", "both"),
    }
    assert report.ignoring_total == len(report.ignoring)
    assert {name: counts[:2] for name, counts in reach(report, "kinds", "librdkafka").items()} == {
        "kinds/1.0": (2, 3),
        "kinds/2.0": (1, 1),
        "librdkafka/3": (0, 1),
    }
    unknown = {row.software: row.unknown for row in report.rows if row.config == "acks"}
    assert (unknown["kinds"], unknown["librdkafka"]) == (0, 1)


def test_tombstone_removes_registration(report: Report) -> None:
    """O649-L."""
    assert reach(report, "withdrawn") == {"withdrawn/1.0": (1, 1, ("erin",)), "withdrawn/2.0": (1, 1, ("dave",))}


def test_invalid_registrations_are_skipped_and_counted(report: Report) -> None:
    assert reach(report, "unknown") == {"unknown/unknown": (1, 1, ("frank",))}
    assert (report.records, report.unreadable) == (len(ROWS), len(ODD))


def test_unregistered_client_differs_from_client_without_supported_configs(report: Report) -> None:
    """K649-47: [] registers a client that supports nothing."""
    ignoring = [row for row in report.ignoring if (row.user, row.config) == ("gail", "acks")]
    assert {row.client_id: row.supported_configs for row in ignoring} == {"old": None, "new": ()}
    assert of_user(report, "gail")["acks"] == (1, 3, 1)
    assert report.never_registered == 3, "and the two that were only seen"


def test_clients_ignoring_key_are_reported_by_newest_version(report: Report) -> None:
    """K649-22: EntityCompatibility lists, per software name+version that registered under the entity, the configs it
    supports.
    """
    ignores = IgnoringClient(
        config="acks",
        user="jane",
        client_id="app2",
        software="newest",
        version="1.0",
        supported_configs=("heartbeat.interval.ms",),
    )
    assert [row for row in report.ignoring if (row.user, row.config) == ("jane", "acks")] == [ignores]
    assert {name: counts[:2] for name, counts in reach(report, "newest").items()} == {
        "newest/1.0": (0, 2),
        "newest/2.0": (2, 2),
    }
    assert of_user(report, "jane")["acks"] == (1, 2, 0)


def test_versions_are_counted_per_time_window(report: Report) -> None:
    assert [window for window in report.windows if window.software == "timed"] == [
        VersionWindow(start_ms=1_000, software="timed", version="1.0", clients=2),
        VersionWindow(start_ms=2_000, software="timed", version="2.0", clients=1),
    ]


def test_newest_version_is_last_appended(report: Report) -> None:
    assert of_user(report, "ida")["acks"] == (0, 1, 0)


@pytest.mark.long
def test_seen_clients_count_until_they_register(spark: SparkSession, tmp_path: Path) -> None:
    """K649-47: [] registers a client that supports nothing."""
    # given
    rows = records(
        spark,
        *(record(number, "billing", f"app{number}", "klamm/1.0", "acks") for number in range(12)),
        record(12, "billing", "back", "klamm/1.0", "acks"),
        record(13, "billing", "back", None),
        record(14, "other", "app", "klamm/1.0"),
    )
    sightings = [
        seen("billing", "app3", "2.6"),  # registered, with other software
        seen("billing", "back", "2.6"),  # what it registered was taken back
        seen("billing", "old", "2.5", 8_000),
        seen("billing", "old", "2.6", 9_000),
        seen("billing", "old", "2.6", 7_000),  # from another address
        seen("other", "old", "2.6"),
    ]
    # when
    scope = Scope(user="billing", config="acks")
    report = summarise(rows, scope=scope, sightings=sightings, parquet=tmp_path)
    # then
    assert report.reach == (Reach(config="acks", following=12, clients=14, unknown=2),)
    assert [(row.client_id, row.version, row.supported_configs) for row in report.ignoring] == [
        ("back", "2.6", None),
        ("old", "2.6", None),
    ]
    assert (report.clients, report.never_registered, report.records) == (14, 2, 14)
    assert reach(report, "klamm", "librdkafka") == {
        "klamm/1.0": (12, 12, ("billing",)),
        "librdkafka/2.5": (0, 1, ()),
        "librdkafka/2.6": (0, 2, ()),
    }
    assert [(window.software, window.clients) for window in report.windows] == [("klamm", 13)], "seen is not registered"
    ignoring = spark.read.parquet(str(tmp_path / "ignoring")).select("client_id").collect()
    assert sorted(row.client_id for row in ignoring) == ["back", "old"]
    assert spark.read.parquet(str(tmp_path / "support")).count() == 3


@pytest.mark.long
def test_limits_keep_all_configs_and_exact_counts(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """K649-96: Neither the first config nor the clients that the report names decide about the others."""
    # given
    monkeypatch.setattr(summary, "MAX_USERS", 1)
    monkeypatch.setattr(summary, "MAX_IGNORING", 4)
    monkeypatch.setattr(summary, "MIN_IGNORING", 1)
    keys = ("acks", "session.timeout.ms")
    rows = records(spark, record(0, "a", "new", "klamm/1.0", *keys), record(1, "b", "mute", "klamm/1.0"))
    sightings = [
        dataclasses.replace(seen(user, f"old{number}", "2.6"), enforceable=keys)
        for user, clients in (("a", 3), ("b", 1))
        for number in range(clients)
    ]
    sightings += [
        dataclasses.replace(sightings[0], enforceable=("acks",)),  # from another address
        dataclasses.replace(seen("b", "mute", "2.6"), enforceable=keys),  # registered, so it is not enforced
    ]
    # when
    report = summarise(rows, sightings=sightings)
    # then
    assert [(row.config, row.following, row.clients, row.enforced) for row in report.reach] == [
        ("acks", 1, 6, 4),
        ("session.timeout.ms", 1, 6, 4),
    ]
    assert [(row.user, row.config, row.clients, row.enforced) for row in report.users] == [
        ("a", "acks", 4, 3),
        ("a", "session.timeout.ms", 4, 3),
    ]
    assert [(row.config, row.user, row.client_id, row.is_enforced) for row in report.ignoring] == [
        (key, "a", client_id, True) for key in keys for client_id in ("old0", "old1")
    ]
    assert (report.ignoring_total, report.users_total) == (10, 2)


def test_running_producers_are_reported(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """K649-22, K649-40; a client that never registers too."""
    with reporting_broker() as (servers, flags):
        produce_as_old_client(servers)
        for number in range(3):
            client = KafkaProducer(
                bootstrap_servers=servers, client_id=f"app{number}", acks=1, enable_idempotence=False
            )
            client.close()
        # when
        code = registrations.main(["report", *flags, "--key", "acks", "--html", str(tmp_path / "page.html")])
    # then
    printed = capsys.readouterr().out
    assert code == 0
    assert "If acks is set: 3 of 4 clients would follow, 1 would ignore it (1 never registered):" in printed
    assert "klamm-kafka-python" in printed
    assert "unknown, never registered)" in printed
    assert 'class="unknown"' in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_client_is_reported_while_the_topic_is_empty_and_no_config_is_known(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    with reporting_broker() as (servers, flags):
        produce_as_old_client(servers)
        # when
        code = registrations.main(["report", *flags, "--output", "json"])
    # then
    assert code == 0
    (old,) = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["software"] == "kafka-python"]
    counted = [old[name] for name in ("config", "clients", "clients_total", "users", "unknown")]
    assert counted == ["(none)", 0, 1, [], 1]


@contextlib.contextmanager
def reporting_broker() -> Iterator[tuple[str, list[str]]]:
    """Start a broker with metrics. Yield its address and the flags of a report over its users without a login."""
    metrics = f"127.0.0.1:{free_port()}"
    with KlammBroker({"metrics.listen": metrics}) as broker:
        servers = broker.bootstrap_servers
        yield servers, ["--bootstrap-server", servers, "--metrics", metrics, "--user", "ANONYMOUS"]


def produce_as_old_client(servers: str) -> None:
    """A producer that is closed before it has asked for anything is not seen, so it waits for its record."""
    client = kafka.KafkaProducer(bootstrap_servers=servers, client_id="old", acks=1, enable_idempotence=False)
    client.send("orders", b"").get(60)
    client.close()


@pytest.mark.long
def test_record_with_future_timestamp_does_not_make_later_ones_late(spark: SparkSession, tmp_path: Path) -> None:
    # given
    now = datetime.datetime.now(datetime.UTC)
    counts: dict[int, int] = {}
    batches: set[int] = set()

    def take(rows: DataFrame, number: int) -> None:
        batches.add(number)
        counts.update({row.start_ms: row.clients for row in rows.collect()})

    for offset, (client_id, when) in enumerate((("app1", now + datetime.timedelta(days=3_000)), ("app2", now))):
        row = (*record(offset, "alice", client_id, "klamm/1.0", "acks")[:-1], when)
        records(spark, row).write.mode("append").parquet(str(tmp_path / "topic"))
    topic = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "topic"))
    rows = compatibility.windows_of_stream(compatibility.parsed(topic), "1000 days", "1 day")
    # when
    stream = rows.writeStream.outputMode("update").foreachBatch(take).trigger(availableNow=True)
    assert stream.option("checkpointLocation", str(tmp_path / "kept")).start().awaitTermination(120)
    # then
    assert len(batches) > 1, "the later one came when the watermark had moved"
    assert list(counts.values()) == [2], "both in the window of today"


def test_client_in_several_partitions_counts_once(report: Report) -> None:
    assert of_user(report, "lena")["acks"] == (1, 1, 0), "its latest version decides"
    versions = {name: counts[:2] for name, counts in reach(report, "scattered").items()}
    assert versions == {"scattered/1.0": (1, 1), "scattered/2.0": (0, 1), "scattered/3.0": (1, 1)}


class EnoughError(Exception):
    """Ends a report that would follow for ever."""


@pytest.mark.long
def test_following_report_resumes_and_survives_broker_restart(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K649-39: A client registers its supported keys at start-up through a DescribeClientConfigs request
    (SupportedConfigs non-null).
    """
    with KlammBroker() as broker:
        servers = broker.bootstrap_servers

        def register(client_id: str) -> None:
            KafkaProducer(bootstrap_servers=servers, client_id=client_id, acks=1, enable_idempotence=False).close()

        def come_back(*_: object) -> None:
            """Once it is noticed that the broker is gone, it comes back with one more client."""
            if not broker.is_running:
                broker.start()
                register("app-2")

        def follow(until: int, then: Callable[[], object]) -> list[Report]:
            """Return the reports up to one that knows so many clients, in its windows too; others are followed up."""
            seen: list[Report] = []

            def publish(report: Report) -> None:
                seen.append(report)
                if report.clients == sum(window.clients for window in report.windows) == until:
                    raise EnoughError
                then()

            # A task that reads while the broker is gone waits for that long.
            scope = Scope(config="acks", window="1000 days")
            job = Job(servers, {"default.api.timeout.ms": "5000"}, {}, scope=scope)
            with pytest.raises(EnoughError):
                job.follow(publish, Following(every_s=0.5, checkpoint=tmp_path / "kept"))
            return seen

        # given
        register("app-1")
        follow(1, then=lambda: None)
        # when
        monkeypatch.setattr(restarts.logger, "warning", come_back)
        reports = follow(2, then=broker.stop)
    # then
    assert (reports[0].clients, reports[0].records) == (1, 1), "what the run before knew is told at once"
    assert (reports[-1].clients, reports[-1].records) == (2, 2), "and nothing is read twice"


@pytest.mark.long
def test_checkpoint_of_topic_that_was_created_again_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    with KlammBroker() as broker:
        servers = broker.bootstrap_servers

        def register(clients: range) -> None:
            for number in clients:
                client_id = f"app-{number}"
                KafkaProducer(bootstrap_servers=servers, client_id=client_id, acks=1, enable_idempotence=False).close()

        def follow(until: int) -> None:
            def publish(report: Report) -> None:
                if report.clients >= until:
                    raise EnoughError

            Job(servers, {}, {}, scope=Scope()).follow(publish, Following(every_s=0.5, checkpoint=tmp_path / "kept"))

        # given
        register(range(1))
        with pytest.raises(EnoughError):
            follow(until=1)
        delete_topic(servers, TOPIC)
        # when
        register(range(1, 4))  # more than there were before, so that the offsets of the checkpoint exist
        # then
        with pytest.raises(ReadingError, match=f"another --checkpoint directory: {TOPIC} was deleted and created"):
            follow(until=2)


def test_checkpoint_of_another_report_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "about.json").write_text(json.dumps({"cluster": "a:1", "window": "1 hour"}))
    with pytest.raises(SettingsError, match=r"made for another report \(user, config, window, late differs\)"):
        Job("a:1", {}, {}, scope=Scope(user="u", config="c")).follow(print, Following(checkpoint=tmp_path))


@pytest.mark.parametrize("window", ["soon", "", "-1 day", "1 day'"])
def test_invalid_window_is_rejected(spark: SparkSession, window: str) -> None:
    with pytest.raises(SettingsError, match="expected a duration"):
        Job("127.0.0.1:1", {}, {}, scope=Scope(window=window)).read()


@pytest.mark.long
def test_registrations_are_read_from_apache_kafka_alike(
    spark: SparkSession, real_kafka: KafkaCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The gateway keeps the topic in the Apache Kafka cluster behind it."""
    # given
    servers = real_kafka.bootstrap_servers
    request.addfinalizer(lambda: delete_topic(servers, TOPIC))
    with AdminClient(servers) as admin:
        admin.create_topics([NewTopic(name=TOPIC, num_partitions=2, replication_factor=1)]).all().result()
    producer = kafka.KafkaProducer(bootstrap_servers=servers)
    for offset, client_id in enumerate(("app1", "app2")):
        key, value, *_ = record(offset, "alice", client_id, "klamm/1.0", "acks")
        producer.send(TOPIC, key=key, value=value, partition=offset).get(20)
    producer.close()
    page = tmp_path / "report.html"
    # when
    output = io.StringIO()
    assert run_report(servers, output, output_format="json", html=page) == 0
    # then
    document = json.loads(output.getvalue())
    assert [(row["config"], row["clients"], row["clients_total"]) for row in document["rows"]] == [("acks", 2, 2)]
    assert "2 of 2</text>" in page.read_text(encoding="utf-8")
