"""Placement of replicas for another replication factor."""

from __future__ import annotations

import pytest

from klamm.resources.replicas import NoPlacementError, new_replicas

RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}


def test_new_replicas_go_to_other_racks_and_the_least_loaded_brokers() -> None:
    loads = {1: 5, 2: 0, 3: 4, 4: 1}
    assert new_replicas((1,), 3, RACKS, loads) == (1, 4, 2)
    assert loads == {1: 5, 2: 1, 3: 4, 4: 2}


def test_leader_is_kept_when_replicas_are_removed_from_the_fullest_rack() -> None:
    assert new_replicas((1, 2, 3), 2, RACKS, dict.fromkeys(RACKS, 1)) == (1, 3)
    assert new_replicas((1, 2, 3), 1, RACKS, dict.fromkeys(RACKS, 1)) == (1,)


@pytest.mark.parametrize(
    ("replicas", "factor", "kept"),
    [
        ((1, 2, 3), 2, (1, 2)),
        ((3, 1, 2), 1, (1,)),
        ((3, 1, 4), 1, (1,)),
        ((3, 4), 1, (3,)),
    ],
)
def test_replicas_on_dead_brokers_are_removed_first(
    replicas: tuple[int, ...], factor: int, kept: tuple[int, ...]
) -> None:
    assert new_replicas(replicas, factor, {1: None, 2: None}, {1: 10, 2: 12, 3: 5}) == kept


def test_more_replicas_than_brokers_are_rejected() -> None:
    with pytest.raises(NoPlacementError, match="expected at most 4, the number of brokers"):
        new_replicas((1,), 5, RACKS, dict.fromkeys(RACKS, 0))
