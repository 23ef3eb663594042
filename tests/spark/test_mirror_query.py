"""``klamm.mirror.spark.start``: a mirror as a query of a session that runs already."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pytest
from pyspark.errors import StreamingQueryException

from klamm.mirror.progress.flow_progress import FlowState, SparkFailedError
from klamm.mirror.spark import start
from klamm.properties import SettingsError, parse_properties
from tests.support.klamm import KlammBroker
from tests.support.mirror import Seen, create_topic, produce, properties, read
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# Source and target are one cluster here: a heartbeat would be mirrored as one more topic for ever.
NO_HEARTBEATS = "heartbeats.replication.enabled = false\n"
FOREVER = {"retention.ms": "-1"}
YEAR_2013 = 1_356_998_400_000


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    """Source and target in one: remote topics have the source's name before them."""
    with KlammBroker() as running:
        yield running


class BrokenFilter:
    """A filter of the user's own that cannot do its work."""

    def should_replicate_topic(self, topic: str) -> bool:
        raise ValueError(f"a filter of the user's own does not like {topic}")


def listening() -> set[int]:
    return {each.laddr.port for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN}


def mirror_threads() -> set[str]:
    names = {thread.name for thread in threading.enumerate()}
    return {name for name in names if "->" in name or name.startswith("mirror-")}


def test_query_mirrors_until_stopped(spark: SparkSession, broker: KlammBroker, tmp_path: Path) -> None:
    # given
    records = [(number % 2, Seen(b"k", b"%d" % number, (), YEAR_2013 + number)) for number in range(40)]
    create_topic(broker.bootstrap_servers, "noted", 2, FOREVER)
    produce(broker.bootstrap_servers, "noted", records)
    file = tmp_path / "mm2.properties"
    file.write_text(properties(broker.bootstrap_servers, broker.bootstrap_servers, NO_HEARTBEATS, topics="noted"))
    ports = listening()
    # when
    query = start(spark, file)
    try:
        wait_until(lambda: query.flows[0].copied == 40, timeout_s=150, what="40 records", alive=lambda: check(query))
        assert query.isActive
        assert query.flows[0].state is FlowState.RUNNING
    finally:
        query.stop()
    # then
    arrived = read(broker.bootstrap_servers, "A.noted", {0: 20, 1: 20})
    assert arrived == {at: [record for partition, record in records if partition == at] for at in (0, 1)}
    assert not query.isActive
    assert query.exception() is None
    assert listening() <= ports
    wait_until(lambda: not mirror_threads(), timeout_s=30, what="the end of all threads")


def check(query: object) -> None:
    failed = query.exception()  # type: ignore[attr-defined]
    assert failed is None, failed


def test_query_with_failed_flows_fails_with_reason(spark: SparkSession, broker: KlammBroker) -> None:
    # given
    address = broker.bootstrap_servers
    keys = parse_properties(properties(address, address, NO_HEARTBEATS, topics="noted"))
    # when
    query = start(spark, keys | {"topic.filter.class": f"{__name__}:BrokenFilter"})
    # then
    with pytest.raises(StreamingQueryException, match="A->B: ValueError: a filter of the user's own"):
        query.awaitTermination(90)
    assert query.flows[0].state is FlowState.FAILED
    wait_until(lambda: not mirror_threads(), timeout_s=30, what="the end of all threads")


def test_invalid_query_arguments_are_rejected_before_start(spark: SparkSession) -> None:
    # given
    before = mirror_threads()
    # then
    with pytest.raises(SettingsError, match=r"A\.bootstrap\.servers: expected host:port"):
        start(spark, {"clusters": "A,B", "A->B.enabled": "true"})
    wait_until(lambda: mirror_threads() <= before, timeout_s=20, what="the end of all threads")


def test_unwritable_checkpoint_directory_is_rejected(spark: SparkSession, broker: KlammBroker, tmp_path: Path) -> None:
    # given
    before = mirror_threads()
    (tmp_path / "file").write_text("no directory")
    there = f"klamm.checkpoint.dir = {tmp_path}/file/checkpoint\n{NO_HEARTBEATS}"
    config = properties(broker.bootstrap_servers, broker.bootstrap_servers, there, topics="nothing")
    # then
    with pytest.raises(SparkFailedError, match=r"cannot start the query with checkpoint directory .*/checkpoint: "):
        start(spark, parse_properties(config))
    wait_until(lambda: mirror_threads() <= before, timeout_s=20, what="the end of all threads")


def test_second_mirror_in_session_is_rejected(spark: SparkSession, broker: KlammBroker) -> None:
    # given
    address = broker.bootstrap_servers
    keys: dict[str, object] = {**parse_properties(properties(address, address, NO_HEARTBEATS, topics="noted"))}
    keys |= {"A->B.enabled": True, "replication.factor": 1}
    query = start(spark, keys)
    try:
        # then
        with pytest.raises(SettingsError, match="this Spark session already runs a mirror: stop that mirror first"):
            start(spark, keys)
        assert query.isActive
    finally:
        query.stop()


def test_non_string_property_is_rejected(spark: SparkSession) -> None:
    with pytest.raises(
        SettingsError, match=r"^topics=\['a', 'b'\]: expected a string, an integer or a boolean, got list"
    ):
        start(spark, {"clusters": "A,B", "topics": ["a", "b"]})


@pytest.mark.long
def test_worker_without_klamm_is_reported(
    spark: SparkSession, broker: KlammBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{Path(sys._base_executable)}" "$@"\n')  # type: ignore[attr-defined]
    bare.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))
    address = broker.bootstrap_servers
    before = mirror_threads()
    # then
    with pytest.raises(
        SettingsError, match=f"Spark's Python {bare} cannot import a module that the mirror needs: No module named"
    ):
        start(spark, parse_properties(properties(address, address, NO_HEARTBEATS, topics="noted")))
    wait_until(lambda: mirror_threads() <= before, timeout_s=20, what="the end of all threads")
