"""The mirror's control loop with brokers, without Spark: topics that the target rejects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import klamm
from klamm.admin import AdminClient, ConfigEntry, ConfigSource, DescribeConfigsResult
from klamm.mirror import run
from klamm.mirror.operations.commands import TargetStateStore
from klamm.mirror.progress.flow_progress import FlowFailedError, MirrorStatus
from klamm.mirror.records.requested_states import RequestedState, RequestedStates
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.control import Assignment, FlowControl
from klamm.properties import parse_properties
from tests.support.mirror import create_topic, properties, topic_configs
from tests.support.mirror_fakes import completed_result

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from klamm.admin import ConfigResource

VENDOR = "confluent.value.schema.validation"
LONGEST = "x" * 249


class VendorAdmin(AdminClient):
    """A source whose topics have a config of its vendor's."""

    def describe_configs(
        self, resources: Collection[ConfigResource] | Mapping[ConfigResource, Collection[str] | None], **more: Any
    ) -> DescribeConfigsResult:
        own = ConfigEntry(VENDOR, "true", source=ConfigSource.DYNAMIC_TOPIC_CONFIG)
        found = super().describe_configs(resources, **more).result()
        outcomes = {resource: {**entries, VENDOR: own} for resource, entries in found.items()}
        return completed_result(DescribeConfigsResult(resources), outcomes)


def test_unknown_configs_are_skipped_and_invalid_topics_reported(caplog: pytest.LogCaptureFixture) -> None:
    """K894-35: Target topic: same partition count, RF = replication.factor (2), configs after the filter at creation;
    created before data flows.
    """
    with klamm.Broker() as here, klamm.Broker() as there:
        # given
        create_topic(here.bootstrap_servers, "orders", 2, {"cleanup.policy": "compact"})
        create_topic(here.bootstrap_servers, LONGEST)
        text = properties(here.bootstrap_servers, there.bootstrap_servers, topics=".*")
        flow = parse_settings(parse_properties(text)).flows[0]
        source = VendorAdmin(here.bootstrap_servers, timeout_ms=10_000)
        target = AdminClient(there.bootstrap_servers, timeout_ms=10_000)
        status = MirrorStatus([flow.name])
        published: list[Assignment] = []
        # when
        FlowControl(flow, source, target, status=status, publish=published.append).turn()
        # then
        assert topic_configs(there.bootstrap_servers, "A.orders") == {"cleanup.policy": "compact"}
        assert published == [(("orders", "A.orders", 2),)]
        ((name, reason),) = status.snapshot()[0].rejected
        assert name == f"A.{LONGEST}"
        assert reason.startswith("INVALID_TOPIC")
        assert f"topic A.orders: skipping configs that cluster B does not know: {VENDOR}" in caplog.text
        source.close()
        target.close()


def test_cluster_under_two_addresses_is_not_mirrored_to_itself() -> None:
    with klamm.Broker() as broker:
        # given
        create_topic(broker.bootstrap_servers, "orders")
        localhost = broker.bootstrap_servers.replace("127.0.0.1", "localhost")
        text = properties(broker.bootstrap_servers, localhost, topics="orders")
        policy = "replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
        flow = parse_settings(parse_properties(f"{text}\n{policy}\n")).flows[0]
        # when
        with AdminClient(broker.bootstrap_servers) as source, AdminClient(localhost) as target:
            control = FlowControl(flow, source, target, status=MirrorStatus([flow.name]), publish=lambda _: None)
            # then
            with pytest.raises(FlowFailedError, match="are the same cluster: topic orders would be copied to itself"):
                control.turn()
            assert set(source.list_topics().result()) == {"orders"}


def test_plan_follows_the_states_that_were_requested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with klamm.Broker() as here, klamm.Broker() as there:
        # given
        create_topic(here.bootstrap_servers, "orders")
        text = properties(here.bootstrap_servers, there.bootstrap_servers, topics="orders")
        (path := tmp_path / "mm2.properties").write_text(text)
        flow = parse_settings(parse_properties(text)).flows[0]
        with AdminClient(here.bootstrap_servers) as source, AdminClient(there.bootstrap_servers) as target:
            FlowControl(flow, source, target, status=MirrorStatus([flow.name]), publish=lambda _: None).turn()
        # when
        TargetStateStore(flow).save(RequestedStates(flow=RequestedState.STOPPED))
        code = run.run(path, plan=True)
        # then
        assert code == 0
        assert "! A->B: STOPPED by klamm mirror stop: no topic changes" in capsys.readouterr().out
