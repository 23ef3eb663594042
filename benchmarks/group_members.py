"""1,000 members of one consumer group (KIP-848): time until each has its partition, CPU and memory of the broker.

The members are raw connections that behave as Kafka's Java consumer does: they join at once, send a heartbeat in each
interval that the broker determines, counted from one request to the next, and report at once what they own when their
assignment has changed.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds, pss_mebibytes
from benchmarks.sides import apache_kafka
from klamm.protocol.codec import decode
from klamm.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.primitives import skip_tagged_fields
from tests.support.klamm import KlammBroker
from tests.support.wire import WireClient, request_frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from tests.support.probe import Cluster

MEMBERS: Final = 1_000
GROUP: Final = "crowd"
TOPIC: Final = "crowd"
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "1,000 group members": {},
    "1,000 group members, assigned at once": {"group.consumer.assignment.interval.ms": "0"},
}
"""Broker settings by benchmark. A quick run takes the first."""
_VERSION: Final = 1
_PATIENCE_S: Final = 120.0


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure klamm and Apache Kafka as shipped."""
    steady_s = 10.0 if plan.quick else 30.0
    for benchmark, properties in list(SETTINGS.items())[: 1 if plan.quick else None]:

        def with_klamm(properties: Mapping[str, str] = properties) -> Mapping[str, float]:
            with KlammBroker(properties) as broker:
                return _load(broker, steady_s)

        def with_kafka(properties: Mapping[str, str] = properties) -> Mapping[str, float]:
            with apache_kafka(properties) as cluster:
                return _load(cluster, steady_s)

        sides = {"klamm": with_klamm, "Apache Kafka": with_kafka}
        yield from alternate(sides, benchmark=benchmark, plan=plan, rounds=plan.rounds(3))


def _load(cluster: Cluster, steady_s: float) -> Mapping[str, float]:
    with WireClient(cluster.bootstrap_servers, timeout_s=60.0) as client:
        topic_id = client.create_topic(TOPIC, partitions=MEMBERS)
        _wait_for_coordinator(client)
        return asyncio.run(_measure(cluster, client, topic_id, steady_s))


def _wait_for_coordinator(client: WireClient) -> None:
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
    describe = ConsumerGroupDescribeRequest(group_ids=[GROUP])
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        found = client.ask(find, FindCoordinatorResponse, 4).coordinators[0].error_code
        code = client.ask(describe, ConsumerGroupDescribeResponse, 1).groups[0].error_code
        if found == 0 and code in {0, 69}:  # GROUP_ID_NOT_FOUND: the coordinator has loaded its groups
            return
        time.sleep(0.1)
    raise TimeoutError("Waited in vain for the coordinator")


async def _measure(cluster: Cluster, client: WireClient, topic_id: UUID, steady_s: float) -> Mapping[str, float]:
    members = [Member(number, cluster.bootstrap_servers, topic_id) for number in range(MEMBERS)]
    await asyncio.gather(*(member.connect() for member in members))
    cpu, began = cpu_seconds(cluster.pids), time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(member.run()) for member in members]
        while not _is_settled(members):
            if time.monotonic() > began + _PATIENCE_S:
                raise TimeoutError("The group did not settle")
            await asyncio.sleep(0.02)
        settled_s, settled_cpu = time.monotonic() - began, cpu_seconds(cluster.pids) - cpu
        slowest = max(member.slowest_s for member in members)
        cpu, since = cpu_seconds(cluster.pids), time.monotonic()
        await asyncio.sleep(steady_s)
        busy = (cpu_seconds(cluster.pids) - cpu) / (time.monotonic() - since)
        memory = pss_mebibytes(cluster.pids)
        described = await asyncio.to_thread(
            client.ask, ConsumerGroupDescribeRequest(group_ids=[GROUP]), ConsumerGroupDescribeResponse, 1
        )
        for task in running:
            task.cancel()
    if described.groups[0].group_state != "Stable":
        raise RuntimeError(f"The group is {described.groups[0].group_state}")
    for member in members:
        member.close()
    return {
        "settled s": settled_s,
        "CPU s until settled": settled_cpu,
        "slowest response ms": slowest * 1e3,
        "CPU % of a core at rest": busy * 100,
        "PSS MiB": memory,
    }


def _is_settled(members: Sequence[Member]) -> bool:
    owned = [index for member in members for index in member.owned]
    return all(member.owned for member in members) and len(set(owned)) == len(owned) == MEMBERS


class Member:
    """One member on a connection of its own."""

    def __init__(self, number: int, address: str, topic_id: UUID) -> None:
        self.owned: frozenset[int] = frozenset()
        self.slowest_s = 0.0
        self._member_id = f"member-{number:04}"
        self._address = address
        self._topic_id = topic_id
        self._correlation_id = 0
        self._epoch = 0
        self._sent = 0.0

    async def connect(self) -> None:
        """Open the connection."""
        host, _, port = self._address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def run(self) -> None:
        """Join, and send heartbeats until the task is cancelled."""
        interval_ms = await self._beat(rebalance_timeout_ms=60_000, subscribed_topic_names=[TOPIC], topic_partitions=[])
        while True:
            if interval_ms:
                await asyncio.sleep(self._sent + interval_ms / 1000 - time.monotonic())
                interval_ms = await self._beat()
            else:
                owned = ConsumerGroupHeartbeatRequest.TopicPartitions(
                    topic_id=self._topic_id, partitions=sorted(self.owned)
                )
                interval_ms = await self._beat(topic_partitions=[owned] if self.owned else [])

    async def _beat(self, **fields: object) -> int:
        """Send a heartbeat, and return the milliseconds until the next; 0 if the assignment has changed."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self._member_id,
            member_epoch=self._epoch,
            **fields,  # type: ignore[arg-type]
        )
        self._correlation_id += 1
        frame = request_frame(request, _VERSION, correlation_id=self._correlation_id, client_id=self._member_id)
        self._sent = time.monotonic()
        self._writer.write(frame)
        body = await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "big"))
        self.slowest_s = max(self.slowest_s, time.monotonic() - self._sent)
        offset = skip_tagged_fields(memoryview(body), 4, len(body))
        reply = decode(ConsumerGroupHeartbeatResponse, _VERSION, body, offset)
        if reply.error_code:
            raise RuntimeError(f"{self._member_id}: error code {reply.error_code} {reply.error_message}")
        self._epoch = reply.member_epoch
        if reply.assignment is None:
            return reply.heartbeat_interval_ms
        owned = frozenset(index for topic in reply.assignment.topic_partitions for index in topic.partitions)
        is_changed, self.owned = owned != self.owned, owned
        return 0 if is_changed else reply.heartbeat_interval_ms
