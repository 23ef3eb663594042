"""Sessions of tasks that continue with the partitions of the next lease."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.spark import worker
from klamm.mirror.spark.leases import FlowShare, PartitionGroup
from tests.support.copiers import copy_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.mirror.copy.settings import CopySettings
    from klamm.mirror.spark.worker import LeaseSession

ONE, TWO = (PartitionId(name, 0, f"A.{name}") for name in ("one", "two"))


class FakeCopier:
    """Copier that can change its partitions, or not."""

    def __init__(self, settings: CopySettings, partitions: Sequence[PartitionId]) -> None:
        self.can_change = settings.flow == "R->B"
        self.partitions = list(partitions)
        self.closed = False

    def assign(self, partitions: Sequence[PartitionId]) -> bool:
        if self.can_change:
            self.partitions = list(partitions)
        return self.can_change

    def close(self) -> None:
        self.closed = True


def share(alias: str, *partitions: PartitionId) -> FlowShare:
    return FlowShare(settings=copy_settings("a:1", "b:1", alias=alias), partitions=partitions)


def resumed(before: Sequence[FlowShare], after: Sequence[FlowShare]) -> tuple[LeaseSession, LeaseSession]:
    """Return the sessions of two leases in a row of one group."""
    first = worker.resume(PartitionGroup(number=0, shares=tuple(before)))
    worker.kept_sessions.keep(0, first)
    return first, worker.resume(PartitionGroup(number=0, shares=tuple(after), session=first.token))


@pytest.fixture(autouse=True)
def copiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "new_copier", FakeCopier)
    monkeypatch.setattr(worker, "kept_sessions", worker.KeptSessions())


def test_session_goes_on_with_other_partitions_if_its_copier_can_change_them() -> None:
    first, second = resumed([share("R", ONE)], [share("R", ONE, TWO)])
    assert second is first
    (copier,) = first.copiers
    assert (copier.partitions, copier.closed) == ([ONE, TWO], False)  # type: ignore[attr-defined]  # a FakeCopier
    assert first.shares == (share("R", ONE, TWO),)


@pytest.mark.parametrize("after", [share("A", ONE, TWO), replace(share("A", ONE), times_taken=1)])
def test_copier_of_a_changed_share_is_closed(after: FlowShare) -> None:
    first = worker.resume(PartitionGroup(number=0, shares=(share("A", ONE),)))
    (before,) = first.copiers
    worker.kept_sessions.keep(0, first)
    (copier,) = worker.resume(PartitionGroup(number=0, shares=(after,), session=first.token)).copiers
    assert copier is not before
    assert (before.closed, copier.closed) == (True, False)  # type: ignore[attr-defined]  # FakeCopiers


def test_copier_goes_on_while_another_flow_of_its_group_stops_and_resumes() -> None:
    """Also a broker of the target: it would leave the target for some seconds."""
    both = [share("A", ONE), share("R", ONE)]
    session = worker.resume(PartitionGroup(number=0, shares=tuple(both)))
    stopped, copier = session.copiers
    for shares in (both[1:], both[::-1]):
        worker.kept_sessions.keep(0, session)
        assert worker.resume(PartitionGroup(number=0, shares=tuple(shares), session=session.token)) is session
        assert session.copiers[0] is copier
        assert session.shares == tuple(shares)
    assert session.copiers[1] is not stopped
    assert [each.closed for each in (stopped, *session.copiers)] == [True, False, False]  # type: ignore[attr-defined]


def test_session_that_the_driver_does_not_name_is_closed() -> None:
    first = worker.resume(PartitionGroup(number=0, shares=(share("R", ONE),)))
    worker.kept_sessions.keep(0, first)
    assert worker.resume(PartitionGroup(number=0, shares=(share("R", ONE),))) is not first
    assert [copier.closed for copier in first.copiers] == [True]  # type: ignore[attr-defined]  # a FakeCopier
