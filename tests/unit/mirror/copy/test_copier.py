"""A copier: preparation of its partitions, and metadata requests while some of them fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pytest

from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.partition import PartitionCopy, PartitionId, TopicRefreshes
from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.settings.mirror import parse_settings
from klamm.properties import SettingsError, parse_properties
from tests.support.copiers import copy_settings as flow_settings

if TYPE_CHECKING:
    from collections.abc import Iterable

TOPICS = ("a", "b", "c")
SICK = PartitionId("t", 0, "A.t")


def test_all_topics_are_refreshed_once_then_failing_ones() -> None:
    refreshes = TopicRefreshes()
    assert refreshes.due(TOPICS, 1.0) == ["a", "b", "c"]
    refreshes.done(TOPICS, 1.0)
    assert refreshes.due(TOPICS, 1.0) == []
    refreshes.want("b", 3.0)
    refreshes.want("b", 2.0)
    refreshes.want("b", 4.0)
    assert refreshes.due(TOPICS, 1.9) == []
    assert refreshes.due(TOPICS, 2.0) == ["b"], "and still so if asking fails"
    assert refreshes.due(TOPICS, 2.1) == ["b"]
    refreshes.done(["b"], 2.1)
    assert refreshes.due(TOPICS, 5.0) == []
    assert refreshes.due(TOPICS, 400.0) == ["a", "b", "c"]


def test_partition_backoff_resets_after_success() -> None:
    copy = PartitionCopy(SICK, start_offset=0, committed=True)
    assert [copy.source_failed("no", 10.0) for _ in range(5)] == [10.2, 10.4, 10.8, 11.0, 11.0]
    copy.fetched(end_offset=0)
    assert copy.source_failed("no", 10.0) == 10.2


BASE = "clusters=A,B\nA.bootstrap.servers=a:9092\nB.bootstrap.servers=b:9092\nA->B.enabled=true\n"


def join_up_to(line: str) -> int:
    (flow,) = parse_settings(parse_properties(BASE + line)).flows
    return copy_settings(flow).join_up_to


@pytest.mark.parametrize("key", ["B.producer.batch.size", "A->B.producer.override.batch.size"])
def test_producer_batch_size_limits_joined_batches(key: str) -> None:
    assert join_up_to("") == 512 * 1024
    assert join_up_to(f"{key}=131072\n") == 131_072
    assert join_up_to(f"{key}=0\n") == 0


@pytest.mark.parametrize("value", ["-1", "many"])
def test_invalid_batch_size_is_rejected_with_key(value: str) -> None:
    settings = parse_settings(parse_properties(f"{BASE}B.producer.batch.size={value}\n"))
    with pytest.raises(SettingsError, match=f"^B.producer.batch.size={value}: expected a whole number from 0"):
        settings.check_clients()
    (flow,) = settings.flows
    with pytest.raises(SettingsError, match=f"^B.producer.batch.size={value}: expected a whole number from 0"):
        copy_settings(flow)


def test_fetch_has_client_rack_of_source_consumer() -> None:
    """KIP-392."""
    line = "A.consumer.client.rack=eu-1a\n"
    settings = parse_settings(parse_properties(BASE + line))
    assert copy_settings(settings.flows[0]).fetch_limits.rack_id == "eu-1a"
    assert settings.unused == ()


@pytest.mark.parametrize(
    ("lines", "max_wait_ms"),
    [
        ("", 250),
        ("A.consumer.fetch.max.wait.ms=100\n", 100),
        ("A.consumer.fetch.max.wait.ms=5000\n", 5000),
        ("A.consumer.fetch.max.wait.ms=60000\n", 30_000),
        ("A.consumer.fetch.max.wait.ms=60000\nA.consumer.request.timeout.ms=90000\n", 60_000),
    ],
)
def test_fetch_max_wait_counts_up_to_the_request_timeout(lines: str, max_wait_ms: int) -> None:
    (flow,) = parse_settings(parse_properties(BASE + lines)).flows
    assert copy_settings(flow).fetch_limits.max_wait_ms == max_wait_ms


def test_copier_pauses_from_the_end_of_a_call_that_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    now, attempts = [100.0], []

    def block(_: Cluster, __: Iterable[str]) -> NoReturn:
        attempts.append(now[0])
        now[0] += 15.0
        raise ConnectionLostError("nobody answers")

    monkeypatch.setattr(Cluster, "refresh", block)
    monkeypatch.setattr("klamm.mirror.copy.copier.time.sleep", lambda _: None)
    copier = Copier(flow_settings("a:1", "b:1", alias="A"), [SICK], clock=lambda: now[0])
    turns = iter((False, False, True))
    # when
    copier.run(lambda: next(turns))
    copier.close()
    # then
    assert attempts == [100.0]
