"""Deletion of remote topics between two brokers, with the mirror's own copier and without Spark."""

from __future__ import annotations

import io

import pytest

import klamm
from klamm.admin import AdminClient
from klamm.mirror.copy.settings import copy_settings, partitions_of
from klamm.mirror.progress.flow_progress import MirrorStatus
from klamm.mirror.records.worker_offsets import mirrored_topics
from klamm.mirror.settings.mirror import MirrorSettings, parse_settings
from klamm.mirror.topics.control import Assignment, FlowControl
from klamm.mirror.topics.plan_output import print_plan
from klamm.properties import parse_properties
from tests.support.copiers import copy_all
from tests.support.mirror import Seen, create_topic, delete_topic, produce, properties, wait_for_records
from tests.support.processes import wait_until

GRACE_S = 30
KEYS = f"""
klamm.sync.topic.deletions=on
klamm.sync.topic.deletions.grace.seconds={GRACE_S}
refresh.topics.interval.seconds=1
emit.heartbeats.enabled=false
"""


def planned(settings: MirrorSettings) -> list[str]:
    out = io.StringIO()
    assert print_plan(settings, out) == 0
    return [line.strip() for line in out.getvalue().splitlines() if "A.orders" in line]


def test_recreated_source_topic_replaces_its_remote_topic() -> None:
    with klamm.Broker() as here, klamm.Broker() as there:
        # given
        settings = parse_settings(
            parse_properties(properties(here.bootstrap_servers, there.bootstrap_servers, KEYS, topics="orders,users"))
        )
        flow = settings.flows[0]
        now = 1000.0
        published: list[Assignment] = []
        with AdminClient(here.bootstrap_servers) as source, AdminClient(there.bootstrap_servers) as target:
            control = FlowControl(
                flow, source, target, status=MirrorStatus([flow.name]), publish=published.append, clock=lambda: now
            )

            def refresh(expected: set[str]) -> None:
                control.turn()
                wait_until(
                    lambda: {name for name in target.list_topics().result() if name.startswith("A.")} == expected,
                    timeout_s=60,
                    what=f"remote topics {expected}",
                )

            for topic in ("orders", "users"):
                create_topic(here.bootstrap_servers, topic)
                produce(here.bootstrap_servers, topic, [(0, Seen(b"k", b"first", (), 1))] * 3)
            refresh({"A.orders", "A.users"})
            copy_all(copy_settings(flow), *partitions_of(published[-1]))
            assert mirrored_topics(flow) == {"orders", "users"}
            # when: the topic is gone for the grace period
            delete_topic(here.bootstrap_servers, "orders")
            now += 5
            refresh({"A.orders", "A.users"})
            (line,) = planned(settings)
            assert line.startswith("- topic A.orders: deleted, 30 s after the start of the mirror or later")
            for _ in range(GRACE_S):
                now += 1
                control.turn()
            # then
            refresh({"A.users"})
            assert mirrored_topics(flow) == {"users"}
            assert planned(settings) == []
            # when: it is created again
            create_topic(here.bootstrap_servers, "orders")
            produce(here.bootstrap_servers, "orders", [(0, Seen(b"k", b"second", (), 1))] * 2)
            now += 5
            refresh({"A.orders", "A.users"})
            copy_all(copy_settings(flow), *partitions_of(published[-1]))
            # then
            values = [record.value for record in wait_for_records(there.bootstrap_servers, "A.orders", 2)]
            assert values == [b"second", b"second"]


@pytest.mark.long
def test_source_that_is_another_cluster_after_a_restart_deletes_no_remote_topic() -> None:
    with klamm.Broker() as here, klamm.Broker() as rebuilt, klamm.Broker() as there:
        # given
        def flow_from(source: klamm.Broker) -> MirrorSettings:
            text = properties(source.bootstrap_servers, there.bootstrap_servers, KEYS, topics="orders,users")
            return parse_settings(parse_properties(text))

        create_topic(here.bootstrap_servers, "orders")
        create_topic(rebuilt.bootstrap_servers, "users")
        settings = flow_from(here)
        flow = settings.flows[0]
        published: list[Assignment] = []
        with AdminClient(there.bootstrap_servers) as target:
            with AdminClient(here.bootstrap_servers) as source:
                status = MirrorStatus([flow.name])
                control = FlowControl(flow, source, target, status=status, publish=published.append)
                control.turn()
                copy_all(copy_settings(flow), *partitions_of(published[-1]))
            # when
            settings = flow_from(rebuilt)
            now = 1000.0
            with AdminClient(rebuilt.bootstrap_servers) as source:
                status = MirrorStatus([flow.name])
                control = FlowControl(
                    settings.flows[0], source, target, status=status, publish=published.append, clock=lambda: now
                )
                for _ in range(2 * GRACE_S):
                    now += 1
                    control.turn()
            # then
            assert "A.orders" in target.list_topics().result()
        assert planned(settings) == []
