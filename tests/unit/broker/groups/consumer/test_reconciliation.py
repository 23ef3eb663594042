from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

import pytest

from klamm.broker.groups.consumer.model import ConsumerMember, MemberState
from klamm.broker.groups.consumer.reconciliation import reconcile

T = UUID(int=1)
STABLE, UNREVOKED, UNRELEASED = MemberState
TARGET_EPOCH = 11
State: TypeAlias = tuple[MemberState, int, str, str]


def partitions(text: str) -> dict[UUID, frozenset[int]]:
    """Return ``"012"`` as partitions 0, 1 and 2 of one topic."""
    return {T: frozenset(map(int, text))} if text else {}


@pytest.mark.parametrize(
    ("before", "target", "owned", "others", "after"),
    [  # before and after: state, epoch, assigned, pending revocation
        pytest.param((STABLE, 11, "01", ""), "01", None, "", (STABLE, 11, "01", ""), id="nothing to do"),
        pytest.param((STABLE, 10, "01", ""), "01", None, "", (STABLE, 11, "01", ""), id="only a new epoch"),
        pytest.param(
            (STABLE, 10, "01", ""), "0123", None, "", (STABLE, 11, "0123", ""), id="free partitions are added"
        ),
        pytest.param(
            (STABLE, 10, "01", ""), "012", None, "2", (UNRELEASED, 11, "01", ""), id="an added one has an owner"
        ),
        pytest.param((STABLE, 10, "0", ""), "012", None, "2", (UNRELEASED, 11, "01", ""), id="one is free, one is not"),
        pytest.param((STABLE, 10, "0123", ""), "01", None, "", (UNREVOKED, 10, "01", "23"), id="revoke two"),
        pytest.param((STABLE, 10, "0123", ""), "01", "0123", "", (UNREVOKED, 10, "01", "23"), id="revoke, still owned"),
        pytest.param((STABLE, 10, "0123", ""), "01", "01", "", (STABLE, 11, "01", ""), id="already given up"),
        pytest.param((STABLE, 10, "01", ""), "23", None, "", (UNREVOKED, 10, "", "01"), id="revoke before adding"),
        pytest.param((STABLE, 10, "01", ""), "", None, "", (UNREVOKED, 10, "", "01"), id="revoke all"),
        pytest.param(
            (UNREVOKED, 10, "0", "1"), "0", None, "", (UNREVOKED, 10, "0", "1"), id="no word about owned ones"
        ),
        pytest.param((UNREVOKED, 10, "0", "1"), "0", "01", "", (UNREVOKED, 10, "0", "1"), id="not revoked yet"),
        pytest.param((UNREVOKED, 10, "0", "1"), "0", "0", "", (STABLE, 11, "0", ""), id="revoked"),
        pytest.param(
            (UNREVOKED, 10, "0", "1"), "02", "0", "2", (UNRELEASED, 11, "0", ""), id="revoked, waits for others"
        ),
        pytest.param(
            (UNREVOKED, 10, "0", "1"), "2", "0", "", (UNREVOKED, 10, "", "0"), id="a newer target revokes more"
        ),
        pytest.param(
            (UNREVOKED, 10, "0", "1"), "01", "0", "", (STABLE, 11, "01", ""), id="a newer target gives it back"
        ),
        pytest.param(
            (UNRELEASED, 11, "0", ""), "01", None, "1", (UNRELEASED, 11, "0", ""), id="the owner still has it"
        ),
        pytest.param((UNRELEASED, 11, "0", ""), "01", None, "", (STABLE, 11, "01", ""), id="the owner has released it"),
        pytest.param(
            (UNRELEASED, 10, "0", ""), "2", None, "", (UNREVOKED, 10, "", "0"), id="waiting, and a newer target"
        ),
    ],
)
def test_reconciliation_takes_the_next_possible_step(
    before: State, target: str, owned: str | None, others: str, after: State
) -> None:
    """K848-02."""
    state, epoch, assigned, pending = before
    member = ConsumerMember(
        member_id="m",
        state=state,
        member_epoch=epoch,
        assigned=partitions(assigned),
        pending_revocation=partitions(pending),
    )
    taken = set(map(int, assigned + pending + others))

    reconciled = reconcile(
        member,
        TARGET_EPOCH,
        partitions(target),
        lambda _, partition: partition in taken,
        None if owned is None else partitions(owned),
    )

    state, epoch, assigned, pending = after
    assert (reconciled.state, reconciled.member_epoch) == (state, epoch)
    assert (reconciled.assigned, reconciled.pending_revocation) == (partitions(assigned), partitions(pending))
    assert reconciled is member or reconciled.previous_epoch == member.member_epoch
