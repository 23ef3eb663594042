"""The mirror's control loop against brokers, without Spark: what it does about topics that the target does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import klamm
from klamm.mirror.admin import KafkaAdmin
from klamm.mirror.model import AdminRefusedError, TopicConfigEntry
from klamm.mirror.progress import MirrorStatus
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.control import Assignment, FlowControl
from klamm.properties import parse_properties
from tests.support.mirror import create_topic, properties, topic_configs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pytest

VENDOR = "confluent.value.schema.validation"
LONGEST = "x" * 249


class VendorAdmin(KafkaAdmin):
    """A source whose topics have a config of its vendor's."""

    def describe_topic_configs(
        self, topics: Sequence[str]
    ) -> Mapping[str, tuple[TopicConfigEntry, ...] | AdminRefusedError]:
        own = TopicConfigEntry(name=VENDOR, value="true", config_source=1)
        return {
            topic: entries if isinstance(entries, AdminRefusedError) else (*entries, own)
            for topic, entries in super().describe_topic_configs(topics).items()
        }


def test_unknown_configs_are_left_out_and_topics_that_can_not_be_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """K894-35: Target topic: same partition count, RF = replication.factor (2), configs after the filter at creation;
    created before data flows.
    """
    with klamm.Broker() as here, klamm.Broker() as there:
        # given
        create_topic(here.bootstrap_servers, "orders", 2, {"cleanup.policy": "compact"})
        create_topic(here.bootstrap_servers, LONGEST)
        text = properties(here.bootstrap_servers, there.bootstrap_servers, topics=".*")
        flow = parse_settings(parse_properties(text)).flows[0]
        source = VendorAdmin([here.bootstrap_servers], {}, timeout_ms=10_000)
        target = KafkaAdmin([there.bootstrap_servers], {}, timeout_ms=10_000)
        status = MirrorStatus([flow.name])
        published: list[Assignment] = []
        # when
        FlowControl(flow, source, target, status=status, publish=published.append).turn()
        # then
        assert topic_configs(there.bootstrap_servers, "A.orders") == {"cleanup.policy": "compact"}
        assert published == [(("orders", "A.orders", 2),)]
        ((name, reason),) = status.snapshot()[0].refused
        assert name == f"A.{LONGEST}"
        assert reason.startswith("INVALID_TOPIC")
        assert f"topic A.orders: left out, cluster B does not know it: {VENDOR}" in caplog.text
        source.close()
        target.close()
