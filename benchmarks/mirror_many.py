"""A mirror of 10,000 partitions in 500 topics, Kafka to Kafka: how long a round takes, what they cost at rest.

Rounds are those of the control loop, which is the same exactly once; what differs is what the mirror costs.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds, pss_mebibytes, wait_for
from benchmarks.mirror_sides import EXACTLY_ONCE, MirrorSide, start_klamm
from benchmarks.sides import apache_kafka
from klamm.admin import AdminClient, NewTopic
from klamm.mirror.cluster_admin import new_client
from klamm.mirror.progress.flow_progress import MirrorStatus
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.control import FlowControl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from klamm.mirror.topics.control import Assignment
    from tests.support.kafka import KafkaCluster

_TOPICS: Final = 500
_PARTITIONS: Final = 20
_AT_ONCE: Final = 50
"""A controller takes no more than 10,000 records from one request."""
_LISTED_S: Final = 300.0
_CAUGHT_UP_S: Final = 300.0
_REST_S: Final = 60.0
_ROUNDS: Final = 3


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure klamm alone: MirrorMaker 2 asks for all topics in one request, which a controller of 4.1 rejects."""
    rest_s = _REST_S / 4 if plan.quick else _REST_S
    sides = {
        "klamm": functools.partial(_measure, rest_s, ""),
        "klamm, exactly once": functools.partial(_measure, rest_s, EXACTLY_ONCE),
    }
    yield from alternate(sides, benchmark="mirror, 10,000 partitions", plan=plan, rounds=plan.rounds(3))


def _measure(rest_s: float, delivery: str) -> Mapping[str, float]:
    with apache_kafka() as source, apache_kafka() as target:
        names = [f"load-{number}" for number in range(_TOPICS)]
        with AdminClient(source.bootstrap_servers, timeout_ms=120_000) as admin:
            for first in range(0, _TOPICS, _AT_ONCE):
                topics = [NewTopic(name=name, num_partitions=_PARTITIONS) for name in names[first : first + _AT_ONCE]]
                admin.create_topics(topics).all().result(120)
            _wait_until_listed(admin, "load-", "the source's topics")
        rounds = _rounds(source, target)
        with AdminClient(target.bootstrap_servers) as admin:
            _wait_until_listed(admin, "source.load-", "the remote topics")
        more = f"source->target.topics=load-.*\n{delivery}"
        with MirrorSide(start=start_klamm, more=more).running(source, target) as mirror:
            # The positions are looked for and all partitions are asked for once; after that nothing is to be done.
            _wait_until_at_rest(mirror.pid)
            spent = cpu_seconds([mirror.pid])
            time.sleep(rest_s)
            spent = cpu_seconds([mirror.pid]) - spent
            return {
                "first round s": rounds[0],
                "next rounds s": max(rounds[1:]),
                "CPU % of a core at rest": 100 * spent / rest_s,
                "PSS MiB": pss_mebibytes([mirror.pid]),
            }


def _wait_until_listed(admin: AdminClient, prefix: str, what: str) -> None:
    def listed() -> bool:
        return sum(name.startswith(prefix) for name in admin.list_topics().result(60)) == _TOPICS

    wait_for(listed, timeout_s=_LISTED_S, what=what, interval_s=1.0)


def _wait_until_at_rest(pid: int) -> None:
    """Wait until five seconds cost less than one second of CPU."""
    spent = [cpu_seconds([pid])]

    def is_at_rest() -> bool:
        time.sleep(5.0)
        spent.append(cpu_seconds([pid]))
        return len(spent) > _ROUNDS and spent[-1] - spent[-2] < 1.0

    wait_for(is_at_rest, timeout_s=_CAUGHT_UP_S, what="the mirror to be at rest")


def _rounds(source: KafkaCluster, target: KafkaCluster) -> list[float]:
    """Return seconds of rounds of the control loop: the first creates all remote topics."""
    flow = parse_settings(
        {
            "clusters": "source,target",
            "source.bootstrap.servers": source.bootstrap_servers,
            "target.bootstrap.servers": target.bootstrap_servers,
            "source->target.enabled": "true",
            "topics": "load-.*",
            "replication.factor": "1",
            "offset.storage.replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "emit.heartbeats.enabled": "false",
        }
    ).flows[0]
    now = 0.0
    published: list[Assignment] = []
    admins = [new_client([side.bootstrap_servers], {}, timeout_ms=120_000) for side in (source, target)]
    control = FlowControl(flow, *admins, status=MirrorStatus([flow.name]), publish=published.append, clock=lambda: now)
    seconds = []
    for _ in range(_ROUNDS):
        began = time.monotonic()
        control.turn()
        seconds.append(time.monotonic() - began)
        now += 3600.0
    for admin in admins:
        admin.close()
    if len(published[-1]) != _TOPICS:
        raise RuntimeError(f"{len(published[-1])} topics are copied")
    return seconds
