from __future__ import annotations

import pytest

from klamm.broker.cluster import AdvertisedBroker, ClusterInfo, coordinator_for, java_hash, partition_for
from klamm.broker.groups.errors import NotCoordinatorError
from klamm.broker.requests.checks import require_coordinator


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -2147483648),
        ("console-consumer-12345", 158455506),
        ("é", 233),
        ("\N{GRINNING FACE}", 1772899),
    ],
)
def test_java_hash_matches_java(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_minimum_java_hash_maps_to_partition_zero() -> None:
    assert partition_for("polygenelubricants") == 0


def test_groups_are_spread_over_the_brokers() -> None:
    coordinators = [coordinator_for(f"group-{number}", (1, 2, 3)) for number in range(300)]

    assert set(coordinators) == {1, 2, 3}
    assert coordinators == [coordinator_for(f"group-{number}", (1, 2, 3)) for number in range(300)]


def test_only_the_coordinator_answers_for_a_group() -> None:
    right = coordinator_for("group", (1, 2))

    require_coordinator("group", right, cluster(1, 2))
    with pytest.raises(NotCoordinatorError):
        require_coordinator("group", 3 - right, cluster(1, 2))


def test_single_broker_coordinates_every_group() -> None:
    require_coordinator("group", 1, cluster(1))


def cluster(*node_ids: int) -> ClusterInfo:
    nodes = tuple(AdvertisedBroker(node_id=node_id, host="h", port=node_id) for node_id in node_ids)
    return ClusterInfo(cluster_id="c", nodes=nodes)


def test_coordinator_and_leader_move_away_from_stopped_broker() -> None:
    three = cluster(1, 2, 3)
    coordinator = three.coordinator("group")
    three.down = frozenset({coordinator})

    assert three.coordinator("group") not in {coordinator, -1}
    assert three.leader((coordinator, 4)) == 4
    assert three.leader((coordinator,)) == -1
    assert coordinator not in three.node_ids


def test_stopped_broker_moves_only_its_own_coordinators() -> None:
    # given
    three = cluster(1, 2, 3)
    before = {key: three.coordinator(key) for key in (f"group-{number}" for number in range(300))}
    # when
    three.down = frozenset({3})
    # then
    moved = {key: three.coordinator(key) for key in before if three.coordinator(key) != before[key]}
    assert set(moved) == {key for key, node_id in before.items() if node_id == 3}
    assert set(moved.values()) == {1, 2}


def test_moved_coordinator_moves_on_when_its_broker_goes_down() -> None:
    two = cluster(1, 2)
    for node_id in (1, 2):
        two.moved_coordinators["group"] = node_id
        assert two.coordinator("group") == node_id
    two.down = frozenset({2})
    assert two.coordinator("group") == 1
