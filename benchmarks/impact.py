"""Impact of a lower cluster default on 2,000 topics that inherit it, collected through the admin client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, Plan, percentile
from benchmarks.sides import on_both
from klamm.admin import AdminClient, NewTopic, ResourceType
from klamm.admin.impact import impact_of
from klamm.impact.changes import ConfigAltered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.probe import Cluster

BENCHMARK: Final = "impact of a default on 2,000 topics"
_TOPICS: Final = 2_000
_CREATED_AT_ONCE: Final = 200
_LOWERED: Final = ConfigAltered(
    resource_type=ResourceType.BROKER, resource_name="", name="log.retention.ms", value="60000"
)


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure a prediction on klamm and on Apache Kafka as shipped."""
    times = 3 if plan.quick else 20
    yield from on_both(lambda cluster: _predict(cluster, times), benchmark=BENCHMARK, plan=plan, rounds=plan.rounds(3))


def _predict(cluster: Cluster, times: int) -> Mapping[str, float]:
    names = [f"inheriting-{number:04}" for number in range(_TOPICS)]
    with AdminClient(cluster.bootstrap_servers) as admin:
        for start in range(0, _TOPICS, _CREATED_AT_ONCE):
            admin.create_topics([NewTopic(name, 1, 1) for name in names[start : start + _CREATED_AT_ONCE]]).result()
        taken = []
        for _ in range(times):
            began = time.monotonic()
            impact_of([_LOWERED], admin)
            taken.append(time.monotonic() - began)
    return {"p50 s": percentile(taken, 0.5), "max s": max(taken)}
