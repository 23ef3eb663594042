"""Members with the consumer protocol, heartbeat by heartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.consumer.model import STATIC_LEAVE_EPOCH, ConsumerLimits
from klamm.protocol.errors import ErrorCode
from tests.support.consumer_groups import ConsumerGroupClients, FakeMember, FakeTopics

if TYPE_CHECKING:
    from klamm.broker.groups.classic.model import Moment
    from klamm.broker.groups.consumer.model import SubscribableTopics
    from klamm.broker.topics.catalog import Topic


def indexes(member: FakeMember) -> list[int]:
    return sorted(index for _, index in member.owned)


def test_first_member_gets_all_partitions_in_its_first_heartbeat() -> None:
    clients = ConsumerGroupClients(t=3)

    member = clients.join("m", "t")

    assert (member.epoch, indexes(member)) == (2, [0, 1, 2])
    assert clients.state == "STABLE"


def test_partition_moves_in_three_heartbeats() -> None:
    """K848-02."""
    clients = ConsumerGroupClients(t=2)
    first = clients.join("m1", "t")
    second = clients.join("m2", "t")
    assert (second.epoch, indexes(second)) == (3, [])
    assert clients.state == "RECONCILING"

    clients.beat(first)  # hears that it has to revoke
    assert (first.epoch, indexes(first)) == (2, [0])
    clients.beat(second)
    assert indexes(second) == []
    clients.beat(first)  # reports that it has done so
    assert first.epoch == 3
    clients.beat(second)

    assert (second.epoch, indexes(second)) == (3, [1])
    assert clients.state == "STABLE"


def test_unchanged_heartbeat_has_no_assignment() -> None:
    clients = ConsumerGroupClients(t=2)
    member = clients.join("m", "t")
    clients.group.take_unsaved()

    reply = clients.send("m", member.epoch)

    assert (reply.member_epoch, reply.assignment, reply.heartbeat_interval_ms) == (2, None, 5_000)
    assert not clients.group.take_unsaved()


def test_leaving_member_releases_its_partitions_at_once() -> None:
    clients = ConsumerGroupClients(t=2)
    members = [clients.join("m1", "t"), clients.join("m2", "t")]
    clients.settle(*members)

    clients.leave(members[0])
    assert clients.state == "ASSIGNING"
    clients.beat(members[1])

    assert indexes(members[1]) == [0, 1]
    clients.leave(members[1])
    assert clients.state == "EMPTY"
    assert not clients.group.is_blank


def test_member_without_heartbeats_is_fenced() -> None:
    """K848-08."""
    clients = ConsumerGroupClients(t=2)
    members = [clients.join("m1", "t"), clients.join("m2", "t")]
    clients.settle(*members)
    clients.wait(30)
    clients.beat(members[1])
    clients.wait(20)

    assert list(clients.group.members) == ["m2"]
    clients.beat(members[1])
    assert indexes(members[1]) == [0, 1]
    assert clients.rejected(lambda: clients.beat(members[0])) is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_does_not_revoke_in_time_is_removed() -> None:
    """K848-08."""
    clients = ConsumerGroupClients(t=2)
    first, second = clients.join("m1", "t"), clients.join("m2", "t")
    clients.beat(first)
    first.owned.add((clients.topics.add("t", 2).topic_id, 1))  # it keeps what it should give up
    for _ in range(7):
        clients.wait(9)
        clients.rejected(lambda: clients.beat(second))
        clients.rejected(lambda: clients.send("m1", 2))

    assert list(clients.group.members) == ["m2"]
    assert indexes(second) == [0, 1]


@pytest.mark.parametrize(
    ("epoch", "owned", "code"),
    [
        (3, "", ErrorCode.NONE),
        (4, "", ErrorCode.FENCED_MEMBER_EPOCH),
        pytest.param(2, "0", ErrorCode.NONE, id="the response was lost"),
        pytest.param(2, "", ErrorCode.NONE, id="the response was lost, and the member owns nothing"),
        pytest.param(2, "01", ErrorCode.FENCED_MEMBER_EPOCH, id="it still has what it gave up"),
        pytest.param(2, None, ErrorCode.FENCED_MEMBER_EPOCH, id="it does not report what it owns"),
        pytest.param(0, "", ErrorCode.NONE, id="it was fenced and joins again"),
    ],
)
def test_only_current_epoch_or_lost_response_is_accepted(epoch: int, owned: str | None, code: ErrorCode) -> None:
    """K848-07."""
    clients = ConsumerGroupClients(t=2)
    members = [clients.join("m1", "t"), clients.join("m2", "t")]
    clients.settle(*members)
    assert (members[0].epoch, indexes(members[0])) == (3, [0])
    topic = clients.topics.add("t", 2).topic_id
    reported = None if owned is None else {topic: frozenset(map(int, owned))} if owned else {}

    assert clients.rejected(lambda: clients.send("m1", epoch, topics={"t"}, owned=reported)) is code


def test_new_topics_and_partitions_are_assigned_with_the_next_heartbeat() -> None:
    clients = ConsumerGroupClients(t=1)
    member = clients.join("m", "t", "later")
    assert indexes(member) == [0]

    clients.topics.add("t", 2)
    clients.beat(member)
    assert (member.epoch, indexes(member)) == (3, [0, 1])
    clients.topics.add("later", 1)
    clients.beat(member)
    assert (member.epoch, indexes(member)) == (4, [0, 0, 1])
    clients.topics.add("other", 1)
    clients.beat(member)
    assert member.epoch == 4


def test_deleted_topic_is_revoked() -> None:
    clients = ConsumerGroupClients(t=1, u=1)
    member = clients.join("m", "t", "u")

    clients.topics.remove("t")
    clients.settle(member)

    assert (member.epoch, len(member.owned)) == (3, 1)


def test_changed_subscription_changes_assignment() -> None:
    clients = ConsumerGroupClients(t=1, u=2)
    member = clients.join("m", "t")

    member.take(clients.send("m", 2, topics=["u"], owned=member.assignment))
    clients.settle(member)

    assert (member.epoch, indexes(member)) == (3, [0, 1])


def test_full_group_rejects_new_members() -> None:
    """K848-07."""
    clients = ConsumerGroupClients(t=1)
    clients.group = ConsumerGroup("group", ConsumerLimits(max_size=1), clients.now)
    member = clients.join("m1", "t")

    assert clients.rejected(lambda: clients.join("m2", "t")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    clients.beat(member)


def test_assignor_with_most_votes_is_used() -> None:
    """K848-04."""
    clients = ConsumerGroupClients(t=1)
    clients.send("m1", 0, topics={"t"}, assignor="range")
    clients.send("m2", 0, topics={"t"})

    assert clients.group.assignor == "range"
    epoch = clients.group.group_epoch
    clients.send("m1", 2, assignor="uniform")
    assert clients.group.assignor == "uniform"
    assert clients.group.assignment_epoch == epoch + 1  # the new assignor is used at once


# ---- static members


def test_static_member_rejoins_with_its_partitions() -> None:
    """K848-05."""
    clients = ConsumerGroupClients(t=2)
    old, other = clients.join("m1", "t", instance_id="i"), clients.join("m2", "t")
    clients.settle(old, other)
    epoch = clients.group.group_epoch

    clients.leave(old, STATIC_LEAVE_EPOCH)
    clients.settle(other)
    assert indexes(other) == [1]
    new = clients.join("m3", "t", instance_id="i")

    assert (indexes(new), new.epoch, clients.group.group_epoch) == ([0], epoch, epoch)
    assert clients.rejected(lambda: clients.beat(old)) is ErrorCode.FENCED_INSTANCE_ID


def test_static_member_that_does_not_return_is_removed() -> None:
    clients = ConsumerGroupClients(t=2)
    old, other = clients.join("m1", "t", instance_id="i"), clients.join("m2", "t")
    clients.settle(old, other)
    clients.leave(old, STATIC_LEAVE_EPOCH)
    clients.wait(44)
    clients.beat(other)
    assert indexes(other) == [1]

    clients.wait(2)
    clients.beat(other)

    assert indexes(other) == [0, 1]
    assert clients.rejected(lambda: clients.send("m1", 3, instance_id="i")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_static_member_that_leaves_during_a_revocation_keeps_its_session() -> None:
    clients = ConsumerGroupClients(t=2)
    first, second = clients.join("m1", "t", instance_id="i"), clients.join("m2", "t")
    clients.beat(first)
    first.owned.add((clients.topics.add("t", 2).topic_id, 1))  # it keeps what it should give up
    for _ in range(6):
        clients.wait(9)
        clients.beat(second)
        clients.rejected(lambda: clients.send("m1", 2, instance_id="i"))
    clients.leave(first, STATIC_LEAVE_EPOCH)
    clients.wait(9)
    clients.beat(second)

    assert set(clients.group.members) == {"m1", "m2"}


def test_instance_id_in_use_is_unreleased() -> None:
    """K848-05, -07."""
    clients = ConsumerGroupClients(t=2)
    old = clients.join("m1", "t", instance_id="i")

    assert clients.rejected(lambda: clients.join("m2", "t", instance_id="i")) is ErrorCode.UNRELEASED_INSTANCE_ID
    clients.leave(old)
    assert clients.join("m2", "t", instance_id="i").epoch == 4


# ---- regular expressions


def test_regex_subscription_includes_new_topics() -> None:
    """K848-06."""
    clients = ConsumerGroupClients(**{"a-1": 1, "b-1": 1})
    member = FakeMember(member_id="m")
    member.take(clients.send("m", 0, regex="a-.*"))
    assert len(member.owned) == 1

    clients.topics.add("a-2", 1)
    clients.wait(2)
    clients.beat(member)
    assert (member.epoch, len(member.owned)) == (3, 2)
    member.take(clients.send("m", 3, regex="", topics={"b-1"}, owned=member.assignment))
    clients.settle(member)
    assert (len(member.owned), dict(clients.group.regexes)) == (1, {})


def test_members_with_different_regexes_share_a_new_topic() -> None:
    """K848-06."""
    # given
    clients = ConsumerGroupClients(bar=4)
    first, second = FakeMember(member_id="m1"), FakeMember(member_id="m2")
    first.take(clients.send("m1", 0, regex="(bar|foo).*"))
    second.take(clients.send("m2", 0, regex="(bar|fo).*"))
    clients.settle(first, second)
    # when
    clients.topics.add("foo", 8)
    clients.wait(2)
    clients.settle(first, second)
    # then
    assert (len(first.owned), len(second.owned)) == (6, 6)


def test_regex_subscription_requires_describe_right_on_topics() -> None:
    """K848-06."""
    clients = ConsumerGroupClients(**{"a-1": 1, "a-2": 1})
    clients.may_describe = "a-1".__eq__
    member = FakeMember(member_id="m")
    member.take(clients.send("m", 0, regex="a-.*"))
    assert len(member.owned) == 1

    clients.may_describe = lambda _: True
    for _ in range(20):  # the right is found when the expression is resolved again
        clients.wait(31)
        clients.beat(member)

    assert len(member.owned) == 2


def test_invalid_regular_expression_is_rejected() -> None:
    """K848-07."""
    clients = ConsumerGroupClients(t=1)

    assert clients.rejected(lambda: clients.send("m", 0, regex="(")) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert clients.group.is_blank


# ---- committed offsets


@pytest.mark.parametrize(
    ("member_id", "epoch", "code"),
    [
        ("m", 2, ErrorCode.NONE),
        ("m", 3, ErrorCode.STALE_MEMBER_EPOCH),
        ("other", 2, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_and_fetches_require_the_member_epoch(member_id: str, epoch: int, code: ErrorCode) -> None:
    """K848-09."""
    clients = ConsumerGroupClients(t=1)
    clients.join("m", "t")

    assert clients.rejected(lambda: clients.group.admit_commit(member_id, epoch, (), api_version=9)) is code
    assert clients.rejected(lambda: clients.group.admit_transactional_commit(member_id, "i", epoch, ())) is code
    assert clients.rejected(lambda: clients.group.admit_fetch(member_id, epoch)) is code
    assert clients.rejected(lambda: clients.group.admit_fetch(None, -1)) is ErrorCode.NONE


def test_older_epoch_commits_only_partitions_assigned_in_that_epoch() -> None:
    """K848-09: KIP-1251."""
    clients = ConsumerGroupClients(t=3)
    topic = clients.topics.add("t", 3).topic_id
    first = clients.join("m1", "t")
    second = clients.join("m2", "t")
    clients.settle(first, second)
    assert (first.epoch, indexes(first), indexes(second)) == (3, [0, 1], [2])
    clients.leave(second)
    clients.beat(first)
    assert (first.epoch, indexes(first)) == (4, [0, 1, 2])

    def commit(epoch: int, *indexes: int) -> ErrorCode:
        partitions = [(topic, index) for index in indexes]
        code = clients.rejected(lambda: clients.group.admit_commit("m1", epoch, partitions, api_version=9))
        assert code is clients.rejected(lambda: clients.group.admit_transactional_commit("m1", None, epoch, partitions))
        return code

    stale, none = ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.NONE
    assert [commit(epoch, 0, 1) for epoch in (1, 2, 3, 4, 5)] == [stale, none, none, none, stale]
    assert [commit(3, index) for index in (0, 1, 2, 7)] == [none, none, stale, stale]
    assert (commit(3, 0, 2), commit(4, 0, 7)) == (stale, none)
    assert clients.rejected(lambda: clients.group.admit_fetch("m1", 3)) is stale


def test_outside_commits_to_empty_group_are_accepted() -> None:
    clients = ConsumerGroupClients(t=1)
    member = clients.join("m", "t")
    clients.group.admit_transactional_commit("", None, -1, ())  # in a transaction also while the group has members
    clients.leave(member)

    clients.group.admit_commit("", -1, (), api_version=8)
    clients.group.admit_transactional_commit("", "i", -1, ())


def test_commit_version_without_member_epoch_is_rejected() -> None:
    clients = ConsumerGroupClients(t=1)
    clients.join("m", "t")

    code = clients.rejected(lambda: clients.group.admit_commit("m", 2, (), api_version=8))

    assert code is ErrorCode.UNSUPPORTED_VERSION


# ---- replies that wait for partitions


def test_held_heartbeat_response_returns_released_partitions() -> None:
    """K848-17."""
    clients = ConsumerGroupClients(t=3)
    first = clients.join("m1", "t")
    topic_id = next(iter(first.assignment))
    clients.group.take_released()

    second = FakeMember(member_id="m2")
    reply = clients.send("m2", 0, topics=["t"])
    assert (reply.member_epoch, reply.assignment) == (3, {})
    assert clients.group.awaited(reply) == ((topic_id, 2),)
    clients.beat(first)  # hears that it has to revoke
    assert clients.group.take_released() == {topic_id: frozenset()}
    assert clients.group.continued(reply, 0, None, clients.topics, clients.now) is reply
    clients.beat(first)  # reports that it has done so
    assert clients.group.take_released() == {topic_id: {2}}
    assert clients.group.take_released() == {}
    second.take(clients.group.continued(reply, 0, None, clients.topics, clients.now))

    assert (second.epoch, indexes(second), clients.state) == (3, [2], "STABLE")
    assert clients.group.take_unsaved()
    assert clients.group.awaited(reply) == ()


def test_lost_held_reply_is_sent_again() -> None:
    clients = ConsumerGroupClients(t=2)
    first = clients.join("m1", "t")
    reply = clients.send("m2", 0, topics=["t"])
    clients.beat(first)
    clients.beat(first)
    clients.group.continued(reply, 0, None, clients.topics, clients.now)

    second = clients.join("m2", "t")

    assert (second.epoch, indexes(second)) == (3, [1])


def test_heartbeat_is_accepted_again_after_its_reply_with_a_new_target_was_lost() -> None:
    """K848-07."""
    # given
    clients = ConsumerGroupClients(t=2, u=1)
    members = [clients.join("m1", "t", "u"), clients.join("m2", "t")]
    clients.settle(*members)
    first = members[0]
    clients.topics.add("t", 3)
    # when
    clients.computes_target = False
    early = clients.send(first.member_id, first.epoch, owned=first.assignment)
    late = clients.group.continued(early, first.epoch, first.assignment, clients.topics, clients.now)
    # then
    assert (early.member_epoch, late.member_epoch) == (first.epoch, first.epoch + 1)
    clients.beat(first)
    assert first.epoch == late.member_epoch


def test_heartbeat_without_awaited_members_is_not_held() -> None:
    clients = ConsumerGroupClients(t=2)
    clients.join("m1", "t")
    everything = clients.send("m1", 2)
    nothing = clients.send("m0", 0, topics=["later"])
    late = clients.send("m2", 0, topics=["t"])
    clients.send("m2", late.member_epoch, topics=["t", "u"])  # another heartbeat of the same member
    clients.group.leave("m0", None, -1, clients.now)

    assert [clients.group.awaited(reply) for reply in (everything, nothing, late)] == [(), (), ()]
    assert clients.group.continued(nothing, 0, None, clients.topics, clients.now) is nothing


# ---- the interval between target assignments


def test_changes_within_the_interval_are_assigned_together() -> None:
    """K848-16."""
    clients = ConsumerGroupClients(t=4)
    clients.interval_ms = 1_000
    first, second, third = clients.join("m1", "t"), clients.join("m2", "t"), clients.join("m3", "t")

    assert [(member.epoch, indexes(member)) for member in (first, second, third)] == [
        (2, [0, 1, 2, 3]),
        (2, []),
        (2, []),
    ]
    assert (clients.state, clients.group.group_epoch, clients.group.assignment_epoch) == ("ASSIGNING", 4, 2)
    clients.wait(0.9)
    clients.beat(second)
    assert clients.group.assignment_epoch == 2

    clients.wait(0.1)
    clients.settle(second, first, third)
    assert (clients.state, clients.group.assignment_epoch) == ("STABLE", 4)
    assert sorted(indexes(first) + indexes(second) + indexes(third)) == [0, 1, 2, 3]


def test_thousand_joining_members_cost_two_assignments(monkeypatch: pytest.MonkeyPatch) -> None:
    """K848-15: computing one takes milliseconds, and the broker does nothing else meanwhile."""
    clients = ConsumerGroupClients(t=1_000)
    clients.interval_ms = 1_000
    computed: list[int] = []
    assign = clients.group.assign

    def count(topics: SubscribableTopics, now: Moment) -> None:
        assign(topics, now)
        computed.append(len(clients.group.target))

    monkeypatch.setattr(clients.group, "assign", count)
    members = [clients.join(f"m{number}", "t") for number in range(1_000)]
    clients.wait(1)
    for _ in range(3):
        for member in members:
            clients.beat(member)

    assert computed == [1, 1_000]
    assert clients.state == "STABLE"
    assert {len(member.owned) for member in members} == {1}


def test_thousand_joining_members_are_assigned_in_their_second_heartbeat() -> None:
    """K848-15: also if all send it before the first member has given up what it had alone."""
    clients = ConsumerGroupClients(t=1_000)
    clients.interval_ms = 1_000
    first, *others = [clients.join(f"m{number}", "t") for number in range(1_000)]
    clients.wait(5)

    clients.beat(first)
    held = [(member, clients.send(member.member_id, member.epoch)) for member in others]
    assert all(clients.group.awaited(reply) for _, reply in held)
    clients.beat(first)
    for member, reply in held:
        member.take(clients.group.continued(reply, member.epoch, None, clients.topics, clients.now))

    assert clients.state == "STABLE"
    assert {len(member.owned) for member in (first, *others)} == {1}


def test_member_that_joins_an_empty_group_gets_its_partitions_at_once() -> None:
    clients = ConsumerGroupClients(t=2)
    clients.interval_ms = 1_000
    clients.leave(clients.join("m1", "t"))

    assert indexes(clients.join("m2", "t")) == [0, 1]


def test_assignment_interval_is_changeable_while_waiting() -> None:
    clients = ConsumerGroupClients(t=2)
    clients.interval_ms = 15_000
    members = [clients.join("m1", "t"), clients.join("m2", "t")]
    clients.settle(*members)
    assert clients.state == "ASSIGNING"

    clients.interval_ms = 0
    clients.settle(*members)
    assert clients.state == "STABLE"


def test_unsubscribed_topic_is_revoked_before_the_next_assignment() -> None:
    clients = ConsumerGroupClients(t=2, u=1)
    clients.interval_ms = 1_000
    member = clients.join("m", "t", "u")

    member.take(clients.send("m", member.epoch, topics=["u"], owned=member.assignment))
    assert (member.epoch, indexes(member), clients.state) == (2, [0], "ASSIGNING")
    clients.beat(member)
    assert clients.group.members["m"].pending_revocation == {}

    clients.wait(1)
    clients.beat(member)
    assert (member.epoch, indexes(member), clients.state) == (3, [0], "STABLE")


def test_topic_unsubscribed_during_revocation_is_also_revoked() -> None:
    clients = ConsumerGroupClients(t=2, u=2)
    first = clients.join("m1", "t", "u")
    second = clients.join("m2", "t", "u")
    held = first.assignment
    clients.beat(first)
    clients.interval_ms = 15_000
    first.take(clients.send("m1", first.epoch, topics=["u"], owned=held))

    state = clients.group.members["m1"]
    left = clients.topics.add("t", 2).topic_id
    assert left not in state.assigned
    assert state.pending_revocation[left] == frozenset({0, 1})
    clients.settle(first, second)
    assert clients.group.members["m1"].pending_revocation == {}


def test_join_looks_up_no_missing_topic_of_other_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a look-up per name, a member with 80,000 names delayed the broker by 160 ms at every join of another one."""
    clients = ConsumerGroupClients(t=1)
    clients.join("m1", *(f"missing-{number}" for number in range(1000)))
    looked_up: list[str] = []
    get = type(clients.topics).get

    def recording_get(topics: FakeTopics, name: str) -> Topic | None:
        looked_up.append(name)
        return get(topics, name)

    monkeypatch.setattr(type(clients.topics), "get", recording_get)
    second = clients.join("m2", "t")

    assert indexes(second) == [0]
    assert len(looked_up) <= 1


def test_topic_of_an_old_subscription_gets_assigned_once_it_exists() -> None:
    clients = ConsumerGroupClients(t=1)
    member = clients.join("m", "t", "later")
    clients.beat(member)

    clients.topics.add("later", 2)
    clients.beat(member)

    assert indexes(member) == [0, 0, 1]
