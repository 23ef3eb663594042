"""What a policy adds to a decision: to a topic that is created, and to the hop between the two threads alone.

Run with ``python -m benchmarks.policy_cost``. The policy looks at one number and allows. One process, no network;
requests with and without it take turns, so that other processes disturb both alike.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.broker.cluster import ClusterInfo, Node
from klamm.broker.handlers import api_019_create_topics
from klamm.broker.policies import Policies
from klamm.broker.topics.catalog import TopicCatalog
from klamm.policy import PolicyViolationError
from klamm.policy.details import TopicDetails
from klamm.policy.kinds import CREATE_TOPIC
from klamm.protocol.messages.create_topics import CreateTopicsRequest
from klamm.storage.log import LogManager
from klamm.storage.metadata import METADATA_FILE_NAME, MetadataStore
from tests.support.configs import make_context, make_service

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from klamm.policy.details import Details

_CALLS: Final = 4_000
_MOST: Final = 48


class SmallTopics:
    """Allows what is small."""

    def validate(self, details: TopicDetails) -> None:
        """Look at the number of partitions."""
        if (details.num_partitions or 0) > _MOST:
            raise PolicyViolationError(f"{details.topic}: at most {_MOST} partitions")


async def measure() -> Sequence[tuple[str, list[float]]]:
    """Return, for each thing that is measured, microseconds of each call."""
    guarded = await Policies.load({"create.topic.policy.class.name": f"{__name__}:SmallTopics"})
    details = TopicDetails("orders", 3, 1, None, {})
    hops = await _times_of_hops(guarded, details)
    with tempfile.TemporaryDirectory() as directory:
        store = MetadataStore.open(Path(directory) / METADATA_FILE_NAME)
        configs = make_service(store)  # type: ignore[arg-type]  # a real store
        logs = LogManager(Path(directory), configs_of=lambda _: {})
        topics = TopicCatalog(store=store, configs=configs, logs=logs)
        cluster = ClusterInfo(cluster_id="c", nodes=(Node(node_id=1, host="a", port=1),))
        found: dict[str, list[float]] = {"without": [], "with": []}
        for number in range(_CALLS):
            for name, policies in (("without", Policies()), ("with", guarded)):
                context = make_context(
                    configs, api_version=7, topics=topics, logs=logs, policies=policies, cluster=cluster
                )
                request = _request(f"topic-{number}")
                before = time.perf_counter()
                await api_019_create_topics.handle(request, context)
                found[name].append((time.perf_counter() - before) * 1e6)
        await store.close()
    await guarded.close()
    return [("a hop", hops), ("a decision without", found["without"]), ("a decision with", found["with"])]


async def _times_of_hops(policies: Policies, details: Details) -> list[float]:
    times = []
    for _ in range(_CALLS):
        before = time.perf_counter()
        await policies.check(CREATE_TOPIC, details)
        times.append((time.perf_counter() - before) * 1e6)
    return times


def _request(name: str) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=3, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=1_000, validate_only=True)


def lines(rows: Sequence[tuple[str, list[float]]]) -> Iterator[str]:
    """Yield the table, and what the policy adds."""
    yield f"{'':>20} {'median us':>10} {'mean us':>9} {'p99 us':>9}"
    for name, times in rows:
        yield (
            f"{name:>20} {statistics.median(times):>10.1f} {statistics.fmean(times):>9.1f}"
            f" {statistics.quantiles(times, n=100)[98]:>9.1f}"
        )
    (_, without), (_, with_policy) = rows[1:]
    median = statistics.median(with_policy) - statistics.median(without)
    mean = statistics.fmean(with_policy) - statistics.fmean(without)
    yield f"{'the policy adds':>20} {median:>10.1f} {mean:>9.1f}"


def main() -> None:
    """Print the table."""
    logging.basicConfig(level=logging.WARNING)
    sys.stdout.writelines(f"{line}\n" for line in lines(asyncio.run(measure())))


if __name__ == "__main__":
    main()
