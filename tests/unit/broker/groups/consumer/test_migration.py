"""Groups with members of both protocols, and their conversion."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from klamm.broker.groups.classic.group import ClassicGroup
from klamm.broker.groups.classic.model import GroupLimits, GroupState, JoinReply, MemberIdentity, SyncAttempt
from klamm.broker.groups.classic.snapshot import from_payload as classic_from_payload
from klamm.broker.groups.classic.snapshot import to_payload
from klamm.broker.groups.consumer.consumer_protocol import read_assignment, write_assignment
from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.consumer.migration import MAX_ELEMENTS, can_become_consumer, to_classic, to_consumer
from klamm.broker.groups.consumer.model import STATIC_LEAVE_EPOCH, ConsumerLimits
from klamm.broker.groups.consumer.snapshot import GroupWriter, from_payload
from klamm.broker.groups.errors import GroupIdNotFoundError
from klamm.protocol.errors import ErrorCode
from tests.support.consumer_groups import ConsumerGroupClients, FakeMember
from tests.support.groups import ClassicGroupClients, attempt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from klamm.broker.groups.classic.model import JoinAttempt


def subscription(*topics: str, owned: Mapping[str, Sequence[int]] | None = None) -> bytes:
    """Return a ConsumerProtocolSubscription v3."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    partitions = write_assignment(owned or {}, 0)[2:-4]  # the array alone
    return struct.pack(">hi", 3, len(topics)) + names + struct.pack(">i", -1) + partitions + struct.pack(">ih", 7, -1)


def joins(member_id: str, *topics: str, owned: Sequence[int] = (), instance_id: str | None = None) -> JoinAttempt:
    metadata = subscription(*topics, owned={"t": owned} if owned else None)
    return attempt(member_id, instance_id, protocols=(("range", metadata),), new_member_id="new")


class MixedGroupClients(ConsumerGroupClients):
    """A consumer group with classic members."""

    def classic_join(self, request: JoinAttempt) -> JoinReply:
        return self.group.join(request, self.topics, self.now)

    def classic_sync(self, member_id: str, generation_id: int) -> dict[str, tuple[int, ...]]:
        request = SyncAttempt(
            member_id=member_id,
            group_instance_id=None,
            generation_id=generation_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=(),
        )
        return read_assignment(self.group.sync(request, self.topics, self.now).assignment)

    def classic_beat(self, member_id: str, generation_id: int) -> ErrorCode:
        return self.rejected(lambda: self.group.classic_heartbeat(member_id, None, generation_id, self.now))


def upgraded(
    partitions: int = 4, members: Sequence[str] = ("c1", "c2")
) -> tuple[MixedGroupClients, ClassicGroupClients]:
    """Return clients of the consumer group that a stable classic group has become, and that classic group."""
    classic = ClassicGroupClients(initial_delay_ms=0)
    for name in members:
        classic.group.members.pending[name] = 10_000.0
        classic.send_join(joins(name, "t"))
    classic.wait(0)
    generation = classic.group.generation_id
    shares = {name: range(index, partitions, len(members)) for index, name in enumerate(members)}
    assignments = {name: write_assignment({"t": tuple(share)}, 3) for name, share in shares.items()}
    for name in sorted(members, key=lambda name: name != classic.group.members.leader_id):
        classic.send_sync(name, generation, assignments)
    assert classic.state is GroupState.STABLE
    clients = MixedGroupClients(t=partitions)
    clients.group = to_consumer(classic.group, clients.topics, ConsumerLimits(), clients.now)
    return clients, classic


def test_members_keep_their_partitions_when_the_group_becomes_a_consumer_group() -> None:
    clients, classic = upgraded()

    assert clients.group.group_epoch == classic.group.generation_id
    assert {name: sorted(*member.assigned.values()) for name, member in clients.group.members.items()} == {
        "c1": [0, 2],
        "c2": [1, 3],
    }


def test_classic_members_release_partitions_to_a_consumer_member() -> None:
    """K848-10."""
    clients, classic = upgraded()
    generation = classic.group.generation_id
    newcomer = clients.join("n", "t")
    assert not newcomer.owned

    # The two members learn of the rebalance by heartbeats, and join again with what they own.
    owned = {"c1": [0, 2], "c2": [1, 3]}
    for _ in range(4):
        for name, own in owned.items():
            if clients.classic_beat(name, clients.group.members[name].member_epoch) is ErrorCode.REBALANCE_IN_PROGRESS:
                reply = clients.classic_join(joins(name, "t", owned=own))
                owned[name] = list(clients.classic_sync(name, reply.generation_id).get("t", ()))
        clients.beat(newcomer)

    assert clients.classic_beat("c1", generation) is ErrorCode.ILLEGAL_GENERATION
    everything = sorted([*owned["c1"], *owned["c2"], *(index for _, index in newcomer.owned)])
    assert everything == [0, 1, 2, 3]
    assert all(clients.classic_beat(name, newcomer.epoch) is ErrorCode.NONE for name in owned)
    newer, illegal = newcomer.epoch + 1, ErrorCode.ILLEGAL_GENERATION
    assert clients.rejected(lambda: clients.group.admit_commit("c1", newer, (), api_version=8)) is illegal
    clients.group.admit_commit("c1", newcomer.epoch, (), api_version=8)
    topic = clients.topics.add("t", 4).topic_id
    clients.group.admit_commit("c1", generation, [(topic, owned["c1"][0])], api_version=8)  # it had that one (KIP-1251)
    other = [(topic, owned["c2"][0])]
    assert clients.rejected(lambda: clients.group.admit_commit("c1", generation, other, api_version=8)) is illegal


def test_classic_member_that_does_not_rejoin_is_removed() -> None:
    clients, _ = upgraded()
    newcomer = clients.join("n", "t")
    for _ in range(7):
        clients.classic_beat("c1", 1)
        clients.wait(9)
        clients.rejected(lambda: clients.beat(newcomer))

    assert list(clients.group.members) == ["n"]


def test_group_becomes_classic_when_the_last_consumer_member_leaves() -> None:
    """K848-10."""
    clients, _ = upgraded()
    newcomer = clients.join("n", "t")
    epoch = clients.group.group_epoch
    assert not clients.group.can_become_classic

    clients.leave(newcomer)
    assert clients.group.can_become_classic
    classic = to_classic(clients.group, clients.topics, GroupLimits(), clients.now)

    assert (classic.generation_id, classic.state) == (epoch, GroupState.PREPARING_REBALANCE)
    assert [member.member_id for member in classic.members] == ["c1", "c2"]
    assert classic.take_unsaved()


def test_group_that_became_classic_still_rebalances_after_a_restart() -> None:
    """The partitions of the member that left have no owner until the others join again."""
    # given: a consumer that has taken over partitions of both classic members
    clients, _ = upgraded()
    newcomer = clients.join("n", "t")
    for name in ("c1", "c2") * 2:
        owned = sorted(*clients.group.members[name].assigned.values())
        clients.classic_join(joins(name, "t", owned=owned))
    clients.settle(newcomer)
    assert newcomer.owned
    clients.leave(newcomer)
    classic = to_classic(clients.group, clients.topics, GroupLimits(), clients.now)
    # when
    again = classic_from_payload("group", to_payload(classic), GroupLimits(), clients.now)
    # then
    assert again.state is GroupState.PREPARING_REBALANCE
    for name in ("c1", "c2"):
        code = clients.rejected(lambda name=name: again.heartbeat(name, None, again.generation_id, clients.now))  # type: ignore[misc]
        assert code is ErrorCode.REBALANCE_IN_PROGRESS


def test_classic_replacement_of_static_consumer_needs_no_rebalance() -> None:
    clients = MixedGroupClients(t=2)
    member = clients.join("n", "t", instance_id="i")
    clients.leave(member, STATIC_LEAVE_EPOCH)

    reply = clients.classic_join(joins("", "t", instance_id="i"))
    assert clients.group.can_become_classic
    classic = to_classic(clients.group, clients.topics, GroupLimits(), clients.now)

    assert (classic.state, reply.generation_id) == (GroupState.STABLE, classic.generation_id)
    assert read_assignment(classic.members.find("new", "i").assignment) == {"t": (0, 1)}


@pytest.mark.parametrize(
    ("before", "more_partitions", "has_released"),
    [("u", 0, True), ("t", 4, True), ("t", 0, False)],
    ids=["other subscription", "new partitions", "partitions not released"],
)
def test_classic_replacement_of_static_consumer_gets_no_partitions_of_another_member(
    before: str, more_partitions: int, *, has_released: bool
) -> None:
    # given: a classic member, and a static member whose next instance is to be classic, too
    clients, _ = upgraded(members=("c1",))
    clients.topics.add("u", 4)
    static = clients.join("n", before, instance_id="i")
    clients.classic_beat("c1", clients.group.members["c1"].member_epoch)
    generation = clients.classic_join(joins("c1", "t", owned=range(4))).generation_id
    if has_released and clients.classic_sync("c1", generation) != {"t": (0, 1, 2, 3)}:
        generation = clients.classic_join(joins("c1", "t", owned=range(2))).generation_id
        clients.beat(static)
    clients.leave(static, STATIC_LEAVE_EPOCH)
    clients.topics.add("t", 4 + more_partitions)
    # when
    reply = clients.classic_join(joins("", "t", instance_id="i"))
    classic = to_classic(clients.group, clients.topics, GroupLimits(), clients.now)
    # then: both members have to join again before one gets partitions of the other
    assert (classic.state, classic.generation_id) == (GroupState.PREPARING_REBALANCE, reply.generation_id)
    again = classic_from_payload("group", to_payload(classic), GroupLimits(), clients.now)  # also after a restart
    assert (again.state, again.generation_id) == (GroupState.PREPARING_REBALANCE, reply.generation_id)
    shares = [read_assignment(member.assignment).get("t", ()) for member in classic.members]
    assert len({*shares[0], *shares[1]}) == len(shares[0]) + len(shares[1])
    if has_released:
        assert generation == classic.generation_id
        classic.admit_commit("c1", None, generation, clients.now)
        code = clients.rejected(lambda: classic.heartbeat("c1", None, generation, clients.now))
        assert code is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("metadata", [b"", b"\3", b"\xff\xff", b"garbage"])
def test_member_with_an_unreadable_protocol_that_was_not_chosen_is_converted_back(metadata: bytes) -> None:
    classic = ClassicGroupClients(initial_delay_ms=0)
    protocols = (("own", metadata), ("range", subscription("t")))
    for join in (attempt("c1", protocols=protocols), joins("c2", "t")):
        classic.group.members.pending[join.member_id] = 10_000.0
        classic.send_join(join)
    classic.wait(0)
    assert classic.group.protocol_name == "range"
    clients = MixedGroupClients(t=2)
    clients.group = to_consumer(classic.group, clients.topics, ConsumerLimits(), clients.now)
    newcomer = clients.join("n", "t")
    clients.leave(newcomer)
    assert clients.group.can_become_classic

    again = to_classic(clients.group, clients.topics, GroupLimits(), clients.now)

    assert [member.member_id for member in again.members] == ["c1", "c2"]


@pytest.mark.parametrize(
    "change", [{"allows_downgrade": False}, {"classic_max_size": 1}, {"allows_downgrade": False, "classic_max_size": 1}]
)
def test_downgrade_is_limited_by_configs(change: dict[str, int]) -> None:
    clients, _ = upgraded()
    payload = GroupWriter().payload(clients.group)
    clients.group = from_payload("group", payload, replace(ConsumerLimits(), **change), clients.now)  # type: ignore[arg-type]

    assert not clients.group.can_become_classic


def test_classic_members_survive_a_restart() -> None:
    clients, _ = upgraded()
    payload = GroupWriter().payload(clients.group)

    again = from_payload("group", payload, ConsumerLimits(), clients.now)

    assert again.members == clients.group.members
    assert again.target == clients.group.target


def test_enforced_session_timeout_survives_sync_restart_and_migration() -> None:
    """K649-94."""
    # given
    clients, classic = upgraded()
    generation = classic.group.generation_id
    clients.group.classic_heartbeat("c1", None, generation, clients.now, enforced_session_timeout_ms=60_000)
    # when
    clients.group = from_payload("group", GroupWriter().payload(clients.group), ConsumerLimits(), clients.now)
    clients.group.resume(45_000, clients.now)
    clients.classic_sync("c1", generation)
    clients.wait(50)
    # then
    assert list(clients.group.members) == ["c1"]
    # when: there and back again
    again = to_classic(clients.group, clients.topics, GroupLimits(), clients.now)
    migrated = to_consumer(again, clients.topics, ConsumerLimits(), clients.now)
    # then
    assert [member.session_timeout_ms for member in again.members] == [60_000]
    assert migrated.members["c1"].classic == clients.group.members["c1"].classic
    # when: the config is removed
    clients.classic_beat("c1", generation)
    clients.wait(11)
    # then
    assert not clients.group.members


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (ConsumerLimits(), True),
        (ConsumerLimits(allows_upgrade=False), False),
        (ConsumerLimits(max_size=1), False),
    ],
)
def test_upgrade_is_limited_by_configs(limits: ConsumerLimits, *, expected: bool) -> None:
    """K848-10."""
    _, classic = upgraded()

    assert can_become_consumer(classic.group, limits) is expected


def test_group_of_another_protocol_type_is_not_converted() -> None:
    clients = ClassicGroupClients()
    assert not can_become_consumer(clients.group, ConsumerLimits())

    classic = ClassicGroupClients(initial_delay_ms=0)
    classic.stable("m1")  # its metadata are no subscription
    with pytest.raises(GroupIdNotFoundError, match="malformed"):
        to_consumer(classic.group, MixedGroupClients().topics, ConsumerLimits(), classic.now)
    assert classic.state is GroupState.STABLE


def test_group_with_user_data_in_assignments_stays_classic() -> None:
    """Kafka Streams stores its tasks as user data, and fails without them."""
    # given
    clients, classic = upgraded()
    member = next(iter(classic.group.members))
    member.assignment = member.assignment[:-4] + struct.pack(">i", 1) + b"x"
    # when / then
    with pytest.raises(GroupIdNotFoundError, match="because an unsupported custom assignor is in use"):
        to_consumer(classic.group, clients.topics, ConsumerLimits(), clients.now)
    assert classic.state is GroupState.STABLE


def test_group_with_user_data_in_subscriptions_is_upgraded() -> None:
    """Clients with the StickyAssignor write user data into their subscriptions."""
    # given
    clients, classic = upgraded()
    member = next(iter(classic.group.members))
    metadata = struct.pack(">hih", 0, 1, 1) + b"t" + struct.pack(">i", 1) + b"x"
    classic.group.members.update_protocols(member, (("range", metadata),))
    # when
    group = to_consumer(classic.group, clients.topics, ConsumerLimits(), clients.now)
    # then
    assert group.members[member.member_id].topic_names == {"t"}


def test_partitions_that_do_not_exist_are_left_out_of_the_upgrade() -> None:
    _, classic = upgraded(partitions=4)
    for member in classic.group.members:
        shares = read_assignment(member.assignment)
        member.assignment = write_assignment({"t": (-1, *shares["t"], 2**31 - 1), "gone": (0,)}, 3)
    clients = MixedGroupClients(t=3)

    group = to_consumer(classic.group, clients.topics, ConsumerLimits(), clients.now)

    assert {name: sorted(*member.assigned.values()) for name, member in group.members.items()} == {
        "c1": [0, 2],
        "c2": [1],
    }


@pytest.mark.parametrize("excess", [0, 1])
def test_group_with_too_many_partitions_and_topics_is_not_converted(excess: int) -> None:
    """To read them would keep the broker from all other requests."""
    clients, classic = upgraded()
    topics = 4  # each of the two members names one, in its subscription and in its assignment
    count = (MAX_ELEMENTS - topics) // 2
    for member, more in zip(classic.group.members, (0, excess), strict=True):
        member.assignment = write_assignment({"t": range(count + more)}, 3)

    def convert() -> ConsumerGroup:
        return to_consumer(classic.group, clients.topics, ConsumerLimits(), clients.now)

    if excess:
        with pytest.raises(GroupIdNotFoundError, match=f"more than {MAX_ELEMENTS} topics and partitions"):
            convert()
    else:
        assert list(convert().members) == ["c1", "c2"]


def test_joining_members_rejoin_after_the_upgrade() -> None:
    classic = ClassicGroupClients(initial_delay_ms=3000)
    classic.group.members.pending["c1"] = 10_000.0
    replies = classic.send_join(joins("c1", "t"))
    clients = MixedGroupClients(t=1)
    limits = ConsumerLimits(allows_downgrade=False)  # the consumer that triggered the upgrade is left out

    clients.group = to_consumer(classic.group, clients.topics, limits, clients.now)
    classic.group.disband(ErrorCode.REBALANCE_IN_PROGRESS)

    assert replies[0].error_code is ErrorCode.REBALANCE_IN_PROGRESS
    assert clients.classic_join(joins("c1", "t")).generation_id == 2
    assert clients.classic_sync("c1", 2) == {"t": (0,)}


def test_classic_members_wait_for_the_next_assignment_and_then_join_again() -> None:
    clients, _ = upgraded(partitions=2)
    clients.interval_ms = 1_000
    clients.send("n", 0, topics=["t"])  # gets no partition: there are two for three members
    clients.group.fence("c2", clients.now)
    request = joins("c1", "t", owned=[0])

    joined = clients.group.join(request, clients.topics, clients.now, assignment_interval_ms=1_000)
    assert clients.classic_sync("c1", joined.generation_id) == {"t": (0,)}
    assert clients.classic_beat("c1", joined.generation_id) is ErrorCode.NONE
    clients.wait(1)
    assert clients.classic_beat("c1", joined.generation_id) is ErrorCode.REBALANCE_IN_PROGRESS
    again = clients.group.join(request, clients.topics, clients.now, assignment_interval_ms=1_000)
    assert (again.generation_id, clients.group.is_target_stale) == (joined.generation_id + 1, False)


def test_classic_member_needs_a_protocol_of_all_other_classic_members() -> None:
    clients = MixedGroupClients(t=2)
    clients.join("n", "t")
    metadata = subscription("t")
    clients.classic_join(attempt("c1", protocols=(("range", metadata), ("sticky", metadata))))
    clients.classic_join(attempt("c2", protocols=(("roundrobin", metadata), ("sticky", metadata))))
    request = attempt("c3", protocols=(("roundrobin", metadata),))

    assert clients.rejected(lambda: clients.classic_join(request)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    clients.classic_join(attempt("c1", protocols=(("roundrobin", metadata), ("sticky", metadata))))
    assert clients.rejected(lambda: clients.classic_join(request)) is ErrorCode.NONE
    request = attempt("c4", protocols=(("sticky", metadata),))
    assert clients.rejected(lambda: clients.classic_join(request)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    clients.group.remove("c3")
    assert clients.rejected(lambda: clients.classic_join(request)) is ErrorCode.NONE


class CountedProtocols(tuple[tuple[str, bytes], ...]):
    """Protocols of a member that count how often they are iterated over."""

    __slots__ = ()
    iterations = 0

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        type(self).iterations += 1
        return super().__iter__()


def test_join_does_not_read_the_protocols_of_other_members() -> None:
    clients = MixedGroupClients(t=1)
    clients.join("n", "t")
    metadata = subscription("t")
    clients.classic_join(attempt("c1", protocols=CountedProtocols((("last", metadata),))))
    CountedProtocols.iterations = 0

    clients.classic_join(
        attempt("c2", protocols=(*((f"p{number}", metadata) for number in range(9)), ("last", metadata)))
    )

    assert CountedProtocols.iterations == 0


def test_requests_of_the_wrong_protocol_are_rejected() -> None:
    clients = MixedGroupClients(t=1)
    member = clients.join("n", "t")

    assert clients.classic_beat("n", member.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert clients.rejected(lambda: clients.classic_sync("n", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    other_type = replace(joins("c", "t"), protocol_type="connect")
    for request in (other_type, attempt("c")):
        code = clients.rejected(lambda request=request: clients.classic_join(request))  # type: ignore[misc]
        assert code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert clients.rejected(lambda: clients.classic_join(joins("", "t"))) is ErrorCode.MEMBER_ID_REQUIRED
    assert isinstance(clients.group, ConsumerGroup)
    assert not isinstance(clients.group, ClassicGroup)


def test_classic_members_leave_by_id_or_instance() -> None:
    clients = MixedGroupClients(t=2)
    member: FakeMember = clients.join("n", "t")
    clients.classic_join(joins("c1", "t"))
    clients.classic_join(joins("", "t", instance_id="i"))

    codes = clients.group.classic_leave(
        [
            MemberIdentity(member_id="c1", group_instance_id=None),
            MemberIdentity(member_id="other", group_instance_id="i"),
            MemberIdentity(member_id="", group_instance_id="i"),
        ],
        clients.now,
    )

    assert codes == (ErrorCode.NONE, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.NONE)
    clients.settle(member)
    assert len(member.owned) == 2
