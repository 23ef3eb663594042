"""Arguments of an injected fault, and the faults that a request meets."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from klamm.faults.fault import FaultError, FaultQueue, parse_fault
from klamm.protocol.error_response import Part
from klamm.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.faults.fault import Fault, Selection

APIS = {
    "Produce": frozenset({"topic", "partition"}),
    "ListOffsets": frozenset({"topic", "partition"}),
    "CreateTopics": frozenset({"topic"}),
    "Heartbeat": frozenset({"group_id"}),
}
PARTS = [Part(topic=topic, partition=partition) for topic in ("a", "b") for partition in (0, 1)]


def fault(**options: Any) -> Fault:
    return parse_fault(options, apis=APIS)


def queue(*faults: Fault) -> FaultQueue:
    added = FaultQueue(random.random)
    for fault in faults:
        added.add(fault)
    return added


def select(
    faults: FaultQueue, api: str = "Produce", client_id: str = "c", parts: list[Part] | None = PARTS
) -> Selection:
    return faults.select(request(api, client_id=client_id), lambda _: parts)


def request(api: str = "Produce", **fields: object) -> dict[str, object]:
    return {"api": api, "client_id": "c", "node_id": 1, "group_id": None, **fields}


@pytest.mark.parametrize(
    "spelling", ["ListOffsets", "list_offsets", "LIST_OFFSETS", "ListOffsetsRequest", "listoffsets"]
)
def test_api_name_is_accepted_in_any_spelling(spelling: str) -> None:
    assert fault(api=spelling, no_answer=True).api == "ListOffsets"


@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "not_leader_or_follower", "NotLeaderOrFollower", 6])
def test_error_is_accepted_by_name_and_code(error: str | int) -> None:
    assert fault(error=error).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api": "Prodce", "error": 6}, r"api='Prodce': the broker serves no such API; did you mean Produce\?"),
        (
            {"error": "NOT_COORDINATR"},
            r"error='NOT_COORDINATR': Kafka has no such error; did you mean NOT_COORDINATOR\?",
        ),
        ({"error": 9999}, "error=9999: Kafka has no error with this code"),
        ({"error": "NONE"}, "error=NONE: not an error"),
        ({"api": "Produce"}, "A fault needs an effect: error, delay, throttle, drop_connection or no_answer"),
        ({"error": 6, "no_answer": True}, "A fault has one of error, drop_connection and no_answer"),
        ({"error": 6, "times": 0}, "times=0: must be at least 1, or None for no limit"),
        ({"error": 6, "times": True}, "times=True: expected int, got bool"),
        ({"error": 6, "times": 1.5}, "times=1.5: expected int, got float"),
        ({"error": True}, "error=True: expected str or int, got bool"),
        ({"api": 3, "error": 6}, "api=3: expected str, got int"),
        ({"error": 6, "partition": "0"}, "partition='0': expected int, got str"),
        ({"error": 6, "topic": 5}, "topic=5: expected str, got int"),
        ({"error": "NOPE"}, "error='NOPE': Kafka has no such error$"),
        ({"delay_s": -1.0}, "delay=-1: must be between 0 and 86400 seconds"),
        ({"error": 6, "partition": -1}, "partition=-1: must be at least 0"),
        (
            {"api": "Produce", "error": 6, "group_id": "g"},
            "group_id='g': Produce requests name no groups. A filter by group_id is possible for: Heartbeat$",
        ),
        (
            {"api": "Heartbeat", "error": 6, "topic": "a"},
            "topic='a': Heartbeat requests name no topics.*: CreateTopics, ",
        ),
        ({"api": "CreateTopics", "error": 6, "partition": 0}, "partition=0: CreateTopics requests name no partitions"),
    ],
)
def test_invalid_fault_is_rejected_with_reason(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FaultError, match=message):
        fault(**options)


def test_fault_ends_after_its_number_of_requests() -> None:
    faults = queue(fault(api="Produce", error=6, times=2))
    assert [select(faults).code for _ in range(3)] == [6, 6, 0]


def test_unlimited_fault_ends_when_removed() -> None:
    faults = queue(fault(error=6, times=None))
    assert [select(faults).code for _ in range(3)] == [6, 6, 6]
    faults.remove(1)
    assert select(faults).code == 0


def test_counts_of_the_last_removed_faults_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr("klamm.faults.fault._MAX_REMOVED", 2)
    faults = queue(fault(error=6, times=None), fault(error=7), fault(error=8))
    select(faults)
    # when
    faults.remove(2)
    faults.clear()
    # then
    assert not select(faults)
    kept = [faults.get(number) for number in (1, 2, 3)]
    assert [None if each is None else each.count for each in kept] == [1, None, 0]


def test_faults_affect_successive_requests() -> None:
    faults = queue(fault(error=6), fault(drop_connection=True), fault(error=7))
    decisions = [select(faults) for _ in range(3)]
    assert [(decision.code, decision.ending is not None) for decision in decisions] == [
        (6, False),
        (0, True),
        (7, False),
    ]


def test_delay_is_added_to_another_fault() -> None:
    faults = queue(fault(delay_s=0.5), fault(delay_s=2.0), fault(error=6, delay_s=1.0))
    first, second = select(faults), select(faults)
    assert (first.code, first.delay_s(after_serving=False)) == (6, 1.5)
    assert (second.code, second.delay_s(after_serving=False)) == (0, 2.0)


def test_delay_and_throttle_of_two_faults_affect_one_request() -> None:
    # given
    faults = queue(fault(throttle_s=1.0, times=None), fault(delay_s=0.3, times=None), fault(throttle_s=2, delay_s=2))
    # when
    decisions = [select(faults) for _ in range(2)]
    # then
    assert [(each.throttle_time_ms, each.delay_s(after_serving=False)) for each in decisions] == [(1000, 0.3)] * 2
    assert [fault.count for fault in faults] == [2, 2, 0]


def test_faults_of_different_topics_affect_one_request() -> None:
    faults = queue(fault(error=6, topic="a"), fault(error=7, topic="b", partition=1), fault(error=3))
    decision = select(faults)
    assert [decision.error_of(part) for part in PARTS] == [6, 6, None, 7]
    assert [fault.count for fault in faults] == [1, 1, 0]


def test_fault_of_another_topic_client_or_api_is_not_consumed() -> None:
    faults = queue(fault(api="Heartbeat", error=6), fault(error=6, topic="c"), fault(error=6, client_id="other"))
    assert not select(faults)
    assert [fault.count for fault in faults] == [0, 0, 0]


def test_topic_filter_matches_request_for_all_topics() -> None:
    assert select(queue(fault(error=6, topic="a")), parts=None).code == 6


def test_faults_before_and_after_serving_affect_different_requests() -> None:
    faults = queue(fault(error=6, topic="a"), fault(error=7, topic="b", after_serving=True))
    assert [select(faults).code for _ in range(2)] == [6, 7]


@pytest.mark.parametrize("name", ["node_id", "group_id"])
def test_fault_affects_only_requests_of_its_node_or_group(name: str) -> None:
    faults = queue(fault(no_answer=True, times=None, **{name: 2 if name == "node_id" else "g"}))
    assert not faults.select(request(), lambda _: None)
    assert faults.select(request(node_id=2, group_id="g"), lambda _: None)


def test_fault_with_probability_affects_a_share_of_requests() -> None:
    faults = queue(fault(no_answer=True, times=None, probability=0.3))
    affected = sum(bool(select(faults)) for _ in range(2_000))
    assert 400 < affected < 800


def even_versions(request: Mapping[str, Any]) -> bool:
    return bool(request["version"] % 2 == 0)


def test_fault_with_function_affects_matching_requests() -> None:
    faults = queue(fault(no_answer=True, times=None, when=f"{__name__}:even_versions"))
    affected = [bool(faults.select(request(version=version), lambda _: None)) for version in range(4)]
    assert affected == [True, False, True, False]


def test_throttle_fault_sets_throttle_time_without_an_error() -> None:
    selection = select(queue(fault(throttle_s=1.5)))
    assert (selection.throttle_time_ms, selection.errors) == (1500, [])


def test_description_shows_arguments_that_differ_from_their_defaults() -> None:
    assert fault(api="Produce", error=6, topic="a").description == (
        "Produce: error='NOT_LEADER_OR_FOLLOWER', topic='a'"
    )
    assert (
        fault(delay_s=2.0, throttle_s=0.5, times=None).description == "every API: delay=2.0, times=None, throttle=0.5"
    )


@pytest.mark.parametrize(("acks", "affected"), [("all", {-1}), (-1, {-1}), (1, {1}), ("0", {0}), (None, {-1, 0, 1})])
def test_acks_filter_selects_produce_requests(acks: str | int | None, affected: set[int]) -> None:
    faults = queue(fault(api="Produce", error="NOT_ENOUGH_REPLICAS", acks=acks, times=None))
    selected = {value for value in (-1, 0, 1) if faults.select(request(), lambda _: PARTS, acks=value)}
    assert selected == affected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api": "Produce", "acks": 2}, "acks=2: expected 0, 1 or all"),
        ({"api": "ListOffsets", "acks": 1}, "only Produce requests have acks"),
        ({"acks": 1}, "only Produce requests have acks"),
    ],
)
def test_invalid_acks_filter_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FaultError, match=message):
        fault(error="NOT_ENOUGH_REPLICAS", **options)
