"""Requests with as many parts as a frame can hold: too many are rejected before decoding, others run in slices."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from klamm.broker.routes import ROUTES
from klamm.protocol.api import ApiKey
from klamm.protocol.codec import decode, encode, granted_elements
from klamm.protocol.errors import TooManyElementsError
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tests.support.held_loop import HeldLoop, a_held_broker
from tests.support.long_requests import long_requests
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_S: Final = 0.05
"""Of processor time of the event loop's thread, as in test_long_requests.py."""
PARTITIONS: Final = 600
FRAME_BYTES: Final = 100 * 1024 * 1024
"""``socket.request.max.bytes``."""


def test_array_elements_of_every_request_are_counted() -> None:
    """Those of a fixed size, as partition numbers, count a quarter: a frame could hold 20 million of them."""
    places = 0
    for request in long_requests(300):
        body = encode(request.request, request.version)
        with pytest.raises(TooManyElementsError):
            decode(type(request.request), request.version, body, max_elements=70)
        places += 1
    assert places > 50


def test_twenty_million_partition_numbers_are_rejected_before_decoding() -> None:
    partitions = [0] * 400_001
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=partitions)
    body = encode(OffsetFetchRequest(group_id="g", topics=[topic]), 7) + bytes(FRAME_BYTES)

    began = time.thread_time()
    with pytest.raises(TooManyElementsError):
        decode(OffsetFetchRequest, 7, body, max_elements=granted_elements(len(body)))
    assert time.thread_time() - began < 0.1


def test_request_for_every_partition_of_a_large_cluster_is_decoded() -> None:
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=list(range(60_000)))
    request = OffsetFetchRequest(group_id="g", topics=[topic])
    body = encode(request, 7)
    assert decode(OffsetFetchRequest, 7, body, max_elements=granted_elements(len(body))).topics == request.topics


@pytest.fixture(scope="module")
def held_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldLoop]:
    with a_held_broker(tmp_path_factory.mktemp("held") / "data") as broker:
        yield broker


def test_wide_transaction_ends_without_blocking_the_loop(held_broker: HeldLoop) -> None:
    with WireClient(held_broker.address, timeout_s=60) as client:
        client.create_topic("wide", partitions=PARTITIONS)
        begun = client.ask(
            InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), InitProducerIdResponse, 4
        )
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="wide", partitions=list(range(PARTITIONS)))
        adding = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=begun.producer_id,
            v3_and_below_producer_epoch=begun.producer_epoch,
            v3_and_below_topics=[topic],
        )
        markers = 0

        def end(*, is_commit: bool) -> None:
            nonlocal markers
            added = client.ask(adding, AddPartitionsToTxnResponse, 3)
            assert not any(
                part.partition_error_code for part in added.results_by_topic_v3_and_below[0].results_by_partition
            )
            ending = EndTxnRequest(
                transactional_id="x",
                producer_id=begun.producer_id,
                producer_epoch=begun.producer_epoch,
                committed=is_commit,
            )
            held_broker.begin()
            assert client.ask(ending, EndTxnResponse, 3).error_code == 0
            markers += 1

        for is_commit in (True, False):
            assert held_broker.longest_s_of(partial(end, is_commit=is_commit), limit_s=MAX_S) < MAX_S
            assert [client.end_offset("wide", index) for index in (0, PARTITIONS - 1)] == [markers] * 2


def test_wide_topic_is_deleted_without_blocking_the_loop(held_broker: HeldLoop) -> None:
    with WireClient(held_broker.address, timeout_s=60) as client:

        def delete() -> None:
            client.create_topic("deleted", partitions=PARTITIONS)
            state = DeleteTopicsRequest.DeleteTopicState(name="deleted")
            held_broker.begin()
            gone = client.ask(DeleteTopicsRequest(topics=[state], timeout_ms=30_000), DeleteTopicsResponse, 6)
            assert gone.responses[0].error_code == 0

        assert held_broker.longest_s_of(delete, limit_s=MAX_S) < MAX_S


def test_first_marker_of_a_log_is_written_outside_the_event_loop(
    held_broker: HeldLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new partition gets its directory in a thread, as by Produce."""
    fsync, threads = os.fsync, set[str]()

    def noted(descriptor: int) -> None:
        threads.add(threading.current_thread().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with WireClient(held_broker.address, timeout_s=60) as client:
        client.create_topic("marked", partitions=4)
        begun = client.ask(
            InitProducerIdRequest(transactional_id="m", transaction_timeout_ms=60_000), InitProducerIdResponse, 4
        )
        of_producer = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        adding = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="m",
            v3_and_below_producer_id=begun.producer_id,
            v3_and_below_producer_epoch=begun.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="marked", partitions=[0, 1])],
        )
        client.ask(adding, AddPartitionsToTxnResponse, 3)
        client.ask(EndTxnRequest(transactional_id="m", committed=True, **of_producer), EndTxnResponse, 3)
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            transaction_result=True,
            coordinator_epoch=0,
            topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="marked", partition_indexes=[2, 3])],
            **of_producer,
        )
        client.ask(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, 1)
        assert [client.end_offset("marked", index) for index in range(4)] == [1, 1, 1, 1]
    assert threads
    assert not {name for name in threads if name.startswith("held-loop")}


WIDE: Final = (
    "LEAVE_GROUP members",
    "INCREMENTAL_ALTER_CONFIGS resources.configs",
    "ALTER_CONFIGS resources.configs",
    "DESCRIBE_CLIENT_QUOTAS components",
    "ALTER_CLIENT_QUOTAS entries.entity",
    "ALTER_CLIENT_QUOTAS entries.ops",
)
"""One resource of these is decided at once, so the number of its entries has a limit of its own."""
ENTRIES: Final = 95_000 if os.environ.get("KLAMM_SOAK") else 30_000


@pytest.mark.long
@pytest.mark.process
def test_oversized_resource_is_rejected_without_blocking_the_loop(
    held_broker: HeldLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("klamm.server.codec.granted_elements", lambda _, most: most)  # a frame that is padded
    others = tuple(few.name for few in long_requests(1) if not any(wanted.startswith(few.name) for wanted in WIDE))
    requests = [request for request in long_requests(ENTRIES, without=others) if request.name in WIDE]
    assert len(requests) == len(WIDE)
    holds = {}
    for request in requests:
        held_broker.begin()
        with WireClient(held_broker.address, timeout_s=60) as client:
            client.time_raw(request.request, request.version)
        holds[request.name] = held_broker.longest().seconds
    assert not {name: f"{seconds * 1000:.0f} ms" for name, seconds in holds.items() if seconds >= MAX_S}


def test_configs_of_all_topics_fit_one_request() -> None:
    """MirrorMaker does so: thirty configs of each of 5,000 topics are more than other requests may list."""
    assert ROUTES[ApiKey.INCREMENTAL_ALTER_CONFIGS].most_elements > 600_000
    assert ROUTES[ApiKey.OFFSET_FETCH].most_elements == 100_000
