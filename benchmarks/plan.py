"""``klamm plan`` of 2,000 topics, 5,000 ACLs and 500 users with quotas that are in line."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measure import Measurement, Plan, alternate, wait_for
from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.probe import Cluster

BENCHMARK: Final = "plan of a large cluster"
_TOPICS: Final = 2_000
_USERS: Final = 500
_ACLS_PER_USER: Final = 10
_AUTHORIZED: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure the plan against klamm and Apache Kafka."""

    def with_klamm() -> Mapping[str, float]:
        with KlammBroker(_AUTHORIZED) as broker:
            return _measure(broker, runs=2 if plan.quick else 5)

    def with_kafka() -> Mapping[str, float]:
        with KafkaCluster(properties=_AUTHORIZED) as cluster:
            return _measure(cluster, runs=2 if plan.quick else 5)

    sides = {"klamm": with_klamm, "Apache Kafka": with_kafka}
    yield from alternate(sides, benchmark=BENCHMARK, plan=plan, rounds=plan.rounds(1))


def _resources() -> dict[str, Any]:
    rules = [
        {"resource": {"type": "topic", "name": f"t-{index}"}, "operations": ["Read"]} for index in range(_ACLS_PER_USER)
    ]
    return {
        "topics": {
            f"topic-{index:04}": {"partitions": 1, "configs": {"retention.ms": 3_600_000, "cleanup.policy": "delete"}}
            for index in range(_TOPICS)
        },
        "users": {
            f"user-{index:03}": {"authorization": {"acls": rules}, "quotas": {"producerByteRate": 1_048_576}}
            for index in range(_USERS)
        },
    }


def _measure(cluster: Cluster, *, runs: int) -> Mapping[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "resources.json"
        file.write_text(json.dumps(_resources()))
        _klamm("apply", file, cluster)
        wait_for(lambda: _klamm("plan", file, cluster, "--check") == 0, timeout_s=60.0, what="the plan to be empty")
        times = []
        for _ in range(runs):
            started = time.monotonic()
            _klamm("plan", file, cluster)
            times.append(time.monotonic() - started)
    return {"plan s": sorted(times)[len(times) // 2]}


def _klamm(action: str, file: Path, cluster: Cluster, *flags: str) -> int:
    words = [sys.executable, "-m", "klamm.cli", action, str(file), "--bootstrap-server", cluster.bootstrap_servers]
    return subprocess.run([*words, *flags], check=False, stdout=subprocess.DEVNULL).returncode
