"""Control loops of flows whose clusters are unavailable."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.spark import driver, leases
from klamm.mirror.spark.channel import ChannelClient
from klamm.mirror.spark.driver import ControlLoops

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import pytest

    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.topics.control import Assignment

WAIT_S = 10.0
PROPERTIES = {
    "clusters": "A,B,C",
    **{f"{alias}.bootstrap.servers": f"127.0.0.1:{port}" for port, alias in enumerate("ABC", 1)},
    "A->B.enabled": "true",
    "C->B.enabled": "true",
    "C->B.topics": "users",
    "replication.policy.class": "IdentityReplicationPolicy",
    "emit.heartbeats.enabled": "false",
    "emit.checkpoints.enabled": "false",
}


class ControlOfFirstFlow:
    """Control loop that publishes two topics for A->B, and nothing for other flows."""

    published: threading.Event
    """Set when the loop of A->B has published its topics."""

    def __init__(self, flow: Any, *_: object, publish: Callable[[Assignment], None], **__: object) -> None:
        self._publish = publish
        self._assignment = (("orders", "orders", 1), ("users", "users", 1)) if flow.name == "A->B" else ()

    def run(self, stop: threading.Event) -> None:
        self._publish(self._assignment)
        if self._assignment:
            self.published.set()
        stop.wait()


def test_tasks_receive_topics_that_another_flow_selects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlOfFirstFlow, "published", threading.Event(), raising=False)
    monkeypatch.setattr(driver, "FlowControl", ControlOfFirstFlow)
    with ControlLoops(parse_settings(PROPERTIES), join_s=WAIT_S) as loops:
        assert ControlOfFirstFlow.published.wait(WAIT_S)
        server = loops.coordinator.server
        server.listen()
        planner = ChannelClient(server.address, server.token)
        planner.send({"ask": "groups", "lease": 1})
        plan = planner.receive(timeout_s=WAIT_S)
        planner.close()
    assert plan is not None
    shares = [share for group in plan["groups"] for share in leases.from_json(group).shares]
    assert [(share.settings.flow, share.settings.shared_topics) for share in shares] == [("A->B", ("users",))]


def test_remote_topics_are_not_deleted_while_tasks_have_their_source_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    is_released: dict[str, Callable[[Collection[str]], bool]] = {}

    def deletion(flow: FlowSettings, *_: object, **functions: Callable[[Collection[str]], bool]) -> None:
        is_released[flow.name] = functions["is_released"]

    monkeypatch.setattr(driver, "TopicDeletion", deletion)
    monkeypatch.setattr(ControlOfFirstFlow, "published", threading.Event(), raising=False)
    monkeypatch.setattr(driver, "FlowControl", ControlOfFirstFlow)
    # when
    with ControlLoops(parse_settings(PROPERTIES), join_s=WAIT_S):
        assert ControlOfFirstFlow.published.wait(WAIT_S)
        # then
        assert not is_released["A->B"](["orders"])
        assert is_released["A->B"](["gone"])
