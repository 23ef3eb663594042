from __future__ import annotations

import pytest

from klamm.mirror.records import requested_states, source_offsets
from klamm.mirror.records.requested_states import RequestedState, RequestedStates

PAUSED, RUNNING, STOPPED = RequestedState.PAUSED, RequestedState.RUNNING, RequestedState.STOPPED
PROMOTED, FAILED_OVER = RequestedState.PROMOTED, RequestedState.FAILED_OVER
DEMOTED = RequestedState.DEMOTED


def test_topic_has_stricter_of_both_states() -> None:
    states = RequestedStates(flow=PAUSED, topics={"a": STOPPED, "b": PAUSED})
    assert [states.of(topic) for topic in "abc"] == [STOPPED, PAUSED, PAUSED]
    assert RequestedStates(topics={"a": STOPPED}).of("b") is RUNNING
    assert states.with_flow(STOPPED).of("b") is STOPPED


def test_resumed_topics_leave_the_record() -> None:
    states = RequestedStates().with_topics(["a", "b"], STOPPED).with_topics(["a"], RUNNING)
    assert states.topics == {"b": STOPPED}
    assert states.with_flow(RUNNING) == RequestedStates()


def test_promoted_and_demoted_topics_keep_their_state_when_the_flow_is_resumed() -> None:
    states = RequestedStates(flow=STOPPED, topics={"a": PROMOTED, "b": FAILED_OVER, "c": PAUSED, "d": DEMOTED})
    assert [states.of(topic) for topic in "abcd"] == [PROMOTED, FAILED_OVER, STOPPED, STOPPED]
    assert states.with_flow(RUNNING) == RequestedStates(topics={"a": PROMOTED, "b": FAILED_OVER, "d": DEMOTED})


@pytest.mark.parametrize(
    "states",
    [
        RequestedStates(),
        RequestedStates(flow=STOPPED),
        RequestedStates(topics={"a": STOPPED, "b": PAUSED, "c": PROMOTED, "d": FAILED_OVER, "e": DEMOTED}),
    ],
)
def test_value_is_read_back(states: RequestedStates) -> None:
    assert requested_states.parse_value(requested_states.value_bytes(states)) == states


def test_value_of_a_version_without_promotion_is_read() -> None:
    value = b'{"flow":"RUNNING","paused":"a","stopped":""}'
    assert requested_states.parse_value(value) == RequestedStates(topics={"a": PAUSED})


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]", b'{"flow":"AWAY","paused":"","stopped":""}', b'{"flow":1}'])
def test_damaged_value_is_none(value: bytes | None) -> None:
    assert requested_states.parse_value(value) is None


def test_key_differs_from_source_offset_keys() -> None:
    key = requested_states.key_bytes("A", "A->B")
    assert key == b'["klamm-mirror",{"cluster":"A","flow":"A->B","kind":"requested states"}]'
    assert requested_states.flow_of(key, "A") == "A->B"
    assert requested_states.flow_of(key, "B") is None
    assert source_offsets.parse_key(key) is None
    assert source_offsets.parse_own_key(key) is None


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"{",
        b"[]",
        pytest.param(b"[" * 100_000, id="deep"),
        b'["klamm-mirror",{"cluster":"A"}]',
        b'["other",{"cluster":"A","flow":"A->B"}]',
    ],
)
def test_other_key_names_no_flow(key: bytes) -> None:
    assert requested_states.flow_of(key, "A") is None
