"""Replica mode: a broker without storage leads remote topics, and replicas get the bytes of the source."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kraft.image import BrokerEndpoint
from klamm.kraft.member import MembershipState
from klamm.mirror.copy.equal_offsets import ReplicaSettings
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.source_offset_store import SourceOffsetStore
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.replica.copier import ReplicaCopier
from klamm.mirror.replica.state import TopicStateStore
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.records import Record, encode_batch
from klamm.server.listeners import Address
from tests.support.copiers import copy_settings, run_until
from tests.support.klamm import KlammBroker
from tests.support.mirror import create_topic, delete_records
from tests.support.processes import free_port, wait_until
from tests.support.replicas import FakeMember, WireReplica, image_of
from tests.support.transactional_clients import Aio
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.mirror.copy.settings import CopySettings
    from klamm.mirror.progress.partition_progress import PartitionProgress
    from klamm.mirror.replica.leader_partition import LeaderPartition

KLAMM = 9


class ReplicaFlow:
    """A topic on a real source, and a copier that leads it on a target of wire replicas."""

    def __init__(self, source: str, replicas: tuple[int, ...] = (1,), partitions: int = 1) -> None:
        self.source = source
        self.topic = f"replica-{uuid4().hex[:8]}"
        self.topic_id = uuid4()
        create_topic(source, self.topic, partitions, {"retention.ms": "-1"})
        create_topic(source, f"mm2-offsets.{self.topic}.internal", 1, {"cleanup.policy": "compact"})
        image = image_of(self.topic, self.topic_id, KLAMM, replicas, source, partitions=partitions)
        self.member = FakeMember(image, KLAMM)
        self.members = 0
        """Number of memberships that were begun."""
        self.address = f"127.0.0.1:{free_port()}"
        self.replicas = [WireReplica(self.address, node, self.topic_id, self.member, partitions) for node in replicas]
        self.partitions = [PartitionId(self.topic, number, self.topic) for number in range(partitions)]
        self.buffer_bytes = 16 << 20
        self.may_lose = False

    def _new_member(self) -> FakeMember:
        self.members += 1
        return self.member

    def produce(self, *counts: int, partition: int = 0) -> None:
        with WireClient(self.source) as client:
            for count in counts:
                records = [Record(b"k", b"v" * 50, (), 1_700_000_000_000, at) for at in range(count)]
                client.produce(self.topic, partition, encode_batch(records))

    def settings(self, source: str = "") -> tuple[CopySettings, ReplicaSettings]:
        host, port = self.address.split(":")
        settings = replace(
            copy_settings(source or self.source, self.source, alias=self.topic),
            read_committed=False,
            join_up_to=0,
            buffer_bytes=self.buffer_bytes,
            continue_after_loss=self.may_lose,
        )
        replica = ReplicaSettings(
            node_id=KLAMM,
            controllers=ConnectionSettings(bootstrap_servers=(), client_id="replica"),
            listeners=(BrokerEndpoint(name="PLAINTEXT", host=host, port=int(port), security_protocol="PLAINTEXT"),),
            bind=(Address(host=host, port=int(port)),),
        )
        return settings, replica

    def store(self) -> SourceOffsetStore:
        settings, _ = self.settings()
        return SourceOffsetStore(
            settings.target,
            BufferPool(max_free_bytes=0),
            topic=settings.source_offsets_topic,
            source_alias=settings.source_alias,
        )

    @contextlib.contextmanager
    def copier(self, source: str = "") -> Iterator[ReplicaCopier]:
        copier = ReplicaCopier(*self.settings(source), self.partitions, new_member=self._new_member)
        copier.node.start()
        try:
            yield copier
        finally:
            copier.close()

    def run(self, copier: ReplicaCopier, end: int, partition: int = 0) -> PartitionProgress:
        """Copy until all replicas have everything before an offset, and return the progress that shows it."""

        def row() -> PartitionProgress:
            return next(row for row in copier.progress() if row.partition == partition)

        with contextlib.ExitStack() as stack:
            for replica in self.replicas:
                stack.enter_context(replica)
            run_until(
                copier,
                lambda: (
                    all(replica.logs[partition].high_watermark >= end for replica in self.replicas)
                    and row().next_offset >= end
                ),
                timeout_s=30,
            )
        return row()

    def bytes_of_source(self) -> list[bytes]:
        with WireClient(self.source) as client:
            return [bytes(batch.buffer) for batch in client.read_to_end(self.topic, 0)]

    def assert_equal(self) -> None:
        expected = self.bytes_of_source()
        for replica in self.replicas:
            assert [batch.data for batch in replica.logs[0].batches] == expected
            assert replica.logs[0].removed == []


def test_replicas_get_the_bytes_of_the_source(address: str) -> None:
    flow = ReplicaFlow(address, (1, 2, 3))
    flow.produce(3, 1, 10)

    with flow.copier() as copier:
        row = flow.run(copier, 14)
        assert (row.state, row.next_offset, row.end_offset) == (CopyState.COPYING, 14, 14)
        flow.produce(5)
        flow.run(copier, 19)

    flow.assert_equal()


def test_source_is_read_once_for_all_replicas(address: str) -> None:
    flow = ReplicaFlow(address, (1, 2, 3))
    flow.produce(*[200] * 50)

    with flow.copier() as copier:
        row = flow.run(copier, 10_000)

    flow.assert_equal()
    assert row.bytes == sum(map(len, flow.bytes_of_source()))


def test_limit_of_a_flow_holds_for_its_replicas(address: str) -> None:
    flow = ReplicaFlow(address, (1, 2))
    flow.produce(*[200] * 8)
    with flow.copier() as copier:
        copier.throttle.limit = sum(map(len, flow.bytes_of_source()))
        began = time.monotonic()

        flow.run(copier, 1600)

    assert time.monotonic() - began > 0.8  # all but the last batch at this many bytes per second
    flow.assert_equal()


def test_lagging_replica_is_served_from_the_source(address: str) -> None:
    flow = ReplicaFlow(address, (1, 2))
    flow.produce(*[100] * 30)
    with flow.copier() as copier:
        flow.run(copier, 3000)
        flow.replicas[1].logs[0].batches.clear()
        flow.replicas[1].logs[0].end = flow.replicas[1].logs[0].high_watermark = 0
        flow.produce(7)

        flow.run(copier, 3007)

    flow.assert_equal()


def test_transactions_keep_their_markers(address: str) -> None:
    flow = ReplicaFlow(address)
    with Aio(address, flow.topic) as producer:
        for end_transaction in (producer.commit, producer.abort, producer.commit):
            producer.begin()
            producer.send(flow.topic, "v")
            end_transaction()
    end = _end(flow)

    with flow.copier() as copier:
        flow.run(copier, end)

    flow.assert_equal()


def _end(flow: ReplicaFlow) -> int:
    with WireClient(flow.source) as client:
        return client.end_offset(flow.topic, 0)


def test_replica_of_a_purged_source_starts_at_the_log_start(address: str) -> None:
    flow = ReplicaFlow(address)
    flow.produce(*[10] * 9)
    delete_records(address, flow.topic, 0, before=55)

    with flow.copier() as copier:
        flow.run(copier, 90)

    (log,) = (replica.logs[0] for replica in flow.replicas)
    assert (log.batches[0].base_offset, log.end) == (50, 90)


def test_i1_empty_source_stops_the_partition_and_no_replica_is_truncated(address: str) -> None:
    flow = ReplicaFlow(address, (1, 2))
    flow.produce(5, 5)
    with flow.copier() as copier:
        flow.run(copier, 10)
    other = ReplicaFlow(address, (1, 2))
    for replica, before in zip(other.replicas, flow.replicas, strict=True):
        replica.logs = before.logs

    with other.copier() as copier, other.replicas[0], other.replicas[1]:
        run_until(copier, lambda: copier.progress()[0].state is CopyState.STOPPED, timeout_s=30)
        (row,) = copier.progress()
        other.produce(20)
        run_until(copier, lambda: len(other.replicas[0].errors) > 3, timeout_s=30)

    assert "ends at offset 10, but the source ends at offset 0" in row.reason
    for replica in other.replicas:
        assert (replica.logs[0].end, replica.logs[0].removed) == (10, [])
        assert set(replica.errors) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_replicas_are_truncated_where_the_source_diverges_if_losses_are_accepted() -> None:
    """A power cut took records of the source that were only in the page cache, and others got their offsets since."""
    with KlammBroker() as broker:
        # given
        flow = ReplicaFlow(broker.bootstrap_servers, (1, 2))
        flow.produce(10)
        log = broker.data_dir / "logs" / f"{flow.topic}-0" / f"{0:020d}.log"
        cut = log.stat().st_size
        flow.produce(10)
        with flow.copier() as copier:
            flow.run(copier, 20)
        broker.kill()
        os.truncate(log, cut)
        broker.start()
        flow.produce(7, 13)
        # when
        with flow.copier() as copier, flow.replicas[0], flow.replicas[1]:
            run_until(copier, lambda: copier.progress()[0].state is CopyState.STOPPED, timeout_s=30)
            (row,) = copier.progress()
        # then
        assert "its log diverges at offset 10 from what was read up to offset 20 of leader epoch 0" in row.reason
        assert "delete it to mirror the topic again, or let klamm.on.source.loss=continue truncate" in row.reason
        assert [replica.logs[0].removed for replica in flow.replicas] == [[], []]
        # when
        flow.may_lose = True
        with flow.copier() as copier:
            flow.run(copier, 30)
        # then
        expected = flow.bytes_of_source()
        for replica in flow.replicas:
            assert [batch.data for batch in replica.logs[0].batches] == expected
            assert [batch.base_offset for batch in replica.logs[0].removed] == [10]


def test_i1_source_that_lost_its_disks_stops_the_partition_and_no_replica_is_truncated() -> None:
    """It got new records since, so it has no leader epoch in common with the replicas."""
    with KlammBroker() as broker:
        # given
        flow = ReplicaFlow(broker.bootstrap_servers, (1, 2))
        flow.produce(10, 10)
        with flow.copier() as copier:
            flow.run(copier, 20)
        broker.kill()
        os.truncate(broker.data_dir / "logs" / f"{flow.topic}-0" / f"{0:020d}.log", 0)
        broker.start()
        flow.produce(5)
        flow.may_lose = True
        # when
        with flow.copier() as copier, flow.replicas[0], flow.replicas[1]:
            run_until(copier, lambda: copier.progress()[0].state is CopyState.STOPPED, timeout_s=30)
            (row,) = copier.progress()
    # then
    assert "up to offset 20 of leader epoch 0, and it has no leader epoch in common" in row.reason
    assert [(replica.logs[0].end, replica.logs[0].removed) for replica in flow.replicas] == [(20, [])] * 2


def fill_buffer(flow: ReplicaFlow, copier: ReplicaCopier) -> LeaderPartition:
    """Let a partition whose replicas do not fetch fill the buffer, and return its leader."""
    flow.run(copier, 0)
    leader = copier.node.partition(flow.topic, 0)
    assert leader is not None
    flow.produce(400)
    run_until(copier, lambda: _tail_end(flow, copier) == 400, timeout_s=30)
    return leader


def _tail_end(flow: ReplicaFlow, copier: ReplicaCopier) -> int | None:
    leader = copier.node.partition(flow.topic, 0)
    return None if leader is None or leader.tail is None else leader.tail.end


def test_copying_continues_beside_halted_partition(address: str) -> None:
    flow = ReplicaFlow(address, partitions=2)
    flow.buffer_bytes = 2000
    with flow.copier() as copier:
        leader = fill_buffer(flow, copier)

        copier.node.call(leader.halt, "halted by the test")
        run_until(copier, lambda: copier.progress()[0].state is CopyState.STOPPED, timeout_s=30)
        copier._refresh_due = 0.0  # as a second later
        run_until(copier, lambda: copier._refresh_due > 0, timeout_s=30)
        flow.produce(7, 7, partition=1)
        flow.run(copier, 14, partition=1)

        row = copier.progress()[0]
    assert (row.partition, row.state, row.reason) == (0, CopyState.STOPPED, "halted by the test")


def test_partition_whose_replicas_are_down_does_not_stop_the_others(address: str) -> None:
    flow = ReplicaFlow(address, (1, 2), partitions=2)
    flow.buffer_bytes = 2000
    for number, replica in enumerate(flow.replicas):
        replica.logs = {number: replica.logs[number]}
    image = flow.member.image
    topic = image.topics[flow.topic_id]
    partitions = {at: replace(each, replicas=(KLAMM, at + 1)) for at, each in topic.partitions.items()}
    flow.member.image = replace(image, topics={flow.topic_id: replace(topic, partitions=partitions)})
    down, up = flow.replicas
    with flow.copier() as copier:
        with down:
            run_until(copier, lambda: _tail_end(flow, copier) == 0, timeout_s=30)
        flow.produce(400)
        run_until(copier, lambda: _tail_end(flow, copier) == 400, timeout_s=30)

        brokers = {**image.brokers, 1: replace(image.brokers[1], is_fenced=True)}
        flow.member.publish(replace(flow.member.image, brokers=brokers))
        flow.produce(7, 7, partition=1)
        with up:
            run_until(copier, lambda: up.logs[1].high_watermark == 14, timeout_s=30)
        flow.member.publish(replace(flow.member.image, brokers=image.brokers))
        with down:
            run_until(copier, lambda: down.logs[0].high_watermark == 400, timeout_s=30)

    assert [batch.data for batch in down.logs[0].batches] == flow.bytes_of_source()


def test_restart_by_an_operator_starts_a_halted_partition(address: str) -> None:
    flow = ReplicaFlow(address, (1, 2))
    flow.produce(5, 5)
    with flow.copier() as copier:
        flow.run(copier, 10)
        leader = copier.node.partition(flow.topic, 0)
        assert leader is not None
        copier.node.call(leader.halt, "halted by the test")
        run_until(copier, lambda: copier.progress()[0].state is CopyState.STOPPED, timeout_s=30)
        flow.produce(3)

        copier.restarts = {flow.topic: 1}
        row = flow.run(copier, 13)

    assert (row.state, row.reason) == (CopyState.COPYING, "")
    flow.assert_equal()


def test_partition_is_started_again_after_its_remote_topic_was_created_again(address: str) -> None:
    flow = ReplicaFlow(address)
    flow.produce(5)
    with flow.copier() as copier:
        flow.run(copier, 5)
        leader = copier.node.partition(flow.topic, 0)
        assert leader is not None
        copier.node.call(leader.halt, "halted by the test")
        run_until(copier, lambda: copier.progress()[0].state is CopyState.STOPPED, timeout_s=30)

        flow.topic_id = uuid4()
        flow.member.publish(replace(image_of(flow.topic, flow.topic_id, KLAMM, (1,), address), offset=2))
        flow.replicas = [WireReplica(flow.address, 1, flow.topic_id, flow.member)]
        row = flow.run(copier, 5)

    assert (row.state, row.reason) == (CopyState.COPYING, "")
    flow.assert_equal()


def test_new_partitions_are_led_without_another_registration(address: str) -> None:
    flow = ReplicaFlow(address, partitions=2)
    both, flow.partitions = flow.partitions, flow.partitions[:1]
    for number in (0, 1):
        flow.produce(5, partition=number)
    with flow.copier() as copier:
        first, second = (WireReplica(flow.address, 1, flow.topic_id, flow.member, count) for count in (1, 2))
        flow.replicas = [first]
        flow.run(copier, 5)
        assert [row.partition for row in copier.progress()] == [0]

        assert copier.assign(both)
        second.logs[0] = first.logs[0]
        flow.replicas = [second]
        flow.produce(3)
        flow.run(copier, 5, partition=1)
        row = flow.run(copier, 8)
        assert row.records == 8

        assert copier.assign(both[1:])
        flow.produce(2, partition=1)
        flow.run(copier, 7, partition=1)
        assert [row.partition for row in copier.progress()] == [1]
        assert copier.node.partition(flow.topic, 0) is None
    assert flow.members == 1


def test_broker_is_cordoned_once_it_is_alone_in_added_partitions(address: str) -> None:
    """A reassignment that names a cordoned broker is rejected."""
    flow = ReplicaFlow(address)
    image = flow.member.image
    topic = image.topics[flow.topic_id]
    beside_fenced = replace(topic.partitions[0], replicas=(KLAMM, 2**31 - 1))
    flow.member.image = replace(image, topics={flow.topic_id: replace(topic, partitions={0: beside_fenced})})
    with flow.copier():
        assert not flow.member.is_cordoned
        alone = replace(beside_fenced, replicas=(KLAMM,))
        flow.member.publish(replace(image, topics={flow.topic_id: replace(topic, partitions={0: alone})}))
        wait_until(lambda: flow.member.is_cordoned, timeout_s=30, what="the cordon")


def test_i12_fetch_without_lease_closes_the_connection(address: str) -> None:
    flow = ReplicaFlow(address)
    flow.produce(5)
    with flow.copier() as copier:
        flow.run(copier, 5)
        flow.member.leased = False

        with WireClient(flow.address) as client, pytest.raises(ConnectionError):
            client.ask(FetchRequest(replica_state=FetchRequest.ReplicaState(replica_id=1)), FetchResponse, 17)


def test_clients_may_not_write_and_are_sent_to_a_replica(address: str) -> None:
    flow = ReplicaFlow(address, (1, 2))
    flow.produce(5)
    with flow.copier() as copier:
        flow.run(copier, 5)
        with WireClient(flow.address) as client:
            written = ProduceRequest(
                acks=-1,
                topic_data=[
                    ProduceRequest.TopicProduceData(
                        name=flow.topic,
                        partition_data=[
                            ProduceRequest.PartitionProduceData(
                                index=0, records=encode_batch([Record(None, b"v", (), 1, 0)])
                            )
                        ],
                    )
                ],
            )
            produced = client.ask(written, ProduceResponse, 9).responses[0].partition_responses[0]
            wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=2, partition_max_bytes=1000)
            fetched = client.ask(
                FetchRequest(topics=[FetchRequest.FetchTopic(topic_id=flow.topic_id, partitions=[wanted])]),
                FetchResponse,
                17,
            )

    assert produced.error_code == ErrorCode.POLICY_VIOLATION
    (answer,) = fetched.responses[0].partitions
    assert (answer.error_code, answer.high_watermark, bytes(answer.records or b"")) == (0, 5, b"")
    assert answer.preferred_read_replica in {1, 2}


def test_other_requests_of_clients_get_the_answer_of_a_real_broker(address: str) -> None:
    flow = ReplicaFlow(address)
    flow.produce(5)
    with flow.copier() as copier:
        flow.run(copier, 5)
        with WireClient(flow.address) as client, WireClient(address.split(",", maxsplit=1)[0]) as real:
            assert client.topic_ids() == real.topic_ids()
            assert client.end_offset(flow.topic, 0) == 5
            served = _versions(client)
            offered = _versions(real)

    assert served.keys() == offered.keys()
    assert served[ApiKey.METADATA] == offered[ApiKey.METADATA]
    assert served[ApiKey.FETCH][1] <= offered[ApiKey.FETCH][1]


def _versions(client: WireClient) -> dict[int, tuple[int, int]]:
    answer = client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2)
    return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys if api.api_key in set(ApiKey)}


def test_records_are_served_on_the_listener_of_brokers_alone(address: str) -> None:
    flow = ReplicaFlow(address)
    flow.produce(5)
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    fetch = FetchRequest(
        replica_state=FetchRequest.ReplicaState(replica_id=1),
        topics=[FetchRequest.FetchTopic(topic_id=flow.topic_id, partitions=[wanted])],
    )
    with flow.copier() as copier:
        flow.run(copier, 5)
        flow.member.inter_broker_listener = "INTERNAL"  # the listener of this broker is for clients
        with WireClient(flow.address) as client:
            (fetched,) = client.ask(fetch, FetchResponse, 17).responses[0].partitions

    assert (fetched.error_code, fetched.records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")


def test_clients_read_from_replicas_while_the_source_is_unavailable(address: str) -> None:
    flow = ReplicaFlow(address, (1, 2))
    flow.produce(5, 5)
    with flow.copier() as copier:
        flow.run(copier, 10)
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=2, partition_max_bytes=1000)
    fetch = FetchRequest(topics=[FetchRequest.FetchTopic(topic_id=flow.topic_id, partitions=[wanted])])
    epoch = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    ends = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=flow.topic, partitions=[epoch])]
    )
    with flow.copier(source=f"127.0.0.1:{free_port()}") as copier, contextlib.ExitStack() as stack:
        for replica in flow.replicas:
            replica.logs[0].high_watermark = 0
            stack.enter_context(replica)
        run_until(copier, lambda: all(each.logs[0].high_watermark == 10 for each in flow.replicas), timeout_s=30)
        with WireClient(flow.address) as client:
            (fetched,) = client.ask(fetch, FetchResponse, 17).responses[0].partitions
            (end,) = client.ask(ends, OffsetForLeaderEpochResponse, 4).topics[0].partitions
            assert client.end_offset(flow.topic, 0) == 10

    assert (fetched.error_code, fetched.high_watermark, end.error_code, end.end_offset) == (0, 10, 0, 10)
    assert fetched.preferred_read_replica in {1, 2}
    assert [(each.logs[0].end, each.logs[0].removed) for each in flow.replicas] == [(10, [])] * 2
    assert {code for each in flow.replicas for code in each.errors} <= {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    with flow.copier() as copier:
        flow.produce(3)
        flow.run(copier, 13)
    flow.assert_equal()


def test_i1_another_source_cluster_stops_the_flow_before_a_replica_gets_anything(address: str) -> None:
    flow = ReplicaFlow(address)
    flow.produce(5)
    with flow.copier() as copier:
        flow.run(copier, 5)
    with contextlib.closing(flow.store()) as store:
        mirrored = store.read().cluster_id
        store.write_cluster_id("another")
    flow.produce(5)
    for replica in flow.replicas:
        replica.errors.clear()

    with flow.copier() as copier, flow.replicas[0] as replica:
        run_until(copier, lambda: copier.progress()[0].state is CopyState.STOPPED, timeout_s=30)
        run_until(copier, lambda: len(replica.errors) > 3, timeout_s=30)
        (row,) = copier.progress()

    assert f"{flow.topic} is cluster {mirrored}, but cluster another was mirrored before" in row.reason
    assert f"Correct {flow.topic}.bootstrap.servers" in row.reason
    assert (replica.logs[0].end, replica.logs[0].removed) == (5, [])
    assert set(replica.errors) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_taken_listener_lets_only_this_flow_wait(address: str) -> None:
    flow = ReplicaFlow(address)
    flow.produce(5)
    host, port = flow.address.split(":")
    copier = ReplicaCopier(*flow.settings(), flow.partitions, new_member=lambda: flow.member)
    try:
        with socket.create_server((host, int(port))):
            taken = "klamm.replica.listeners: PLAINTEXT: cannot listen on"
            run_until(copier, lambda: taken in copier.progress()[0].reason, timeout_s=30)
            (row,) = copier.progress()
        assert row.state is CopyState.WAITING
        run_until(copier, lambda: copier.node.member is not None, timeout_s=30)
        flow.run(copier, 5)
    finally:
        copier.close()
    flow.assert_equal()


def test_state_of_the_broker_is_stored_on_the_target(address: str) -> None:
    flow = ReplicaFlow(address)
    store = TopicStateStore(
        ConnectionSettings(bootstrap_servers=tuple(address.split(",")), client_id="state"),
        topic=f"mm2-offsets.{flow.topic}.internal",
        source_alias=flow.topic,
        node_id=KLAMM,
    )
    assert store.load() is None
    state = MembershipState(cluster_id="c", incarnation_id=uuid4(), previous_broker_epoch=7)

    store.save(state)
    assert store.load() == state
    store.save(None)
    assert store.load() is None
