"""Compare a release of Apache Kafka with the answers that are recorded in ``tests/conformance``.

Usage: ``make kafka-release RELEASE=4.5.0``

Fetches the release from Maven, starts one node of it, sends the recorded requests, and prints each answer that differs
from the recorded one, as a diff. The exit status is 0 if none differs. ``CASES=REGEX`` selects cases by id.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from tests.support.conformance_kit import KIT, load_runner
from tests.support.kafka import KafkaCluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

RECORDED: Final = KIT / "golden-4.4.public.json"
STATIC_CONFIGS: Final = {"num.partitions": "1", "offsets.topic.replication.factor": "1"}
"""Properties that the recorded broker had, apart from Kafka's defaults."""
BROKER_ID: Final = 1
SETTLE_S: Final = 0.12
"""Time between a change and a read. A broker of Apache Kafka applies changes a little later."""
PATIENCE_S: Final = 2.0
"""Time in which a read after a change is repeated while its answer differs."""


def read_cases(regex: str = "") -> dict[str, Any]:
    """Return the recorded cases whose id matches a regular expression, by id."""
    cases = json.loads(RECORDED.read_text(encoding="utf-8"))["cases"]
    return {case_id: case for case_id, case in cases.items() if re.search(regex, case_id)}


def compare(address: str, recorded: Mapping[str, Any]) -> Iterator[str]:
    """Play recorded cases against a broker, and yield a text for each case with an answer that differs.

    Args:
        address: Bootstrap address of a cluster whose broker has the id 1.
        recorded: Recorded cases by id.
    """
    runner = load_runner()
    host, _, port = address.rpartition(":")
    connection = runner.Connection(host, int(port), 30.0)
    environment = runner.Env(connection, BROKER_ID, settle=SETTLE_S, patience=PATIENCE_S, messages=True)
    for resource in ((runner.kit.BROKER, str(BROKER_ID)), (runner.kit.BROKER, ""), (runner.kit.LOGGER, str(BROKER_ID))):
        environment.baseline[resource] = runner.kit.dynamic_configs(connection, *resource)
    for case in runner.CASES:
        if case.id not in recorded:
            continue
        expected = recorded[case.id]["steps"]
        steps, trouble = runner.run_case(case, environment, expected)
        lines = [f"    {trouble}"] if trouble else runner.differences(environment, expected, steps)
        if lines:
            yield "\n".join([f"{case.id}: {' '.join(case.rule.split())}", *lines])
    connection.close()


def main(arguments: Sequence[str]) -> int:
    """Compare a release, print the differences, and return the exit status."""
    parser = argparse.ArgumentParser(prog="kafka_release", description="Compare a release of Apache Kafka.")
    parser.add_argument("release", help="release of Apache Kafka on Maven, for example 4.5.0")
    parser.add_argument("--cases", default="", metavar="REGEX", help="only the cases whose id matches")
    options = parser.parse_args(arguments)
    recorded = read_cases(options.cases)
    with KafkaCluster(1, STATIC_CONFIGS, release=options.release) as cluster:
        different = 0
        for text in compare(cluster.bootstrap_servers, recorded):
            different += 1
            print(text, flush=True)
    print(f"Apache Kafka {options.release}: {len(recorded)} cases, {different} with other answers than recorded")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
