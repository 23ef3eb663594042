from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.groups.consumer.consumer_protocol import read_topics
from klamm.broker.groups.offset_coordinator import subscribed_topics, topics_in_use
from tests.support.groups import ClassicGroupClients


def subscription(*topics: str, version: int = 0) -> bytes:
    """A ConsumerProtocolSubscription, with what newer versions have behind the topics."""
    names = b"".join(struct.pack(">h", len(topic.encode())) + topic.encode() for topic in topics)
    return struct.pack(">hi", version, len(topics)) + names + b"\xff\xff\xff\xff" + b"\0" * version * 4


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20)), st.integers(0, 3))
def test_topics_are_read_from_every_version(topics: list[str], version: int) -> None:
    assert read_topics(subscription(*topics, version=version)) == tuple(topics)


@given(st.binary(max_size=40))
def test_arbitrary_bytes_parse_or_raise_value_error(data: bytes) -> None:
    try:
        topics = read_topics(data)
    except ValueError:
        return
    assert all(topic.encode() in data for topic in topics)


@pytest.mark.parametrize("metadata", [b"", b"\0\0", b"\xff\xff\0\0\0\0", struct.pack(">hi", 0, 2**31 - 1)])
def test_invalid_subscription_raises_value_error(metadata: bytes) -> None:
    with pytest.raises(ValueError, match=r"Not (a subscription|of the consumer protocol)"):
        read_topics(metadata)


def test_group_subscribes_to_topics_of_all_members() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1", protocols=(("range", subscription("a", "b")),))
    clients.new_dynamic("m2", protocols=(("range", subscription("b", "c")),))
    clients.wait(6)

    assert subscribed_topics(clients.group) == frozenset("abc")
    assert topics_in_use(clients.group, {"c"}) == {"c"}
    assert not topics_in_use(clients.group, {"d"})


def test_subscribed_topics_follow_every_change_of_members() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1", protocols=(("range", subscription("a")),))
    clients.wait(6)
    members = clients.group.members
    assert subscribed_topics(clients.group) == frozenset({"a"})

    clients.new_dynamic("m2", protocols=(("range", subscription("b")),))
    assert subscribed_topics(clients.group) == frozenset({"a", "b"})
    members.update_protocols(members.find("m1", None), (("range", subscription("c")),))
    assert subscribed_topics(clients.group) == frozenset({"b", "c"})
    members.remove("m2")
    assert subscribed_topics(clients.group) == frozenset({"c"})


def test_unreadable_subscription_counts_as_every_topic() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1", protocols=(("range", b"?"),))

    assert subscribed_topics(clients.group) is None
    assert topics_in_use(clients.group, {"anything"}) == {"anything"}


def test_other_protocol_type_subscribes_to_no_topics() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1", protocols=(("default", b""),), protocol_type="connect")
    clients.wait(3)

    assert not topics_in_use(clients.group, {"anything"})


def test_group_without_members_uses_no_topics() -> None:
    assert not topics_in_use(ClassicGroupClients().group, {"anything"})
