from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.groups.consumer.assignors import ASSIGNORS, Subscriber, ranges, uniform

if TYPE_CHECKING:
    from klamm.broker.groups.consumer.assignors import TargetAssignment

A, B, C = (UUID(int=number) for number in (1, 2, 3))


def subscriber(*topics: UUID, instance_id: str | None = None, **had: str) -> Subscriber:
    """Return a subscriber; ``a="01"`` gives it partitions 0 and 1 of topic A so far."""
    names = {"a": A, "b": B, "c": C}
    assignment = {names[name]: frozenset(map(int, indexes)) for name, indexes in had.items()}
    return Subscriber(instance_id=instance_id, topic_ids=frozenset(topics), assignment=assignment)


def shown(target: TargetAssignment) -> dict[str, str]:
    names = {A: "a", B: "b", C: "c"}
    return {
        member_id: " ".join(
            f"{names[topic]}{''.join(map(str, sorted(indexes)))}" for topic, indexes in sorted(assignment.items())
        )
        for member_id, assignment in target.items()
    }


@pytest.mark.parametrize(
    ("subscribers", "counts", "expected"),
    [
        pytest.param({}, {A: 3}, {}, id="no members"),
        pytest.param({"m": subscriber()}, {}, {"m": ""}, id="no topics"),
        pytest.param({"m": subscriber(A, B)}, {A: 2, B: 1}, {"m": "a01 b0"}, id="one member"),
        pytest.param({"m": subscriber(A), "n": subscriber(A)}, {A: 3}, {"m": "a01", "n": "a2"}, id="two members"),
        pytest.param({"m": subscriber(A), "n": subscriber(A)}, {A: 1}, {"m": "a0", "n": ""}, id="too few partitions"),
        pytest.param(
            {"m": subscriber(A, a="0123"), "n": subscriber(A)}, {A: 4}, {"m": "a01", "n": "a23"}, id="a member joins"
        ),
        pytest.param(
            {"m": subscriber(A, a="0"), "n": subscriber(A, a="12")}, {A: 3}, {"m": "a0", "n": "a12"}, id="nothing moves"
        ),
        pytest.param({"n": subscriber(A, a="12")}, {A: 4}, {"n": "a0123"}, id="a member left"),
        pytest.param(
            {"m": subscriber(A, a="01"), "n": subscriber(A, a="23")}, {A: 5}, {"m": "a014", "n": "a23"}, id="it grew"
        ),
        pytest.param(
            {"m": subscriber(B, a="01"), "n": subscriber(B)}, {B: 2}, {"m": "b0", "n": "b1"}, id="another topic"
        ),
        pytest.param(
            {"m": subscriber(A, a="01"), "n": subscriber(A, a="12")}, {A: 3}, {"m": "a01", "n": "a2"}, id="one twice"
        ),
        pytest.param(
            {"m": subscriber(A), "n": subscriber(A, B)}, {A: 2, B: 2}, {"m": "a01", "n": "b01"}, id="other topics"
        ),
        pytest.param(
            {"m": subscriber(A), "n": subscriber(A, B, a="01", b="01")},
            {A: 2, B: 2},
            {"m": "a01", "n": "b01"},
            id="balanced by moves",
        ),
    ],
)
def test_uniform_assignor_balances_and_is_sticky(
    subscribers: dict[str, Subscriber], counts: dict[UUID, int], expected: dict[str, str]
) -> None:
    """K848-04."""
    assert shown(uniform(subscribers, counts)) == expected


@pytest.mark.parametrize(
    ("subscribers", "counts", "expected"),
    [
        pytest.param({}, {A: 3}, {}, id="no members"),
        pytest.param(
            {"m": subscriber(A, B), "n": subscriber(A, B)},
            {A: 3, B: 3},
            {"m": "a01 b01", "n": "a2 b2"},
            id="equal partitions meet",
        ),
        pytest.param(
            {"z": subscriber(A), "n": subscriber(A, B)}, {A: 3, B: 1}, {"z": "a2", "n": "a01 b0"}, id="by member id"
        ),
        pytest.param(
            {"a": subscriber(A), "z": subscriber(A, instance_id="i2"), "y": subscriber(A, instance_id="i1")},
            {A: 3},
            {"a": "a2", "z": "a1", "y": "a0"},
            id="static members first",
        ),
        pytest.param({"m": subscriber(A), "n": subscriber(A)}, {A: 1}, {"m": "a0", "n": ""}, id="too few"),
    ],
)
def test_range_gives_contiguous_ranges(
    subscribers: dict[str, Subscriber], counts: dict[UUID, int], expected: dict[str, str]
) -> None:
    """K848-04."""
    assert shown(ranges(subscribers, counts)) == expected


topic_ids = st.sampled_from([A, B, C])
groups = st.dictionaries(
    st.sampled_from("klmnopq"),
    st.builds(
        Subscriber,
        instance_id=st.none(),
        topic_ids=st.frozensets(topic_ids),
        assignment=st.dictionaries(topic_ids, st.frozensets(st.integers(0, 9), min_size=1)),
    ),
)
partition_counts = st.fixed_dictionaries({topic_id: st.integers(1, 8) for topic_id in (A, B, C)})


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
@given(subscribers=groups, counts=partition_counts)
def test_every_partition_has_one_subscribed_owner(
    assignor: str, subscribers: dict[str, Subscriber], counts: dict[UUID, int]
) -> None:
    subscribed = {topic_id for each in subscribers.values() for topic_id in each.topic_ids}
    counts = {topic_id: number for topic_id, number in counts.items() if topic_id in subscribed}

    target = ASSIGNORS[assignor](subscribers, counts)

    owners = [
        (topic_id, index)
        for member_id, assignment in target.items()
        for topic_id, indexes in assignment.items()
        for index in indexes
        if topic_id in subscribers[member_id].topic_ids
    ]
    assert sorted(owners) == sorted((topic_id, index) for topic_id, number in counts.items() for index in range(number))
    assert target.keys() == subscribers.keys()


@given(subscribers=groups, counts=partition_counts)
def test_uniform_assignment_is_balanced_and_stable(subscribers: dict[str, Subscriber], counts: dict[UUID, int]) -> None:
    everything = frozenset(counts)
    same = {
        member_id: Subscriber(instance_id=None, topic_ids=everything, assignment=each.assignment)
        for member_id, each in subscribers.items()
    }

    target = uniform(same, counts)

    sizes = [sum(map(len, assignment.values())) for assignment in target.values()]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    again = {
        member_id: Subscriber(instance_id=None, topic_ids=everything, assignment=target[member_id])
        for member_id in same
    }
    assert uniform(again, counts) == target
