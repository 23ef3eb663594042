from __future__ import annotations

import pytest

from klamm.mirror.records import requested_states, source_offsets
from klamm.mirror.records.requested_states import RequestedState, RequestedStates

PAUSED, RUNNING, STOPPED = RequestedState.PAUSED, RequestedState.RUNNING, RequestedState.STOPPED


def test_topic_has_stricter_of_both_states() -> None:
    states = RequestedStates(flow=PAUSED, topics={"a": STOPPED, "b": PAUSED})
    assert [states.of(topic) for topic in "abc"] == [STOPPED, PAUSED, PAUSED]
    assert RequestedStates(topics={"a": STOPPED}).of("b") is RUNNING
    assert states.with_flow(STOPPED).of("b") is STOPPED


def test_resumed_topics_leave_the_record() -> None:
    states = RequestedStates().with_topics(["a", "b"], STOPPED).with_topics(["a"], RUNNING)
    assert states.topics == {"b": STOPPED}
    assert states.with_flow(RUNNING) == RequestedStates()


@pytest.mark.parametrize(
    "states", [RequestedStates(), RequestedStates(flow=STOPPED), RequestedStates(topics={"a": STOPPED, "b": PAUSED})]
)
def test_value_is_read_back(states: RequestedStates) -> None:
    assert requested_states.parse_value(requested_states.value_bytes(states)) == states


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]", b'{"flow":"AWAY","paused":"","stopped":""}', b'{"flow":1}'])
def test_damaged_value_is_none(value: bytes | None) -> None:
    assert requested_states.parse_value(value) is None


def test_key_differs_from_source_offset_keys() -> None:
    key = requested_states.key_bytes("A", "A->B")
    assert key == b'["klamm-mirror",{"cluster":"A","flow":"A->B","kind":"requested states"}]'
    assert source_offsets.parse_key(key) is None
    assert source_offsets.parse_own_key(key) is None
