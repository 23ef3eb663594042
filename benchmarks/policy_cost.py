"""What a policy adds to a decision: to a topic that is created, and to a call of the policy alone.

Run with ``python -m benchmarks.policy_cost [JSON]``. The policies look at one number and allow: one on a thread of its
own, one that only computes and is called where the broker decides, and the same rule in a file. One process, no
network; requests with and without policies take turns, so that other processes disturb all alike. Five runs.
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

from rich.console import Console

from benchmarks.machine import describe_machine
from benchmarks.measure import Measurement, percentile
from benchmarks.report import print_tables, write_json
from klamm.broker.cluster import AdvertisedBroker, ClusterInfo
from klamm.broker.handlers import api_019_create_topics
from klamm.broker.quotas import MutationQuotas, QuotaService
from klamm.broker.topics.catalog import TopicCatalog
from klamm.configs.definitions import POLICY_RULES_FILE
from klamm.policy import PolicyViolationError
from klamm.policy.details import TopicDetails
from klamm.policy.kinds import CREATE_TOPIC
from klamm.policy_runtime import Policies
from klamm.protocol.messages.create_topics import CreateTopicsRequest
from klamm.storage.log import LogManager
from klamm.storage.metadata.store import METADATA_FILE_NAME, MetadataStore
from tests.support.configs import make_context, make_service

if TYPE_CHECKING:
    from collections.abc import Mapping

_CALLS: Final = 2_000
_RUNS: Final = 5
_MOST: Final = 48
_CLASS_KEY: Final = CREATE_TOPIC.class_key
_RULES: Final = f"rules: [{{name: small, topics: 'topic-.*', partitions: {{max: {_MOST}}}}}]"
_WITHOUT: Final = "no policy"


class SmallTopics:
    """Allows what is small."""

    def validate(self, details: TopicDetails) -> None:
        """Look at the number of partitions."""
        if (details.num_partitions or 0) > _MOST:
            raise PolicyViolationError(f"{details.topic}: at most {_MOST} partitions")


class SmallTopicsAtOnce(SmallTopics):
    """The same, called by the event loop."""

    only_computes = True


async def measure(directory: Path, number: int) -> list[Measurement]:
    """Return the medians of one run: microseconds of a decision, of a call alone, and what the policy adds."""
    (directory / "rules.yaml").write_text(_RULES)
    properties = {
        "on its thread": {_CLASS_KEY: f"{__name__}:SmallTopics"},
        "only computes": {_CLASS_KEY: f"{__name__}:SmallTopicsAtOnce"},
        "rules in a file": {
            _CLASS_KEY: "klamm.policy.rules:RulesPolicy",
            POLICY_RULES_FILE: str(directory / "rules.yaml"),
        },
    }
    sides = {_WITHOUT: Policies(), **{name: await Policies.load(keys) for name, keys in properties.items()}}
    decisions = await _times_of_decisions(sides, directory)
    base = statistics.median(decisions[_WITHOUT])
    found = []
    for name, policies in sides.items():
        median = statistics.median(decisions[name])
        values = {
            "a decision us": median,
            "p99 us": percentile(decisions[name], 0.99),
            "a call us": 0.0 if name == _WITHOUT else statistics.median(await _times_of_calls(policies)),
            "the policy adds us": median - base,
        }
        found.append(Measurement(benchmark="cost of a policy", side=name, round=number, values=values))
        await policies.close()
    return found


async def _times_of_decisions(sides: Mapping[str, Policies], directory: Path) -> Mapping[str, list[float]]:
    store = MetadataStore.open(directory / METADATA_FILE_NAME)
    configs = make_service(store)  # type: ignore[arg-type]  # a real store
    logs = LogManager(directory, configs_of=lambda _: {})
    topics = TopicCatalog(store=store, configs=configs, logs=logs)
    cluster = ClusterInfo(cluster_id="c", nodes=(AdvertisedBroker(node_id=1, host="a", port=1),))
    quotas = MutationQuotas(QuotaService(store, now_ms=lambda: 0))
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(_CALLS):
        for name, policies in sides.items():
            context = make_context(
                configs,
                api_version=7,
                topics=topics,
                logs=logs,
                policies=policies,
                cluster=cluster,
                mutation_quotas=quotas,
            )
            request = _request(f"topic-{number}")
            before = time.perf_counter()
            await api_019_create_topics.handle(request, context)
            found[name].append((time.perf_counter() - before) * 1e6)
    await store.close()
    return found


async def _times_of_calls(policies: Policies) -> list[float]:
    details = TopicDetails("topic-1", 3, 1, None, {})
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


def main() -> None:
    """Print the table, and write everything that was measured where the argument says."""
    logging.basicConfig(level=logging.WARNING)
    machine = describe_machine()
    measurements: list[Measurement] = []
    for number in range(1, _RUNS + 1):
        with tempfile.TemporaryDirectory() as directory:
            measurements += asyncio.run(measure(Path(directory), number))
    print_tables(Console(), measurements)
    if sys.argv[1:]:
        write_json(Path(sys.argv[1]), machine=machine, mode="full", measurements=measurements)


if __name__ == "__main__":
    main()
