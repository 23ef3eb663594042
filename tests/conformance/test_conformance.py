"""The conformance kit against a klamm broker: every case is a test, compared word for word with Apache Kafka 4.4.

The kit in ``kit/`` is a copy that is never changed. Where klamm answers otherwise ``kit/decisions.json`` says why, and
what klamm does instead is told here. The kit's waiting for what is eventual in Kafka is switched off: here a read after
a change sees it.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import klamm
from tests.support.conformance_kit import KIT, load_runner

if TYPE_CHECKING:
    from collections.abc import Iterator

STATIC_CONFIGS = {"num.partitions": "1", "offsets.topic.replication.factor": "1"}
"""What the kit's README wants in the broker's properties file."""


RUNNER = load_runner()
GOLDEN = json.loads((KIT / "golden-4.4.public.json").read_text(encoding="utf-8"))["cases"]
NOT_COMPARED = RUNNER.decide(GOLDEN, str(KIT / "decisions.json"))

# What klamm answers where it is not compared with Kafka.
DECIDED: dict[str, list[Any]] = {
    "errors.unknown-operation": [
        {
            "responses": [
                {"resource": "TOPIC:<P>t", "error": "INVALID_REQUEST", "message": "Unknown operations type 4"},
            ]
        },
        {
            "results": [
                {
                    "resource": "TOPIC:<P>t",
                    "error": "NONE",
                    "message": "",
                    "configs": {"flush.ms": ["9223372036854775807", "DEFAULT"]},
                }
            ]
        },
    ]
}


@pytest.fixture(scope="module", params=["broker", "gateway"])
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A broker of its own, and the kit's connection to it or to a gateway in front of it."""
    with ExitStack() as stack:
        broker: klamm.Broker | klamm.Gateway = stack.enter_context(klamm.Broker(config=STATIC_CONFIGS))
        if request.param == "gateway":
            broker = stack.enter_context(klamm.Gateway(broker.bootstrap_servers))
        host, _, port = broker.bootstrap_servers.rpartition(":")
        connection = RUNNER.Connection(host, int(port), 10.0)
        environment = RUNNER.Env(connection, 1, settle=0, patience=0, messages=True)
        for resource in ((RUNNER.kit.BROKER, "1"), (RUNNER.kit.BROKER, ""), (RUNNER.kit.LOGGER, "1")):
            environment.baseline[resource] = RUNNER.kit.dynamic_configs(connection, *resource)
        yield environment
        connection.close()


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in RUNNER.CASES])
def test_klamm_answers_as_apache_kafka_does(case: Any, env: Any) -> None:
    """K339-05, K339-10, K339-14, K339-16, K339-19, K339-30, K339-37: on the wire, as a black box."""
    steps, trouble = RUNNER.run_case(case, env, None)
    assert trouble is None
    if case.id in NOT_COMPARED:
        assert [step["result"] for step in steps] == DECIDED[case.id]
        return
    differences = RUNNER.differences(env, GOLDEN[case.id]["steps"], steps)
    assert not differences, "\n".join([" ".join(case.rule.split()), *differences])


def test_every_recorded_case_is_run_and_every_decision_is_reported() -> None:
    assert {case.id for case in RUNNER.CASES} == set(GOLDEN)
    assert set(NOT_COMPARED) == set(DECIDED)


def test_run_leaves_no_dynamic_configs(env: Any) -> None:
    for resource in ((RUNNER.kit.BROKER, "1"), (RUNNER.kit.BROKER, "")):
        assert RUNNER.kit.dynamic_configs(env.conn, *resource) == env.baseline[resource]
