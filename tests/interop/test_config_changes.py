"""Config changes of several concurrent writers, and after a kill of the broker."""

from __future__ import annotations

import threading
from typing import Any

import klamm
from tests.support.conformance_kit import load_runner

WRITERS = 8
CHANGES = 20
THROTTLED = "leader.replication.throttled.replicas"
APPEND, SET = 2, 0


def connect(broker: klamm.Broker) -> Any:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return load_runner().Connection(host, int(port), 30.0)


def create_topic(broker: klamm.Broker, name: str) -> None:
    connection = connect(broker)
    wanted = {"name": name, "partitions": 1, "replication": 1, "assignments": [], "configs": []}
    (answer,) = connection.call("CreateTopics", 5, {"topics": [wanted], "timeout": 9000, "validate_only": False})[
        "topics"
    ]
    connection.close()
    assert answer["error"] == 0


def overrides(broker: klamm.Broker, name: str) -> dict[str, str]:
    connection = connect(broker)
    body = {"resources": [{"type": 2, "name": name, "keys": None}]}
    (result,) = connection.call("DescribeConfigs", 4, body)["results"]
    connection.close()
    return {config["name"]: config["value"] for config in result["configs"] if config["source"] == 1}


def write(broker: klamm.Broker, name: str, writer: int, acknowledged: list[str]) -> None:
    """Append an element of its own and set a key that all writers set, in one request each time."""
    connection = connect(broker)
    for change in range(CHANGES):
        element = f"{writer}:{change}"
        configs = [
            {"name": THROTTLED, "op": APPEND, "value": element},
            {"name": "flush.ms", "op": SET, "value": str(writer * 1000 + change)},
            {"name": "segment.ms", "op": SET, "value": str(writer * 1000 + change + 1)},
        ]
        body = {"resources": [{"type": 2, "name": name, "configs": configs}], "validate_only": False}
        (answer,) = connection.call("IncrementalAlterConfigs", 1, body)["responses"]
        assert answer["error"] == 0
        acknowledged.append(element)
    connection.close()


def test_concurrent_updates_all_apply_and_survive_a_kill() -> None:
    """K339-23: No lost update: concurrent alterations of different keys of one resource all survive.

    K339-38: Changes survive a broker restart.

    K339-18: All-or-nothing per resource: any bad op means no op of that resource is applied.
    """
    acknowledged: list[str] = []
    with klamm.Broker() as broker:
        create_topic(broker, "crowded")
        writers = [threading.Thread(target=write, args=(broker, "crowded", n, acknowledged)) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        before = overrides(broker, "crowded")
        broker.kill()
        broker.start()
        after = overrides(broker, "crowded")
    assert len(acknowledged) == WRITERS * CHANGES
    assert sorted(before[THROTTLED].split(",")) == sorted(acknowledged)
    assert int(before["segment.ms"]) == int(before["flush.ms"]) + 1, "one writer wins whole"
    assert before["flush.ms"] in {str(n * 1000 + CHANGES - 1) for n in range(WRITERS)}
    assert after == before
