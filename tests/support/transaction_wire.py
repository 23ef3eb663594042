"""Transactional producer on a plain socket: every version of every request, with the error codes of the responses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from klamm.protocol.records import Record, decode_records, encode_batch, iter_batches

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.wire import WireClient

NOT_YET = frozenset({5, 6, 14, 15, 16, 51})
"""Error codes of a broker that is creating its internal topics or ending the last transaction."""
FIRST_OFFSETS_WITH_TOPIC_IDS = 6
"""Version of TxnOffsetCommit."""
PATIENCE_S = 60.0
_GROUP, _TRANSACTION = 0, 1


class Who(NamedTuple):
    """Producer id and epoch."""

    producer_id: int
    epoch: int


NOBODY = Who(-1, -1)


class TransactionClient:
    """Client of a transactional id. Error codes are returned, not raised. Retriable ones are retried."""

    def __init__(self, client: WireClient, transactional_id: str) -> None:
        self.client = client
        self.transactional_id = transactional_id

    def find_coordinator(self) -> None:
        """Wait until there is a coordinator."""
        _find_coordinator(self.client, _TRANSACTION, self.transactional_id)

    def init(
        self, version: int, *, was: Who = NOBODY, timeout_ms: int = 60_000, is_patient: bool = True
    ) -> tuple[int, Who]:
        """Send InitProducerId, as a new producer or with the present producer id and epoch."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=was.producer_id,
            producer_epoch=was.epoch,
        )
        identity = NOBODY

        def ask() -> int:
            nonlocal identity
            answer = self.client.ask(request, InitProducerIdResponse, version)
            identity = Who(answer.producer_id, answer.producer_epoch)
            return answer.error_code

        return (patiently(ask) if is_patient else ask()), identity

    def add(self, identity: Who, version: int, topic: str, *partitions: int) -> list[int]:
        """Add partitions."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))
            ],
        )
        codes: list[int] = []

        def ask() -> int:
            answer = self.client.ask(request, AddPartitionsToTxnResponse, version)
            results = [r for t in answer.results_by_topic_v3_and_below for r in t.results_by_partition]
            codes[:] = [result.partition_error_code for result in results]
            return 51 if 51 in codes else 0

        patiently(ask)
        return codes

    def produce(
        self,
        identity: Who,
        version: int,
        topic: str,
        partition: int,
        value: str,
        *,
        sequence: int,
        ahead_ms: int = 0,
        is_patient: bool = True,
    ) -> int:
        """Append one record, whose timestamp may be ahead of the clock."""
        batch = encode_batch(
            [Record(None, value.encode(), (), time.time_ns() // 1_000_000 + ahead_ms, 0)],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        data = ProduceRequest.PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )

        def ask() -> int:
            ((result,),) = (
                topic.partition_responses for topic in self.client.ask(request, ProduceResponse, version).responses
            )
            return result.error_code

        return patiently(ask, NOT_YET | {19}) if is_patient else ask()

    def end(self, producer: Who, version: int, *, commit: bool, is_patient: bool = True) -> tuple[int, Who]:
        """Commit or abort."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )
        identity = NOBODY

        def ask() -> int:
            nonlocal identity
            answer = self.client.ask(request, EndTxnResponse, version)
            identity = Who(answer.producer_id, answer.producer_epoch)
            return answer.error_code

        return (patiently(ask) if is_patient else ask()), identity

    def add_offsets(self, identity: Who, version: int, group: str) -> int:
        """Add a group."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            group_id=group,
        )
        return patiently(lambda: self.client.ask(request, AddOffsetsToTxnResponse, version).error_code)

    def commit_offset(
        self,
        identity: Who,
        version: int,
        group: str,
        topic: str,
        offset: int,
        *,
        generation: int = -1,
        member: str = "",
        instance: str | None = None,
    ) -> int:
        """Commit the offset of partition 0 with the transaction."""
        partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )
        if version >= FIRST_OFFSETS_WITH_TOPIC_IDS:
            request.topics[0].topic_id = self.client.topic_ids()[topic]

        def ask() -> int:
            ((result,),) = (t.partitions for t in self.client.ask(request, TxnOffsetCommitResponse, version).topics)
            return result.error_code

        return patiently(ask)


def patiently(ask: Callable[[], int], again: frozenset[int] = NOT_YET) -> int:
    """Repeat a request until the response is not retriable."""
    deadline = time.monotonic() + PATIENCE_S
    while (code := ask()) in again and time.monotonic() < deadline:
        time.sleep(0.02)
    return code


def _find_coordinator(client: WireClient, key_type: int, key: str) -> None:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])

    def ask() -> int:
        (coordinator,) = client.ask(request, FindCoordinatorResponse, 4).coordinators
        return coordinator.error_code

    assert patiently(ask) == 0


def find_group_coordinator(client: WireClient, group: str) -> None:
    """Wait until a group has a coordinator. Kafka creates the offsets topic at the first request for one."""
    _find_coordinator(client, _GROUP, group)


def committed_offset(client: WireClient, group: str, topic: str, *, stable: bool = False) -> tuple[int, int]:
    """Return error code and offset of partition 0."""
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[wanted])], require_stable=stable
    )
    committed = (0, 0)

    def ask() -> int:
        nonlocal committed
        (answer,) = client.ask(request, OffsetFetchResponse, 8).groups
        if answer.error_code:
            return answer.error_code
        ((partition,),) = (found_topic.partitions for found_topic in answer.topics)
        committed = partition.error_code, partition.committed_offset
        return 0

    assert patiently(ask) == 0
    return committed


def latest(client: WireClient, topic: str, partition: int = 0, *, committed: bool) -> int:
    """Return the end offset of a partition, for readers of all or of committed records."""
    wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(committed),
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])],
    )
    offset = -1

    def ask() -> int:
        nonlocal offset
        ((result,),) = (topic.partitions for topic in client.ask(request, ListOffsetsResponse, 7).topics)
        offset = int(result.offset)
        return int(result.error_code)

    code = patiently(ask, NOT_YET | {3})
    assert code == 0, f"The end of {topic}-{partition}: error code {code}"
    return offset


def wait_for_markers(client: WireClient, topic: str, partition: int = 0) -> None:
    """Wait until a partition has no open transaction: Kafka answers EndTxn before it has written the markers."""

    def ask() -> int:
        ends = [latest(client, topic, partition, committed=committed) for committed in (True, False)]
        return 0 if ends[0] == ends[1] else 51

    assert patiently(ask) == 0, f"Readers of {topic}-{partition} wait for ever"


def read_committed(client: WireClient, topic: str, partition: int = 0, offset: int = 0) -> list[str]:
    """Return the values that a reader of committed records sees up to the last stable offset."""
    values: list[str] = []
    while True:
        wanted = FetchRequest.FetchPartition(
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=1 << 20,
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 24,
            isolation_level=1,
            session_id=0,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
            forgotten_topics_data=[],
        )
        answer = client.ask(request, FetchResponse, 12)
        ((result,),) = (topic.partitions for topic in answer.responses)
        assert (answer.error_code, result.error_code) == (0, 0)
        batches = list(iter_batches(result.records or b"", allow_partial_tail=True))
        if not batches:
            return values
        coming = sorted(result.aborted_transactions or [], key=lambda item: item.first_offset, reverse=True)
        aborted: set[int] = set()
        for batch in batches:
            while coming and coming[-1].first_offset <= batch.last_offset:
                aborted.add(coming.pop().producer_id)
            if batch.is_control:
                aborted.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in aborted):
                values += [(item.value or b"").decode() for item in decode_records(batch) if item.offset >= offset]
        offset = batches[-1].last_offset + 1
