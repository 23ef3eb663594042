"""What asking the ACLs costs: the same requests without an authorizer, and with 1,000 ACLs of which few apply.

A client logs in as alice and produces one small record to each of 100 topics, then reads all of them in one request,
again and again. An ACL with a prefix lets her; the other ACLs are for others, a tenth of them on the same topics. What
counts is CPU of the broker, not the clock: other processes disturb it little.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds
from klamm.embedded.broker import Broker
from klamm.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.messages.produce import ProduceRequest
from klamm.protocol.records import Record, encode_batch
from tests.support.acls import creation
from tests.support.security import log_in, sasl_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from klamm.protocol.schema import Message
    from tests.support.wire import WireClient

BENCHMARK: Final = "authorizer"
_TOPICS: Final = tuple(f"orders-{number:03}" for number in range(100))
_ACLS: Final = 1_000
_PRODUCE_VERSION: Final = 9
_VERSION: Final = 12
"""Of Fetch, the last that names topics."""
_PREFIXED: Final = 4
_MAX_BYTES: Final = 1 << 20


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure klamm with itself."""
    rounds = 40 if plan.quick else 200
    sides = {
        "no authorizer": lambda: _with_broker(rounds, is_guarded=False),
        f"{_ACLS:,} ACLs": lambda: _with_broker(rounds, is_guarded=True),
    }
    yield from alternate(sides, benchmark=BENCHMARK, plan=plan, rounds=plan.rounds(5, quick=2))


def _with_broker(rounds: int, *, is_guarded: bool) -> Mapping[str, float]:
    settings = sasl_settings(authorizer=is_guarded)
    with Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=settings) as broker:
        with log_in(broker.bootstrap_servers, "admin") as admin:
            _prepare(admin, is_guarded=is_guarded)
        with log_in(broker.bootstrap_servers, "alice") as alice:
            return _load(alice, broker.pid or 0, rounds)


def _prepare(admin: WireClient, *, is_guarded: bool) -> None:
    topics = [CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in _TOPICS]
    created = admin.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000), CreateTopicsResponse, 7)
    if rejected := [
        (topic.name, topic.error_code, topic.error_message) for topic in created.topics if topic.error_code
    ]:
        raise RuntimeError(f"A topic was rejected: {rejected[0]}")
    if not is_guarded:
        return
    acls = [creation("orders-", resource_pattern_type=_PREFIXED, operation=operation) for operation in (3, 4)]
    acls += [
        creation(_TOPICS[number % len(_TOPICS)] if number % 10 == 0 else f"other-{number}", f"User:somebody-{number}")
        for number in range(_ACLS - len(acls))
    ]
    answer = admin.ask(CreateAclsRequest(creations=acls), CreateAclsResponse, 3)
    if any(result.error_code for result in answer.results):
        raise RuntimeError("An ACL was rejected")


def _load(client: WireClient, pid: int, rounds: int) -> Mapping[str, float]:
    batch = bytes(encode_batch([Record(None, b"x" * 100, (), int(time.time() * 1000))]))
    produce, fetch = [_produce(name, batch) for name in _TOPICS], _fetch()
    for request in (*produce, fetch):  # the first of each is slower
        client.time_raw(request, _VERSION if request is fetch else _PRODUCE_VERSION)
    before = cpu_seconds([pid])
    for _ in range(rounds):
        for request in produce:
            client.time_raw(request, _PRODUCE_VERSION)
    between = cpu_seconds([pid])
    for _ in range(rounds * 5):
        client.time_raw(fetch, _VERSION)
    after = cpu_seconds([pid])
    return {
        "produce CPU us": (between - before) / (rounds * len(_TOPICS)) * 1e6,
        "fetch of 100 topics CPU us": (after - between) / (rounds * 5) * 1e6,
    }


def _produce(topic: str, batch: bytes) -> Message:
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    of_topic = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    return ProduceRequest(transactional_id=None, acks=1, timeout_ms=10_000, topic_data=[of_topic])


def _fetch() -> Message:
    wanted = FetchRequest.FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=0,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=200,
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_MAX_BYTES,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=name, partitions=[wanted]) for name in _TOPICS],
        forgotten_topics_data=[],
    )
