"""Error codes of a transactional producer, request by request, as in Apache Kafka 4.4 (``--against-kafka``).

Once by the old versions, which librdkafka and the Python clients speak, once by those of ``transaction.version`` 2.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tests.support.transaction_wire import (
    NOBODY,
    TransactionClient,
    Who,
    committed_offset,
    find_group_coordinator,
    latest,
    patiently,
    read_committed,
    wait_for_markers,
)
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.probe import Cluster

INVALID_REQUEST, UNKNOWN_TOPIC, ILLEGAL_STATE, UNKNOWN_MEMBER = 42, 3, 48, 25
STALE_EPOCH, NO_MAPPING, BAD_TIMEOUT, CONCURRENT, FENCED = 47, 49, 50, 51, 90
OUT_OF_ORDER = 45
TOO_FAR: Final = 7_200_000
"""Milliseconds from now to a timestamp that no topic accepts by default."""
NOT_ATTEMPTED, UNSTABLE, NOT_FOUND, ABORTABLE, INVALID_PATTERN = 55, 88, 105, 120, 128


@dataclass(frozen=True)
class Dialect:
    """The versions that belong together."""

    knows_v2: bool

    @property
    def produce(self) -> int:
        return 12 if self.knows_v2 else 9

    @property
    def end(self) -> int:
        return 5 if self.knows_v2 else 4

    @property
    def offsets(self) -> int:
        return 5 if self.knows_v2 else 3


OLD: Final = Dialect(knows_v2=False)
V2: Final = Dialect(knows_v2=True)


class TransactionalTopic:
    """A topic with two partitions and a transactional id of its own."""

    def __init__(self, client: WireClient, dialect: Dialect) -> None:
        self.client = client
        self.dialect = dialect
        self.topic = f"codes-{uuid.uuid4().hex[:8]}"
        client.create_topic(self.topic, partitions=2)
        for partition in range(2):
            latest(client, self.topic, partition, committed=False)
        self.ours = TransactionClient(client, f"id-of-{self.topic}")
        self.ours.find_coordinator()
        code, self.first = self.ours.init(4)
        assert (code, self.first.epoch) == (0, 0)

    def epoch(self, number: int) -> Who:
        """The producer at an epoch."""
        return self.first._replace(epoch=number)

    def begin(self, identity: Who, partition: int = 0, *, sequence: int = 0) -> None:
        """Write the first record of a transaction."""
        if not self.dialect.knows_v2:
            assert self.ours.add(identity, 3, self.topic, partition) == [0]
        assert self.write(identity, partition, sequence=sequence) == 0

    def write(self, identity: Who, partition: int = 0, *, sequence: int = 0) -> int:
        """Write a record; returns the code."""
        return self.ours.produce(identity, self.dialect.produce, self.topic, partition, "x", sequence=sequence)

    def end(self, identity: Who, *, commit: bool) -> tuple[int, Who]:
        """End the transaction."""
        return self.ours.end(identity, self.dialect.end, commit=commit)


@pytest.fixture(params=[OLD, V2], ids=["old", "v2"])
def transactional(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[TransactionalTopic]:
    with WireClient(cluster.bootstrap_servers, timeout_s=60) as client:
        yield TransactionalTopic(client, request.param)


def test_produce_to_unadded_partition_is_rejected_per_version(transactional: TransactionalTopic) -> None:
    codes = [
        transactional.ours.produce(
            transactional.first, version, transactional.topic, 0, "x", sequence=0, is_patient=False
        )
        for version in (9, 11)
    ]

    assert codes == [ILLEGAL_STATE, ABORTABLE]


def test_empty_transaction_can_be_aborted_by_v2_clients_only(transactional: TransactionalTopic) -> None:
    assert transactional.end(transactional.first, commit=True) == (ILLEGAL_STATE, NOBODY)

    expected = (0, transactional.epoch(1)) if transactional.dialect.knows_v2 else (ILLEGAL_STATE, NOBODY)
    assert transactional.end(transactional.first, commit=False) == expected


def test_end_txn_is_repeatable_but_not_reversible(transactional: TransactionalTopic) -> None:
    transactional.begin(transactional.first)
    following = transactional.epoch(1) if transactional.dialect.knows_v2 else NOBODY

    assert latest(transactional.client, transactional.topic, committed=True) == 0
    assert transactional.end(transactional.first, commit=True) == (0, following)
    assert transactional.end(transactional.first, commit=True) == (0, following)
    assert transactional.end(transactional.first, commit=False) == (ILLEGAL_STATE, NOBODY)
    wait_for_markers(transactional.client, transactional.topic)
    assert read_committed(transactional.client, transactional.topic) == ["x"]


def test_partitions_are_added_all_or_none(transactional: TransactionalTopic) -> None:
    codes = transactional.ours.add(transactional.first, 3, transactional.topic, 0, 7)

    assert sorted(codes) == [UNKNOWN_TOPIC, NOT_ATTEMPTED]


def test_other_producers_cannot_write_into_the_transaction(transactional: TransactionalTopic) -> None:
    transactional.begin(transactional.first)
    stranger = transactional.first._replace(producer_id=transactional.first.producer_id + 100_000)

    assert transactional.write(stranger, 1) == NO_MAPPING
    assert transactional.write(transactional.epoch(1), 1) == STALE_EPOCH


def test_unknown_v2_producer_must_start_at_sequence_zero(transactional: TransactionalTopic) -> None:
    """KIP-890: a first batch that overtook an earlier one, or belongs to an old transaction, opens none."""
    if not transactional.dialect.knows_v2:
        assert transactional.ours.add(transactional.first, 3, transactional.topic, 0) == [0]

    assert transactional.write(transactional.first, sequence=5) == (
        OUT_OF_ORDER if transactional.dialect.knows_v2 else 0
    )

    if transactional.dialect.knows_v2:
        assert [transactional.write(transactional.first, sequence=sequence) for sequence in (0, 1)] == [0, 0]
    assert transactional.end(transactional.first, commit=True)[0] == 0
    wait_for_markers(transactional.client, transactional.topic)
    assert read_committed(transactional.client, transactional.topic) == ["x"] * (
        2 if transactional.dialect.knows_v2 else 1
    )


def test_every_request_of_a_fenced_producer_is_rejected(transactional: TransactionalTopic) -> None:
    transactional.begin(transactional.first)
    assert transactional.end(transactional.first, commit=True)[0] == 0
    zombie = transactional.epoch(1) if transactional.dialect.knows_v2 else transactional.first
    code, following = transactional.ours.init(4)
    assert (code, following.epoch) == (0, zombie.epoch + 1)

    assert transactional.write(zombie, sequence=1) == STALE_EPOCH
    assert [transactional.end(zombie, commit=commit)[0] for commit in (True, False)] == [FENCED, FENCED]
    assert transactional.ours.add(zombie, 3, transactional.topic, 0) == [FENCED]
    assert transactional.ours.add(zombie, 1, transactional.topic, 0) == [STALE_EPOCH]
    assert transactional.ours.init(4, was=zombie)[0] == FENCED
    assert transactional.ours.init(3, was=zombie)[0] == STALE_EPOCH


def test_fenced_producer_learns_that_before_anything_else(transactional: TransactionalTopic) -> None:
    zombie, ours, topic = transactional.first, transactional.ours, transactional.topic
    group = f"group-of-{topic}"
    find_group_coordinator(transactional.client, group)
    assert ours.init(4)[0] == 0
    transactional.begin(transactional.epoch(1), 1)  # the log of this partition knows the newer epoch

    for partition in range(2):
        code = ours.produce(zombie, transactional.dialect.produce, topic, partition, "x", sequence=0, ahead_ms=TOO_FAR)
        assert code == STALE_EPOCH
    assert ours.commit_offset(zombie, transactional.dialect.offsets, group, topic, 5, member="m", generation=3) == (
        STALE_EPOCH
    )


def test_open_transaction_is_aborted_for_the_next_producer(transactional: TransactionalTopic) -> None:
    transactional.begin(transactional.first)

    assert transactional.ours.init(4, is_patient=False)[0] == CONCURRENT
    wait_for_markers(transactional.client, transactional.topic)
    if transactional.dialect.knows_v2:
        assert transactional.end(transactional.first, commit=True) == (ILLEGAL_STATE, NOBODY)
        assert transactional.end(transactional.first, commit=False) == (0, transactional.epoch(1))
    else:
        assert [transactional.end(transactional.first, commit=commit)[0] for commit in (True, False)] == [
            FENCED,
            FENCED,
        ]
    assert transactional.ours.init(4, was=transactional.first) == (0, transactional.epoch(1)), (
        "nobody has taken its place"
    )
    assert transactional.ours.init(4) == (0, transactional.epoch(2))
    assert transactional.ours.init(4, was=transactional.epoch(2)) == (0, transactional.epoch(3))
    assert transactional.ours.init(4, was=transactional.epoch(2)) == (0, transactional.epoch(3)), "the answer was lost"
    assert read_committed(transactional.client, transactional.topic) == []


def test_transactional_offsets_become_visible_on_commit(transactional: TransactionalTopic) -> None:
    ours, identity, version = transactional.ours, transactional.first, transactional.dialect.offsets
    group = f"group-of-{transactional.topic}"
    find_group_coordinator(transactional.client, group)
    assert [ours.commit_offset(identity, old, group, transactional.topic, 5) for old in (3, 4)] == [
        ILLEGAL_STATE,
        ABORTABLE,
    ]
    if not transactional.dialect.knows_v2:
        assert ours.add_offsets(identity, 3, group) == 0

    assert ours.commit_offset(identity, version, group, transactional.topic, 5) == 0
    assert ours.commit_offset(identity, version, group, transactional.topic, 6, generation=3) == UNKNOWN_MEMBER
    assert (
        ours.commit_offset(identity, version, group, transactional.topic, 6, generation=3, member="m") == UNKNOWN_MEMBER
    )
    assert ours.commit_offset(transactional.epoch(1), version, group, transactional.topic, 6) == STALE_EPOCH
    assert committed_offset(transactional.client, group, transactional.topic) == (0, -1)
    assert committed_offset(transactional.client, group, transactional.topic, stable=True) == (UNSTABLE, -1)
    assert transactional.end(identity, commit=True)[0] == 0
    patiently(
        lambda: CONCURRENT if committed_offset(transactional.client, group, transactional.topic, stable=True)[0] else 0
    )
    assert committed_offset(transactional.client, group, transactional.topic, stable=True) == (0, 5)


def test_invalid_transactional_requests_are_rejected(transactional: TransactionalTopic) -> None:
    nobody = TransactionClient(transactional.client, "")
    unknown = TransactionClient(transactional.client, f"never-seen-{transactional.topic}")
    unknown.find_coordinator()
    identity = Who(transactional.first.producer_id + 100_000, 0)

    assert [transactional.ours.init(4, timeout_ms=timeout)[0] for timeout in (0, -1, 900_001)] == [BAD_TIMEOUT] * 3
    assert nobody.init(4)[0] == INVALID_REQUEST
    assert nobody.end(identity, 4, commit=True)[0] == INVALID_REQUEST
    assert nobody.add(identity, 3, transactional.topic, 0) == [INVALID_REQUEST]
    assert unknown.end(identity, 4, commit=True)[0] == NO_MAPPING
    assert unknown.add(identity, 3, transactional.topic, 0) == [NO_MAPPING]
    assert unknown.add_offsets(identity, 3, "group") == NO_MAPPING
    assert (
        unknown.produce(identity, transactional.dialect.produce, transactional.topic, 0, "x", sequence=0) == NO_MAPPING
    )


def test_brokers_verify_and_add_partitions_in_batches(transactional: TransactionalTopic) -> None:
    def ask(*partitions: int, verify_only: bool) -> tuple[int, list[int]]:
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=transactional.ours.transactional_id,
            producer_id=transactional.first.producer_id,
            producer_epoch=transactional.first.epoch,
            verify_only=verify_only,
            topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=transactional.topic, partitions=list(partitions))
            ],
        )
        request = AddPartitionsToTxnRequest(transactions=[transaction])
        answer = transactional.client.ask(request, AddPartitionsToTxnResponse, 5)
        codes = {
            partition.partition_index: partition.partition_error_code
            for result in answer.results_by_transaction
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
        return answer.error_code, [codes[index] for index in partitions]

    assert ask(0, verify_only=True) == (0, [ABORTABLE])
    assert ask(0, verify_only=False) == (0, [0])
    assert ask(0, 1, verify_only=True) == (0, [0, ABORTABLE])


def test_transactions_are_listed_by_state_producer_duration_and_name(transactional: TransactionalTopic) -> None:
    transactional.begin(transactional.first)
    name = transactional.ours.transactional_id

    def names(**filters: Any) -> list[str]:
        request = ListTransactionsRequest(**({"duration_filter": -1, "transactional_id_pattern": None} | filters))
        answer = transactional.client.ask(request, ListTransactionsResponse, 2)
        assert answer.error_code == 0
        return [item.transactional_id for item in answer.transaction_states if item.transactional_id == name]

    passing: list[dict[str, Any]] = [
        {},
        {"state_filters": ["Ongoing", "Empty"]},
        {"producer_id_filters": [transactional.first.producer_id]},
        {"transactional_id_pattern": "id-of-.*"},
        {"duration_filter": 0},
    ]
    others: list[dict[str, Any]] = [
        {"state_filters": ["CompleteCommit"]},
        {"producer_id_filters": [transactional.first.producer_id + 1]},
        {"transactional_id_pattern": "of-"},
        {"duration_filter": 3_600_000},
    ]
    assert [names(**filters) for filters in passing] == [[name]] * len(passing)
    assert [names(**filters) for filters in others] == [[]] * len(others)
    unknown = transactional.client.ask(
        ListTransactionsRequest(state_filters=["Nonsense"], duration_filter=-1), ListTransactionsResponse, 1
    )
    assert unknown.unknown_state_filters == ["Nonsense"]
    assert transactional.end(transactional.first, commit=True)[0] == 0


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("(.+)+!", 0),  # takes who tries one way after the other longer than anybody waits
        ("a(", INVALID_PATTERN),
        ("(?=a)a", INVALID_PATTERN),
    ],
)
def test_transactional_id_pattern_uses_re2_syntax(transactional: TransactionalTopic, pattern: str, code: int) -> None:
    request = ListTransactionsRequest(duration_filter=-1, transactional_id_pattern=pattern)
    answer = transactional.client.ask(request, ListTransactionsResponse, 2)
    assert (answer.error_code, list(answer.transaction_states)) == (code, [])


def test_described_transaction_lists_its_partitions_and_group_offsets(transactional: TransactionalTopic) -> None:
    group = f"group-of-{transactional.topic}"
    find_group_coordinator(transactional.client, group)
    transactional.begin(transactional.first)
    assert transactional.ours.add_offsets(transactional.first, 3, group) == 0

    request = DescribeTransactionsRequest(transactional_ids=[transactional.ours.transactional_id, "never-seen", ""])
    ongoing_state, unknown, empty = transactional.client.ask(
        request, DescribeTransactionsResponse, 0
    ).transaction_states

    assert (ongoing_state.error_code, ongoing_state.transaction_state, ongoing_state.transaction_timeout_ms) == (
        0,
        "Ongoing",
        60_000,
    )
    assert (ongoing_state.producer_id, ongoing_state.producer_epoch) == transactional.first
    topics = {topic.topic: topic.partitions for topic in ongoing_state.topics}
    assert topics[transactional.topic] == [0]
    assert len(topics["__consumer_offsets"]) == 1
    assert (unknown.error_code, empty.error_code) == (NOT_FOUND, INVALID_REQUEST)
    assert transactional.end(transactional.first, commit=False)[0] == 0
