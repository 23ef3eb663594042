"""Assertions of klamm.testing, on a broker with given contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.embedded.controls import MemberAssignment, SeenRequest, StoredRecord
from klamm.testing import assert_assigned, assert_committed_offset, assert_requested, assert_topic_contains

if TYPE_CHECKING:
    from klamm.embedded.broker import Broker


class Contents:
    """A broker with fixed contents, which appear at the second look."""

    def __init__(self, *values: bytes | None, key: bytes | None = None) -> None:
        self.looks = 0
        self._records = [
            StoredRecord(topic="t", partition=0, offset=at, timestamp_ms=1, key=key, value=value, headers=())
            for at, value in enumerate(values)
        ]

    def records(self, topic: str, **_: Any) -> list[StoredRecord]:
        self.looks += 1
        if topic != "t":
            raise LookupError(topic)
        return self._records if self.looks > 1 else []

    def committed_offsets(self, group_id: str) -> dict[tuple[str, int], int]:
        self.looks += 1
        return {("t", 0): 3} if group_id == "g" and self.looks > 1 else {}

    def partition_count(self, topic: str) -> int:
        return 1

    def _state_and_members(self, group_id: str) -> tuple[str, list[MemberAssignment]]:
        self.looks += 1
        members = [MemberAssignment(client_id="c", member_id="c-1", partitions=(("t", 0),))]
        return ("Stable", members) if group_id == "g" and self.looks > 1 else ("Dead", [])

    def requests(self, api: str | None = None, **_: Any) -> list[SeenRequest]:
        self.looks += 1
        fixed: dict[str, Any] = dict.fromkeys(("client_id", "group_id", "transactional_id", "fault"))
        request = SeenRequest(api="Produce", version=9, node_id=1, received_ms=1, partitions=(), **fixed)
        return [request, request] if api in {None, "Produce"} and self.looks > 1 else []


def broker(*values: bytes | None, key: bytes | None = None) -> Broker:
    return cast("Broker", Contents(*values, key=key))


def test_assertion_accepts_additional_records() -> None:
    assert_topic_contains(broker(b"1", b"2", None), "t", b"2", "1", None)


def test_any_record_satisfies_an_assertion_without_values_which_returns_all() -> None:
    (record,) = assert_topic_contains(broker(b"1"), "t")
    assert record.value == b"1"
    assert len(assert_topic_contains(broker(b"1", b"2"), "t", only=True)) == 2


def test_assertion_returns_the_records_in_the_order_of_the_values() -> None:
    records = assert_topic_contains(broker(b"1", b"2", b"1"), "t", b"2", b"1")
    assert [(record.offset, record.value) for record in records] == [(1, b"2"), (0, b"1")]


def test_records_in_wrong_order_fail() -> None:
    assert_topic_contains(broker(b"1", b"2"), "t", b"1", b"2", in_order=True)
    with pytest.raises(AssertionError, match="topic t lacks b'1' in this order"):
        assert_topic_contains(broker(b"1", b"2"), "t", b"2", b"1", in_order=True, within_s=0.05)


def test_surplus_record_fails_at_once() -> None:
    assert_topic_contains(broker(b"1", b"2"), "t", b"2", b"1", only=True)
    with pytest.raises(AssertionError, match="topic t has further records"):
        assert_topic_contains(broker(b"1", b"2"), "t", b"1", only=True, within_s=3600)


def test_records_without_the_headers_fail() -> None:
    with pytest.raises(AssertionError, match="lacks b'1' with headers trace='x'"):
        assert_topic_contains(broker(b"1"), "t", b"1", headers={"trace": "x"}, within_s=0.05)


def test_assert_assigned_requires_all_partitions() -> None:
    (member,) = assert_assigned(broker(), "g", "t", members=1)
    assert member.client_id == "c"
    with pytest.raises(
        AssertionError, match=r"(?s)Group g is Stable and has 1 member, .*Partitions without a member: u-0.*c: t-0"
    ):
        assert_assigned(broker(), "g", "u", within_s=0.05)


def test_function_matches_values() -> None:
    assert_topic_contains(broker(b"1", b"22"), "t", lambda value: value is not None and len(value) == 2)


def any_value(_: bytes | None) -> bool:
    return True


def begins_with_a(value: bytes | None) -> bool:
    return (value or b"").startswith(b"a")


def test_function_leaves_records_to_values_that_need_them() -> None:
    records = assert_topic_contains(broker(b"a1", b"2", b"3"), "t", any_value, begins_with_a, "3", only=True)
    assert [record.value for record in records] == [b"2", b"a1", b"3"]
    with pytest.raises(AssertionError, match="lacks begins_with_a "):
        assert_topic_contains(broker(b"a1", b"2"), "t", any_value, begins_with_a, begins_with_a, within_s=0.1)


def test_many_functions_get_records() -> None:
    """Each of them could take over the record of the one before it, a thousand times in a row."""
    full = broker(*[b"a"] * 1200)
    assert len(assert_topic_contains(full, "t", *[any_value] * 1200)) == 1200
    with pytest.raises(AssertionError, match="lacks any_value "):
        assert_topic_contains(full, "t", *[any_value] * 1201, within_s=0)


def test_equal_values_need_as_many_records() -> None:
    with pytest.raises(
        AssertionError, match=r"topic t lacks b'1' \(the last 1 of its 1 record follow\)\n  0:0 key=None value=b'1'"
    ):
        assert_topic_contains(broker(b"1"), "t", b"1", b"1", within_s=0.03)


def test_key_is_required_of_all_records() -> None:
    assert_topic_contains(broker(b"1", key=b"k"), "t", b"1", key="k")
    with pytest.raises(AssertionError, match="topic t lacks b'1' with key None"):
        assert_topic_contains(broker(b"1", key=b"k"), "t", b"1", key=None, within_s=0.03)


@pytest.mark.parametrize("expected", [{"a": 1}, 1, bytearray(b"1")])
def test_value_or_key_of_another_type_is_rejected_before_waiting(expected: Any) -> None:
    for arguments, key in (((expected,), ...), ((), expected)):
        contents = Contents(b"1")
        with pytest.raises(TypeError, match=r"expected bytes, str, None or a function"):
            assert_topic_contains(cast("Broker", contents), "t", *arguments, key=key)
        assert contents.looks == 0


def test_missing_topic_or_record_is_named() -> None:
    with pytest.raises(AssertionError, match=r"partition other-3 lacks '1' \(it does not exist\)"):
        assert_topic_contains(broker(), "other", "1", partition=3, within_s=0.03)
    with pytest.raises(AssertionError, match=r"topic t lacks any record \(it is empty\)"):
        assert_topic_contains(broker(), "t", within_s=0.03)


def test_wrong_committed_offset_fails_with_actual_offsets() -> None:
    assert_committed_offset(broker(), "g", "t", 3)
    with pytest.raises(AssertionError, match=r"Group g has not committed offset 4 of partition t-0. .*: t-0: 3"):
        assert_committed_offset(broker(), "g", "t", 4, within_s=0.03)
    with pytest.raises(AssertionError, match="Its committed offsets: none"):
        assert_committed_offset(broker(), "h", "t", 4, within_s=0.03)


def test_requests_are_counted() -> None:
    assert len(assert_requested(broker(), "Produce", times=2)) == 2
    with pytest.raises(
        AssertionError, match=r"has received 2 such Produce requests, expected 1. .*: Produce v9, Produce v9"
    ):
        assert_requested(broker(), "Produce", times=1)
    with pytest.raises(AssertionError, match="has received 0 such Fetch requests, expected at least one"):
        assert_requested(broker(), "Fetch", within_s=0.03)


def test_missing_requests_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Contents, "requests", lambda *args, **conditions: [])
    with pytest.raises(AssertionError, match="Its last ones: none"):
        assert_requested(broker(), "Fetch", within_s=0.03)
