"""Topics that are not mirrored or no longer mirrored: each reason is logged once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from klamm.kafka_client.errors import error_text
from klamm.mirror.progress.flow_progress import MirrorStatus
from klamm.mirror.run import EXIT_FAILED, EXIT_OK, exit_code
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.control import FlowControl
from tests.support.mirror_fakes import FakeCluster, rejection

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from klamm.admin import ConfigEntry, KafkaApiError


DENIED = rejection("TOPIC_AUTHORIZATION_FAILED", "no right to")


class Run:
    """A control loop between two fake clusters, with a clock of its own."""

    def __init__(self, source: FakeCluster, target: FakeCluster) -> None:
        parsed = parse_settings(
            {
                "clusters": "A,B",
                "A.bootstrap.servers": "a:1",
                "B.bootstrap.servers": "b:1",
                "A->B.enabled": "true",
                "topics": "orders,users",
                "replication.factor": "3",
                "sync.topic.configs.enabled": "false",
            }
        )
        self.now = 100.0
        self.status = MirrorStatus(["A->B"])
        self._control = FlowControl(
            parsed.flows[0], source, target, status=self.status, publish=lambda _: None, clock=lambda: self.now
        )

    def refresh(self) -> tuple[tuple[str, str], ...]:
        """Do a round; returns what was rejected, and why."""
        self._control.turn()
        self.now += 600
        return self.status.snapshot()[0].rejected


class Secretive(FakeCluster):
    """May not be asked for the configs of a topic."""

    def entries(self, topic: str) -> Iterable[ConfigEntry] | KafkaApiError:
        return DENIED if topic == "orders" else super().entries(topic)


def test_rejection_is_logged_once_until_reason_changes(caplog: pytest.LogCaptureFixture) -> None:
    source, target = FakeCluster(orders=1, users=1), FakeCluster()
    run = Run(source, target)
    for reason in ("too few partitions", "too few partitions", "too many", ""):
        target.rejects = {"A.orders": rejection("POLICY_VIOLATION", reason)} if reason else {}
        run.refresh()
    messages = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.rpartition(": ")[2] for line in messages] == ["too few partitions", "too many"]


def test_mirror_with_rejected_topic_exits_with_failure() -> None:
    source, target = FakeCluster(orders=1, users=1), FakeCluster()
    target.rejects["A.orders"] = rejection("POLICY_VIOLATION", "too few partitions")
    run = Run(source, target)
    run.refresh()
    assert exit_code(run.status.snapshot()) == EXIT_FAILED
    target.rejects.clear()
    run.refresh()
    assert exit_code(run.status.snapshot()) == EXIT_OK


def test_too_high_replication_factor_names_key_to_change() -> None:
    source, target = FakeCluster(orders=1), FakeCluster()
    target.rejects["A.orders"] = rejection("INVALID_REPLICATION_FACTOR", "only 1 broker")
    assert Run(source, target).refresh() == (
        ("A.orders", "INVALID_REPLICATION_FACTOR: replication.factor=3: only 1 broker"),
    )


def test_topic_without_describe_configs_right_is_shown_as_rejected() -> None:
    """K894-25: it is not created, so it must not look as if everything were mirrored."""
    run = Run(Secretive(orders=1, users=1), FakeCluster())
    assert run.refresh() == (("A.orders", error_text(DENIED)),)


def test_deleted_source_topic_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """K894-36: New partitions on source -> target grown; deletions on source are not propagated; target topic deleted
    -> recreated at next refresh.
    """
    source, target = FakeCluster(orders=1, users=1), FakeCluster()
    run = Run(source, target)
    run.refresh()
    del source.topics["orders"]
    run.refresh()
    run.refresh()
    messages = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert messages == ["A->B: topic orders is gone on cluster A: topic A.orders on cluster B is kept unchanged"]


def test_topic_without_describe_right_is_not_logged_as_deleted(caplog: pytest.LogCaptureFixture) -> None:
    """A broker does not list it, so the mirror describes it by name: that response has the reason."""
    source, target = FakeCluster(orders=1, users=1), FakeCluster()
    run = Run(source, target)
    run.refresh()
    source.denied.add("orders")
    run.refresh()
    assert caplog.messages[-1] == (
        "A->B: topic orders is not mirrored now, because cluster A does not describe it (TOPIC_AUTHORIZATION_FAILED): "
        "topic A.orders on cluster B is kept unchanged"
    )


def test_flow_without_selected_topics_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeCluster(payments=1, other=1, heartbeats=1)
    run = Run(source, FakeCluster())
    run.refresh()
    run.refresh()
    messages = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert messages == [
        "A->B: no topic is mirrored: topics and topics.exclude select none of the 3 topics of cluster A"
    ]
