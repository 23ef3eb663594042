"""The assignors ``uniform`` and ``range`` and those of Apache Kafka's broker solve the same random problems.

``range`` has exactly Kafka's answers. Those of ``uniform`` depend on the order of Java hash tables, so here the numbers
of partitions and of moves are compared: problem by problem if all members have the same subscription, else in total.
Kafka's assignors see racks of members and replicas, and do not look at them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import pytest

from klamm.broker.groups.consumer.assignors import ASSIGNORS, Subscriber
from tests.support.class_archives import ROOT
from tests.support.java import broker_class_path, java_tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.broker.groups.consumer.assignors import TargetAssignment
    from klamm.broker.groups.consumer.model import Assignment

PROGRAM: Final = ROOT / "tests" / "java" / "assignors" / "Assign.java"
PROBLEMS: Final = 100_000 if os.environ.get("KLAMM_SOAK") else 2_000
STEPS: Final = 5
"""Changes of a group, each of which poses a problem."""


class Problem(NamedTuple):
    """A group that is to get its next target assignment."""

    assignor: str
    counts: Mapping[UUID, int]
    members: Mapping[str, Subscriber]

    @property
    def is_even(self) -> bool:
        """Whether all members have the same subscription."""
        return len({member.topic_ids for member in self.members.values()}) <= 1

    def text(self) -> str:
        """Return the problem as the Java program reads it."""
        members = {
            member_id: {
                "instance": member.instance_id,
                "topics": [topic_id.int for topic_id in member.topic_ids],
                "assigned": {str(topic_id.int): sorted(indexes) for topic_id, indexes in member.assignment.items()},
            }
            for member_id, member in self.members.items()
        }
        topics = {str(topic_id.int): number for topic_id, number in self.counts.items()}
        return json.dumps({"assignor": self.assignor, "topics": topics, "members": members})

    def moves(self, target: TargetAssignment) -> int:
        """Return the number of partitions that a target takes away from a member."""
        return sum(
            len(partitions - target.get(member_id, {}).get(topic_id, frozenset()))
            for member_id, member in self.members.items()
            for topic_id, partitions in member.assignment.items()
        )


class History:
    """A group that changes at random: members and partitions come and go, and subscriptions change."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._assignor = chance.choice(list(ASSIGNORS))
        self._is_even = chance.random() < 0.5
        self._counts = {UUID(int=number): chance.randint(1, 12) for number in range(1, chance.randint(2, 5))}
        self._subscriptions: dict[str, tuple[str | None, frozenset[UUID]]] = {}
        self._target: Mapping[str, Assignment] = {}
        self._number = 0
        for _ in range(chance.randint(1, 8)):
            self._join()

    def next(self) -> tuple[Problem, TargetAssignment]:
        """Change the group, and return its problem with the answer."""
        for _ in range(self._chance.randint(1, 3)):
            self._chance.choice((self._join, self._join, self._leave, self._grow, self._subscribe))()
        subscribed = {topic_id for _, topic_ids in self._subscriptions.values() for topic_id in topic_ids}
        counts = {topic_id: number for topic_id, number in self._counts.items() if topic_id in subscribed}
        members = {
            member_id: Subscriber(
                instance_id=instance_id, topic_ids=topic_ids, assignment=self._target.get(member_id, {})
            )
            for member_id, (instance_id, topic_ids) in self._subscriptions.items()
        }
        self._target = ASSIGNORS[self._assignor](members, counts)
        return Problem(self._assignor, counts, members), dict(self._target)

    def _topics(self) -> frozenset[UUID]:
        if self._is_even:
            return frozenset(self._counts)
        return frozenset(self._chance.sample(list(self._counts), self._chance.randint(1, len(self._counts))))

    def _join(self) -> None:
        self._number += 1
        name = f"{self._chance.randrange(16):x}{self._number}"
        instance_id = f"i{self._chance.randrange(16):x}{self._number}" if self._chance.random() < 0.3 else None
        self._subscriptions[name] = instance_id, self._topics()

    def _leave(self) -> None:
        if len(self._subscriptions) > 1:
            del self._subscriptions[self._chance.choice(list(self._subscriptions))]

    def _grow(self) -> None:
        self._counts[self._chance.choice(list(self._counts))] += self._chance.randint(1, 3)

    def _subscribe(self) -> None:
        if not self._is_even:
            name = self._chance.choice(list(self._subscriptions))
            self._subscriptions[name] = self._subscriptions[name][0], self._topics()


def answers_of_kafka(problems: list[Problem]) -> list[TargetAssignment]:
    text = "".join(f"{problem.text()}\n" for problem in problems)
    answers = java_tool(str(PROGRAM), stdin=text, jars=broker_class_path()).splitlines()
    return [_target(json.loads(answer)) for answer in answers]


def _target(answer: Mapping[str, Any]) -> TargetAssignment:
    return {
        member_id: {UUID(int=int(number)): frozenset(indexes) for number, indexes in topics.items()}
        for member_id, topics in answer.items()
    }


def sizes(target: TargetAssignment) -> list[int]:
    return sorted(sum(map(len, assignment.values())) for assignment in target.values())


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_random_groups_are_assigned_as_by_kafka() -> None:
    """K848-04."""
    chance = Random(848)
    solved = [problem for _ in range(PROBLEMS // STEPS) for history in [History(chance)] for problem in _play(history)]
    theirs = answers_of_kafka([problem for problem, _ in solved])

    assert len(theirs) == len(solved) == PROBLEMS
    own_total, other_total = Counter[str](), Counter[str]()
    for (problem, own), other in zip(solved, theirs, strict=True):
        if problem.assignor == "range":
            assert own == other, problem.text()
            continue
        assert own.keys() == other.keys(), problem.text()
        if problem.is_even:
            assert sizes(own) == sizes(other), problem.text()
            assert problem.moves(own) <= problem.moves(other), problem.text()
        own_total.update(moves=problem.moves(own), unevenness=_unevenness(own))
        other_total.update(moves=problem.moves(other), unevenness=_unevenness(other))
    assert own_total <= other_total


def _play(history: History) -> list[tuple[Problem, TargetAssignment]]:
    return [history.next() for _ in range(STEPS)]


def _unevenness(target: TargetAssignment) -> int:
    return sum(size * size for size in sizes(target))
