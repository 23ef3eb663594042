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


@pytest.mark.parametrize(
    "after",
    [
        [share("A", ONE, TWO)],
        [share("R", ONE), share("A", ONE)],
        [replace(share("A", ONE), times_taken=1)],
    ],
)
def test_session_ends_if_a_share_is_another_one(after: list[FlowShare]) -> None:
    first, second = resumed([share("A", ONE)], after)
    assert second is not first
    assert [copier.closed for copier in first.copiers] == [True]  # type: ignore[attr-defined]  # a FakeCopier
