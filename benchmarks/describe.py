"""DescribeConfigs of 1,000 topics in one request, a tenth of them with configs of their own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, Plan, percentile, wait_for
from benchmarks.sides import on_both
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.probe import Cluster

BENCHMARK: Final = "describe 1,000 topics"
_TOPICS: Final = 1_000
_VERSION: Final = 4
_CREATED_AT_ONCE: Final = 100
_WARM_UP_S: Final = 10.0


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure klamm and Apache Kafka as shipped."""
    duration_s = 3.0 if plan.quick else 30.0
    yield from on_both(
        lambda cluster: _load(cluster, duration_s), benchmark=BENCHMARK, plan=plan, rounds=plan.rounds(3)
    )


def _load(cluster: Cluster, duration_s: float) -> Mapping[str, float]:
    names = [f"described-{number:04}" for number in range(_TOPICS)]
    own = [
        CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="3600000"),
        CreateTopicsRequest.CreatableTopicConfig(name="cleanup.policy", value="compact"),
    ]
    with WireClient(cluster.bootstrap_servers, timeout_s=120.0) as client:
        for start in range(0, _TOPICS, _CREATED_AT_ONCE):
            topics = [
                CreateTopicsRequest.CreatableTopic(
                    name=name, num_partitions=1, replication_factor=1, configs=own if index % 10 == 0 else []
                )
                for index, name in enumerate(names[start : start + _CREATED_AT_ONCE])
            ]
            created = client.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000), CreateTopicsResponse, 7)
            rejected = [topic.error_message for topic in created.topics if topic.error_code]
            if rejected:
                raise RuntimeError(f"A topic was rejected: {rejected[0]}")
        return _measure(client, names, duration_s)


def _measure(client: WireClient, names: list[str], duration_s: float) -> Mapping[str, float]:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
            for name in names
        ],
        include_synonyms=True,
    )

    def are_described() -> bool:
        answer = client.ask(request, DescribeConfigsResponse, _VERSION)
        return all(result.error_code == 0 and result.configs for result in answer.results)

    wait_for(are_described, timeout_s=30.0, what="topics to be known")
    warm_at = time.monotonic() + min(_WARM_UP_S, duration_s)
    while time.monotonic() < warm_at:
        client.time_raw(request, _VERSION)
    times = []
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        times.append(client.time_raw(request, _VERSION))
    return {"p50 ms": percentile(times, 0.5) * 1e3, "p99 ms": percentile(times, 0.99) * 1e3}
