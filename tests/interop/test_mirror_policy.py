"""A mirror whose target has a policy: the denied topic is reported, the others are mirrored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import klamm
from klamm.mirror.cluster_admin import new_client
from klamm.mirror.progress.flow_progress import MirrorStatus
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.control import Assignment, FlowControl
from klamm.properties import parse_properties
from tests.support.mirror import create_topic, properties, topic_configs

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

RULES = """
rules:
  - name: no salaries here
    topics: "A[.]salaries"
    actions: [create]
    partitions: {max: 1}
    remedy: leave them where they are
"""


def test_topic_denied_by_target_policy_is_reported_and_others_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """K108-23: The policy also sees topics created by auto-creation and by the mirror (they are create requests)."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    guarded = {
        "create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "policy.rules.file": str(rules),
    }
    with klamm.Broker() as here, klamm.Broker(config=guarded) as there:
        # given
        create_topic(here.bootstrap_servers, "orders", 2)
        create_topic(here.bootstrap_servers, "salaries", 3)
        text = properties(here.bootstrap_servers, there.bootstrap_servers, topics="orders, salaries")
        flow = parse_settings(parse_properties(text)).flows[0]
        source = new_client([here.bootstrap_servers], {}, timeout_ms=30_000)
        target = new_client([there.bootstrap_servers], {}, timeout_ms=30_000)
        status = MirrorStatus([flow.name])
        published: list[Assignment] = []
        control = FlowControl(flow, source, target, status=status, publish=published.append)
        # when
        control.turn()
        # then
        assert published == [(("orders", "A.orders", 2),)]
        assert topic_configs(there.bootstrap_servers, "A.orders") == {}
        (progress,) = status.snapshot()
        ((name, reason),) = progress.rejected
        assert name == "A.salaries"
        assert reason.startswith("POLICY_VIOLATION")
        assert "leave them where they are" in reason
        assert "A.salaries" in caplog.text
        source.close()
        target.close()
