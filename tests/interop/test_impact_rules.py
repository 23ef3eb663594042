"""Rules on the impact of changes, in klamm's broker and in a gateway in front of Apache Kafka."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.admin import AdminClient, ConfigResource, NewPartitions, ResourceType
from klamm.protocol.errors import PolicyViolationError
from tests.support.impact_cluster import DAY_MS, FAST, ImpactCluster
from tests.support.long_tests import long_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RULES = """
rules:
  - name: no loss
    topics: "kept-.*"
    data_loss: forbidden
  - name: a bit
    topics: "capped-.*"
    max_deleted: 100 KiB
  - name: readers first
    topics: "read-.*"
    strands_groups: forbidden
  - name: calm
    topics: "calm-.*"
    max_impact: notice
"""
KINDS = ("alter.config", "create.partitions", "delete.topic")


@pytest.fixture(scope="module", params=["klamm", *long_only("gateway")])
def impact_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImpactCluster]:
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text(RULES)
    config = {f"{kind}.policy.class.name": "klamm.policy.rules:RulesPolicy" for kind in KINDS}
    config |= {"policy.rules.file": str(rules), "policy.timeout.ms": "10000"}
    with contextlib.ExitStack() as stack:
        if request.param == "klamm":
            servers = stack.enter_context(klamm.Broker(config={**FAST, **config})).bootstrap_servers
        else:
            kafka = request.getfixturevalue("fast_kafka").bootstrap_servers
            servers = stack.enter_context(klamm.Gateway(kafka, config=config)).bootstrap_servers
        impact_cluster = ImpactCluster(servers)
        stack.callback(impact_cluster.admin.close)
        yield impact_cluster


def test_retention_that_deletes_records_is_denied(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic(prefix="kept")
    impact_cluster.produce(topic, 100, age_ms=2 * DAY_MS)

    with pytest.raises(PolicyViolationError, match=f"Rule 'no loss': .*{topic}.*100 records.*go at the next retention"):
        impact_cluster.alter(topic, retention_ms=str(DAY_MS))
    impact_cluster.alter(topic, retention_ms=str(3 * DAY_MS))

    described = impact_cluster.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).result()
    (configs,) = described.values()
    assert configs["retention.ms"].value == str(3 * DAY_MS)


def test_default_that_deletes_records_of_an_inheriting_topic_is_denied(impact_cluster: ImpactCluster) -> None:
    inheriting = impact_cluster.topic(prefix="kept")
    impact_cluster.produce(inheriting, 100, age_ms=DAY_MS)

    with pytest.raises(PolicyViolationError, match=f"Rule 'no loss'.*{inheriting}"):
        impact_cluster.admin.alter_broker_configs(None, set={"log.retention.ms": "3600000"}).result()

    impact_cluster.admin.alter_broker_configs(None, set={"log.retention.ms": str(5 * DAY_MS)}).result()
    impact_cluster.admin.alter_broker_configs(None, delete=["log.retention.ms"]).result()


def test_deletion_is_denied_above_a_number_of_bytes(impact_cluster: ImpactCluster) -> None:
    large, small = impact_cluster.topic(prefix="capped"), impact_cluster.topic(prefix="capped")
    impact_cluster.produce(large, 300)
    impact_cluster.produce(small, 20)

    with pytest.raises(PolicyViolationError, match=r"would delete up to .*, above the maximum 100\.0 KiB"):
        impact_cluster.admin.delete_topics([large]).result()
    impact_cluster.admin.delete_topics([small]).result()

    assert large in impact_cluster.admin.list_topics().result()


def test_change_that_strands_a_group_is_denied_until_the_group_has_read(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic(prefix="read")
    impact_cluster.produce(topic, 200, age_ms=2 * DAY_MS)
    impact_cluster.commit(topic, f"slow-{topic}", 50)

    with pytest.raises(PolicyViolationError, match=f"would strand groups: .*slow-{topic}.* would not read 150 records"):
        impact_cluster.alter(topic, retention_ms=str(DAY_MS))
    impact_cluster.commit(topic, f"slow-{topic}", 200)
    impact_cluster.alter(topic, retention_ms=str(DAY_MS))

    impact_cluster.until(lambda: impact_cluster.start(topic) == 200, "the records that every group has read to go")


def test_partitions_that_move_keys_are_denied(impact_cluster: ImpactCluster) -> None:
    keyed, empty = impact_cluster.topic(prefix="calm"), impact_cluster.topic(prefix="calm")
    impact_cluster.produce(keyed, 50)

    with pytest.raises(PolicyViolationError, match=r"Rule 'calm': adding partitions .* impact disruption.*move"):
        impact_cluster.admin.create_partitions({keyed: NewPartitions(4)}).result()
    impact_cluster.admin.create_partitions({empty: NewPartitions(4)}).result()


@contextlib.contextmanager
def admin_of_gateway(upstream: klamm.Broker, rules: Path, condition: str, timeout_ms: int) -> Iterator[AdminClient]:
    """Start a gateway with one rule, and return a client of it."""
    rules.write_text(f"rules: [{{name: in time, {condition}}}]")
    config = {
        "alter.config.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "policy.rules.file": str(rules),
        "policy.timeout.ms": timeout_ms,
    }
    with (
        klamm.Gateway(upstream.bootstrap_servers, config=config) as gateway,
        AdminClient(gateway.bootstrap_servers, timeout_ms=300_000) as admin,
    ):
        yield admin


@pytest.mark.parametrize(
    ("api", "condition"),
    [
        pytest.param("DescribeLogDirs", "max_deleted: 10 GiB", marks=pytest.mark.long),
        ("ListGroups", "strands_groups: forbidden"),
    ],
)
def test_late_upstream_facts_deny_the_change(
    api: str, condition: str, klamm_session_broker: klamm.Broker, make_klamm_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_klamm_topic()
    with (
        admin_of_gateway(klamm_session_broker, tmp_path / "rules.yaml", condition, 2000) as admin,
        klamm_session_broker.inject(api, delay=3.0, times=None),
        pytest.raises(PolicyViolationError, match=r"Rule 'in time': .* cannot be determined.*not read within 1\.8 s"),
    ):
        admin.alter_topic_configs(topic, set={"retention.ms": "1"}).result()


@pytest.mark.parametrize(
    ("api", "condition", "name", "value"),
    [
        pytest.param("DescribeLogDirs", "max_deleted: 10 GiB", "max.message.bytes", "5000", marks=pytest.mark.long),
        ("ListGroups", "strands_groups: forbidden", "max.message.bytes", "5000"),
        ("ListGroups", "max_deleted: 10 GiB", "retention.ms", "1"),
    ],
)
def test_change_is_allowed_without_upstream_facts_it_does_not_need(
    api: str,
    condition: str,
    name: str,
    value: str,
    *,
    klamm_session_broker: klamm.Broker,
    make_klamm_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    """A gateway that requests them would deny the change, as their impact is unknown."""
    topic = make_klamm_topic()
    with (
        admin_of_gateway(klamm_session_broker, tmp_path / "rules.yaml", condition, 60_000) as admin,
        klamm_session_broker.inject(api, error="CLUSTER_AUTHORIZATION_FAILED", times=None),
    ):
        admin.alter_topic_configs(topic, set={name: value}).result()
