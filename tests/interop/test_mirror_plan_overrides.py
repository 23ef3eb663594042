"""``klamm mirror --plan`` against a broker whose policy overrides configs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import klamm
from klamm.admin import AdminClient, NewTopic
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.plan_output import plan_flow

if TYPE_CHECKING:
    from pathlib import Path


def test_plan_names_values_that_a_policy_overrides(tmp_path: Path) -> None:
    limits = {"configs": {"retention.ms": {"max": "1s"}}, "partitions": {"max": 2}}
    rule = {"name": "small", "topics": "A[.].*", "effect": "override", **limits}
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"rules": [rule]}))
    config = {
        f"{kind}.policy.class.name": "klamm.policy.rules:RulesPolicy" for kind in ("create.topic", "alter.config")
    }
    with klamm.Broker(config={**config, "policy.rules.file": str(path)}) as broker:
        servers = broker.bootstrap_servers
        properties = {"clusters": "A,B", "A.bootstrap.servers": servers, "B.bootstrap.servers": servers}
        more = {"A->B.enabled": "true", "topics": "new,old", "replication.factor": "1"}
        (flow,) = parse_settings(properties | more).flows
        with AdminClient(servers) as admin:
            topics = [NewTopic(name, num_partitions=3, configs={"retention.ms": "7000"}) for name in ("new", "old")]
            admin.create_topics([*topics, NewTopic("A.old", num_partitions=2)]).all().result()
            lines = [line for line in plan_flow(flow, admin, admin) if "a policy of cluster B stores" in line]
            names = set(admin.list_topics().result())
    stores = "a policy of cluster B stores"
    assert [line.partition(": Rule ")[0] for line in sorted(lines)] == [
        f"! topic A.new: partitions: {stores} 2 in place of 3",
        f"! topic A.new: retention.ms: {stores} 1000 in place of 7000",
        f"! topic A.old: retention.ms: {stores} 1000 in place of 7000",
    ]
    assert names == {"new", "old", "A.old"}
