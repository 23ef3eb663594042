"""The state machine of transactions, rule by rule and in random order."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from klamm.broker.transactions import rules
from klamm.broker.transactions.model import (
    MAX_EPOCH,
    ConcurrentTransactionsError,
    InvalidTransactionTimeoutError,
    ProducerFencedError,
    Transaction,
    TransactionAbortableError,
    TransactionPartition,
    TransactionState,
    from_payload,
    to_payload,
)
from klamm.protocol.errors import (
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTxnStateError,
    KafkaApiError,
)
from klamm.protocol.types import ProducerIdentity

NOON_MS = 1_600_000_000_000
PARTITION = TransactionPartition(UUID(int=1), 0)
OTHER = TransactionPartition(UUID(int=1), 1)
NEW = Transaction(transactional_id="x", producer_id=7, timeout_ms=1000, updated_ms=NOON_MS)


def initialized(current: Transaction = NEW, expected: ProducerIdentity | None = None) -> Transaction:
    return rules.initialize(current, expected=expected, timeout_ms=1000, now_ms=NOON_MS)


def ongoing(current: Transaction | None = None) -> Transaction:
    begun = current if current is not None else initialized()
    return rules.add(begun, begun.identity, partitions={PARTITION}, now_ms=NOON_MS)


def ended(current: Transaction, *, commit: bool = True, v2: bool = True, next_producer_id: int = -1) -> Transaction:
    decision = rules.end(
        current,
        current.identity,
        is_commit=commit,
        bumps_epoch=v2,
        next_producer_id=next_producer_id,
        now_ms=NOON_MS,
    )
    return rules.complete(decision.transaction, now_ms=NOON_MS)


def end_again(current: Transaction, identity: ProducerIdentity, *, commit: bool, v2: bool = True) -> rules.EndDecision:
    return rules.end(current, identity, is_commit=commit, bumps_epoch=v2, now_ms=NOON_MS)


def test_each_initialization_bumps_the_epoch() -> None:
    first = initialized()
    second = initialized(first)

    assert (first.identity, second.identity) == ((7, 0), (7, 1))


def test_init_producer_id_with_own_id_bumps_epoch_and_is_retriable() -> None:
    first = initialized()
    second = initialized(first, first.identity)

    assert second.identity == (7, 1)
    assert initialized(second, first.identity).identity == (7, 1), "the answer was lost"


def test_fenced_producer_cannot_reinitialize() -> None:
    first = initialized()
    second = initialized(first)

    with pytest.raises(ProducerFencedError):
        initialized(second, first.identity)
    with pytest.raises(ProducerFencedError):
        initialized(second, ProducerIdentity(6, 0))


def test_exhausted_epochs_get_a_new_producer_id() -> None:
    last = replace(initialized(), producer_epoch=MAX_EPOCH)
    assert rules.needs_new_producer_id(last, None)
    assert rules.needs_new_producer_id(last, last.identity)
    assert not rules.needs_new_producer_id(replace(last, producer_epoch=MAX_EPOCH - 1), None)

    rotated = rules.rotate(last, 8, expected=last.identity, timeout_ms=1000, now_ms=NOON_MS)

    assert rotated.identity == (8, 0)
    assert initialized(rotated, last.identity).identity == (8, 0), "the answer was lost"
    with pytest.raises(ProducerFencedError):
        initialized(rotated, ProducerIdentity(7, 3))


def test_producer_fenced_with_its_last_epoch_resumes_with_a_new_producer_id() -> None:
    begun = ongoing(replace(initialized(), producer_epoch=MAX_EPOCH))
    fenced = rules.complete(rules.fence(begun, now_ms=NOON_MS), now_ms=NOON_MS)
    assert rules.needs_new_producer_id(fenced, begun.identity)
    assert not rules.needs_new_producer_id(fenced, ProducerIdentity(7, MAX_EPOCH - 1))

    rotated = rules.rotate(fenced, 8, expected=begun.identity, timeout_ms=1000, now_ms=NOON_MS)

    assert rotated.identity == (8, 0)
    assert initialized(rotated, begun.identity).identity == (8, 0), "the answer was lost"
    assert ongoing(rotated).state is TransactionState.ONGOING


@pytest.mark.parametrize("timeout_ms", [0, -1, 1001])
def test_invalid_transaction_timeout_is_rejected(timeout_ms: int) -> None:
    with pytest.raises(InvalidTransactionTimeoutError, match=r"between 1 and transaction\.max\.timeout\.ms=1000"):
        rules.check_timeout(timeout_ms, 1000)


def test_transaction_starts_with_its_first_partition_and_grows() -> None:
    begun = ongoing()
    grown = rules.add(begun, begun.identity, partitions={OTHER}, groups={"g"}, now_ms=NOON_MS + 5)

    assert (begun.state, begun.started_ms) == (TransactionState.ONGOING, NOON_MS)
    assert (grown.partitions, grown.groups, grown.started_ms) == (
        frozenset({PARTITION, OTHER}),
        frozenset({"g"}),
        NOON_MS,
    )
    assert rules.add(grown, grown.identity, partitions={OTHER}, now_ms=NOON_MS) is grown


def test_groups_per_transaction_are_limited() -> None:
    full = rules.add(ongoing(), ProducerIdentity(7, 0), groups={f"g{number}" for number in range(1000)}, now_ms=1)

    with pytest.raises(InvalidRequestError, match="at most 1000 groups"):
        rules.add(full, full.identity, groups={"one more"}, now_ms=1)


def test_only_the_current_producer_may_add_and_write() -> None:
    begun = ongoing()

    for identity, error in (
        (ProducerIdentity(6, 0), InvalidProducerIdMappingError),
        (ProducerIdentity(7, 1), ProducerFencedError),
    ):
        with pytest.raises(error):
            rules.add(begun, identity, partitions={OTHER}, now_ms=NOON_MS)
        with pytest.raises(error):
            rules.verify(begun, identity, PARTITION)
    rules.verify(begun, begun.identity, PARTITION)
    for unknown in (OTHER, "g"):
        with pytest.raises(TransactionAbortableError):
            rules.verify(begun, begun.identity, unknown)


def test_end_txn_before_v5_keeps_epoch_and_is_repeatable() -> None:
    begun = ongoing()
    done = ended(begun, v2=False)

    assert (done.state, done.identity, done.partitions) == (TransactionState.COMPLETE_COMMIT, (7, 0), frozenset())
    assert end_again(done, done.identity, commit=True, v2=False).is_repeated
    with pytest.raises(InvalidTxnStateError):
        end_again(done, done.identity, commit=False, v2=False)


def test_end_txn_v5_bumps_epoch_and_recognizes_retries() -> None:
    begun = ongoing()
    done = ended(begun)

    assert done.identity == (7, 1)
    assert end_again(done, begun.identity, commit=True).is_repeated
    with pytest.raises(InvalidTxnStateError):
        end_again(done, begun.identity, commit=False)
    with pytest.raises(InvalidTxnStateError):
        end_again(done, done.identity, commit=True)


def test_requests_during_prepare_are_concurrent_transactions() -> None:
    begun = ongoing()
    prepared = end_again(begun, begun.identity, commit=True).transaction

    with pytest.raises(ConcurrentTransactionsError):
        end_again(prepared, begun.identity, commit=True)
    with pytest.raises(ConcurrentTransactionsError):
        initialized(prepared)
    with pytest.raises(ConcurrentTransactionsError):
        rules.add(prepared, prepared.identity, partitions={OTHER}, now_ms=NOON_MS)
    with pytest.raises(InvalidTxnStateError):
        end_again(prepared, begun.identity, commit=False)


@pytest.mark.parametrize("begun", [initialized(), ended(ongoing())], ids=["first", "later"])
def test_end_txn_v5_aborts_transaction_without_partitions(begun: Transaction) -> None:
    done = ended(begun, commit=False)

    assert (done.state, done.producer_epoch) == (TransactionState.COMPLETE_ABORT, begun.producer_epoch + 1)
    with pytest.raises(InvalidTxnStateError):
        end_again(begun, begun.identity, commit=True)


def test_end_txn_of_old_client_before_first_partition_is_rejected() -> None:
    empty = initialized()

    for commit in (True, False):
        with pytest.raises(InvalidTxnStateError):
            end_again(empty, empty.identity, commit=commit, v2=False)


def test_exhausted_epoch_ends_with_a_new_producer_id() -> None:
    exhausted = ongoing(replace(initialized(), producer_epoch=MAX_EPOCH))
    assert rules.needs_next_producer_id(exhausted, bumps_epoch=True)
    assert not rules.needs_next_producer_id(exhausted, bumps_epoch=False)

    prepared = rules.end(
        exhausted, exhausted.identity, is_commit=True, bumps_epoch=True, next_producer_id=8, now_ms=NOON_MS
    ).transaction
    done = rules.complete(prepared, now_ms=NOON_MS)

    assert prepared.identity == (7, MAX_EPOCH + 1), "markers belong to the producer that wrote"
    assert done.identity == (8, 0)
    assert end_again(done, exhausted.identity, commit=True).is_repeated


@pytest.mark.parametrize("commit", [True, False])
def test_end_txn_v5_of_fenced_producer_is_rejected_after_its_successor_ends_without_epoch_bump(*, commit: bool) -> None:
    # given
    fenced = initialized()
    succeeded = ended(ongoing(initialized(fenced)), commit=commit, v2=False)

    # when / then
    with pytest.raises(ProducerFencedError):
        end_again(succeeded, fenced.identity, commit=commit)


def test_end_txn_v5_with_replaced_producer_id_is_rejected_after_its_successor_ends_without_epoch_bump() -> None:
    # given
    exhausted = replace(initialized(), producer_epoch=MAX_EPOCH)
    successor = rules.rotate(exhausted, 8, expected=None, timeout_ms=1000, now_ms=NOON_MS)
    succeeded = ended(ongoing(successor), commit=False, v2=False)

    # when / then
    with pytest.raises(InvalidProducerIdMappingError):
        end_again(succeeded, exhausted.identity, commit=False)


def test_fencing_aborts_open_transaction() -> None:
    begun = ongoing()
    fenced = rules.fence(begun, now_ms=NOON_MS)

    assert (fenced.state, fenced.identity) == (TransactionState.PREPARE_ABORT, (7, 1))
    following = initialized(rules.complete(fenced, now_ms=NOON_MS))
    assert following.identity == (7, 2)
    with pytest.raises(ProducerFencedError):
        end_again(following, begun.identity, commit=True)


def test_broker_downtime_does_not_count_toward_the_timeout() -> None:
    begun = ongoing()

    assert not rules.is_timed_out(begun, NOON_MS + 1000)
    assert rules.is_timed_out(begun, NOON_MS + 1001)
    assert not rules.is_timed_out(begun, NOON_MS + 1001, counted_from_ms=NOON_MS + 500)
    assert not rules.is_timed_out(ended(begun), NOON_MS + 10_000)


def test_only_idle_transactional_ids_expire() -> None:
    idle = initialized()

    assert rules.is_expired(idle, NOON_MS + 100, 100)
    assert not rules.is_expired(idle, NOON_MS + 99, 100)
    assert not rules.is_expired(ongoing(idle), NOON_MS + 1000, 100)


class _World:
    """A transactional id and all identities that were returned for it."""

    def __init__(self, epoch: int) -> None:
        self.known = replace(NEW, producer_epoch=epoch)
        self.told = [self.known.identity]
        self._last_producer_id = self.known.producer_id

    def _fresh(self) -> int:
        self._last_producer_id += 1
        return self._last_producer_id

    def begin(self, expected: ProducerIdentity | None) -> None:
        current = self.known
        rules.check_expected(current, expected)
        if current.state is TransactionState.ONGOING:
            self.known = rules.fence(current, now_ms=NOON_MS)
            return
        if rules.needs_new_producer_id(current, expected):
            self.known = rules.rotate(current, self._fresh(), expected=expected, timeout_ms=1000, now_ms=NOON_MS)
        else:
            self.known = initialized(current, expected)
        self.told.append(self.known.identity)

    def end(self, identity: ProducerIdentity, *, commit: bool, v2: bool) -> None:
        following = self._fresh() if rules.needs_next_producer_id(self.known, bumps_epoch=v2) else -1
        decision = rules.end(
            self.known, identity, is_commit=commit, bumps_epoch=v2, next_producer_id=following, now_ms=NOON_MS
        )
        self.known = decision.transaction

    def complete(self) -> None:
        if self.known.state.is_ending:
            self.known = rules.complete(self.known, now_ms=NOON_MS)
            self.told.append(self.known.identity)

    def time_out(self) -> None:
        if self.known.state is TransactionState.ONGOING:
            self.known = rules.fence(self.known, now_ms=NOON_MS)

    def step(self, action: str, identity: ProducerIdentity, *, v2: bool) -> None:
        match action:
            case "init" | "go on":
                self.begin(identity if action == "go on" else None)
            case "add":
                self.known = rules.add(self.known, identity, partitions={PARTITION}, now_ms=NOON_MS)
            case "commit" | "abort":
                self.end(identity, commit=action == "commit", v2=v2)
            case "complete":
                self.complete()
            case _:
                self.time_out()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["init", "go on", "add", "commit", "abort", "complete", "time out"]),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=40,
)


@example(  # the epoch behind the last one, which only markers have, opens a transaction that is to be fenced
    steps=[
        *[("init", 0, False)] * 3, ("add", 0, False), ("init", 0, False), ("complete", 0, False), ("add", 0, False),
        ("init", 0, False),
    ],
    epoch=MAX_EPOCH - 3,
)  # fmt: skip
@given(steps=STEPS, epoch=st.sampled_from([-1, 5, MAX_EPOCH - 3]))
def test_epochs_increase_and_decisions_are_final_for_any_requests(
    steps: list[tuple[str, int, bool]], epoch: int
) -> None:
    """Random requests of random identities: identities only increase, and a decided end is final."""
    world = _World(epoch)
    for action, back, v2 in steps:
        before, identity = world.known, world.told[max(len(world.told) - 1 - back, 0)]
        try:
            world.step(action, identity, v2=v2)
        except KafkaApiError:
            assert world.known is before
        current = world.known
        assert current.identity >= before.identity, "an id was given to somebody else again"
        assert current.producer_epoch <= MAX_EPOCH + 1
        assert not before.state.is_ending or current is before or action == "complete"
        if current.state is TransactionState.ONGOING:
            assert current.partitions
            assert current.identity == world.told[-1], "only who was told last has a transaction"
        assert from_payload("x", to_payload(current)) == current
