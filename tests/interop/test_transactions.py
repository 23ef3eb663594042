"""Unmodified transactional clients: only committed records are read, and zombies are fenced."""

from __future__ import annotations

import gc
import json
import uuid
from typing import TYPE_CHECKING

import pytest

from klamm.protocol.records import Record, encode_batch
from tests.support.java import java_tool
from tests.support.kafka_tools import run_tool
from tests.support.long_tests import long_only
from tests.support.transaction_wire import (
    TransactionClient,
    committed_offset,
    find_group_coordinator,
    latest,
    read_committed,
    wait_for_markers,
)
from tests.support.transactional_clients import FAMILIES, READERS
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.probe import Cluster

# The libraries leave sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:Unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def _sockets_collected() -> Iterator[None]:
    """Collect them while they are still this module's."""
    yield
    gc.collect()


FAMILY = pytest.mark.parametrize("family", ["confluent", *long_only("kafka-python", "aiokafka")])


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic with one partition."""
    name = f"transactions-{uuid.uuid4().hex[:8]}"
    with WireClient(cluster.bootstrap_servers, timeout_s=60) as client:
        client.create_topic(name)
        latest(client, name, committed=False)  # it is there
    return name


@FAMILY
def test_committed_records_are_read_and_aborted_ones_skipped(cluster: Cluster, topic: str, family: str) -> None:
    with FAMILIES[family](cluster.bootstrap_servers, f"of-{topic}") as producer:
        # given
        for number in range(4):
            producer.begin()
            producer.send(topic, f"{number}")
            producer.send(topic, f"{number} again")
            if number % 2:
                producer.abort()
            else:
                producer.commit()
        producer.begin()
        producer.send(topic, "open")
        # when
        values = READERS[family](cluster.bootstrap_servers, topic, 4)
        # then
        assert values == ["0", "0 again", "2", "2 again"]
        producer.abort()


@pytest.mark.parametrize("family", list(FAMILIES))
def test_offsets_are_committed_with_the_transaction_or_not_at_all(cluster: Cluster, topic: str, family: str) -> None:
    group = f"group-of-{topic}"
    with (
        FAMILIES[family](cluster.bootstrap_servers, f"of-{topic}") as producer,
        WireClient(cluster.bootstrap_servers, timeout_s=60) as client,
    ):
        find_group_coordinator(client, group)
        for offset, ends in ((5, producer.commit), (9, producer.abort), (7, producer.commit)):
            before = committed_offset(client, group, topic, stable=True)
            producer.begin()
            producer.send(topic, f"{offset}")
            producer.send_offset(topic, offset, group)
            assert committed_offset(client, group, topic) == before, "not before the transaction has ended"
            ends()
            if ends == producer.abort:
                assert _settled_offset(client, group, topic) == before
            else:
                assert _settled_offset(client, group, topic) == (0, offset)


def _settled_offset(client: WireClient, group: str, topic: str) -> tuple[int, int]:
    """Retry until no transaction is pending; Kafka answers EndTxn before the markers are written."""
    for _ in range(1000):
        committed = committed_offset(client, group, topic, stable=True)
        if committed[0] != UNSTABLE_OFFSET_COMMIT:
            break
    return committed


UNSTABLE_OFFSET_COMMIT = 88


@FAMILY
def test_replaced_producer_cannot_commit(cluster: Cluster, topic: str, family: str) -> None:
    with FAMILIES[family](cluster.bootstrap_servers, f"of-{topic}") as zombie:
        zombie.begin()
        zombie.send(topic, "of a zombie")
        with FAMILIES[family](cluster.bootstrap_servers, f"of-{topic}") as producer:
            # when
            with pytest.raises(Exception, match=r"(?i)fenc|epoch"):
                zombie.commit()
            producer.begin()
            producer.send(topic, "good")
            producer.commit()
            # then
            assert READERS[family](cluster.bootstrap_servers, topic, 1) == ["good"]


@pytest.mark.long
def test_kafkas_transactional_message_copier_copies_each_message_once(cluster: Cluster, topic: str, java: None) -> None:
    # given
    output, count = f"{topic}-copied", 600
    with WireClient(cluster.bootstrap_servers, timeout_s=60) as client:
        client.create_topic(output)
        for start in range(0, count, 100):
            records = [Record(None, b"%d" % (start + place), (), 1, place) for place in range(100)]
            client.produce(topic, 0, encode_batch(records))
        # when
        printed = java_tool(
            "org.apache.kafka.tools.TransactionalMessageCopier",
            *("--broker-list", cluster.bootstrap_servers, "--input-topic", topic, "--input-partition", "0"),
            *("--output-topic", output, "--consumer-group", f"copier-{topic}", "--transactional-id", f"copier-{topic}"),
            *("--max-messages", str(count), "--transaction-size", "50"),
            *("--enable-random-aborts", "--group-mode", "--use-group-metadata"),
            timeout_s=180,
        )
        # then
        last = json.loads(printed.strip().splitlines()[-1])
        assert (last["stage"], last["remaining"]) == ("ShutdownComplete", 0)
        wait_for_markers(client, output)
        assert read_committed(client, output) == [str(number) for number in range(count)]
        assert _settled_offset(client, f"copier-{topic}", topic) == (0, count)


def test_kafkas_tool_shows_transactions_and_aborts_one(cluster: Cluster, topic: str, java: None) -> None:
    # given
    server = ("--bootstrap-server", cluster.bootstrap_servers)
    tool = "org.apache.kafka.tools.TransactionsCommand"
    name = f"of-{topic}"
    with WireClient(cluster.bootstrap_servers, timeout_s=60) as client:
        ours = TransactionClient(client, name)
        ours.find_coordinator()
        code, identity = ours.init(4)
        assert (code, ours.produce(identity, 12, topic, 0, "open", sequence=0)) == (0, 0)
        # when
        listed = run_tool(tool, *server, "list")
        described = run_tool(tool, *server, "describe", "--transactional-id", name)
        producers = run_tool(tool, *server, "describe-producers", "--topic", topic, "--partition", "0")
        run_tool(tool, *server, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
        # then
        (line,) = (line.split() for line in listed.splitlines() if line.startswith(name))
        assert line[2:] == [str(identity.producer_id), "Ongoing"]
        assert f"{topic}-0" in described
        assert producers.splitlines()[-1].split()[:4] == [str(identity.producer_id), str(identity.epoch), "-1", "0"]
        client.produce(topic, 0, encode_batch([Record(None, b"behind", (), 1, 0)]))
        wait_for_markers(client, topic)
        assert read_committed(client, topic) == ["behind"]
