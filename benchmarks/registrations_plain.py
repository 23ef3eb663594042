"""The peer of the registration report: one Python process with librdkafka's consumer, json and dictionaries.

It tells what the report tells of reach and windows, so that the two can be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from klamm.client_configs.registrations import TOPIC

_DAY_MS: Final = 86_400_000


def main() -> None:
    """Print the report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server", required=True)
    json.dump(report(parser.parse_args().bootstrap_server), sys.stdout)


def report(servers: str) -> dict[str, Any]:
    """Read the topic from its beginning to its end and sum it up."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "plain", "enable.auto.commit": False})
    partitions = consumer.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
    where = [TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in partitions]
    bounds = {one.partition: consumer.get_watermark_offsets(one, timeout=30) for one in where}
    left = {partition: end if end > first else 0 for partition, (first, end) in bounds.items()}
    consumer.assign(where)
    # by client: software version -> (when, configs), and by window and version the clients that were seen
    standing: dict[tuple[str, str], dict[str, tuple[int, set[str]]]] = defaultdict(dict)
    seen: dict[tuple[int, str], set[tuple[str, str]]] = defaultdict(set)
    records = 0
    while any(left.values()):
        for message in consumer.consume(10_000, timeout=1.0):
            partition, offset, key_text, text = message.partition(), message.offset(), message.key(), message.value()
            assert partition is not None
            assert offset is not None
            assert key_text is not None
            if offset + 1 >= left[partition]:
                left[partition] = 0
            records += 1
            key = json.loads(key_text)
            client = (key["user"], key["client-id"])
            if text is None:
                standing.pop(client, None)
                continue
            value = json.loads(text)
            at_ms = message.timestamp()[1]
            information = value["client_information"]
            _, configs = standing[client].get(information, (0, set()))
            standing[client][information] = (at_ms, configs | set(value["supported_configs"]))
            seen[at_ms // _DAY_MS * _DAY_MS, information].add(client)
    consumer.close()
    newest = [max(versions.values(), key=lambda one: one[0])[1] for versions in standing.values()]
    names = {config for versions in standing.values() for _, configs in versions.values() for config in configs}
    reach = [
        {
            "config": name,
            "following": sum(name in configs for configs in newest),
            "clients": len(newest),
            "user": None,
            "unknown": 0,
        }
        for name in names
    ]
    return {
        "clients": len(newest),
        "records": records,
        "reach": sorted(reach, key=lambda one: (-one["following"], one["config"])),
        "windows": [
            {
                "start_ms": start_ms,
                "software": information.split("/")[0],
                "version": information.split("/")[-1],
                "clients": len(clients),
            }
            for (start_ms, information), clients in sorted(
                seen.items(), key=lambda one: (one[0][0], one[0][1].split("/"))
            )
        ],
    }


if __name__ == "__main__":
    main()
